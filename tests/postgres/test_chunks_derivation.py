"""What the embedding derivation loads and sends: the content of one snapshot, and no text twice."""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
from pathlib import Path

import numpy as np
import pytest
from embedding_scene import CountingModel, scene

from instep.chunks.derivation import ChunkDerivation, Making, making_of
from instep.chunks.splitting import splitter_of
from instep.engine.declaration import KeyColumn
from instep.engine.ports import Output
from instep.errors import Configuration, Permanent
from instep.inference.minilm import MiniLM

MODELS = Path(tempfile.gettempdir()) / f"instep-tests-{os.getuid()}" / "models"


def paragraphs(count: int, *, word: str = "text") -> list[str]:
    """Each long enough to be a chunk of its own."""
    return [f"Paragraph {i} of {count}: " + f"{word} number {i} goes on and on. " * 8 for i in range(count)]


async def insert(conn, id, title, body):
    await conn.execute("insert into articles (id, title, body) values (%s, %s, %s)", (id, title, body))


async def test_one_of_fifty_paragraphs(conn):
    """One of 50 paragraphs changed: exactly 1 text is sent (PEERS 3, issue 4)."""
    s = await scene(conn, columns=("body",), splitter="400c")
    parts = paragraphs(50)
    await conn.execute("insert into articles (id, body) values (1, %s)", ("\n\n".join(parts),))
    await s.work((1,))
    assert len(s.model.sent) == 50
    s.model.sent.clear()
    parts[20] = parts[20].replace("number 20", "number twenty")
    await conn.execute("update articles set body = %s", ("\n\n".join(parts),))
    (output,) = await s.work((1,))
    assert s.model.sent == [parts[20].strip()]
    assert output.reused == 49
    held = await s.rows("select count(*), count(*) filter (where text like '%%number twenty%%') from {chunk}")
    assert held == [(50, 1)]


async def test_paragraph_on_top_rewrites_no_vector(conn):
    """A paragraph put on top: 1 text is sent, and the other chunks' rows are the very same rows (ctid and xmin)."""
    s = await scene(conn, columns=("body",), splitter="400c")
    parts = paragraphs(20)
    await conn.execute("insert into articles (id, body) values (1, %s)", ("\n\n".join(parts),))
    await s.work((1,))
    place = "select text_hash, ctid::text, xmin::text from {chunk} order by text_hash"
    before = await s.rows(place)
    s.model.sent.clear()
    top = "A new beginning. " * 10
    await conn.execute("update articles set body = %s", ("\n\n".join([top, *parts]),))
    await s.work((1,))
    assert s.model.sent == [top.strip()]
    after = await s.rows(place)
    assert len(after) == 21
    assert set(before) < set(after)
    ((hashes, starts, ends),) = await s.rows("select text_hashes, starts, ends from {layout}")
    assert hashes[0] == hashlib.sha256(top.strip().encode()).digest()
    assert len(hashes) == 21
    text = "\n\n".join([top, *parts])
    assert [text[a:b] for a, b in zip(starts, ends, strict=True)] == [p.strip() for p in [top, *parts]]


async def test_unchanged_content_is_not_split_nor_sent(conn):
    s = await scene(conn)
    await insert(conn, 1, "a", "b")
    await s.work((1,))
    await conn.execute("update articles set published = false")
    s.model.calls = 0
    loaded = await s.derivation.load(conn, s.target, [(1,)], s.stamps)
    assert [(item.hash, item.content) for item in loaded.items] == [(s.stamps[(1,)], None)]
    assert s.model.calls == 0


async def test_equal_texts_are_sent_once(conn):
    """Within a row and between rows; each row keeps its own chunk."""
    s = await scene(conn, columns=("body",), splitter="100c")
    same = "the same text in this place, and no other. " * 2
    for id in (1, 2):
        await conn.execute("insert into articles (id, body) values (%s, %s)", (id, f"{same}\n\n{same}"))
    await s.work((1,), (2,))
    assert s.model.sent == [same.strip()]
    assert await s.rows("select key_1, text from {chunk} order by 1") == [
        (1, same.strip()),
        (2, same.strip()),
    ]
    layouts = await s.rows("select key_1, cardinality(text_hashes), starts[2] from {layout} order by 1")
    assert layouts == [(1, 2, len(same) + 2), (2, 2, len(same) + 2)]
    vectors = await s.rows("select distinct vector::text from {chunk}")
    assert len(vectors) == 1


@pytest.mark.parametrize("values", [(None, None), ("", ""), ("  \n ", None), ("<p> </p>", "\u00a0")])
async def test_empty_text_has_no_chunks_and_is_stamped(conn, values):
    """PEERS 11: a row that cannot be embedded must not keep coverage below 100%."""
    s = await scene(conn)
    await insert(conn, 1, *values)
    (output,) = await s.work((1,))
    assert isinstance(output, Output)
    assert output.value.hashes == ()
    assert s.model.calls == 0
    assert (await s.rows("select count(*) from {chunk}"), await s.rows("select count(*) from {layout}")) == (
        [(0,)],
        [(0,)],
    )


async def test_text_that_becomes_empty_loses_its_chunks(conn):
    s = await scene(conn)
    await insert(conn, 1, "a title", "a body")
    await s.work((1,))
    await conn.execute("update articles set title = null, body = ''")
    await s.work((1,))
    assert await s.rows("select count(*) from {chunk}") == [(0,)]
    assert await s.rows("select count(*) from {layout}") == [(0,)]


async def test_control_characters_and_character_references(conn):
    """PEERS 79: what HTML spells (NUL, lone surrogates) and what a column holds (other controls) is stored clean."""
    s = await scene(conn)
    await insert(conn, 1, "bell\x07 and\x1b escape\ufeff", "<p>nul&#0;&#xD800;lone &amp; <b>bold</b></p>")
    await s.work((1,))
    ((text,),) = await s.rows("select text from {chunk}")
    assert text.startswith("bell and escape\n\nnul")
    assert text.endswith("lone & bold")
    assert not any(ord(c) < 32 and c != "\n" for c in text)
    assert s.model.sent == [text]


async def test_characters_beyond_the_basic_plane(conn):
    """Spans count characters, not bytes or UTF-16 units."""
    s = await scene(conn, columns=("body",), splitter="60c")
    body = "👩‍👩‍👧 ein Satz über Gärten. " * 3 + "\n\n" + "搜索引擎很有用。" * 6
    await conn.execute("insert into articles (id, body) values (1, %s)", (body,))
    await s.work((1,))
    ((hashes, starts, ends),) = await s.rows("select text_hashes, starts, ends from {layout}")
    texts = dict(await s.rows("select text_hash, text from {chunk}"))
    assert [body[a:b] for a, b in zip(starts, ends, strict=True)] == [texts[h] for h in hashes]
    assert len(hashes) > 1


async def test_prefix_is_sent_and_hashed_but_not_shown(conn):
    s = await scene(conn, prefix="passage: ")
    await insert(conn, 1, "title", None)
    await s.work((1,))
    assert s.model.sent == ["passage: title"]
    assert await s.rows("select text, text_hash from {chunk}") == [
        ("title", hashlib.sha256(b"passage: title").digest())
    ]


async def test_one_bad_text_is_its_rows_alone(conn):
    """PEERS 75: the others of the wave are done, and the reason says which chunk."""
    s = await scene(conn, columns=("body",), splitter="100c")
    bodies = [
        "good text",
        "this is poison",
        "\n\n".join([*("fine paragraph " * 6, "poison paragraph " * 5)]),
        "also good",
    ]
    for id, body in enumerate(bodies):
        await conn.execute("insert into articles (id, body) values (%s, %s)", (id, body))
    results = await s.work(*((id,) for id in range(4)))
    assert [type(r) for r in results] == [Output, Permanent, Permanent, Output]
    assert str(results[1]) == "server answered 400"
    assert results[1].kind == "input refused"
    assert "chunk 2 of 2 (84 characters)" in str(results[2])
    assert await s.rows("select key_1 from {chunk} order by 1") == [(0,), (3,)]


async def test_truncated_is_counted(conn):
    s = await scene(conn)
    await insert(conn, 1, "cut me", None)
    await insert(conn, 2, "short", None)
    s.model.cut = {"cut me"}
    assert [r.truncated for r in await s.work((1,), (2,))] == [1, 0]


async def test_another_dimension_is_a_configuration_error(conn):
    s = await scene(conn)
    await insert(conn, 1, "a", "b")
    s.derivation._made[1] = Making(CountingModel(5), splitter_of("1000c", None))
    with pytest.raises(Configuration, match=r"5 dimensions.*holds 8") as raised:
        await s.work((1,))
    assert raised.value.setting == "INSTEP_EMBED_MODEL"


async def test_rows_that_are_gone_or_not_eligible_are_in_neither_list(conn):
    s = await scene(conn, eligible="published and title like 'x%'")
    await insert(conn, 1, "x", "b")
    await insert(conn, 2, "y", "b")
    await insert(conn, 4, None, "b")  # NULL counts as false
    loaded = await s.derivation.load(conn, s.target, [(1,), (2,), (3,), (4,)], {})
    assert [item.key for item in loaded.items] == [(1,)]
    assert not loaded.deferred


async def test_deferred(conn):
    """What is over the bound waits for another wave; the first row is taken whatever its size."""
    s = await scene(conn, columns=("body",), content_bytes=1000)
    for id, size in ((1, 5000), (2, 10), (3, 10)):
        await conn.execute("insert into articles (id, body) values (%s, %s)", (id, "é" * (size // 2)))
    loaded = await s.derivation.load(conn, s.target, [(1,), (2,), (3,)], {})
    assert [item.key for item in loaded.items] == [(1,)]
    assert set(loaded.deferred) == {(2,), (3,)}
    loaded = await s.derivation.load(conn, s.target, [(3,), (2,), (1,)], {})
    assert [item.key for item in loaded.items] == [(3,), (2,)]
    assert loaded.deferred == [(1,)]


async def test_load_is_one_snapshot(conn):
    """The hash that is loaded is that of the content that is loaded, computed here again from the text."""
    s = await scene(conn)
    await insert(conn, 1, "a\\b", None)
    (item,) = (await s.derivation.load(conn, s.target, [(1,)], {})).items
    assert item.hash == hashlib.sha256(b"s3:a\\bn").digest()
    assert list(item.content.texts.values()) == ["a\\b"]


async def test_composite_and_quoted_keys(conn):
    key = (KeyColumn('the "id"', "uuid"), KeyColumn("place", "text"), KeyColumn("n", "integer"))
    s = await scene(conn, key=key, table='odd "Table"', columns=("Title %s", "body"))
    first = (uuid.UUID(int=7), 'a "b" \\ é', -3)
    second = (uuid.UUID(int=7), "", 2**31 - 1)
    for k in (first, second):
        await conn.execute('insert into "odd ""Table""" values (%s, %s, %s, %s)', (*k, f"text of {k[2]}"))
    await s.work(first, second)
    assert await s.rows("select key_1, key_2, key_3, text from {chunk} order by 3") == [
        (*first, "text of -3"),
        (*second, f"text of {2**31 - 1}"),
    ]
    await conn.execute('delete from "odd ""Table""" where n < 0')
    await s.work(first, second)
    assert await s.rows("select key_3 from {chunk}") == [(2**31 - 1,)]
    assert await s.rows("select key_3 from {layout}") == []  # one chunk, the whole text: it needs none


async def test_halfvec(conn):
    s = await scene(conn, columns=("body",), type="halfvec", dimensions=2500)
    await conn.execute("insert into articles (id, body) values (1, 'half')")
    await s.work((1,))
    ((type, text),) = await s.rows("select pg_typeof(vector)::text, vector::text from {chunk}")
    assert type == "halfvec"
    stored = np.array([float(number) for number in text.strip("[]").split(",")])
    np.testing.assert_allclose(stored, s.model.vector("half"), atol=1e-3)


async def test_halfvec_out_of_range_is_the_items_failure(conn):
    s = await scene(conn, type="halfvec")
    await insert(conn, 1, "large", None)
    await insert(conn, 2, "fine", None)
    plain = s.model.vector
    s.model.vector = lambda text: plain(text) * (1e6 if text == "large" else 1)
    results = await s.work((1,), (2,))
    assert [type(r) for r in results] == [Permanent, Output]
    assert results[0].kind == "vector out of range"


async def test_minilm_end_to_end(conn):
    """The real model: a text's nearest stored chunk is the one that says the same, and 256 tokens fit the model."""
    s = await scene(conn, columns=("body",), dimensions=384, splitter="256t")
    model = MiniLM(MODELS)
    derivation = ChunkDerivation(s.declaration, lambda target: making_of(target, model))
    s.derivation = derivation
    bodies = ["A man is eating food.", "The girl is carrying a baby.", "word and unrelated " * 400]
    for id, body in enumerate(bodies):
        await conn.execute("insert into articles (id, body) values (%s, %s)", (id, body))
    results = await s.work(*((id,) for id in range(len(bodies))))
    assert [result.truncated for result in results] == [0, 0, 0]
    assert len(results[2].value.hashes) > 1
    query = (await model.embed(["A man is eating a piece of bread."], urgent=True)).vectors[0]
    nearest = await s.rows(
        "select key_1, 1 - (vector <=> %s::vector) from {chunk} order by 2 desc limit 2", str(query.tolist())
    )
    assert nearest[0][0] == 0
    assert 0.74 < nearest[0][1] < 0.77
    await model.close()
