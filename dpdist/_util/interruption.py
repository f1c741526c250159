"""SIGINT, SIGTERM and SIGHUP: one sentence, exit code 5, nothing half-written, at whatever moment they come.

A terminal sends the first at Ctrl-C and the last when it is closed; Slurm, systemd and Kubernetes send SIGTERM, and
SIGKILL half a minute later. What they all mean is the same: end soon.

Before a command is at work there is nothing to undo, and the process ends in the handler. At work, the handler raises
KeyboardInterrupt in the main thread, once: ledger transactions roll back, what is built aside is removed, and the local
cluster is closed on the way out. More signals change nothing. When the command is done they are ignored: it is done.

Python runs a handler between two of its own instructions only. While native code is at work (a factorisation, a
database that waits for a lock) the handler would run late; an exception that a destructor swallowed would be lost. So a
separate thread is told of the signal by the kernel and counts ten seconds. Then it removes what is built aside, kills
the workers that were started and ends the process. That is no worse than SIGKILL, which every command survives: the
ledger says what is charged, whatever dies.

What is built aside is known here by path, because an exception may also strike between two lines that clean up.

Only the standard library is imported, and little of it: the handler stands before the first heavy import.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

GRACE_SECONDS = 10.0
"""How long a command may take to end by itself; Slurm and Kubernetes kill after 30 seconds, systemd after 90."""
EXIT_CODE = 5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.1
_RENAME_SECONDS = 5.0


class _State:
    """What this process knows of signals."""

    answered: tuple[signal.Signals, ...] = ()  # the signals that are answered here
    at_work = False  # there may be something to undo
    done = False  # the command has ended: signals change nothing any more
    received: signal.Signals | None = None  # the first signal that was answered
    swallowed = False  # its exception was raised where none can pass, so that it has to be raised again
    leaving = False  # the last words are being said


_state = _State()
_aside: set[Path] = set()
_sealing = threading.Lock()


def install() -> None:
    """Answer signals from now on, in the main thread of a process that runs one command.

    A signal that whoever started this process wants ignored (``nohup``, a shell's background job) stays ignored.
    """
    _state.answered = tuple(number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)
    for number in _state.answered:
        signal.signal(number, _answer)
    sys.unraisablehook = _unraisable
    threading.excepthook = _unhandled
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    main = threading.get_ident()
    threading.Thread(target=_watch, args=(ear, main), name="signals", daemon=True).start()


def installed() -> bool:
    """Say whether signals are answered here: whoever else would take one must not."""
    return bool(_state.answered)


def begin() -> None:
    """Say that from now on there may be something to undo: signals raise KeyboardInterrupt."""
    _state.at_work = True


def end() -> None:
    """Say that the command is done: signals change nothing any more, while the interpreter ends neither."""
    _state.done = True
    for number in _state.answered:
        signal.signal(number, signal.SIG_IGN)


def interrupted() -> bool:
    """Say whether a signal was answered; whatever failed since, failed because of it."""
    return _state.received is not None


def leave() -> NoReturn:
    """End the process: kill the workers, remove what is still built aside, and say what happened.

    Nothing else of an interpreter's end takes place: it would wait for a cluster that was half started, and say so.
    """
    with _sealing:
        _kill_workers()
        _tidy_up()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    _leave()


@contextmanager
def aside(path: Path) -> Iterator[None]:
    """Know that something is built at a path, to be removed with all that is in it; its owner does so at the end."""
    _aside.add(path)
    try:
        yield
    finally:
        if not interrupted():  # its owner may just have been kept from it
            _aside.discard(path)


@contextmanager
def sealed(path: Path) -> Iterator[None]:
    """Move what was built at a path to its place: from here on it is nobody's litter."""
    with _sealing:
        yield
        _aside.discard(path)


def _answer(number: int, _: FrameType | None) -> None:
    if _state.done or (_state.received is not None and not _state.swallowed):
        return
    _state.swallowed = False
    _state.received = _state.received or signal.Signals(number)
    if not _state.at_work:
        _leave()
    if "logging" in sys.modules:
        import logging  # noqa: PLC0415 - imported already, if anything is logged

        logging.disable()  # what a library reports from now on failed because of the signal
    raise KeyboardInterrupt


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Notice that the signal's exception was swallowed; whatever else failed since is not said either."""
    if _state.received is None:
        sys.__unraisablehook__(found)
    elif issubclass(found.exc_type, KeyboardInterrupt):
        _state.swallowed = True


def _unhandled(found: threading.ExceptHookArgs) -> None:
    """Say what a thread died of, unless it died because of a signal: its workers or its loop were gone."""
    if _state.received is None:
        threading.__excepthook__(found)


def _watch(ear: int, main: int) -> None:
    """Wait for a signal, and then see that the process ends."""
    number = 0
    while number not in _state.answered:
        number = os.read(ear, 1)[0]
    import time  # noqa: PLC0415 - needed by those only that are interrupted

    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        if _state.swallowed:
            signal.pthread_kill(main, number)
    if _state.done:
        return
    _state.received = _state.received or signal.Signals(number)
    if _sealing.acquire(timeout=_RENAME_SECONDS):  # and never given back: nothing is moved to its place any more
        _kill_workers()
        _tidy_up()
    _leave()


def _kill_workers() -> None:
    if "multiprocessing" in sys.modules:
        import multiprocessing  # noqa: PLC0415 - imported already, if there are any

        for process in multiprocessing.active_children():
            process.kill()
            process.join(1)


def _tidy_up() -> None:
    import shutil  # noqa: PLC0415 - needed by those only that are interrupted

    for path in list(_aside):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def sentence() -> str:
    """Return what an interrupted command says."""
    by = "" if _state.received is None else f" by {_state.received.name}"
    return f"Interrupted{by}: the same command resumes, and charges nothing twice."


def _leave() -> NoReturn:
    """End the process here and now."""
    if not _state.leaving:
        _state.leaving = True
        with suppress(OSError):
            os.write(2, f"dpdist: {sentence()}\n".encode())
    os._exit(EXIT_CODE)
