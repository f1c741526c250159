"""Processes beside this one that compute arrays for it: they only ever save time.

What is computed is a pure function of one argument, but for fresh randomness, in whatever process it runs. This process
computes too, so nothing depends on the others: where they cannot be started (a limit of processes, of memory, no
interpreter), where one is killed, is frozen, or has another version of dpdist, this one does what is left. A result
counts when it has arrived as a whole; what a process died over is computed anew, and of its result nothing is kept.

They are plain interpreters and not :mod:`multiprocessing`: that imports a user's script a second time, lets no daemonic
process have children (a Dask worker under a nanny is one), forks beside threads or needs semaphores in ``/dev/shm``.
Arguments and results travel through two anonymous pipes: no file, no socket, no name that somebody else could open. A
process leaves no core dump, ends with the thread that started it, by whatever this one dies (the kernel sees to it),
and ignores the signals of a terminal: who is interrupted ends it.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.spawn import get_executable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from dpdist._util.cores import available_cores
from dpdist._version import __version__
from dpdist.runtime.process import end_with_parent, forbid_core_dumps

if TYPE_CHECKING:
    import io

Task = TypeVar("Task")
Integers = npt.NDArray[np.int64]

PATIENCE = 30.0
"""Seconds without any result after which the processes that owe one are ended, and their tasks computed here."""
_START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from dpdist.runtime.pool import serve; serve()"
)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_READY = b"\x01"
_SIZE = struct.Struct("<q")
_SECONDS_TO_END = 5.0


def usable_cores() -> int:
    """Cores that this process may use: those of its machine, of its affinity and of its control group, whole."""
    from dask.system import CPU_COUNT  # noqa: PLC0415 - nothing that the processes of a pool need

    return max(1, min(int(CPU_COUNT), available_cores()))


class _LostError(Exception):
    """The process is gone, and what it was asked for with it."""


class _Process:
    """One process, and the pipes to and from it."""

    def __init__(self) -> None:
        executable = get_executable()
        if not executable or getattr(sys, "frozen", False):
            raise OSError("this program is no Python interpreter")
        self._popen = subprocess.Popen(  # noqa: S603 - the interpreter that runs this
            [executable, "-I", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _ONE_THREAD,
            process_group=0,  # Ctrl-C at a terminal is for the command
        )
        self._questions = cast("io.BufferedWriter", self._popen.stdin)
        self._answers = cast("io.BufferedReader", self._popen.stdout)
        self._buffer = np.empty(0, dtype=np.int64)

    @property
    def pid(self) -> int:
        """Its id."""
        return self._popen.pid

    def greet(self) -> None:
        """Tell it what it needs to begin, and wait until it is there.

        Raises
        ------
        _LostError
            If it is not.
        """
        self._send(list(sys.path))
        self._send((__version__, os.getpid()))
        self._receive(memoryview(bytearray(len(_READY))))

    def computed(self, question: tuple[Any, Any]) -> Integers:
        """Return what it computes, in an array that is used again.

        Raises
        ------
        _LostError
            If it died meanwhile.
        """
        self._send(question)
        head = bytearray(_SIZE.size)
        self._receive(memoryview(head))
        (count,) = _SIZE.unpack(head)
        if count > self._buffer.size:
            self._buffer = np.empty(count, dtype=np.int64)
        found = self._buffer[:count]
        self._receive(found.view(np.uint8).data)
        return found

    def _send(self, something: Any) -> None:
        try:
            self._questions.write(pickle.dumps(something))
            self._questions.flush()
        except (OSError, ValueError):
            raise _LostError from None

    def _receive(self, into: memoryview) -> None:
        got = 0
        while got < len(into):
            try:
                count = self._answers.readinto(into[got:])
            except (OSError, ValueError):
                count = 0
            if not count:
                raise _LostError
            got += count

    def kill(self) -> None:
        """End it, at once."""
        self._popen.kill()

    def close(self) -> None:
        """Bury it once nobody reads its pipes."""
        self.kill()
        self._popen.wait()
        for pipe in (self._questions, self._answers):
            with suppress(OSError):  # what was not sent
                pipe.close()


class Pool(Generic[Task]):
    """As many processes as are asked for and can be started, from the beginning of a ``with`` block to its end.

    Parameters
    ----------
    processes
        How many, this one not included; 0 computes everything here.
    """

    def __init__(self, processes: int) -> None:
        self._wanted = processes
        self._running: list[tuple[_Process, threading.Thread]] = []
        self._fresh_queues()

    def _fresh_queues(self) -> None:
        self._tasks: SimpleQueue[tuple[Callable[[Any], Integers], Task, Callable[[Task, Integers], None]] | None] = (
            SimpleQueue()
        )
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._owing: set[_Process] = set()

    def __enter__(self) -> Self:
        """Start the processes; this one does not wait for them."""
        try:
            for _ in range(self._wanted):
                self._start()
        except (OSError, RuntimeError):  # no more processes, files or threads: with what there is
            pass
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes, whatever they are doing."""
        self.close()

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that were started and not ended."""
        return [process.pid for process, thread in self._running if thread.is_alive()]

    def _start(self) -> None:
        process = _Process()
        thread = threading.Thread(target=self._drive, args=(process,), name="pool", daemon=True)
        self._running.append((process, thread))
        try:
            thread.start()
        except BaseException:
            self._running.pop()
            process.close()
            raise

    def _drive(self, process: _Process) -> None:
        """Give one process a task after the other; a task that it dies over goes back to the others."""
        tasks, ended, owing = self._tasks, self._ended, self._owing
        with suppress(_LostError):
            process.greet()  # no task waits for a process that is not there yet
            while (job := tasks.get()) is not None:
                function, task, take = job
                owing.add(process)
                try:
                    found = process.computed((function, task))
                except _LostError:
                    tasks.put(job)
                    ended.put(_LostError())
                    raise
                finally:
                    owing.discard(process)
                try:
                    take(task, found)
                except BaseException as error:  # noqa: BLE001 - it is raised where everything is waited for
                    ended.put(error)
                else:
                    ended.put(None)

    def each(
        self, function: Callable[[Task], Integers], tasks: Iterable[Task], take: Callable[[Task, Integers], None]
    ) -> None:
        """Compute the result of every task, in whatever process, and take each once.

        Parameters
        ----------
        function
            Returns an int64 array of one axis. What pickles by reference can run elsewhere; its errors are raised
            from here.
        tasks
            Its arguments.
        take
            Called with a task and its result, in any thread and several at once, the array not to be kept.
        """
        left = 0
        for task in tasks:
            self._tasks.put((function, task, take))
            left += 1
        try:
            while left:
                left -= self._one(function, take)
        except BaseException:
            self.close()
            raise

    def _one(self, function: Callable[[Task], Integers], take: Callable[[Task, Integers], None]) -> int:
        """Compute one task here, or wait for one that is under way; return how many were taken."""
        with suppress(Empty):
            error = self._ended.get_nowait()
            return self._counted(error)
        with suppress(Empty):
            job = self._tasks.get_nowait()
            if job is None:
                raise AssertionError("a pool that is closed has no tasks")
            take(job[1], function(job[1]))
            return 1
        try:
            return self._counted(self._ended.get(timeout=PATIENCE))
        except Empty:
            for process in list(self._owing):
                process.kill()
            return 0

    @staticmethod
    def _counted(outcome: BaseException | None) -> int:
        if isinstance(outcome, _LostError):
            return 0
        if outcome is not None:
            raise outcome
        return 1

    def close(self) -> None:
        """End the processes; idempotent. A pool that is closed computes everything here."""
        running, self._running = self._running, []
        for process, _ in running:
            process.kill()
            self._tasks.put(None)
        for process, thread in running:
            thread.join(_SECONDS_TO_END)
            process.close()
        self._fresh_queues()


def serve() -> None:
    """Be a process of a pool: answer what comes from standard input until it ends."""
    try:
        answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what a library prints is no answer
        version, parent = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
        forbid_core_dumps()
        end_with_parent(parent)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if version != __version__:
            return
        answers.write(_READY)
        answers.flush()
        while True:
            function, task = pickle.load(sys.stdin.buffer)  # noqa: S301 - likewise
            found = np.ascontiguousarray(function(task), dtype=np.int64)
            answers.write(_SIZE.pack(found.size))
            answers.write(found.view(np.uint8).data)
            answers.flush()
            del found
    except (EOFError, BrokenPipeError):
        pass  # whoever asked is gone
    finally:
        os._exit(0)
