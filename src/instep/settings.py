"""Every setting, where its value came from, and the only reader of the environment.

A value is looked for in the flags, then the environment (`INSTEP_NAME`, then the other names a setting goes by), then
`instep.toml` (in the current directory, or where INSTEP_CONFIG points), then the default. An empty value is no value.
What holds (tests/unit/test_settings.py): an error names the variable, what it got and what it takes; a secret is in
no error, warning, `repr` or `explained`.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from platformdirs import user_data_path
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
)
from pydantic.fields import FieldInfo

from instep import failpoints
from instep.errors import SettingsError

PREFIX = "INSTEP_"
CONFIG_VARIABLE = "INSTEP_CONFIG"
CONFIG_FILE = "instep.toml"
_NOT_SETTINGS = {CONFIG_VARIABLE, "INSTEP_TEST_DSN", "INSTEP_TEST_POOLER"}
MASK = "********"


@dataclass(frozen=True, slots=True)
class Takes:
    """What a setting takes, in words, and the other environment variables that it goes by."""

    words: str
    also: tuple[str, ...] = ()
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Explained:
    """One line of `instep config`. `value` is fit to be shown: secrets are masked."""

    name: str
    variable: str
    value: str
    source: str  # "flag", "environment NAME", "file PATH", "default", "raised" or "built in"
    takes: str
    description: str


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _failpoint(value: str | None) -> str | None:
    if value is not None:
        failpoints.parse(value)
    return value


_SECONDS = "seconds, more than 0"


class Settings(BaseModel):
    """The settings of one process. Made by `load`; never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    database_url: Annotated[
        str | None,
        Takes("postgresql://user:password@host:5432/database", ("DATABASE_URL", "PG_DSN"), secret=True),
    ] = Field(None, repr=False, description="the PostgreSQL to use; unset: an embedded one in data_dir")
    direct_database_url: Annotated[
        str | None, Takes("as database_url", ("DIRECT_DATABASE_URL",), secret=True)
    ] = Field(None, repr=False, description="the same database past a pooler: migrations, index builds")
    pooler: Annotated[bool, Takes("true or false")] = Field(
        False, description="database_url leads through a pooler; false: found out by looking"
    )
    database_timeout_seconds: Annotated[float, Takes("seconds; 0: no limit")] = Field(
        300, ge=0, description="how long PostgreSQL may take for one answer; index builds may take longer"
    )
    pool_size: Annotated[int, Takes("a whole number, at least 3")] = Field(
        6, ge=3, description="connections of one process, at most"
    )
    data_dir: Annotated[Path, Takes("a directory")] = Field(
        default_factory=lambda: user_data_path("instep", appauthor=False),
        description="the embedded server, models and indexes; two data directories never meet",
    )
    models_dir: Annotated[Path | None, Takes("a directory")] = Field(
        None, description="where models are kept; unset: data_dir/models"
    )
    metrics_dir: Annotated[Path | None, Takes("a directory")] = Field(
        None, description="where a run leaves its textfile metrics; unset: nowhere"
    )
    batch_size: Annotated[int, Takes("a whole number, at least 1")] = Field(
        500, description="entries that a worker claims at once"
    )
    lease_seconds: Annotated[float, Takes(_SECONDS, ("EMBED_LEASE_SECONDS",))] = Field(
        900, gt=0, description="how long a claim is valid; rescues the work of a worker that died"
    )
    call_timeout_seconds: Annotated[float, Takes("seconds; 0: no limit", ("EMBED_CALL_TIMEOUT_SECONDS",))] = (
        Field(600, ge=0, description="the budget of one wave")
    )
    request_timeout_seconds: Annotated[float, Takes(_SECONDS, ("EMBED_REQUEST_TIMEOUT_SECONDS",))] = Field(
        60, gt=0, description="the budget of one HTTP request to a model server"
    )
    max_attempts: Annotated[int, Takes("a whole number, at least 1", ("EMBED_MAX_ATTEMPTS",))] = Field(
        3, ge=1, description="failures of one entry until it is a dead letter"
    )
    poll_seconds: Annotated[float, Takes(_SECONDS)] = Field(
        0.25, gt=0, description="how often an idle `--follow` looks for changes"
    )
    sweep_every_seconds: Annotated[float | None, Takes(_SECONDS)] = Field(
        None,
        gt=0,
        description="how old a complete sweep may be; unset: each run under 200,000 rows, else 6 hours",
    )
    embed_provider: Annotated[
        Literal["minilm", "tei", "openai", "ollama"],
        BeforeValidator(_lower),
        Takes("minilm, tei, openai or ollama"),
    ] = Field("minilm", description="what computes embeddings; minilm runs here, offline")
    embed_url: Annotated[str | None, Takes("http://host:port")] = Field(
        None, description="the model server; unset: the provider's own default"
    )
    embed_api_key: Annotated[SecretStr | None, Takes("a key", secret=True)] = Field(
        None, description="sent to the model server as a bearer token"
    )
    embed_model: Annotated[str | None, Takes("a model's name")] = Field(
        None, description="the model to ask for; unset: the provider's own default"
    )
    embed_concurrency: Annotated[int, Takes("a whole number, at least 1")] = Field(
        8, ge=1, description="requests to the model server at once, at most"
    )
    embed_batch_size: Annotated[int | None, Takes("a whole number, at least 1")] = Field(
        None, ge=1, description="texts in one request, at most; unset: the server's limit"
    )
    query_embed_url: Annotated[str | None, Takes("http://host:port", ("QUERY_EMBED_URL",))] = Field(
        None, description="a model server for queries alone; unset: embed_url"
    )
    search_engine: Annotated[
        Literal["auto", "tantivy", "postgres"], BeforeValidator(_lower), Takes("auto, tantivy or postgres")
    ] = Field(
        "auto", description="auto: tantivy with the embedded server, else full text search in PostgreSQL"
    )
    search_budget_seconds: Annotated[float, Takes(_SECONDS)] = Field(
        2, gt=0, description="a search by the server answers after so long, without the leg that is late"
    )
    api_pool: Annotated[int, Takes("a whole number, at least 4")] = Field(
        10, ge=4, description="connections of a server to PostgreSQL, at most"
    )
    sample_seconds: Annotated[float, Takes(_SECONDS)] = Field(
        15, gt=0, description="how often a server counts what waits, for status, metrics and the page"
    )
    serve_host: Annotated[str, Takes("an address")] = Field(
        "127.0.0.1", description="where `instep serve` listens"
    )
    serve_port: Annotated[int, Takes("0 to 65535")] = Field(
        8470, ge=0, le=65535, description="its port; 0: any that is free"
    )
    serve_demo: Annotated[bool, Takes("true or false")] = Field(
        False, description="a server that needs no key, for this machine alone"
    )
    serve_requests_per_minute: Annotated[int, Takes("a whole number; 0: no limit")] = Field(
        1200, ge=0, description="requests of one key, at most; a sixth of them at once"
    )
    serve_body_bytes: Annotated[int, Takes("a number of bytes")] = Field(
        1_000_000, ge=1, description="the largest body of a request"
    )
    serve_body_seconds: Annotated[float, Takes(_SECONDS)] = Field(
        15, gt=0, description="how long a request's body may take to come"
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(_lower),
        Takes("debug, info, warning or error"),
    ] = Field("info", description="the least grave log line that is written, to stderr")
    demo_rows: Annotated[int | None, Takes("a whole number, at least 50", ("DEMO_ROWS",))] = Field(
        None, ge=50, description="rows that `instep demo` loads; unset: as many as take about two minutes"
    )
    old_snapshot_seconds: Annotated[float, Takes(_SECONDS)] = Field(
        300, gt=0, description="from which age doctor calls an open transaction old"
    )
    allow_skip: Annotated[
        tuple[str, ...], BeforeValidator(_listed), Takes("names of checks, with commas between")
    ] = Field((), description="checks that may go unmade: they stay listed, and raise no exit code")
    failpoint: Annotated[
        str | None, AfterValidator(_failpoint), Takes("a fail point, its hit and stop: commit.stamped:2:stop")
    ] = Field(None, description="for tests of crashes: where this process kills (or stops) itself")
    yes: Annotated[bool, Takes("true or false")] = Field(False, description="answer every question with yes")

    _warnings: tuple[str, ...] = PrivateAttr(default=())
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Self:
        """Read all sources. `flags`: by setting's name, None meaning not given; `environ`: of this process if None.

        Raises SettingsError for a value that cannot be used, for an unknown flag and an unknown name in the file."""
        environ = os.environ if environ is None else environ
        warnings = list(_unknown_variables(environ))
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        called: dict[str, str] = {}  # how the user called it, for errors
        file, contents = _read_file(environ)
        for name, value in contents.items():
            values[name], sources[name], called[name] = value, f"file {file}", f"{name} in {file}"
        for name in cls.model_fields:
            for variable in variables(name):
                if environ.get(variable, "").strip():
                    values[name], sources[name] = environ[variable].strip(), f"environment {variable}"
                    called[name] = variable
                    break
        for name, value in (flags or {}).items():
            if name not in cls.model_fields:
                raise SettingsError(f"there is no setting {name}{_nearest(name, cls.model_fields)}")
            if value is not None:
                values[name], sources[name] = value, "flag"
                called[name] = "--" + name.replace("_", "-")
        for name in ("data_dir", "models_dir", "metrics_dir"):
            if name in values:
                values[name] = Path(values[name]).expanduser()
        try:
            settings = cls(**values)
        except ValidationError as error:
            raise _refusal(error, values, called) from None
        settings, raised = settings._with_floors(called)
        settings._warnings = (*warnings, *raised.values())
        settings._sources = sources | dict.fromkeys(raised, "raised")
        return settings

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user: names that no setting has, values that were raised to their floor."""
        return self._warnings

    @property
    def models_path(self) -> Path:
        """Where models are kept: models_dir, or its place in data_dir."""
        return self.models_dir or self.data_dir / "models"

    def explained(self) -> list[Explained]:
        """Each setting with its value, its source and what it takes, for `instep config`."""
        lines = []
        for name, field in type(self).model_fields.items():
            takes = _takes(field)
            lines.append(
                Explained(
                    name=name,
                    variable=variables(name)[0],
                    value=_shown(getattr(self, name)),
                    source=self._sources.get(name, "default"),
                    takes=takes.words,
                    description=field.description or "",
                )
            )
        return lines

    def environment(self) -> dict[str, str]:
        """The environment in which another process of instep has these settings."""
        mine = {variable for name in type(self).model_fields for variable in variables(name)}
        made = {name: value for name, value in os.environ.items() if name not in mine}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                made[variables(name)[0]] = value.get_secret_value()
            elif value is not None and value != ():
                made[variables(name)[0]] = str(value) if isinstance(value, Path) else _written(value)
        return made

    def _with_floors(self, called: Mapping[str, str]) -> tuple[Self, dict[str, str]]:
        """The settings with values raised to their floors, and for each such setting the sentence that says why."""
        changed: dict[str, Any] = {}
        why: dict[str, str] = {}
        if self.batch_size < 1:
            changed["batch_size"] = 1
            why["batch_size"] = (
                f"{called['batch_size']} is {self.batch_size}: 1 is used, because a run that claims nothing never ends"
            )
        if self.lease_seconds < self.call_timeout_seconds:
            changed["lease_seconds"] = self.call_timeout_seconds
            why["lease_seconds"] = (
                f"{called.get('lease_seconds', 'lease_seconds')} is {self.lease_seconds:g}: "
                f"{self.call_timeout_seconds:g} is used, because a wave may take that long "
                f"({called.get('call_timeout_seconds', 'call_timeout_seconds')}) and would be claimed again meanwhile"
            )
        return self.model_copy(update=changed), why


def variables(name: str) -> tuple[str, ...]:
    """The environment variables of a setting, the first to be looked at first."""
    takes = _takes(Settings.model_fields[name])
    plain = (name.upper(),) if name.startswith("embed_") else ()
    return (PREFIX + name.upper(), *plain, *takes.also)


def masked(text: str) -> str:
    """`text` with the passwords of its addresses and connection strings replaced."""
    text = re.sub(
        r"(\w://[^:/?#\s@]*:)\S*@", rf"\1{MASK}@", text
    )  # up to the last @: one may stand in a password
    return re.sub(
        r"(?i)\b((?:ssl)?password|passwd|api_?key|token|secret)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)",
        rf"\1\2{MASK}",
        text,
    )


def _takes(field: FieldInfo) -> Takes:
    return next(item for item in field.metadata if isinstance(item, Takes))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return MASK if isinstance(value, SecretStr) else masked(_written(value))


def _written(value: Any) -> str:
    """As a variable of the environment says it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _read_file(environ: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    named = environ.get(CONFIG_VARIABLE, "").strip()
    file = Path(named).expanduser() if named else Path(CONFIG_FILE)
    try:
        contents = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        if named:
            raise SettingsError(f"{CONFIG_VARIABLE} is {named}: there is no such file") from None
        return file, {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{file} cannot be read as TOML: {error}") from None
    for name in contents:
        if name not in Settings.model_fields:
            raise SettingsError(
                f"{file} has {name}, which is no setting{_nearest(name, Settings.model_fields)}",
                hint="`instep config` lists all settings",
            )
    for name in ("data_dir", "models_dir", "metrics_dir"):  # relative to the file that says so
        if isinstance(contents.get(name), str):
            contents[name] = file.resolve().parent / Path(contents[name]).expanduser()
    return file, {name: value for name, value in contents.items() if value != ""}


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    known = {variable for name in Settings.model_fields for variable in variables(name)} | _NOT_SETTINGS
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            yield f"{variable} is set, but no setting has that name{_nearest(variable, known)}"


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {close[0]}?" if close else ""


def _refusal(error: ValidationError, values: Mapping[str, Any], called: Mapping[str, str]) -> SettingsError:
    sentences = []
    for problem in error.errors():
        name = str(problem["loc"][0])
        takes = _takes(Settings.model_fields[name])
        got = MASK if takes.secret else masked(repr(values[name]))
        sentences.append(f"{called[name]} is {got}: it takes {takes.words}")
    return SettingsError("; ".join(dict.fromkeys(sentences)), hint="`instep config` lists all settings")
