"""Readers in a process of their own, for libraries that a hostile file can hang, crash or fill the memory with.

The HDF5 library follows the addresses that a file holds. Some damage makes it loop for ever, some makes it write where
it must not. Neither can be caught, or even interrupted, in the process in which it happens. Packed data of HDF5, Zarr
and Parquet may unpack to any number of bytes, whatever the file announces, and their libraries do not stop there.

So a forked process reads, answers through a pipe, and ends when there are no more questions. If it hangs, the system
ends it. If it crashes or takes too much memory, the file counts as damaged. Where processes cannot be forked safely
(not Linux), this process reads the file.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import resource
import signal
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.errors import DataError, DpdistError, quiet
from dpdist.ingest.readers import base
from dpdist.ingest.readers.base import AskError, Places, Rows, Runs, Source, State, Survey
from dpdist.storage.atomic import remove_abandoned

_PATIENCE = 300
"""Seconds within which a piece must be there: rows of a few MiB, or a chunk of a GiB of which they are a part."""
_MEMORY = 1 << 30
"""Bytes that reading may take beyond what the process had when it began, and beyond what is announced to unpack."""
_SHARED = 64 << 20
"""Bytes of the memory through which pieces pass; larger ones go through the pipe."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_BEGIN = frozenset({"blocks", "part", "units"})
"""Questions that begin to read rows."""
_COPIES = 6
"""Of what is unpacked at once, as many may be in the memory: two chunks, each as it lies, unpacked and in order."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the other process answers, if it is a command; none may come here before they mean something else."""


class Reading:
    """The process in which all fragile sources of a place are read; it starts with the first question.

    Parameters
    ----------
    beside
        Folder in which it may unpack files for a while.
    """

    def __init__(self, beside: Path) -> None:
        self._beside = beside
        self._pid = 0
        self._here: Connection | None = None
        self._known: dict[int, Source] = {}  # they live as long as it: the number of a dead one may be given again
        self._shared: Any = None  # memory

    @property
    def alive(self) -> bool:
        """Whether there is such a process."""
        return self._here is not None

    def ask(self, source: Source, question: str, *arguments: Any) -> Any:
        """Ask a source, and return the answer; whatever went wrong is raised here.

        Raises
        ------
        DpdistError
            What the reader raised.
        DataError
            If the process ended, by a crash, or because it took too long.
        """
        if self._here is None:
            self._start()
        kind: Any
        try:
            new = None if id(source) in self._known else source
            self._known[id(source)] = source
            self._pipe.send((id(source), new, question, *arguments))
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            kind, value = None, None
        if kind is None:
            how = "hangs" if self._end() == -signal.SIGALRM else "crashes"
            raise DataError(
                f"{source.path} cannot be read: it is damaged, and the library that reads it {how}. Mend or replace "
                "the file and ingest again."
            )
        if isinstance(kind, type):
            raise kind(*value)
        if kind == "piece":
            shape, dtype = value
            piece: Rows = np.frombuffer(self._shared, dtype, math.prod(shape)).reshape(shape).copy()
            return piece
        return value

    @property
    def _pipe(self) -> Connection:
        if self._here is None:
            raise EOFError
        return self._here

    def _start(self) -> None:
        self._here, there = Pipe()
        self._shared = mmap.mmap(-1, _SHARED)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            with quiet():  # Python warns where there are threads; the process uses nothing that they may hold
                self._pid = os.fork()
            if self._pid == 0:
                try:
                    _answer(there, self._shared, before)
                finally:
                    os._exit(0)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()

    def close(self) -> None:
        """End the process, whatever it does."""
        if self.alive:
            os.kill(self._pid, signal.SIGKILL)
            self._end()

    def _end(self) -> int:
        """Wait for the end of the process, remove what it unpacked, and return its code."""
        self._pipe.close()
        self._here = self._shared = None
        self._known.clear()
        code = 0
        with suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        remove_abandoned(self._beside / "unpacked")
        return code


@dataclass(frozen=True)
class Apart(Source):
    """A source that is read in a process of its own.

    Parameters
    ----------
    inner
        The reader of the file, which has read nothing yet.
    reading
        The process.
    """

    inner: Any = None  # a Source
    reading: Any = None  # a Reading

    def _ask(self, question: str, *arguments: Any) -> Any:
        if sys.platform != "linux":
            found = getattr(self.inner, question)
            return found(*arguments) if arguments else found
        return self.reading.ask(self.inner, question, *arguments)

    @cached_property
    def names(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self._ask("names")
        return found

    @cached_property
    def kinds(self) -> tuple[Any, ...] | None:
        found: tuple[Any, ...] | None = self._ask("kinds")
        return found

    def survey(self, keep: Places) -> Survey:
        found: Survey = self._ask("survey", keep)
        return found

    def kept_as(self, place: int) -> np.dtype[np.generic] | None:
        found: np.dtype[np.generic] | None = self._ask("kept_as", place)
        return found

    def runs(self, keep: Places) -> Runs | None:
        found: Runs | None = self._ask("runs", keep)
        return found

    def state(self, start: int, stop: int) -> State:
        found: State = self._ask("state", start, stop)
        return found

    def blocks(self, keep: Places) -> Generator[Rows]:
        return self._rows("blocks", keep)

    def part(self, keep: Places, start: int, stop: int) -> Generator[Rows]:
        return self._rows("part", keep, start, stop)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self._ask("labels")
        return found

    @property
    def repeated(self) -> str | None:
        found: str | None = self._ask("repeated")
        return found

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        return self._rows("units", key, labels)

    def _rows(self, question: str, *arguments: Any) -> Generator[Rows]:
        blocks = self._ask(question, *arguments)
        if isinstance(blocks, Generator):
            yield from blocks
            return
        try:
            while (block := self._ask("next")) is not None:
                yield block
        except GeneratorExit:
            if self.reading.alive:
                self._ask("stop")
            raise


def _answer(pipe: Connection, shared: mmap.mmap, signals: Iterable[int]) -> None:
    """Answer questions until there are no more; one that takes too long ends the process.

    `signals` are those that are blocked as soon as they mean what they shall mean here.
    """
    room = _Room(pipe, shared)
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    with suppress(EOFError, OSError):
        while True:
            place, new, *question = pipe.recv()
            base.progressed()
            reply = room.reply(place, new, *question)
            signal.alarm(0)
            pipe.send(reply)


class _Room:
    """What the process is that reads: limits that it keeps, and the sources that it was asked for."""

    def __init__(self, pipe: Connection, shared: mmap.mmap) -> None:
        for handle in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if handle > 2 and handle != pipe.fileno():  # locks and pipes of the other process are not this one's
                with suppress(OSError):
                    os.close(handle)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        base.progressed = lambda: signal.alarm(_PATIENCE)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal both get it, and the other one says what happens
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold rows
        logging.disable()  # a library may log what it reads, or that a connection of the other process was not closed
        import pyarrow as pa  # noqa: PLC0415 - a process that reads no such file does without

        pa.allocate_buffer(1)  # with its first value Arrow may set a GiB of addresses aside, used or not
        self._taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * _PAGE
        self._shared = shared
        self._sources: dict[int, Source] = {}
        self._blocks: dict[int, Generator[Rows]] = {}

    def _limit(self, more: int) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self._taken + _MEMORY + more, hard))

    def reply(self, place: int, new: Source | None, question: str, *arguments: Any) -> tuple[Any, Any]:
        """Return of what kind the answer is, or of what class the error, and the answer, or what the error is made of.

        Parameters
        ----------
        place, new
            Of which source it is asked, and the source if it was not asked before.
        question, arguments
            A name of what every source has, where those in :data:`_BEGIN` begin to read; or ``next`` and ``stop``, of
            the rows that are read.
        """
        if new is not None:
            self._sources[place] = new
        source = self._sources[place]
        try:
            self._limit(0)
            if question in _BEGIN or question == "next":
                self._limit(_COPIES * source.unpacked)
            if question == "next":
                return self._piece(next(self._blocks[place], None))
            value: Any = None
            if question == "stop":
                self._blocks.pop(place).close()
            elif question in _BEGIN:
                self._blocks[place] = getattr(source, question)(*arguments)
            else:
                value = getattr(source, question)
                value = value(*arguments) if arguments else value
        except AskError as error:
            return type(error), (str(error), error.ways, error.more)
        except DpdistError as error:
            return type(error), (str(error),)
        except MemoryError:
            return DataError, (f"{source.path} cannot be read: it takes more memory than it announces.",)
        return "value", value

    def _piece(self, rows: Rows | None) -> tuple[Any, Any]:
        if rows is None or rows.nbytes > _SHARED:
            return "value", rows
        np.copyto(np.frombuffer(self._shared, rows.dtype, rows.size).reshape(rows.shape), rows)
        return "piece", (rows.shape, rows.dtype)
