"""One HTTP request to a model server, with retries, and what each end of it means.

| what happened | tried again | raised |
| --- | --- | --- |
| refused, reset, broken off, timed out, 408, 424, 425, 429, 5xx | yes, with back-off | Outage |
| 401, 403 | no | Configuration naming the API key |
| 404, 405, a redirect, no HTTP, an address that is none | no | Configuration naming the address or the model |
| other 4xx | no | Refusal (a Permanent): the caller splits what is too large |

Guarded row by row by unit/test_inference_failures.py, over real HTTP. Secrets never get into a message. The loop is our
own: six lines on the hot path, that see Retry-After and whose pauses a test can replace (stamina's cannot be).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime

import aiohttp
from yarl import URL

from instep.clock import SYSTEM, Clock
from instep.errors import Configuration, Outage
from instep.inference.limit import Limit, Slot
from instep.inference.refusals import Refusal, clean, server_words

TRIES = 5
LONGEST_PAUSE = 60.0  # seconds; a server that asks for a longer one is out, and the run says so
LONGEST_PATIENCE = 300.0  # seconds of pauses that one request makes because it was asked to, beyond its tries
_AGAIN = frozenset({408, 424, 425, 429})  # 424: TEI's word for a failed inference
_SECRET_NAME = "INSTEP_EMBED_API_KEY"
_URL_NAME = "INSTEP_EMBED_URL"
_MODEL_NAME = "INSTEP_EMBED_MODEL"

Sleep = Callable[[float], Awaitable[object]]


class _AgainError(Exception):
    """This try failed, another may not."""

    def __init__(self, what: str, retry_after: float | None = None) -> None:
        super().__init__(what)
        self.retry_after = retry_after


def is_local(url: str) -> bool:
    """True if texts sent to `url` stay on this machine."""
    host = (URL(url).host or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def http_url(url: str) -> URL:
    """A checked http(s) address, or Configuration."""
    try:
        parsed = URL(url.strip())
        good = parsed.scheme in ("http", "https") and bool(parsed.host)
    except ValueError:
        good = False
    if not good:
        raise Configuration(
            f"{_URL_NAME} is no address: {clean(_public(url))}",
            setting=_URL_NAME,
            hint=f"{_URL_NAME} takes an address such as http://127.0.0.1:8080",
        )
    return parsed


def public_address(url: URL) -> str:
    """An address without what may be secret."""
    return str(url.with_user(None).with_query(None).with_fragment(None))


class Transport:
    """POSTs bytes to one server and gives back the bytes of a 2xx answer."""

    def __init__(
        self,
        url: URL,
        *,
        limit: Limit,
        api_key: str | None = None,
        request_timeout: float = 60.0,
        tries: int = TRIES,
        sleep: Sleep = asyncio.sleep,
        clock: Clock = SYSTEM,
    ) -> None:
        self.url = url
        self.address = public_address(url)
        self.limit = limit
        self._secrets = tuple(secret for secret in (api_key, url.password) if secret)
        self._headers = {"content-type": "application/json", "user-agent": "instep"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout = aiohttp.ClientTimeout(total=request_timeout or None)
        self._tries = max(1, tries)
        self._sleep = sleep
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, url: URL, body: bytes, slot: Slot, *, tries: int | None = None, patient: bool = False
    ) -> bytes:
        """The body of a 2xx answer. Cancelled, it ends at once, pauses included. The caller holds `slot`.

        `patient`: a pause that the server asks for uses up no try, for it lives and says when, until these pauses
        come to LONGEST_PATIENCE."""
        failed, tried, waited = 0, 0, 0.0
        while True:
            began = self._clock.monotonic()
            try:
                answer = await self._once("POST", url, body)
            except _AgainError as failure:
                asked, tried = failure.retry_after, tried + 1
                slot.refused(asked)
                if patient and asked and waited + asked <= LONGEST_PATIENCE:
                    waited += asked
                else:
                    failed += 1
                if failed == (tries or self._tries) or (asked is not None and asked > LONGEST_PAUSE):
                    raise Outage(
                        f"the model server at {self.address} {failure} ({tried} tries)",
                        retry_after=asked,
                        hint=f"start it, or set {_URL_NAME}" if "connect" in str(failure) else None,
                    ) from None
                await self._sleep(self.pause(max(failed, 1), asked))
            else:
                slot.answered(self._clock.monotonic() - began)
                return answer

    async def get(self, url: URL) -> bytes | None:
        """One try at an optional page: its body, or None where the server answers anything but 2xx."""
        try:
            return await self._once("GET", url, None)
        except (Configuration, Refusal):
            return None
        except _AgainError as failure:
            raise Outage(f"the model server at {self.address} {failure}") from None

    def pause(self, attempt: int, asked: float | None) -> float:
        """Seconds before the next try: 1, 2, 4, 8 with up to a quarter more, at least what the server asked."""
        backoff = 2.0 ** (attempt - 1) * self._clock.uniform(1.0, 1.25)
        return max(backoff, asked or 0.0)

    def wrong_shape(self, body: bytes) -> Configuration:
        """The error for an answer that is no embeddings answer; quotes its start."""
        return self._misconfigured(
            f"answered no embeddings but: {clean(body[:400].decode('utf-8', 'replace'), self._secrets) or '(nothing)'}",
            _URL_NAME,
            f"is {_URL_NAME} the address of an embeddings server of the kind INSTEP_EMBED_PROVIDER?",
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _once(self, method: str, url: URL, body: bytes | None) -> bytes:
        session = self._session or self._open()
        try:
            async with session.request(method, url, data=body, allow_redirects=False) as response:
                answer = await response.read()
                if 200 <= response.status < 300:
                    return answer
                raise self._meaning(response.status, response.headers, answer)
        except TimeoutError:
            raise _AgainError(f"gave no answer within {self._timeout.total or 0:g} s") from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError) as error:
            raise self._misconfigured(f"cannot be trusted: {self._clean(error)}", _URL_NAME) from None
        except aiohttp.ClientConnectorError as error:
            raise _AgainError(f"could not be connected to: {self._clean(error)}") from None
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
            raise _AgainError(f"broke off the connection: {self._clean(error)}") from None
        except aiohttp.ClientError as error:
            raise self._misconfigured(f"does not speak HTTP: {self._clean(error)}", _URL_NAME) from None

    def _meaning(self, status: int, headers: Mapping[str, str], answer: bytes) -> Exception:
        words = server_words(answer, self._secrets)
        said = f'answered {status} "{words}"' if words else f"answered {status}"
        if status >= 500 or status in _AGAIN:
            return _AgainError(said, self._retry_after(headers.get("retry-after")))
        if status in (401, 403):
            return self._misconfigured(said, _SECRET_NAME, f"check {_SECRET_NAME}")
        if status == 404 and "model" in words.lower():
            return self._misconfigured(said, _MODEL_NAME, f"is {_MODEL_NAME} a model that this server has?")
        if status in (404, 405) or status < 400:
            return self._misconfigured(said, _URL_NAME, f"check {_URL_NAME} and INSTEP_EMBED_PROVIDER")
        return Refusal(status, words)

    def _retry_after(self, value: str | None) -> float | None:
        """Seconds from a Retry-After of either form; None where there is none or it makes no sense."""
        if not value:
            return None
        try:
            seconds = float(value)
        except ValueError:
            try:
                seconds = (parsedate_to_datetime(value) - self._clock.now()).total_seconds()
            except (ValueError, TypeError):
                return None
        return max(0.0, seconds) if seconds < float("inf") else None

    def _misconfigured(self, what: str, setting: str, hint: str | None = None) -> Configuration:
        return Configuration(f"the model server at {self.address} {what}", setting=setting, hint=hint)

    def _clean(self, error: BaseException) -> str:
        return clean(str(error) or type(error).__name__, self._secrets)

    def _open(self) -> aiohttp.ClientSession:
        # the limit is the only bound on connections; a proxy never stands before this machine itself
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers=self._headers,
            timeout=self._timeout,
            trust_env=not is_local(str(self.url)),
            read_bufsize=2**20,
        )
        return self._session


def _public(url: str) -> str:
    """An address that could not be parsed, without what stands before an @."""
    return url.rsplit("@", 1)[-1].split("?", 1)[0]
