"""Where to compute: on an existing cluster, or on workers of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist._util.progress import Progress
from dpdist.errors import DataError, UsageError
from dpdist.naming import parameter
from dpdist.runtime.here import START_SECONDS, Here
from dpdist.runtime.process import forbid_core_dumps
from dpdist.runtime.tls import Certificates, require_safe
from dpdist.storage.atomic import scratch

if TYPE_CHECKING:
    from dpdist.runtime.engine import Engine


@dataclass(frozen=True)
class Cluster:
    """Where to compute: on an existing Dask cluster, or on worker processes of this machine.

    Parameters
    ----------
    scheduler : str, default None
        Address of an existing Dask scheduler, such as ``tls://10.0.0.1:8786``. None: worker processes on this machine,
        which listen on the loopback interface only.
    workers : int, default None
        Number of local worker processes. None: one per core; and none at all for a table so small that this process has
        summed it before they have started.
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
        if self.scheduler is not None and self.workers is not None:
            raise UsageError("Give either a scheduler or a number of local workers, not both.")
        if self.client is not None:
            if self.scheduler is not None or self.workers is not None or self.certificates is not None:
                raise UsageError(
                    "A client knows its scheduler, workers and certificates: give either client, or the others."
                )
            from dpdist.runtime.clients import require_given  # noqa: PLC0415 - Dask takes its time, and a small table needs none of it

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
                f"{parameter('tls_ca')}, {parameter('tls_cert')} and {parameter('tls_key')} out. Worker processes on "
                "this machine get keys of their own."
            )

    @property
    def named(self) -> bool:
        """Whether a cluster or a number of workers was named, for what this process could do as well."""
        return self.scheduler is not None or self.workers is not None or self.client is not None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, for another process.

        Raises
        ------
        UsageError
            If one is a client, which belongs to this process.
        """
        if self.client is not None:
            raise UsageError(
                "A dpdist.Cluster of a Dask client or cluster object cannot be sent to another process: name the "
                "scheduler by its address there."
            )
        return dict(vars(self))

    def __deepcopy__(self, _memo: Any) -> Cluster:
        """Return this very one: it cannot change, and scikit-learn's clone copies what a client cannot stand."""
        return self

    def spared(self, seconds: float) -> bool:
        """Whether no worker is needed: nobody named one, and this process is done before one would have started."""
        return not self.named and not self.trusted_worker and seconds < START_SECONDS

    @contextmanager
    def computing(self, seconds: float, *, trusted_worker: bool = False) -> Iterator[Engine | Here]:
        """Compute here or on workers, for the time of a block: here if no worker is needed (:meth:`spared`).

        Parameters
        ----------
        seconds
            What the work takes one process; infinite where nobody knows.
        trusted_worker
            Whether one of the workers must be the trusted one.
        """
        if self.spared(seconds):
            forbid_core_dumps()
            yield Here(self.progress)
        else:
            with self.connected(trusted_worker=trusted_worker) as engine:
                yield engine

    @contextmanager
    def connected(self, *, trusted_worker: bool = False) -> Iterator[Engine]:
        """Connect for the time of a block; with ``trusted_worker`` one of the workers must be the trusted one."""
        from dpdist.runtime import connection  # noqa: PLC0415 - Dask takes its time, and a small table needs none of it

        with ExitStack() as stack:
            existing = self.scheduler is not None or self.client is not None
            folder = None if existing else _folder_of_workers(stack)
            yield stack.enter_context(
                connection.connected(
                    self.scheduler,
                    self.workers,
                    client=self.client,
                    trusted_worker=trusted_worker,
                    certificates=self.certificates,
                    insecure=self.insecure,
                    folder=folder,
                    progress=self.progress,
                )
            )

    @contextmanager
    def kept(self) -> Iterator[Cluster]:
        """Give the same cluster, connected to when it is first needed and kept for the rest of the block."""
        with ExitStack() as stack:
            shared = {name: getattr(self, name) for name in Cluster.__dataclass_fields__}
            yield _KeptCluster(**shared, stack=stack)


def chosen(given: Cluster | None) -> Cluster:
    """Return what was given for a cluster, or one on this machine.

    Raises
    ------
    UsageError
        If it is something else, such as a Dask client.
    """
    if given is None:
        return Cluster()
    if not isinstance(given, Cluster):
        raise UsageError(
            f"cluster takes a dpdist.Cluster, not a value of type {type(given).__name__}. Pass a Dask client or a "
            "cluster object as dpdist.Cluster(client=...)."
        )
    return given


def _folder_of_workers(stack: ExitStack) -> Path:
    """Make a folder for what local workers leave, in TMPDIR; removed when the stack is closed."""
    parent = Path(tempfile.gettempdir())
    try:
        return stack.enter_context(scratch(parent, "dpdist-workers"))
    except OSError as error:
        raise DataError(
            f"The workers' files cannot be put in {parent}: {error.strerror}. Set TMPDIR to a folder on a local disk."
        ) from None


@dataclass(frozen=True)
class _KeptCluster(Cluster):
    """A cluster that is connected to once."""

    stack: ExitStack = field(default_factory=ExitStack)
    engines: list[Engine] = field(default_factory=list)

    def spared(self, seconds: float) -> bool:
        """Whether no worker is needed, and none is there."""
        return not self.engines and super().spared(seconds)

    @contextmanager
    def connected(self, *, trusted_worker: bool = False) -> Iterator[Engine]:  # noqa: ARG002
        """Give the one connection."""
        if not self.engines:
            self.engines.append(self.stack.enter_context(super().connected(trusted_worker=self.trusted_worker)))
        yield self.engines[0]
