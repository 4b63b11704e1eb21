"""What adding a table would cost: rows, chunks, tokens, time and disk, from a sample that is split and embedded now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from psycopg import DataError, errors, sql

from instep.catalogues.tables.declare import Declared
from instep.catalogues.tables.model import EmbeddingModel, making
from instep.clock import SYSTEM, Clock
from instep.database.statements import Statements, compose, fragment
from instep.database.transactions import transaction
from instep.engine.capture import TRIGGERS
from instep.engine.declaration import fragments, quoted
from instep.engine.ports import Conn
from instep.errors import Outage, Permanent, Refused
from instep.text.compose import entity_text

SAMPLE_ROWS = 500
MEASURED_SECONDS = 3.0  # at most, of embedding sampled texts
_COUNTED_ROWS = 2_000_000  # up to here rows are counted, beyond estimated
_BY_ROWS = (
    500_000  # up to here rows are drawn one by one, which reads the whole table but is more even than pages
)
_FIRST_TEXTS, _MOST_TEXTS = 8, 256  # in one call while measuring
_CHARACTERS_PER_TOKEN = 4.0  # where the tokenizer is not at hand
_PAGE = 8_160
_PACKAGE, _FILE = "instep.catalogues.tables", "plan.sql"


@dataclass(frozen=True, slots=True)
class Plan:
    """Estimates are from `sampled` rows; times and sizes in seconds and bytes."""

    name: str
    table: str
    rows: int
    rows_are_counted: bool
    eligible: int
    key: tuple[tuple[str, str], ...]  # name, type
    characters: tuple[tuple[str, float], ...]  # text column, average
    sampled: int
    target: str
    dimensions: int
    vector_type: str
    where_it_runs: str
    leaves_machine: bool
    chunks: int
    tokens: int
    texts_per_second: float | None  # None: not measured (no text, or the model is out)
    vector_bytes: int
    index_bytes: int
    lexical_bytes: int
    triggers: int
    note: str = ""

    @property
    def seconds(self) -> float | None:
        return self.chunks / self.texts_per_second if self.texts_per_second else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "table": self.table,
            "rows": self.rows,
            "rows_are_counted": self.rows_are_counted,
            "eligible": self.eligible,
            "key": [{"name": name, "type": type} for name, type in self.key],
            "characters": {name: round(average, 1) for name, average in self.characters},
            "target": self.target,
            "dimensions": self.dimensions,
            "type": self.vector_type,
            "leaves_machine": self.leaves_machine,
            "chunks": self.chunks,
            "tokens": self.tokens,
            "texts_per_second": None if self.texts_per_second is None else round(self.texts_per_second, 1),
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "bytes": {"vectors": self.vector_bytes, "index": self.index_bytes, "lexical": self.lexical_bytes},
            "triggers": self.triggers,
            "note": self.note,
        }

    def lines(self) -> list[str]:
        """As a person reads it, one fact a line."""
        about = "" if self.rows_are_counted else "about "
        key = ", ".join(f"{name} ({type})" for name, type in self.key)
        texts = ", ".join(f"{name} (average {average:,.0f} characters)" for name, average in self.characters)
        halved = f" as {self.vector_type}" if self.vector_type != "vector" else ""
        lines = [f"{self.name}: {self.table}, {about}{self.rows:,} rows, key {key}"]
        if self.eligible != self.rows:
            lines.append(_line("of these", f"{about}{self.eligible:,} meet the condition"))
        lines.append(_line("text", texts))
        lines.append(
            _line("target", f"{self.target}, {self.dimensions} dimensions{halved}, {self.where_it_runs}")
        )
        lines.append(_line("will make", f"about {self.chunks:,} chunks, {_tokens(self.tokens)} tokens"))
        lines.append(_line("time", self._time()))
        disk = f"{_size(self.vector_bytes)} vectors, {_size(self.index_bytes)} index, {_size(self.lexical_bytes)} lexical index"
        lines.append(_line("disk", disk))
        installs = (
            f"{self.triggers} triggers on {self.table}, its own tables in the schema instep, nothing else"
        )
        lines.append(_line("installs", installs))
        if self.leaves_machine:
            lines.append(_line("warning", "the text of these rows leaves this machine"))
        if self.note:
            lines.append(_line("note", self.note))
        return lines

    def _time(self) -> str:
        if self.seconds is None or self.texts_per_second is None:
            return "not known"
        return (
            f"about {_duration(self.seconds)} ({self.texts_per_second:,.0f} texts/s measured just now), "
            "searchable while it fills"
        )


async def plan(
    conn: Conn, declared: Declared, model: EmbeddingModel, *, runs_at: str = "", clock: Clock = SYSTEM
) -> Plan:
    """Look at the table, split a sample and embed some of it (at most `MEASURED_SECONDS`, or one call). `runs_at`:
    the model server's address, to be shown. Writes nothing. Raises Refused for a condition that fails on a row."""
    relation, target = declared.relation, declared.embed_target
    try:
        rows, eligible, counted = await _rows(conn, declared)
        sample = await _sample(conn, declared, eligible)
    except DataError as error:
        said = error.diag.message_primary or str(error)
        raise Refused(
            f"The condition fails on a row of {relation.name}: {said}.",
            hint="Mend the condition (nullif, coalesce, case), or that row.",
        ) from error
    splitter = making(target, model).splitter
    texts = [entity_text(values) for values in sample]
    split = splitter.split_many(texts)
    chunks = [chunk.text for parts in split for chunk in parts]
    per_row = len(chunks) / len(sample) if sample else 0.0
    speed, note = await _measure(model, str(target.spec["document_prefix"]), chunks, clock)
    count = round(per_row * eligible)
    characters = sum(map(len, chunks)) / len(chunks) if chunks else 0.0
    dimensions, type = int(target.spec["dimensions"]), str(target.spec["type"])
    width = dimensions * (2 if type == "halfvec" else 4) + 8
    lexical = fmean([len(text.encode()) for text in texts]) if texts else 0.0
    return Plan(
        name=declared.source.name,
        table=relation.name,
        rows=rows,
        rows_are_counted=counted,
        eligible=eligible,
        key=tuple((column.name, column.type) for column in declared.source.key),
        characters=_averages(declared.embed.options["text"], sample),
        sampled=len(sample),
        target=target.name,
        dimensions=dimensions,
        vector_type=type,
        where_it_runs="runs on this machine"
        if not model.leaves_machine
        else f"runs at {runs_at or model.provider}",
        leaves_machine=model.leaves_machine,
        chunks=count,
        tokens=round(_tokens_of(model, chunks) * count),
        texts_per_second=speed,
        vector_bytes=round(count * (width + 110 + characters) + eligible * 130),
        # pgvector keeps a vector and its neighbours' place (m = 16, one level in most) together, whole ones to a page.
        index_bytes=round(count / max(1, _PAGE // (width + 330)) * 8_192),
        lexical_bytes=round(eligible * (lexical * 0.35 + 40)),
        triggers=len(TRIGGERS) * (1 + len(relation.partitions)),
        note=note,
    )


async def _rows(conn: Conn, declared: Declared) -> tuple[int, int, bool]:
    """All rows, the eligible ones, and whether they were counted."""
    estimate = declared.relation.row_estimate
    if estimate <= _COUNTED_ROWS:
        statements = Statements(_PACKAGE, _FILE, **fragments(declared.embed))
        try:
            async with transaction(conn, "statement_timeout = '5s'"):
                row = await (await conn.execute(statements["count"], {})).fetchone()
            assert row is not None  # an aggregate gives one
            return row[0], row[1], True
        except errors.QueryCanceled:
            # Wide rows on a slow disk: a plan need not wait, the estimate will do.
            return round(estimate), round(estimate), False
    return round(estimate), round(estimate), False


async def _sample(conn: Conn, declared: Declared, eligible: int) -> list[tuple[str | None, ...]]:
    texts = sql.SQL(", ").join(
        sql.SQL("a.{}::text").format(quoted(name)) for name in declared.embed.options["text"]
    )

    async def drawn(tablesample: sql.Composable) -> list[tuple[str | None, ...]]:
        statements = Statements(
            _PACKAGE,
            _FILE,
            texts=texts,
            relation=quoted(declared.relation.schema, declared.relation.table),
            eligible=fragment(declared.embed.eligible),
            tablesample=tablesample,
        )
        return await (await conn.execute(statements["sample"], {"limit": SAMPLE_ROWS})).fetchall()

    if eligible > 20 * SAMPLE_ROWS:
        percent = sql.Literal(round(100 * 3 * SAMPLE_ROWS / eligible, 6))
        way = "rows_by_chance" if eligible < _BY_ROWS else "pages_by_chance"
        found = await drawn(compose(_PACKAGE, _FILE, way, percent=percent))
        if len(found) >= SAMPLE_ROWS // 5:
            return found
    return await drawn(fragment(""))


async def _measure(
    model: EmbeddingModel, prefix: str, chunks: Sequence[str], clock: Clock
) -> tuple[float | None, str]:
    """Texts a second over sampled chunks, once the model is loaded; and a note where there is no figure."""
    if not chunks:
        return None, "no row has a text yet"
    at, size, speed = 0, _FIRST_TEXTS, 0.0
    try:
        await model.embedder.probe()  # the first call loads the model: it is not measured
        began = clock.monotonic()
        while at < len(chunks) and clock.monotonic() - began < MEASURED_SECONDS:
            part = [prefix + text for text in chunks[at : at + size]]
            started = clock.monotonic()
            await model.embedder.embed(part)
            took = max(clock.monotonic() - started, 1e-6)
            speed = len(part) / took
            at += len(part)
            # As many as fill what is left of the time, but not many more than before: the model may slow down.
            left = MEASURED_SECONDS - (clock.monotonic() - began)
            size = max(1, min(_MOST_TEXTS, 4 * size, int(speed * left)))
    except (Outage, Permanent) as error:  # a text that the model refuses is the run's to tell apart
        return None, f"the model could not be measured: {error}"
    return speed, ""


def _tokens_of(model: EmbeddingModel, chunks: Sequence[str]) -> float:
    """Tokens of a chunk on average."""
    if not chunks:
        return 0.0
    count = model.embedder.measure()
    if count is None:
        return fmean([len(text) for text in chunks]) / _CHARACTERS_PER_TOKEN
    return fmean([count(text) for text in chunks[:SAMPLE_ROWS]])


def _averages(
    columns: Sequence[str], sample: Sequence[Sequence[str | None]]
) -> tuple[tuple[str, float], ...]:
    return tuple(
        (name, fmean([len(row[at] or "") for row in sample]) if sample else 0.0)
        for at, name in enumerate(columns)
    )


def _line(name: str, value: str) -> str:
    return f"  {name:<10} {value}"


def _tokens(count: int) -> str:
    return f"{count / 1e6:,.1f} M" if count >= 1_000_000 else f"{count:,}"


def _size(count: int) -> str:
    if count >= 1_000_000_000:
        return f"{count / 1e9:,.1f} GB"
    return f"{count / 1e6:,.0f} MB" if count >= 1_000_000 else f"{max(1, round(count / 1e3)):,} kB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:,.1f} hours"
