"""One writer as a process: `python writer.py DSN SEED SECONDS TRUNCATE_EVERY`. Writes the same rows as all others, in
single statements and in transactions, some of which are rolled back; prints what it did as JSON.

It locks rows in key order, so that a deadlock cannot be its own. Texts are words that no stemmer changes.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter

import psycopg

KEYS = 200
SPAN = 12

UPSERT = (
    "insert into articles (id, title) select g, 'k' || g || ' v' || %(value)s from generate_series(%(low)s::int, %(high)s::int) g"
    " on conflict (id) do update set title = excluded.title, published = true"
)
LOCKED = "with r as materialized (select id from articles where id between %(low)s and %(high)s order by id for update)"
UPDATE = f"{LOCKED} update articles a set title = 'k' || a.id || ' v' || %(value)s from r where a.id = r.id"
HIDE = f"{LOCKED} update articles a set published = not published from r where a.id = r.id"
UNWATCHED = f"{LOCKED} update articles a set other = other + 1 from r where a.id = r.id"
DELETE = f"{LOCKED} delete from articles a using r where a.id = r.id"
SINGLE = {
    "upsert": (UPSERT, 5),
    "update": (UPDATE, 6),
    "hide": (HIDE, 1),
    "unwatched": (UNWATCHED, 1),
    "delete": (DELETE, 2),
}


def work(dsn: str, seed: int, seconds: float, truncate_every: float) -> dict[str, object]:
    chosen, done, longest = random.Random(seed), Counter[str](), 0.0
    end, truncated = time.monotonic() + seconds, time.monotonic()
    names, weights = list(SINGLE), [weight for _, weight in SINGLE.values()]

    def given() -> dict[str, int]:
        low = chosen.randint(1, KEYS)
        return {"low": low, "high": low + chosen.randint(0, SPAN), "value": chosen.randint(1, 1_000_000)}

    with psycopg.connect(dsn, autocommit=True, application_name="writer") as conn:
        while time.monotonic() < end:
            began = time.monotonic()
            if truncate_every and began - truncated > truncate_every:
                conn.execute(
                    "set application_name = 'truncating writer'; truncate articles; set application_name = 'writer'"
                )
                truncated = time.monotonic()
                done["truncate"] += 1
            elif chosen.random() < 0.2:
                parts = sorted((given() for _ in range(2)), key=lambda values: values["low"])
                if parts[0]["high"] >= parts[1]["low"]:
                    continue  # the second would go back in the order of keys
                with conn.transaction(force_rollback=chosen.random() < 0.3):
                    for values in parts:
                        conn.execute(SINGLE[chosen.choice(names)][0], values)
                done["transaction"] += 1
            else:
                name = chosen.choices(names, weights)[0]
                conn.execute(SINGLE[name][0], given())
                done[name] += 1
            longest = max(longest, time.monotonic() - began)
    return {"done": done, "longest": longest}


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))))
