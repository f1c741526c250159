"""Steps of an ingest: units that are computed in this process or on workers, each once, whatever dies in between.

A unit puts what it found into the store that is built, under a prefix that is removed before the table appears. There
it is found by whoever goes on after a process has died. What is wrong with a file is put there, too, and not raised on
a worker: nothing that is said of rows goes through the scheduler, which would log it. A task is the number of a unit.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Protocol

from dpdist._util.ids import random_token
from dpdist._util.progress import Steps
from dpdist.errors import DataError, RefusedError, ResumableError, UsageError
from dpdist.ingest.readers.base import AskError
from dpdist.ingest.readers.isolated import ReaderProcess
from dpdist.ingest.remote import location_of
from dpdist.ingest.sources import Choices, NoRowsError, Source, source_at
from dpdist.ingest.states import digest_of
from dpdist.storage.arrays import ROOT
from dpdist.storage.store import MOST_AT_ONCE, Store

WORK = "work"
"""Prefix of what the steps of an ingest put aside."""
SOURCES = "sources"
_SECRET = 64
_FAULTS = f"{WORK}/faults"
_KINDS: dict[str, type[DataError | UsageError | RefusedError]] = {
    kind.__name__: kind for kind in (DataError, NoRowsError, AskError, UsageError, RefusedError)
}


class Hands(Protocol):
    """What a unit works with."""

    def opened(self, number: int) -> Source:
        """Return one of the sources, to be read until another one is asked for."""
        ...

    def known(self, number: int) -> str | None:
        """Return the state in which a source was found at first, if that can be compared."""
        ...

    def said(self, text: str) -> str:
        """Return a message as the user is told it."""
        ...

    def told(self, rows: int) -> None:
        """Take note of rows that were written."""
        ...


@dataclass(frozen=True)
class Step(ABC):
    """A step of an ingest: what all its units share.

    Parameters
    ----------
    aside
        What is being built.
    sources, plan
        Digests of the sources, and of the plan that the units follow; see :func:`put_plan`.
    """

    aside: Store
    sources: str
    plan: str
    name: ClassVar[str]
    label: ClassVar[str]
    follows: ClassVar[str]
    """Name of the plan."""

    @property
    def planned(self) -> Any:
        """The plan."""
        return plan_of(self.aside, self.follows, self.plan)

    def cut(self, unit: int) -> tuple[Step, int]:
        """Return what :func:`do_unit` takes for a unit."""
        return self, unit

    @abstractmethod
    def do(self, unit: int, hands: Hands) -> Any:
        """Compute a unit, make what it wrote durable, and return what it found, as JSON values."""

    def done(self, unit: int, hands: Hands) -> None:
        """Compute a unit, unless it is of no use any more, and put aside what it found, or what is wrong."""
        if self.aside.exists(ROOT) or min(self.faults(), default=unit) < unit:
            return
        try:
            self._put(unit, hands)
        finally:
            if self._forsaken():  # at such a prefix of a store nobody would ever find the rows that were put since
                self.aside.drop("")

    def _put(self, unit: int, hands: Hands) -> None:
        try:
            key, found = self._key(unit), self.do(unit, hands)
        except (DataError, UsageError, RefusedError) as error:
            ways = [error.ways, error.more] if isinstance(error, AskError) else []
            key, found = f"{_FAULTS}/{self.name}/{unit}", [type(error).__name__, hands.said(str(error)), *ways]
        self.aside.put(key, json.dumps(found).encode())
        self.aside.flush([key])

    def _forsaken(self) -> bool:
        """Say whether what was built there was removed: the plan is gone, and the head that is put before it goes."""
        for key in (f"{WORK}/{self.follows}", ROOT):
            with suppress(FileNotFoundError):
                self.aside.size(key)
                return False
        return True

    def _key(self, unit: int) -> str:
        return f"{WORK}/{self.name}/{unit}"

    def faults(self) -> set[int]:
        """Return the units that found something wrong."""
        return _numbers(self.aside, f"{_FAULTS}/{self.name}")

    def finished(self) -> set[int]:
        """Return the units that are done."""
        return _numbers(self.aside, f"{WORK}/{self.name}")

    def found(self, unit: int) -> Any:
        """Return what a unit found."""
        return json.loads(self.aside.get(self._key(unit)))

    def run(self, count: int, compute: Run) -> None:
        """Compute those of so many units that are not done yet, by what computes units.

        Raises
        ------
        DpdistError
            What is wrong, of the first unit that found something.
        """
        left = sorted(set(range(count)) - self.finished())
        if left:
            compute(self, left)
        if faults := self.faults():
            kind, *said = json.loads(self.aside.get(f"{_FAULTS}/{self.name}/{min(faults)}"))
            raise _KINDS[kind](*said)
        if len(self.finished()) < count:
            raise ResumableError("Some rows were not written. Run the same command again: it resumes.")


def forget_faults(aside: Store) -> None:
    """Forget what was wrong in an earlier attempt, which told nobody."""
    aside.drop(_FAULTS)


def _numbers(aside: Store, prefix: str) -> set[int]:
    names = (key.removeprefix(f"{prefix}/") for key, _ in aside.list(prefix))
    return {int(name) for name in names if name.isdecimal()}


def put_plan(aside: Store, name: str, plan: Any) -> str:
    """Put aside what units follow, as JSON values, and return its SHA-256: salted, for tasks carry it."""
    content, key = json.dumps([random_token(), plan]).encode(), f"{WORK}/{name}"
    aside.put(key, content)
    aside.flush([key])
    return sha256(content).hexdigest()


def secret_of(aside: Store) -> bytes:
    """Return what keys whatever is chosen of privacy units: the same until the table is complete, and then gone."""
    key = f"{WORK}/secret"
    if not aside.exists(key) or len(aside.get(key)) != _SECRET:
        aside.put(key, (random_token() + random_token()).encode("ascii")[:_SECRET])
        aside.flush([key])
    return aside.get(key)


@lru_cache(maxsize=2)
def plan_of(aside: Store, name: str, digest: str) -> Any:
    """Return a plan that was put aside.

    Raises
    ------
    ResumableError
        If it is another one by now: whoever asked for this one has gone.
    """
    content = aside.get(f"{WORK}/{name}", MOST_AT_ONCE)
    if sha256(content).hexdigest() != digest:
        raise ResumableError("Another process took the rows up. Run the same command again.")
    return json.loads(content)[1]


# --- who computes them ------------------------------------------------------------------------------------------------

Run = Callable[[Step, Sequence[int]], None]


class Elsewhere(Protocol):
    """Workers that may be asked."""

    @property
    def named(self) -> bool:
        """Whether somebody asked for them."""
        ...

    def connected(self) -> AbstractContextManager[Run]:
        """Give what computes units on them."""
        ...


class Here:
    """The process of the ingest, which has the sources open.

    Parameters
    ----------
    sources, states
        The sources, and what :func:`dpdist.ingest.states.state_of` says of each.
    progress
        Told the rows that are written, and those that there are.
    """

    def __init__(self, sources: Sequence[Source], states: Sequence[object], progress: Steps | None) -> None:
        self._sources, self._states, self._progress = sources, states, progress
        self._total = self._rows = 0

    def opened(self, number: int) -> Source:
        """Return a source."""
        return self._sources[number]

    def known(self, number: int) -> str | None:
        """Return the state in which a source was found at first."""
        return digest_of(self._states[number])

    def said(self, text: str) -> str:
        """Return a message as it is."""
        return text

    def begin(self, done: int, total: int) -> None:
        """Say how many rows are written already, and how many there are."""
        self._rows, self._total = done, total

    def told(self, rows: int) -> None:
        """Tell how far it is."""
        self._rows += rows
        if self._progress is not None and self._total:
            self._progress(self._rows, self._total)


class Crew:
    """Who computes units: this process, or workers that are asked for when there is more than one unit.

    Parameters
    ----------
    here
        This process.
    elsewhere
        The workers, or None.
    """

    def __init__(self, here: Here, elsewhere: Elsewhere | None) -> None:
        self.here, self._elsewhere = here, elsewhere
        self._stack = ExitStack()
        self._away: Run | None = None

    @property
    def asked(self) -> bool:
        """Whether workers may be asked."""
        return self._elsewhere is not None

    def run(self, step: Step, units: Sequence[int]) -> None:
        """Compute units of a step."""
        if self._elsewhere is None or len(units) < 2:
            for unit in units:
                step.done(unit, self.here)
            return
        if self._away is None:
            self._away = self._stack.enter_context(self._elsewhere.connected())
        self._away(step, units)

    def close(self) -> None:
        """Let the workers go."""
        self._stack.close()


def do_unit(task: tuple[Step, int]) -> None:
    """Compute a unit on a worker.

    Raises
    ------
    DataError
        If it cannot be written.
    """
    step, unit = task
    with on_a_worker(), ExitStack() as stack:
        step.done(unit, Away(step, stack))


@contextmanager
def on_a_worker() -> Iterator[None]:
    """Turn what a disk says into a DataError."""
    fault = None
    try:
        yield
    except OSError as error:
        fault = error.strerror
    if fault is not None:
        raise DataError(
            f"Writing the rows on a worker failed: {fault}. Nothing was left behind; mend it and try again."
        )


class Away:
    """A worker: it opens one source after the other, where the plan says that they are.

    Parameters
    ----------
    step
        Which has the plan.
    stack
        Closed when the unit is done.
    """

    def __init__(self, step: Step, stack: ExitStack) -> None:
        self._plan = plan_of(step.aside, SOURCES, step.sources)
        self._beside = step.aside.scratch_folder
        self._reading = ReaderProcess(self._beside)
        stack.callback(self._reading.close)
        self._fetched = stack.enter_context(ExitStack())
        self._number = -1
        self._source: Source | None = None

    def opened(self, number: int) -> Source:
        """Return a source; the one before is used no more."""
        if self._source is None or number != self._number:
            self._fetched.close()
            place, _, keys, _ = self._plan["sources"][number]
            given = tuple((key, text) for key, text in keys)
            choices = Choices.unpacked(self._plan["choices"])
            self._number = number
            self._source = source_at(location_of(place), given, self._beside, choices, self._reading, self._fetched)
        return self._source

    def known(self, number: int) -> str | None:
        """Return the state in which a source was found at first, if that can be compared."""
        state: str | None = self._plan["sources"][number][3]
        return state

    def said(self, text: str) -> str:
        """Return a message with the source called as the user did, by whom this process knows it."""
        place, shown, _, _ = self._plan["sources"][max(0, self._number)]
        return text.replace(place, shown)

    def told(self, rows: int) -> None:
        """Tell nobody: the pass counts units."""


def put_sources(aside: Store, sources: Sequence[Source], states: Sequence[object], choices: Choices) -> str:
    """Put aside where the sources are, and return the digest of that.

    Parameters
    ----------
    aside
        What is being built.
    sources, states
        The sources, and what :func:`dpdist.ingest.states.state_of` says of each.
    choices
        What the user chose.
    """
    entries = []
    for each, state in zip(sources, states, strict=True):
        path = each.path
        local = isinstance(path, Path)
        entries.append((
            str(path.absolute() if local else path.address),
            str(path),
            getattr(each, "keys", ()),
            digest_of(state) if local else None,  # what a store says may be another text with another library
        ))  # fmt: skip
    return put_plan(aside, SOURCES, {"sources": entries, "choices": choices.packed})
