"""A queue worked one row at a time, by the fastest client that there is: pgbench, prepared statements, four clients.

Claim one entry with a token, remove it under that token, each a transaction of its own with asynchronous commit; no
content, no stamp. It works the outbox that `noop.create` filled.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import processes
from instep.database import embedded

CLIENTS = 4
SCRIPT = """\\set token random(1, 4000000000000000000)
update instep.outbox_items_noop set lease_until = now() + interval '900 s', token = :token, claims = claims + 1 where ctid = (select ctid from instep.outbox_items_noop where target = 'none' and failed_at is null and not_before is null and (lease_until is null or lease_until < now()) order by sort_key desc, key_1 desc limit 1 for update skip locked) returning key_1 \\gset
delete from instep.outbox_items_noop where key_1 = :key_1 and target = 'none' and token = :token;
"""
_RATE = re.compile(r"tps = ([\d.]+) \(without initial connection time\)")
_DONE = re.compile(r"number of transactions actually processed: (\d+)")


def command(dsn: str, script: Path, entries: int) -> list[str]:
    """`script` is written. Exactly `entries` of them are worked, so there must be more."""
    script.write_text(SCRIPT)
    return [
        str(embedded.program("pgbench")), "--no-vacuum", "--protocol=prepared", f"--client={CLIENTS}", "--jobs=1",
        f"--transactions={entries // CLIENTS}", f"--file={script}", dsn,
    ]  # fmt: skip


ENVIRONMENT = {"PGOPTIONS": "-c synchronous_commit=off"}


def read(out: str) -> tuple[int, float]:
    """Entries worked, and how many each second."""
    rate, done = _RATE.search(out), _DONE.search(out)
    if rate is None or done is None:
        raise processes.Failed(f"pgbench said nothing of its rate: {out[-500:]!r}")
    return int(done[1]), float(rate[1])
