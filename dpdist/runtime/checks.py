"""What a process does before it holds rows or sums: no core dumps, one version of dpdist, no values in errors."""

from __future__ import annotations

import ctypes
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dpdist._version import __version__
from dpdist.errors import DataError, DpdistError
from dpdist.naming import Face, current_face, naming
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from distributed import Client

Result = TypeVar("Result")
Place = tuple[Store, str]  # a store, and an object in it that every process reads; "" is the store itself
_PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Turn core dumps of this process off, for good: one would write un-noised sums to a disk. Cheap, idempotent.

    Child processes inherit the limit of zero bytes. It stops no crash reporter to which the kernel pipes an image, so
    on Linux the process is marked as not dumpable too: no other process of the user can then read its memory.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@dataclass(frozen=True)
class ClientInfo:
    """The process that submits a task: how its messages name parameters, and the version that it runs."""

    face: Face
    version: str

    @classmethod
    def here(cls) -> ClientInfo:
        """Return this process."""
        return cls(current_face(), __version__)


def guarded(client_info: ClientInfo, function: Callable[..., Result], *arguments: Any) -> Result:
    """Run a task so that an error carries no value: our own errors pass, of others only type and place remain.

    Dask copies exceptions into logs and dashboards, and libraries quote cells. A process of another version is refused:
    it could sum other bits, without a word.
    """
    forbid_core_dumps()
    try:
        with naming(client_info.face):
            _require_version(client_info.version)
            return function(*arguments)
    except DpdistError as error:
        failure = type(error)(*error.args)
    except Exception as error:  # noqa: BLE001 - whatever it is, its text may quote data
        place = traceback.extract_tb(error.__traceback__)[-1]
        # of a script's function, which is sent by value, cloudpickle 3.1.3 and newer do not tell the file
        where = f"{Path(place.filename).name}:{place.lineno} in {place.name}"
        failure = DpdistError(
            f"A task failed with {type(error).__name__} at {where}: a defect in dpdist or its worker."
        )
    raise failure  # outside the handler: the original, and what it quotes, is not chained


def _require_version(asked: str) -> None:
    if asked != __version__:
        raise DataError(_other_version(_own_address(), __version__, asked))


def require_places(places: Sequence[Place]) -> None:
    """Check, in a task, that this process sees what the work reads: it may have come since the work began."""
    for store, key in places:
        if not store.exists(key):
            raise DataError(_unseen(_own_address(), store, key))


def require_fit(client: Client, store: Store, key: str) -> None:
    """Check that every worker that is there now runs this version and sees a place; there need be none."""
    for address, answer in client.run(_traits, store, key, on_error="return").items():
        if isinstance(answer, DpdistError):
            raise answer
        if isinstance(answer, OSError):  # a worker of an adaptive cluster that left meanwhile
            continue
        if isinstance(answer, Exception):  # such as what it cannot unpickle
            raise DataError(
                f"The worker {address} cannot import dpdist {__version__}, or what it needs. Install the same dpdist "
                "where workers run; a cluster service takes it as a package of its software environment or image."
            )
        version, sees = answer
        if version != __version__:
            raise DataError(_other_version(address, version, __version__))
        if not sees:
            raise DataError(_unseen(address, store, key))


def _traits(store: Store, key: str) -> tuple[str, bool]:
    forbid_core_dumps()  # sums of others may reach a worker before its first task does
    return __version__, store.exists(key)


def _unseen(address: str, store: Store, key: str) -> str:
    return (
        f"The worker {address} does not see {store.address(key)}. Put it on a file system that every worker mounts "
        "under the same name."
    )


def _other_version(address: str, version: str, asked: str) -> str:
    return f"The worker {address} runs dpdist {version}, not {asked}: install the same."


def _own_address() -> str:
    if "distributed" in sys.modules:
        from distributed import get_worker  # noqa: PLC0415 - a process that is no worker does without it

        try:
            return str(get_worker().address)
        except ValueError:  # this is no worker
            pass
    return "of this process"
