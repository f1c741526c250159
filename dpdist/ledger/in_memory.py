"""What this process has released of rows in memory: a register that lasts as long as the process, and no longer.

Rows that were ingested have an identity and a durable ledger. An array has neither: fit twice, and the average of two
releases undoes the privacy of both. So this process remembers of every table it released the fingerprints of its rows
(:mod:`dpdist.ledger.fingerprints`), and refuses what those rows cannot afford. Rows are known again in a copy, in
another order, type or chunking, in other units, and among other rows: in a cross-validation every fold shares rows with
the others. What is not known again is said in that module, with what was measured.

What no fingerprint shows is warned of: every release but the first of so many rows and columns of one kind of numbers
comes with what all of them cost together. A :class:`dpdist.Budget` counts fits whatever their rows are.

The secret key of the fingerprints is drawn afresh in every process and never leaves it but to its own workers. They
are in no release, message, log or pickle. Other processes the register does not see, those forked or started from this
one included.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass, field

from dpdist._util.ids import random_token
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.ledger.budget import Budget
from dpdist.ledger.fingerprints import Fingerprints
from dpdist.privacy import accounting
from dpdist.privacy.guarantee import ATTO, MICRO, Guarantee, PrivacyLoss


@dataclass(frozen=True)
class Shape:
    """What two tables have in common that may be of the same people.

    Attributes
    ----------
    kind
        Of the numbers, as NumPy writes it: ``f``, ``i``, ``u`` or ``b``.
    rows, columns
        n and d. The first may be private.
    """

    kind: str
    rows: int
    columns: int


@dataclass(frozen=True)
class _Fit:
    """One release: what it guarantees, of which rows it is, the identity of their table, and what it was charged to.

    Of a rows.zarr there are no fingerprints.
    """

    guarantee: Guarantee
    fingerprints: Fingerprints | None
    shape: Shape
    dataset: str
    account: Budget | None


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

    def charge(
        self,
        fingerprints: Fingerprints,
        shape: Shape,
        guarantee: Guarantee,
        budget: PrivacyLoss | None,
        account: Budget | None = None,
    ) -> tuple[str, ...]:
        """Charge a release before its noise is drawn; it stays charged whatever happens to the draw."""
        with self._lock:
            shared = [fit for fit in self._fits if fit.fingerprints and fit.fingerprints.share_rows(fingerprints)]
            if budget is not None:
                _require_affordable([fit.guarantee for fit in shared], guarantee, budget)
            elif any(fit.account is not account for fit in shared):
                raise RefusedError(_ELSEWHERE)
            alike = [fit for fit in self._fits if fit.shape == shape]
            if any(account is None or fit.account is not account for fit in alike):
                # turned into an error it ends the fit here, and nothing is charged
                _warn_of_joint_cost([*(fit.guarantee for fit in alike), guarantee])
            if account is not None:
                account.charge(guarantee)
            datasets = tuple(dict.fromkeys(fit.dataset for fit in shared)) or (random_token(),)
            self._fits.append(_Fit(guarantee, fingerprints, shape, datasets[0], account))
        return datasets

    def note(self, shape: Shape, guarantee: Guarantee, dataset: str) -> None:
        """Note a release of rows that a ledger knows, so that a fit of as many rows like them is warned of.

        Their values were read by workers, and leave no fingerprints here.
        """
        with self._lock:
            alike = [fit for fit in self._fits if fit.shape == shape and fit.fingerprints is not None]
            if alike:
                _warn_of_joint_cost([*(fit.guarantee for fit in alike), guarantee])
            self._fits.append(_Fit(guarantee, None, shape, dataset, None))


_ELSEWHERE = (
    "These rows, or some of them, were released before in this process, and that was not charged to this budget. "
    "Nothing was drawn. It cannot be charged now: what a budget pays for is fixed before the first answer. Charge this "
    "fit to the budget that the earlier ones were charged to, if there is one. To use what is released already costs "
    "nothing (from_release(fitted.release_))."
)


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
    if not before:
        raise RefusedError(f"This release costs {guarantee.loss}, and the budget is {budget}. Ask for a smaller loss.")
    needed = _needed(together, budget)
    cost, cure = "epsilon of more than a million", ""
    if needed is not None:
        cost = _written(needed)
        cure = (
            " A larger budget_epsilon does not limit an answer that was seen before: the releases keep their joint "
            "cost only if no request followed from an answer. If none did, say it with "
            f"budget_epsilon={needed.epsilon_micro / MICRO!r}, budget_delta={needed.delta_atto / ATTO!r}."
        )
    raise RefusedError(
        f"These rows, or some of them, were released {_times(len(before))} before in this process. With this release "
        f"they would need a budget of {cost}; it is {_written(budget)}. Nothing was drawn. To use what is released "
        "already costs nothing (from_release(fitted.release_)). If you plan several fits, charge all of them to one "
        f"budget, from the first on: budget=dpdist.Budget(epsilon, delta).{cure}"
    )


def _needed(together: list[Guarantee], budget: PrivacyLoss) -> PrivacyLoss | None:
    """Return the least budget that pays for all, at a larger delta than that of a budget if none does at that.

    None where it would be beyond reason.
    """
    for delta in (budget.delta_atto, sum(each.loss.delta_atto for each in together)):
        with suppress(UsageError, DataError):
            return PrivacyLoss(accounting.least_epsilon_micro(together, delta), delta)
    return None


def _warn_of_joint_cost(together: list[Guarantee]) -> None:
    """Warn of what the releases of one shape of table cost together if they are of the same people."""
    if len({each.neighbours for each in together}) > 1:
        cost = "cost more than either says, and losses of different neighbours cannot be added"
    else:
        delta = max(each.loss.delta_atto for each in together)
        cost = "cost a lot"
        for each in (delta, sum(each.loss.delta_atto for each in together)):
            with suppress(UsageError, DataError):
                cost = f"cost {_written(PrivacyLoss(accounting.composed_epsilon_micro(together, each), each))}"
                break
    warnings.warn(
        f"Rows of the same number and kind were released {_times(len(together) - 1)} before in this process. If they "
        f"are of the same people, all these releases together {cost}, provided that none was asked for because of "
        "an earlier one's answer. Rows are known again by their values only: charge all fits on the same people to "
        "one dpdist.Budget (budget), or to the ledger of one rows.zarr.",
        UserWarning,
        stacklevel=2,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _written(loss: PrivacyLoss) -> str:
    return f"epsilon {loss.epsilon_micro / MICRO!r}, delta {loss.delta_atto / ATTO!r}"


REGISTER = Register()
"""The register of this process."""
