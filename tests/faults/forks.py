"""Processes forked from one that has everything imported: a command, a scheduler or a worker starts at once."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from faults import crash_driver, worker_environment
from faults.waiting import PATIENCE


@dataclass
class Child:
    """One process; it leads a session of its own."""

    pid: int
    words: Path
    """The file with everything it said."""
    code: int | None = None
    """Its exit code, or minus the signal that killed it, once it has ended."""
    ended: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float = PATIENCE) -> int:
        assert self.ended.wait(seconds), f"it did not end within {seconds} s: {self.words.read_text()}"
        assert self.code is not None
        return self.code

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def state(self) -> str:
        """What the kernel says of it: ``T`` is stopped, nothing is gone."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""


class Forks:
    """The process that is forked from; made by :func:`forking`."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server
        self._started: queue.Queue[int] = queue.Queue()
        self._children: dict[int, Child] = {}
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            told = json.loads(line)
            if "started" in told:
                self._started.put(told["started"])
                continue
            with self._lock:
                self._codes[told["pid"]] = told["code"]
                child = self._children.get(told["pid"])
            if child is not None:
                child.code = told["code"]
                child.ended.set()
        self._started.put(0)  # the process that forks has ended

    def start(
        self,
        words: Path,
        arguments: Sequence[str],
        *,
        program: str = "dpdist",
        folder: Path | None = None,
        namespace: str | None = None,
        settings: Mapping[str, float] | None = None,
    ) -> Child:
        assert self._server.stdin is not None
        asked = {
            "words": str(words), "arguments": list(arguments), "program": program,
            "folder": folder and str(folder), "namespace": namespace, "settings": dict(settings or {}),
        }  # fmt: skip
        with suppress(BrokenPipeError):
            self._server.stdin.write(json.dumps(asked) + "\n")
            self._server.stdin.flush()
        pid = self._started.get(timeout=PATIENCE)
        assert pid, "the process that forks has ended"
        child = Child(pid, words)
        with self._lock:
            self._children[pid] = child
            child.code = self._codes.get(pid)
        if child.code is not None:
            child.ended.set()
        return child


@contextmanager
def forking(more: Mapping[str, str] | None = None) -> Iterator[Forks]:
    """Start a process to fork from, with more in its environment; whatever was started is gone at the end."""
    command = [sys.executable, crash_driver.__file__, "serve"]
    environment = {**os.environ, **worker_environment.without_tls(), **(more or {})}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            yield Forks(server)
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait(300)
