"""Connecting to a scheduler, also to that of a client or cluster object of the user, which stay his."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from dpdist.errors import DataError, UsageError
from dpdist.naming import parameter
from dpdist.runtime.tls import Certificates, parts_of

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

CONNECT_SECONDS = 15
_GONE = {"closed", "closing", "stopping", "stopped", "failed"}


def start_tracker() -> None:
    """Start multiprocessing's tracker: if this process is ended half-way it tidies up, and shall not say so."""
    wanted = {"PYTHONWARNINGS": "ignore::UserWarning", "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        resource_tracker.ensure_running()
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextmanager
def connection(scheduler: Any, security: Security | None, cure: str) -> Iterator[Client]:
    """Connect by a client of our own, for the time of a block."""
    from distributed import Client  # noqa: PLC0415 - threads of this process need none of it

    # Dask's complaints about an address: no port, an unknown protocol, TLS without certificates
    try:
        if isinstance(scheduler, str):
            _require_answer(scheduler)
        made = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError):
        raise DataError(f"No Dask scheduler answers at {scheduler}. {cure}") from None
    with made:
        yield made


def _require_answer(scheduler: str) -> None:
    """Wait for the greeting of a scheduler without TLS: for that a client waits without a limit."""
    protocol, host, port = parts_of(scheduler)
    if protocol == "tcp":
        with socket.create_connection((host, port or 8786), CONNECT_SECONDS) as made:
            if not made.recv(1):
                raise ConnectionError


@contextmanager
def silent() -> Iterator[None]:
    """Let Dask's loggers print nothing: of a lost scheduler they print a traceback, and we say it in words."""

    def nothing(_: logging.LogRecord) -> bool:
        return False

    handlers = [*logging.getLogger("distributed").handlers]
    for each in handlers:
        each.addFilter(nothing)
    try:
        yield
    finally:
        for each in handlers:
            each.removeFilter(nothing)


def cure_of(certificates: Certificates | None) -> str:
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


CURE_OF_GIVEN = (
    "Check that the cluster of the client or object that was given still runs; where it is encrypted, that its "
    "Security has a CA, and the client's certificate and key."
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
