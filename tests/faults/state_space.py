"""Every interleaving of processes that release, die, and are run again: a search through all states.

Who died runs the same command again. The ledger may be copied once to another folder, at any time, and restored once
from a backup that was taken at any time. :mod:`state_machine` says what a step is.

A state is the books of both folders, the witness, what was given out, the backup, and the place of each process. Two
journals are one state if they amount to the same; two histories of a process are one if it is at the same place
with the same variables. The real code runs once for each step that differs in what it can see.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any

from dpdist.core.ledger.journal import ORIGIN, _digest
from dpdist.core.ledger.state import State
from dpdist.core.privacy.guarantee import MICRO
from dpdist.core.text import canonical
from faults import state_machine
from faults.state_machine import AFTER, NAMES, SECOND, STAGE, Books, Command, Local, Scene, advanced, folded, told


class ViolationError(AssertionError):
    """An invariant is broken; it tells the way there."""


@dataclass
class Space:
    """All states that can be reached."""

    commands: Sequence[Command]
    deaths: int = 0
    copied: bool = False
    restored: bool = False
    budget: int = 1
    states: int = 0
    transitions: int = 0
    depth: int = 0
    executed: int = 0
    ends: int = 0
    complete: bool = False
    outcomes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._ids: dict[Hashable, int] = {}
        self._things: list[Any] = []
        self._steps: dict[tuple[int, int, int, int], tuple[Any, ...]] = {}
        self._sound: set[Any] = set()

    def _id(self, thing: Any, key: Hashable = None) -> int:
        """Return the number of a thing, or of all things with the same key."""
        key = thing if key is None else key
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = len(self._things)
            self._things.append(thing)
        return known

    def _local(self, local: Local) -> int:
        """Return the number of the place of a process; what it saw on its way there does not count."""
        return self._id(local, local._replace(seen=()))

    def _books(self, books: Books) -> int:
        """Return the number of books; of the journal nothing counts but what it amounts to."""
        view = folded(books.journal)
        records = tuple(sorted((k, repr(v)) for k, v in view.records.items()))
        told = repr(view.capped), view.witnessed, view.exhausted, view.exceeded
        return self._id(books, (records, *told, books.blobs, books.line))

    def _first(self) -> tuple[int, ...]:
        text = canonical(
            {
                "event": "created", "format": "dpdist-ledger/1", "ledger_id": state_machine.LEDGER_ID,
                "dataset_id": state_machine.DATASET,
                "epsilon_micro": self.budget * MICRO, "delta_atto": 0, "spent": None,
            }
        )  # fmt: skip
        books = Books(((text, _digest(ORIGIN, text)),), frozenset())
        nothing = -1
        start = self._local(Local())
        return (
            self._books(books), nothing if self.copied else -2, self._id(None), self._id(frozenset()), nothing,
            nothing if self.restored else -2, self.deaths, *[start] * len(self.commands),
        )  # fmt: skip

    def explore(self, limit: int | None = None) -> Space:
        with state_machine.in_memory():
            first = self._first()
            parents: dict[tuple[int, ...], tuple[tuple[int, ...], str] | None] = {first: None}
            waiting = deque([(first, 0)])
            try:
                while waiting:
                    state, self.depth = waiting.popleft()
                    ended = True
                    for label, after in self._next(state):
                        ended = False
                        self.transitions += 1
                        if after not in parents:
                            parents[after] = (state, label)
                            self._check(after)
                            waiting.append((after, self.depth + 1))
                    if ended:
                        self.ends += 1
                    if limit is not None and len(parents) > limit:
                        return self
                self.complete = True
            except ViolationError as error:
                way, back = [], parents[after]
                while back is not None:
                    way.append(back[1])
                    back = parents[back[0]]
                raise ViolationError(f"{error} after: {'; '.join(reversed(way))}") from None
            finally:
                self.states, self.executed = len(parents), len(self._steps)
        return self

    def _next(self, state: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
        ledger, copy, witness, given, lock, backup, deaths, *locals_ = state
        if copy == -1:
            yield "copied", (ledger, self._books(self._things[ledger]._replace(line="copy")), *state[2:])
        if backup == -1:
            yield "backed up", (*state[:5], ledger, *state[6:])
        elif backup >= 0 and backup != ledger:
            back = self._books(self._things[backup]._replace(line="restored"))
            yield "restored", (back, *state[1:5], -2, *state[6:])
        for number, local in enumerate(locals_):
            where = self.commands[number].copy
            books = state[where]
            if books < 0 or self._things[local].end:
                continue
            if deaths and self._things[local] != Local():
                yield f"{number} dies", self._dead(state, number, (books, witness))
            after_books, after_witness, after_local, gave, locks, left = self._step(number, local, books, witness)
            if locks and lock >= 0:
                continue
            if deaths:
                for scene in left:
                    yield f"{number} dies within", self._dead(state, number, scene)
            held = number if self._things[after_local].holds else -1 if locks or lock == number else lock
            out = self._id(self._things[given] | {gave}) if gave else given
            places = (after_books, copy) if where == 0 else (ledger, after_books)
            yield (
                f"{number} {NAMES[self._things[local].call]}",
                (*places, after_witness, out, held, backup, deaths, *_with(locals_, number, after_local)),
            )

    def _dead(self, state: tuple[int, ...], number: int, scene: tuple[int, int]) -> tuple[int, ...]:
        local = self._things[state[7 + number]]
        fresh = self._local(Local(reruns=local.reruns))
        books = self._tidied(scene[0], number)
        places = (books, state[1]) if self.commands[number].copy == 0 else (state[0], books)
        lock = -1 if state[4] == number else state[4]
        locals_ = _with(list(state[7:]), number, fresh)
        return (*places, scene[1], state[3], lock, state[5], state[6] - 1, *locals_)

    def _tidied(self, books: int, number: int) -> int:
        """Return books without the drafts of a dead process: nobody else knows their names, so they can only go."""
        found: Books = self._things[books]
        kept = {blob for record in folded(found.journal).records.values() for blob in record.blobs}
        left = frozenset(b for b in found.blobs if b[0] in kept or b[0].split(".")[2] != f"p{number}")
        return self._books(found._replace(blobs=left))

    def _step(self, number: int, local: int, books: int, witness: int) -> tuple[Any, ...]:
        key = number, local, books, witness
        known = self._steps.get(key)
        if known is None:
            scene = Scene(self._things[books], self._things[witness])
            done = advanced(f"p{number}", self.commands[number], self._things[local], scene)
            left = tuple((self._books(each.books), self._id(each.witness)) for each in done.deaths)
            if done.local.end:
                self.outcomes.add(done.local.end)
            end = Local(end="ended") if done.local.end else done.local
            known = self._steps[key] = (
                self._books(done.after.books), self._id(done.after.witness), self._local(end), done.given, done.locks,
                left,
            )  # fmt: skip
        return known

    def _check(self, state: tuple[int, ...]) -> None:
        for books in {state[0], state[1]} - {-1, -2}:
            key = books, state[2], state[3]
            if key not in self._sound:
                self._check_books(*key)
                self._sound.add(key)

    def _check_books(self, books: int, witness: int, given: int) -> None:
        view, heard, out = folded(self._things[books].journal), told(self._things[witness]), self._things[given]
        seen = set() if heard is None else {(release.id, one) for release in heard.releases for one in release.drawn}
        ids = Counter(release_id for release_id, _ in out)
        if any(count > 1 for count in ids.values()):
            raise ViolationError(f"two draws of one id were given out: {sorted(out)}")
        if len({release_id.partition("/")[0] for release_id in ids}) > self.budget:
            raise ViolationError(f"more was given out than the budget pays for: {sorted(out)}")
        if len(view.charged) > self.budget:
            raise ViolationError(f"more is charged than the budget: {list(view.records)}")
        if len({key.partition(".")[0] for key in view.records}) != len(view.records):
            raise ViolationError(f"one id is charged twice: {list(view.records)}")
        self._check_follows(out)
        for name, content in out:
            release_id, digest = name.partition("/")[0], sha256(content).hexdigest()
            if (release_id, digest) not in seen:
                raise ViolationError(f"{release_id} was given out before the witness had seen it")
            record = view.records.get(release_id)
            behind = heard is not None and heard.unknown_to(view)
            charged = record is not None and record.state is not State.ABORTED
            if not behind and not (charged and (release_id, digest) in view.draw_ids):
                raise ViolationError(f"the charge of {release_id} is lost in a ledger that is not behind its witness")
        for asked in {Command(command.release_id, draws=command.draws) for command in self.commands}:
            self._check_open(books, witness, asked)

    def _check_follows(self, out: frozenset[tuple[str, bytes]]) -> None:
        """Check that a draw follows from the stage that was given out; no ledger knows the contents of a draw."""
        before: dict[str, str] = {}
        for name, draws in {(command.release_id, command.draws) for command in self.commands}:
            parts = (f"{name}{STAGE}", f"{name}{SECOND}")[: draws - 1]
            before |= dict(pairwise((name, *reversed(parts))))
        for name, content in out:
            _, after, stage = content.partition(AFTER.encode())
            follows = after and (before.get(name), stage) in out
            if name in before and not follows and not any(command.hasty for command in self.commands):
                raise ViolationError(f"{name} does not follow from the stage that was given out: {sorted(out)}")

    def _check_open(self, books: int, witness: int, asked: Command) -> None:
        """Check that a process that comes now, alone, is served or refused for a reason that holds."""
        key, release_id = (books, witness, asked), asked.release_id
        if key in self._sound:
            return
        self._sound.add(key)
        scene, local = Scene(self._things[books], self._things[witness]), Local()
        for _ in range(40):
            done = advanced("somebody", asked, local, scene)
            scene, local = done.after, done.local
            if local.end:
                break
        view = folded(scene.books.journal)
        record = view.records.get(release_id)
        heard = told(scene.witness)
        reasons = {
            "done": record is not None and record.state is State.PUBLISHED,
            "adopted": heard is not None and any(release.id == release_id for release in heard.releases),
            "over budget": len(view.charged) == self.budget and (record is None or record.state is State.ABORTED),
        }
        if not reasons.get(local.end, False):
            raise ViolationError(f"somebody who asks for {release_id} is locked out: {local.end or 'no end'}")


def _with(locals_: list[int], number: int, after: int) -> Iterator[int]:
    return (after if other == number else local for other, local in enumerate(locals_))
