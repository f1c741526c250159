"""A process that releases, one step after the other, over the real ledger and the real commit; memory is below them.

What runs is :class:`dpdist.core.ledger.ledger.Ledger` and :func:`dpdist.core.release.transaction.commit_once`; only
what lies below them is replaced, by books and a witness in memory. Other processes may act between any two *steps* of a
process:

* each transaction of the journal is one step, since SQLite and PostgreSQL run one at a time. The lock of the witness is
  taken with the step that follows, and released with the step before: both commute with what others do meanwhile;
* each draft that is stored, each reading of committed bytes, each giving out of them is one step.

A process may die before any step, and within one wherever it has left something behind that no transaction undoes:
after the witness was replaced, and after drafts were deleted.

Nothing is undone to go back: a process is brought to where it stood by running its call again on what it saw in the
steps before. What a step does depends on the books and the witness before it and on the place of the process: which of
the product's functions are under way, where in them, and what their variables hold. Every transaction reads the whole
journal anew, so books may be exchanged below a process without its notice; the real ledger refuses some of these.
"""

from __future__ import annotations

import io
import json
import traceback
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from hashlib import sha256
from types import FunctionType, SimpleNamespace
from typing import Any, BinaryIO, Literal, NamedTuple
from unittest import mock

from msgspec import convert, to_builtins

from dpdist.core.errors import DpdistError, RefusedError
from dpdist.core.ledger import journal
from dpdist.core.ledger import ledger as ledgers
from dpdist.core.ledger.journal import ALL, Caps, CommittedRelease, Transaction
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import Part, State, View
from dpdist.core.ledger.witness import WitnessRecord
from dpdist.core.privacy.guarantee import MICRO, Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.release import transaction as releasing
from dpdist.core.text import canonical

DATASET = "0123456789abcdef" * 2
LEDGER_ID = "f" * 32
RERUNS = 1
"""How often a refused or overtaken command is run again, after adopting if it says so."""


class Books(NamedTuple):
    """What lies in one folder: the journal's entries with their digests, and files by name.

    The line is another one after a copy and after a restored backup. No ledger can see it: it tells draws apart.
    """

    journal: tuple[tuple[str, str], ...]
    blobs: frozenset[tuple[str, bytes]]
    line: str = ""


class Command(NamedTuple):
    """Who runs what: a release of epsilon 1, on the ledger (0) or on its copy (1).

    It is drawn at once, or in two or three draws. Who fails finds its rows unusable after it has reserved, and asks for
    a refund; who is hasty draws the release without its stages.
    """

    release_id: str
    copy: int = 0
    draws: Literal[1, 2, 3] = 1
    fails: bool = False
    hasty: bool = False


class Scene(NamedTuple):
    """What the steps of one process can touch."""

    books: Books
    witness: str | None


class Local(NamedTuple):
    """The place of a process: its call, what it saw in the steps of it, and how often it was run again."""

    call: int = 0
    seen: tuple[Scene, ...] = ()
    reruns: int = 0
    holds: bool = False
    end: str = ""
    frames: Hashable = ()


class Result(NamedTuple):
    """What one step did, and what it leaves if the process dies within it."""

    after: Scene
    local: Local
    given: tuple[str, bytes] | None
    locks: bool
    deaths: tuple[Scene, ...]


class StopError(BaseException):
    """The process waits before its next step."""


class DeathError(BaseException):
    """The process dies."""


class Machine:
    """Runs one call of one process: again on what it saw, then one step on the scene as it is."""

    def __init__(self, who: str, seen: Sequence[Scene], now: Scene, dies_at: int | None = None) -> None:
        self.who, self.seen, self.now, self.dies_at = who, seen, now, dies_at
        self.steps = self.operations = 0
        self.attempt = ""
        self.clock = 0.0
        self.scene = now
        self.gone = self.held = self.locked = self.looked = self.filed = False
        self.given: tuple[str, bytes] | None = None

    @property
    def live(self) -> bool:
        """Whether this is the step on the scene as it is, and not one that is run again."""
        return self.steps == len(self.seen) + 1

    def step(self) -> None:
        if self.gone or self.live:
            self.gone = True
            raise StopError
        self.scene = self.seen[self.steps] if self.steps < len(self.seen) else self.now
        self.steps += 1
        self.locked |= self.live and self.held

    @property
    def saw(self) -> Scene:
        """What the process could see of the scene in its step."""
        blobs = self.now.books.blobs if self.filed else frozenset()
        return Scene(self.now.books._replace(blobs=blobs), self.now.witness if self.looked else None)

    def leaves(self, **changes: Any) -> None:
        """Change the scene in a way that no transaction undoes."""
        if not self.gone:
            self.scene = self.scene._replace(**changes)
            self.operations += self.live
            if self.live and self.operations == self.dies_at:
                self.gone = True
                raise DeathError

    def sleep(self, _: float) -> None:
        """Wait for so long that others have committed or never will."""
        self.clock += 1e6


class MemoryTransaction(Transaction):
    """A transaction on books in memory."""

    def __init__(self, machine: Machine) -> None:
        super().__init__("books")
        self.machine = machine
        self.added: tuple[tuple[str, str], ...] = ()

    def contains(self, digest: str) -> bool:
        return any(row[1] == digest for row in self.machine.scene.books.journal)

    def keep(self, name: str) -> bool:
        self.machine.filed |= self.machine.live
        return any(blob == name for blob, _ in self.machine.scene.books.blobs)

    def sweep(self, release_id: str, keep: Collection[str]) -> None:
        self.machine.filed |= self.machine.live  # how many operations there are depends on it
        books = self.machine.scene.books
        left = frozenset(b for b in books.blobs if b[0].partition(".")[0] != release_id or b[0] in keep)
        if left != books.blobs:
            self.machine.leaves(books=books._replace(blobs=left))

    def _rows(self, first: int, most: int = ALL) -> Sequence[tuple[int, str, str]]:
        rows = enumerate((*self.machine.scene.books.journal, *self.added), start=1)
        return [(number, *row) for number, row in rows if number >= first][:most]

    def _insert(self, sequence: int, entry: str, digest: str) -> None:
        assert sequence == len(self.machine.scene.books.journal) + len(self.added) + 1
        self.added = (*self.added, (entry, digest))
        value = json.loads(entry)
        if value["event"] == "begun":  # no two attempts of a process have line and fence in common
            books = self.machine.scene.books
            fence = folded(books.journal).records[value["id"]].fence + 1
            self.machine.attempt = f"{self.machine.who}.{books.line}.{fence}"


class MemoryStorage:
    """Books in memory."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __str__(self) -> str:
        return "books"

    def exists(self) -> bool:
        return True

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self.machine.step()
        transaction = MemoryTransaction(self.machine)
        yield transaction
        self._become(journal=(*self.machine.scene.books.journal, *transaction.added))

    def _become(self, **changes: Any) -> None:
        scene = self.machine.scene
        self.machine.scene = scene._replace(books=scene.books._replace(**changes))

    def stage(self, name: str, pieces: Iterable[bytes]) -> str:
        self.machine.step()
        content = b"".join(pieces)
        self._become(blobs=self.machine.scene.books.blobs | {(name, content)})
        return sha256(content).hexdigest()

    def discard(self, name: str) -> None:
        if not self.machine.gone:  # its name is its own: it commutes with all that others do
            self._become(blobs=frozenset(blob for blob in self.machine.scene.books.blobs if blob[0] != name))

    @contextmanager
    def blob(self, name: str) -> Iterator[BinaryIO]:
        self.machine.step()
        self.machine.filed |= self.machine.live
        yield io.BytesIO(dict(self.machine.scene.books.blobs).get(name, b""))


class MemoryWitness:
    """A witness in memory; its text is what would stand in the file."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def path(self, ledger_id: str) -> str:
        return f"witness of {ledger_id}"

    @contextmanager
    def locked(self, ledger_id: str) -> Iterator[MemoryWitness]:
        assert ledger_id == LEDGER_ID
        self.machine.held = True
        try:
            yield self
        finally:
            if not self.machine.gone:
                self.machine.held = False

    def read(self, _: str = LEDGER_ID) -> WitnessRecord | None:
        self.machine.looked |= self.machine.live
        return told(self.machine.scene.witness)

    def charge(self, dataset_id: str, ledger_id: str, place: str) -> None:
        assert (dataset_id, ledger_id, place) == (DATASET, LEDGER_ID, "books")  # copies are one ledger

    def write(self, record: WitnessRecord) -> None:
        releases = sorted(record.releases, key=lambda release: (release.id, str(release.digest)))
        text = canonical(to_builtins([releases, record.capped]))  # its head is for people, and decides nothing
        self.machine.leaves(witness=text)


@lru_cache(None)
def told(text: str | None) -> WitnessRecord | None:
    if text is None:
        return None
    releases, capped = convert(json.loads(text), tuple[tuple[CommittedRelease, ...], Caps | None])
    return WitnessRecord("head", releases, None, capped)


def _guarantee() -> Guarantee:
    return Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss(MICRO), None, Arithmetic.IDEAL_REAL, "none")


def _reserve(_: Machine, asked: Command) -> str:
    state = Ledger(PLACE).reserve(
        asked.release_id, dataset_id=DATASET, parameters={"mechanism": "none"}, guarantee=_guarantee(),
        draws=asked.draws,
    )  # fmt: skip
    if state not in {State.RESERVED, State.STAGED}:
        return "give"
    if asked.fails:
        return "abort"
    if asked.draws == 1 or asked.hasty:
        return "commit"
    return "stage" if state is State.RESERVED else _after_stage(asked)


def _after_stage(asked: Command) -> str:
    return "follow" if asked.draws == 2 else "second"


def _commit(machine: Machine, asked: Command) -> str:
    releasing.commit_once(Ledger(PLACE), asked.release_id, lambda _: [f"draw {machine.attempt}".encode()])
    return "give"


def _stage(machine: Machine, asked: Command) -> str:
    drawn = lambda _: [f"draw {machine.attempt}".encode()]  # noqa: E731
    releasing.commit_once(Ledger(PLACE), asked.release_id, drawn, Part.STAGE)
    return _after_stage(asked)


def _second(machine: Machine, asked: Command) -> str:
    _draw_after(machine, asked, Part.STAGE, Part.SECOND)
    return "follow"


def _follow(machine: Machine, asked: Command) -> str:
    _draw_after(machine, asked, Part.STAGE if asked.draws == 2 else Part.SECOND, Part.RELEASE)
    return "give"


def _draw_after(machine: Machine, asked: Command, before: Part, part: Part) -> None:
    """Read the stage before a part, which is then known outside, and draw what follows from it."""
    with Ledger(PLACE).opened(asked.release_id, before) as file:
        stage = file.read()
        machine.step()
        if machine.live:
            machine.given = (f"{asked.release_id}{STAGE if before is Part.STAGE else SECOND}", stage)
    drawn = lambda _: [f"draw {machine.attempt}{AFTER}".encode() + stage]  # noqa: E731
    releasing.commit_once(Ledger(PLACE), asked.release_id, drawn, part)


def _abort(_: Machine, asked: Command) -> str:
    Ledger(PLACE).abort(asked.release_id)
    return "failed"


def _give(machine: Machine, asked: Command) -> str:
    with Ledger(PLACE).opened(asked.release_id) as file:
        content = file.read()
        machine.step()
        machine.given = (asked.release_id, content)
    return "record"


def _record(_: Machine, asked: Command) -> str:
    Ledger(PLACE).published(asked.release_id)
    return "done"


def _adopt(_: Machine, __: Command) -> str:
    Ledger(PLACE).adopt()
    return "reserve"


PLACE: Any = "books"
STAGE, SECOND, AFTER = "/stage", "/second", " after "
"""What tells the stages of an id that were given out, and a draw from the stage that it follows from."""
CALLS: dict[str, Callable[[Machine, Command], str]] = {
    "reserve": _reserve, "commit": _commit, "stage": _stage, "second": _second, "follow": _follow, "abort": _abort,
    "give": _give, "record": _record, "adopt": _adopt,
}  # fmt: skip
NAMES = list(CALLS)


@contextmanager
def _below(machine: Machine) -> Iterator[None]:
    time = SimpleNamespace(monotonic=lambda: machine.clock, sleep=machine.sleep)
    _BELOW[:] = [machine]
    with mock.patch.object(ledgers, "time", time), mock.patch.object(releasing, "time", time):
        yield


_BELOW: list[Machine] = []


@contextmanager
def in_memory() -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, value in (
            (ledgers, "_storage", lambda _: MemoryStorage(_BELOW[0])),
            (ledgers, "_witness", lambda: MemoryWitness(_BELOW[0])),
            (ledgers, "random_token", lambda: _BELOW[0].attempt),
            (releasing, "_ATTEMPTS", 1),
            (Ledger, "_locked", _anew),
            (journal, "_digest", lru_cache(None)(journal._digest)),
            (Guarantee, "from_json", staticmethod(_guaranteed)),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


_LOCKED = Ledger._locked


def _anew(self: Ledger) -> Any:
    """Read the whole journal in every transaction: nobody notices by what he had read that the books were exchanged."""
    self._view = View()
    return _LOCKED(self)


def _guaranteed(value: dict[str, Any]) -> Guarantee:
    assert value["epsilon_micro"] == MICRO
    return _THE_GUARANTEE


_THE_GUARANTEE = _guarantee()


def advanced(who: str, command: Command, local: Local, scene: Scene) -> Result:
    machine, name, frames = _run(who, command, local, scene, None)
    seen = (*local.seen, machine.saw)
    if name is None:
        after = local._replace(seen=seen, holds=machine.held, frames=frames)
    elif name in CALLS:
        again = name == "reserve"
        after = Local(NAMES.index(name), (), local.reruns + again)
        if after.reruns > RERUNS:
            after = Local(end="gave up")
    else:
        after = Local(end=name)
    deaths = tuple(_run(who, command, local, scene, number)[0].scene for number in range(1, machine.operations + 1))
    return Result(machine.scene, after, machine.given, machine.locked and not local.holds, deaths)


def _run(
    who: str, command: Command, local: Local, scene: Scene, dies_at: int | None
) -> tuple[Machine, str | None, Hashable]:
    """Run a call up to the end of its next step; return the name of the next call, or None and its place."""
    frames: Hashable = ()
    machine = Machine(who, local.seen, scene, dies_at)
    with _below(machine):
        try:
            name: str | None = CALLS[NAMES[local.call]](machine, command)
        except (StopError, DeathError) as error:
            name, frames = None, (_frames(error), machine.attempt, machine.clock)
        except RefusedError as error:
            name = _refused(str(error), local)
        except DpdistError as error:
            name = "reserve"  # others overtook it, or the books were exchanged below it: it is run again
            if not any(words in str(error) for words in _EXCHANGED):
                raise
    return machine, name, frames


def _frames(error: BaseException) -> Hashable:
    """Return where the product's functions stand that are under way, and what their variables hold.

    It leaves out shared objects, and those that a function only uses while its transaction is open.
    """
    return tuple(
        (frame.f_code.co_qualname, frame.f_lasti, _values(frame.f_locals))
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_globals["__name__"].startswith("dpdist.") or frame.f_code in _CODES
    )


def _values(variables: dict[str, Any]) -> Hashable:
    return tuple(sorted((name, repr(value)) for name, value in variables.items() if not isinstance(value, _SHARED)))


_EXCHANGED = ("overtaken", "missing or altered", "not committed", "has no release", "cannot be drawn now")
_SHARED = (Ledger, View, Transaction, Machine, MemoryStorage, MemoryWitness, FunctionType, io.BytesIO)
_CODES = {call.__code__ for call in (*CALLS.values(), _draw_after)}


def _refused(words: str, local: Local) -> str:
    if "behind its witness" in words:
        return "adopt" if local.reruns < RERUNS else "behind"
    if "to another copy" in words:
        return "adopted"
    if "aborted" in words:
        return "reserve"
    assert "the budget of" in words, words
    return "over budget"


@lru_cache(None)
def folded(entries: tuple[tuple[str, str], ...]) -> View:
    view = View()
    for text, _ in entries:
        view.fold(json.loads(text))
    return view
