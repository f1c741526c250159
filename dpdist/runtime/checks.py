"""What is asked of a process before rows or sums are in it, and of the errors that leave it."""

from __future__ import annotations

import ctypes
import resource
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dpdist._version import __version__
from dpdist.errors import DataError, DpdistError
from dpdist.naming import Face, current_face, naming
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from distributed import Client

Result = TypeVar("Result")
Place = tuple[Store, str]
"""A store, and an object in it that every process reads; "" is the store itself."""
_PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Turn core dumps of this process off, for good; child processes inherit the limit. Cheap, and idempotent.

    A process that sums private rows holds un-noised sums; a core dump would write them to a disk. A limit of zero bytes
    stops core files. It does not stop a crash reporter to which the kernel pipes an image (``core_pattern`` with a
    ``|``). So on Linux the process is marked as not dumpable too: then other processes of the same user can no longer
    attach to it or read its memory. A program that it starts begins without that mark.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@dataclass(frozen=True)
class Asker:
    """Whoever submits a task: how messages name parameters to him, and the version that he runs."""

    face: Face
    version: str

    @classmethod
    def here(cls) -> Asker:
        """Return the one that is this process."""
        return cls(current_face(), __version__)


def guarded(asker: Asker, function: Callable[..., Result], *arguments: Any) -> Result:
    """Run a task so that an error carries no value: our own errors pass, of others only type and place remain.

    Dask copies exceptions into logs and dashboards, and libraries quote cells. A process of another version is refused:
    it could sum other bits, without a word.
    """
    forbid_core_dumps()
    try:
        with naming(asker.face):
            _require_version(asker.version)
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
    # what a worker cannot unpickle is an error without a type: so first a task that needs nothing of ours
    for address, each in _answers(client, import_module, __name__).items():
        if isinstance(each, Exception):
            raise DataError(_without_dpdist(address, client))
    for address, each in _answers(client, _traits, store, key).items():
        if isinstance(each, Exception):
            raise each
        version, sees = each
        if version != __version__:
            raise DataError(_other_version(address, version, __version__))
        if not sees:
            raise DataError(_unseen(address, store, key))


def _answers(client: Client, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Run a function on each worker; those of an adaptive cluster that leave meanwhile have no answer."""
    answers = client.run(function, *arguments, on_error="return")
    return {address: each for address, each in answers.items() if not isinstance(each, OSError)}


def _traits(store: Store, key: str) -> tuple[str, bool]:
    forbid_core_dumps()  # sums of others may reach a worker before its first task does
    return __version__, store.exists(key)


def _unseen(address: str, store: Store, key: str) -> str:
    return (
        f"The worker {address} does not see {store.address(key)}. Put it on a file system that every worker mounts "
        "under the same name."
    )


def _other_version(address: str, found: str, asked: str) -> str:
    return f"The worker {address} runs dpdist {found}, not {asked}: install the same."


def _without_dpdist(address: str, client: Client) -> str:
    """Say what a worker that cannot import this module has in its place, as far as Dask can tell."""
    told: Mapping[str, Any] = client.get_versions(packages=["dpdist"])["workers"].get(address) or {}
    found = told.get("packages", {}).get("dpdist")
    if found not in {None, __version__}:
        return _other_version(address, found, __version__)
    return (
        f"The worker {address} cannot import dpdist. Install dpdist {__version__} where workers run; a cluster service "
        "takes it as a package of its software environment or image."
    )


def _own_address() -> str:
    if "distributed" not in sys.modules:  # this is no worker
        return "of this process"
    from distributed import get_worker  # noqa: PLC0415 - a process that is no worker does without it

    try:
        return str(get_worker().address)
    except ValueError:
        return "of this process"
