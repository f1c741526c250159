"""Two copies of a job at once: whatever the other has made meanwhile is taken, and one release is charged."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults.nightly import events

from dpdist.errors import DataError
from dpdist.ingest import write as ingesting
from dpdist.jobs import job_file, totals
from dpdist.jobs import run as job_runs
from dpdist.ledger.ledger import Ledger
from dpdist.pca import model as models
from dpdist.pipeline import budget, release
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.runtime.cluster import Cluster
from dpdist.storage.store import FolderStore

PLAIN = """
[rows]
path = "rows.zarr"
source = "table.npy"
budget_epsilon = 1

[release]
path = "release.zarr"
epsilon = 1
clip = 8.0

[pca]
path = "model.zarr"
components = 2

[project]
path = "scores.zarr"
"""
PERIODS = PLAIN.replace('"table.npy"', '"incoming"\nperiods = true').partition("[project]")[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Cluster, "named", False)
    rows = np.random.default_rng(0).normal(size=(30, 3))
    np.save(tmp_path / "table.npy", rows)
    (tmp_path / "incoming").mkdir()
    np.save(tmp_path / "incoming" / "d1.npy", rows)
    (tmp_path / "plain.toml").write_text(PLAIN)
    (tmp_path / "periods.toml").write_text(PERIODS)
    return tmp_path


def run(job: Path) -> object:
    return job_runs.run(job_file.read_job(job), say=print)


def overtaken(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, other: Callable[[], object], *, after: bool = False
) -> list[str]:
    """Let another run do all its work the first time that this one comes to a call; the list tells that it did.

    It does so before the call, or right after.
    """
    original, done = getattr(owner, name), list[str]()

    def late(*arguments: Any, **options: Any) -> Any:
        if done:
            return original(*arguments, **options)
        done.append(name)
        if not after:
            other()
        result = original(*arguments, **options)
        if after:
            other()
        return result

    monkeypatch.setattr(owner, name, late)
    return done


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*.zarr/**/*") if path.is_file()}


STEPS = [
    ("plain", ingesting, "ingest"),
    ("plain", ingesting, "ingest, after"),
    ("plain", budget, "complete_ingest"),
    ("plain", release, "release_table"),
    ("plain", models, "save"),
    ("plain", job_runs, "project_rows"),
    ("periods", budget, "create_periods"),
    ("periods", budget, "create_periods, after"),
    ("periods", FolderStore, "locked"),
    ("periods", release, "release_table"),
    ("periods", totals, "write_sum"),
    ("periods", models, "save"),
]


@pytest.mark.parametrize(("job", "owner", "name"), STEPS)
def test_what_another_run_made_meanwhile_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, job: str, owner: Any, name: str
) -> None:
    seen: list[dict[str, bytes]] = []

    def other() -> None:
        run(folder / f"{job}.toml")
        seen.append(content(folder))

    call, _, after = name.partition(", ")
    done = overtaken(monkeypatch, owner, call, other, after=bool(after))
    run(folder / f"{job}.toml")
    assert done
    assert content(folder) == seen[0]  # as the other left it
    counts = events(folder / "rows.ledger")
    assert (counts["created"], counts["reserved"], counts["committed"], counts["published"]) == (1, 1, 1, 1)
    Ledger(folder / "rows.ledger").verify()


def test_two_runs_that_find_no_ledger_create_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first waits where it creates, for the second to be there too; that one must not come so far."""
    rows = folder / "rows.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(budget, "complete_ingest", lambda *_: None)  # as if it had died before
        budget.ingest_rows(folder / "table.npy", rows, budget=PrivacyLoss.parse("1"))
    together, creating = threading.Barrier(2), budget._create_ledger

    def slow(*arguments: Any) -> Ledger:
        with suppress(threading.BrokenBarrierError):
            together.wait(2)
        made: Ledger = creating(*arguments)
        return made

    monkeypatch.setattr(budget, "_create_ledger", slow)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(budget.complete_ingest, [rows, rows]))
    assert together.broken
    assert found[0].ledger_id == found[1].ledger_id == Ledger(folder / "rows.ledger").ledger_id
    assert events(folder / "rows.ledger")["created"] == 1


def test_a_folder_without_locks_gets_no_ledger_and_is_used_with_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    rows = folder / "rows.zarr"
    budget.ingest_rows(folder / "table.npy", rows)
    with monkeypatch.context() as patch:
        patch.setattr("dpdist.storage.atomic.fcntl.flock", no_locks)
        with pytest.raises(DataError, match="cannot be locked: No locks available"):
            budget.create_ledger(folder / "rows.ledger", rows, PrivacyLoss.parse("1"))
    budget.create_ledger(folder / "rows.ledger", rows, PrivacyLoss.parse("1"))
    monkeypatch.setattr("dpdist.storage.atomic.fcntl.flock", no_locks)
    assert budget.complete_ingest(rows).ledger_id is not None


def test_what_another_run_made_of_something_else_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = folder / "other.toml"
    other.write_text(PLAIN.partition("[project]")[0].replace("components = 2", "components = 1"))
    assert overtaken(monkeypatch, models, "save", lambda: run(other)) == []
    with pytest.raises(DataError, match="was made from something else"):
        run(folder / "plain.toml")
