"""The exception tree. The engine's classifier (`engine/failures.py`) reads these and nothing else.

An error says what was wrong and where (`str(error)`) and, where there is one, the next step (`hint`).
"""

from __future__ import annotations


class InstepError(Exception):
    """The root of everything that instep raises on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Refused(InstepError):
    """Bad usage or a request that instep declines before it has changed anything: exit code 2."""


class Unknown(Refused):
    """A name or key that nothing here has: over HTTP, 404."""


class SettingsError(Refused):
    """A setting that cannot be used: the message names the variable, what it got and what it takes."""


class Permanent(InstepError):
    """This input fails the same way each time: tried alone once more, then a dead letter of `kind`."""

    def __init__(self, message: str, *, kind: str = "input refused", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


class Retryable(InstepError):
    """This input failed now and may succeed later: it costs an attempt and waits, with back-off."""

    def __init__(self, message: str, *, kind: str = "error", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


class Outage(InstepError):
    """A backend is down or throttles after all retries. No attempt is counted if a probe fails too."""

    def __init__(self, message: str, *, retry_after: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class Configuration(InstepError):
    """The same deterministic error for everything (401, 404, wrong dimension): names the setting to mend."""

    def __init__(self, message: str, *, setting: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.setting = setting
