"""One charge, one draw: what is reserved in the ledger, drawn once, committed, and given out again for ever.

Dask runs a task at least once, never exactly once, and people run commands again. So every step here may run any number
of times, at once or one after the other, in one process or several, and the ledger decides which draw counts:

1. :meth:`ReleaseTransaction.reserve` charges the ledger before any row is read; it is free when it is charged already.
2. :func:`commit_once` draws and commits, unless that has been done. An attempt that another overtook is fenced
   out: it throws its draw away and waits for the winner.
3. :meth:`ReleaseTransaction.committed` reads back what was committed and records that it was given out.

Of a release in several draws, such as one that chooses its clip norm, a scale or both, those before the last are its
*stages*. Step 2 runs for each stage and for the release that follows from them, each with step 3 behind it. So whoever
resumes reads the committed stages, and draws none a second time. All are charged in step 1, by what they are together
(:mod:`dpdist.privacy.staged`), and their parameters are part of the id: nothing is left to be chosen in between.

:meth:`ReleaseTransaction.abort` refunds a charge for which nothing was drawn. What is released, a second moment
(:mod:`dpdist.release.trusted`) or a histogram (:mod:`dpdist.release.histograms`), only says what is drawn.

How the noise of a band is drawn: in pieces, by threads where there is much to draw.

**Law.** A piece is some rows of the triangle. The noise of a mechanism with independent entries is drawn piece by
piece, each entry in one piece and each piece from fresh random bits of the kernel. So the pieces together have the law
of one draw of the band (:class:`~dpdist.mechanisms.base.IndependentEntries`). Where pieces are cut follows from the
band alone, whatever number of threads draws them.

**Once.** Each piece is drawn by one thread and added once, and the band is given out when all of its pieces were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Generic, Protocol, TypeVar

import numpy as np

from dpdist._util.parallel import available_cores, threaded
from dpdist.errors import RefusedError, ResumableError
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.journal import Draws
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import Part, State
from dpdist.mechanisms.base import IndependentEntries
from dpdist.naming import step
from dpdist.noise.entropy import Entropy
from dpdist.privacy import checks
from dpdist.privacy.guarantee import Guarantee
from dpdist.rows.table import Table
from dpdist.triangle import Band, Triangle

_WINNER_SECONDS = 60.0
_WINNER_DRAWS = 3
"""Whoever overtook this attempt is waited for as long as both figures allow: 60 seconds, three draws like our own."""
_ATTEMPTS = 5


class Request(Protocol):
    """What is asked for: everything that a release depends on besides the rows. Public."""

    @property
    def accept_large_delta(self) -> bool:
        """Whether a delta of 1/n or more is meant."""
        ...

    def release_id(self, table: Table) -> str:
        """Return the id, the same whenever the same is asked of the same rows."""
        ...

    def parameters(self, table: Table) -> dict[str, object]:
        """Return everything the release depends on besides the rows, as JSON values."""
        ...

    def guarantee(self, table: Table) -> Guarantee | None:
        """Return what is proved of it, which is what it costs; None where nothing is."""
        ...


RequestT_co = TypeVar("RequestT_co", bound=Request, covariant=True)


@dataclass(frozen=True)
class ReleaseTransaction(Generic[RequestT_co]):
    """One release: what is asked for, of which table, and the ledger that is charged."""

    request: RequestT_co
    table: Table
    ledger: LedgerAddress

    @property
    def part(self) -> Part:
        """What this transaction commits: a release, or the stage of one."""
        return Part.RELEASE

    @property
    def draws(self) -> Draws:
        """How many draws the release takes."""
        return 1

    @property
    def release_id(self) -> str:
        """The id under which all of this happens once."""
        return self.request.release_id(self.table)

    def state(self) -> State | None:
        """Return how far it is, from the ledger alone; None where there is no ledger, or nothing of it is known."""
        if not Ledger.stands_at(self.ledger):
            return None
        record = Ledger(self.ledger).record(self.release_id)
        return None if record is None else record.state

    def account(self) -> Ledger:
        """Open the one ledger that may be charged."""
        if self.table.ledger_id is None:
            raise RefusedError(
                f"No budget is declared for {self.table}. Declare one with "
                f"{step('ledger create', self.ledger, rows=self.table, budget_epsilon='E', budget_delta='D')}."
            )
        return Ledger.charged_for(self.table.store, self.table.ledger_id, self.ledger)

    def reserve(self) -> State:
        """Charge the release before any row is read; free when it is charged already."""
        return self.charge(self.account())

    def charge(self, ledger: Ledger) -> State:
        """Charge the release to the ledger that :meth:`account` opened, as :meth:`reserve` does."""
        guarantee = self.request.guarantee(self.table)
        if guarantee is None:
            raise RefusedError("Nothing is proved of this release, so no ledger can be charged for it.")
        record = ledger.record(self.release_id)
        if record is None or record.state is State.ABORTED:  # what is charged already is resumed
            checks.require_small_delta(
                guarantee.loss, guarantee.neighbours, self.table.rows, accepted=self.request.accept_large_delta
            )
        return ledger.reserve(
            self.release_id,
            dataset_id=self.table.dataset_id,
            parameters=self.request.parameters(self.table),
            guarantee=guarantee,
            periods=self.table.seals,
            draws=self.draws,
            weights=dict(zip(self.table.seals, self.table.weights, strict=bool(self.table.weights))),
        )

    def commit(self, drawn: Callable[[str], Iterable[bytes]]) -> None:
        """Draw and commit this part, once, as :func:`commit_once`."""
        commit_once(Ledger(self.ledger), self.release_id, drawn, self.part)

    @contextmanager
    def committed(self) -> Iterator[IO[bytes]]:
        """Give what was committed, checked, and record at the end of the block that it was given out; idempotent.

        A stage counts as given out from its commitment on.
        """
        ledger = Ledger(self.ledger)
        with ledger.opened(self.release_id, self.part) as content:
            yield content
        if self.part is Part.RELEASE:
            ledger.published(self.release_id)

    def abort(self) -> None:
        """Refund the charge, if nothing was committed, nor a stage."""
        Ledger(self.ledger).abort(self.release_id)


def commit_once(
    ledger: Ledger, release_id: str, drawn: Callable[[str], Iterable[bytes]], part: Part = Part.RELEASE
) -> None:
    """Draw and commit what was reserved under an id, unless it was committed already; whoever else does the same."""
    for _ in range(_ATTEMPTS):
        fence = ledger.begin(release_id, part)
        if fence is None:
            return
        start = time.monotonic()
        if ledger.commit(release_id, fence, drawn(ledger.head), part):
            return
        elapsed = time.monotonic() - start
        ledger.wait(release_id, fence, max(_WINNER_SECONDS, _WINNER_DRAWS * elapsed), part)
    raise ResumableError(
        f"{_ATTEMPTS} attempts to commit {release_id} were overtaken by others that died. Run the same command again."
    )


BLOCK_ENTRIES = 1 << 20
"""Entries of a piece, or of one row where that is longer: 8 MiB, and a tenth of a second to draw."""


def blocks(band: Band) -> Iterator[Band]:
    """Cut a band into pieces of :data:`PIECE` entries at most, or of one row."""
    start = band.start
    while start < band.stop:
        stop = min(band.stop, start + max(1, BLOCK_ENTRIES // (band.size - start)))
        yield Band(start, stop, band.size)
        start = stop


def noisy(calibrated: IndependentEntries, band: Band, exact: Triangle, entropy: Entropy) -> Triangle:
    """Return a band of the moment plus its noise, every entry drawn once."""
    result, first = np.empty_like(exact), 0
    with threaded(available_cores() if band.entries > BLOCK_ENTRIES else 1) as parallel_map:
        for noise in parallel_map(lambda block: calibrated.draw_band(block, entropy), blocks(band)):
            span = slice(first, first + noise.size)
            np.add(exact[span], noise, out=result[span])
            first += noise.size
    return result
