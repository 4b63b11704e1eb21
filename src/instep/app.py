"""What CLI, server and users call: one object over a database and its settings.

    async with Instep.open(Settings.load()) as app:
        await app.run(["articles"])
        answer = await app.search("articles", "how do I rotate a key")

The app knows no catalogue by name: what a source is made of comes from the catalogue that its rows name (`registry.py`).
Adding and removing tables is the tables catalogue's own: `instep.catalogues.tables`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg_pool import PoolTimeout

from instep import registry
from instep.clock import SYSTEM, Clock
from instep.database.migrations import migrate
from instep.database.outages import is_schema
from instep.database.pool import Database
from instep.engine import declared, install, keys, status
from instep.engine.dead import DeadLetters, Kind, Letter
from instep.engine.declaration import Declaration, Source
from instep.engine.explain import Explanation, explain
from instep.engine.ports import Derivation, Observer, RunReport
from instep.engine.run import Options, run
from instep.engine.status import Status
from instep.engine.stopping import Stop
from instep.engine.wave import Limits
from instep.errors import Configuration, Outage, Refused
from instep.settings import Settings

if TYPE_CHECKING:
    from instep.search.answers import Answer, Mode
    from instep.search.search import Searchable

FOLLOW_PAUSES = (1.0, 60.0)  # first and longest, before a run that stays is begun again
METRICS_SECONDS = 15.0  # between textfiles of a worker that stays
READ_POLL_SECONDS = 0.1  # between looks of `wait_until_in_sync`


@dataclass(slots=True)
class Workshop:
    """What a catalogue makes of one of its sources: its derivations in the order of their bits, and what searches
    it, made when it is asked for."""

    source: Source
    derivations: Sequence[Derivation]
    searchable: Callable[[], Awaitable[Searchable]] | None = None
    outputs: Callable[[str, tuple[Any, ...]], Awaitable[dict[str, Any]]] | None = (
        None  # of a derivation and a key
    )
    text: Callable[[tuple[Any, ...]], Awaitable[str]] | None = None  # what a row is made from, as it is now
    plan: Callable[[], Awaitable[dict[str, Any]]] | None = None
    close: Callable[[], Awaitable[None]] | None = None


class Instep:
    """Made by `open`, which starts or attaches to the database and brings its schema up to date."""

    def __init__(
        self, settings: Settings, database: Database, migrated: Sequence[str], clock: Clock = SYSTEM
    ) -> None:
        self.settings, self.database, self.migrated, self.clock = settings, database, tuple(migrated), clock
        self._workshops: dict[str, Workshop] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> AsyncIterator[Self]:
        """Raises Refused for a server that cannot serve, SettingsError, Outage where none answers."""
        async with await Database.open(settings) as database:
            app = cls(settings, database, await migrate(database))
            try:
                yield app
            finally:
                for source in list(app._workshops):
                    await app.forget(source)

    async def workshop(self, source: str) -> Workshop:
        """What a source is made of, by its catalogue; made once. Raises Refused for an unknown name."""
        if source not in self._workshops:
            async with self.database.connection() as conn:
                known = await declared.read_source(conn, source)
                declarations = await declared.read_declarations(conn, known)
            catalogue = {c.name: c for c in registry.catalogues()}[declarations[0].catalogue]
            self._workshops[source] = await registry.load(catalogue.derivations)(self, known, declarations)
        return self._workshops[source]

    async def forget(self, source: str) -> None:
        """What was known of a source is not so any more: it was added, changed or removed."""
        workshop = self._workshops.pop(source, None)
        if workshop is not None and workshop.close is not None:
            await workshop.close()

    async def run(
        self, names: Sequence[str] = (), *, observer: Observer, stop: Stop | None = None, follow: bool = False
    ) -> list[RunReport]:
        """Run sources ("articles": all their derivations) or single derivations ("articles.embed"); none: all.
        One report for each derivation. Raises Refused for unknown names, before any work."""
        stop, chosen = stop or Stop(), await self._by_source(names)
        if follow:
            async with asyncio.TaskGroup() as group:
                following = [
                    group.create_task(self._follow(source, wanted, observer, stop))
                    for source, wanted in chosen.items()
                ]
            return [report for task in following for report in task.result()]
        reports: list[RunReport] = []
        for source, wanted in chosen.items():
            reports += await self._run_once(source, wanted, observer, stop)
        return reports

    async def _run_once(
        self, source: str, wanted: Sequence[str], observer: Observer, stop: Stop
    ) -> list[RunReport]:
        options = self._options(follow=False)
        reports = await self._run_source(source, wanted, observer, stop, options)
        if any(report.moved for report in reports):
            await self.forget(source)
            reports = await self._run_source(source, wanted, observer, stop, options)
        return reports

    async def _follow(
        self, source: str, wanted: Sequence[str], observer: Observer, stop: Stop
    ) -> list[RunReport]:
        """A run that stays ends by itself only where its connections or its table are gone: then again, after a pause."""
        metrics = asyncio.create_task(self._keep_metrics(wanted, observer))
        try:
            return await self._again_and_again(source, wanted, observer, stop)
        finally:
            metrics.cancel()

    async def _again_and_again(
        self, source: str, wanted: Sequence[str], observer: Observer, stop: Stop
    ) -> list[RunReport]:
        pause, options = FOLLOW_PAUSES[0], self._options(follow=True)
        reports: list[RunReport] = []
        first = True
        while not stop.finishing:
            began = self.clock.monotonic()
            try:
                if not first and not await self._is_there(source):
                    observer.event("removed", {"source": source})
                    return []
                reports = await self._run_source(source, wanted, observer, stop, options)
            except (psycopg.Error, Outage) as error:
                if not (isinstance(error, psycopg.OperationalError | Outage) or is_schema(error)):
                    raise
                observer.event("outage", {"source": source, "message": str(error), "seconds": pause})
            except Refused as error:  # what was well when it began: other sources are worked on
                if first:
                    raise
                reports = [RunReport(name, configuration=str(error)) for name in wanted]
            first = False
            if stop.finishing:
                break
            await self.forget(source)
            if any(report.moved for report in reports):
                continue
            if self.clock.monotonic() - began > pause:  # it worked for a while
                pause = FOLLOW_PAUSES[0]
            message = next((r.outage or r.configuration for r in reports if r.outage or r.configuration), "")
            observer.event("outage", {"source": source, "message": message, "seconds": pause})
            await stop.wait(pause)
            pause = min(pause * 2, FOLLOW_PAUSES[1])
        return reports

    async def _is_there(self, source: str) -> bool:
        async with self.database.connection() as conn:
            return source in await declared.source_names(conn)

    def _options(self, *, follow: bool) -> Options:
        settings = self.settings
        limits = Limits(
            settings.batch_size, settings.lease_seconds, settings.call_timeout_seconds, settings.max_attempts
        )
        return Options(
            limits, follow, settings.poll_seconds, settings.sweep_every_seconds, self.clock.token()
        )

    async def _run_source(
        self, source: str, wanted: Sequence[str], observer: Observer, stop: Stop, options: Options
    ) -> list[RunReport]:
        async with self.database.connection() as conn:
            problems = await install.problems(conn, source)
        if problems:  # said here: its derivations cannot even be made where a column of theirs is gone
            told = f"{problems[0].what}: {problems[0].mend}"
            return [RunReport(name, configuration=told) for name in wanted]
        workshop = await self.workshop(source)
        derivations = [d for d in workshop.derivations if d.declaration.name in wanted]
        reports = await run(
            self.database,
            workshop.source,
            derivations,
            clock=self.clock,
            observer=observer,
            options=options,
            stop=stop,
        )
        if not any(report.outage for report in reports):
            await self._write_metrics(wanted)
        return reports

    async def status(self, names: Sequence[str] = ()) -> list[Status]:
        """Every derivation, or those named."""
        async with self.database.connection() as conn:
            found: list[Status] = []
            for declaration in await self._declarations(conn, names):
                targets = await declared.read_targets(conn, declaration.name)
                reading = next(target for target in targets if target.state == "reading")
                problems = await install.problems(conn, declaration.source.name)
                problem = f"{problems[0].what}: {problems[0].mend}" if problems else ""
                found.append(await status.read(conn, declaration, reading, problem))
            return found

    @asynccontextmanager
    async def _of(self, source: str) -> AsyncIterator[None]:
        """Where a statement met a table or column that is gone: the words of `run` for it, not PostgreSQL's."""
        try:
            yield
        except psycopg.Error as error:
            if not is_schema(error):
                raise
            async with self.database.connection() as conn:
                problems = await install.problems(conn, source)
            if not problems:
                raise
            raise Configuration(problems[0].what, hint=problems[0].mend) from error

    async def search(
        self, name: str, query: str, *, mode: Mode = "hybrid", where: str = "", limit: int = 10, offset: int = 0,
        facets: bool = False,
    ) -> Answer:  # fmt: skip
        """Search a source. Raises Refused as `instep.search.search` says, and for a source that has no search."""
        from instep.search.search import Request, search

        workshop = await self.workshop(name)
        if workshop.searchable is None:
            raise Refused(f"{name} cannot be searched: nothing of it is indexed")
        request = Request(query, mode, where, limit, offset, facets)
        async with self._of(name):
            searchable = await workshop.searchable()
            answer = await search(searchable, self.database.connection, request, self.clock)
        leg = searchable.lexical if mode == "lexical" else searchable.dense
        if leg is None:
            return answer
        async with self.database.connection() as conn:
            return replace(answer, coverage=await status.share(conn, leg.declaration, leg.target))

    async def explain(self, name: str, key: str) -> Explanation:
        """The whole story of one row: `name` is a derivation, or a source (its first derivation)."""
        async with self._of(name.partition(".")[0]), self.database.connection() as conn:
            declaration = (await self._declarations(conn, [name]))[0]
            targets = await declared.read_targets(conn, declaration.name)
            workshop = await self.workshop(declaration.source.name)
            parsed = keys.parse_key(declaration.source, key)
            outputs = None
            if workshop.outputs is not None:
                outputs = await workshop.outputs(declaration.name, parsed)
            return await explain(conn, declaration, targets, parsed, outputs)

    async def plan(self, name: str) -> dict[str, Any]:
        """What a source has, what is still to be made, and what that takes."""
        source = name.split(".")[0]
        workshop = await self.workshop(source)
        found = await self.status([name])
        async with self._of(source):
            planned = await workshop.plan() if workshop.plan is not None else {}
        return {"name": name, "derivations": [one.as_dict() for one in found], **planned}

    async def dead_kinds(self, name: str | None = None) -> list[Kind]:
        """Dead letters by kind, of a source, a derivation or all."""
        async with self.database.connection() as conn:
            declarations = await self._declarations(conn, [name] if name else [])
            return [
                kind for declaration in declarations for kind in await DeadLetters(declaration).kinds(conn)
            ]

    async def dead_letters(self, name: str, kind: str | None = None, limit: int = 100) -> list[Letter]:
        """The letters of a source or a derivation, of one kind or all, the newest first. Raises Refused for an unknown name."""
        async with self.database.connection() as conn:
            declarations = await self._declarations(conn, [name])
            return [
                letter
                for declaration in declarations
                for letter in await DeadLetters(declaration).letters(conn, kind, limit)
            ]

    async def dead_show(self, name: str, key: str) -> tuple[list[tuple[str, Letter]], str]:
        """The letters of one row, with the derivation of each, and the row's text as it is now (empty where the row is
        gone). Raises Refused where there is no letter."""
        async with self.database.connection() as conn:
            declarations = await self._declarations(conn, [name])
            parsed = keys.parse_key(declarations[0].source, key)
            found = [
                (declaration.name, letter)
                for declaration in declarations
                for letter in await DeadLetters(declaration).show(conn, parsed)
            ]
        if not found:
            raise Refused(f"{name} has no dead letter {key}", hint="list them with: instep dead list")
        workshop = await self.workshop(declarations[0].source.name)
        return found, await workshop.text(parsed) if workshop.text is not None else ""

    async def dead_replay(
        self, name: str | None = None, key: str | None = None, kind: str | None = None
    ) -> int:
        """Replay one row's, a kind's or all dead letters; how many. Raises Refused for a key without its table."""

        async def replay(letters: DeadLetters, declaration: Declaration, conn: Any) -> int:
            parsed = keys.parse_key(declaration.source, key) if key is not None else None
            return await letters.replay(conn, key=parsed, kind=kind)

        return await self._each_dead(name, key, replay)

    async def dead_discard(
        self, why: str, name: str | None = None, key: str | None = None, kind: str | None = None
    ) -> int:
        """Set dead letters aside, with the reason; how many."""

        async def discard(letters: DeadLetters, declaration: Declaration, conn: Any) -> int:
            parsed = keys.parse_key(declaration.source, key) if key is not None else None
            return await letters.discard(conn, why, key=parsed, kind=kind)

        return await self._each_dead(name, key, discard)

    async def wait_until_in_sync(self, name: str, key: str, timeout: float = 30.0) -> bool:
        """For tests and for reading one's own writes: until the row's outputs are of its content now, for each target
        that is read; False when `timeout` seconds have passed. Works nothing itself: a worker must run."""
        deadline = self.clock.monotonic() + timeout
        names = [name] if "." in name else [one.name for one in await self.status([name])]
        while True:
            explained = [await self.explain(one, key) for one in names]
            if all(one.in_sync for one in explained):
                return True
            if self.clock.monotonic() >= deadline:
                return False
            await asyncio.sleep(READ_POLL_SECONDS)

    async def _write_metrics(self, derivations: Sequence[str]) -> None:
        """A Prometheus textfile for each derivation, where metrics_dir is set."""
        directory = self.settings.metrics_dir
        if directory is None:
            return
        from instep.upkeep import textfile

        async with self.database.connection() as conn:
            for derivation in derivations:
                seen = await textfile.read(conn, derivation)
                if seen is not None:
                    await asyncio.to_thread(textfile.write, directory, seen)

    async def _keep_metrics(self, derivations: Sequence[str], observer: Observer) -> None:
        """For a worker that stays: the same alert covers it. A database that is out is said by the run itself."""
        while self.settings.metrics_dir is not None:
            await asyncio.sleep(METRICS_SECONDS)
            try:
                await self._write_metrics(derivations)
            except (psycopg.OperationalError, PoolTimeout) as error:
                observer.event("metrics not written", {"message": str(error)})

    async def _each_dead(
        self,
        name: str | None,
        key: str | None,
        act: Callable[[DeadLetters, Declaration, Any], Awaitable[int]],
    ) -> int:
        if key is not None and name is None:
            raise Refused("a key needs its table: which one?", hint="instep dead replay NAME KEY")
        async with self.database.connection() as conn:
            declarations = await self._declarations(conn, [name] if name else [])
            return sum(
                [await act(DeadLetters(declaration), declaration, conn) for declaration in declarations]
            )

    async def _by_source(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Source → the derivations of it that were named."""
        async with self.database.connection() as conn:
            declarations = await self._declarations(conn, names)
        wanted: dict[str, list[str]] = {}
        for declaration in declarations:
            wanted.setdefault(declaration.source.name, []).append(declaration.name)
        return wanted

    async def _declarations(self, conn: Any, names: Sequence[str]) -> list[Declaration]:
        """Of sources and derivations by name, each once, in order; all where none is named."""
        found: dict[str, Declaration] = {}
        for name in names or await declared.source_names(conn):
            if "." in name:
                found[name] = await declared.read_declaration(conn, name)
                continue
            source = await declared.read_source(conn, name)
            found |= {d.name: d for d in await declared.read_declarations(conn, source)}
        return list(found.values())
