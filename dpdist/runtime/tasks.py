"""What the workers of a cluster run, and how private values travel between them (:mod:`dpdist.runtime.sums`)."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import reduce
from typing import Any, TypeVar

import cloudpickle
from distributed.protocol import dask_deserialize, dask_serialize

from dpdist.runtime.checks import Asker, Place, guarded, require_places
from dpdist.runtime.local import Secret, Work

Result = TypeVar("Result")


class Private:
    """A result of a task that is sent between processes, and that no worker writes to a disk."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + int(self.value.__sizeof__())

    def __reduce__(self) -> str:
        """Refuse: Dask pickles what it writes to a disk."""
        raise TypeError("private values are sent, and not stored")


@dask_serialize.register(Private)  # type: ignore[untyped-decorator]
def _sent(private: Private, context: Any = None) -> tuple[dict[str, Any], list[Any]]:
    if context is None:  # only a connection gives one
        raise TypeError("private values are sent, and not stored")
    buffers: list[pickle.PickleBuffer] = []
    # functions of a script are in what units share
    content = cloudpickle.dumps(private.value, protocol=5, buffer_callback=buffers.append)
    return {}, [content, *(each.raw() for each in buffers)]


@dask_deserialize.register(Private)  # type: ignore[untyped-decorator]
def _received(_: dict[str, Any], frames: list[Any]) -> Private:
    return Private(pickle.loads(frames[0], buffers=frames[1:]))  # noqa: S301 - of a worker, which runs our code anyway


class Pass:
    """What all units of a pass share, on a worker."""

    def __init__(self, work: Work, asker: Asker, places: Sequence[Place]) -> None:
        self.work, self.asker, self.places = work, asker, places
        self._turn = threading.BoundedSemaphore(work.threads) if work.threads else None

    def __getstate__(self) -> tuple[Any, ...]:
        return self.work, self.asker, self.places

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def unit(self, unit: Any) -> Any:
        """Compute a unit, when there is memory for it."""
        require_places(self.places)
        if self._turn is None:
            return self.work.computed(unit)
        with self._turn:
            return self.work.computed(unit)


def shared_by(content: Secret) -> Private:
    """Hold what all units share: Dask makes the result of a task again when all workers that had it are lost."""
    return Private(cloudpickle.loads(content.content))


def unit_of(unit: Any, asker: Asker, shared: Private) -> Any:
    """Compute a unit; a result that is added is private."""
    found = guarded(asker, shared.value.unit, unit)
    return found if shared.value.work.add is None else Private(found)


def added(asker: Asker, add: Callable[[Any, Any], Any], *parts: Private) -> Private:
    """Add sums, which stay as they are."""
    return Private(guarded(asker, total_of, add, parts))


def total_of(add: Callable[[Any, Any], Any], parts: Sequence[Private]) -> Any:
    """Return the sum of parts, which stay as they are."""
    first, *others = (each.value for each in parts)
    return reduce(add, others, deepcopy(first))  # an addition changes the first, which is another task's result


def concluded(
    asker: Asker, add: Callable[[Any, Any], Any], function: Callable[..., Result], arguments: Any, *parts: Private
) -> Result:
    """Add the last sums, and call a function with the total as its last argument: at the trusted worker."""
    return guarded(asker, lambda: function(*arguments, total_of(add, parts)))
