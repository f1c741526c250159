"""A release survives the death of its process at any moment: one charge, one matrix, the same bytes for ever.

Every fault leaves a marker when it strikes; without the marker the test fails, because nothing was proved.
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
from faults import crash_driver, signals
from faults.crash_points import FAULTS, STAGED_FAULTS, Left
from faults.forks import forking
from faults.nightly import events
from faults.waiting import PATIENCE, until
from support.cli_scene import tree
from support.ledgers import losses

from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import Record, State
from dpdist.core.pipeline import budget
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.opening import open_release
from dpdist.core.rows.dataset import created

BUDGET, COST = PrivacyLoss.parse("3"), PrivacyLoss.parse("1")
DRIVER = [sys.executable, crash_driver.__file__]
PLAIN = ("--epsilon", "1", "--clip", "64")


@dataclass(frozen=True)
class Place:
    """A folder with rows, their ledger and room for a release."""

    folder: Path

    @property
    def rows(self) -> Path:
        return self.folder / "rows.zarr"

    @property
    def target(self) -> Path:
        return self.folder / "public" / "release.zarr"

    @property
    def marker(self) -> Path:
        return self.folder / "struck"

    @property
    def ledger(self) -> Ledger:
        return Ledger(budget.default_ledger(self.rows))

    @property
    def record(self) -> Record | None:
        records = self.ledger.records
        assert len(records) <= 1
        return records[0] if records else None

    @property
    def blobs(self) -> list[str]:
        return sorted(path.name for path in (budget.default_ledger(self.rows) / "blobs").iterdir())

    def command(self, *more: str, options: Sequence[str] = PLAIN, to: Path | None = None) -> list[str]:
        return ["release", str(self.rows), str(to or self.target), *options, *more]

    def published(self) -> dict[str, bytes]:
        return tree(self.target.parent)

    def events(self) -> Counter[str]:
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


def require_one_release(place: Place, chosen: str = "") -> Release:
    ledger, record = place.ledger, place.record
    ledger.verify()
    assert record is not None
    assert record.state is State.PUBLISHED
    assert losses(ledger) == [BUDGET if chosen else COST]  # a choice takes all of it
    events = place.events()
    assert (events["reserved"], events["committed"], events["published"], events["aborted"]) == (1, 1, 1, 0)
    assert events["staged"] == len(record.stages) == bool(chosen)
    assert place.blobs == sorted(record.blobs)
    assert [path.name for path in place.target.parent.iterdir()] == [place.target.name]
    release = open_release(place.target)
    assert (release.release_id, release.rows) == (record.release_id, 500)
    return release


Run = Callable[..., int]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
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
    arguments = [action, point, str(place.marker), cluster, *command]
    with (place.folder / "words").open("ab") as words:
        process = subprocess.Popen([*DRIVER, *arguments], stdout=words, stderr=words, start_new_session=True)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)


def what_is_left(place: Place) -> Left:
    record = place.record
    state, fence = (record.state, record.fence) if record else (None, 0)
    return Left(state, fence, len(place.blobs), place.target.exists())


STRUCK = (
    "inside the reservation", "after the reservation", "after the sum", "inside the beginning", "after the draw",
    "with half a draft", "inside the commit", "before the witness", "inside the note of the witness",
    "before the rename", "after the rename", "inside the record",
)  # fmt: skip
"""The other points leave what one of these leaves, and are struck by benchmarks/chaos.py."""
CHOICES = {
    "": PLAIN,
    "clip norm": ("--epsilon", "3", "--clip", "private"),
    # half of epsilon, for there are few rows
    "scale": ("--epsilon", "3", "--clip", "auto", "--scale", "private", "--scale-share", "0.5"),
}
KILLED = [
    *(("", point, FAULTS[point]) for point in STRUCK),
    *((chosen, *left) for chosen, left in zip(cycle(("clip norm", "scale")), STAGED_FAULTS.items(), strict=False)),
]


@pytest.mark.parametrize(("chosen", "point", "left"), KILLED, ids=lambda each: each if isinstance(each, str) else "")
def test_a_release_killed_at_any_moment_is_finished_by_the_same_command_and_keeps_its_stages(
    run: Run, place: Place, chosen: str, point: str, left: Left
) -> None:
    command = place.command(options=CHOICES[chosen])
    assert run(place, command, "kill", point) == -signal.SIGKILL
    assert place.marker.exists()
    assert what_is_left(place) == left
    place.ledger.verify()
    before, seen = place.record, place.published() if left.published else None
    assert run(place, command) == 0
    release, after, first = require_one_release(place, chosen), place.record, place.published()
    assert after is not None
    # what could be seen after the fault is what can be seen for ever
    assert seen in (None, first)
    if before is not None:
        assert before.digest in {None, after.digest}
        assert before.stages == after.stages[: len(before.stages)]
    if chosen:
        assert release.stage is not None
        for name in {"clip_norm", "centre", "scale"} & set(release.stage.chosen):
            assert getattr(release.bound, name) == release.stage.chosen[name]
    elif point == "inside the commit":
        head = place.ledger.head
        assert run(place, command) == 0
        require_one_release(place)
        assert (place.published(), place.ledger.head) == (first, head)


@pytest.mark.parametrize(("chosen", "point"), [("", "after the beginning"), ("scale", "after the counts are drawn")])
def test_runs_at_once_end_well_with_one_stage_and_one_release(place: Place, chosen: str, point: str) -> None:
    command = place.command(options=CHOICES[chosen])
    place.marker.mkdir()  # where they wait for one another, so that they are at it together
    meeting = (place, command, "meet-3", point, "inline")
    with started(*meeting) as one, started(*meeting) as two, started(*meeting) as three:
        codes = [process.wait(PATIENCE) for process in (one, two, three)]
    assert codes == [0, 0, 0], (place.folder / "words").read_text()
    assert len(list(place.marker.iterdir())) == 3
    assert what_is_left(place).fence >= 3  # so many draws were begun; one counts
    require_one_release(place, chosen)


def test_a_release_in_bands_killed_between_two_of_them_is_drawn_anew_as_a_whole(run: Run, place: Place) -> None:
    command = place.command("--mechanism", "laplace")
    assert run(place, command, "kill", "in the second band", "bands") == -signal.SIGKILL
    assert place.marker.exists()
    assert what_is_left(place) == Left(State.RESERVED, 1, 1)  # a band was drawn, and is seen by nobody
    assert losses(place.ledger) == [COST]
    assert run(place, command, cluster="bands") == 0
    require_one_release(place)


def test_a_release_on_a_real_cluster_killed_half_way_is_finished_by_the_same_command(place: Place) -> None:
    command = place.command("--workers", "1")
    with started(place, command, "kill", "with the cluster at work") as process:
        assert process.wait(PATIENCE) == -signal.SIGKILL
        assert place.marker.exists()
        until(lambda: not signals.session(process.pid))  # workers hold sums of private rows
    record = place.record
    assert record is not None
    assert record.state is State.RESERVED
    assert not place.target.exists()
    with started(place, command) as process:
        assert process.wait(PATIENCE) == 0
        until(lambda: not signals.session(process.pid))
    require_one_release(place)


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
