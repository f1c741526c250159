"""Workers that are threads of this process, so that a test sees into them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, Worker
from distributed.comm import tcp

from dpdist.runtime.engine import Engine


@contextmanager
def workers(count: int, threads: int = 1, **options: Any) -> Iterator[tuple[LocalCluster, Engine]]:
    """Start workers that are threads of this process."""
    settings = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=count, threads_per_worker=threads, processes=False, protocol="tcp://", host="127.0.0.1",
            dashboard_address="127.0.0.1:0", **options,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        yield cluster, Engine(client, trusted_worker=False, insecure=False)


@contextmanager
def trusted_worker(cluster: LocalCluster) -> Iterator[None]:
    """Start the trusted worker of a cluster."""

    async def begun() -> Worker:
        return await Worker(cluster.scheduler_address, nthreads=1, resources={"trusted": 1}, host="127.0.0.1")

    worker = cluster.sync(begun)
    try:
        yield
    finally:
        cluster.sync(worker.close, nanny=False)


@contextmanager
def listening(scheduler: Any, patch: pytest.MonkeyPatch) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Give all bytes that the scheduler reads, whoever connected to whom, and all that everybody else does."""
    there: list[bytes] = []
    elsewhere: list[bytes] = []
    open_now = [
        comm for comms in (*scheduler.rpc.available.values(), *scheduler.rpc.occupied.values()) for comm in comms
    ]
    its_own = {scheduler.address, *(comm.local_address for comm in open_now)}
    read, connect = tcp.read_bytes_rw, scheduler.rpc.connect

    async def noted(stream: Any, count: int) -> Any:
        found = await read(stream, count)
        host, port = stream.socket.getsockname()
        (there if f"tcp://{host}:{port}" in its_own else elsewhere).append(bytes(found))
        return found

    async def connected(*arguments: Any, **options: Any) -> Any:
        comm = await connect(*arguments, **options)
        its_own.add(comm.local_address)
        return comm

    with patch.context() as now:
        now.setattr(tcp, "read_bytes_rw", noted)
        now.setattr(scheduler.rpc, "connect", connected)
        yield there, elsewhere
