"""What several test files need: a PostgreSQL server, a Dask cluster in this process, and how examples are chosen.

Hypothesis takes the same examples in every run, so that a change is judged by what it changed; new ones, and more of
them, are looked for with ``pytest --hypothesis-profile explore``. None may be fast enough or not.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dask
import postgres_server
import pytest
from distributed import LocalCluster
from hypothesis import settings
from packages import missing
from postgres_server import PASSWORD, Server

from dpdist.naming import COMMAND_LINE, naming

settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=2000)
settings.load_profile("same")

_STATE = tempfile.TemporaryDirectory(prefix="dpdist-state-")
os.environ["DPDIST_STATE_HOME"] = _STATE.name  # also of the processes that the tests start: nobody's home is touched


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what is seen of ledgers in a folder of the test's own, which does not exist yet."""
    chosen = tmp_path / "deep" / "state"
    monkeypatch.setenv("DPDIST_STATE_HOME", str(chosen))
    return chosen


@pytest.fixture
def typed() -> Iterator[None]:
    """Let messages name options and commands, as whoever types them is told."""
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
