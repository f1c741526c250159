"""Preparations of a process that holds rows or sums: no core dumps, one version of dpdist, no values in errors."""

from __future__ import annotations

import ctypes
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dpdist.core._version import __version__
from dpdist.core.errors import DataError, DpdistError
from dpdist.core.naming import Interface, current_interface, naming
from dpdist.core.storage.store import Store

if TYPE_CHECKING:
    from distributed import Client

Result = TypeVar("Result")
StoredObject = tuple[Store, str]  # a store, and the key of an object in it, or "" for the store itself
_PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Disable core dumps of this process for good: one would write sums without noise to a disk. Cheap, idempotent.

    Child processes inherit the limit. A crash reporter that the kernel pipes a dump to ignores it, so on Linux the
    process is also marked as not dumpable: then no other process of the user can read its memory.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@dataclass(frozen=True)
class ClientInfo:
    """The process that submits a task: its version, and how its messages name parameters."""

    interface: Interface
    version: str

    @classmethod
    def current(cls) -> ClientInfo:
        """Describe this process."""
        return cls(current_interface(), __version__)


def guarded(client_info: ClientInfo, function: Callable[..., Result], *arguments: Any) -> Result:
    """Run a task so that errors contain no values: of errors that are not ours, only type and location remain.

    Dask copies exceptions into logs and dashboards, and libraries quote cells. A process with another version is
    refused, because it could silently compute other bits.
    """
    forbid_core_dumps()
    try:
        with naming(client_info.interface):
            _require_version(client_info.version)
            return function(*arguments)
    except DpdistError as error:
        failure = type(error)(*error.args)
    except Exception as error:  # noqa: BLE001 - any text may quote data
        frame = traceback.extract_tb(error.__traceback__)[-1]
        # the location of a function that was sent by value is incomplete with cloudpickle 3.1.3 and newer
        location = f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
        failure = DpdistError(
            f"A task failed with {type(error).__name__} at {location}: a defect in dpdist or its worker."
        )
    raise failure  # outside the handler, so that the original, and its text, is not chained


def _require_version(required: str) -> None:
    if required != __version__:
        raise DataError(_other_version(_own_address(), __version__, required))


def require_objects(objects: Sequence[StoredObject]) -> None:
    """Check in a task that this worker, which may have joined late, sees the objects that the task reads."""
    for store, key in objects:
        if not store.exists(key):
            raise DataError(_unseen(_own_address(), store, key))


def require_fit(client: Client, store: Store, key: str) -> None:
    """Check that all current workers, if any, run this version and see an object."""
    for address, answer in client.run(_traits, store, key, on_error="return").items():
        if isinstance(answer, DpdistError):
            raise answer
        if isinstance(answer, OSError):  # a worker of an adaptive cluster that has left
            continue
        if isinstance(answer, Exception):  # such as a failed import while unpickling
            raise DataError(
                f"The worker {address} cannot import dpdist {__version__}, or a dependency. Install the same dpdist "
                "for the workers; on a cluster service, add it to the software environment or image."
            )
        version, sees = answer
        if version != __version__:
            raise DataError(_other_version(address, version, __version__))
        if not sees:
            raise DataError(_unseen(address, store, key))


def spills(dask_worker: Any) -> bool:
    """Return on a worker whether it writes results to its disk when its memory is short."""
    return not isinstance(dask_worker.data, dict)


def _traits(store: Store, key: str) -> tuple[str, bool]:
    forbid_core_dumps()  # a worker may receive sums before its first task
    return __version__, store.exists(key)


def _unseen(address: str, store: Store, key: str) -> str:
    return (
        f"The worker {address} does not see {store.address(key)}. Put it on a file system that every worker mounts "
        "at the same path."
    )


def _other_version(address: str, version: str, required: str) -> str:
    return f"The worker {address} runs dpdist {version}, not {required}. Install the same version."


def _own_address() -> str:
    if "distributed" in sys.modules:
        from distributed import get_worker  # noqa: PLC0415 - only workers need it

        try:
            return str(get_worker().address)
        except ValueError:  # not a worker
            pass
    return "of this process"
