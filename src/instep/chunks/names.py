"""What the tables of one target are called."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from instep.engine.declaration import SCHEMA, Declaration, Target


@dataclass(frozen=True, slots=True)
class ChunkTables:
    """`chunk` holds texts and vectors, one row for each distinct text of an entity; `layout` one narrow row for each
    entity: which texts stand where. At most 40 characters of a derivation's name keep all under PostgreSQL's 63."""

    suffix: str

    @property
    def chunk(self) -> sql.Identifier:
        return sql.Identifier(SCHEMA, f"chunk_{self.suffix}")

    @property
    def layout(self) -> sql.Identifier:
        return sql.Identifier(SCHEMA, f"layout_{self.suffix}")

    @property
    def index_name(self) -> str:
        return f"chunk_{self.suffix}_hnsw"

    @property
    def index(self) -> sql.Identifier:
        return sql.Identifier(SCHEMA, self.index_name)


def chunk_tables(declaration: Declaration, target: Target) -> ChunkTables:
    return ChunkTables(f"{declaration.suffix}_{target.id}")
