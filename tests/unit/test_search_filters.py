"""Filters: what passes, what is refused and in which words, and that no value ever becomes part of a statement."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from instep.errors import Refused
from instep.search.columns import Column, kind_of, microseconds
from instep.search.engines.tantivy_filter import like_to_regex
from instep.search.filter_syntax import parse_filter
from instep.search.filters import And, Comparison, Has, Like, Member, Null, Or, to_sql

PRICE = Column("price", "number", "numeric")
STOCK = Column("stock", "integer", "integer")
SECTION = Column("section", "text", "text")
ACTIVE = Column("active", "boolean", "boolean")
DAY = Column("day", "date", "date")
AT = Column("at", "timestamptz", "timestamp with time zone")
TAGS = Column("tags", "texts", "text[]")
OWNER = Column("owner", "uuid", "uuid")
MOOD = Column("mood", "text", "mood")
ODD = Column('we"ird %s', "text", "text")
COLUMNS = (PRICE, STOCK, SECTION, ACTIVE, DAY, AT, TAGS, OWNER, MOOD, ODD)


def parsed(text):
    return parse_filter(text, COLUMNS)


def test_the_example_of_the_design():
    assert parsed("price < 20 and section in ('a', 'b')") == And(
        (Comparison(PRICE, "<", Decimal(20)), Member(SECTION, ("a", "b")))
    )


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("20 > price", Comparison(PRICE, "<", Decimal(20))),
        ("not price < 20", Comparison(PRICE, ">=", Decimal(20))),
        ("not (active or stock = 1)", And((Comparison(ACTIVE, "=", False), Comparison(STOCK, "<>", 1)))),
        ("active is not true", Or((Comparison(ACTIVE, "=", False), Null(ACTIVE)))),
        ("section is not null", Null(SECTION, True)),
        ("not section is not null", Null(SECTION)),
        ("section not ilike 'a%'", Like(SECTION, "a%", True, True)),
        ("'x' = any(tags)", Has(TAGS, "x")),
        ("not 'x' = any(tags)", Has(TAGS, "x", True)),
        ("day = '2024-02-29'", Comparison(DAY, "=", date(2024, 2, 29))),
        (
            "at >= timestamptz '2024-02-29 12:00+02'",
            Comparison(AT, ">=", datetime(2024, 2, 29, 10, tzinfo=UTC)),
        ),
        ("at >= '2024-02-29'", Comparison(AT, ">=", datetime(2024, 2, 29, tzinfo=UTC))),
        ("owner = '00000000-0000-0000-0000-000000000007'", Comparison(OWNER, "=", UUID(int=7))),
        ("SECTION = 'a'", Comparison(SECTION, "=", "a")),
        ('"we""ird %s" = \'a\'', Comparison(ODD, "=", "a")),
        ("stock < 3.5", Comparison(STOCK, "<", Decimal("3.5"))),
        ("stock = -3", Comparison(STOCK, "=", -3)),
        ("price = '19.99'", Comparison(PRICE, "=", Decimal("19.99"))),
        ("stock not between 1 and 2", Or((Comparison(STOCK, "<", 1), Comparison(STOCK, ">", 2)))),
    ],
)
def test_what_passes(text, tree):
    assert parsed(text) == tree


@pytest.mark.parametrize(
    "text",
    [
        "price < 20; drop table articles",
        "price < 20 union select 1",
        "price in (select 1)",
        "pg_sleep(10) is null",
        "price = pg_sleep(10)",
        "exists (select 1)",
        "price < random()",
        "price = $1",
        "price = %(a)s",
        "section = current_user",
        "section || 'a' = 'b'",
        "section = 'a' collate \"C\"",
        "section::text = 'a'",
        "a.price = 1",
        "(price, stock) = (1, 2)",
        "price < stock",
        "section ~ 'a'",
        "section similar to 'a'",
        "section like 'a' escape '!'",
        "section like 'lone\\'",
        "section < 'm'",
        "active > true",
        "tags = 'a'",
        "'a' = all(tags)",
        "section = any(array['a'])",
        "price = null",
        "price is distinct from 3",
        "1 = 1",
        "true",
        "price",
        "section = 3",
        "price = 'cheap'",
        "stock = 'NaN'",
        "stock = 1e999999",
        "day = 'yesterday'",
        "day = '2024-02-30'",
        "at = '0001-01-01 00:00+10'",
        "active = 'yes'",
        "owner = 'x'",
        "price in ()",
        "price <",
        "((((",
        "(" * 3000 + "active" + ")" * 3000,
        "not " * 900 + "active",
        " or ".join(["active"] * 3000),
        "section = E'a'",
        "section = 'a\x00'",
        "section = '\ud800'",
        "",
        "   ",
    ],
)
def test_what_is_refused(text):
    with pytest.raises(Refused):
        parsed(text)


def test_a_hundred_alternatives_are_not_deep():
    tree = parsed(" or ".join(f"stock = {n}" for n in range(200)))
    assert isinstance(tree, Or)
    assert [part.value for part in tree.parts] == list(range(200))


def test_a_refusal_quotes_the_part_and_names_the_columns():
    with pytest.raises(Refused) as refused:
        parsed("price < 20 and length(section) > 3")
    assert "LENGTH(section)" in str(refused.value)
    assert "section (text)" in refused.value.hint
    with pytest.raises(Refused) as refused:
        parsed("sektion = 'a'")
    assert "'sektion'" in str(refused.value)
    assert "did you mean section?" in refused.value.hint
    with pytest.raises(Refused) as refused:
        parsed('section = "games"')
    assert "single quotes" in refused.value.hint
    with pytest.raises(Refused) as refused:
        parse_filter("a = 1", ())
    assert "no column of this table was declared" in refused.value.hint


def test_values_are_parameters_and_names_are_quoted():
    composed, parameters = to_sql(parsed("\"we\"\"ird %s\" = 'a'' or 1=1 --' and price < 20"), "a")
    text = composed.as_string()
    assert '"a"."we""ird %%s" = %(filter_1)s::text' in text
    assert '"a"."price" < %(filter_2)s::numeric' in text
    assert parameters == {"filter_1": "a' or 1=1 --", "filter_2": Decimal(20)}
    assert to_sql(parsed("mood = 'glad'"))[0].as_string() == '"a"."mood"::text = %(filter_1)s::text'


def test_kinds_and_moments():
    assert kind_of("character varying(20)") == "text"
    assert kind_of("timestamp(3) with time zone") == "timestamptz"
    assert kind_of("numeric(10,2)") == "number"
    assert kind_of("jsonb") is None
    assert microseconds(date(1970, 1, 2)) == 86_400_000_000
    assert DAY.decode(86_400_000_000) == "1970-01-02"
    assert AT.decode(0) == "1970-01-01T00:00:00+00:00"
    assert AT.decode(2**63 - 1) == "infinity"


def test_like_is_translated_whole():
    assert like_to_regex("a%_\\%.x") == "a(.|\n)*(.|\n)\\%\\.x"
    assert like_to_regex("aß1", insensitive=True) == "(A|a)ß1"
