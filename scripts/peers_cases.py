"""docs/peers-cases.md, written from the tests' own names: `python scripts/peers_cases.py > docs/peers-cases.md`.

A test says which case it is of by its name (`test_c5_54_…`; several: `test_c5_54_c5_56_…`; `test_case_77_…` is of C7) or
by "PEERS C2 21" in its docstring. What no name says stands in MORE and WHY below. unit/test_peers_cases.py says when the
file is not up to date, and that each case has a test or a reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TITLES = {
    1: "Lost updates, stale or orphan derived rows",
    2: "Stuck work after a crash",
    3: "Double processing, no fencing",
    4: "Dedup and transactions",
    5: "Slow claims, bloat, locks",
    6: "Connections, shutdown, asyncio",
    7: "Providers and bad inputs",
}

# Number (of the public collection of bug reports) → section, where it was reported, what went wrong there.
CASES: dict[int, tuple[int, str, str]] = {
    1: (1, "palaia#336", "a row edited while its old text is embedded ends with the old vector"),
    2: (1, "rembric#257", "a side column that changed during the await is written back old"),
    3: (1, "pgai#878", "every update embeds again, whatever column changed"),
    4: (1, "pgedge-vectorizer#24", "DELETE and TRUNCATE leave chunks, vectors and queue rows"),
    5: (1, "pgai PR#485", "a user's DELETE waits for the provider, and leaves an orphan"),
    6: (1, "pgedge-vectorizer#12", "an update leaves the old embeddings beside the new"),
    7: (1, "langchain#22135", "cleanup in the batch loop deletes siblings of later batches"),
    9: (1, "langchain PR#30520", "an empty or failed scan deletes everything"),
    10: (1, "antfly#325", "a trailing delete never wakes the worker"),
    11: (1, "antfly#442", "rows that cannot be embedded keep progress below 100%"),
    13: (1, "pgai#557", "rows that logical replication applies are not seen"),
    14: (1, "ormah#32", "a swallowed write failure leaves the old vector, which a check for presence misses"),
    15: (1, "SYNCLE PR#32", "a failed delete is tried again as an upsert"),
    17: (2, "procrastinate#1518", "pruning the dead worker's row hides its jobs; a pod of the same name keeps them alive"),
    18: (2, "procrastinate#740", "no rescue without configuration"),
    19: (2, "geolens#624", "a job is running for three weeks, and nobody sees it"),
    20: (2, "pgqueuer#475", "a dead job counts against its own concurrency limit"),
    21: (2, "pgqueuer#630", "SIGTERM leaves rows picked"),
    22: (2, "graphile-worker#204", "a crash locks a job for four hours; long jobs run twice"),
    23: (2, "graphile-worker#254", "a crash on the last attempt leaves limbo"),
    25: (2, "oban#862", "a node's name is used again and hides its orphans"),
    26: (2, "oban#424", "a dead claim's unique key blocks new work"),
    27: (2, "dbos-transact-py#546", "one error leaves the rest of the batch pending"),
    28: (2, "dbos-transact-py#716", "PostgreSQL restarts during recovery; rows are stranded"),
    30: (2, "dbos-transact-py#805", "recovered work blocks a queue of concurrency one"),
    32: (2, "hatchet#4494", "the queue row is gone before the assignment is confirmed"),
    33: (2, "solid_queue#542", "heartbeat errors never stop the zombie"),
    34: (2, "hatchet#1796", "a worker is deaf, but heartbeating"),
    35: (3, "solid_queue#589", "a job is both finished and failed"),
    37: (3, "aegra PR#547", "the owner is a worker's name, so a stalled attempt acts on its successor's claim"),
    38: (3, "absurd PR#144", "mutations are not fenced by the claim's owner"),
    39: (3, "dbos-transact-py#742", "two rescuers with the same list act both"),
    40: (3, "pgqueuer#323", "the heartbeat comes later than the retry timer"),
    41: (3, "pgqueuer#674", "the lease cannot be set"),
    42: (3, "oban#1141", "a job longer than its lease runs twice"),
    43: (3, "hatchet#1022", "executed twice after a timeout"),
    44: (3, "river PR#350", "the rescuer ignores the timeout that holds"),
    45: (3, "chancy#51", "the unique key lets a second copy run beside the first"),
    47: (4, "procrastinate#1432", "a duplicate aborts the caller's transaction"),
    48: (4, "river PR#619", "a retry conflicts with its twin"),
    49: (4, "procrastinate#1599", "many workers on one key: unique violations"),
    51: (4, "OCA/queue PR#41", "the failure is recorded in the failed transaction"),
    53: (5, "procrastinate#393", "sequential scans come back with a feature"),
    54: (5, "graphile-worker#240", "dead and future rows are walked over by each claim"),
    55: (5, "graphile-worker#121", "writers queue up behind a row that is being worked"),
    56: (5, "river#785", "many scheduled rows make the scheduler slow"),
    57: (5, "river#59", "autovacuum is starved, the queue slows"),
    58: (5, "kestra#2600", "SKIP LOCKED over a deep range"),
    59: (5, "PgQue#61", "an old snapshot held for an hour"),
    60: (5, "awa#246", "lock waits on one hot counter row"),
    61: (5, "hatchet#2538", "polling eats CPU when idle"),
    62: (5, "river PR#301", "NOTIFY at commit serialises writers"),
    64: (5, "oban#1373", "migrations lock the table"),
    65: (5, "absurd 0.1.0", "mutations lock in different orders: deadlocks"),
    66: (6, "procrastinate#1513", "a half-open connection swallows the cancellation"),
    67: (6, "procrastinate#1591", "a run-once worker hangs at shutdown"),
    68: (6, "river PR#1251", "a stalled statement halts the producer"),
    69: (6, "river PR#1290", "cancelled work waits for rescue"),
    70: (6, "graphile-worker 0.17", "stops silently after enough database errors"),
    72: (6, "good_job#269", "session features break behind PgBouncer in transaction mode"),
    73: (6, "awa PR#408", "a cancelled migration leaves a session lock behind"),
    75: (7, "pgai PR#442", "one poison chunk rolls back its whole batch for ever"),
    76: (7, "pgai#481", "requests over the provider's limit of tokens"),
    77: (7, "pgedge-vectorizer#69", "429 counts as a failure; one provider stalls all"),
    78: (7, "ollama#17878", "zeros, NaN, wrong counts and dimensions are stored"),
    79: (7, "awa#85", "NUL kills the write, retried for ever; dimensions and models mix"),
}  # fmt: skip
EXTRA: dict[str, str] = {
    "clocks": "the lease is judged by the worker's clock (mlflow PR#25199)",
    "zones": "time zones and the hour that comes twice (graphile#334)",
    "ids": "ids past 2^31 (graphile-worker 0.17.3)",
    "dropped": "a dropped column breaks the view (pgai PR#214)",
    "trickle": "the index is never built while the queue is never empty (pgai#791)",
    "retries": "Retry-After ignores the limit of attempts (awa)",
    "order": "the claim's order starves old entries (pgedge#49)",
    "hot": "deterministic failures are retried hot (pgedge#51)",
    "later": "what is enabled after the start is never served (pgedge#10, #23)",
    "wal": "an idle slot holds WAL (Debezium DBZ-892)",
}

MORE: dict[int | str, tuple[str, ...]] = {
    9: ("test_an_empty_source_is_no_failed_scan",),
    13: ("test_what_a_disabled_trigger_missed_is_found_by_the_command_that_is_printed",),
    17: ("test_a_stale_holder_changes_nothing",),
    18: ("test_leases_are_judged_by_the_database",),
    19: ("test_a_planted_fault_is_reported_and_mended", "test_status_search_explain_dead_and_url"),
    22: ("test_leases_of_waves_in_hand_are_renewed",),
    23: ("test_five_claims_without_a_result_then_alone_then_lost",),
    25: ("test_a_stale_holder_changes_nothing",),
    26: ("test_a_leased_entry_keeps_lease_and_token", "test_an_entry_with_a_token_is_counted_up"),
    27: ("test_one_bad_item_fails_alone", "test_a_defect_in_one_item_does_not_stop_the_others"),
    32: ("test_output_stamp_and_removal_are_one", "test_losing_the_queue_loses_nothing"),
    39: ("test_two_claimers_never_share_an_entry",),
    40: ("test_leases_of_waves_in_hand_are_renewed",),
    41: ("test_names_that_are_accepted", "test_every_setting_says_what_it_is_and_takes"),
    43: ("test_a_wave_that_runs_out_of_time_is_abandoned_uncounted", "test_a_parked_entry_waits_as_long_as_its_lease_would_have_lasted"),
    44: ("test_a_lease_is_at_least_the_waves_budget_and_says_why", "test_a_lease_shorter_than_the_wave"),
    45: ("test_an_entry_absorbed_into_meanwhile_is_given_back",),
    53: ("test_the_plan_reads_no_table_as_a_whole",),
    55: ("test_the_users_writes_never_wait_for_a_worker",),
    57: ("test_a_planted_fault_is_reported_and_mended",),
    59: ("test_an_open_transaction_is_named_and_ended",),
    64: ("test_it_does_not_queue_behind_a_long_transaction_and_comes_again", "test_installing_waits_for_locks_in_short_tries"),
    70: ("test_follow_outlasts_an_outage", "test_a_worker_that_stays_outlasts_its_connections"),
    72: ("test_transaction_mode_is_found_and_led_past",),
    73: ("test_cancelled_in_the_middle_it_leaves_nothing",),
    "clocks": ("test_leases_are_judged_by_the_database", "test_a_clock_that_differs"),
    "zones": ("test_c7_extra_time_zones_and_the_hour_that_comes_twice",),
    "ids": ("test_c7_extra_ids_past_two_to_the_31",),
    "dropped": ("test_c7_extra_a_column_dropped_before_the_table_is_added", "test_dropped_and_generated_columns"),
    "trickle": ("test_trickle_does_not_postpone",),
    "retries": ("test_c7_extra_an_entry_that_is_throttled_for_ever_has_a_limit",),
    "order": ("test_one_claim_in_eight_takes_the_oldest",),
    "hot": ("test_a_deterministic_failure_is_dead_at_once", "test_c7_extra_a_deterministic_failure_is_not_retried_hot"),
    "later": ("test_c7_extra_a_table_that_is_added_under_a_worker_is_worked",),
}  # fmt: skip
WHY: dict[int | str, str] = {
    9: "An empty table is no failed scan: its outputs go. A scan that fails deletes nothing.",
    17: "There is no row of a worker: the owner is the random token of one claim.",
    18: "An expired lease is claimed like any entry: there is no reaper to configure.",
    20: "There is no limit on entries in work; an index outside PostgreSQL has one drainer.",
    25: "Names of machines and processes decide nothing: see 17.",
    30: "As 20.",
    60: "No counter row is kept: an absorb counts in the entries themselves.",
    62: "NOTIFY is not used (decision 0005).",
    "wal": "Does not apply: changes are captured by triggers, no replication slot is made.",
}

NONE = "none yet"
_NAMED = re.compile(r"(?<![a-z0-9])c([1-7])_(\d+)(?=_|$)")
_CASE = re.compile(r"(?<![a-z0-9])case_(\d+)(?=_|$)")
_SAID = re.compile(r"PEERS((?:[ ,:;]+(?:and )?(?:C[1-7] )?\d+)+)")


def tests() -> Iterator[tuple[str, str, set[int]]]:
    """Every test: its file, its name, and the cases that it says it is of."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                said = " ".join(found[1] for found in _SAID.finditer(ast.get_docstring(node) or ""))
                numbers = [found[2] for found in _NAMED.finditer(node.name)]
                numbers += _CASE.findall(node.name) + re.findall(r"(?<!C)\b(\d+)\b", said)
                yield file.relative_to(ROOT).as_posix(), node.name, {int(number) for number in numbers}


def collected() -> dict[int | str, list[str]]:
    """Case → its tests, as `file::name`."""
    found: dict[int | str, list[str]] = {case: [] for case in (*CASES, *EXTRA)}
    places: dict[str, str] = {}
    for file, name, numbers in tests():
        places.setdefault(name, file)
        for number in numbers:
            found[number].append(f"{file}::{name}")  # KeyError: no such case
    for case, names in MORE.items():
        found[case] += [f"{places[name]}::{name}" for name in names]  # KeyError: no such test
    return found


def markdown() -> str:
    found = collected()
    lines = [
        "# Bug reports of peers, and our tests of them",
        "",
        "Written by `python scripts/peers_cases.py > docs/peers-cases.md`: do not edit. Numbers are those of a collection of",
        "public bug reports of job queues and of systems that keep derived data; missing ones did not lend themselves to a test.",
    ]
    for section, title in TITLES.items():
        lines += [
            "",
            f"## C{section}. {title}",
            "",
            "| case | what went wrong there | our tests |",
            "| --- | --- | --- |",
        ]
        for number, (where, peer, what) in CASES.items():
            if where == section:
                lines.append(f"| {number} {peer} | {what} | {_answer(number, found[number])} |")
    lines += ["", "## Extra", "", "| case | our tests |", "| --- | --- |"]
    lines += [f"| {what} | {_answer(name, found[name])} |" for name, what in EXTRA.items()]
    return "\n".join(lines) + "\n"


def _answer(case: int | str, found: list[str]) -> str:
    parts = [WHY[case]] if case in WHY else []
    parts += [f"`{place.removeprefix('tests/')}`" for place in dict.fromkeys(found)]
    return " ".join(parts) or NONE


if __name__ == "__main__":
    sys.stdout.write(markdown())
