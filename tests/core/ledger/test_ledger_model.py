"""Any sequence of calls on a ledger, in a folder, in memory or a database, agrees with a model."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from faults.postgres_server import Server
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.ledgers import blobs, epsilon_spent, new_address, reserve
from support.releases import content_of

from dpdist.core.errors import DpdistError, RefusedError, UsageError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.ledger import Account, Ledger
from dpdist.core.ledger.memory import MemoryStorage
from dpdist.core.ledger.sqlite import FolderStorage
from dpdist.core.ledger.state import State
from dpdist.core.privacy.guarantee import MICRO, PrivacyLoss
from dpdist.core.text import random_token

IDS = st.sampled_from(["a", "a-b", "ab"])
"""Some are prefixes of others, whose drafts must not be deleted with theirs."""
HANDLES = st.integers(0, 1)
BUDGET = 5


@dataclass
class Expected:
    """One release in the model."""

    cost: int
    state: State = State.RESERVED
    fence: int = 0
    content: bytes | None = None
    drafts: set[str] = field(default_factory=set)


@contextmanager
def new_folder() -> Iterator[LedgerAddress]:
    with tempfile.TemporaryDirectory(prefix="dpdist-ledger-") as root:
        yield Path(root) / "books"


@contextmanager
def new_memory() -> Iterator[MemoryStorage]:
    yield MemoryStorage()


class LedgerAgainstModel(RuleBasedStateMachine):
    """Any sequence of calls through two handles, which may be reopened at any time, compared with a dictionary."""

    new_place: Callable[[], AbstractContextManager[Account]] = staticmethod(new_folder)

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.place = self.stack.enter_context(self.new_place())
        first = Ledger.create(self.place, dataset_id=random_token(), budget=PrivacyLoss(BUDGET * MICRO))
        self.handles = [first, Ledger(self.place)]
        self.model: dict[str, Expected] = {}
        self.draws = 0

    def teardown(self) -> None:
        try:
            Ledger(self.place).verify()
        finally:
            self.stack.close()

    def charged(self) -> int:
        return sum(expected.cost for expected in self.model.values() if expected.state is not State.ABORTED)

    @initialize()
    def reserve_some(self) -> None:
        for release_id in ("a", "ab"):
            self.reserve(0, release_id, 1)

    @rule(handle=HANDLES)
    def reopen(self, handle: int) -> None:
        self.handles[handle] = Ledger(self.place)

    @rule(handle=HANDLES, release_id=IDS, cost=st.integers(1, 3))
    def reserve(self, handle: int, release_id: str, cost: int) -> None:
        expected = self.model.get(release_id)
        over, head = self.charged() + cost > BUDGET, self.handles[handle].head
        if (expected is not None and expected.cost != cost) or (
            (expected is None or expected.state is State.ABORTED) and over
        ):
            with pytest.raises(RefusedError) as refusal:
                reserve(self.handles[handle], release_id, cost)
            assert (refusal.value.exit_code, self.handles[handle].head) == (3, head)
            return
        repeated = expected is not None and expected.state is not State.ABORTED
        if expected is None:
            expected = self.model[release_id] = Expected(cost)
        elif expected.state is State.ABORTED:
            expected.state = State.RESERVED
            self.model[release_id] = self.model.pop(release_id)  # the records are in the order of reservation
        assert reserve(self.handles[handle], release_id, cost) is expected.state
        assert (self.handles[handle].head == head) is repeated  # a repetition writes nothing

    @rule(handle=HANDLES, release_id=IDS, dies=st.booleans())
    def begin(self, handle: int, release_id: str, dies: bool) -> None:
        """Begin an attempt, and leave a draft as a killed process does."""
        ledger, expected = self.handles[handle], self.model.get(release_id)
        if expected is None:
            with pytest.raises(UsageError):
                ledger.begin(release_id)
        elif expected.state is State.ABORTED:
            with pytest.raises(RefusedError):
                ledger.begin(release_id)
        elif expected.state is State.RESERVED:
            expected.fence += 1
            expected.drafts.clear()
            assert ledger.begin(release_id) == expected.fence
            if dies and isinstance(self.place, Path):  # a database gets it only in the committing transaction
                expected.drafts.add(f"{release_id}.{expected.fence}.dead")
                FolderStorage._write(self.place / "blobs" / f"{release_id}.{expected.fence}.dead", [b"a dead draw"])
        else:
            assert ledger.begin(release_id) is None

    @rule(handle=HANDLES, release_id=IDS, behind=st.sampled_from([0, 0, 0, 1, 2, -1]))
    def commit(self, handle: int, release_id: str, behind: int) -> None:
        """Commit with the live fence, an older one or a future one."""
        expected = self.model.get(release_id)
        self.draws += 1
        content = f"draw {self.draws}".encode()
        if expected is None:
            with pytest.raises(UsageError):
                self.handles[handle].commit(release_id, 1, [content])
            return
        wins = expected.state is State.RESERVED and behind == 0
        assert self.handles[handle].commit(release_id, expected.fence - behind, [content]) is wins
        if wins:
            expected.state, expected.content = State.COMMITTED, content

    @rule(handle=HANDLES, release_id=IDS)
    def publish(self, handle: int, release_id: str) -> None:
        ledger, expected = self.handles[handle], self.model.get(release_id)
        if expected is None or expected.content is None:
            with pytest.raises(DpdistError):
                content_of(ledger, release_id)
            return
        assert content_of(ledger, release_id) == expected.content
        head = ledger.head
        ledger.published(release_id)
        assert (ledger.head == head) is (expected.state is State.PUBLISHED)
        expected.state = State.PUBLISHED
        expected.drafts.clear()

    @rule(handle=HANDLES, release_id=IDS)
    def abort(self, handle: int, release_id: str) -> None:
        ledger, expected = self.handles[handle], self.model.get(release_id)
        if expected is None:
            with pytest.raises(UsageError):
                ledger.abort(release_id)
            return
        assert ledger.abort(release_id) is (expected.content is None)
        if expected.state is State.RESERVED:
            expected.state = State.ABORTED
            expected.fence += 1
            expected.drafts.clear()

    @invariant()
    def agrees(self) -> None:
        for ledger in self.handles:
            records = ledger.records
            assert [r.release_id for r in records] == list(self.model)
            for record, expected in zip(records, self.model.values(), strict=True):
                assert (record.state, record.fence) == (expected.state, expected.fence)
                assert record.parameters == {"epsilon": expected.cost}
                assert (record.blob is None) is (expected.content is None)
                digest = None if expected.content is None else hashlib.sha256(expected.content).hexdigest()
                assert record.digest == digest
        assert self.charged() <= BUDGET
        assert epsilon_spent(self.handles[0]) == self.charged()

    @invariant()
    def holds_only_committed_bytes_and_drafts_of_the_live_fence(self) -> None:
        expected = {name for release in self.model.values() for name in release.drafts}
        for record in self.handles[0].records:
            if record.blob is not None:
                expected.add(record.blob)
                assert content_of(self.handles[1], record.release_id) == self.model[record.release_id].content
        assert blobs(self.place) == expected


MODEL_SETTINGS = settings(stateful_step_count=30, phases=(Phase.generate,))
"""Failures are not shrunk, which would take minutes."""


def test_any_sequence_of_calls_on_a_folder_agrees_with_a_model() -> None:
    run_state_machine_as_test(LedgerAgainstModel, settings=settings(MODEL_SETTINGS, max_examples=6))


def test_any_sequence_of_calls_in_memory_agrees_with_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LedgerAgainstModel, "new_place", staticmethod(new_memory))
    run_state_machine_as_test(LedgerAgainstModel, settings=settings(MODEL_SETTINGS, max_examples=20))


def test_any_sequence_of_calls_on_a_database_agrees_with_a_model(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LedgerAgainstModel, "new_place", staticmethod(lambda: new_address(postgres)))
    run_state_machine_as_test(LedgerAgainstModel, settings=settings(MODEL_SETTINGS, max_examples=1))
