"""What every lexical index must do: the conformance suite of `search.ports.Index`.

A test gives each case of CASES a `Harness` of its own: the index, and a table that stands behind it (an engine may read
filters and facets from there). What a filter means is said by PostgreSQL, with the filter's own text as a condition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from instep.engine.declaration import Key
from instep.search.columns import Column
from instep.search.filter_syntax import parse_filter
from instep.search.ports import Document, Hits, Index, Match, Query, query_terms


class Harness(Protocol):
    """`put` writes rows (column to value; id, title and others) into the table and gives their documents; `remove`
    deletes rows from it; `ids` gives those for which a condition holds."""

    @property
    def index(self) -> Index: ...
    @property
    def columns(self) -> Sequence[Column]: ...
    async def put(self, rows: Sequence[dict[str, Any]]) -> Sequence[Document]: ...
    async def remove(self, ids: Sequence[int]) -> None: ...
    async def ids(self, condition: str) -> Collection[int]: ...


OWNERS = (UUID(int=7), UUID(int=8))
FILTERS = (
    "price < 20",
    "not (price < 20)",
    "price <= 19.99 or price > 1e2",
    "price between 10 and 20",
    "price not between 10 and 20",
    "stock = 3",
    "stock <> 3",
    "stock < 3.5",
    "stock >= -2.5",
    "stock = 3.5",
    "stock <> 3.5",
    "stock < 99999999999999999999999",
    "stock > 99999999999999999999999",
    "3 >= stock",
    "section = 'games'",
    "section <> 'games'",
    "section in ('games', 'it''s %s')",
    "section not in ('games')",
    "not (section = 'games' or price < 20)",
    "not (section = 'games' and price < 20)",
    "section is null",
    "section is not null",
    "section like 'g%'",
    "section not like 'g%'",
    "section ilike 'GA_ES'",
    "section like '100\\%%'",
    "section like '%(.*)%'",
    "published",
    "not published",
    "published is not true",
    "published is false",
    "at >= '2024-03-01'",
    "at < timestamptz '2024-03-01 12:00:00+02:00'",
    "day = date '2024-02-29'",
    "day > '2024-02-29' and day is not null",
    "'red' = any(tags)",
    "not ('red' = any(tags))",
    "tags is null",
    "owner = '00000000-0000-0000-0000-000000000007'",
    "mood = 'glad'",
    "mood not in ('glad', 'sad')",
    "\"We ird\" = 'x y'",
)
CJK = "昨天我们在人民大会堂讨论了全文检索系统的设计问题"
ODD_QUERIES = (
    "'",
    '"',
    "a'b",
    "\\",
    "& | ! ( ) :*",
    "<->",
    "+title:x -y",
    "?!",
    "%s {} $1",
    "*",
    "NOT",
    "\ud800 lone",
)


def sample(number: int = 40) -> list[dict[str, Any]]:
    """Rows that all hold the word `common`, with NULLs, ties, odd characters and extremes in every column."""
    sections = (None, "games", "net", "100% wool", "it's %s", "a(.*)b", "Games")
    tags: tuple[list[str] | None, ...] = (None, [], ["red"], ["red", "blue"], ["blue"], ["it's"])
    rows: list[dict[str, Any]] = []
    for n in range(1, number + 1):
        rows.append(
            {
                "id": n,
                "title": f"common word{n}",
                "section": sections[n % len(sections)],
                "price": None if n % 5 == 0 else Decimal(n * 7 % 130) + Decimal("0.99"),
                "stock": None if n % 6 == 0 else n % 9 - 4,
                "published": (None, True, False)[n % 3],
                "at": None
                if n % 7 == 0
                else datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=n * 3, hours=n),
                "day": None if n % 4 == 0 else date(2024, 2, 20) + timedelta(days=n),
                "tags": tags[n % len(tags)],
                "owner": (None, *OWNERS)[n % 3],
                "mood": (None, "glad", "sad")[n % 3],
                "We ird": (None, "x y", "z")[n % 3],
            }
        )
    return rows


async def _search(harness: Harness, text: str, where: str = "", match: Match = "all", **more: Any) -> Hits:
    filter = parse_filter(where, harness.columns) if where else None
    return await harness.index.search(
        Query(query_terms(text), filter, match=match, **{"limit": 1000, **more})
    )


def _ids(hits: Hits) -> set[int]:
    return {hit.key[0] for hit in hits.hits}


async def _keys(index: Index) -> set[Key]:
    return {key async for key in index.keys()}  # noqa: SIM118


async def replaces(harness: Harness) -> None:
    """Adding a key again replaces it; removing wins over nothing; doing it twice is doing it once."""
    first = await harness.put([{"id": 1, "title": "old apricot"}, {"id": 2, "title": "old banana"}])
    await harness.index.apply(1, (), first)
    await harness.index.apply(2, (), first)
    assert _ids(await _search(harness, "old")) == {1, 2}
    assert (await _search(harness, "old")).total == 2
    again = await harness.put([{"id": 1, "title": "new apricot"}])
    await harness.index.apply(3, (), again)
    assert _ids(await _search(harness, "old")) == {2}
    assert _ids(await _search(harness, "apricot")) == {1}
    await harness.index.apply(4, [(2,), (99,)], ())
    await harness.index.apply(4, [(2,), (99,)], ())
    assert _ids(await _search(harness, "banana")) == set()
    assert await _keys(harness.index) == {(1,)}


async def removes_before_it_adds(harness: Harness) -> None:
    documents = await harness.put([{"id": 5, "title": "melon"}])
    await harness.index.apply(1, [(5,)], documents)
    assert _ids(await _search(harness, "melon")) == {5}


async def all_or_any(harness: Harness) -> None:
    """All words must match, or any; a row with both stands before rows with one."""
    rows = [
        {"id": 1, "title": "red fox"},
        {"id": 2, "title": "red hen"},
        {"id": 3, "title": "blue fox in red"},
    ]
    await harness.index.apply(1, (), await harness.put(rows))
    assert _ids(await _search(harness, "red fox")) == {1, 3}
    assert _ids(await _search(harness, "red whale")) == set()
    some = await _search(harness, "red whale", match="any")
    assert _ids(some) == {1, 2, 3}
    both = await _search(harness, "blue fox", match="any")
    assert [hit.key[0] for hit in both.hits] == [3, 1]
    assert both.hits[0].score > both.hits[1].score


async def finds_inside_a_run(harness: Harness) -> None:
    """A CJK word of 2, 4 and 6 characters that stands verbatim inside a longer run (edda#402, private-mind#277)."""
    rows = [
        {"id": 1, "title": CJK},
        {"id": 2, "title": "日本語の全文検索エンジンを比較する"},
        {"id": 3, "title": "无关"},
    ]
    await harness.index.apply(1, (), await harness.put(rows))
    for word, expected in (
        ("检索", {1}),
        ("全文检索", {1}),
        ("人民大会堂讨", {1}),
        ("全文", {1, 2}),
        ("検索エンジン", {2}),
        ("检索人民", set()),
    ):
        assert _ids(await _search(harness, word)) == expected, word


async def filters_mean_what_sql_says(harness: Harness) -> None:
    await harness.index.apply(1, (), await harness.put(sample()))
    for where in FILTERS:
        expected = set(await harness.ids(where))
        hits = await _search(harness, "common", where)
        assert _ids(hits) == expected, where
        assert hits.total == len(expected), where


async def counts_facets(harness: Harness) -> None:
    """Counts are those of the hits under the filter, best ten, ties by value; NULL is no value."""
    rows = sample()
    await harness.index.apply(
        1, (), await harness.put([*rows, {"id": 900, "title": "other", "section": "net"}])
    )
    passing = set(await harness.ids("price < 100"))
    hits = await _search(harness, "common", "price < 100", limit=1, facets=True)
    assert len(hits.hits) == 1
    assert set(hits.facets) == {column.name for column in harness.columns}
    chosen = [row for row in rows if row["id"] in passing]
    for name in ("section", "stock", "published", "mood"):
        expected = Counter(row[name] for row in chosen if row[name] is not None)
        assert {f.value: f.count for f in hits.facets[name]} == dict(expected.most_common(10)), name
    tags = Counter(tag for row in chosen for tag in row["tags"] or ())
    assert {f.value: f.count for f in hits.facets["tags"]} == dict(tags)
    for column in harness.columns:
        counted = hits.facets[column.name]
        assert len(counted) <= 10, column.name
        assert [f.count for f in counted] == sorted((f.count for f in counted), reverse=True), column.name
    assert {f.value for f in hits.facets["day"]} <= {row["day"].isoformat() for row in chosen if row["day"]}


async def takes_any_query(harness: Harness) -> None:
    """No character of a query is syntax, and no length is too much."""
    await harness.index.apply(
        1, (), await harness.put([{"id": 1, "title": "title it's a 'quoted' c++ word"}])
    )
    for text in (*ODD_QUERIES, "x" * 10_000, "word " * 2_000, "字" * 3_000, "title\x00"):
        for match in ("all", "any"):
            await _search(harness, text, match="any" if match == "any" else "all")
    assert _ids(await _search(harness, "it's 'quoted'")) == {1}
    assert _ids(await _search(harness, "c++")) == {1}
    assert _ids(await _search(harness, "ti\x00tle")) == {1}
    assert (await _search(harness, "?!")).total == 0


async def takes_any_text(harness: Harness) -> None:
    """Texts that are empty, long, repetitive or odd are indexed whole, or up to a limit; never refused."""
    many = " ".join(f"w{n}" for n in range(150_000))
    rows = [
        {"id": 1, "title": ""},
        {"id": 2, "title": "same " * 30_000 + "tail"},
        {"id": 3, "title": "start " + many},
        {"id": 4, "title": "back\\slash 'quote' \"double\" ﷺ"},
        {"id": 5, "title": "y" * 100_000},
    ]
    await harness.index.apply(1, (), await harness.put(rows))
    assert await _keys(harness.index) == {(n,) for n in range(1, 6)}
    for text, id in (("tail", 2), ("start", 3), ("slash quote", 4), ("ﷺ", 4), ("y" * 100_000, 5)):
        assert _ids(await _search(harness, text)) == {id}, text[:20]


async def limits_and_counts(harness: Harness) -> None:
    await harness.index.apply(1, (), await harness.put(sample(30)))
    few = await _search(harness, "common", limit=4)
    assert len(few.hits) == 4
    assert few.total == 30
    assert len({hit.key for hit in few.hits}) == 4


async def walks_in_the_order_of_keys(harness: Harness) -> None:
    """Pages after pages give every hit once, in the order of keys, and what is added behind."""
    rows = [{"id": n, "title": f"common word{n}", "stock": n % 2} for n in range(1, 24)]
    await harness.index.apply(1, (), await harness.put(rows))
    query, seen, after = Query(query_terms("common"), None, 5), list[Key](), None
    while page := await harness.index.matching(query, after):
        assert len(page) <= 5
        seen += page
        after = page[-1]
        if len(seen) == 10:
            await harness.index.apply(
                2, [(1,), (20,)], await harness.put([{"id": 77, "title": "common late"}])
            )
    assert seen == [(n,) for n in (*range(1, 20), 21, 22, 23, 77)]
    odd = parse_filter("stock = 1", harness.columns)
    assert list(await harness.index.matching(Query(query.terms, odd, 3), (4,))) == [(5,), (7,), (9,)]
    assert list(await harness.index.matching(Query((), None, 3), None)) == []


CASES: tuple[Callable[[Harness], Awaitable[None]], ...] = (
    replaces,
    removes_before_it_adds,
    all_or_any,
    finds_inside_a_run,
    filters_mean_what_sql_says,
    counts_facets,
    takes_any_query,
    takes_any_text,
    limits_and_counts,
    walks_in_the_order_of_keys,
)
