"""What other processes do in the tests: reserve, meet, and run the command line until a fault strikes.

::

    python crash_driver.py ACTION POINT MARKER CLUSTER [ARGUMENTS OF dpdist ...]
    python crash_driver.py serve

At POINT the driver writes MARKER, the proof that the fault landed, and then acts:

``kill``       dies by SIGKILL: no handler, no ``finally``, no flush
``interrupt``  interrupts itself as Ctrl-C does
``linger``     waits there to be interrupted from outside
``meet-N``     waits until N processes have come to this point (MARKER is a folder then)
``note``       goes on

CLUSTER ``inline`` computes in this process instead of starting a cluster, ``processes`` is the real thing.

``serve`` imports everything once and then runs each command line it is sent in a process of its own, forked from
there: the same as above, a second faster.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpdist.privacy.places import Place

PATIENCE = 300.0


# --- reserving in several processes -----------------------------------------------------------------------------------

_barrier: Barrier


def meet_at(barrier: Barrier) -> None:
    """Initialise a process of a pool: its tasks start when as many processes as the barrier asks for are there."""
    global _barrier  # noqa: PLW0603 - a barrier can be handed to a process only when it starts
    _barrier = barrier


def _reserve(place: Place, release_ids: Iterator[str], granted: Callable[[str], object]) -> None:
    from dpdist.errors import RefusedError
    from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
    from dpdist.privacy.ledger import Ledger

    ledger = Ledger(place)
    dataset_id = ledger.dataset_id
    guarantee = Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss.parse("1"), None, Arithmetic.IDEAL_REAL, "none")
    for release_id in release_ids:
        with suppress(RefusedError):
            ledger.reserve(release_id, dataset_id=dataset_id, parameters={}, guarantee=guarantee)
            granted(release_id)


def reserve_many(place: Place, prefix: str, attempts: int) -> list[str]:
    """Ask for so many releases of epsilon 1 and return the ids that were granted."""
    granted: list[str] = []
    _barrier.wait(PATIENCE)
    _reserve(place, (f"{prefix}-{number}" for number in range(attempts)), granted.append)
    return granted


def reserve_for_ever(place: Place, prefix: str, acknowledge: Connection) -> None:
    """Reserve one release after the other and say so, until killed."""
    _reserve(place, (f"{prefix}-{number}" for number in range(10**6)), acknowledge.send)


# --- a cluster without processes --------------------------------------------------------------------------------------


class InlineEngine:
    """What :class:`dpdist.engine.Engine` does, at once and in this process."""

    workers = ("inline-0", "inline-1")

    def require_path(self, path: Path) -> None:
        """Check that a path is there."""
        assert path.exists()

    def reduce(
        self,
        function: Callable[[Any], Any],
        add: Callable[[Sequence[Any]], Any],
        groups: Sequence[Sequence[Any]],
        label: str,
    ) -> list[Any]:
        """Run the tasks and add up each group."""
        assert label
        return [add([function(task) for task in group]) for group in groups]

    def trusted(self, function: Callable[..., Any], *arguments: Any, sums: Sequence[Any] = ()) -> Any:
        """Run a function here."""
        return function(*arguments, *sums)


@contextmanager
def inline(*_: Any, **__: Any) -> Iterator[InlineEngine]:
    """Stand in for :func:`dpdist.engine.connected`."""
    yield InlineEngine()


# --- faults -----------------------------------------------------------------------------------------------------------


def _always(*_: Any) -> bool:
    return True


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Point:
    """A moment in a release: just before or just after a call of ``owner.name`` whose arguments satisfy ``which``."""

    owner: Any
    name: str
    after: bool
    which: Callable[..., bool] = _always
    first: Callable[..., None] = _nothing
    """What has happened by then that no call marks."""

    def patch(self, act: Callable[[], None]) -> None:
        """Let something happen at this point."""
        original = getattr(self.owner, self.name)

        @functools.wraps(original)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if not self.which(*arguments):
                return original(*arguments, **options)
            if not self.after:
                self.first(*arguments)
                act()
            result = original(*arguments, **options)
            if self.after:
                self.first(*arguments)
                act()
            return result

        static = isinstance(inspect.getattr_static(self.owner, self.name), staticmethod)
        setattr(self.owner, self.name, staticmethod(wrapper) if static else wrapper)


def _appends(event: str) -> Callable[..., bool]:
    def which(_: Any, entry: dict[str, Any], *__: Any) -> bool:
        return bool(entry["event"] == event)

    return which


def _half_written(path: Path, content: bytes) -> None:
    path.write_bytes(content[: len(content) // 2])


def points() -> dict[str, Point]:
    """Return the moments of a release at which something can be made to happen, in their order."""
    from dpdist import engine, pipeline, staging
    from dpdist.privacy.folder import FolderStorage
    from dpdist.privacy.journal import Transaction
    from dpdist.privacy.ledger import Ledger
    from dpdist.release import artefact, trusted
    from dpdist.rows.dataset import ChunkReader

    return {
        "inside the reservation": Point(Transaction, "append", after=True, which=_appends("reserved")),
        "after the reservation": Point(trusted, "reserve", after=True),
        "before reading": Point(ChunkReader, "read", after=False),
        "with the cluster at work": Point(engine.Engine, "_watch", after=False),
        "after the sum": Point(pipeline, "partition_moment", after=True),
        "before the attempt": Point(Ledger, "begin", after=False),
        "inside the beginning": Point(Transaction, "append", after=True, which=_appends("begun")),
        "after the beginning": Point(Ledger, "begin", after=True),
        "after the draw": Point(trusted, "_drawn", after=True),
        "with half a draft": Point(FolderStorage, "_write", after=False, first=_half_written),
        "after the draft": Point(FolderStorage, "_write", after=True),
        "inside the commit": Point(Transaction, "append", after=True, which=_appends("committed")),
        "after the commit": Point(Ledger, "commit", after=True),
        "before publication": Point(trusted, "publish", after=False),
        "before the rename": Point(staging, "sync_tree", after=True),
        "after the rename": Point(artefact, "publish", after=True),
        "inside the record": Point(Transaction, "append", after=True, which=_appends("published")),
        "after publication": Point(trusted, "publish", after=True),
    }


def _act(action: str, marker: Path) -> None:
    """Prove that the point was reached, then strike."""
    if action.startswith("meet-"):
        (marker / str(os.getpid())).touch()
        deadline = time.monotonic() + PATIENCE
        while len(list(marker.iterdir())) < int(action.removeprefix("meet-")):
            if time.monotonic() > deadline:
                raise SystemExit("the others did not come")
            time.sleep(0.01)
        return
    marker.touch()
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    elif action == "linger":
        time.sleep(PATIENCE)


def run(arguments: Sequence[str]) -> None:
    """Run the command line with a fault in it."""
    from dpdist import cli, engine

    action, point, marker, cluster, *rest = arguments
    # a test run in the background of a shell ignores interrupts, and so would this process
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if point:
        points()[point].patch(functools.partial(_act, action, Path(marker)))
    if cluster == "inline":
        engine.connected = inline  # type: ignore[assignment]
    sys.argv[1:] = rest
    cli.main()


def serve() -> None:
    """Run what is asked for, one JSON line after the other, and answer each with an exit code."""
    importlib.import_module("dpdist.cli")
    points()
    assert threading.active_count() == 1  # so that a fork is whole
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            words = os.open(asked["words"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(words, 1)
            os.dup2(words, 2)
            try:
                run(asked["arguments"])
            except SystemExit as end:  # without the tidying up of an interpreter that has everything imported
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(end.code if isinstance(end.code, int) else 70)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        run(sys.argv[1:])
