"""What tests of several rooms need: servers, commands, and a folder with rows.

Hypothesis takes the same examples in every run; ``pytest --hypothesis-profile explore`` looks for new ones, and more.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import LocalCluster
from faults import postgres_server
from faults.packages import missing
from faults.postgres_server import PASSWORD, Server
from hypothesis import settings
from support.cli_scene import BUDGET, CHUNKS, COLUMNS, LOSS, ROWS, Call, Said
from support.dithering import KEY
from support.scripted import Scripted

from dpdist import cli
from dpdist.core.mechanisms.gaussian import CalibratedGaussian
from dpdist.core.moment import total
from dpdist.core.naming import COMMAND_LINE, naming
from dpdist.core.pipeline import budget
from dpdist.core.rows import dataset
from dpdist.core.rows.dataset import created

settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=2000)
settings.load_profile("same")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the witness in a folder of the test's own, which does not exist yet."""
    chosen = tmp_path / "deep" / "state"
    monkeypatch.setenv("DPDIST_STATE_HOME", str(chosen))
    return chosen


@pytest.fixture
def apart(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001
    """Run a test in a folder of its own, with a state folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dither all rows by one key, so that the same draws make the same release."""
    monkeypatch.setattr(total, "draw_key", lambda: KEY.key)


@pytest.fixture
def typed() -> Iterator[None]:
    """Let messages name options and commands."""
    with naming(COMMAND_LINE):
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Run a server; without Debian's package `postgresql` skip, or fail where it is required."""
    programs = postgres_server.programs()
    if programs is None:
        missing("postgresql", "Debian: apt-get install postgresql")
    with pytest.MonkeyPatch.context() as patch, postgres_server.running(programs) as server:
        patch.setenv("PGPASSWORD", PASSWORD)  # also of the processes that the tests start
        yield server


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """Start two workers that are threads of this process; give the address of their scheduler."""
    settings = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, protocol="tcp://", host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
    ):  # fmt: skip
        yield cluster.scheduler_address


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["dpdist", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert isinstance(stop.value.code, int)
        return Said(stop.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with rows in several chunks and their ledger, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    rows = np.random.default_rng(9).integers(0, 255, size=(ROWS, COLUMNS), dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_TARGET_CHUNK", rows.nbytes // CHUNKS)
        with created(folder / "rows.zarr", rows=ROWS, dtype="uint8", names=("a", "b", "c"), budget=BUDGET) as writer:
            writer.append(rows)
    budget.create_ledger(folder / "rows.ledger", folder / "rows.zarr")
    return folder


@pytest.fixture
def here(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a fresh folder that holds rows.zarr and rows.ledger, on a machine that has seen no copy of them."""
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def released(here: Path, call: Call, scheduler: str) -> Path:
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    return here


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the noise away, so that what it would be added to is seen."""
    monkeypatch.setattr(CalibratedGaussian, "draw_band", lambda _self, band, _: np.zeros(band.entries, np.int64))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with whole runs, which take longest."""
    items.sort(key=lambda item: "whole" not in item.path.parts)


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw stages by one seed: a threshold that an empty bin exceeds one time in a thousand fails no test."""
    monkeypatch.setattr("dpdist.core.release.histograms.SYSTEM", Scripted(7))
