"""A PostgreSQL server for the tests: in a temporary folder, on a Unix socket only, gone when they end."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.waiting import PATIENCE

PASSWORD = secrets.token_hex(16)
"""Of the one role, ``dpdist``; given to the product as a user gives it, in PGPASSWORD or a file."""


def programs() -> Path | None:
    """Return the folder of ``initdb`` and ``postgres``: Debian keeps them off PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


@dataclass
class Server:
    """A running server."""

    programs: Path
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def address(self, ledger: str, schema: str = "public", **options: str) -> str:
        more = "".join(f"&{key}={value}" for key, value in options.items())
        path = f"&options=-csearch_path%3D{schema}"
        return f"postgresql+psycopg://dpdist@/postgres?host={self.folder}&ledger={ledger}{path}{more}"

    def connect(self, **keywords: Any) -> Any:
        import psycopg

        return psycopg.connect(
            host=str(self.folder), user="dpdist", password=PASSWORD, dbname="postgres", autocommit=True, **keywords
        )

    def start(self, *settings: str) -> None:
        import psycopg

        words = [f"-c{setting}" for setting in (f"unix_socket_directories={self.folder}", "listen_addresses=")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", *words, *(f"-c{s}" for s in settings)],
                stdout=log, stderr=log, cwd=self.folder, **identity(),
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()  # no new connections; it waits for those that are open
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGINT)
                self.process.wait(PATIENCE)
            self.process = None

    def crash(self) -> None:
        """Kill it and all its processes, as a power cut does but for the disk."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (self.process.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.process = None


def identity() -> Mapping[str, Any]:
    """Return as whom to run it: the server refuses to be root."""
    if os.getuid():
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def running(folder_of_programs: Path, parent: Path | None = None) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="dpdist-pg-", dir=parent, ignore_cleanup_errors=True) as name:
        folder, who = Path(name), identity()
        if who:
            os.chown(folder, who["user"], who["group"])
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)  # in a folder that only the server's user enters
        subprocess.run(
            [folder_of_programs / "initdb", "-D", folder / "data", "-U", "dpdist", "--auth=scram-sha-256",
             f"--pwfile={secret}", "--encoding=UTF8", "--no-locale", "--no-sync", "--wal-segsize=1"],
            check=True, stdout=subprocess.DEVNULL, cwd=folder, **who,
        )  # fmt: skip
        server = Server(folder_of_programs, folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
