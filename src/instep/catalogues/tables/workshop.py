"""What the app works with for a table: its derivations, its search, and adding and removing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from psycopg import sql

from instep.app import Instep, Workshop
from instep.catalogues.tables import plan as planning
from instep.catalogues.tables import tables
from instep.catalogues.tables.declare import Declared, declare
from instep.catalogues.tables.derivations import build, index_of, search_derivation
from instep.catalogues.tables.model import EmbeddingModel
from instep.catalogues.tables.options import TableOptions
from instep.chunks.derivation import making_of, text_hashes
from instep.chunks.names import chunk_tables
from instep.chunks.vector_type import pgvector_schema
from instep.engine.declaration import Declaration, Source, Target
from instep.engine.declared import read_targets, reading_ids, source_names
from instep.engine.ports import Conn
from instep.errors import Configuration, SettingsError, Unknown
from instep.inference.ports import Embedder
from instep.inference.providers import create_embedder, default_url, leaves_machine
from instep.search.columns import read_columns
from instep.search.dense import Dense
from instep.search.lexical import Lexical
from instep.search.live import page_rows
from instep.search.search import Searchable
from instep.text.compose import entity_text


async def workshop(app: Instep, source: Source, declarations: Sequence[Declaration]) -> Workshop:
    """The tables catalogue's `derivations` (registry.Catalogue)."""
    made: dict[str, Embedder] = {}

    def querying_of(target: Target) -> Embedder:
        if app.settings.query_embed_url is None:
            return embedder_of(target)
        name = f"query {target.name}"
        if name not in made:  # made once: each holds connections of its own
            made[name] = _embedder(app, target.spec, app.settings.query_embed_url)
        return made[name]

    def embedder_of(target: Target) -> Embedder:
        if target.name not in made:
            made[target.name] = _of_target(app, target)
        return made[target.name]

    embed, search = await build(app.database, source.name, embedder_of, app.settings.data_dir / "indexes")

    async with app.database.connection() as conn:
        born = await _target_ids(conn, (embed.declaration, search.declaration))

    ready: dict[
        tuple[int, ...], Searchable
    ] = {}  # by the targets that are read: one round trip instead of five

    async def searchable() -> Searchable:
        async with app.database.connection() as conn:
            ids = await reading_ids(conn, source.name)
            if ids in ready:
                return ready[ids]
            reading = await _reading(conn, embed.declaration, born)
            lexical = await _reading(conn, search.declaration, born)
            columns = await read_columns(conn, source, search.declaration.options["filters"])
            schema = await pgvector_schema(conn)
        names = chunk_tables(embed.declaration, reading)
        hashes = partial(text_hashes, making_of(reading, embedder_of(reading)))
        dense = Dense(
            embed.declaration,
            reading,
            names.chunk,
            names.layout,
            querying_of(reading),
            hashes,
            str(reading.spec["query_prefix"]),
            schema,
        )
        index = index_of(app.database, search, lexical, columns)
        ready.clear()
        ready[ids] = Searchable(
            Lexical(search.declaration, lexical, index), dense, columns, search.declaration.options["show"]
        )
        return ready[ids]

    async def outputs(name: str, key: tuple[Any, ...]) -> dict[str, Any]:
        if name != embed.declaration.name:
            return {}
        async with app.database.connection() as conn:
            targets = await read_targets(conn, name)
            return {target.name: await embed.sink.describe(conn, target, key) for target in targets}

    async def text(key: tuple[Any, ...]) -> str:
        async with app.database.connection() as conn:
            rows = await page_rows(
                conn, embed.declaration, None, [key], embed.declaration.options["text"], ()
            )
        return entity_text(rows[key].texts) if key in rows else ""

    async def close() -> None:
        for embedder in made.values():
            await embedder.close()
        await search.sink.close()

    async def plan() -> dict[str, Any]:
        model = _model(app)
        try:
            async with app.database.connection() as conn:
                declared = await _declare(
                    app, conn, _options(source, embed.declaration, search.declaration), model
                )
                planned = await planning.plan(conn, declared, model, runs_at=app.settings.embed_url or "")
        finally:
            await model.embedder.close()
        return planned.as_dict()

    return Workshop(source, (embed, search), searchable, outputs, text, plan, close)


async def plan_table(app: Instep, options: TableOptions) -> planning.Plan | None:
    """What adding the table would take; None where it is added already. Raises Refused for what cannot be added."""
    model = _model(app)
    try:
        async with app.database.connection() as conn:
            declared = await _declare(app, conn, options, model)
            if declared.source.name in await source_names(conn):
                await tables.refuse_other(conn, declared)
                return None
            return await planning.plan(conn, declared, model, runs_at=app.settings.embed_url or "")
    finally:
        await model.embedder.close()


async def add_table(app: Instep, options: TableOptions) -> tables.Added:
    """Install it. The same again changes nothing."""
    model = _model(app)
    try:
        async with app.database.connection() as conn:
            declared = await _declare(app, conn, options, model)
            added = await tables.add(conn, declared, clock=app.clock)
            await app.forget(added.name)
            await _prepare(await app.workshop(added.name), conn)
        return added
    finally:
        await model.embedder.close()


async def _prepare(made: Workshop, conn: Conn) -> None:
    """Empty outputs, so that a search before the first run finds nothing instead of no index."""
    for derivation in made.derivations:
        for target in await read_targets(conn, derivation.declaration.name):
            await derivation.sink.prepare(conn, target)


async def remove_table(app: Instep, name: str) -> None:
    """Take everything away that was derived; also what a search engine keeps outside PostgreSQL."""
    await app.forget(name)  # what this process holds of its index is given back
    async with app.database.connection() as conn:
        if name not in await source_names(conn):
            await tables.remove(conn, name, clock=app.clock)
            return
        search = (await tables.shown(conn, name)).search
        derivation = search_derivation(app.database, search, (), app.settings.data_dir / "indexes")
        await tables.remove(conn, name, [derivation], clock=app.clock)
        await derivation.sink.close()


def _options(source: Source, embed: Declaration, search: Declaration) -> TableOptions:
    """What a table was added with, as far as a plan needs it."""
    relation = sql.Identifier(source.schema, source.table).as_string(None)
    return TableOptions(
        relation,
        tuple(embed.options["text"]),
        name=source.name,
        where="" if embed.eligible == "true" else embed.eligible,
        newest=embed.options.get("newest", ""),
        filters=tuple(search.options["filters"]),
        show=tuple(search.options["show"]),
        engine=search.options["engine"],
    )


async def _declare(app: Instep, conn: Conn, options: TableOptions, model: EmbeddingModel) -> Declared:
    engine = options.engine if options.engine != "auto" else app.settings.search_engine
    if engine == "auto":
        engine = "tantivy" if app.database.embedded else "postgres"
    return await declare(conn, replace(options, engine=engine), model)


def _model(app: Instep) -> EmbeddingModel:
    settings, provider = app.settings, app.settings.embed_provider
    embedder = _embedder(app, {"provider": provider}, settings.embed_url)
    return EmbeddingModel(embedder, provider, leaves_machine(provider, settings.embed_url or ""))


async def _target_ids(conn: Conn, declarations: Sequence[Declaration]) -> frozenset[int]:
    return frozenset(
        [target.id for declaration in declarations for target in await read_targets(conn, declaration.name)]
    )


async def _reading(conn: Conn, declaration: Declaration, born: frozenset[int]) -> Target:
    """The target that is read. Raises Unknown where it is none of those that were there when the workshop was made: the
    table was removed, or added anew, by another process."""
    for target in await read_targets(conn, declaration.name):
        if target.state == "reading" and target.id in born:
            return target
    raise Unknown(f"{declaration.name} is not what it was")


def _of_target(app: Instep, target: Target) -> Embedder:
    """Raises Configuration where the settings name a provider that has not the model that the target was made with."""
    try:
        return _embedder(app, target.spec, app.settings.embed_url)
    except SettingsError as error:
        raise Configuration(
            f"{target.derivation} was made with the model {target.spec.get('model')}, which"
            f" INSTEP_EMBED_PROVIDER={app.settings.embed_provider} cannot give: {error}",
            setting="INSTEP_EMBED_PROVIDER",
            hint="set INSTEP_EMBED_PROVIDER and INSTEP_EMBED_URL as they were when the table was added",
        ) from error


def _embedder(app: Instep, spec: Mapping[str, Any], url: str | None) -> Embedder:
    settings = app.settings
    return create_embedder(
        settings.embed_provider,
        url=url or default_url(settings.embed_provider),
        api_key=settings.embed_api_key.get_secret_value() if settings.embed_api_key else None,
        model=str(spec.get("model") or settings.embed_model or ""),
        concurrency=settings.embed_concurrency,
        request_timeout=settings.request_timeout_seconds,
        cache_dir=settings.models_path,
        batch=settings.embed_batch_size,
        dimensions=spec.get("dimensions"),
        precedence=app.interactive,
    )
