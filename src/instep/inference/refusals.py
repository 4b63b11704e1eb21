"""What a model server's refusal means: too many texts, too much text, or a text it does not want.

Pure functions over a status and the server's words. Guarded by unit/test_inference_refusals.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from instep.errors import Permanent

QUOTED = 200  # characters of a server's answer that go into a message
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\s]+")
_SIZE_STATUSES = frozenset({400, 413, 422})
_BATCH = re.compile(
    r"(?:maximum allowed batch size|max(?:imum)? (?:batch size|array length|number of inputs))"
    r"(?: is| of|:)? (\d+)",
    re.I,
)
_LIMIT = re.compile(
    r"(?:less than|at most|up to|limit(?: is| of)?|max(?:imum)?(?: context length)?(?: is| of)?):? (\d+) tokens",
    re.I,
)
_GIVEN = re.compile(r"(?:given:?|requested|resulted in|has|got) (\d+)(?: tokens)?", re.I)
_LARGE = re.compile(
    r"too (?:large|long|big|many (?:tokens|inputs|texts))|context length|tokens per request|exceeds? (?:the )?max"
    r"|(?:less than|at most|max(?:imum)?) \d+ tokens|input length exceeds",
    re.I,
)


class Refusal(Permanent):
    """The server answered 4xx. It is handled where it is about size, else it is the input's permanent error."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f'server answered {status} "{words}"' if words else f"server answered {status}")
        self.status = status
        self.words = words


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A request or a text is over the server's size. None: the server named no figure."""

    batch: int | None = None  # texts that one request may have
    tokens: int | None = None  # tokens that are allowed
    given: int | None = None  # tokens that the server counted


def too_large(refusal: Refusal) -> TooLarge | None:
    """The refusal's figures if it is about size, else None. TEI says 413 or 422, others 400 or 413."""
    if refusal.status not in _SIZE_STATUSES:
        return None
    if batch := _BATCH.search(refusal.words):
        return TooLarge(batch=max(1, int(batch[1])))
    if refusal.status != 413 and not _LARGE.search(refusal.words):
        return None
    limit, given = _LIMIT.search(refusal.words), _GIVEN.search(refusal.words)
    return TooLarge(tokens=int(limit[1]) if limit else None, given=int(given[1]) if given else None)


def cut_length(length: int, size: TooLarge, accepted: int | None) -> int:
    """Characters to keep of a refused text of `length`: to the server's limit if it named one, else half;
    at once down to what was `accepted` of an earlier refused text."""
    if size.tokens and size.given and size.given > size.tokens:
        return min(length - 1, max(1, int(length * size.tokens / size.given * 0.95)))
    halved = length // 2
    if size.tokens:  # no text has more than a handful of characters for each token
        halved = min(halved, size.tokens * 6)
    return halved if accepted is None else min(halved, accepted)


def server_words(body: bytes, secrets: Sequence[str] = ()) -> str:
    """The error text of a server's answer: one clean line of at most 200 characters without our secrets."""
    text = body[:20_000].decode("utf-8", "replace")
    try:
        answer = json.loads(text)
    except ValueError:
        answer = text
    for _ in range(3):  # {"error": {"message": …}}, {"detail": [{"msg": …}]}
        if isinstance(answer, list) and answer and isinstance(answer[0], dict):
            answer = answer[0]
        if isinstance(answer, dict):
            answer = next((answer[k] for k in ("error", "message", "detail", "msg") if answer.get(k)), text)
    return clean(answer if isinstance(answer, str) else text, secrets)


def clean(text: str, secrets: Sequence[str] = ()) -> str:
    """One line for a message: control characters (NUL among them: it kills a write) become spaces."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    text = _CONTROL.sub(" ", text).strip()
    return text if len(text) <= QUOTED else text[: QUOTED - 1] + "…"


def unencodable(texts: Sequence[str]) -> dict[int, Permanent]:
    """Texts that are no Unicode (a lone surrogate): no server and no tokenizer takes them."""
    failures: dict[int, Permanent] = {}
    for index, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            failures[index] = Permanent(f"the text holds a lone surrogate at character {error.start}")
    return failures
