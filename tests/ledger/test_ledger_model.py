"""Any sequence of calls on a ledger, in a folder or in a database, agrees with a model."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from faults.postgres_server import Server
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.ledgers import blobs, epsilon_spent, new_address, reserve
from support.releases import content_of

from dpdist._util.text import random_token
from dpdist.errors import DpdistError, RefusedError, UsageError
from dpdist.ledger import checkpoint
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.sqlite import FolderStorage
from dpdist.ledger.state import State
from dpdist.privacy.guarantee import MICRO, PrivacyLoss

IDS = st.sampled_from(["a", "a-b", "ab"])
"""Some are prefixes of others: deleting the drafts of one must not touch another's."""
HANDLES = st.integers(0, 1)
BUDGET = 5


@dataclass
class Expected:
    """What the model knows of one release."""

    cost: int
    state: State = State.RESERVED
    fence: int = 0
    content: bytes | None = None
    drafts: set[str] = field(default_factory=set)


class LedgerAgainstModel(RuleBasedStateMachine):
    """Any sequence of calls, through two handles that may be reopened at any time, against a dictionary."""

    @contextmanager
    def new_place(self) -> Iterator[LedgerAddress]:
        with tempfile.TemporaryDirectory(prefix="dpdist-ledger-") as root:
            yield Path(root) / "books"

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
        return sum(known.cost for known in self.model.values() if known.state is not State.ABORTED)

    @initialize()
    def reserve_some(self) -> None:
        for release_id in ("a", "ab"):
            self.reserve(0, release_id, 1)

    @rule(handle=HANDLES)
    def reopen(self, handle: int) -> None:
        self.handles[handle] = Ledger(self.place)

    @rule(handle=HANDLES, release_id=IDS, cost=st.integers(1, 3))
    def reserve(self, handle: int, release_id: str, cost: int) -> None:
        known = self.model.get(release_id)
        over, head = self.charged() + cost > BUDGET, self.handles[handle].head
        if (known is not None and known.cost != cost) or ((known is None or known.state is State.ABORTED) and over):
            with pytest.raises(RefusedError) as refusal:
                reserve(self.handles[handle], release_id, cost)
            assert (refusal.value.exit_code, self.handles[handle].head) == (3, head)
            return
        repeated = known is not None and known.state is not State.ABORTED
        if known is None:
            known = self.model[release_id] = Expected(cost)
        elif known.state is State.ABORTED:
            known.state = State.RESERVED
            self.model[release_id] = self.model.pop(release_id)  # the records are in the order of reservation
        assert reserve(self.handles[handle], release_id, cost) is known.state
        assert (self.handles[handle].head == head) is repeated  # a repetition writes nothing

    @rule(handle=HANDLES, release_id=IDS, dies=st.booleans())
    def begin(self, handle: int, release_id: str, dies: bool) -> None:
        """Begin an attempt, and leave what it leaves when it is killed: a draft."""
        ledger, known = self.handles[handle], self.model.get(release_id)
        if known is None:
            with pytest.raises(UsageError):
                ledger.begin(release_id)
        elif known.state is State.ABORTED:
            with pytest.raises(RefusedError):
                ledger.begin(release_id)
        elif known.state is State.RESERVED:
            known.fence += 1
            known.drafts.clear()
            assert ledger.begin(release_id) == known.fence
            if dies and isinstance(self.place, Path):  # it reaches a database only in the transaction that commits it
                known.drafts.add(f"{release_id}.{known.fence}.dead")
                FolderStorage._write(self.place / "blobs" / f"{release_id}.{known.fence}.dead", [b"a dead draw"])
        else:
            assert ledger.begin(release_id) is None

    @rule(handle=HANDLES, release_id=IDS, behind=st.sampled_from([0, 0, 0, 1, 2, -1]))
    def commit(self, handle: int, release_id: str, behind: int) -> None:
        """Commit with the live fence, an old one or one from the future."""
        known = self.model.get(release_id)
        self.draws += 1
        content = f"draw {self.draws}".encode()
        if known is None:
            with pytest.raises(UsageError):
                self.handles[handle].commit(release_id, 1, [content])
            return
        wins = known.state is State.RESERVED and behind == 0
        assert self.handles[handle].commit(release_id, known.fence - behind, [content]) is wins
        if wins:
            known.state, known.content = State.COMMITTED, content

    @rule(handle=HANDLES, release_id=IDS)
    def publish(self, handle: int, release_id: str) -> None:
        ledger, known = self.handles[handle], self.model.get(release_id)
        if known is None or known.content is None:
            with pytest.raises(DpdistError):
                content_of(ledger, release_id)
            return
        assert content_of(ledger, release_id) == known.content
        head = ledger.head
        ledger.published(release_id)
        assert (ledger.head == head) is (known.state is State.PUBLISHED)
        known.state = State.PUBLISHED
        known.drafts.clear()

    @rule(handle=HANDLES, release_id=IDS)
    def abort(self, handle: int, release_id: str) -> None:
        ledger, known = self.handles[handle], self.model.get(release_id)
        if known is None:
            with pytest.raises(UsageError):
                ledger.abort(release_id)
            return
        assert ledger.abort(release_id) is (known.content is None)
        if known.state is State.RESERVED:
            known.state = State.ABORTED
            known.fence += 1
            known.drafts.clear()

    @invariant()
    def agrees(self) -> None:
        for ledger in self.handles:
            records = ledger.records
            assert [r.release_id for r in records] == list(self.model)
            for record, known in zip(records, self.model.values(), strict=True):
                assert (record.state, record.fence) == (known.state, known.fence)
                assert record.parameters == {"epsilon": known.cost}
                assert (record.blob is None) is (known.content is None)
                digest = None if known.content is None else hashlib.sha256(known.content).hexdigest()
                assert record.digest == digest
        assert self.charged() <= BUDGET
        assert epsilon_spent(self.handles[0]) == self.charged()

    @invariant()
    def holds_only_committed_bytes_and_drafts_of_the_live_fence(self) -> None:
        expected = {name for known in self.model.values() for name in known.drafts}
        for record in self.handles[0].records:
            if record.blob is not None:
                expected.add(record.blob)
                assert content_of(self.handles[1], record.release_id) == self.model[record.release_id].content
        assert blobs(self.place) == expected


MODEL_SETTINGS = settings(stateful_step_count=30, phases=(Phase.generate,))
"""A fault is shown as it was found: to shrink it takes minutes."""


def test_any_sequence_of_calls_on_a_folder_agrees_with_a_model() -> None:
    run_state_machine_as_test(LedgerAgainstModel, settings=settings(MODEL_SETTINGS, max_examples=6))


def test_any_sequence_of_calls_agrees_with_a_model_where_every_ledger_is_opened_from_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "SPACING", 1)
    run_state_machine_as_test(LedgerAgainstModel, settings=settings(MODEL_SETTINGS, max_examples=2))


def test_any_sequence_of_calls_on_a_database_agrees_with_a_model(postgres: Server) -> None:
    class OnDatabase(LedgerAgainstModel):
        """The same on a ledger in PostgreSQL."""

        @contextmanager
        def new_place(self) -> Iterator[LedgerAddress]:
            with new_address(postgres) as address:
                yield address

    run_state_machine_as_test(OnDatabase, settings=settings(MODEL_SETTINGS, max_examples=1))
