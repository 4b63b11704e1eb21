"""Answers as the OpenAPI description shows them."""

from __future__ import annotations

from typing import Any

STATUS: dict[str, Any] = {
    "name": "articles.embed",
    "state": "catching up",
    "waiting": 1200,
    "leased": 500,
    "dead": 1,
    "oldest_wait_seconds": 12.3,
    "unabsorbed": 0,
    "depth": 1700,
    "coverage": 0.973,
    "worked_last_hour": 61_300,
    "target": "all-MiniLM-L6-v2-256t",
    "problem": None,
    "last_run": {
        "outcome": "running",
        "detail": "",
        "seconds_ago": 0.4,
        "counters": {"enqueued": 63000, "indexed": 61300, "removed": 0},
    },
    "as_of": "2026-07-01T12:00:00+00:00",
}
RUN: dict[str, Any] = {
    "id": 17,
    "started_at": "2026-07-01T11:58:00+00:00",
    "finished_at": "2026-07-01T12:00:00+00:00",
    "seconds": 120.0,
    "outcome": "ok",
    "detail": "",
    "counters": {"enqueued": 63000, "indexed": 63000, "removed": 0},
}
STARTED: dict[str, Any] = {
    "name": "articles.embed",
    "started_at": "2026-07-01T12:00:00+00:00",
    "state": "running",
    "exit_code": None,
    "said": "",
}
POINT: dict[str, Any] = {
    "at": "2026-07-01T12:00:00+00:00",
    "seconds": 60,
    "depth": 1700,
    "worked": 4100,
    "dead": 1,
    "oldest_wait_seconds": 12.3,
}
ENTRY: dict[str, Any] = {
    "key": 4711,
    "target": "all-MiniLM-L6-v2-256t",
    "state": "parked",
    "generation": 1,
    "claims": 0,
    "attempts": 1,
    "enqueued_at": "2026-07-01T11:59:00+00:00",
    "error_kind": "error",
    "last_error": "server answered 500",
}
KIND: dict[str, Any] = {
    "name": "articles.embed",
    "kind": "input refused",
    "count": 1,
    "oldest": "2026-07-01T11:00:00+00:00",
    "example": {"key": 4711, "error": "server answered 400"},
}
LETTER: dict[str, Any] = {
    "name": "articles.embed",
    "key": 4711,
    "target": "all-MiniLM-L6-v2-256t",
    "kind": "input refused",
    "error": "server answered 400",
    "attempts": 1,
    "failed_at": "2026-07-01T11:00:00+00:00",
    "discarded_at": None,
    "discard_reason": None,
}
EXPLAINED: dict[str, Any] = {
    "name": "articles.embed",
    "key": 4711,
    "found": True,
    "eligible": True,
    "reasons": ["the condition is met: published"],
    "content_hash": "9f86d081884c7d65",
    "stamps": [],
    "entry": ENTRY,
    "entries": [ENTRY],
    "outputs": {},
    "next": "it is tried again in 20 s, attempt 2 of 3",
}
SEARCH: dict[str, Any] = {
    "results": [
        {
            "key": 4711,
            "score": 0.98,
            "text": "How do I rotate a key? Make a new one, then revoke the old one.",
            "highlights": [[9, 15], [18, 21]],
            "legs": {"dense": 1, "lexical": 2},
            "chunk": {"ordinal": 0, "start": 0, "end": 63},
            "fields": {"section": "help"},
        }
    ],
    "total_about": 1,
    "facets": {"section": [{"value": "help", "count": 1}]},
    "semantic": "ok",
    "legs": ["dense", "lexical"],
    "stale": 0,
    "seconds": 0.0123,
    "notes": [],
    "coverage": 1.0,
    "next_cursor": None,
}
KEY: dict[str, Any] = {
    "id": "instep_0f1e2d3c4b5a",
    "name": "the shop",
    "role": "reader",
    "tables": ["articles"],
    "created_at": "2026-07-01T12:00:00+00:00",
    "used_at": None,
    "revoked_at": None,
}
HEALTH: dict[str, Any] = {
    "status": "ok",
    "database": "ok",
    "semantic": "configured",
    "as_of": "2026-07-01T12:00:00+00:00",
    "queues": [
        {
            "name": "articles.embed",
            "state": "in step",
            "pending": 0,
            "running": 0,
            "failed_24h": 0,
            "oldest_running_seconds": None,
            "stuck_after_seconds": 900,
        }
    ],
}
