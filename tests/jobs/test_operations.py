"""What would be spent is what is spent; where a job stands is told without touching it, and without data."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from faults.nightly import JOB
from support.cli_scene import Call

from dpdist.cli import cli
from dpdist.errors import RefusedError
from dpdist.jobs import job_file, status
from dpdist.jobs import run as job_runs
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.pipeline import budget
from dpdist.report.status import preview_words, status_words
from dpdist.runtime.cluster import Cluster

PLAIN = """
[rows]
path = "rows.zarr"
source = "table.npy"
budget_epsilon = 1.5

[release]
path = "release.zarr"
epsilon = 1
clip = 8.0
"""
PERIODS = JOB + "continual = 4\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path) -> Path:  # noqa: ARG001
    monkeypatch.setattr(Cluster, "named", False)
    (tmp_path / "incoming").mkdir()
    np.save(tmp_path / "table.npy", rows(0))
    return tmp_path


def rows(seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(size=(30, 3))


def job(folder: Path, text: str) -> job_file.Job:
    (folder / "job.toml").write_text(text)
    return job_file.read_job(folder / "job.toml")


def run(read: job_file.Job) -> None:
    job_runs.run(read, say=print)


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_dry_run_tells_what_a_run_then_spends_and_does_nothing(folder: Path) -> None:
    read = job(folder, PERIODS)
    np.save(folder / "incoming" / "d1.npy", rows(1))
    np.save(folder / "incoming" / "d2.npy", rows(2))
    before = everything(folder)
    found = status.preview(read)
    command = ["run", str(folder / "job.toml"), "--dry-run"]
    words = CliRunner().invoke(cli, command, catch_exceptions=False).output
    assert "Periods to close: d1, d2." in words
    assert "Nothing was read, charged or published." in words
    told = json.loads(CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False).stdout)
    assert told["new_periods"] == ["d1", "d2"]
    assert everything(folder) == before
    assert found.new_periods == ("d1", "d2")
    assert [of for of, _ in found.releases] == ["d1", "d2", "d1--d2"]
    assert found.fits
    assert found.charged == 0
    run(read)
    after = status.preview(read)
    assert (after.releases, after.new_periods) == ((), ())
    assert after.charged == len(Ledger(folder / "visits.ledger").charges) == 3
    assert after.left == found.left
    assert after.fits


def test_a_dry_run_of_a_plain_job_tells_when_it_would_be_refused(folder: Path) -> None:
    read = job(folder, PLAIN)
    found = status.preview(read)
    assert (found.fits, found.charged, found.left and found.left.pure_micro) == (True, 0, 500_000)
    assert not (folder / "rows.zarr").exists()
    run(read)
    assert status.preview(read).releases == ()
    again = job(folder, PLAIN.replace("clip = 8.0", "clip = 9.0").replace("release.zarr", "other.zarr"))
    found = status.preview(again)
    assert (found.fits, found.charged, found.left and found.left.pure_micro) == (False, 1, 500_000)
    assert "WOULD BE REFUSED" in preview_words(found)
    with pytest.raises(RefusedError, match="1 release is charged already"):
        run(again)


def test_status_tells_what_is_closed_waiting_and_unfinished(folder: Path) -> None:
    read = job(folder, PERIODS)
    assert status.status_of(read).releases == dict.fromkeys(list(State), 0)
    np.save(folder / "incoming" / "d1.npy", rows(1))
    run(read)
    np.save(folder / "incoming" / "d2.npy", rows(2))
    ledger = Ledger(folder / "visits.ledger")
    record = ledger.records[0]
    seals = ledger.periods
    ledger.reserve("dead", dataset_id=ledger.dataset_id, parameters={}, guarantee=record.guarantee, periods=seals)
    ledger.begin("dead")
    found = status.status_of(read)
    assert found.releases == {"reserved": 1, "staged": 0, "committed": 0, "published": 1, "aborted": 0, "adopted": 0}
    assert [(r.release_id, r.state, r.fence) for r in found.unfinished] == [("dead", State.RESERVED, 1)]
    assert (found.periods_closed, found.last_period, found.periods_waiting) == (1, "d1", ("d2",))
    words = status_words(found)
    assert "dead is reserved, 1 attempt\n" in words
    assert "1 closed, the last d1; waiting: d2" in words


@pytest.mark.parametrize("text", [PLAIN, PERIODS], ids=["plain", "periods"])
def test_of_a_ledger_behind_its_witness_it_is_told_that_the_run_would_be_refused(
    folder: Path, state: Path, text: str, call: Call
) -> None:
    text = text.replace("budget_epsilon = 1.5", "budget_epsilon = 3")
    read = job(folder, text)
    np.save(folder / "incoming" / "d1.npy", rows(1))
    place = budget.default_ledger(read.rows)
    if not read.periodic:
        budget.ingest_rows(folder / "table.npy", folder / "rows.zarr", budget=read.budget)
    else:
        budget.periodic_table(read.rows, read.budget)
    shutil.copytree(place, folder / "backup")
    run(read)
    command = str(folder / "job.toml")
    assert call("status", command).code == call("run", command, "--dry-run").code == 0
    shutil.rmtree(place)
    (folder / "backup").rename(place)
    again = text.replace("clip = 8.0", "clip = 9.0").replace("release.zarr", "other.zarr")
    job(folder, again if not read.periodic else text)
    before = everything(folder)
    for words in (("run", command, "--dry-run"), ("run", command, "--dry-run", "--json")):
        told = call(*words)
        assert (told.code, told.out) == (3, "")
        assert "behind its witness" in told.err
    told = call("status", command, "--textfile", str(folder / "dpdist.prom"))
    assert told.code == 3
    assert "NOTHING NEW CAN BE RELEASED" in told.out
    assert "behind its witness" in told.err
    assert re.search(r"dpdist_refused\{[^}]*\} 1\n", (folder / "dpdist.prom").read_text())
    assert re.search(r"dpdist_left_pure_epsilon\{[^}]*\} 0\n", (folder / "dpdist.prom").read_text())
    assert "behind its witness" in call("status", command, "--json").json["refused"]
    assert everything(folder) - before == {"dpdist.prom"}
    with pytest.raises(RefusedError, match="behind its witness"):
        run(job_file.read_job(folder / "job.toml"))
    assert "BEHIND ITS WITNESS" in call("ledger", "show", place).out
    assert "behind its witness" in call("inspect", read.rows).out
    shutil.rmtree(state)
    assert "BEHIND" not in call("ledger", "show", place).out


def test_of_a_ledger_that_is_not_there_it_is_told_that_the_run_would_be_refused(folder: Path, call: Call) -> None:
    read = job(folder, PLAIN)
    run(read)
    job(folder, PLAIN.replace("clip = 8.0", "clip = 9.0").replace("release.zarr", "other.zarr"))
    command = str(folder / "job.toml")
    Ledger.create(folder / "else", dataset_id="e" * 32, budget=Ledger(folder / "rows.ledger").budget)
    for other in (None, folder / "else"):
        shutil.rmtree(folder / "rows.ledger")
        if other is not None:
            other.rename(folder / "rows.ledger")
        else:
            (folder / "rows.ledger").mkdir()
        for words in (("run", command, "--dry-run"), ("status", command)):
            told = call(*words)
            assert told.code == 3
            assert "ledger" in told.err
            assert "left" not in told.out


def test_the_textfile_is_what_prometheus_reads(folder: Path) -> None:
    read = job(folder, PERIODS)
    np.save(folder / "incoming" / "d1.npy", rows(1))
    run(read)
    target = folder / "dpdist.prom"
    command = ["status", str(folder / "job.toml"), "--textfile", str(target)]
    assert CliRunner().invoke(cli, command, catch_exceptions=False).exit_code == 0
    text = target.read_text()
    sample = re.compile(r'dpdist_[a-z_]+\{rows="[^"]+"(,state="[a-z]+")?\} [0-9.e+-]+')
    values = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(sample.fullmatch(line) for line in values)
    rows_label = str(folder / "visits")
    assert f'dpdist_releases{{rows="{rows_label}",state="published"}} 1' in values
    assert f'dpdist_budget_epsilon{{rows="{rows_label}"}} 1' in values
    kinds = re.findall(r"# TYPE (\S+) (gauge|counter)", text)
    assert {name for name, _ in kinds} == {line.partition("{")[0] for line in values}
    assert CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False).exit_code == 0
