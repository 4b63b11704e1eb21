"""pgvector as it stands in this database: where it is installed, and which of its types holds a vector."""

from __future__ import annotations

from typing import Literal

from instep.database.statements import Statements
from instep.engine.ports import Conn
from instep.errors import Refused

VectorType = Literal["vector", "halfvec"]

INDEXED_DIMENSIONS: dict[VectorType, int] = {"vector": 2000, "halfvec": 4000}
"""What pgvector's HNSW takes."""

_PLAIN_BYTES = 7_800  # with key, hash and a pointer to the text this surely fits a page of 8 kB

_SQL = Statements("instep.chunks", "vector_type.sql")


def choose_type(dimensions: int, halfvec: bool = False) -> VectorType:
    """`halfvec` where it was asked for or nothing else can be indexed. Refused over 4,000 dimensions or under 1."""
    if not 1 <= dimensions <= INDEXED_DIMENSIONS["halfvec"]:
        raise Refused(
            f"vectors of {dimensions:,} dimensions cannot be indexed: pgvector takes 1 to 2,000, as halfvec 4,000",
            hint="choose a model of fewer dimensions, or one that can shorten its vectors (--dimensions)",
        )
    return "halfvec" if halfvec or dimensions > INDEXED_DIMENSIONS["vector"] else "vector"


def known_type(name: str) -> VectorType:
    for known in INDEXED_DIMENSIONS:
        if name == known:
            return known
    raise Refused(f"a target's vectors are vector or halfvec, not {name!r}")


def fits_page(dimensions: int, type: VectorType) -> bool:
    """Whether a vector can always stand in its row: then it is stored plain, and reading it fetches nothing else."""
    return dimensions * (2 if type == "halfvec" else 4) + 8 <= _PLAIN_BYTES


async def pgvector_schema(conn: Conn) -> str:
    """The schema of pgvector's types and operators (not always on the search path). Refused where it is missing."""
    row = await (await conn.execute(_SQL["pgvector_schema"], {})).fetchone()
    if row is None:
        raise Refused(
            "this database has no pgvector, which holds the vectors",
            hint="install it on the server and run: create extension vector;",
        )
    return str(row[0])
