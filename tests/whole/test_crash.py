"""A release survives the death of its process at any moment: one charge, one matrix, the same bytes for ever.

Every fault leaves a marker at the very moment it strikes; without the marker the test fails, because a fault that did
not land proves nothing. What the fault left behind is checked as well, so each lands where its name says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from faults import crash_driver
from faults.crash_points import FAULTS, STAGED_FAULTS, Left
from faults.forks import forking
from faults.nightly import events
from faults.waiting import PATIENCE, until
from support.ledgers import losses

from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import Record, State
from dpdist.pipeline import budget
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.artefact import Release, open_release
from dpdist.rows.dataset import created

BUDGET, COST = PrivacyLoss.parse("3"), PrivacyLoss.parse("1")
DRIVER = [sys.executable, crash_driver.__file__]


@dataclass(frozen=True)
class Place:
    """A folder with rows, their ledger and room for a release."""

    folder: Path

    @property
    def rows(self) -> Path:
        return self.folder / "rows.zarr"

    @property
    def target(self) -> Path:
        """Where the release is published: a folder of its own, so that litter beside it is seen."""
        return self.folder / "public" / "release.zarr"

    @property
    def marker(self) -> Path:
        """What a fault leaves when it strikes."""
        return self.folder / "struck"

    @property
    def ledger(self) -> Ledger:
        return Ledger(budget.default_ledger(self.rows))

    @property
    def record(self) -> Record | None:
        """The only release in the ledger, if there is one."""
        records = self.ledger.records
        assert len(records) <= 1
        return records[0] if records else None

    @property
    def blobs(self) -> list[str]:
        """What lies in the private folder of the ledger."""
        return sorted(path.name for path in (budget.default_ledger(self.rows) / "blobs").iterdir())

    def command(self, *more: str, epsilon: str = "1") -> list[str]:
        """Return the command line of the release."""
        return ["release", str(self.rows), str(self.target), "--epsilon", epsilon, "--clip", "64", *more]

    def published(self) -> dict[str, bytes]:
        """Return every file in the public folder."""
        public = self.target.parent
        return {str(path.relative_to(public)): path.read_bytes() for path in public.rglob("*") if path.is_file()}

    def events(self) -> Counter[str]:
        """Count the journal's entries by what happened."""
        return events(budget.default_ledger(self.rows))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.target.parent.mkdir()
    values = np.random.default_rng(1).integers(0, 32, (500, 4), dtype=np.uint8)
    with created(made.rows, rows=500, dtype="uint8", names=("a", "b", "c", "d"), budget=BUDGET) as writer:
        writer.append(values)
    budget.create_ledger(budget.default_ledger(made.rows), made.rows)
    return made


def require_one_release(place: Place, cost: PrivacyLoss = COST) -> Release:
    """Check that exactly one release exists, is charged, committed and published, once; return it."""
    ledger, record = place.ledger, place.record
    ledger.verify()
    assert record is not None
    assert record.state is State.PUBLISHED
    assert losses(ledger) == [cost]
    events = place.events()
    assert (events["reserved"], events["committed"], events["published"], events["aborted"]) == (1, 1, 1, 0)
    assert place.blobs == sorted(record.blobs)
    assert [path.name for path in place.target.parent.iterdir()] == [place.target.name]
    release = open_release(place.target)
    assert release.release_id == record.release_id
    assert release.rows == 500
    return release


# --- processes --------------------------------------------------------------------------------------------------------

Run = Callable[..., int]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Give a function that runs one command line in a process of its own, computing inline, and returns its code."""
    with forking() as forks:

        def run(
            place: Place, command: Sequence[str], action: str = "note", point: str = "", cluster: str = "inline"
        ) -> int:
            words = place.folder / "words"
            code = forks.start(words, [action, point, str(place.marker), cluster, *command]).wait()
            sys.stdout.write(words.read_text())  # pytest shows it if the test fails
            assert "Traceback" not in words.read_text()
            return code

        yield run


@contextmanager
def started(
    place: Place, command: Sequence[str], action: str = "note", point: str = "", cluster: str = "processes"
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command line by itself, in a session of its own; nothing of that session survives the block."""
    arguments = [action, point, str(place.marker), cluster, *command]
    with (place.folder / "words").open("ab") as words:
        process = subprocess.Popen([*DRIVER, *arguments], stdout=words, stderr=words, start_new_session=True)
        try:
            yield process
        finally:
            for member in session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            process.wait(PATIENCE)


def session(leader: int) -> list[int]:
    """Return the living processes of a session."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, sid = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue  # it ended meanwhile
            if int(sid) == leader and state != "Z":
                members.append(int(entry.name))
    return members


# --- death ------------------------------------------------------------------------------------------------------------


def what_is_left(place: Place) -> Left:
    record = place.record
    if record is None:
        return Left(None, 0, len(place.blobs), place.target.exists())
    return Left(record.state, record.fence, len(place.blobs), place.target.exists())


STRUCK = (
    "inside the reservation", "after the reservation", "after the sum", "inside the beginning", "after the draw",
    "with half a draft", "inside the commit", "before the witness", "inside the note of the witness",
    "before the rename", "after the rename", "inside the record",
)  # fmt: skip
"""The other points leave what one of these leaves, and are struck by benchmarks/chaos.py."""


@pytest.mark.parametrize("point", STRUCK)
def test_a_release_killed_at_any_moment_is_finished_by_the_same_command(run: Run, place: Place, point: str) -> None:
    assert run(place, place.command(), "kill", point) == -signal.SIGKILL
    assert place.marker.exists()
    assert what_is_left(place) == FAULTS[point]
    place.ledger.verify()
    observable = place.record.digest if place.record else None, place.published() if FAULTS[point].published else None

    assert run(place, place.command()) == 0
    require_one_release(place)
    first = place.published()
    # what could be seen after the fault is what can be seen for ever
    digest, seen = observable
    assert place.record is not None
    assert digest in {None, place.record.digest}
    assert seen in (None, first)
    if point == "inside the commit":
        head = place.ledger.head
        assert run(place, place.command()) == 0
        require_one_release(place)
        assert (place.published(), place.ledger.head) == (first, head)


PRIVATE_CLIP = PrivacyLoss.parse("3")


def clipping(place: Place) -> list[str]:
    """Return the command line of a release that chooses its clip norm."""
    return ["release", str(place.rows), str(place.target), "--epsilon", "3", "--clip", "private"]


def scaling(place: Place) -> list[str]:
    """Return the command line of a release that chooses centre and scale: half of epsilon, for there are few rows."""
    more = ("--clip", "auto", "--scale", "private", "--scale-share", "0.5")
    return ["release", str(place.rows), str(place.target), "--epsilon", "3", *more]


CHOICES = {"clip norm": clipping, "scale": scaling}


@pytest.mark.parametrize(("point", "chosen"), list(zip(STAGED_FAULTS, cycle(CHOICES), strict=False)))
def test_a_release_that_chooses_something_first_killed_at_any_moment_keeps_its_stage(
    run: Run, place: Place, point: str, chosen: str
) -> None:
    command = CHOICES[chosen](place)
    assert run(place, command, "kill", point) == -signal.SIGKILL
    assert place.marker.exists()
    assert what_is_left(place) == STAGED_FAULTS[point]
    assert place.record is not None
    stages, digest = place.record.stages, place.record.digest
    assert losses(place.ledger) == [PRIVATE_CLIP]

    assert run(place, command) == 0
    release = require_one_release(place, PRIVATE_CLIP)
    assert place.record.stages
    assert stages == place.record.stages[: len(stages)]
    assert digest in {None, place.record.digest}
    assert release.stage is not None
    for name in {"clip_norm", "centre", "scale"} & set(release.stage.chosen):
        assert getattr(release.bound, name) == release.stage.chosen[name]
    assert place.events()["staged"] == 1


def test_two_runs_at_once_that_choose_something_first_end_with_one_stage_and_one_release(place: Place) -> None:
    command = scaling(place)
    place.marker.mkdir()
    point = "after the counts are drawn"  # of both runs; one of these draws counts
    with (
        started(place, command, "meet-2", point, "inline") as one,
        started(place, command, "meet-2", point, "inline") as two,
    ):
        assert [one.wait(PATIENCE), two.wait(PATIENCE)] == [0, 0], (place.folder / "words").read_text()
    require_one_release(place, PRIVATE_CLIP)
    assert place.events()["staged"] == 1


def test_a_release_killed_again_and_again_is_charged_once(run: Run, place: Place) -> None:
    points = ("after the draw", "after the draft", "inside the commit")
    for attempt, point in enumerate(points, start=1):
        place.marker.unlink(missing_ok=True)
        assert run(place, place.command(), "kill", point) == -signal.SIGKILL
        assert place.marker.exists()
        record = place.record
        assert record is not None
        assert (record.state, record.fence) == (State.RESERVED, attempt)
        assert len(place.blobs) <= 1  # the drafts of earlier attempts are gone before a new one is written
        assert losses(place.ledger) == [COST]
    assert run(place, place.command()) == 0
    require_one_release(place)


def test_a_release_in_bands_killed_between_two_of_them_is_drawn_anew_as_a_whole(run: Run, place: Place) -> None:
    command = place.command("--mechanism", "laplace")
    assert run(place, command, "kill", "in the second band", "bands") == -signal.SIGKILL
    assert place.marker.exists()
    assert what_is_left(place) == Left(State.RESERVED, 1, 1)  # a band was drawn, and is seen by nobody
    assert losses(place.ledger) == [COST]
    assert run(place, command, cluster="bands") == 0
    require_one_release(place)


def test_a_killed_release_may_be_published_elsewhere(run: Run, place: Place) -> None:
    assert run(place, place.command(), "kill", "after the rename") == -signal.SIGKILL
    first = place.published()
    copy = place.folder / "copy.zarr"
    command = ["release", str(place.rows), str(copy), *place.command()[3:]]
    assert run(place, command) == 0
    copied = {f"release.zarr/{p.relative_to(copy)}": p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    assert copied == first
    require_one_release(place)


def test_a_release_on_a_real_cluster_killed_half_way_is_finished_by_the_same_command(place: Place) -> None:
    command = place.command("--workers", "1")
    with started(place, command, "kill", "with the cluster at work") as process:
        assert process.wait(PATIENCE) == -signal.SIGKILL
        assert place.marker.exists()
        until(lambda: not session(process.pid))  # the workers hold sums of private rows: they must not stay behind
    record = place.record
    assert record is not None
    assert record.state is State.RESERVED
    assert not place.target.exists()
    with started(place, command) as process:
        assert process.wait(PATIENCE) == 0
        until(lambda: not session(process.pid))
    require_one_release(place)


# --- interruption -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "point"),
    [
        ("interrupt", "before reading"),
        ("terminate", "after the draft"),
        ("interrupt", "inside the commit"),
        ("terminate", "before the rename"),
    ],
)
def test_an_interrupted_release_says_so_and_is_finished_by_the_same_command(
    run: Run, place: Place, point: str, action: str
) -> None:
    assert run(place, place.command(), action, point) == 5
    assert place.marker.exists()
    by = "SIGINT" if action == "interrupt" else "SIGTERM"
    said = f"dpdist: Interrupted by {by}: the same command resumes, and charges nothing twice."
    assert (place.folder / "words").read_text().split("\n").count(said) == 1
    # unlike a killed process, an interrupted one tidies up
    assert place.published() == {} or FAULTS[point].published
    record = place.record
    assert record is not None
    assert place.blobs == ([] if record.blob is None else [record.blob])
    assert losses(place.ledger) == [COST]
    assert run(place, place.command()) == 0
    require_one_release(place)


# --- company ----------------------------------------------------------------------------------------------------------


def test_three_runs_of_one_release_at_once_all_end_well_with_one_release(place: Place) -> None:
    place.marker.mkdir()  # where they wait for one another, so that they are at it together
    meeting = (place.command(), "meet-3", "after the beginning", "inline")
    with started(place, *meeting) as one, started(place, *meeting) as two, started(place, *meeting) as three:
        codes = [process.wait(PATIENCE) for process in (one, two, three)]
    assert codes == [0, 0, 0], (place.folder / "words").read_text()
    assert len(list(place.marker.iterdir())) == 3
    require_one_release(place)
    assert place.record is not None
    assert place.record.fence == 3  # three draws were made or about to be made; one counts


# --- refusal ----------------------------------------------------------------------------------------------------------


def test_over_budget_the_command_ends_with_three_and_no_row_is_read(run: Run, place: Place) -> None:
    assert run(place, place.command(epsilon="4"), "note", "before reading") == 3
    assert not place.marker.exists()
    assert place.record is None
    assert place.ledger.charges == []
    assert place.published() == {}
    assert "budget" in (place.folder / "words").read_text()
    # and the marker does tell when rows are read
    assert run(place, place.command(), "note", "before reading") == 0
    assert place.marker.exists()
    require_one_release(place)


def test_the_budget_pays_for_as_many_releases_as_it_says(run: Run, place: Place) -> None:
    public = place.target.parent
    codes = []
    for number in range(4):
        command = ["release", str(place.rows), str(public / f"{number}"), *place.command()[3:], "--id", f"n{number}"]
        codes.append(run(place, command, "kill" if number == 1 else "note", "after the draft"))
    assert codes == [0, -signal.SIGKILL, 0, 3]  # one that died has spent its part
    command = ["release", str(place.rows), str(public / "1"), *place.command()[3:], "--id", "n1"]
    assert run(place, command) == 0
    assert losses(place.ledger) == [COST] * 3
    assert len({path.read_bytes() for path in public.glob("*/lattice/c/0/0")}) == 3
