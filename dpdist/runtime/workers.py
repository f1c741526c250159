"""What a worker must be before rows or sums reach it: of this version, seeing what it reads, heard by nobody."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from distributed import Client, Future, Worker
from distributed.versions import VersionMismatchWarning

from dpdist._util.ids import random_token
from dpdist._util.progress import Count, Progress
from dpdist._version import __version__
from dpdist.errors import DataError
from dpdist.runtime.asker import other_version
from dpdist.runtime.process import forbid_core_dumps
from dpdist.storage.store import Store

WORKER_SECONDS = 600
"""How long the first worker may take: a cloud starts a machine for it, and a batch system a job."""
_LOOK_SECONDS = 0.5


class Traits(NamedTuple):
    """What a worker says of itself: its version, whether it sees a place, and where it listens."""

    version: str
    sees: bool
    listens: tuple[str, ...]


def check_worker(worker: Worker, store: Store, key: str, asked: str) -> None:
    """Check, on a worker, that it may have work: also on one that has come since the work began.

    Parameters
    ----------
    worker
        The worker that this runs on.
    store, key
        A store, and an object in it that the work reads; "" is the store itself.
    asked
        The version of whoever submits the work.

    Raises
    ------
    DataError
        Naming the worker, and what to do.
    """
    fault = _fault(worker.address, _traits(store, key, worker), store, key, asked)
    if fault is not None:
        raise DataError(fault)


def require_fit(client: Client, store: Store, key: str) -> dict[str, tuple[str, ...]]:
    """Check that every worker that is there now may have work; there need be none.

    Returns
    -------
    dict
        On which addresses the scheduler and each worker listen, by the address at which it is reached.

    Raises
    ------
    DataError
        Naming a worker that may not, and what to do.
    """
    # what a worker cannot unpickle is an error without a type: so first a task that needs nothing of ours
    for address, each in client.run(import_module, __name__, on_error="return").items():
        if isinstance(each, Exception):
            raise DataError(_without_dpdist(address, client))
    found: dict[str, Traits] = client.run(_traits, store, key)
    for address, traits in found.items():
        fault = _fault(address, traits, store, key, __version__)
        if fault is not None:
            raise DataError(fault)
    listens: tuple[str, ...] = client.run_on_scheduler(_listens_of_scheduler)
    return {client.scheduler.address: listens, **{address: each.listens for address, each in found.items()}}


def require_kept(client: Client) -> None:
    """Check that no worker may write a task's result to its disk.

    Raises
    ------
    DataError
        Naming a worker that may, and what to do.
    """
    for address, spills in client.run(_spills).items():
        if spills:
            raise DataError(
                f"The worker {address} may spill un-noised sums to its disk. Start it with distributed.worker.memory."
                "target and .spill set to False, as in cluster/worker.env; where a script starts it, call "
                "dask.config.set({'distributed.worker.memory.target': False, 'distributed.worker.memory.spill': "
                "False}) first."
            )


def await_worker(client: Client, progress: Progress | None) -> Future:
    """Wait for the first worker of a cluster, if it has none.

    One that adapts to what there is to do starts no worker for nothing, and closes one that is idle: between two steps
    it might close all. So there is a task, which names no data, and whose result takes a few bytes of a worker.

    Returns
    -------
    Future
        That of the task: a cluster that adapts has a worker as long as it is held.

    Raises
    ------
    DataError
        If none comes in time.
    """
    knock = client.submit(os.getpid, pure=False, key=f"dpdist-wait-{random_token()}")
    if _are_some(client):
        return knock
    count, until = Count(progress, "Waiting for workers", 1), time.monotonic() + WORKER_SECONDS
    while not _are_some(client):
        if time.monotonic() > until:
            raise DataError(_NO_WORKER.format(address=client.scheduler.address, seconds=WORKER_SECONDS))
        time.sleep(_LOOK_SECONDS)
    count.one()
    return knock


def _are_some(client: Client) -> bool:
    return bool(client.scheduler_info(n_workers=1)["workers"])


_NO_WORKER = (
    "The scheduler at {address} has no workers after {seconds} seconds. Start some with: dask worker {address} --host "
    "127.0.0.1 --dashboard-address 127.0.0.1:0; or let its cluster start them, with scale() or adapt()."
)


def _traits(store: Store, key: str, dask_worker: Any) -> Traits:
    forbid_core_dumps()  # sums of others may reach a worker before its first task does
    return Traits(__version__, store.exists(key), listens_of(dask_worker))


def listens_of(server: Any) -> tuple[str, ...]:
    """Return the addresses on which a worker or a scheduler listens."""
    return tuple(each.listen_address for each in server.listeners)


def _listens_of_scheduler(dask_scheduler: Any) -> tuple[str, ...]:
    return listens_of(dask_scheduler)


def _spills(dask_worker: Any) -> bool:
    memory = dask_worker.memory_manager
    return bool(memory.memory_target_fraction or memory.memory_spill_fraction)


def _fault(address: str, found: Traits, store: Store, key: str, asked: str) -> str | None:
    """Say why a worker may not have work; None if it may."""
    if found.version != asked:
        return other_version(address, found.version, asked)
    if not found.sees:
        return (
            f"The worker {address} does not see {store.address(key)}. Put it on a file system that every worker mounts "
            "under the same name."
        )
    return None


def warn_of_versions(client: Client) -> None:
    """Say which versions differ between this process, the scheduler and the workers, of those that matter to Dask.

    What dpdist computes is the same with all of them; Dask's messages and pickles may not be.
    """
    found: dict[str, Any] = client.get_versions()
    here = _versions(found["client"])
    differ: dict[str, list[str]] = {}
    for who, told in {"the scheduler": found["scheduler"], **found["workers"]}.items():
        there = _versions(told)
        # a scheduler computes nothing
        names = [name for name in _COMPARED if there.get(name) and (name != "numpy" or who != "the scheduler")]
        said = ", ".join(
            f"{name} {there[name]} (here {here[name]})"
            for name in names
            if _compared(name, there[name]) != _compared(name, here[name])
        )
        if said:
            differ.setdefault(said, []).append(who if who == "the scheduler" else f"the worker {who}")
    for said, where in differ.items():
        others = f" and {len(where) - 1} more" if len(where) > 1 else ""
        warnings.warn(
            VersionMismatchWarning(
                f"Versions differ: {where[0]}{others} runs {said}. What is sent may not be understood: install the "
                "same everywhere."
            ),
            stacklevel=2,
        )


_COMPARED = ("python", "dask", "distributed", "numpy")


def _versions(told: Any) -> dict[str, str]:
    """Return the versions of packages from what a process told; none, if it told nothing."""
    packages = told.get("packages") if isinstance(told, dict) else None
    found = {name: version for name, version in (packages or {}).items() if isinstance(version, str)}
    return found | {name: ".".join(found[name].split(".")[:3]) for name in {"python"} & found.keys()}  # 3.12.1.final.0


def _compared(name: str, version: str) -> list[str]:
    """Return as much of a version as matters: pickles are those of a Python 3.x, arrays those of a NumPy x."""
    return version.split(".")[: {"python": 2, "numpy": 1}.get(name)]


def _without_dpdist(address: str, client: Client) -> str:
    """Say what a worker that cannot import this module has in its place, as far as Dask can tell."""
    told: Mapping[str, Any] = client.get_versions(packages=["dpdist"])["workers"].get(address) or {}
    found = told.get("packages", {}).get("dpdist")
    if found not in {None, __version__}:
        return other_version(address, found, __version__)
    return (
        f"The worker {address} cannot import dpdist. Install dpdist {__version__} where workers run; a cluster service "
        "takes it as a package of its software environment or image."
    )
