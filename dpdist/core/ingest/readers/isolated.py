"""Reads files that may hang or crash their library, or exhaust memory, in a process with limits.

The HDF5 library follows addresses in the file. Damage can make it loop endlessly or corrupt memory, and a process can
neither catch nor interrupt this itself. Packed data of HDF5, Zarr and Parquet may unpack to more bytes than declared.

So another process reads, and answers through a pipe. If it hangs, its alarm ends it. If it crashes or exceeds its
memory, the file counts as damaged. It is a new interpreter: no fork next to threads, no import of the user's script.
It takes half a second to start, so it waits half a minute for the next file. Where memory cannot be limited (not
Linux), this process reads the file.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.core.errors import DataError, DpdistError
from dpdist.core.ingest.readers import base
from dpdist.core.ingest.readers.base import Places, Rows, UncutError
from dpdist.core.ingest.readers.source import Fragment, Source
from dpdist.core.naming import Interface, current_interface, naming
from dpdist.core.rows.draft import Looks
from dpdist.core.runtime.checks import forbid_core_dumps
from dpdist.core.storage.atomic import remove_abandoned

ISOLATED = sys.platform == "linux"  # whether other processes read: only Linux limits their memory
_PATIENCE = 300
"""Time limit in seconds of a block: rows of a few MiB, which may need a chunk of a GiB."""
_MEMORY = 1 << 30
"""Most bytes for reading, in addition to the baseline of the process and declared unpacked data."""
_PACKAGE_ROOT = str(Path(__file__).parents[3])  # may be the current folder
_IDLE = 30  # seconds to wait for the next file
_PAGE = os.sysconf("SC_PAGE_SIZE")
_BEGIN = frozenset({"blocks", "rows", "units"})  # questions that start reading rows
_COPIES = 6
"""Copies of unpacked data in memory: two chunks, each as stored, unpacked and reordered."""
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from dpdist.core.ingest.readers.isolated import serve; serve(int(sys.argv[1]))"
)


class _Child:
    """A process that answers, and the pipe to it."""

    def __init__(self) -> None:
        parent_end, child_end = socket.socketpair()
        with child_end:
            # modules in the current folder must not shadow Python's own: no "" in the path, and -P
            path = json.dumps([*(entry for entry in sys.path if entry and isinstance(entry, str)), _PACKAGE_ROOT])
            command = [sys.executable, "-P", "-c", _START, str(child_end.fileno()), path]
            # its own session: Ctrl-C goes to the command, which ends this process
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, without user input
                command, pass_fds=(child_end.fileno(),), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self.pipe = Connection(parent_end.detach())
        self.started_in = _surroundings()
        self.owner = os.getpid()

    def begins(self) -> bool:
        """Start work on a source; False if the process has ended."""
        with suppress(EOFError, OSError):
            self.answer("begin", _PATIENCE, _MEMORY, current_interface())
            return True
        return False

    def answer(self, *question: Any) -> Any:
        """Return the answer to a question; EOFError or OSError if the process has ended."""
        self.pipe.send(question)
        return self.pipe.recv()

    def rows(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Rows:
        """Read the rows that follow an answer, eight times as fast as with the methods of the pipe."""
        values: Rows = np.empty(shape, dtype)
        rest = values.reshape(-1).view(np.uint8).data
        while rest:
            count = os.readv(self.pipe.fileno(), [rest])
            if not count:
                raise EOFError
            rest = rest[count:]
        return values

    def end(self) -> int:
        """Kill the process and return its code."""
        self.pipe.close()
        # one that has already ended keeps its code
        self._process.kill()
        return self._process.wait()


def _surroundings() -> tuple[Any, ...]:
    """Return what a process inherits: rights, credentials, current folder and module path."""
    folder = ""
    with suppress(OSError):  # it was removed
        folder = str(Path.cwd())
    return os.geteuid(), os.getegid(), os.getgroups(), dict(os.environ), folder, [*sys.path]


_idle: list[_Child] = []
os.register_at_fork(after_in_child=_idle.clear)


def _child() -> _Child:
    """Return a started process: an idle one from the same surroundings, or a new one."""
    while _idle:
        with suppress(IndexError):  # another thread took it
            child = _idle.pop()
            if child.started_in == _surroundings() and child.begins():
                return child
            child.end()
    child = _Child()
    if child.begins():
        return child
    raise DpdistError(
        f"The process that reads files did not start: {sys.executable} ended with code {child.end()}. Run this "
        "command to see why: python -c 'import dpdist.core.ingest.readers.isolated'"
    )


class ReaderProcess:
    """The process that reads all fragile sources of an opener; it starts on demand."""

    def __init__(self, scratch_dir: Path) -> None:
        self._scratch_dir = scratch_dir
        self._child: _Child | None = None
        self._sound = True
        self._sources: dict[int, Source] = {}  # kept alive, because the id of a dead object may be reused

    @property
    def alive(self) -> bool:
        return self._child is not None

    def ask(self, source: Source, question: str, *arguments: Any) -> Any:
        """Ask a source; return its answer or raise its error."""
        if self._child is None or self._child.owner != os.getpid():  # a forked process starts its own
            self._sources.clear()
            self._child, self._sound = _child(), True
        sound, self._sound = self._sound, False
        try:
            new = None if id(source) in self._sources else source
            self._sources[id(source)] = source
            kind, value = self._child.answer(question, id(source), new, *arguments)
            if kind == "rows":
                value = self._child.rows(*value)
        except (EOFError, OSError):
            reason, cure = "it is damaged or takes too much memory, and its library crashes", ", or save it as .npy"
            if self._end() == -signal.SIGALRM:
                reason, cure = "it is damaged, and its library hangs", ""
            message = f"{source.path} cannot be read: {reason}. Repair or replace the file{cure}, and ingest again."
            kind, value = DataError, (message,)
        if isinstance(kind, type):
            raise kind(*value)
        self._sound = sound
        return value

    def close(self) -> None:
        """Release the process for the next file; end it if it failed or is in the middle of an answer."""
        if self._child is None or self._child.owner != os.getpid():
            return
        if self._sound:
            with suppress(EOFError, OSError):
                self._child.answer("end")
                _idle.append(self._child)
                self._child = None
                self._sources.clear()
                return
        self._end()

    def _end(self) -> int:
        """End the process, remove its scratch files, and return its code."""
        code = 0 if self._child is None else self._child.end()
        self._child, self._sound = None, True
        self._sources.clear()
        remove_abandoned(self._scratch_dir / "unpacked")
        return code


@dataclass(frozen=True)
class IsolatedSource(Source):
    """A source that is read in another process."""

    inner: Any = None  # a Source
    process: Any = None  # a ReaderProcess

    @cached_property
    def head(self) -> Any:
        return self.process.ask(self.inner, "head")

    def fragments(self, keep: Places) -> Any:
        return self.process.ask(self.inner, "fragments", keep)

    def survey(self, keep: Places, fragment: Fragment = None) -> Any:
        return self.process.ask(self.inner, "survey", keep, fragment)

    @property
    def unclear_columns(self) -> dict[str, Looks]:
        found: dict[str, Looks] = self.process.ask(self.inner, "unclear_columns")
        return found

    def state(self, start: int, stop: int) -> Any:
        return self.process.ask(self.inner, "state", start, stop)

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        return self._stream("blocks", keep, fragment)

    def rows(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        return self._stream("rows", keep, fragment)

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        return self._stream("units", key, labels)

    def _stream(self, question: str, *arguments: Any) -> Generator[Rows]:
        self.process.ask(self.inner, question, *arguments)
        try:
            while (block := self.process.ask(self.inner, "next")) is not None:
                yield block
        except GeneratorExit:
            if self.process.alive:
                self.process.ask(self.inner, "stop")
            raise


def serve(handle: int) -> None:
    """Answer questions from a socket until it closes."""
    pipe = Connection(handle)
    server = _Server()
    with suppress(EOFError, OSError):
        while pipe.poll(None if server.busy else _IDLE):
            kind, value = server.reply(*pipe.recv())
            signal.alarm(0)
            if kind == "rows":
                pipe.send((kind, (value.shape, value.dtype)))
                rest = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
                while rest:
                    rest = rest[os.write(handle, rest) :]
            else:
                pipe.send((kind, value))


class _Server:
    """State of the reading process: its limits and sources."""

    def __init__(self) -> None:
        forbid_core_dumps()
        logging.disable()  # a library may log what it reads
        import pyarrow as pa  # noqa: PLC0415 - only in this process

        pa.allocate_buffer(1)  # the first allocation of Arrow may reserve a GiB of address space
        self._baseline = self._memory = 0
        self._face: Interface = current_interface()
        self.busy = False
        self._sources: dict[int, Source] = {}
        self._blocks: dict[int, Generator[Rows]] = {}

    def reply(self, question: str, *arguments: Any) -> tuple[Any, Any]:
        """Return kind and value of the answer, or class and arguments of the error."""
        if question == "begin":
            patience, self._memory, self._face = arguments
            self._baseline = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * _PAGE
            base.progressed = lambda: signal.alarm(patience)
            self.busy = True
            return "value", None
        if question == "end":
            for blocks in self._blocks.values():
                blocks.close()
            self._blocks.clear()
            self._sources.clear()
            self.busy = False
            return "value", None
        with naming(self._face):
            return self._answer(question, *arguments)

    def _limit(self, extra: int) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self._baseline + self._memory + extra, hard))

    def _answer(self, question: str, number: int, new: Source | None, *arguments: Any) -> tuple[Any, Any]:
        """Answer with a member of a source; ``next`` and ``stop`` continue and end its current rows."""
        base.progressed()
        if new is not None:
            self._sources[number] = new
        source = self._sources[number]
        try:
            self._limit(source.decoded)
            if question in _BEGIN or question == "next":
                self._limit(source.decoded + _COPIES * source.unpacked)
            if question == "next":
                rows = next(self._blocks[number], None)
                return ("value", None) if rows is None else ("rows", rows)
            value: Any = None
            if question == "stop":
                self._blocks.pop(number).close()
            elif question in _BEGIN:
                self._blocks[number] = getattr(source, question)(*arguments)
            else:
                value = getattr(source, question)
                value = value(*arguments) if arguments else value
        except (DpdistError, UncutError) as error:
            return type(error), error.args
        except MemoryError:
            reason = "it takes more memory than it declares"
            cure = "Repair or replace the file, or save it as .npy, and ingest again."
            return DataError, (f"{source.path} cannot be read: {reason}. {cure}",)
        return "value", value
