"""Connecting to a scheduler that is there, or starting one with workers on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.comm import CommClosedError
from distributed.core import rpc
from distributed.security import Security
from distributed.utils import LoopRunner, silence_logging_cmgr
from tornado.ioloop import IOLoop

from dpdist._util.progress import Progress
from dpdist.errors import DataError
from dpdist.naming import parameter
from dpdist.runtime.engine import Engine
from dpdist.runtime.process import forbid_core_dumps
from dpdist.runtime.tls import Certificates

CONNECT_SECONDS = 15
WORKER_ENVIRONMENT = {
    # one BLAS thread per worker process: the processes are the parallelism
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # glibc hands chunk-sized blocks back to the kernel and page-faults them in again unless told to keep them
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
}

_LOCAL_CONFIG = {
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
    # a spilled partial sum would be private data in a plain file
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
}


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def _require_answer(scheduler: str, security: Security | None) -> None:
    """Check that a scheduler answers; a client waits without a limit for one that accepts and then says nothing."""

    async def ask() -> None:
        arguments = security and security.get_connection_args("client")
        async with rpc(scheduler, connection_args=arguments) as remote:
            await asyncio.wait_for(remote.identity(n_workers=0), CONNECT_SECONDS)

    try:
        asyncio.run(ask())
    # Dask's complaints about an address: no port, an unknown protocol, TLS without certificates
    except (OSError, ValueError, TypeError, TimeoutError, CommClosedError):
        cure = (
            "Check the address, such as tcp://127.0.0.1:8786, and that the scheduler runs, or leave "
            f"{parameter('scheduler')} out to compute on this machine."
        )
        if security is not None:
            cure = (
                "Check the address and that the scheduler runs; that its certificate has not expired, and is of the "
                f"CA in {security.tls_ca_file}; and that {security.tls_client_cert} is of the CA it trusts."
            )
        raise DataError(f"No Dask scheduler answers at {scheduler} within {CONNECT_SECONDS} seconds. {cure}") from None


@contextmanager
def _deaf_loop() -> Iterator[IOLoop]:
    """Run an event loop whose processes never hear a terminal's Ctrl-C, not even while they start.

    They belong to this process, which hears it and ends them. A blocked signal stays so in what a thread starts.
    """
    _start_tracker()  # whoever starts it unblocks the signal in its thread, which must not be the loop's
    runner = LoopRunner()
    runner.start()
    try:
        runner.run_sync(_block_interrupts)
        yield runner.loop
    finally:
        runner.stop()


def _start_tracker() -> None:
    """Start multiprocessing's tracker: if this process ends in the middle, it tidies up, and shall not say so."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore::UserWarning"
    try:
        resource_tracker.ensure_running()
    finally:
        del os.environ["PYTHONWARNINGS"]
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before


async def _block_interrupts() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _own_security(folder: Path) -> Security:
    """Return keys for one local cluster, in files that only their owner can read.

    Dask takes keys in memory too, and then writes them to a new folder in TMPDIR for every connection: what is ended
    meanwhile leaves one there.
    """
    made = Security.temporary()
    files = {"tls_ca_file": "ca.pem"}
    files |= {
        f"tls_{role}_{part}": f"{part}.pem" for role in ("scheduler", "worker", "client") for part in ("cert", "key")
    }
    for option, name in files.items():
        if not (folder / name).exists():
            with open(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:  # noqa: PTH123 - of a handle
                file.write(getattr(made, option))
    return Security(require_encryption=True, **{option: str(folder / name) for option, name in files.items()})


def _local_cluster(count: int, loop: IOLoop, folder: Path | None, *, trusted: bool) -> LocalCluster:
    try:
        return LocalCluster(
            loop=loop,
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            # other users of this machine can reach its loopback interface
            security=Security.temporary() if folder is None else _own_security(folder),
            protocol="tls://",
            resources={"trusted": 1} if trusted else None,
            # failures reach the user through us, once and without a traceback
            silence_logs=logging.CRITICAL,
        )
    except RuntimeError:
        raise DataError(
            "The worker processes did not start. A Python script that computes here must do so below "
            'if __name__ == "__main__": because every worker process imports it.'
        ) from None


@contextmanager
def connected(
    scheduler: str | None = None,
    workers: int | None = None,
    *,
    trusted_worker: bool = False,
    certificates: Certificates | None = None,
    insecure: bool = False,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Iterator[Engine]:
    """Connect to a scheduler, or start a local cluster for the time of the block.

    From then on this process leaves no core dump: it will hold the un-noised total, and the local workers, which
    inherit the limit, hold sums.

    Parameters
    ----------
    scheduler
        Address of an existing scheduler, such as ``tls://10.0.0.1:8786``; None starts worker processes on this
        machine that listen on the loopback interface only.
    workers
        Number of local worker processes; None takes one per core.
    trusted_worker
        Run :meth:`Engine.trusted` on the worker that offers the resource ``trusted``.
    certificates
        For an existing scheduler that speaks TLS.
    insecure
        Whether its workers may be on the network without encryption.
    folder
        Where scheduler and workers of a local cluster put their files; None is Dask's own place, and some stay there.
    progress
        Told how far the work has come.

    Raises
    ------
    RefusedError
        If a worker is on the network and not encrypted, unless told to be insecure.
    DataError
        If the certificates cannot be used, no scheduler answers in time, it has no workers, or none of them is the
        trusted one.
    """
    forbid_core_dumps()
    security = certificates and certificates.security()
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({**_LOCAL_CONFIG, "temporary-directory": folder and str(folder)}))
        if scheduler is None:
            count, loop = workers or available_cores(), stack.enter_context(_deaf_loop())
            address: Any = stack.enter_context(_local_cluster(count, loop, folder, trusted=trusted_worker))
        else:
            _require_answer(scheduler, security)
            # what Dask says of a lost scheduler is a traceback; we say it in words
            stack.enter_context(silence_logging_cmgr(logging.CRITICAL))
            address = scheduler
        client = stack.enter_context(Client(address, timeout=CONNECT_SECONDS, set_as_default=False, security=security))
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise DataError(
                f"The scheduler at {scheduler} has no workers after {CONNECT_SECONDS} seconds. Start some with: "
                f"dask worker {scheduler} --host 127.0.0.1 --dashboard-address 127.0.0.1:0"
            ) from None
        local = 0 if scheduler is not None else len(address.workers)
        engine = Engine(client, trusted_worker=trusted_worker, insecure=insecure, sharing=1 + local, progress=progress)
        engine.require_safe()
        if trusted_worker:
            engine.require_trusted_worker()
        yield engine
