"""What people have of Dask in Python: a client, or the object that made a cluster. It stays theirs.

Nothing here imports the package of a cluster service. A client is Dask's own class; every cluster object, of Dask or of
others, has a scheduler's address and may have a ``Security``, because ``Client(cluster)`` asks for these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dask
from distributed import Client
from distributed.security import Security

from dpdist.errors import DataError, UsageError

_GONE = {"closed", "closing", "stopping", "stopped", "failed"}


class Known(NamedTuple):
    """What it takes to connect to a scheduler as somebody else did."""

    address: str
    security: Security | None


def require_given(given: Any) -> None:
    """Check that something is a client or a cluster object; neither is asked anything.

    Raises
    ------
    UsageError
        If it is neither.
    """
    if isinstance(given, Client) or (hasattr(given, "scheduler_address") and not isinstance(given, type)):
        return
    raise UsageError(
        f"client takes a dask.distributed.Client or a cluster object, such as LocalCluster(), not a value of type "
        f"{type(given).__name__}. Pass the address of a scheduler as Cluster(scheduler='tls://...')."
    )


def known(given: Any) -> Known:
    """Say where a client or a cluster object computes, and by which keys it connects.

    Raises
    ------
    UsageError
        If it is asynchronous and this is its event loop: who waits here would stop it.
    DataError
        If it is closed, or not started.
    """
    what = "client" if isinstance(given, Client) else "cluster"
    if _asynchronous(given):
        raise UsageError(
            f"The Dask {what} is asynchronous, and dpdist waits for its results. Call dpdist in a thread, such as "
            "`await asyncio.to_thread(dpdist.release_rows, rows, release, request, cluster=cluster)`; or make a "
            f"synchronous {what}, which Dask makes where asynchronous=True is not asked for."
        )
    address = getattr(given.scheduler, "address", None) if isinstance(given, Client) else given.scheduler_address
    status = getattr(given.status, "name", given.status) if hasattr(given, "status") else None
    # a cluster that was not started has a sentence in the place of its address
    if status in _GONE or not isinstance(address, str) or "://" not in address:
        raise DataError(f"The Dask {what} is {status if status in _GONE else 'not connected'}. Make a new one.")
    return Known(address, getattr(given, "security", None))


def current() -> Client | None:
    """Return the client by which Dask would compute now; None where it would compute in this process.

    Raises
    ------
    UsageError
        If it is asynchronous: then nothing can be waited for here.
    """
    try:
        client = getattr(dask.base.get_scheduler(), "__self__", None)
        found = client if isinstance(client, Client) else None
        if found is None or not _asynchronous(found):
            return found
    except RuntimeError:  # what Dask says of such a client, in words about its own functions
        pass
    raise UsageError(
        "The current Dask client is asynchronous, or dask.config asks for a client and there is none. dpdist waits for "
        "its results, which needs a synchronous client. Make one with Client(address), or call dpdist in a thread, "
        "such as `await asyncio.to_thread(estimator.fit, X)`."
    )


def _asynchronous(given: Any) -> bool:
    return bool(getattr(given, "asynchronous", False))
