"""Where to compute: in threads of this process, on worker processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dpdist.core.errors import DataError, UsageError
from dpdist.core.frames import is_a
from dpdist.core.naming import parameter
from dpdist.core.parallel import available_cores
from dpdist.core.progress import Progress
from dpdist.core.runtime.checks import forbid_core_dumps
from dpdist.core.runtime.local import Executor, LocalExecutor
from dpdist.core.runtime.tls import (
    Certificates,
    certificate_parameters,
    require_safe,
    require_safe_cluster,
    split_address,
)

if TYPE_CHECKING:
    from distributed import Client, LocalCluster
    from distributed.security import Security

CONNECT_SECONDS = 15
_CLOSED = {"closed", "closing", "stopping", "stopped", "failed"}
WORKER_ENVIRONMENT = {
    # one BLAS thread per worker process, because the processes run in parallel
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # by default, glibc returns chunk-sized blocks to the kernel, and page faults bring them back
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    # no module in the current folder may shadow one of the standard library
    "PYTHONSAFEPATH": "1",
}
"""Environment of worker processes on this machine."""
_STARTING = threading.Lock()


class _Addressed(Protocol):
    """A cluster object of Dask."""

    scheduler_address: str


AnyCluster: TypeAlias = "Cluster | Client | _Addressed"
"""Where to compute, or the user's own client or cluster object of Dask."""


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
        Whether the worker with the resource ``trusted``, instead of this process, charges the ledger and draws noise.
    certificates : Certificates, default None
        TLS certificates for the connection to the scheduler.
    insecure : bool, default False
        Whether to allow an unencrypted scheduler on the network.
    client : dask.distributed.Client or cluster object, default None
        Your own connection to an existing cluster, instead of its address: a client, or a cluster object such as a
        ``LocalCluster``, ``SSHCluster``, ``SLURMCluster``, ``KubeCluster``, ``GatewayCluster`` or ``coiled.Cluster``.
        Its address and its ``Security`` are used. It is never closed, restarted or scaled. The cluster may have no
        workers yet if it is adaptive.
    progress : callable, default None
        Called in this process with the current step (str), the number of completed parts (int) and their total (int).
        None: progress is not reported. It does not affect the equality of clusters.

    Raises
    ------
    UsageError
        If more than one of scheduler, workers and client are given, the number of workers is not positive, certificates
        do not match the scheduler's address, or client has another type. When it is used: if the client is
        asynchronous.
    RefusedError
        If the scheduler is on the network and not encrypted, unless `insecure`; for a client, when it is used.

    See Also
    --------
    ingest_rows, register_rows, release_rows, choose_clip_norm, fit_components, project_rows : Take a cluster.
    Certificates : TLS certificates.

    Examples
    --------
    Processes are started, and connections opened, when they are needed.

    >>> import dpdist
    >>> dpdist.Cluster(workers=4)
    Cluster(scheduler=None, workers=4, trusted_worker=False, certificates=None, insecure=False, client=None)

    On an existing cluster:

    >>> from dask.distributed import LocalCluster
    >>> with LocalCluster() as cluster:  # doctest: +SKIP
    ...     dpdist.release_rows(rows, release, request, cluster=dpdist.Cluster(client=cluster))

    An unencrypted scheduler on the network is refused.

    >>> dpdist.Cluster("tcp://10.0.0.1:8786")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    dpdist.core.errors.RefusedError: ...
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
                "scheduler is an address, such as 'tls://10.0.0.1:8786'. Pass a Dask client or a cluster object itself "
                "as cluster."
            )
        choices = (self.scheduler, self.workers, self.client)
        if sum(choice is not None for choice in choices) > 1 or (
            self.client is not None and self.certificates is not None
        ):
            raise UsageError(
                "Give either a scheduler or a number of local workers, not both; or a client, without certificates, "
                "which its Security contains."
            )
        if self.client is not None:
            _require_client(self.client)
        if self.workers is not None and self.workers < 1:
            raise UsageError("At least one worker is needed.", parameter="workers")
        if self.scheduler is not None:
            if not self.scheduler.strip():
                raise UsageError(
                    "The address of the scheduler is empty; perhaps a variable is not set. Pass an address, such as "
                    f"tls://10.0.0.1:8786, or leave {parameter('scheduler')} out to compute on this machine."
                )
            require_safe(self.scheduler, self.certificates, insecure=self.insecure)
        elif self.certificates is not None:
            raise UsageError(
                f"Certificates are for an existing scheduler. Pass its address with {parameter('scheduler')}, or leave "
                f"{certificate_parameters()} out: worker processes on this machine use temporary ones."
            )

    @property
    def named(self) -> bool:
        """Whether workers compute, instead of threads of this process."""
        return self.scheduler is not None or self.workers is not None or self.client is not None or self.trusted_worker

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickling, which a client does not support."""
        if self.client is not None:
            raise UsageError(
                "A dpdist.Cluster of a Dask client or cluster object cannot be sent to another process. Pass the "
                "address of its scheduler there."
            )
        return dict(vars(self))

    def __deepcopy__(self, _memo: Any) -> Cluster:
        """Return self: scikit-learn's clone copies parameters, and a client cannot be copied."""
        return self

    @contextmanager
    def connected(self) -> Iterator[Executor]:
        """Yield an executor, on workers if any are configured, and close it at the end of the block."""
        forbid_core_dumps()
        if not self.named:
            yield LocalExecutor(self.progress)
            return
        from dpdist.core.runtime.sums import DaskExecutor  # noqa: PLC0415 - slow to import, and threads do not need it

        with self._client() as client:
            executor = DaskExecutor(
                client, trusted_worker=self.trusted_worker, insecure=self.insecure, progress=self.progress
            )
            executor.await_worker()
            yield executor

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """Connect with a separate client, so that a client of the user is neither closed nor changed."""
        security, cure = None, ""
        with ExitStack() as stack:
            if self.client is not None:
                address, security = address_of(self.client)
                if not self.insecure:
                    require_safe_cluster(address, (), foreign=False)
                cure = (
                    "Check that the cluster of the client is running and, if it is encrypted, that its Security has a "
                    "CA, the client's certificate and its key."
                )
            elif self.scheduler is not None:
                address, security = self.scheduler, self.certificates and self.certificates.security()
                cure = _cure(self.certificates)
                if address.startswith("gateway://"):
                    with suppress(ImportError):  # without it, connecting fails with an error
                        import_module("dask_gateway")
            else:
                address = stack.enter_context(self._local())
            if self.client is None:
                stack.enter_context(silence_dask())
            yield stack.enter_context(connect(address, security, cure))

    @contextmanager
    def _local(self) -> Iterator[LocalCluster]:
        """Start worker processes on this machine, and stop them at the end of the block."""
        import dask  # noqa: PLC0415 - not needed for threads
        from distributed import LocalCluster  # noqa: PLC0415 - as above
        from distributed.security import Security  # noqa: PLC0415 - as above

        with ExitStack() as stack:
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dpdist-workers-"))
                start_tracker()
                stack.enter_context(_environment_restored(WORKER_ENVIRONMENT))  # nannies that replace a worker set it
                settings = {
                    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
                    # other users of this machine can reach its loopback interface, and task durations depend on rows
                    "distributed.scheduler.http.routes": [],
                    "distributed.worker.http.routes": [],
                    "temporary-directory": folder,
                    # blocks of a user's Dask collection stay in memory
                    "distributed.worker.memory.target": False,
                    "distributed.worker.memory.spill": False,
                    "distributed.p2p.storage.disk": False,
                }
                with (
                    _STARTING,  # settings and environment are global
                    _environment_restored(WORKER_ENVIRONMENT),  # and those that start one
                    dask.config.set(settings),
                    _interrupts_blocked(),
                ):
                    local_cluster = LocalCluster(
                        n_workers=self.workers or available_cores(),
                        threads_per_worker=1,
                        host="127.0.0.1",
                        dashboard_address="127.0.0.1:0",
                        protocol="tls://",
                        security=Security.temporary(),
                        resources={"trusted": 1} if self.trusted_worker else None,
                        silence_logs=logging.CRITICAL,  # our own errors report failures
                        scheduler_kwargs={"dashboard": False},
                        config=deepcopy(dask.config.config),  # also for workers that are restarted
                        env={"TMPDIR": folder},  # for temporary files of a worker that is killed
                    )
                    stack.enter_context(local_cluster)  # before a pending Ctrl-C is delivered
            except (OSError, RuntimeError) as error:
                reason = f": {error.strerror}" if isinstance(error, OSError) else ""
                raise DataError(
                    f"The worker processes did not start{reason}. In a Python script, start them below "
                    'if __name__ == "__main__":, because every worker process imports the script. Processes of a '
                    "multiprocessing.Pool cannot start workers. To compute in threads of this process, leave "
                    f"{parameter('workers')} out."
                ) from None
            yield local_cluster

    @contextmanager
    def kept(self) -> Iterator[Cluster]:
        """Yield this cluster with a connection that is opened at its first use and kept until the end of the block."""
        with ExitStack() as stack:
            yield _PersistentCluster(**vars(self), stack=stack)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let new processes ignore Ctrl-C in a terminal: the command handles it, and stops them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def chosen(cluster: AnyCluster | None) -> Cluster:
    """Return where to compute: threads of this process by default."""
    if cluster is None or isinstance(cluster, Cluster):
        return cluster or Cluster()
    if not is_client(cluster):
        raise UsageError(
            "cluster takes a dpdist.Cluster, a dask.distributed.Client or a cluster object, such as LocalCluster(), "
            f"not {_shown(cluster)}. Pass the address of a scheduler as dpdist.Cluster('tls://...')."
        )
    return Cluster(client=cluster)


@dataclass(frozen=True)
class _PersistentCluster(Cluster):
    """A cluster with one connection."""

    stack: ExitStack = field(default_factory=ExitStack)
    engines: list[Executor] = field(default_factory=list)

    @contextmanager
    def connected(self) -> Iterator[Executor]:
        """Yield the executor of the one connection."""
        if not self.engines:
            self.engines.append(self.stack.enter_context(super().connected()))
        yield self.engines[0]


# --- connections ------------------------------------------------------------------------------------------------------


def start_tracker() -> None:
    """Start multiprocessing's resource tracker without its warnings: it cleans up if this process is killed."""
    settings = {"PYTHONWARNINGS": "ignore::UserWarning", "PYTHONSAFEPATH": "1"}
    with _environment_restored(settings):
        os.environ.update(settings)
        resource_tracker.ensure_running()


@contextmanager
def _environment_restored(settings: Mapping[str, str]) -> Iterator[None]:
    """Let a block set environment variables of this process, and give them their values back at its end."""
    before = {name: os.environ.get(name) for name in settings}
    try:
        yield
    finally:
        for name, value in before.items():
            if os.environ.get(name) != settings[name]:
                continue  # the user's own change
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def connect(scheduler: Any, security: Security | None, cure: str) -> Iterator[Client]:
    """Connect with a separate client, and close it at the end of the block."""
    from distributed import Client  # noqa: PLC0415 - not needed for threads

    try:
        protocol, host, port = split_address(scheduler) if isinstance(scheduler, str) else ("", "", None)
        if protocol == "tcp":  # without TLS, a client waits for a reply without a time limit
            with socket.create_connection((host, port or 8786), CONNECT_SECONDS) as probe:
                if not probe.recv(1):
                    raise ConnectionError
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError):  # also no port, an unknown protocol, or TLS without certificates
        raise DataError(f"No Dask scheduler answers at {scheduler}. {cure}") from None
    with client:
        yield client


@contextmanager
def silence_dask() -> Iterator[None]:
    """Silence Dask's loggers, which print a traceback when a scheduler is lost: our own errors report it."""
    handlers, reject_all = [*logging.getLogger("distributed").handlers], lambda _: False
    for handler in handlers:
        handler.addFilter(reject_all)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(reject_all)


def _cure(certificates: Certificates | None) -> str:
    """Return advice for a scheduler address that does not answer."""
    if certificates is None:
        return (
            "Check the address, such as tcp://127.0.0.1:8786, and that the scheduler is running. To compute on this "
            f"machine, leave {parameter('scheduler')} out."
        )
    return (
        "Check the address and that the scheduler is running; that its certificate has not expired, and is from the CA "
        f"in {certificates.authority}; and that {certificates.certificate} is from the CA that it trusts."
    )


def is_client(value: object) -> bool:
    """Whether a value is a client or a cluster object of Dask, without calling it."""
    return is_a(value, "distributed", "Client") or (hasattr(value, "scheduler_address") and not isinstance(value, type))


def _shown(cluster: object) -> str:
    return repr(cluster) if isinstance(cluster, str) else f"a value of type {type(cluster).__name__}"


def client_of(cluster: AnyCluster | None) -> Any:
    """Return the client or cluster object of Dask that a cluster is or has; None if it has none."""
    return cluster.client if isinstance(cluster, Cluster) else cluster if is_client(cluster) else None


_COLLECTIONS_ON: ContextVar[Any] = ContextVar("collections_on", default=None)


def named_client() -> Any:
    """Return the client that a user named for Dask collections; None: Dask decides where it computes them."""
    return _COLLECTIONS_ON.get()


def computed(values: Any) -> Any:
    """Return the result of a Dask collection, of the client that a user named, if any; other values as they are."""
    if not hasattr(values, "__dask_graph__"):  # else NumPy's would import Dask
        return values
    from dask.base import is_dask_collection  # noqa: PLC0415 - slow to import, rarely used

    if not is_dask_collection(values):  # such as a DataArray of NumPy
        return values
    client = named_client()
    return values.compute() if client is None else client.compute(values, sync=True)


def persisted(collection: Any) -> Any:
    """Return a Dask collection whose blocks are in memory, on the client that a user named, if any."""
    client = named_client()
    return collection.persist() if client is None else client.persist(collection)


@contextmanager
def computing_on(cluster: AnyCluster | None) -> Iterator[None]:
    """Compute Dask collections on the client that a cluster is or has, in this context and in no other thread."""
    client = client_of(cluster)
    if not is_a(client, "distributed", "Client"):
        yield
        return
    token = _COLLECTIONS_ON.set(client)
    try:
        yield
    finally:
        _COLLECTIONS_ON.reset(token)


def _require_client(client: object) -> None:
    if is_client(client):
        return
    raise UsageError(
        f"client takes a dask.distributed.Client or a cluster object, such as LocalCluster(), not a value of type "
        f"{type(client).__name__}. Pass the address of a scheduler as Cluster(scheduler='tls://...')."
    )


def address_of(client: Any) -> tuple[str, Security | None]:
    """Return the address and the Security of a client's or a cluster object's scheduler."""
    from distributed import Client  # noqa: PLC0415 - imported already to create the client

    is_client = isinstance(client, Client)
    role = "client" if is_client else "cluster"
    if getattr(client, "asynchronous", False):
        raise UsageError(
            f"The Dask {role} is asynchronous, and dpdist waits for results. Call dpdist in a thread, such as "
            "`await asyncio.to_thread(dpdist.release_rows, rows, release, request, cluster=cluster)`; or create a "
            f"synchronous {role}, without asynchronous=True."
        )
    address = getattr(client.scheduler, "address", None) if is_client else client.scheduler_address
    status = getattr(client.status, "name", client.status) if hasattr(client, "status") else None
    # a cluster that was not started has a message instead of an address
    if status in _CLOSED or not isinstance(address, str) or "://" not in address:
        raise DataError(f"The Dask {role} is {status if status in _CLOSED else 'not connected'}. Create a new one.")
    return address, getattr(client, "security", None)
