"""Where to compute: in threads of this process, on worker processes of this machine, or on a cluster that is there."""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from dpdist._util.parallel import available_cores
from dpdist._util.progress import Progress
from dpdist.errors import DataError, UsageError
from dpdist.naming import parameter
from dpdist.runtime.checks import forbid_core_dumps
from dpdist.runtime.local import Engine, Here
from dpdist.runtime.tls import Certificates, parts_of, require_safe, require_safe_cluster, the_three

if TYPE_CHECKING:
    from distributed import Client, LocalCluster
    from distributed.security import Security

CONNECT_SECONDS = 15
_GONE = {"closed", "closing", "stopping", "stopped", "failed"}
WORKER_ENVIRONMENT = {
    # one BLAS thread per worker process: the processes are the parallelism
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # glibc hands chunk-sized blocks back to the kernel and page-faults them in again unless told to keep them
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    # a module in the current folder is not run for one of Python's own
    "PYTHONSAFEPATH": "1",
}
"""Environment of worker processes of this machine."""
_STARTING = threading.Lock()


@dataclass(frozen=True)
class Cluster:
    """Where to compute: in threads of this process, on worker processes of this machine, or on a Dask cluster.

    Parameters
    ----------
    scheduler : str, default None
        Address of an existing Dask scheduler, such as ``tls://10.0.0.1:8786``. None: this machine.
    workers : int, default None
        Number of worker processes on this machine, which listen on the loopback interface only. None: threads of this
        process, one per core.
    trusted_worker : bool, default False
        Whether ledger and noise live on the worker that offers the resource ``trusted`` instead of in this process.
    certificates : Certificates, default None
        What to show to a scheduler that speaks TLS, and to know it by.
    insecure : bool, default False
        Whether to use a scheduler on the network that is not encrypted.
    client : dask.distributed.Client or cluster object, default None
        Your own connection to an existing cluster, in the place of its address: a client, or the object that made the
        cluster, such as a ``LocalCluster``, ``SSHCluster``, ``SLURMCluster``, ``KubeCluster``, ``GatewayCluster`` or
        ``coiled.Cluster``. Its address and its ``Security`` are taken over. It stays yours: it is not closed, restarted
        or scaled, and the cluster may have no worker yet if it adapts to what there is to do.
    progress : callable, default None
        Called with what is under way (str), how many parts of it are done (int) and how many there are (int), in this
        process. None: nobody is told. It is no part of what makes two clusters equal.

    Raises
    ------
    UsageError
        If more than one of scheduler, workers and client are given, the number is not positive, certificates and the
        scheduler's address do not go together, or client is none. When it is used: if the client is asynchronous.
    RefusedError
        If the scheduler is on the network, not encrypted, and that is not explicitly wanted; of a client, when it is
        used.

    See Also
    --------
    ingest_rows, register_rows, release_rows, choose_clip_norm, fit_components, project_rows : Take it.
    Certificates : For a scheduler that speaks TLS.

    Examples
    --------
    Nothing is started or connected to before it is needed.

    >>> import dpdist
    >>> dpdist.Cluster(workers=4)
    Cluster(scheduler=None, workers=4, trusted_worker=False, certificates=None, insecure=False, client=None)

    On a cluster that you have:

    >>> from dask.distributed import LocalCluster
    >>> with LocalCluster() as cluster:  # doctest: +SKIP
    ...     dpdist.release_rows(rows, release, request, cluster=dpdist.Cluster(client=cluster))

    What could be listened to is refused.

    >>> dpdist.Cluster("tcp://10.0.0.1:8786")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    dpdist.errors.RefusedError: ...
    """

    scheduler: str | None = None
    workers: int | None = None
    trusted_worker: bool = False
    certificates: Certificates | None = None
    insecure: bool = False
    client: Any = field(default=None, kw_only=True)
    progress: Progress | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.scheduler is not None and not isinstance(self.scheduler, str):
            raise UsageError(
                "scheduler is an address, such as 'tls://10.0.0.1:8786'. Pass a Dask client or a cluster object as "
                "dpdist.Cluster(client=...)."
            )
        ways = (self.scheduler, self.workers, self.client)
        if sum(way is not None for way in ways) > 1 or (self.client is not None and self.certificates is not None):
            raise UsageError(
                "Give either a scheduler or a number of local workers, not both; or a client, which knows its "
                "scheduler, workers and certificates."
            )
        if self.client is not None:
            require_given(self.client)
        if self.workers is not None and self.workers < 1:
            raise UsageError("At least one worker is needed.", parameter="workers")
        if self.scheduler is not None:
            if not self.scheduler.strip():
                raise UsageError(
                    "The address of the scheduler is empty. Is it a variable that is not set? Name an address, such as "
                    f"tls://10.0.0.1:8786, or leave {parameter('scheduler')} out to compute on this machine."
                )
            require_safe(self.scheduler, self.certificates, insecure=self.insecure)
        elif self.certificates is not None:
            raise UsageError(
                f"Certificates are for an existing scheduler: name it with {parameter('scheduler')}, or leave "
                f"{the_three()} out. Worker processes on this machine get keys of their own."
            )

    @property
    def named(self) -> bool:
        """Whether there are workers, and not only threads of this process."""
        return self.scheduler is not None or self.workers is not None or self.client is not None or self.trusted_worker

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, for another process."""
        if self.client is not None:
            raise UsageError(
                "A dpdist.Cluster of a Dask client or cluster object cannot be sent to another process: name the "
                "scheduler by its address there."
            )
        return dict(vars(self))

    def __deepcopy__(self, _memo: Any) -> Cluster:
        """Return this very one: it cannot change, and scikit-learn's clone copies what a client cannot stand."""
        return self

    @contextmanager
    def connected(self) -> Iterator[Engine]:
        """Give what computes, for the time of a block: threads of this process, or workers if any were asked for."""
        forbid_core_dumps()
        if not self.named:
            yield Here(self.progress)
            return
        from dpdist.runtime.sums import OnDask  # noqa: PLC0415 - Dask takes its time, and threads need none of it

        with self._client() as client:
            how = {"trusted_worker": self.trusted_worker, "insecure": self.insecure}
            engine = OnDask(client, **how, progress=self.progress)
            engine.await_worker()
            yield engine

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """Connect by a client of our own: nothing closes or changes the user's, and nothing stays with it."""
        security, cure = None, ""
        with ExitStack() as stack:
            if self.client is not None:
                address, security = known(self.client)
                if not self.insecure:
                    require_safe_cluster(address, (), foreign=False)
                cure = (
                    "Check that the cluster of the client or object that was given still runs; where it is encrypted, "
                    "that its Security has a CA, and the client's certificate and key."
                )
            elif self.scheduler is not None:
                address, security = self.scheduler, self.certificates and self.certificates.security()
                cure = _cure(self.certificates)
                if address.startswith("gateway://"):
                    with suppress(ImportError):  # without it Dask knows no such address, as is said below
                        import_module("dask_gateway")
            else:
                address = stack.enter_context(self._local())
            if self.client is None:
                stack.enter_context(silent())
            yield stack.enter_context(connection(address, security, cure))

    @contextmanager
    def _local(self) -> Iterator[LocalCluster]:
        """Start worker processes of this machine, for the time of a block."""
        import dask  # noqa: PLC0415 - threads of this process need none of it
        from distributed import LocalCluster  # noqa: PLC0415 - as above
        from distributed.security import Security  # noqa: PLC0415 - as above

        with ExitStack() as stack:
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dpdist-workers-"))
                start_tracker()
                settings = {
                    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
                    # other users of this machine can reach its loopback interface, and times of tasks tell of rows
                    "distributed.scheduler.http.routes": [],
                    "distributed.worker.http.routes": [],
                    "temporary-directory": folder,
                }
                with _STARTING, dask.config.set(settings), _deaf():  # all processes' settings, until these have them
                    made = LocalCluster(
                        n_workers=self.workers or available_cores(),
                        threads_per_worker=1,
                        host="127.0.0.1",
                        dashboard_address="127.0.0.1:0",
                        protocol="tls://",
                        security=Security.temporary(),
                        resources={"trusted": 1} if self.trusted_worker else None,
                        silence_logs=logging.CRITICAL,  # failures reach the user through us, once
                        scheduler_kwargs={"dashboard": False},
                        config=deepcopy(dask.config.config),  # of workers that are started again, too
                        env={"TMPDIR": folder},  # where a worker that is killed leaves its temporary files
                    )
                    stack.enter_context(made)  # before a Ctrl-C that came meanwhile is heard
            except (OSError, RuntimeError) as error:
                why = f": {error.strerror}" if isinstance(error, OSError) else ""
                raise DataError(
                    f"The worker processes did not start{why}. Leave {parameter('workers')} out to compute in threads "
                    'of this process. A Python script must start some below if __name__ == "__main__": because every '
                    "worker process imports it, and a process of a multiprocessing.Pool may start none."
                ) from None
            yield made

    @contextmanager
    def kept(self) -> Iterator[Cluster]:
        """Give the same cluster, connected to when it is first needed and kept for the rest of the block."""
        with ExitStack() as stack:
            yield _KeptCluster(**vars(self), stack=stack)


@contextmanager
def _deaf() -> Iterator[None]:
    """Let processes that are started not hear Ctrl-C at a terminal: it is for the command, which ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def chosen(given: Cluster | None) -> Cluster:
    """Return what was given for a cluster, or one on this machine."""
    if given is None:
        return Cluster()
    if not isinstance(given, Cluster):
        raise UsageError(
            f"cluster takes a dpdist.Cluster, not a value of type {type(given).__name__}. Pass a Dask client or a "
            "cluster object as dpdist.Cluster(client=...)."
        )
    return given


@dataclass(frozen=True)
class _KeptCluster(Cluster):
    """A cluster that is connected to once."""

    stack: ExitStack = field(default_factory=ExitStack)
    engines: list[Engine] = field(default_factory=list)

    @contextmanager
    def connected(self) -> Iterator[Engine]:
        """Give the one connection."""
        if not self.engines:
            self.engines.append(self.stack.enter_context(super().connected()))
        yield self.engines[0]


# --- connections ------------------------------------------------------------------------------------------------------


def start_tracker() -> None:
    """Start multiprocessing's tracker: if this process is ended half-way it tidies up, and must not say so."""
    wanted = {"PYTHONWARNINGS": "ignore::UserWarning", "PYTHONSAFEPATH": "1"}
    before = {name: os.environ[name] for name in wanted if name in os.environ}
    os.environ.update(wanted)
    try:
        resource_tracker.ensure_running()
    finally:
        for name in wanted:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def connection(scheduler: Any, security: Security | None, cure: str) -> Iterator[Client]:
    """Connect by a client of our own, for the time of a block."""
    from distributed import Client  # noqa: PLC0415 - threads of this process need none of it

    # Dask's complaints about an address: no port, an unknown protocol, TLS without certificates
    try:
        protocol, host, port = parts_of(scheduler) if isinstance(scheduler, str) else ("", "", None)
        if protocol == "tcp":  # a client waits without a limit for the greeting of a scheduler without TLS
            with socket.create_connection((host, port or 8786), CONNECT_SECONDS) as made:
                if not made.recv(1):
                    raise ConnectionError
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError):
        raise DataError(f"No Dask scheduler answers at {scheduler}. {cure}") from None
    with client:
        yield client


@contextmanager
def silent() -> Iterator[None]:
    """Let Dask's loggers print nothing: of a lost scheduler they print a traceback, and we say it in words."""
    handlers, nothing = [*logging.getLogger("distributed").handlers], lambda _: False
    for handler in handlers:
        handler.addFilter(nothing)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(nothing)


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


def require_given(given: Any) -> None:
    """Check that something is a client or a cluster object; neither is asked anything."""
    from distributed import Client  # noqa: PLC0415 - whoever gives one has imported it

    if isinstance(given, Client) or (hasattr(given, "scheduler_address") and not isinstance(given, type)):
        return
    raise UsageError(
        f"client takes a dask.distributed.Client or a cluster object, such as LocalCluster(), not a value of type "
        f"{type(given).__name__}. Pass the address of a scheduler as Cluster(scheduler='tls://...')."
    )


def known(given: Any) -> tuple[str, Security | None]:
    """Say where a client or a cluster object computes, and by which keys it connects."""
    from distributed import Client  # noqa: PLC0415 - whoever gives one has imported it

    is_client = isinstance(given, Client)
    what = "client" if is_client else "cluster"
    if getattr(given, "asynchronous", False):
        raise UsageError(
            f"The Dask {what} is asynchronous, and dpdist waits for its results. Call dpdist in a thread, such as "
            "`await asyncio.to_thread(dpdist.release_rows, rows, release, request, cluster=cluster)`; or make a "
            f"synchronous {what}, which Dask makes where asynchronous=True is not asked for."
        )
    address = getattr(given.scheduler, "address", None) if is_client else given.scheduler_address
    status = getattr(given.status, "name", given.status) if hasattr(given, "status") else None
    # a cluster that was not started has a sentence in the place of its address
    if status in _GONE or not isinstance(address, str) or "://" not in address:
        raise DataError(f"The Dask {what} is {status if status in _GONE else 'not connected'}. Make a new one.")
    return address, getattr(given, "security", None)
