"""Doctor behind a real PgBouncer: found, its mode told by what it does, and led past it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_scene import CommandLine
from doctor_scene import Doctor

from pooler import PROGRAM, WHY_NOT, pgbouncer

pytestmark = [
    pytest.mark.xdist_group("doctor-server"),
    pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT),
    pytest.mark.session("the way to the server is what doctor is asked about"),
]


@pytest.fixture
def doctor(dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    environment = {"DATABASE_URL": dsn, "INSTEP_DATA_DIR": str(tmp_path), "NO_COLOR": "1"}
    return Doctor(CommandLine(environment, capsys))


def test_transaction_mode_is_found_and_led_past(doctor: Doctor, tmp_path: Path) -> None:
    with pgbouncer(doctor.line.dsn, tmp_path / "pooler") as pooled:
        doctor.line.environment["DATABASE_URL"] = pooled
        doctor.mended(
            "pooler",
            "DATABASE_URL leads through a pooler in transaction mode",
            "a pooler in transaction mode, and INSTEP_DIRECT_DATABASE_URL is not set",
        )
        assert [command.partition("=")[0] for command in doctor.executed] == [
            "export INSTEP_POOLER", "export INSTEP_DIRECT_DATABASE_URL",
        ]  # fmt: skip
        assert (
            "a pooler in transaction mode; INSTEP_DIRECT_DATABASE_URL leads past it"
            in doctor.ask("pooler").out
        )
        doctor.assert_content()


def test_doctor_leaves_no_setting_behind_in_a_poolers_sessions(doctor: Doctor, tmp_path: Path) -> None:
    with pgbouncer(doctor.line.dsn, tmp_path / "pooler", pool=1) as pooled:
        doctor.line.environment["DATABASE_URL"] = pooled
        settings = "select name, setting from pg_settings where source = 'session' order by 1"
        before = doctor.line.sql(settings)
        assert doctor.ask("pooler").code == 1
        assert doctor.line.sql(settings) == before


def test_session_mode_is_well_and_one_that_gives_no_second_connection_is_not_known(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    dsn = doctor.line.dsn
    with pgbouncer(dsn, tmp_path / "wide", mode="session") as pooled:
        doctor.line.environment["DATABASE_URL"] = pooled
        doctor.assert_content("pooler")
        assert "a pooler in session mode" in doctor.ask("pooler").out
    monkeypatch.setattr("instep.upkeep.doctor.pooler.SECONDS", 1.0)
    with pgbouncer(dsn, tmp_path / "narrow", pool=1, mode="session") as pooled:
        doctor.line.environment |= {"DATABASE_URL": pooled, "INSTEP_DIRECT_DATABASE_URL": dsn}
        seen = doctor.ask("pooler")
        assert seen.code == 3, seen
        assert "there is a pooler, and it gave no second connection to tell its mode by" in seen.out


def test_a_direct_address_that_is_none(doctor: Doctor, tmp_path: Path) -> None:
    dsn = doctor.line.dsn
    with pgbouncer(dsn, tmp_path / "pooler") as pooled:
        doctor.line.environment |= {"INSTEP_DIRECT_DATABASE_URL": pooled}
        doctor.mended("pooler", "INSTEP_DIRECT_DATABASE_URL leads through a pooler")


def test_a_pooler_that_is_not_there(doctor: Doctor) -> None:
    doctor.line.environment["INSTEP_POOLER"] = "true"
    doctor.mended("pooler", "INSTEP_POOLER is on, and no pooler is on the way", state="warn")
