"""docs/peers-cases.md lists every case with its tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers_cases", ROOT / "scripts" / "peers_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "peers-cases.md").read_text("utf-8")
    assert page == script().markdown(), "run: python scripts/peers_cases.py > docs/peers-cases.md"


def test_each_case_has_a_test_or_a_reason() -> None:
    script_ = script()
    found = script_.collected()
    assert [case for case, tests in found.items() if not tests and case not in script_.WHY] == []
    assert set(script_.WHY) <= set(found), "a reason of a case that there is not"
    assert script_._answer("nothing", []) == script_.NONE
    assert script_.NONE not in script_.markdown()


def test_names_and_docstrings_are_understood() -> None:
    found = script().collected()
    assert "tests/postgres/test_peers_derived.py::test_c2_20_c2_30_an_output_that_a_dead_worker_held_is_free_when_its_hold_runs_out" in found[30]  # fmt: skip
    assert "tests/postgres/test_outbox.py::test_a_stale_holder_changes_nothing" in found[38], (
        "by its docstring"
    )
    assert "tests/unit/test_inference_failures.py::test_case_77_retry_after_is_honoured" in found[77]
