"""The only module that knows the scheduler: connect or start, run tasks, reduce, pin, gather, show progress.

It is generic: it takes pure functions and their arguments and knows nothing of rows or privacy. Arguments of tasks
are public (paths, bounds); private sums exist only as results of tasks, on the workers. A task that fails raises an
error that carries a code or a type name and never a value, because Dask copies exceptions into logs and dashboards.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import click
import dask
from cryptography import x509
from distributed import Client, Future, KilledWorker, LocalCluster, wait
from distributed.comm import CommClosedError, parse_address, parse_host_port
from distributed.core import rpc
from distributed.security import Security

import dpdist
from dpdist.errors import DataError, DpdistError, RefusedError, ResumableError, UsageError
from dpdist.process import forbid_core_dumps

Task = TypeVar("Task")
Result = TypeVar("Result")

CONNECT_SECONDS = 15
LOST_SECONDS = 60
"""How long a pass waits for a worker when there is none left."""
_LOOK_SECONDS = 5
_FAN_IN = 4
"""Inputs of one addition: an explicit tree of this width peaks lowest (four partials in memory at once)."""

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


@dataclass(frozen=True)
class Certificates:
    """The files with which this process shows a cluster who it is, and knows the cluster: PEM, the key unencrypted."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, authority: Path | None, certificate: Path | None, key: Path | None) -> Certificates | None:
        """Take all three files, or none.

        Raises
        ------
        UsageError
            If only some are given.
        """
        if authority and certificate and key:
            return cls(authority, certificate, key)
        if authority or certificate or key:
            raise UsageError(
                "TLS needs three files: the cluster's CA (--tls-ca), a certificate (--tls-cert) and its key "
                "(--tls-key). Give all of them, or none."
            )
        return None

    def security(self) -> Security:
        """Check the files and return what Dask connects with, to encrypted addresses only.

        Raises
        ------
        DataError
            If a file cannot be read, is damaged or does not belong to the others, or a certificate has expired.
        """
        _require_valid(self.authority, "--tls-ca")
        _require_valid(self.certificate, "--tls-cert")
        try:
            self.key.open("rb").close()
            # an encrypted key would otherwise be asked for on the terminal
            ssl.create_default_context().load_cert_chain(self.certificate, self.key, password="")
        except ssl.SSLError:
            raise DataError(
                f"{self.key} is not the unencrypted PEM key of {self.certificate}. Pass the key that was made with "
                "the certificate (--tls-key)."
            ) from None
        except OSError as error:
            raise DataError(f"The key {self.key} cannot be read: {error.strerror} (--tls-key).") from None
        return Security(
            require_encryption=True,
            tls_ca_file=str(self.authority),
            tls_client_cert=str(self.certificate),
            tls_client_key=str(self.key),
        )


def _require_valid(path: Path, option: str) -> None:
    """Check that a file holds certificates that are valid now."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise DataError(f"The certificate {path} cannot be read: {error.strerror} ({option}).") from None
    except ValueError:
        raise DataError(f"{path} holds no certificate in PEM format ({option}).") from None
    now = datetime.now(UTC)
    for certificate in found:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise DataError(
                f"The certificate {path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to "
                f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, not now: make new ones with "
                f"cluster/make-certificates, or set the clock ({option})."
            )


def require_safe(scheduler: str, certificates: Certificates | None, *, insecure: bool) -> None:
    """Refuse an address where others could read what is sent, before anything is sent.

    Only ``tls://`` is encrypted. Plain ``tcp://`` may stay on this machine: 127.0.0.0/8, ::1 or localhost. Other names
    are not looked up, because what they mean may change until the connection is made.

    Raises
    ------
    RefusedError
        If the address is neither, unless told to be ``insecure``.
    UsageError
        If the address and the certificates do not go together.
    """
    protocol, place = parse_address(scheduler)
    if protocol == "tls":
        if certificates is None:
            raise UsageError(
                f"The scheduler {scheduler} speaks TLS: pass the cluster's CA and your certificate and key (--tls-ca, "
                "--tls-cert, --tls-key)."
            )
        return
    if certificates is not None:
        raise UsageError(
            f"Certificates are of no use at {scheduler}, which is not encrypted: pass an address that begins with "
            "tls://, or leave --tls-ca, --tls-cert and --tls-key out."
        )
    if not insecure and not (protocol == "tcp" and _on_this_machine(place)):
        raise RefusedError(
            f"The scheduler {scheduler} is on the network and not encrypted: whoever listens there reads un-noised "
            "sums, and whoever connects reads the rows. Start the cluster with TLS (cluster/README.md) and pass a "
            "tls:// address with --tls-ca, --tls-cert and --tls-key; or, where the network itself is safe, "
            "--insecure."
        )


def _on_this_machine(place: str) -> bool:
    try:
        host, _ = parse_host_port(place, 0)
    except ValueError:
        return True  # not an address: nothing can be sent to it, as the attempt to connect will say
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error from the first report on: the function takes what is done and what there is."""
    with ExitStack() as stack:
        bars: list[Any] = []

        def update(done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(click.progressbar(length=total, label=label, file=sys.stderr)))
            bars[0].length = total
            bars[0].update(done - bars[0].pos)

        yield update


def _guarded(function: Callable[..., Result], *arguments: Any) -> Result:
    """Run a task so that an error carries no value: our own errors pass, of others only type and place remain.

    Whoever started this worker, and however often it was restarted, it leaves no core dump with sums in it.
    """
    forbid_core_dumps()
    try:
        return function(*arguments)
    except DpdistError as error:
        failure = type(error)(*error.args)
    except Exception as error:  # noqa: BLE001 - whatever it is, its text may quote data
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        failure = DpdistError(
            f"A task failed with {type(error).__name__} at {where}: a defect in dpdist or its worker."
        )
    raise failure  # outside the handler: the original, and what it quotes, is not chained


def _added(add: Callable[[Sequence[Any]], Any], *parts: Any) -> Any:
    return _guarded(add, parts)


def _probe(path: str, dask_worker: Any) -> tuple[str, bool, bool]:
    memory = dask_worker.memory_manager
    spills = bool(memory.memory_target_fraction or memory.memory_spill_fraction)
    return dpdist.__version__, Path(path).exists(), spills


class Engine:
    """A connection to a cluster; made by :func:`connected`."""

    def __init__(self, client: Client, *, trusted_worker: bool) -> None:
        self._client = client
        self._trusted_worker = trusted_worker

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers, sorted."""
        return sorted(self._client.scheduler_info(n_workers=-1)["workers"])

    def require_path(self, path: Path) -> None:
        """Check that every worker runs this version, sees a path, and keeps its sums in memory.

        Raises
        ------
        DataError
            Naming the worker that does not.
        """
        with _translated():
            try:
                answers = self._client.run(_probe, str(path))
            except (ImportError, AttributeError):
                raise DataError(
                    f"A worker cannot import dpdist. Install dpdist {dpdist.__version__} in the workers' environment."
                ) from None
        for address, (version, seen, spills) in answers.items():
            if version != dpdist.__version__:
                raise DataError(
                    f"The worker {address} runs dpdist {version}, not {dpdist.__version__}: install the same."
                )
            if not seen:
                raise DataError(
                    f"The worker {address} does not see {path}. Put it on a file system that every worker mounts "
                    "under the same name."
                )
            if spills:
                raise DataError(
                    f"The worker {address} may spill un-noised sums to its disk. Start it with distributed.worker."
                    "memory.target and .spill set to False, as in cluster/worker.env."
                )

    def map(self, function: Callable[[Task], None], tasks: Sequence[Task], label: str) -> None:
        """Run a task per argument on whatever worker is free; results are dropped."""
        with _translated():
            futures = [self._submit(function, task) for task in tasks]
            self._watch(futures, label)

    def reduce(
        self,
        function: Callable[[Task], Result],
        add: Callable[[Sequence[Result]], Result],
        groups: Sequence[Sequence[Task]],
        label: str,
    ) -> list[Future]:
        """Run a task per argument and add up the results in a fixed tree, first those of a group, on one worker.

        A group's tasks go to one worker if it is there, elsewhere if it dies. At most four sums remain,
        on the workers; they never pass through here or through the scheduler.
        """
        addresses = self.workers
        with _translated():
            leaves: list[Future] = []
            sums: list[Future] = []
            for i, group in enumerate(groups):
                place = {"workers": [addresses[i % len(addresses)]], "allow_other_workers": True}
                parts = [self._submit(function, task, **place) for task in group]
                leaves += parts
                sums.append(self._sum(add, parts, **place))
            while len(sums) > _FAN_IN:
                sums = [self._sum(add, sums[i : i + _FAN_IN]) for i in range(0, len(sums), _FAN_IN)]
            self._watch(leaves, label)
            return sums

    def _submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        return self._client.submit(_guarded, function, *arguments, pure=False, **options)

    def _sum(self, add: Callable[[Sequence[Any]], Any], parts: list[Future], **options: Any) -> Future:
        if len(parts) == 1:
            return parts[0]
        return self._client.submit(_added, add, *parts, pure=False, **options)

    def _watch(self, futures: list[Future], label: str) -> None:
        with click.progressbar(length=len(futures), label=label, file=sys.stderr) as bar:
            for future in self._completed(futures):
                if future.status != "finished":
                    future.result()  # raises what the task raised
                bar.update(1)

    def _completed(self, futures: list[Future]) -> Iterator[Future]:
        """Yield futures as they end; a scheduler all of whose workers are gone would let us wait for ever."""
        pending, idle_since = set(futures), None
        while pending:
            try:
                with self._client.as_current():
                    found = wait(pending, timeout=_LOOK_SECONDS, return_when="FIRST_COMPLETED")
            except TimeoutError:
                alive = bool(self.workers)
                idle_since = None if alive else idle_since or time.monotonic()
                if idle_since is not None and time.monotonic() - idle_since > LOST_SECONDS:
                    raise ResumableError(
                        f"All workers of the cluster are gone for {LOST_SECONDS} seconds. Start some and run the same "
                        "command again: it resumes at no further cost."
                    ) from None
                continue
            idle_since = None
            pending = found.not_done
            yield from found.done

    def trusted(self, function: Callable[..., Result], *arguments: Any, sums: Sequence[Future] = ()) -> Result:
        """Run a function at the trusted node, with the values of ``sums`` as its last arguments.

        That node is this process, which fetches the sums from the workers directly; or, with ``--trusted worker``, the
        one worker started with ``--resources trusted=1``, which fetches them itself. Dask may run it twice: it
        must be idempotent.
        """
        with _translated():
            if not self._trusted_worker:
                return function(*arguments, *self._client.gather(list(sums), direct=True))
            future = self._submit(function, *arguments, *sums, resources={"trusted": 1})
            (done,) = self._completed([future])
            result: Result = done.result()
            return result


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the scheduler's failures into errors that say what to do."""
    try:
        yield
    except KilledWorker:
        raise ResumableError(
            "Workers died again and again while they summed the rows, most likely for want of memory. Give them more, "
            "or use fewer workers per machine, and run the same command again: it resumes at no further cost."
        ) from None
    except (CancelledError, asyncio.CancelledError, CommClosedError, TimeoutError):
        raise ResumableError(
            "The connection to the cluster was lost. Run the same command again when it is back: it resumes at no "
            "further cost."
        ) from None


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
            "Check the address, such as tcp://127.0.0.1:8786, and that the scheduler runs, or leave --scheduler out to "
            "compute on this machine."
        )
        if security is not None:
            cure = (
                "Check the address and that the scheduler runs; that its certificate has not expired, and is of the "
                f"CA in {security.tls_ca_file}; and that {security.tls_client_cert} is of the CA it trusts."
            )
        raise DataError(f"No Dask scheduler answers at {scheduler} within {CONNECT_SECONDS} seconds. {cure}") from None


def _local_cluster(count: int, *, trusted: bool) -> LocalCluster:
    try:
        return LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            # other users of this machine can reach its loopback interface; these keys live in memory only
            security=Security.temporary(),
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

    Raises
    ------
    DataError
        If the certificates cannot be used, no scheduler answers in time, it has no workers, or none of them is the
        trusted one.
    """
    forbid_core_dumps()
    security = certificates and certificates.security()
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(_LOCAL_CONFIG))
        if scheduler is None:
            address: Any = stack.enter_context(_local_cluster(workers or available_cores(), trusted=trusted_worker))
        else:
            _require_answer(scheduler, security)
            address = scheduler
        client = stack.enter_context(Client(address, timeout=CONNECT_SECONDS, set_as_default=False, security=security))
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise DataError(
                f"The scheduler at {scheduler} has no workers after {CONNECT_SECONDS} seconds. Start some with: "
                f"dask worker {scheduler} --host 127.0.0.1 --dashboard-address 127.0.0.1:0"
            ) from None
        if trusted_worker:
            known = client.scheduler_info(n_workers=-1)["workers"].values()
            if not any("trusted" in worker["resources"] for worker in known):
                raise DataError(
                    "No worker offers the resource `trusted`. Start the trusted one with: dask worker ... "
                    '--resources "trusted=1"'
                )
        yield Engine(client, trusted_worker=trusted_worker)
