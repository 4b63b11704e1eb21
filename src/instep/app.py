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
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import psycopg

from instep import following, registry
from instep.clock import SYSTEM, Clock
from instep.database.interactive import Interactive
from instep.database.migrations import migrate
from instep.database.outages import is_schema
from instep.database.pool import Database
from instep.engine import declared, install, keys, pause, status
from instep.engine.dead import DeadLetters, Kind, Letter
from instep.engine.declaration import Declaration, Source
from instep.engine.explain import Explanation, explain
from instep.engine.pause import Pause
from instep.engine.ports import Derivation, Observer, RunReport
from instep.engine.run import Options, run
from instep.engine.status import Status
from instep.engine.stopping import Stop
from instep.engine.wave import Limits
from instep.errors import Configuration, InstepError, Refused, SettingsError, Unknown
from instep.settings import Settings

if TYPE_CHECKING:
    from instep.search.answers import Answer, Mode
    from instep.search.search import Request, Searchable
    from instep.search.walk import Walked

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
        self.interactive = Interactive(database, clock)
        self._workshops: dict[str, Workshop] = {}
        self._making: dict[str, asyncio.Lock] = {}

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
                await app.interactive.close()

    async def workshop(self, source: str) -> Workshop:
        """What a source is made of, by its catalogue; made once. Raises Refused for an unknown name."""
        if (made := self._workshops.get(source)) is not None:
            return made
        async with self._making.setdefault(source, asyncio.Lock()):  # two searches at once make it once
            if source not in self._workshops:
                async with self.database.connection() as conn:
                    known = await declared.read_source(conn, source)
                    declarations = await declared.read_declarations(conn, known)
                catalogue = {c.name: c for c in registry.catalogues()}[declarations[0].catalogue]
                self._workshops[source] = await registry.load(catalogue.derivations)(
                    self, known, declarations
                )
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
        One report for each derivation. Raises Refused for unknown names and SettingsError, before any work."""
        stop = stop or Stop()
        if follow:
            return await following.follow(self, names, observer, stop)
        reports: list[RunReport] = []
        for source, wanted in (await self.by_source(names)).items():
            reports += await self._run_once(source, wanted, observer, stop)
        return reports

    async def _run_once(
        self, source: str, wanted: Sequence[str], observer: Observer, stop: Stop
    ) -> list[RunReport]:
        try:
            options = self.options(follow=False)
            reports = await self.run_source(source, wanted, observer, stop, options)
            if any(report.moved for report in reports):
                await self.forget(source)
                reports = await self.run_source(source, wanted, observer, stop, options)
        except SettingsError:
            raise  # of the process: no source can be worked
        except InstepError as error:  # of this source: others are worked on
            told = f"{error}: {error.hint}" if error.hint else str(error)
            reports = [RunReport(name, configuration=told) for name in wanted]
        return reports

    async def source_names(self) -> Sequence[str]:
        async with self.database.connection() as conn:
            return await declared.source_names(conn)

    def options(self, *, follow: bool) -> Options:
        settings = self.settings
        limits = Limits(
            settings.batch_size, settings.lease_seconds, settings.call_timeout_seconds, settings.max_attempts
        )
        return Options(
            limits, follow, settings.poll_seconds, settings.sweep_every_seconds, self.clock.token()
        )

    async def run_source(
        self, source: str, wanted: Sequence[str], observer: Observer, stop: Stop, options: Options
    ) -> list[RunReport]:
        """One run of a source, or one that stays."""
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
            await self.write_metrics(wanted)
        return reports

    async def status(self, names: Sequence[str] = ()) -> list[Status]:
        """Every derivation, or those named."""
        async with self.database.connection() as conn:
            found: list[Status] = []
            pauses = await pause.standing(conn)
            for declaration in await self._declarations(conn, names):
                targets = await declared.read_targets(conn, declaration.name)
                reading = next(target for target in targets if target.state == "reading")
                problems = await install.problems(conn, declaration.source.name)
                problem = f"{problems[0].what}: {problems[0].mend}" if problems else ""
                held = pause.covering(pauses, declaration.name)
                found.append(await status.read(conn, declaration, reading, problem, held))
            return found

    async def pause(
        self, name: str | None = None, *, reason: str, until: datetime | timedelta | None = None
    ) -> Pause:
        """Workers start no new wave of a source, of a derivation or (None) of anything, and finish the one in hand.
        `until`: a moment, or how long. Raises Refused for an unknown name, and for a moment that has passed."""
        async with self.database.connection() as conn:
            await self._declarations(conn, [name] if name else [])
            return await pause.pause(conn, name or pause.EVERYTHING, reason, until)

    async def resume(self, name: str | None = None) -> list[Pause]:
        """Lift the pause of a name, or (None) all; gives those that were in force. Raises Refused where a wider one
        would go on holding it, and for an unknown name."""
        async with self.database.connection() as conn:
            if name and all(one.scope != name for one in await pause.standing(conn)):
                await self._declarations(conn, [name])
            return await pause.resume(conn, name)

    async def paused(self) -> list[Pause]:
        """The pauses in force, the widest first."""
        async with self.database.connection() as conn:
            return await pause.standing(conn)

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
        from instep.search.search import Request

        return await self.ask(name, Request(query, mode, where, limit, offset, facets))

    async def ask(self, name: str, request: Request, **ways: bool) -> Answer:
        """Search a source, in the words of `instep.search.search`; `ways` as `instep.asking.ask` takes them."""
        from instep.asking import ask

        async with self._of(name):
            return await ask(self, name, request, **ways)

    async def walk(self, name: str, request: Request, after: str | None = None) -> tuple[Walked, str | None]:
        """A page of all rows that hold the words, in the order of keys; and the key after which the next one begins."""
        from instep.asking import walk

        async with self._of(name):
            return await walk(self, name, request, after)

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
            raise Unknown(f"{name} has no dead letter {key}", hint="list them with: instep dead list")
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

    async def write_metrics(self, derivations: Sequence[str]) -> bool:
        """A Prometheus textfile for each derivation; False where metrics_dir is not set."""
        directory = self.settings.metrics_dir
        if directory is None:
            return False
        from instep.upkeep import textfile

        async with self.database.connection() as conn:
            for derivation in derivations:
                seen = await textfile.read(conn, derivation)
                if seen is not None:
                    await asyncio.to_thread(textfile.write, directory, seen)
        return True

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

    async def by_source(self, names: Sequence[str]) -> dict[str, list[str]]:
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
