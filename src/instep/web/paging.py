"""Pages of lists: by offset up to a window, and by a cursor as far as there is anything.

A cursor is the place where a page ended, so it costs the same everywhere and misses nothing that stays where it is;
callers treat it as opaque.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Depends, Query

from instep.errors import Refused
from instep.web.problems import Problem

WINDOW = 10_000
MOST = 1_000  # of one page

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page:
    limit: int
    offset: int
    cursor: str | None

    def place(self) -> list[Any] | None:
        """What `next_cursor` was made from; None for the first page. Raises Refused for what is no cursor of ours."""
        if self.cursor is None:
            return None
        try:
            place = orjson.loads(urlsafe_b64decode(self.cursor.encode("ascii") + b"=="))
        except (ValueError, BinasciiError) as error:
            raise Refused("this is no cursor", hint="take next_cursor as the page before gave it") from error
        if not isinstance(place, list):
            raise Refused("this is no cursor", hint="take next_cursor as the page before gave it")
        return place


def cursor(place: Sequence[Any]) -> str:
    return urlsafe_b64encode(orjson.dumps(list(place), default=str)).decode().rstrip("=")


def paged(
    page: Page, rows: Sequence[Row], shown: Callable[[Row], Any], place: Callable[[Row], Sequence[Any]]
) -> tuple[list[Any], str | None]:
    """A page as it is shown, and the cursor to the next; `rows` were read with one more than the limit."""
    kept = rows[: page.limit]
    return [shown(row) for row in kept], cursor(place(kept[-1])) if len(rows) > page.limit else None


def window(limit: int, offset: int) -> None:
    """Raises Problem for a page beyond what an offset reaches."""
    if limit + offset > WINDOW:
        raise Problem(
            "beyond-window",
            f"limit and offset together are at most {WINDOW:,}, not {limit + offset:,}",
            "go on from page to page with `cursor`: the answer's next_cursor leads to the next",
        )


def wanted(
    limit: Annotated[int, Query(ge=1, le=MOST, description="how many")] = 100,
    offset: Annotated[
        int, Query(ge=0, description="how many to leave out first; with limit at most 10,000")
    ] = 0,
    cursor: Annotated[
        str | None,
        Query(max_length=4_000, description="next_cursor of the page before, instead of an offset"),
    ] = None,
) -> Page:
    window(limit, offset)
    if cursor is not None and offset:
        raise Refused("offset and cursor exclude each other", hint="leave the offset out")
    return Page(limit, offset, cursor)


Wanted = Annotated[Page, Depends(wanted)]
