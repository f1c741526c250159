"""What several test files need: a PostgreSQL server and a Dask cluster in this process."""

from __future__ import annotations

from collections.abc import Iterator

import dask
import postgres_server
import pytest
from distributed import LocalCluster
from packages import missing
from postgres_server import PASSWORD, Server


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
