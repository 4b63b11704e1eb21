"""The tables and indexes that stand for a source and its derivations, what they are made by, and what puts
back (doctor) what is not as it was installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg import sql

from instep.database.statements import Statements, storage, typed
from instep.engine.declaration import Declaration, Target, fragments, quoted

_FILE = ("instep.engine", "parts.sql")
CREATE = (
    "create_outbox",
    "create_outbox_claim_index",
    "create_outbox_parked_index",
    "create_outbox_dead_index",
    "create_stamp",
)


@dataclass(frozen=True, slots=True)
class Part:
    """A table that stands for a source or derivation, or an index of it, by its name in the schema instep: what makes
    it where it is missing, and the settings that a table is made with."""

    name: str
    table: str
    statements: tuple[str, ...]
    storage: Mapping[str, str]


def statements(declaration: Declaration) -> Statements:
    """What makes and drops the tables of one derivation and of its source."""
    return Statements(*_FILE, **_index_names(declaration))


def drop_change(source_name: str) -> bytes:
    return Statements(*_FILE, change=quoted("instep", f"change_{source_name}"))["drop_change"]


def _index_names(declaration: Declaration) -> dict[str, sql.Composable]:
    """Fragments with the names of the indexes: at most 54 characters, because a derivation's name has at most 40."""
    return {
        **fragments(declaration),
        **{
            f"outbox_{what}_index": quoted(f"outbox_{declaration.suffix}_{what}")
            for what in ("claim", "parked", "dead")
        },
    }


def made_anew(declaration: Declaration, target: Target) -> tuple[str, ...]:
    """What a person runs where the outputs of a target are gone: they count as never made."""
    bound = {
        **fragments(declaration),
        "target": sql.Literal(target.name),
        "due": sql.Literal(declaration.name),
    }
    names = ("forget_stamps", "sweep_again")
    return tuple(typed(*_FILE, name, **bound) for name in names)


def parts(declaration: Declaration) -> list[Part]:
    """The tables and indexes of a derivation and of its source's change log, as they are installed."""
    bound = {**_index_names(declaration), "due": sql.Literal(declaration.name)}
    suffix, change = declaration.suffix, f"change_{declaration.source.name}"

    def made(*names: str) -> tuple[str, ...]:
        return tuple(typed(*_FILE, name, **bound) for name in names)

    def table(name: str, template: str, *more: str) -> Part:
        options = storage(*_FILE, template)
        return Part(name, name, made(template, *more), options)

    outbox, stamp = f"outbox_{suffix}", f"stamp_{suffix}"
    found = [
        table(change, "create_change", "sweep_again"),
        table(outbox, *CREATE[:-1], "sweep_again"),
        table(stamp, "create_stamp", "sweep_again"),
    ]
    for name, template in ((change, "key_change"), (outbox, "key_outbox"), (stamp, "key_stamp")):
        found.append(Part(f"{name}_pkey", name, made(template), {}))
    for what in ("claim", "parked", "dead"):
        found.append(Part(f"outbox_{suffix}_{what}", outbox, made(f"create_outbox_{what}_index"), {}))
    return found
