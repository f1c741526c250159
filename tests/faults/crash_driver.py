"""What other processes do in the tests: reserve, meet, and run the command line until a fault strikes.

::

    python crash_driver.py ACTION POINT MARKER CLUSTER [ARGUMENTS OF dpdist ...]
    python crash_driver.py serve

At POINT the driver writes MARKER, the proof that the fault landed, and then acts:

``kill``       dies by SIGKILL: no handler, no ``finally``, no flush
``interrupt``  interrupts itself as Ctrl-C does
``terminate``  sends itself SIGTERM, as a batch scheduler does
``stop``       stops itself until somebody lets it continue
``linger``     waits there until MARKER.go exists
``meet-N``     waits until N processes have come to this point (MARKER is a folder then)
``note``       goes on

CLUSTER ``inline`` computes in this process instead of starting a cluster, ``bands`` does so in bands of two rows, and
``processes`` is the real thing.

``serve`` imports everything once and then runs whatever it is asked for in processes of their own, forked from there:
the same as above, a second faster. :mod:`forks` asks. A Dask process that is started like this lives on, so its faults
are armed later: a file in the folder ``arms`` names point, action and marker, and the next time it strikes, once.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path[:0] = [str(Path(__file__).parents[i]) for i in (2, 1)]  # it is run as a script, from anywhere

from faults import imported  # noqa: E402
from faults.crash_points import points  # noqa: E402

if TYPE_CHECKING:
    from dpdist.core.ledger.address import LedgerAddress

PATIENCE = 300.0
_SIGNALS = {
    "kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP,
}  # fmt: skip
AT_THE_END = "at the end"
"""The point after the last line of a command, with all that it held still in its memory."""


_barrier: Barrier


def meet_at(barrier: Barrier) -> None:
    """Initialise a process of a pool: its tasks start when as many processes as the barrier asks for are there."""
    global _barrier  # noqa: PLW0603 - a barrier can be handed to a process only when it starts
    _barrier = barrier


def _reserve(place: LedgerAddress, release_ids: Iterator[str], granted: Callable[[str], object]) -> None:
    from dpdist.core.errors import RefusedError
    from dpdist.core.ledger.ledger import Ledger
    from dpdist.core.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss

    ledger = Ledger(place)
    dataset_id = ledger.dataset_id
    guarantee = Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss.parse("1"), None, Arithmetic.IDEAL_REAL, "none")
    for release_id in release_ids:
        with suppress(RefusedError):
            ledger.reserve(release_id, dataset_id=dataset_id, parameters={}, guarantee=guarantee)
            granted(release_id)


def reserve_many(place: LedgerAddress, prefix: str, attempts: int) -> list[str]:
    granted: list[str] = []
    _barrier.wait(PATIENCE)
    _reserve(place, (f"{prefix}-{number}" for number in range(attempts)), granted.append)
    return granted


def reserve_for_ever(place: LedgerAddress, prefix: str, acknowledge: Connection) -> None:
    _reserve(place, (f"{prefix}-{number}" for number in range(10**6)), acknowledge.send)


def in_bands(height: int, patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let every moment be summed in bands of so many rows, and stored in tiles of that side."""
    from dpdist.core import triangle
    from dpdist.core.pipeline import release

    laid_out = release.layout_of  # type: ignore[attr-defined]

    def cut(*arguments: Any, **options: Any) -> Any:
        layout = laid_out(*arguments, **options)
        size = layout.bound.width
        bands = (triangle.Band(i, min(i + height, size), size) for i in range(0, size, height))
        return replace(layout, bands=tuple(bands)) if options["divisible"] else layout

    patch(triangle, "TILE", height)
    patch(release, "layout_of", cut)


def _act(action: str, marker: Path) -> None:
    if action.startswith("meet-"):
        (marker / str(os.getpid())).touch()
        deadline = time.monotonic() + PATIENCE
        while len(list(marker.iterdir())) < int(action.removeprefix("meet-")):
            if time.monotonic() > deadline:
                raise SystemExit("the others did not come")
            time.sleep(0.01)
        return
    marker.touch()
    if action in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[action])
    elif action == "linger":
        deadline = time.monotonic() + PATIENCE
        while not marker.with_name(f"{marker.name}.go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def run(arguments: Sequence[str]) -> None:
    from dpdist import cli
    from dpdist.core import interruption
    from dpdist.core.runtime.cluster import Cluster

    action, point, marker, cluster, *rest = arguments
    # a test run in the background of a shell ignores interrupts, and so would this process
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    interruption.install()
    if point and point != AT_THE_END:
        strikes = iter([True])  # once: a point may be passed again, by an attempt that begins anew
        points()[point].patch(functools.partial(_act, action, Path(marker)), lambda: next(strikes, False))
    if cluster != "processes":
        Cluster.named = False  # type: ignore[assignment,method-assign] # a command that names workers computes here
    if cluster == "bands":
        in_bands(2)
    sys.argv[1:] = rest
    try:
        cli.main()
    finally:
        if point == AT_THE_END:
            _act(action, Path(marker))


def _strike(armed: Path) -> None:
    """Act as a file says; the thread that takes it away acts."""
    with suppress(FileNotFoundError):
        taken = armed.rename(armed.with_suffix(f".{os.getpid()}-{threading.get_ident()}"))
        action, marker = json.loads(taken.read_text())
        _act(action, Path(marker))


def run_dask(tool: str, arms: Path, arguments: Sequence[str]) -> None:
    for name, point in points().items():
        # tasks travel by name: a function that was imported elsewhere must stay the one its module has
        if name != "after the sum":
            point.patch(functools.partial(_strike, arms / name), (arms / name).exists)
    main = importlib.import_module(f"distributed.cli.dask_{tool}").main
    main(list(arguments), standalone_mode=False)


def enter(namespace: str) -> None:
    """Move this thread, and those it starts, to a network namespace of that name."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as file:
        if libc.setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")


def _child(asked: dict[str, Any]) -> None:
    os.setsid()
    words = os.open(asked["words"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(words, 1)
    os.dup2(words, 2)
    if asked["namespace"]:
        enter(asked["namespace"])
    for name, value in asked["settings"].items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    if asked["program"] == "dpdist":
        run(asked["arguments"])
    else:
        os.chdir(asked["folder"])
        run_dask(asked["program"], Path(asked["folder"]), asked["arguments"])


def serve() -> None:
    """Run each JSON line that is read; tell the id of each process, and its exit code at its end.

    Who asks is gone when standard input ends; then whatever still runs is killed.
    """
    imported.everything()
    for tool in ("scheduler", "worker"):
        importlib.import_module(f"distributed.cli.dask_{tool}")
    points()
    assert threading.active_count() == 1  # so that a fork is whole
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([0, *running], [], [])
        for handle in set(ready) & running.keys():
            pid = running.pop(handle)
            os.close(handle)
            _, status = os.waitpid(pid, 0)
            print(json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}), flush=True)  # noqa: T201
        if 0 not in ready:
            continue
        line = _line()
        if not line:
            break
        child = os.fork()
        if child == 0:
            try:
                _child(json.loads(line))
                os._exit(0)
            except SystemExit as end:  # without the tidying up of an interpreter that has everything imported
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(end.code if isinstance(end.code, int) else 70)
            except BaseException:  # noqa: BLE001 - a child must not go on as its parent
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(71)
        running[os.pidfd_open(child)] = child
        print(json.dumps({"started": child}), flush=True)  # noqa: T201
    for pid in running.values():
        os.kill(pid, signal.SIGKILL)


def _line() -> bytes:
    """Read one line and no more: what was read ahead, nobody would be told of."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        run(sys.argv[1:])
