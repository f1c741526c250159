"""A cluster started by hand: a scheduler and workers, each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from faults.waiting import until


@contextmanager
def started_by_hand(folder: Path, environment: Mapping[str, str], *workers: Sequence[str]) -> Iterator[str]:
    """Start them, the workers with these options; give the address of the scheduler."""
    contact = folder / "scheduler.json"
    place = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(contact)]
    variables = {**os.environ, "PYTHONWARNINGS": "ignore", **environment}
    processes: list[subprocess.Popen[bytes]] = []

    def start(tool: str, *options: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.dask_{tool}", *options, *place]
        with (folder / f"{tool}.log").open("ab") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=variables))

    try:
        start("scheduler", "--port", "0")
        until(lambda: contact.exists() and contact.stat().st_size)
        for options in workers:
            start("worker", "--nthreads", "1", "--no-nanny", *options)
        yield json.loads(contact.read_text())["address"]
    finally:
        for process in processes:
            process.kill()
            process.wait()
