"""Change capture: trigger functions and triggers that append the keys of changed rows to a source's change log.

What is kept here, and the test that guards it (tests/postgres/test_capture.py, test_capture_cases.py):
- each way of writing a row reaches the log: test_derived_keys_equal_the_sources, test_each_trigger_is_needed;
- an update of columns that nobody watches appends nothing: test_c1_3_unwatched_updates_make_no_work;
- capture never breaks a user's statement: test_a_failing_read_lets_the_users_statement_pass;
- the user's writes never wait for a worker: test_the_users_writes_never_wait_for_a_worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from instep.database.statements import Statements, compose
from instep.engine.declaration import SCHEMA, Columns, Declaration, Source, array_type, quoted, raw
from instep.engine.ports import Conn

TEMPLATE = 2  # the number of the templates in capture.sql and parts.sql: recorded in instep.source.template
TRIGGERS = {
    "instep_insert": "O",
    "instep_update": "O",
    "instep_delete": "O",
    "instep_truncate": "A",
    "instep_row": "R",
}
"""The triggers of a table and how each is enabled: O as they come (origin sessions), A always, R in sessions that
apply a replica's rows."""

_ENABLE = {"O": "enable_origin", "A": "enable_always", "R": "enable_replica"}
_FUNCTIONS = ("insert", "update", "delete", "truncate", "row")
_EXACT = {
    "boolean",
    "smallint",
    "integer",
    "bigint",
    "oid",
    "uuid",
    "date",
    "bytea",
    "timestamp without time zone",
    "timestamp with time zone",
}
"""Types whose equality means the same bytes. All others are compared as text: json has no equality, citext and
nondeterministic collations hide a change of case, numeric 1.0 equals 1.00, a user's type may do anything."""


@dataclass(frozen=True, slots=True)
class Member:
    """A table on which the triggers stand: the source's own, a partition or an inheritance child of it."""

    oid: int
    schema: str
    table: str
    kind: str  # r, p; f for a foreign table, which can have no such triggers
    inherits_row: bool  # a partition: its row trigger is its parent's clone
    triggers: Mapping[str, Sequence[str]]  # ours: name -> (tgenabled, function)

    @property
    def relation(self) -> sql.SQL:
        return quoted(self.schema, self.table)


@dataclass(frozen=True, slots=True)
class Watched:
    """A column of the source as it is now."""

    name: str
    type: str
    attnum: int
    generated: str  # "", s (stored), v (virtual)


def function_name(source_name: str, event: str) -> str:
    return f"capture_{source_name}_{event}"


def marker_lock(source_name: str) -> str:
    """What the advisory lock of a source's markers is hashed from (see sweep.sql, `begin_sweep`)."""
    return f"instep.marker.{source_name}"


async def family(conn: Conn, oid: int) -> list[Member]:
    """The table of that OID, its partitions and children at any depth, parents first; empty if it is gone."""
    rows = await (await conn.execute(_statements()["family"], {"oid": oid})).fetchall()
    return [Member(*row) for row in rows]


async def columns_now(conn: Conn, oid: int) -> dict[str, Watched]:
    rows = await (await conn.execute(_statements()["watched"], {"oid": oid})).fetchall()
    return {row[0]: Watched(*row) for row in rows}


async def write_functions(
    conn: Conn, source: Source, declarations: Sequence[Declaration], columns: Mapping[str, Watched]
) -> None:
    """Create or replace the trigger functions for all derivations of a source. Triggers that stand go on with the
    new ones: adding a derivation widens the mask without a lock on the user's table."""
    statements = _statements(**_function_fragments(source, declarations, columns))
    for event in _FUNCTIONS:
        await conn.execute(statements[f"{event}_function"], {})


async def mend_triggers(conn: Conn, source: Source, members: Sequence[Member]) -> list[str]:
    """Create what is missing and enable what is enabled in another way; says what was done, a line each.
    Takes SHARE ROW EXCLUSIVE on tables that need something, and no lock on others."""
    done: list[str] = []
    statements = {m.oid: _trigger_statements(source, m) for m in members}
    for member in members:
        if member.kind == "f":
            continue
        for trigger in TRIGGERS:
            if trigger == "instep_row" and member.inherits_row:
                continue  # comes with the parent's
            if trigger not in member.triggers:
                event = trigger.removeprefix("instep_")
                await conn.execute(statements[member.oid][f"{event}_trigger"], {})
                done.append(f"trigger {trigger} on {member.schema}.{member.table} was missing: created")
    if not members:
        return done
    for member in await family(conn, source.oid):
        for trigger, enabled in TRIGGERS.items():
            found = member.triggers.get(trigger)
            if found is not None and found[0] != enabled:
                bound = _statements(table=member.relation, trigger=quoted(trigger))
                await conn.execute(bound[_ENABLE[enabled]], {})
                if not any(f"trigger {trigger} on {member.schema}.{member.table} " in line for line in done):
                    done.append(
                        f"trigger {trigger} on {member.schema}.{member.table} was enabled as {found[0]}: "
                        f"set to {enabled}"
                    )
    return done


def faulty(members: Sequence[Member]) -> bool:
    """Whether any trigger is missing or enabled in another way than it should be."""
    return any(
        member.triggers.get(trigger, ("",))[0] != enabled
        for member in members
        if member.kind != "f"
        for trigger, enabled in TRIGGERS.items()
    )


async def drop_capture(conn: Conn, source: Source, members: Sequence[Member]) -> None:
    """Drop the triggers on all members and the functions. Clones on partitions go with their parent's."""
    for member in members:
        for trigger in TRIGGERS:
            if trigger not in member.triggers or (trigger == "instep_row" and member.inherits_row):
                continue
            await conn.execute(
                _statements(table=member.relation, trigger=quoted(trigger))["drop_trigger"], {}
            )
    for event in _FUNCTIONS:
        function = quoted(SCHEMA, function_name(source.name, event))
        await conn.execute(_statements(function=function)["drop_function"], {})


def _statements(**fragments: sql.Composable) -> Statements:
    return Statements("instep.engine", "capture.sql", **fragments)


def _functions(source: Source) -> dict[str, sql.Composable]:
    return {f"{e}_function": quoted(SCHEMA, function_name(source.name, e)) for e in _FUNCTIONS}


def _trigger_statements(source: Source, member: Member) -> Statements:
    return _statements(table=member.relation, **_functions(source))


def _joined(parts: Sequence[sql.Composable], by: str = ", ") -> sql.Composed:
    return sql.SQL(by).join(parts)


def _function_fragments(
    source: Source, declarations: Sequence[Declaration], columns: Mapping[str, Watched]
) -> dict[str, sql.Composable]:
    ours = Columns(source.key)
    names = [quoted(column.name) for column in source.key]
    parts = [quoted(name) for name in source.parts]
    arrays = [raw(f"keys_{i}") for i in range(1, len(names) + 1)]
    bits = sum(declaration.bit for declaration in declarations)

    def taken(*records: str) -> sql.Composed:
        lines = [
            sql.SQL("{} := array[{}];").format(
                array, _joined([sql.SQL(r + ".{}").format(n) for r in records])
            )
            for array, n in zip(arrays, names, strict=True)
        ]
        return _joined(lines, " ")

    fragments: dict[str, sql.Composable] = {
        **_functions(source),
        "change": quoted(SCHEMA, f"change_{source.name}"),
        "source": sql.Literal(source.name),
        "marker_lock": sql.Literal(marker_lock(source.name)),
        "declared": _joined(
            [
                sql.SQL("{} {};").format(array, raw(array_type(column.type)))
                for array, column in zip(arrays, source.key, strict=True)
            ],
            " ",
        ),
        "arrays": _joined(arrays),
        "all": sql.Literal(bits),
        "key": ours.listed(),
        "key_u": ours.listed("u"),
        "collected_c": _joined([raw(f"array_agg(c.{n})") for n in ours.names]),
        "collected_n": _joined([sql.SQL("array_agg(n.{})").format(n) for n in names]),
        "collected_o": _joined([sql.SQL("array_agg(o.{})").format(n) for n in names]),
        "either": _joined(
            [
                sql.SQL("coalesce(o.{0}, n.{0}) as {1}").format(n, raw(our))
                for n, our in zip(names, ours.names, strict=True)
            ]
        ),
        "same_key": _joined([sql.SQL("o.{0} = n.{0}").format(n) for n in (*names, *parts)], " and "),
        "new_rows": _rows("new_rows", names, parts),
        "old_rows": _rows("old_rows", names, parts),
        "distinct": sql.SQL("distinct " if parts else ""),
        "first_key": names[0],
        "old_key": _joined([sql.SQL("old.{}").format(n) for n in names]),
        "new_key": _joined([sql.SQL("new.{}").format(n) for n in names]),
        "take_old": taken("old"),
        "take_new": taken("new"),
        "take_both": taken("old", "new"),
        "changed_on": _changed(declarations, columns, "o", "n"),
        "changed_oldnew": _changed(declarations, columns, "old", "new"),
    }
    marker = {name: fragments[name] for name in ("source", "marker_lock")}
    fragments["suspect"] = sql.SQL("{};").format(compose("instep.engine", "capture.sql", "suspect", **marker))
    return fragments


def _rows(table: str, names: Sequence[sql.Composable], parts: Sequence[sql.Composable]) -> sql.Composable:
    """A transition table; of one in which several rows make one entity, its distinct keys."""
    if not parts:
        return raw(table)
    return sql.SQL("(select distinct {} from {})").format(_joined(names), raw(table))


def _changed(
    declarations: Sequence[Declaration], columns: Mapping[str, Watched], old: str, new: str
) -> sql.Composable:
    """The mask of one row: each watched column is compared once, and gives the bits of all that watch it."""
    bits: dict[str, int] = {}
    for declaration in declarations:
        for name in declaration.watch:
            bits[name] = bits.get(name, 0) | declaration.bit
    parts = [
        sql.SQL("case when {old} is distinct from {new} then {bit} else 0 end").format(
            old=_comparable(columns[name], old), new=_comparable(columns[name], new), bit=sql.Literal(bit)
        )
        for name, bit in bits.items()
    ]
    return _joined(parts, " | ") if parts else sql.SQL("0")


def _comparable(column: Watched, record: str) -> sql.Composable:
    if column.type in _EXACT:
        return sql.SQL(record + ".{}").format(quoted(column.name))
    return sql.SQL(record + '.{}::text collate "C"').format(quoted(column.name))
