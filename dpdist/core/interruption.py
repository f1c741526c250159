"""SIGINT, SIGTERM and SIGHUP: at any time, one sentence, exit code 5 and no partial output.

A terminal sends SIGINT on Ctrl-C and SIGHUP when it closes. Slurm, systemd and Kubernetes send SIGTERM, and SIGKILL
half a minute later. All of them ask the process to end soon.

Before a command starts its work, there is nothing to undo, and the handler ends the process. After that, the handler
raises KeyboardInterrupt in the main thread, once: ledger transactions roll back, staging paths are removed, and the
local cluster is closed. Further signals change nothing. Once the command is done, signals are ignored.

Python runs a handler only between two of its own instructions. While native code runs (a factorisation, a database
waiting for a lock), the handler would run late, and an exception that a destructor swallowed would be lost. So the
kernel also notifies a separate thread, which waits ten seconds, then removes staging paths, kills the workers and ends
the process. That is no worse than SIGKILL, which every command survives because the ledger records the charges.

Staging paths are registered here, because an exception may also occur between two lines that clean up.

The handler is installed before the first heavy import, so this module imports little of the standard library.
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
"""Time a command has to end by itself; Slurm and Kubernetes kill after 30 seconds, systemd after 90."""
EXIT_CODE = 5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_SECONDS = 0.1
_RENAME_SECONDS = 5.0


class _State:
    handled: tuple[signal.Signals, ...] = ()  # the signals with a handler
    working = False  # there may be something to undo
    done = False  # the command has ended: signals are ignored
    received: signal.Signals | None = None  # the first signal handled
    swallowed = False  # a destructor swallowed its exception, which must be raised again
    leaving = False  # the last message is being written


_state = _State()
_staging: set[Path] = set()
_publishing = threading.Lock()


def install() -> None:
    """Install the handlers, in the main thread of a process that runs one command.

    A signal that the parent process ignores (``nohup``, a background job of a shell) stays ignored.
    """
    _state.handled = tuple(number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)
    for number in _state.handled:
        signal.signal(number, _handle)
    sys.unraisablehook = _unraisable
    threading.excepthook = _unhandled
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    main = threading.get_ident()
    threading.Thread(target=_watch, args=(read_end, main), name="signals", daemon=True).start()


def installed() -> bool:
    """Return whether this module handles signals, so that no other code may."""
    return bool(_state.handled)


def begin() -> None:
    """Mark the start of work that may have to be undone: signals raise KeyboardInterrupt."""
    _state.working = True


def end() -> None:
    """Mark the command as done: signals are ignored, also while the interpreter exits."""
    _state.done = True
    for number in _state.handled:
        signal.signal(number, signal.SIG_IGN)


def interrupted() -> bool:
    """Return whether a signal was handled; any later failure is a consequence of it."""
    return _state.received is not None


def leave() -> NoReturn:
    """End the process: kill the workers, remove staging paths and print the message."""
    # a normal exit of the interpreter would wait for a cluster that is only partly started
    with _publishing:
        _kill_workers()
        _tidy_up()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    _leave()


@contextmanager
def staging(path: Path) -> Iterator[None]:
    """Register a path as staging, removed with its contents if the process is interrupted."""
    _staging.add(path)
    try:
        yield
    finally:
        if not interrupted():  # the caller may not have removed it
            _staging.discard(path)


@contextmanager
def publishing(path: Path) -> Iterator[None]:
    """Unregister a staging path after the block has moved it to its final path."""
    with _publishing:
        yield
        _staging.discard(path)


def _handle(number: int, _: FrameType | None) -> None:
    if _state.done or (_state.received is not None and not _state.swallowed):
        return
    _state.swallowed = False
    _state.received = _state.received or signal.Signals(number)
    if not _state.working:
        _leave()
    if "logging" in sys.modules:
        import logging  # noqa: PLC0415 - imported already, if anything is logged

        logging.disable()  # later reports of libraries are consequences of the signal
    raise KeyboardInterrupt


def _unraisable(event: sys.UnraisableHookArgs) -> None:
    """Note that the exception of the signal was swallowed; report nothing else after a signal."""
    if _state.received is None:
        sys.__unraisablehook__(event)
    elif issubclass(event.exc_type, KeyboardInterrupt):
        _state.swallowed = True


def _unhandled(event: threading.ExceptHookArgs) -> None:
    """Report the error of a thread, unless a signal came first and took its workers or its loop away."""
    if _state.received is None:
        threading.__excepthook__(event)


def _watch(read_end: int, main: int) -> None:
    number = 0
    while number not in _state.handled:
        number = os.read(read_end, 1)[0]
    import time  # noqa: PLC0415 - only needed after a signal

    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        if _state.swallowed:
            signal.pthread_kill(main, number)
    if _state.done:
        return
    _state.received = _state.received or signal.Signals(number)
    if _publishing.acquire(timeout=_RENAME_SECONDS):  # and never released: nothing is published after this
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
    import shutil  # noqa: PLC0415 - only needed after a signal

    for path in list(_staging):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def sentence() -> str:
    """Return the message of an interrupted command."""
    by = "" if _state.received is None else f" by {_state.received.name}"
    return f"Interrupted{by}: the same command resumes, and charges nothing twice."


def _leave() -> NoReturn:
    if not _state.leaving:
        _state.leaving = True
        with suppress(OSError):
            os.write(2, f"dpdist: {sentence()}\n".encode())
    os._exit(EXIT_CODE)
