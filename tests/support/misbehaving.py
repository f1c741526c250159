"""A source that does what a hostile file makes a library do; other processes can import it."""

from __future__ import annotations

import logging
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Misbehaving:
    """Each property is a question that the process which reads may be asked."""

    path: Path
    unpacked: int = 0
    decoded: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return ("a",)

    @property
    def process(self) -> int:
        return os.getpid()

    @property
    def folder(self) -> str:
        return str(Path.cwd()) + os.environ.get("MISBEHAVING", "")

    @property
    def talkative(self) -> tuple[str, ...]:
        logging.getLogger("a-library").error("Unclosed client session")
        os.write(1, b"a cell")
        os.write(2, b"a cell")
        return ("a", "b")

    @property
    def crashing(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    @property
    def hungry(self) -> None:
        bytearray(5 << 30)

    @property
    def hanging(self) -> None:
        while True:
            time.sleep(1)
