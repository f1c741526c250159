"""SIGINT and SIGTERM at chosen moments of a command: what was said, left and charged.

Every command is started again and again in a session of its own, and signalled at a share of the time that it takes
undisturbed, counted from the moment its handlers stand (the kernel tells), the first at that very moment. SIGINT goes
to all its processes, as from a terminal; SIGTERM to the command alone, as from Kubernetes, and, for a batch script, to
all, as from systemd and Slurm. It must end with exit code 5 and one sentence, leave no process, no file aside and
nothing in TMPDIR, and the same command must go on from there to the same end, charged once.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpdist import Ledger

MOMENTS = 10
_PATIENCE = 300.0
_LOOK = 0.005
_GONE_SECONDS = 5.0
_LEDGER = "rows.ledger"
COMMANDS: dict[str, tuple[str, ...]] = {
    "ingest": ("ingest", "table.csv", "rows.zarr", "--budget-epsilon", "3"),
    "release": ("release", "rows.zarr", "release.zarr", "--epsilon", "1", "--clip", "100", "--workers", "2"),
    "pca": ("pca", "release.zarr", "model.zarr", "--components", "2"),
    "project": ("project", "rows.zarr", "model.zarr", "scores.zarr", "--workers", "2"),
    "run": ("run", "job.toml"),
}
STRUCK = ("ingest", "release", "project", "run")
_MADE_BEFORE = {
    "ingest": (), "run": (), "release": (),
    "project": ("rows.zarr", _LEDGER, "release.zarr", "model.zarr"),
}  # fmt: skip
_JOB = """
[rows]
path = "rows.zarr"
source = "table.csv"
budget_epsilon = 3
[release]
path = "release.zarr"
epsilon = 1
clip = 100
[pca]
path = "model.zarr"
components = 2
[project]
path = "scores.zarr"
[cluster]
workers = 2
"""


@dataclass
class Ended:
    """How a process ended: seconds are from the signal to the end, and a moment is counted from its handlers on."""

    command: str
    sent: str  # the signal, and to whom
    moment: float
    code: int
    seconds: float
    words: str  # all that was said on standard error
    left: list[str] = field(default_factory=list)  # processes, files aside and files in TMPDIR
    state: str = ""  # of the release in the ledger
    finished: bool = False  # the command was done before the signal came

    @property
    def faults(self) -> list[str]:
        if self.finished:
            return [] if self.code == 0 else [f"exit code {self.code}"]
        name = self.sent.split()[0]
        said = [line for line in self.words.splitlines() if line.startswith("dpdist: ")]
        known = len(said) == 1 and said[0].startswith(f"dpdist: Interrupted by {name}: the same command resumes")
        loud = [each for each in ("Traceback", "Exception", "Error", "Warning") if each in self.words]
        return [
            *([] if self.code == 5 else [f"exit code {self.code}"]),
            *([] if known else ["not the one sentence"]),
            *(f"says {each}" for each in loud),
            *(f"left {each}" for each in self.left),
        ]


class Place:
    """A folder where commands are run, with a TMPDIR of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary = folder / "here", folder / "tmp"
        self.folder.mkdir(parents=True)
        self.temporary.mkdir()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        with (self.folder.parent / "words").open("w") as words:
            return subprocess.Popen(
                arguments, cwd=self.folder, env={**os.environ, "TMPDIR": str(self.temporary)}, text=True,
                stdout=subprocess.DEVNULL, stderr=words, start_new_session=True,
            )  # fmt: skip

    @property
    def words(self) -> str:
        return (self.folder.parent / "words").read_text()

    def done(self, command: str) -> float:
        """Run a command undisturbed, and return the seconds from the moment its handlers stood."""
        process = self.start(*program(command))
        _handlers_stand(process)
        begun = time.monotonic()
        if process.wait(_PATIENCE):
            raise RuntimeError(f"{command} ended with {process.returncode}: {self.words}")
        return time.monotonic() - begun

    def struck(self, command: str, number: signal.Signals, *, everybody: bool, moment: float) -> Ended:
        """Run a command, and send it a signal so many seconds after its handlers stood."""
        process = self.start(*program(command))
        finished = not _handlers_stand(process)
        try:
            process.wait(moment)
            finished = True
        except subprocess.TimeoutExpired:
            (os.killpg if everybody else os.kill)(process.pid, number)
        sent = time.monotonic()
        code = process.wait(_PATIENCE)
        seconds = time.monotonic() - sent
        to = "to all" if everybody else "to the command"
        # a signal that comes when all is done changes nothing
        finished = finished or (code == 0 and "Interrupted" not in self.words)
        left = self.left(process.pid)
        return Ended(
            command, f"{number.name} {to}", moment, code, round(seconds, 2), self.words, left, self.state(), finished
        )

    def left(self, leader: int) -> list[str]:
        deadline = time.monotonic() + _GONE_SECONDS
        while (processes := session(leader)) and time.monotonic() < deadline:
            time.sleep(_LOOK)
        aside = [str(path.relative_to(self.folder)) for path in self.folder.rglob("*.partial")]
        temporary = [f"TMPDIR/{path.relative_to(self.temporary)}" for path in self.temporary.rglob("*")]
        return [*(f"process {each}" for each in processes), *aside, *temporary]

    def state(self) -> str:
        if not Ledger.stands_at(self.folder / _LEDGER):
            return "no ledger"
        ledger = Ledger(self.folder / _LEDGER)
        ledger.verify()
        return ", ".join(record.state.value for record in ledger.records) or "nothing charged"

    def has_all(self, command: str) -> bool:
        made = {"ingest": "rows.zarr", "release": "release.zarr", "project": "scores.zarr", "run": "scores.zarr"}
        charged = command in {"release", "run"}
        return (self.folder / made[command]).exists() and (not charged or self.state() == "published")


def program(command: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "dpdist", *COMMANDS[command])


def _handlers_stand(process: subprocess.Popen[str]) -> bool:
    """Wait until a process answers SIGTERM itself; False if it ended before."""
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
        if caught >> (signal.SIGTERM - 1) & 1:
            return True
        time.sleep(_LOOK)
    return False


def session(leader: int) -> list[str]:
    """Name the processes of a session, except its leader and those that are dead."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, _, _, session = rest.split()[:4]
        if int(session) == leader and state not in "ZX" and path.parent.name != str(leader):
            found.append(name)
    return found


def supplied(folder: Path, rows: int) -> Place:
    place = Place(folder)
    values = np.random.default_rng(1).integers(0, 60, (rows, 10))
    np.savetxt(place.folder / "table.csv", values, "%d", ",", header="a,b,c,d,e,f,g,h,i,j", comments="")
    (place.folder / "job.toml").write_text(_JOB)
    return place


def fresh(folder: Path, of: Place, command: str) -> Place:
    """Return a new place with what a command needs, and nothing of what it makes."""
    place = Place(folder)
    for name in ("table.csv", "job.toml", *_MADE_BEFORE[command]):
        source = of.folder / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, place.folder / name)
    if command == "release":
        place.done("ingest")  # anew: of other rows the ledger knows the release already, and publishes it again
    return place


def again_and_again(
    folder: Path, of: Place, command: str, number: signal.Signals, moments: Sequence[float], *, everybody: bool
) -> tuple[list[Ended], bool]:
    """Strike a command at one moment after the other, each time where the one before left off; then let it end.

    When it was done, it begins anew. Return how each ended, and whether all that began came to one and the same end,
    and the last, which nobody struck, left nothing in TMPDIR.
    """
    ended, well, place = [], True, fresh(folder / "0", of, command)
    for count, moment in enumerate(moments, start=1):
        one = place.struck(command, number, everybody=everybody, moment=moment)
        ended.append(one)
        if one.finished:
            well = well and place.has_all(command)
            place = fresh(folder / str(count), of, command)
    place.done(command)
    return ended, well and place.has_all(command) and not any(place.temporary.iterdir())


def requeued(folder: Path, of: Place, moments: Sequence[float]) -> tuple[int, list[int], bool]:
    """Run a batch script of four commands as a scheduler does that ends all its processes by SIGTERM and requeues it.

    Return how often it was struck, its exit codes, and whether it made one release, is done, and stays done.
    """
    place = fresh(folder, of, "ingest")
    steps = [" ".join(f"'{word}'" for word in program(command)) for command in ("ingest", "release", "pca", "project")]
    script = ("bash", "-c", "set -e\n" + "\n".join(steps))
    codes, struck = [], 0
    for moment in [*moments, _PATIENCE]:
        process = place.start(*script)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            struck += 1
        codes.append(process.wait(_PATIENCE))
        if "Traceback" in place.words or place.left(process.pid):
            raise RuntimeError(f"left {place.left(process.pid)}: {place.words}")
    before = _tree(place.folder)
    last = place.start(*script).wait(_PATIENCE)
    well = place.state() == "published" and last == 0 and _tree(place.folder) == before
    return struck, codes, well


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
