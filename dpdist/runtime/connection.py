"""Connecting to a scheduler that is there, or starting one with workers on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.comm import CommClosedError
from distributed.core import rpc
from distributed.security import Security
from distributed.utils import LoopRunner, silence_logging_cmgr
from distributed.versions import VersionMismatchWarning
from tornado.ioloop import IOLoop

from dpdist._util.cores import available_cores
from dpdist._util.progress import Progress
from dpdist.errors import DataError
from dpdist.naming import parameter
from dpdist.runtime.clients import known
from dpdist.runtime.engine import Engine
from dpdist.runtime.process import forbid_core_dumps
from dpdist.runtime.tls import Certificates, require_safe_workers
from dpdist.runtime.workers import warn_of_versions

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
    # Dask looks at every worker's stack 100 times a second, for a page that nobody opens: 3 % of a sum
    "distributed.worker.profile.enabled": False,
}


def _require_answer(scheduler: str, security: Security | None, cure: str) -> None:
    """Check that a scheduler answers; a client waits without a limit for one that accepts and then says nothing."""

    async def ask() -> None:
        arguments = security and security.get_connection_args("client")
        async with rpc(scheduler, connection_args=arguments) as remote:
            await asyncio.wait_for(remote.identity(n_workers=0), CONNECT_SECONDS)

    runner = LoopRunner()  # a thread's own: a notebook runs a loop in this one
    try:
        runner.start()
        runner.run_sync(ask)
    # Dask's complaints about an address: no port, an unknown protocol, TLS without certificates
    except (OSError, ValueError, TypeError, TimeoutError, CommClosedError):
        raise DataError(f"No Dask scheduler answers at {scheduler} within {CONNECT_SECONDS} seconds. {cure}") from None
    finally:
        runner.stop()


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


def _cure(certificates: Certificates | None) -> str:
    """Say what to look at when a scheduler that was named by its address does not answer."""
    if certificates is None:
        return (
            "Check the address, such as tcp://127.0.0.1:8786, and that the scheduler runs, or leave "
            f"{parameter('scheduler')} out to compute on this machine."
        )
    return (
        "Check the address and that the scheduler runs; that its certificate has not expired, and is of the CA in "
        f"{certificates.authority}; and that {certificates.certificate} is of the CA it trusts."
    )


_CURE_OF_GIVEN = (
    "Check that the cluster of the client or object that was given still runs; where it is encrypted, that its "
    "Security has a CA, and the client's certificate and key."
)


@contextmanager
def _client(scheduler: str | LocalCluster, security: Security | None) -> Iterator[Client]:
    """Connect for the time of a block; it is nobody's default, and what is asked by it is forgotten at its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VersionMismatchWarning)  # a table, of which we say what matters
        made = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False, security=security)
    with made:
        yield made


@contextmanager
def _local(count: int, folder: Path | None, *, trusted: bool) -> Iterator[Client]:
    """Start worker processes of this machine for the time of a block, and connect to them."""
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({**_LOCAL_CONFIG, "temporary-directory": folder and str(folder)}))
        loop = stack.enter_context(_deaf_loop())
        cluster = stack.enter_context(_local_cluster(count, loop, folder, trusted=trusted))
        yield stack.enter_context(_client(cluster, None))


@contextmanager
def _existing(scheduler: str, certificates: Certificates | None) -> Iterator[Client]:
    """Connect to the scheduler at an address for the time of a block."""
    security = certificates and certificates.security()
    if scheduler.startswith("gateway://"):
        with suppress(ImportError):  # without it Dask knows no such address, as is said below
            import_module("dask_gateway")
    _require_answer(scheduler, security, _cure(certificates))
    # what Dask says of a lost scheduler is a traceback; we say it in words
    with silence_logging_cmgr(logging.CRITICAL), _client(scheduler, security) as client:
        yield client


@contextmanager
def _given(given: Any, *, insecure: bool) -> Iterator[Client]:
    """Connect to where a client or a cluster object of the user's computes, by a client of our own.

    His own is never used: nothing of ours could close it, change it, or stay with it when the block ends.
    """
    scheduler, security = known(given)
    if not insecure:
        require_safe_workers(scheduler, (), foreign=False)
    _require_answer(scheduler, security, _CURE_OF_GIVEN)
    with _client(scheduler, security) as client:
        yield client


@contextmanager
def connected(
    scheduler: str | None = None,
    workers: int | None = None,
    *,
    client: Any = None,
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
    client
        The user's own client or cluster object, in the place of an address.
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
    UsageError
        If the user's client or cluster object is asynchronous, and waiting here would stop its loop.
    RefusedError
        If scheduler or worker is on the network and not encrypted, unless told to be insecure.
    DataError
        If the certificates cannot be used, no scheduler answers in time, no worker joins it in time, or none of them
        is the trusted one.
    """
    forbid_core_dumps()
    if client is not None:
        way = _given(client, insecure=insecure)
    elif scheduler is not None:
        way = _existing(scheduler, certificates)
    else:
        way = _local(workers or available_cores(), folder, trusted=trusted_worker)
    with way as found:
        engine = Engine(found, trusted_worker=trusted_worker, insecure=insecure, progress=progress)
        if scheduler is None and client is None:
            engine.require_safe()
        else:
            engine.await_worker()
            warn_of_versions(found)
        if trusted_worker:
            engine.require_trusted_worker()
        yield engine
