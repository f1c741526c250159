"""The releases of rows in memory: a register that lasts as long as the process.

Ingested rows have an identity and a durable ledger. An array has neither: without a register, two fits of one array
could be averaged, which undoes the privacy of both. So the process keeps fingerprints of the rows of each released
table. The same release of the same rows is returned again and not charged: each release has a ledger in memory
(:mod:`dpdist.core.ledger.memory`), which draws it once. Other releases that those rows cannot afford are refused. Rows
are recognised in a copy, in another order, type or chunking, and among other rows, as in the folds of a
cross-validation. Changed values are not recognised. This protects against accidents in a notebook, not against intent.

If fingerprints do not match, a warning still appears: each release after the first with the same number of rows
reports their joint cost, whatever the columns: some may have been left out, which also changes types. The register does
not cover other processes, including forks and child processes. Each process draws a new secret key for the fingerprints
and shares it only with its own workers. Fingerprints appear in no release, message, log or pickle.

A :class:`dpdist.Budget` counts fits of any rows. If all fits on the same people are charged to one, all fits together
have the guarantee of :mod:`dpdist.core.privacy.accounting`, even if each is chosen from earlier answers. It also lasts
as long as the process. The ledger of a rows.zarr is durable.

Recognised and unrecognised tables (``tests/core/ledger/test_ledger_register.py``):

======================================================  ==========
second table                                            recognised
======================================================  ==========
same values in another copy, order, type or chunking    yes
one row of the first; its rows, or some, among others   yes
other values: float32 of float64, units, scalers        **no**
columns reordered, added or removed                     **no**
one row of the first, if a table has duplicate rows     **no**
yes/no columns, with one row more or less               **no**
half of a table with few distinct rows, such as yes/no  **no**
fewer than 20 rows of the first, if one has duplicates  **no**
======================================================  ==========
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from dpdist.core.errors import DataError, RefusedError, UsageError, warn_caller
from dpdist.core.ledger.fingerprints import Fingerprints
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.memory import MemoryStorage, this_process
from dpdist.core.naming import BUDGET, naming
from dpdist.core.privacy import accounting
from dpdist.core.privacy.accounting import Filter, Left, caps_for
from dpdist.core.privacy.guarantee import ATTO, MICRO, Guarantee, Neighbours, Number, PrivacyLoss
from dpdist.core.text import counted, random_token

MOST_BYTES = 256 << 20
"""Bytes of releases of rows in memory that a process keeps, so that the same fit returns the same release."""


@dataclass(frozen=True)
class _Fit:
    guarantee: Guarantee
    fingerprints: Fingerprints | None  # None for a rows.zarr
    rows: int  # how many; may be private
    dataset: str  # identity of the table
    account: Budget | None  # the budget that it was charged to
    unit: str | None = None  # the privacy unit; None: the row


@dataclass(frozen=True)
class Asked:
    """A release of some rows, and who pays for it."""

    fingerprints: Fingerprints
    dataset: str  # identity of the table
    release_id: str
    limit: PrivacyLoss | None = None  # of the joint cost of these rows; None: the account's, or the release's own cost
    account: Budget | None = None
    unit: str | None = None  # the privacy unit; None: the row

    @property
    def release(self) -> tuple[str, str]:
        """Table and release."""
        return self.dataset, self.release_id


@dataclass
class Register:
    """The releases of one process. Thread-safe."""

    key: bytes = field(default_factory=lambda: bytes.fromhex(random_token()), repr=False)  # private
    _fits: list[_Fit] = field(default_factory=list, repr=False)
    _tables: dict[tuple[object, ...], str] = field(default_factory=dict, repr=False)  # identities by their content
    _charged: dict[tuple[str, str], tuple[MemoryStorage, _Fit]] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def unlock(self) -> None:
        """Take a new lock, in a fork: a thread that held the old one is not there to release it."""
        self._lock = threading.Lock()

    def identity(self, fingerprints: Fingerprints, *described: object) -> str:
        """Return the identity of a table: the same for the same rows, in any order, with the same description."""
        with self._lock:
            content = (fingerprints.total, fingerprints.items, *described)
            return self._tables.setdefault(content, random_token())

    def known(self, asked: Asked) -> MemoryStorage | None:
        """Return the ledger of a charged release, or None; refuse it if the given budget was not charged."""
        with self._lock:
            return self._known(asked)

    def _known(self, asked: Asked) -> MemoryStorage | None:
        if asked.release not in self._charged:
            return None
        ledger, charge = self._charged[asked.release]
        if asked.account is not None and not asked.account.continues(charge.account):
            raise RefusedError(_OTHER_ACCOUNT)
        if asked.limit is not None:
            others = [fit.guarantee for fit in self._sharing(asked.fingerprints) if fit is not charge]
            _require_affordable(others, charge.guarantee, asked.limit)
        return ledger

    def require_relation(self, asked: Asked, neighbours: Neighbours) -> None:
        """Refuse a loss that cannot be added to those of earlier releases, before anything is said of the rows."""
        with self._lock:
            for fit in self._sharing(asked.fingerprints):
                _require_same("Some or all of these rows were released before in this process", fit.unit, asked.unit)
                _require_relation([fit.guarantee], neighbours)

    def all_under(self, neighbours: Neighbours) -> bool:
        """Whether all releases so far were under one relation, so that a refusal by it can say what it keeps public."""
        with self._lock:
            return all(fit.guarantee.neighbours is neighbours for fit in self._fits)

    def _sharing(self, fingerprints: Fingerprints) -> list[_Fit]:
        """Return the charges of some of these rows."""
        return [fit for fit in self._fits if fit.fingerprints and fit.fingerprints.share_rows(fingerprints)]

    def charge(
        self, asked: Asked, rows: int, guarantee: Guarantee, reserve: Callable[[MemoryStorage], object]
    ) -> MemoryStorage:
        """Charge a release before its noise is drawn, once; the charge stays even if the draw fails.

        ``reserve`` records the parameters of the release in its ledger, which is none of any other parameters then.
        """
        account, limit = asked.account, asked.limit
        with self._lock:
            if (known := self._known(asked)) is not None:
                return known  # another thread was faster
            shared = self._sharing(asked.fingerprints)
            if account is None or limit is not None:
                _require_affordable([fit.guarantee for fit in shared], guarantee, limit or guarantee.loss)
            # all are asked, as an empty budget takes up the charges of the first
            continued = [account is not None and account.continues(fit.account) for fit in shared]
            if account is not None and limit is None and not all(continued):
                raise RefusedError(_OTHER_ACCOUNT)
            alike = [fit for fit in self._fits if fit.rows == rows]
            if any(account is None or not account.is_charged_with(fit.account) for fit in alike):
                # if it is turned into an error, the fit ends here without a charge
                others = [fit for fit in shared if fit.rows != rows]  # of a part of these rows, or with others
                units = {asked.unit, *(fit.unit for fit in alike + others)}
                losses = [*(fit.guarantee for fit in alike + others), guarantee]
                _warn_of_joint_cost(losses, some=bool(others), alike=len(units) == 1)
            ledger = MemoryStorage()
            Ledger.create(
                ledger, dataset_id=asked.dataset, budget=guarantee.loss
            )  # the register decides what rows afford
            reserve(ledger)
            charge = _Fit(guarantee, asked.fingerprints, rows, asked.dataset, account, asked.unit)
            if account is not None:
                account.charge(guarantee, unit=asked.unit)
            # in this order: an interruption leaves a charge without a release, and never a release without a charge
            self._fits.append(charge)
            self._charged[asked.release] = ledger, charge
            return ledger

    def keep(self, ledger: MemoryStorage) -> None:
        """Forget the draws of a release if those of all releases take more than :data:`MOST_BYTES`."""
        with self._lock:
            if sum(each.nbytes for each, _ in self._charged.values()) > MOST_BYTES:
                ledger.forget()

    def note(self, rows: int, guarantee: Guarantee, dataset: str, unit: str | None) -> None:
        """Note a release of rows with a ledger, for warnings; workers read their values, so it has no fingerprints."""
        with self._lock:
            alike = [fit for fit in self._fits if fit.rows == rows and fit.dataset != dataset]
            if any(fit.fingerprints is not None for fit in alike):
                same = {fit.unit for fit in alike} == {unit}
                _warn_of_joint_cost([*(fit.guarantee for fit in alike), guarantee], alike=same)
            self._fits.append(_Fit(guarantee, None, rows, dataset, None, unit))


_OTHER_ACCOUNT = (
    "Some or all of these rows were released before in this process without charging this budget. Nothing was "
    "drawn. The earlier release cannot be charged afterwards, because a budget is fixed before the first answer. "
    "Charge this fit to the budget of the earlier fits, if there is one. Using an existing release is free "
    "(from_release(fitted.release_))."
)


def _require_same(before: str, unit: str | None, asked: str | None) -> None:
    """Refuse a loss of another privacy unit than that of earlier releases."""
    if unit != asked:
        first, second = ("each row" if name is None else f"all rows of one {name}" for name in (unit, asked))
        rest = "no groups" if unit is None else f"groups, named {unit!r},"
        raise RefusedError(
            f"{before} with the protection of {first}; a loss that protects {second} cannot be added to that. Nothing "
            f"was drawn. Fit with {rest} as before."
        )


def _require_relation(before: list[Guarantee], neighbours: Neighbours) -> None:
    for other in before:
        if other.neighbours is not neighbours:
            raise RefusedError(
                f"Some or all of these rows were released before in this process under {other.neighbours}; a loss "
                f"under {neighbours} cannot be added to that. Nothing was drawn. Set "
                f"neighbours={other.neighbours.value!r}."
            )


def _require_affordable(before: list[Guarantee], guarantee: Guarantee, budget: PrivacyLoss) -> None:
    _require_relation(before, guarantee.neighbours)
    together = [*before, guarantee]
    if accounting.fits(together, budget):
        return
    if not before:
        raise RefusedError(f"This release costs {guarantee.loss}, and the budget is {budget}. Ask for a smaller loss.")
    cost = _cost(accounting.least_epsilon_micro, together, budget.delta_atto)
    cure = ""
    if cost is not None:
        cure = (
            " A larger budget_epsilon does not bound earlier answers: the joint cost holds only if no request depended "
            "on an answer. If none did, state that with "
            f"budget_epsilon={cost.epsilon_micro / MICRO!r}, budget_delta={cost.delta_atto / ATTO!r}."
        )
    raise RefusedError(
        f"Some or all of these rows were released {_times(len(before))} before in this process. With this release "
        f"they would need a budget of {_loss_text(cost)}, but it is {_loss_text(budget)}. Nothing was drawn. Using an "
        "existing release is free (from_release(fitted.release_)). If you plan several fits, charge all of them to one "
        f"budget, from the first on: budget=dpdist.Budget(epsilon, delta).{cure}"
    )


def _cost(
    least: Callable[[list[Guarantee], int], int], together: list[Guarantee], delta_atto: int
) -> PrivacyLoss | None:
    """Return the joint cost of releases, at a larger delta if needed; None if it is too large to compute."""
    for delta in (delta_atto, sum(guarantee.loss.delta_atto for guarantee in together)):
        with suppress(UsageError, DataError):
            return PrivacyLoss(least(together, delta), delta)
    return None


def _warn_of_joint_cost(together: list[Guarantee], *, some: bool = False, alike: bool = True) -> None:
    largest = max(guarantee.loss.delta_atto for guarantee in together)
    if not alike:
        cost = "more than each one states; losses of different privacy units cannot be added"
    elif len({guarantee.neighbours for guarantee in together}) > 1:
        cost = "more than each one states; losses under different neighbours cannot be added"
    else:
        cost = _loss_text(_cost(accounting.composed_epsilon_micro, together, largest))
        cost += ", provided that no request depended on an earlier answer"
    warn_caller(
        f"The same number of rows was released {_times(len(together) - 1)} before in this process"
        f"{', or some of these were' if some else ''}. If they are about the same people, these releases together cost "
        f"{cost}. Rows are recognised by the values of all their columns only, so charge all fits on the same people "
        "to one dpdist.Budget (budget), or to the ledger of one rows.zarr.",
        UserWarning,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _loss_text(loss: PrivacyLoss | None) -> str:
    if loss is None:
        return "epsilon above one million"
    return f"epsilon {loss.epsilon_micro / MICRO!r}, delta {loss.delta_atto / ATTO!r}"


REGISTER = Register()
"""The register of this process."""
os.register_at_fork(after_in_child=REGISTER.unlock)


_NO_PROCESS = -1


@dataclass
class _Charges:
    """The charges of a budget, which it may share with an earlier declaration."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    account: Filter | None = None
    neighbours: Neighbours | None = None
    unit: str | None = None


class Budget:
    """A privacy budget shared by several fits.

    Pass one object as the parameter ``budget`` of every :class:`dpdist.PrivatePCA` and
    :class:`dpdist.PrivateCovariance` that is fitted to rows of the same people. All answers together are then
    (epsilon, delta)-private, even if requests are chosen from earlier answers. Limits are fixed when the first fit is
    charged, before its noise is drawn. A fit beyond them is refused before anything is drawn.

    Parameters
    ----------
    epsilon : str, int, float or Decimal
        A multiple of 1e-6. A float is read as printed: 0.1 is one tenth.
    delta : str, int, float or Decimal, default 0
        A multiple of 1e-18, below 1. 0: pure releases only.
    pure : str, int, float or Decimal, default 0
        The part of epsilon reserved for pure releases, in addition to Gaussian ones. 0: as much as the first fit
        needs. Refused if delta is 0, because then the budget is pure.
    delta_reserve : str, int, float or Decimal, default 0
        The part of delta reserved for releases with positive delta but without Gaussian noise, such as ``wishart``.

    Raises
    ------
    UsageError
        If a number cannot be parsed, or a part exceeds the total.
    DataError
        If a number is out of range.

    Notes
    -----
    Thread-safe. If rows were charged to a Budget with the same limits, and this one is still empty, it continues that
    one: a cell of a notebook that runs twice has one budget. A copy would be a second budget, so ``copy.copy``,
    ``copy.deepcopy`` and :func:`sklearn.base.clone` return the same object, and all fits of a cross-validation are
    charged to it. That does not make the
    cross-validation private, because it selects by exact scores. A budget in another process, pickled (``n_jobs`` of
    scikit-learn) or forked, refuses all fits. Use ``n_jobs=None``, or threads with
    ``joblib.parallel_config("threading")``.

    A charge stays even if the fit fails later. All fits must have the same neighbouring relation as the first one, and
    the same ``groups``, by their name (an array has none, and is called "group"), or none.

    See Also
    --------
    PrivatePCA, PrivateCovariance : Estimators that charge it.
    Ledger : A durable budget for a rows.zarr.

    References
    ----------
    Rogers, Roth, Ullman & Vadhan 2016 (privacy filters); the theorem is in :mod:`dpdist.core.privacy.profile`.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import dpdist
    >>> budget = dpdist.Budget("1.5", "1e-6")
    >>> asked = {"epsilon": 1, "delta": 1e-6, "clip": 2000, "budget": budget}
    >>> found = dpdist.PrivatePCA(2, **asked).fit(load_wine().data)
    >>> budget  # doctest: +NORMALIZE_WHITESPACE
    <Budget of epsilon 1.5, delta 1e-06; 1 fit charged;
    left: one more release of epsilon 1.061 (gaussian, delta 1e-06) or 0.1996 (pure)>
    >>> found = dpdist.PrivateCovariance(**asked).fit(load_wine().data)
    >>> dpdist.PrivateCovariance(**asked).fit(load_wine().data + 1)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    dpdist.core.errors.RefusedError: This release costs epsilon 1, delta 1e-06, ...
    """

    def __init__(self, epsilon: Number, delta: Number = 0, *, pure: Number = 0, delta_reserve: Number = 0) -> None:
        if "_process" in vars(self):
            raise RefusedError(
                "A budget is declared once; declaring it again would erase its charges. Create another Budget for "
                "other people. A second Budget for the same people adds to this one."
            )
        with naming(BUDGET):
            self._loss = PrivacyLoss.declared(str(epsilon), str(delta), str(pure), str(delta_reserve))
        self._process: object = this_process()
        self._charges = _Charges()

    @property
    def loss(self) -> PrivacyLoss:
        """Epsilon and delta for all charges together."""
        return self._loss

    @property
    def left(self) -> Left:
        """The rest: the largest Gaussian and the largest pure release that it can still pay for, one or the other.

        Raises
        ------
        RefusedError
            If this is a copy in another process.
        """
        self._require_original()
        with self._charges.lock:
            return self._left()

    def charge(self, guarantee: Guarantee, *, unit: str | None = None) -> None:
        """Charge a release before its noise is drawn, irrevocably. The estimators call this.

        Parameters
        ----------
        guarantee : Guarantee
            The proved guarantee of the release.
        unit : str, default None
            Name of the privacy unit, if all rows of each are protected together (``groups``). None: each row is.

        Raises
        ------
        RefusedError
            If the rest of the budget is too small, neighbouring relation or privacy unit differ from those of the
            first release, or this is a copy. Nothing is charged.
        """
        self._require_original()
        charges = self._charges
        with charges.lock:
            if charges.neighbours not in {None, guarantee.neighbours}:
                raise RefusedError(
                    f"This budget is for releases under {charges.neighbours}; a loss under {guarantee.neighbours} "
                    f"cannot be added to that. Nothing was drawn. Set neighbours={str(charges.neighbours)!r}, or "
                    "charge another budget, which adds to this one."
                )
            if charges.account is not None:
                _require_same("The first fit was charged to this budget", charges.unit, unit)
            account = charges.account or Filter(self._loss, caps_for(self._loss, guarantee))
            if not account.book(str(len(account)), guarantee):
                raise RefusedError(
                    f"This release costs {guarantee.loss}; the budget is {self._loss}; left: {self._left()}. "
                    "Nothing was drawn or charged. Ask for a smaller loss. Using an existing release is free "
                    "(from_release(fitted.release_))."
                )
            charges.account, charges.neighbours, charges.unit = account, guarantee.neighbours, unit

    def continues(self, earlier: Budget | None) -> bool:
        """Whether this is the budget of an earlier charge, or the same one declared again, which takes up its charges.

        A cell of a notebook that runs twice declares its budget twice. The second one continues the first if it has the
        same limits and no charges yet, so the two have one budget together.
        """
        self._require_original()
        if earlier is None or earlier._process != self._process:  # noqa: SLF001 - a fork has a copy of its charges
            return False
        if self._charges.account is None and self._loss == earlier.loss:
            self._charges = earlier._charges  # noqa: SLF001 - of another Budget
        return self.is_charged_with(earlier)

    def is_charged_with(self, earlier: Budget | None) -> bool:
        """Whether the charges of an earlier budget are those of this one."""
        return earlier is not None and self._charges is earlier._charges  # noqa: SLF001 - as above

    def _left(self) -> Left:
        return (self._charges.account or Filter(self._loss, caps_for(self._loss))).left()

    def _require_original(self) -> None:
        # before locking: in a fork, the lock might never be released
        if self._process != this_process():
            raise RefusedError(
                "This is a copy of a budget, pickled or in another process, which cannot be charged: two copies would "
                "be two budgets. Nothing was drawn. Pass the original (set_params(budget=...)), in its process: "
                'n_jobs=None, or threads (joblib.parallel_config("threading")).'
            )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[PrivacyLoss], Budget], tuple[PrivacyLoss]]:
        return _copy, (self._loss,)

    def __repr__(self) -> str:
        if self._process != this_process():
            return f"<Budget of {self._loss}; a copy, which cannot be charged>"
        with self._charges.lock:
            count, left = len(self._charges.account or ()), self._left()
        return f"<Budget of {self._loss}; {counted(count, 'fit')} charged; left: {left}>"


def _copy(loss: PrivacyLoss) -> Budget:
    """Return the copy of a budget for another process."""
    budget = object.__new__(Budget)
    budget.__dict__.update(_loss=loss, _process=_NO_PROCESS, _charges=_Charges())
    return budget
