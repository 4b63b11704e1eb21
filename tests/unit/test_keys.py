"""A key as a person writes it is the key that the tables hold, or is refused with what it takes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep.engine.declaration import KeyColumn, Source
from instep.engine.keys import format_key, parse_key
from instep.errors import Refused

UUID_TEXT = "8c1f2a30-5b1d-4f6e-9a51-0d7c3e9b2a44"


def source(*types):
    return Source("s", 1, "public", "s", tuple(KeyColumn(f"c{i}", t) for i, t in enumerate(types)))


@pytest.mark.parametrize(
    ("types", "text", "key"),
    [
        (["bigint"], "-9223372036854775808", (-(2**63),)),
        (["integer"], " 7 ", (7,)),
        (["text"], "[1, 2]", ("[1, 2]",)),
        (["text"], "", ("",)),
        (["character varying(9)"], "007", ("007",)),
        (["uuid"], UUID_TEXT.upper(), (UUID(UUID_TEXT),)),
        (["integer", "text"], '[7, "a\\"b"]', (7, 'a"b')),
        (["uuid", "bigint"], f'["{UUID_TEXT}", "12"]', (UUID(UUID_TEXT), 12)),
    ],
)
def test_parsed(types, text, key):
    assert parse_key(source(*types), text) == key


@pytest.mark.parametrize(
    ("types", "text"),
    [
        (["bigint"], "9223372036854775808"),
        (["smallint"], "40000"),
        (["integer"], "seven"),
        (["integer"], "1.5"),
        (["uuid"], "7"),
        (["text"], "a\0b"),
        (["integer", "text"], "7"),
        (["integer", "text"], "[7]"),
        (["integer", "text"], '[7, "a", 1]'),
        (["integer", "text"], "[true, 'a']"),
        (["integer", "text"], '[true, "a"]'),
        (["integer", "text"], '[1.5, "a"]'),
        (["integer", "text"], "[7, 7]"),
        (["integer", "text"], '{"c0": 7, "c1": "a"}'),
    ],
)
def test_refused(types, text):
    with pytest.raises(Refused, match=r"the key of s is (the value|a JSON array) of c0") as raised:
        parse_key(source(*types), text)
    assert raised.value.hint.startswith("For example: ")
    if len(types) == 1:
        parse_key(source(*types), raised.value.hint.removeprefix("For example: "))
    else:
        parse_key(source(*types), raised.value.hint.removeprefix("For example: ").strip("'"))


@given(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        st.uuids(),
    )
)
def test_written_and_read_again(key):
    assert parse_key(source("bigint", "text", "uuid"), format_key(key)) == key
    for part, type in zip(key, ("bigint", "text", "uuid"), strict=True):
        assert parse_key(source(type), format_key((part,))) == (part,)
