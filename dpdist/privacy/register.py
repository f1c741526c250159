"""What this process has released of rows in memory: a register that lasts as long as the process, and no longer.

Rows that were ingested have an identity and a durable ledger. An array has neither: fit twice, and the average of two
releases undoes the privacy of both. So this process remembers of every table it released which rows it held, as keyed
hashes of their values, and adds up what those rows have cost. A row is known again in a copy, in another order, memory
layout, dtype or chunking, and among other rows: in a cross-validation every fold shares rows with the others.

The hashes are BLAKE2b of 64 bits under a key that is drawn afresh in every process and never leaves it but to its own
workers. Without the key they say nothing of the rows; they are in no release, message, log or pickle all the same.
Of a table of more than :data:`KEPT` rows only the smallest hashes are kept (a bottom-k sketch: Cohen & Kaplan 2007).
If tables share a part f of the rows of the first one, this goes unseen with probability at most ``(1 - f)^KEPT``, less
than 1e-28 for a thousandth.

What the register cannot see: other processes, those forked or started from this one included; rows whose
values were changed, by however little; columns left out or added; and fewer shared rows than that. Rows of different
people that have equal values count as shared: then too much is refused, never too little.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.noise.entropy import random_token
from dpdist.privacy import accounting
from dpdist.privacy.guarantee import ATTO, MICRO, Guarantee, PrivacyLoss

Marks = npt.NDArray[np.uint64]
"""Sorted, distinct keyed hashes of rows. Private."""
KEPT = 2**16
"""Hashes kept of one table, half a MiB."""


def marks_of(rows: npt.NDArray[np.float64], key: bytes) -> Marks:
    """Return the marks of some rows.

    Parameters
    ----------
    rows
        (r, d) float64. Zeros of either sign are the same value, and so are all NaN.
    key
        The key of a register.
    """
    canonical = np.add(rows, 0.0, order="C")  # -0.0 becomes 0.0
    canonical[np.isnan(canonical)] = np.nan
    keyed = hashlib.blake2b(key=key, digest_size=8)
    found = np.empty(len(rows), dtype=np.uint64)
    for i, row in enumerate(canonical):
        each = keyed.copy()
        each.update(row.data)
        found[i] = int.from_bytes(each.digest(), "little")
    return fewest([found])


def fewest(marks: Sequence[Marks]) -> Marks:
    """Return the smallest distinct marks of several tables together, as many as are kept."""
    return np.unique(np.concatenate(marks))[:KEPT]


@dataclass(frozen=True)
class _Fit:
    """One release: what it guarantees, of which rows it is, and the identity of their table."""

    guarantee: Guarantee
    marks: Marks
    dataset: str


@dataclass
class Register:
    """The releases of one process. Safe to use from several threads.

    Attributes
    ----------
    key
        16 random bytes. Private.
    """

    key: bytes = field(default_factory=lambda: bytes.fromhex(random_token()), repr=False)
    _fits: list[_Fit] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def charge(self, marks: Marks, guarantee: Guarantee, budget: PrivacyLoss) -> tuple[str, ...]:
        """Charge a release before its noise is drawn; it stays charged whatever happens to the draw.

        Parameters
        ----------
        marks
            Of all rows of the table.
        guarantee
            Of the release.
        budget
            What it may cost together with all earlier releases that share a row with it.

        Returns
        -------
        tuple of str
            Random identities of the tables that these rows are of.

        Raises
        ------
        RefusedError
            If the budget does not suffice, or an earlier release is private in another sense.
        """
        with self._lock:
            shared = [fit for fit in self._fits if np.intersect1d(fit.marks, marks, assume_unique=True).size]
            _require_affordable([fit.guarantee for fit in shared], guarantee, budget)
            datasets = tuple(dict.fromkeys(fit.dataset for fit in shared)) or (random_token(),)
            self._fits.append(_Fit(guarantee, marks, datasets[0]))
        return datasets


def _require_affordable(before: list[Guarantee], guarantee: Guarantee, budget: PrivacyLoss) -> None:
    for other in before:
        if other.neighbours is not guarantee.neighbours:
            raise RefusedError(
                f"These rows, or some of them, were released before in this process under {other.neighbours}; a loss "
                f"under {guarantee.neighbours} cannot be added to that. Nothing was drawn. Ask for "
                f"neighbours={other.neighbours.value!r}."
            )
    together = [*before, guarantee]
    if accounting.fits(together, budget):
        return
    joint = _joint(together, budget)
    if not before:
        raise RefusedError(f"This release costs {guarantee.loss}, and the budget is {budget}. Ask for a smaller loss.")
    times = "once" if len(before) == 1 else f"{len(before)} times"
    cost, cure = "epsilon of more than a million", ""
    if joint is not None:
        cost = _written(joint)
        cure = (
            f" To accept the joint cost, pass budget_epsilon={joint.epsilon_micro / MICRO!r}, "
            f"budget_delta={joint.delta_atto / ATTO!r}."
        )
    raise RefusedError(
        f"These rows, or some of them, were released {times} before in this process. With this release they would have "
        f"cost {cost} together; the budget is {_written(budget)}. Nothing was drawn. To use what is released already "
        f"costs nothing (from_release(fitted.release_)).{cure}"
    )


def _joint(together: list[Guarantee], budget: PrivacyLoss) -> PrivacyLoss | None:
    """Return what releases cost together, at a larger delta than the budget's where none holds there; None: a lot."""
    for delta in (budget.delta_atto, sum(each.loss.delta_atto for each in together)):
        with suppress(UsageError, DataError):
            return PrivacyLoss(accounting.least_epsilon_micro(together, delta), delta)
    return None


def _written(loss: PrivacyLoss) -> str:
    return f"epsilon {loss.epsilon_micro / MICRO!r}, delta {loss.delta_atto / ATTO!r}"


REGISTER = Register()
"""The register of this process."""
