"""Who may do what: four roles, each of which may do all that the ones before it may, and the caller of a request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """In order: a role includes those before it. PUBLIC is for routes alone: they need no key."""

    PUBLIC = "public"
    READER = "reader"  # sees and searches
    MEMBER = "member"  # replays what failed, and does what a catalogue lets its members do
    OPERATOR = "operator"  # pauses, runs, discards, adds and removes
    ADMINISTRATOR = "administrator"  # keys

    @property
    def rank(self) -> int:
        return list(Role).index(self)

    def includes(self, other: Role) -> bool:
        return self.rank >= other.rank


KEY_ROLES = tuple(role for role in Role if role is not Role.PUBLIC)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is. `tables`: the sources that the key is limited to; None: all."""

    id: str  # of the key; what limits are counted by
    name: str
    role: Role
    tables: frozenset[str] | None = None

    def sees(self, name: str) -> bool:
        """`name`: of a source or of a derivation ("articles.embed")."""
        return self.tables is None or name.partition(".")[0] in self.tables


NOBODY = Caller("", "nobody", Role.PUBLIC, frozenset())
DEMO = Caller("demo", "everybody on this machine", Role.ADMINISTRATOR)
