"""A reader in a process of its own, for a library that a damaged file can hang or crash.

The HDF5 library follows the addresses that a file holds: some damage makes it loop for ever, some makes it write where
it must not, and neither can be caught, or even interrupted, in the process that it happens in. So a forked process
reads, answers through a pipe, and ends when it is asked no more. Should it hang, the system ends it; should it crash or
take too much memory, the file is damaged. Where processes cannot be forked safely (not Linux) the file is read here.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.errors import DataError, DpdistError, quiet
from dpdist.rows.readers import base
from dpdist.rows.readers.base import Places, Rows, Source, Survey
from dpdist.staging import remove_abandoned

_PATIENCE = 300
"""Seconds within which a piece must be there: rows of a few MiB, or a chunk of a GiB of which they are a part."""
_MEMORY = 4 << 30
"""Bytes that reading may take beyond what the process had: a chunk of a GiB, unpacked and converted."""


@dataclass(frozen=True)
class Apart(Source):
    """A source that is read in a process of its own.

    Parameters
    ----------
    inner
        The reader of the file, which has read nothing yet.
    """

    inner: Any = None  # a Source
    _process: dict[str, _Process] = field(default_factory=dict, compare=False, repr=False)

    def _ask(self, question: str, *arguments: Any) -> Any:
        if sys.platform != "linux":
            found = getattr(self.inner, question)
            return found(*arguments) if arguments else found
        if "it" not in self._process:
            self._process["it"] = _Process(self.inner)
        return self._process["it"].ask(question, *arguments)

    def close(self) -> None:
        """End the process."""
        if "it" in self._process:
            self._process.pop("it").close()

    @cached_property
    def names(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self._ask("names")
        return found

    def survey(self, keep: Places) -> Survey:
        found: Survey = self._ask("survey", keep)
        return found

    def kept_as(self, place: int) -> np.dtype[Any] | None:
        found: np.dtype[Any] | None = self._ask("kept_as", place)
        return found

    def blocks(self, keep: Places) -> Generator[Rows]:
        blocks = self._ask("blocks", keep)
        if isinstance(blocks, Generator):
            yield from blocks
            return
        try:
            while (block := self._ask("next", None)) is not None:
                yield block
        finally:
            if "it" in self._process and self._process["it"].alive:
                self._ask("stop", None)


class _Process:
    """The process that reads one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.alive = True
        self._here, there = Pipe()
        with quiet():  # Python warns where there are threads; the process uses nothing that they may hold
            self._pid = os.fork()
        if self._pid == 0:
            try:
                _answer(source, there)
            finally:
                os._exit(0)
        there.close()

    def ask(self, question: str, *arguments: Any) -> Any:
        """Return the answer; whatever went wrong is raised here.

        Raises
        ------
        DpdistError
            What the reader raised.
        DataError
            If the process ended, by a crash, or because it took too long.
        """
        kind: Any
        try:
            self._here.send((question, *arguments))
            kind, value = self._here.recv()
        except (EOFError, OSError):
            kind, value = None, None
        if kind is None:
            code = self.close()
            remove_abandoned(self._source.beside / "unpacked")
            how = "hangs" if code == -signal.SIGALRM else "ends by a crash"
            raise DataError(
                f"{self._source.path} cannot be read: it is damaged so that its library {how}. Mend or replace the "
                "file and ingest again."
            )
        if isinstance(kind, type):
            raise kind(value)
        return value

    def close(self) -> int:
        """End the process, and return its code."""
        self.alive = False
        self._here.close()
        with suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return 0


def _answer(source: Source, pipe: Connection) -> None:
    """Answer questions until there are no more; a question that takes too long ends the process."""
    for handle in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle != pipe.fileno():  # locks and pipes of the other process are not this one's
            with suppress(OSError):
                os.close(handle)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    base.progressed = lambda: signal.alarm(_PATIENCE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal both get it, and the other one says what happens
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (taken + _MEMORY, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold rows
    blocks: Any = None
    with suppress(EOFError, OSError):
        while True:
            question, *arguments = pipe.recv()
            base.progressed()
            try:
                value: Any = None
                if question == "next":
                    value = next(blocks, None)
                elif question == "stop":
                    blocks.close()
                elif question == "blocks":
                    blocks = source.blocks(*arguments)
                else:
                    value = getattr(source, question)
                    value = value(*arguments) if arguments else value
                reply: tuple[Any, Any] = "value", value
            except DpdistError as error:
                reply = type(error), str(error)
            except MemoryError:
                reply = DataError, f"{source.path} cannot be read: it takes more than {_MEMORY >> 30} GiB of memory."
            signal.alarm(0)
            pipe.send(reply)
