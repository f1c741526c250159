"""A release for reproduction does not bypass the ledger: rows have either a budget or reproductions."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.memory_store import OBJECTS, MemoryStore
from support.norms import call

from dpdist import PrivateCovariance
from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ingest.write import ingest
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.pipeline import budget, release
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release import trusted
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.dataset import created
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage import store as stores
from dpdist.core.storage.store import store_at

BUDGET = PrivacyLoss.parse("2", "1e-5")
EXACT = ReleaseRequest("none", PrivacyLoss.parse("1"), 20.0, for_reproduction=True)
REPRODUCE = ("--epsilon", "1", "--clip", "20", "--mechanism", "none", "--for-reproduction")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Cluster, "named", False)
    path = tmp_path / "table.npy"
    np.save(path, np.random.default_rng(1).normal(size=(60, 3)) * 8)
    return path


@pytest.fixture
def plain(source: Path) -> Path:
    """Rows without a budget."""
    return ingest_rows(source, source.with_name("plain.zarr")).path


def with_a_ledger(source: Path, rows: Path) -> None:
    ingest_rows(source, rows, budget=BUDGET)


def whose_ledger_was_moved_away(source: Path, rows: Path) -> None:
    ingest_rows(source, rows, budget=BUDGET)
    budget.default_ledger(rows).rename(rows.with_name("elsewhere"))


def whose_ledger_does_not_exist_yet(source: Path, rows: Path) -> None:
    ingest(source, rows, budget=BUDGET)


def whose_budget_came_later(source: Path, rows: Path) -> None:
    ingest_rows(source, rows)
    budget.create_ledger(rows.with_name("somewhere"), rows, BUDGET)


def of_a_period(source: Path, rows: Path) -> None:
    (source.parent / "incoming").mkdir()
    shutil.copy(source, source.parent / "incoming" / "d1.npy")
    job = source.with_name("job.toml")
    job.write_text(
        '[rows]\npath = "visits"\nsource = "incoming"\nperiods = true\nbudget_epsilon = 2\nbudget_delta = 1e-5\n'
        '[release]\npath = "published"\nepsilon = 1\ndelta = 1e-6\nclip = 20.0\n'
    )
    assert call("run", job).exit_code == 0
    shutil.copytree(source.parent / "visits" / "d1.zarr", rows)


@pytest.mark.parametrize(
    "declared",
    [
        with_a_ledger, whose_ledger_was_moved_away, whose_ledger_does_not_exist_yet, whose_budget_came_later,
        of_a_period,
    ],
)  # fmt: skip
def test_rows_for_which_a_budget_was_ever_declared_are_not_reproduced_from(
    source: Path, declared: Callable[[Path, Path], None]
) -> None:
    rows, target = source.with_name("rows.zarr"), source.with_name("exact.zarr")
    declared(source, rows)
    before = (rows / "zarr.json").read_bytes()
    result = call("release", rows, target, *REPRODUCE)
    assert isinstance(result.exception, RefusedError)  # exit code 3
    assert "A budget is declared" in str(result.exception)
    assert not target.exists()
    assert (rows / "zarr.json").read_bytes() == before
    transaction = trusted.MomentTransaction.of(EXACT, open_rows(rows), budget.default_ledger(rows), store_at(target))
    with pytest.raises(RefusedError):  # and where the noise would have been drawn, whatever came before
        trusted.conclude(transaction, MomentMatrix(np.zeros(6, dtype=np.int64), 3))
    assert not target.exists()


def test_periods_together_are_not_reproduced_from(source: Path) -> None:
    of_a_period(source, source.with_name("copy.zarr"))
    visits = source.parent / "visits"
    table, ledger = budget.periodic_table(visits)
    with pytest.raises(RefusedError, match="A budget is declared"):
        release.release_table(table.span(ledger.periods, 0), source.with_name("exact.zarr"), EXACT)


def test_a_table_that_was_opened_before_its_budget_was_declared_is_refused_too(plain: Path) -> None:
    opened = open_rows(plain)
    budget.create_ledger(budget.default_ledger(plain), plain, BUDGET)
    with pytest.raises(RefusedError, match="A budget is declared"):
        release.release_table(opened, plain.with_name("exact.zarr"), EXACT)
    with pytest.raises(RefusedError, match="A budget is declared"):  # nor one that claims to have none
        trusted.admit(replace(open_rows(plain), budget=None, ledger_id=None))
    assert not plain.with_name("exact.zarr").exists()


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=oct)
def test_a_reproduction_is_its_owners_alone_and_a_private_release_as_readable_as_the_umask_says(
    source: Path, plain: Path, umask: int
) -> None:
    exact, model, page, public = (plain.with_name(name) for name in ("exact.zarr", "model.zarr", "page", "public.zarr"))
    rows = ingest_rows(source, source.with_name("rows.zarr"), budget=BUDGET).path
    before = os.umask(umask)
    try:
        assert "NOT PRIVATE AS CLAIMED" in call("release", plain, exact, *REPRODUCE).output
        assert call("pca", exact, model, "--components", 1).exit_code == 0
        assert call("report", exact, page).exit_code == 0
        assert call("release", rows, public, "--epsilon", "1", "--clip", "20").exit_code == 0
    finally:
        os.umask(before)
    for folder in (exact, model):
        modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in (folder, *folder.rglob("*"))}
        assert modes == {(True, 0o700), (False, 0o600)}
    assert page.stat().st_mode & 0o777 == 0o600
    assert public.stat().st_mode & 0o777 == 0o755 & ~umask


def test_rows_that_were_reproduced_from_get_no_budget_any_more(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("release", plain, plain.with_name("exact.zarr"), *REPRODUCE).exit_code == 0
    shutil.rmtree(plain.with_name("exact.zarr"))  # it may have been copied
    ledger = budget.default_ledger(plain)
    assert call("release", plain, plain.with_name("again.zarr"), *REPRODUCE).exit_code == 0  # as often as one likes
    assert "reproduced" in call("inspect", plain).output
    monkeypatch.setenv("DPDIST_STATE_HOME", str(plain.with_name("another machine")))  # where the rows alone tell
    with pytest.raises(RefusedError, match="release for reproduction was made"):
        budget.create_ledger(ledger, plain, BUDGET)
    assert not ledger.exists()


def test_a_reproduction_that_died_before_a_row_was_read_counts(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(release, "compute", dies)
    with pytest.raises(KeyboardInterrupt):
        release.release_rows(plain, plain.with_name("exact.zarr"), EXACT)
    with pytest.raises(RefusedError):
        budget.create_ledger(budget.default_ledger(plain), plain, BUDGET)


def test_of_a_reproduction_and_a_budget_at_once_one_is_refused(tmp_path: Path) -> None:
    # a table for every round, and both started together; without the lock both pass in some rounds
    for number in range(12):
        rows = tmp_path / f"{number}.zarr"
        with created(rows, rows=1, dtype="uint8", names=("a", "b"), budget=None) as writer:
            writer.append(np.zeros((1, 2), dtype=np.uint8))
        table, together = open_rows(rows), threading.Barrier(2)

        def passes(act: Callable[..., object], *arguments: Any, together: threading.Barrier = together) -> bool:
            together.wait()
            try:
                act(*arguments)
            except RefusedError:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            reproduced = pool.submit(passes, trusted.admit, table)
            declared = pool.submit(passes, budget.create_ledger, rows.with_suffix(".ledger"), rows, BUDGET)
        assert reproduced.result() != declared.result()
        found = open_rows(rows)
        assert (found.reproduced, found.ledger_id is not None) == (reproduced.result(), declared.result())


def test_no_other_door_leads_to_a_reproduction(source: Path) -> None:
    rows = ingest_rows(source, source.with_name("rows.zarr"), budget=BUDGET).path
    for data in (str(rows), np.load(source)):
        with pytest.raises((RefusedError, UsageError)):
            PrivateCovariance(epsilon=1, clip=20, mechanism="none").fit(data)
    job = source.with_name("job.toml")
    for line in ("", "for_reproduction = true\n"):
        job.write_text(f'[rows]\npath = "rows.zarr"\n[release]\npath = "x.zarr"\nepsilon = 1\nclip = 20.0\n{line}'
                       'mechanism = "none"\n')  # fmt: skip
        result = call("run", job)
        assert isinstance(result.exception, UsageError if line else RefusedError)
    assert not Ledger(budget.default_ledger(rows)).records
    assert sorted(path.name for path in source.parent.glob("*.zarr")) == ["rows.zarr"]


def test_rows_in_a_store_without_a_budget_are_released_for_reproduction(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ledger can be next to them, and none is needed."""
    monkeypatch.setitem(stores.SCHEMES, "memory", MemoryStore)
    rows = store_at(f"memory://{tmp_path.name}/rows.zarr")
    ingest_rows(source, rows)
    exact = release.release_rows(rows, tmp_path / "exact.zarr", EXACT).release
    clipped = np.load(source) * np.minimum(1, 20 / np.linalg.norm(np.load(source), axis=1))[:, None]
    np.testing.assert_allclose(exact.second_moment, clipped.T @ clipped, rtol=1e-2, atol=5)
    with pytest.raises(RefusedError, match="A release for reproduction was made"):
        budget.create_ledger(tmp_path / "rows.ledger", rows, BUDGET)
    with pytest.raises(UsageError, match="not charged to a ledger"):
        release.release_rows(rows, tmp_path / "more.zarr", EXACT, ledger=tmp_path / "rows.ledger")
    OBJECTS.clear()
