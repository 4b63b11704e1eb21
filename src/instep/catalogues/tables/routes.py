"""Tables over HTTP: see the plan, confirm it, look, remove."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any, Literal

import orjson
from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from instep.catalogues.tables import tables
from instep.catalogues.tables.candidates import candidates
from instep.catalogues.tables.options import TableOptions
from instep.catalogues.tables.workshop import add_table, plan_table, remove_table
from instep.web.guard import check_table, check_unlimited
from instep.web.problems import Problem
from instep.web.roles import Role
from instep.web.routing import App, Routes, Who

routes = Routes("/api/v1", tag="tables")

Name = Annotated[str, Path(max_length=100)]
Column = Annotated[str, Field(min_length=1, max_length=200)]

EXAMPLE: dict[str, Any] = {
    "name": "articles",
    "table": "public.articles",
    "key": [{"name": "id", "type": "bigint"}],
    "text": ["title", "body"],
    "where": "published",
    "newest": "published_at",
    "filters": ["section"],
    "show": ["title"],
    "engine": "postgres",
    "watched": {"articles.embed": ["title", "body", "published"]},
    "view": "instep.articles_chunks",
    "targets": [{"derivation": "articles.embed", "name": "all-MiniLM-L6-v2-256t", "state": "reading"}],
}
OPTIONS: dict[str, Any] = {
    "table": "articles",
    "text": ["title", "body"],
    "where": "published",
    "filters": ["section"],
}


class Options(BaseModel):
    """What `instep tables add` takes."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [OPTIONS]})

    table: str = Field(min_length=1, max_length=200, description="with its schema where it needs one")
    text: list[Column] = Field(min_length=1, max_length=100, description="its text columns, in this order")
    name: str = Field("", max_length=100, description="what to call it here")
    where: str = Field("", max_length=5_000, description="only rows for which this holds, in SQL")
    newest: str = Field("", max_length=200, description="rows with the highest value here are worked first")
    filters: list[Column] = Field(default_factory=list, max_length=100)
    show: list[Column] = Field(default_factory=list, max_length=100)
    engine: Literal["auto", "tantivy", "postgres"] = "auto"
    dimensions: int = Field(0, ge=0, le=4_000)
    halfvec: bool = False
    splitter: str = Field("", max_length=50)
    document_prefix: str | None = Field(None, max_length=1_000)
    query_prefix: str | None = Field(None, max_length=1_000)

    def options(self) -> TableOptions:
        given = self.model_dump(exclude={"confirm"})
        return TableOptions(**{**given, **{name: tuple(given[name]) for name in ("text", "filters", "show")}})

    def token(self) -> str:
        """Of exactly these options: what is confirmed is what was shown."""
        given = self.model_dump(exclude={"confirm"})
        return sha256(orjson.dumps(given, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


class Confirmed(Options):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{**OPTIONS, "confirm": "0f1e2d3c4b5a69788796a5b4c3d2e1f0"}]},
    )

    confirm: str = Field(max_length=64, description="as the plan of the same options gave it")


@routes.get(
    "/tables", role=Role.READER, summary="The tables that are derived from", example={"tables": [EXAMPLE]}
)
async def list_tables(app: App, caller: Who) -> dict[str, Any]:
    async with app.database.connection() as conn:
        found = await tables.listed(conn)
    return {"tables": [table.as_dict() for table in found if caller.sees(table.source.name)]}


@routes.get(
    "/table-candidates",
    role=Role.OPERATOR,
    summary="Tables that could be added",
    example={
        "candidates": [
            {
                "table": "public.articles",
                "rows_about": 63000,
                "added": False,
                "columns": [{"name": "title", "type": "text", "text": True}],
            }
        ]
    },
)
async def list_candidates(app: App, caller: Who) -> dict[str, Any]:
    """With a key of their own, and a text column; `rows_about` is PostgreSQL's own idea, -1 where it has none."""
    check_unlimited(caller)
    async with app.database.connection() as conn:
        return {"candidates": [one.as_dict() for one in await candidates(conn)]}


@routes.post(
    "/tables/plan",
    role=Role.OPERATOR,
    summary="What adding a table would take",
    example={
        "plan": {"name": "articles", "rows": 63000, "chunks": 81000},
        "confirm": "0f1e2d3c…",
        "already": False,
    },
)
async def plan(app: App, caller: Who, options: Options) -> dict[str, Any]:
    """Changes nothing. `confirm` is for adding it with the same options."""
    check_unlimited(caller)
    planned = await plan_table(app, options.options())
    return {
        "plan": planned.as_dict() if planned else None,
        "confirm": options.token(),
        "already": planned is None,
    }


@routes.post(
    "/tables",
    role=Role.OPERATOR,
    status_code=201,
    summary="Add a table whose plan was seen",
    example={
        "name": "articles",
        "already": False,
        "seconds": 0.4,
        "next": "/api/v1/derivations/articles.embed/run",
    },
)
async def add(app: App, caller: Who, options: Confirmed) -> dict[str, Any]:
    """Installs triggers on the table, which is all that it gets, and tables of ours in the schema instep. A run fills it."""
    check_unlimited(caller)
    if options.confirm != options.token():
        raise Problem(
            "conflict",
            "these are not the options whose plan was seen",
            "ask for the plan: POST /api/v1/tables/plan",
        )
    added = await add_table(app, options.options())
    return {**added.as_dict(), "next": f"/api/v1/derivations/{added.name}.embed/run"}


@routes.get("/tables/{name}", role=Role.READER, summary="How a table is derived from", example=EXAMPLE)
async def show(app: App, caller: Who, name: Name) -> dict[str, Any]:
    check_table(caller, name)
    async with app.database.connection() as conn:
        return (await tables.shown(conn, name)).as_dict()


@routes.delete(
    "/tables/{name}",
    role=Role.OPERATOR,
    summary="Stop deriving from a table",
    example={"name": "articles", "removed": True},
)
async def remove(app: App, caller: Who, name: Name) -> dict[str, Any]:
    """Its triggers, queues, chunks and index go. The table and its rows stay."""
    check_table(caller, name)
    async with app.database.connection() as conn:
        await tables.shown(conn, name)
    await remove_table(app, name)
    return {"name": name, "removed": True}
