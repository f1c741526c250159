"""Release transactions: a release is reserved in the ledger, drawn once, committed, and read back any number of times.

Dask runs a task at least once, and people repeat commands. So every step here may run any number of times, concurrently
or in sequence, in one process or several, and the ledger decides which draw counts:

1. :meth:`ReleaseTransaction.reserve` charges the ledger before any row is read; repeating it is free.
2. :func:`commit_once` draws and commits, unless this has been done. An attempt that was overtaken is fenced out: it
   discards its draw and waits for the winner.
3. :meth:`Draw.committed` reads the committed bytes and records their publication.

If a release has several draws, because it chooses a clip norm, a scale or both, those before the last are its *stages*.
Steps 2 and 3 run for each stage and then for the release. So a resumed release reads the committed stages, and draws
none again. Step 1 charges all of them together (:mod:`dpdist.core.privacy.staged`), and their parameters are part of
the id: nothing is left to choose in between.

:meth:`Draw.abort` refunds a charge without a draw. The subclasses, for a second moment
(:mod:`dpdist.core.release.trusted`) or a histogram (:mod:`dpdist.core.release.histograms`), define the draw.

The noise of a band is drawn in blocks, by several threads if the band is large.

**Distribution.** A block consists of rows of the triangle. The noise of a mechanism with independent entries is drawn
block by block, each entry in one block and each block from fresh random bits of the kernel. So all blocks together have
the distribution of one draw of the band (:class:`~dpdist.core.mechanisms.base.IndependentEntries`). The blocks follow
from the band alone, for any number of threads.

**Once.** Each block is drawn by one thread and added once, and the band is complete when all its blocks are.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np

from dpdist.core.errors import RefusedError, ResumableError
from dpdist.core.ledger.journal import Draws
from dpdist.core.ledger.ledger import Account, Ledger
from dpdist.core.ledger.state import Part, State
from dpdist.core.mechanisms.base import IndependentEntries
from dpdist.core.naming import step
from dpdist.core.noise.entropy import Entropy
from dpdist.core.parallel import available_cores, threaded
from dpdist.core.privacy import checks
from dpdist.core.privacy.guarantee import Guarantee
from dpdist.core.rows.table import Table
from dpdist.core.triangle import Band, Triangle

_WINNER_SECONDS = 60.0
_WINNER_DRAWS = 3
"""The winner is waited for as long as 60 seconds or three draws like this one, whichever is longer."""
_ATTEMPTS = 5


class Draw(ABC):
    """One draw over a table that is committed once: a release, or a stage of one."""

    table: Table
    ledger: Account

    @property
    @abstractmethod
    def release_id(self) -> str:
        """The id under which the release happens once, the same for every repetition for the same rows."""

    @property
    def part(self) -> Part:
        """The part of the release that this is."""
        return Part.RELEASE

    @property
    def place(self) -> str:
        """Where it is published, for the ledger; empty: nowhere."""
        return ""

    def account(self) -> Ledger:
        """Open the only ledger that may be charged."""
        if self.table.ledger_id is None:
            raise RefusedError(
                f"No budget is declared for {self.table}. Declare one with "
                f"{step('ledger create', self.ledger, rows=self.table, budget_epsilon='E', budget_delta='D')}."
            )
        return Ledger.charged_for(self.table.store, self.table.ledger_id, self.ledger)

    def commit(self, drawn: Callable[[str], Iterable[bytes]]) -> None:
        """Draw and commit this part once, by :func:`commit_once`."""
        commit_once(Ledger(self.ledger), self.release_id, drawn, self.part)

    @contextmanager
    def committed(self) -> Iterator[IO[bytes]]:
        """Provide the committed bytes, verified, and then record the publication of a release; idempotent."""
        ledger = Ledger(self.ledger)
        with ledger.opened(self.release_id, self.part) as content:
            yield content
        if self.part is Part.RELEASE:
            ledger.published(self.release_id, self.place)

    def abort(self) -> None:
        """Refund the charge, if neither the release nor a stage was committed."""
        Ledger(self.ledger).abort(self.release_id)


class ReleaseTransaction(Draw):
    """One release, with the charge for all its draws."""

    @property
    @abstractmethod
    def parameters(self) -> dict[str, object]:
        """The parameters of the release besides the rows, as JSON values."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee | None:
        """The guarantee, which is also the price; None if there is none."""

    @property
    @abstractmethod
    def accepts_large_delta(self) -> bool:
        """Whether a delta of 1/n or more is intended."""

    @property
    def draws(self) -> Draws:
        """Number of draws of the release."""
        return 1

    def state(self) -> State | None:
        """Return the state from the ledger; None if there is no ledger or no record."""
        if not Ledger.stands_at(self.ledger):
            return None
        record = Ledger(self.ledger).record(self.release_id)
        return None if record is None else record.state

    def reserve(self) -> State:
        """Charge the release before any row is read; repeating it is free."""
        return self.charge(self.account())

    def charge(self, ledger: Ledger) -> State:
        """Charge the release to an open ledger, as :meth:`reserve` does."""
        guarantee = self.guarantee
        if guarantee is None:
            raise RefusedError(
                "This release has no proved guarantee, so no ledger can be charged for it. Use another mechanism: "
                f"{step('mechanisms')} lists them."
            )
        record = ledger.record(self.release_id)
        if record is None or record.state is State.ABORTED:  # a charged release is resumed
            checks.require_small_delta(
                guarantee.loss, guarantee.neighbours, self.table.rows, accepted=self.accepts_large_delta
            )
        return ledger.reserve(
            self.release_id,
            dataset_id=self.table.dataset_id,
            parameters=self.parameters,
            guarantee=guarantee,
            periods=self.table.seals,
            draws=self.draws,
            weights=dict(zip(self.table.seals, self.table.weights, strict=bool(self.table.weights))),
        )


def charge_once(
    ledger: Ledger, release_id: str, parameters: dict[str, object], guarantee: Guarantee, bind: Callable[[], None]
) -> State:
    """Charge a release of what is no table, and then bind its source to the ledger; if it is refused, refund it."""
    before = ledger.record(release_id)
    state = ledger.reserve(release_id, dataset_id=ledger.dataset_id, parameters=parameters, guarantee=guarantee)
    try:
        bind()
    except RefusedError:
        if before is None or before.state is State.ABORTED:
            ledger.abort(release_id)
        raise
    return state


def commit_once(
    ledger: Ledger, release_id: str, drawn: Callable[[str], Iterable[bytes]], part: Part = Part.RELEASE
) -> bool:
    """Draw and commit a reserved release or stage unless it is committed; return whether. Safe to run concurrently."""
    for _ in range(_ATTEMPTS):
        fence = ledger.begin(release_id, part)
        if fence is None:
            return False
        start = time.monotonic()
        if ledger.commit(release_id, fence, drawn(ledger.head), part):
            return True
        elapsed = time.monotonic() - start
        ledger.wait(release_id, fence, max(_WINNER_SECONDS, _WINNER_DRAWS * elapsed), part)
    raise ResumableError(
        f"{_ATTEMPTS} attempts to commit {release_id} were overtaken by others that died. Run the command again."
    )


BLOCK_ENTRIES = 1 << 20
"""Entries of a block: 8 MiB, and a tenth of a second to draw. A longer row is a block by itself."""


def blocks(band: Band) -> Iterator[Band]:
    """Split a band into blocks of :data:`BLOCK_ENTRIES` entries at most, or of one row."""
    start = band.start
    while start < band.stop:
        stop = min(band.stop, start + max(1, BLOCK_ENTRIES // (band.size - start)))
        yield Band(start, stop, band.size)
        start = stop


def noisy(calibrated: IndependentEntries, band: Band, exact: Triangle, entropy: Entropy) -> Triangle:
    """Return a band of the moment plus its noise, with each entry drawn once."""
    result, first = np.empty_like(exact), 0
    with threaded(available_cores() if band.entries > BLOCK_ENTRIES else 1) as parallel_map:
        for noise in parallel_map(lambda block: calibrated.draw_band(block, entropy), blocks(band)):
            span = slice(first, first + noise.size)
            np.add(exact[span], noise, out=result[span])
            first += noise.size
    return result
