"""What an operator meets at night: another state folder, a full disk, refused files, and how the last run ended."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from faults.nightly import JOB
from support.cli_scene import Call
from support.nightly_scene import Place

from dpdist.core.errors import DataError, RefusedError
from dpdist.core.ledger import state_folder
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.jobs import job_file, last_run, status

DPDIST = [sys.executable, "-m", "dpdist"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the first command be one by hand, without the variable."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DPDIST_STATE_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path / "home" / ".local" / "state" / "dpdist"


def test_the_witness_of_a_run_by_hand_is_found_by_the_one_of_cron(
    place: Place, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.arrive("d1")
    place.run()
    place.arrive("d2")
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "cron"))
    told = place.refused("A witness of .* is in .*, perhaps the one of an earlier command")
    assert told.index("If it is a copy") < told.index("adopt") < told.index("export")  # which charges the whole budget
    cure = re.findall(r"export (DPDIST_STATE_HOME)=(\S+)$", told)
    assert cure == [("DPDIST_STATE_HOME", str(home))]
    monkeypatch.setenv(*cure[0])
    assert place.run().periods == 2


def test_the_witness_of_cron_is_found_by_a_run_by_hand(
    place: Place, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_folder, "_INSTALLED", tmp_path / "installed")
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "installed"))
    place.arrive("d1")
    place.run()
    monkeypatch.delenv("DPDIST_STATE_HOME")
    place.arrive("d2")
    assert f"export DPDIST_STATE_HOME={tmp_path / 'installed'}" in place.refused("the one of an earlier command")
    assert not home.exists() or not list((home / "witness").glob("*.json"))


def test_a_reason_is_told_once_however_many_periods_wait(
    place: Place, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.arrive("d1")
    place.run()
    place.arrive("d2", "d3", "d4")
    home.rename(tmp_path / "hidden")
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "cron"))
    assert place.refused("is missing").count("The witness of the ledger") == 1


def test_after_a_raise_a_run_says_the_budget_of_the_ledger(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.arrive("d1")
    place.run()
    assert "keeps the budget of epsilon 1, delta 1e-06" in capsys.readouterr().out
    place.ledger.raise_budget(PrivacyLoss.parse(4, "1e-5"))
    place.arrive("d2")
    place.run()
    assert "keeps the budget of epsilon 4, delta 1e-05" in capsys.readouterr().out


def test_status_and_a_dry_run_name_what_waits_and_what_is_refused(place: Place, call: Call) -> None:
    place.arrive("d2")
    place.run()
    place.arrive("d1", "d3")
    (place.incoming / "strange.csv").touch()
    with (place.incoming / "d2.npy").open("ab") as file:
        file.write(b"more")
    found = status.status_of(job_file.read_job(place.job))
    assert found.periods_waiting == ("d3",)
    preview = call("run", str(place.job), "--dry-run").out
    told = place.refused("came late|changed")
    for reason, words in zip(found.entries_refused, ("d2.npy changed", "d1.npy is late", "strange.csv"), strict=True):
        assert words in reason
        assert reason in told  # the run says the same
        assert reason in preview


def test_status_and_the_ledger_are_read_on_a_full_disk_and_nothing_is_charged(place: Place, call: Call) -> None:
    place.arrive("d1")
    place.run()
    place.arrive("d2")
    ledger = str(place.folder / "visits.ledger")
    for command in (["status", str(place.job)], ["ledger", "show", ledger], ["ledger", "verify", ledger]):
        # no file can grow
        full = subprocess.run(
            ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *DPDIST, *command], check=False, capture_output=True,
            text=True, timeout=120,
        )  # fmt: skip
        assert full.returncode == 0, full.stderr
        assert full.stdout == call(*command).out
    before = place.ledger.head
    full = subprocess.run(
        ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *DPDIST, "run", str(place.job)], check=False,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert full.returncode in {4, 5}, full.stderr
    assert place.ledger.head == before
    assert place.run().periods == 2


def test_a_log_of_the_ledger_that_is_not_merged_is_not_passed_over(place: Place) -> None:
    place.arrive("d1")
    place.run()
    log = place.folder / "visits.ledger" / "ledger.sqlite-wal"
    log.write_bytes(b"perhaps commitments")
    full = subprocess.run(
        ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *DPDIST, "status", str(place.job)], check=False,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert full.returncode == 5, full.stdout


def test_metrics_tell_how_the_last_run_ended_and_when_one_succeeded(
    place: Place, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((1000, 2000))
    own = SimpleNamespace(time=lambda: next(clock), strftime=time.strftime, localtime=time.localtime)
    monkeypatch.setattr(last_run, "time", own)
    file = place.folder / "dpdist.prom"

    def metrics() -> list[tuple[str, str]]:
        assert call("status", place.job, "--textfile", file).code == 0
        return re.findall(r"dpdist_(last_\w+)\{[^}]*\} (\S+)", file.read_text())

    assert metrics() == []
    place.arrive("d2")
    place.job.write_text(JOB)
    assert call("run", place.job).code == 0
    success = ("last_success_timestamp_seconds", "1000")
    assert metrics() == [("last_exit_code", "0"), ("last_exit_timestamp_seconds", "1000"), success]
    place.arrive("d1")
    assert call("run", place.job).code == RefusedError.exit_code
    assert metrics() == [("last_exit_code", "3"), ("last_exit_timestamp_seconds", "2000"), success]
    assert call("run", place.job, "--dry-run").code == 0  # no run
    assert metrics()[0] == ("last_exit_code", "3")
    assert "last run  exit code 3 at" in call("status", place.job).out


def test_ledger_show_names_periods_and_files(place: Place, call: Call) -> None:
    for number in range(1, 4):
        place.arrive(f"d{number}")
    place.run(JOB.replace("[release]", "[release]\ncontinual = 4"))
    shown = " ".join(call("ledger", "show", place.folder / "visits.ledger").out.split())
    assert f"replace-one; of d1 {place.published / 'd1.zarr'} " in shown
    assert f"replace-one; of 2 periods, d1 to d2 {place.published / 'd1--d2.zarr'} " in shown
    listed = call("ledger", "show", place.folder / "visits.ledger", "--json").json["releases"]
    assert {Path(each["path"]).name for each in listed} == {path.name for path in place.published.glob("*.zarr")}


def test_a_night_without_a_header_publishes_and_logs_no_row(place: Place) -> None:
    job = JOB.replace("[rows]", '[rows]\nheader = "yes"')
    (place.incoming / "d1.csv").write_text("47,81234.5,1\n1,2,3\n")
    told = place.refused("It may be a row", DataError, job)
    assert "81234" not in told
    assert not list(place.published.glob("*.zarr"))
    (place.incoming / "d1.csv").write_text("a,b,c\n1,2,3\n2,4,7\n")
    place.run()
    (place.incoming / "d2.csv").write_text("Ann,Berlin,x\n1,2,3\n2,4,6\n")
    told = place.refused("has other columns than earlier periods, which have a, b, c", DataError)
    assert "Berlin" not in told


def test_status_as_json_has_the_last_run(place: Place, call: Call) -> None:
    place.arrive("d1")
    assert call("run", place.job).code == 0
    assert call("status", place.job, "--json").json["last_run"]["exit_code"] == 0
