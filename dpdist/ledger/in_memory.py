"""What this process has released of rows in memory: a register that lasts as long as the process, and no longer.

Rows that were ingested have an identity and a durable ledger. An array has neither: fit twice, and the average of two
releases undoes the privacy of both. So this process remembers of every table it released the fingerprints of its rows,
and refuses what those rows cannot afford. Rows are known again in a copy, in another order, type or chunking, and among
other rows: in a cross-validation every fold shares rows with the others. Changed values are not known again. This
protects against accidents in a notebook, and not against intent.

What no fingerprint shows is warned of: every release but the first of as many rows and columns of one kind of numbers
comes with what all of them cost together. Other processes the register does not see, those forked or started from this
one included. The secret key of the fingerprints is drawn afresh in every process and never leaves it but to its own
workers. They are in no release, message, log or pickle.

A :class:`dpdist.Budget` counts fits whatever their rows are. If every fit on the same people is charged to one, all
fits together have the guarantee of :mod:`dpdist.privacy.accounting`, even if each is chosen from the answers of the
earlier ones. It lasts as long as the process too. The ledger of a rows.zarr is durable.

**Fingerprints.** A row's key is BLAKE2b of its float64 values in their order, under a secret key of the process. Two
tables in which no row is there twice share rows if one key is common. So do two tables of as many rows with the same
keys, each as often.

In tables of categories, or of answers yes and no, rows of different people have the same key. There one common key is
no proof: what counts is whether more keys are common than chance explains.

Suppose that two tables share no row, and that chance alone split the rows between them, as into training and test rows.
Look at the keys that both tables together hold 2 to 8 times (c), and count how many are in both. If every row goes to
the first table with probability q, a key is in both with probability ``1 - q^c - (1 - q)^c``, independently of the
others. So the count has the tail of Hoeffding (1963, theorem 1). In fact the number of rows in the first table is fixed
and not random. That multiplies the bound by at most ``sqrt(8 n1 n2 / (n1 + n2))``, the inverse of the least probability
of that number (Cover & Thomas 2006, lemma 17.5.1). Tables are said to share rows where the bound is below
:data:`FALSE_ALARMS`.

Only the smallest keys are kept (a bottom-k sketch: Cohen & Kaplan 2007). If tables of different rows share a part f of
those of the first one, no key is seen to be common with probability at most ``(1 - f)^KEPT``.

What is seen and what is not (``tests/ledger/test_in_memory.py``):

======================================================  ========
the second table                                        is known
======================================================  ========
the same values: copy, order, type, chunks; one of them yes
these among others, or a part of them                   yes
any other values: float32 of float64, units, scalers    **no**
columns in another order, added or left out             **no**
one of them, where some rows are twice in a table       **no**
columns of yes/no, with a row more or less              **no**
a half of a table of few different rows, as of yes/no   **no**
======================================================  ========
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted, random_token
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.naming import BUDGET, naming
from dpdist.privacy import accounting
from dpdist.privacy.accounting import Filter, Left, caps_for
from dpdist.privacy.guarantee import ATTO, MICRO, Guarantee, Neighbours, Number, PrivacyLoss

Values = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]
KEPT = 2**16
"""Keys kept of one table, half a MiB."""
FALSE_ALARMS = 1e-4
"""Probability that two tables that share no row are said to, if they are a random split of one table."""
_MOST = 8
"""Keys that two tables hold more often are no evidence."""


@dataclass(frozen=True)
class Fingerprints:
    """The smallest distinct keys of the rows of a table, or of a part of it. Private."""

    keys: Keys  # sorted and distinct
    counts: npt.NDArray[np.uint32]  # how many rows have each key
    items: int  # rows, those whose keys are not kept included

    @classmethod
    def of(cls, rows: Values, key: bytes) -> Fingerprints:
        """Return the fingerprints of rows."""
        return cls.of_keys(_exact(rows, key))

    @classmethod
    def of_keys(cls, keys: Keys) -> Fingerprints:
        """Return the fingerprints of rows with these keys."""
        found, counts = np.unique(keys, return_counts=True)
        return cls(found[:KEPT], counts[:KEPT].astype(np.uint32), len(keys))

    @classmethod
    def union(cls, parts: Sequence[Fingerprints]) -> Fingerprints:
        """Return those of the rows of all parts. A key that it keeps was kept by each that had it."""
        keys, place = np.unique(np.concatenate([each.keys for each in parts]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([each.counts for each in parts]), len(keys))
        return cls(keys[:KEPT], counts[:KEPT].astype(np.uint32), sum(each.items for each in parts))

    def to(self, limit: int) -> Fingerprints:
        """Return the part of it with keys up to a limit."""
        stop = int(np.searchsorted(self.keys, np.uint64(limit), side="right"))
        return Fingerprints(self.keys[:stop], self.counts[:stop], self.items)

    @property
    def few(self) -> npt.NDArray[np.intp]:
        """The counts, up to one more than is looked at."""
        return np.minimum(self.counts, _MOST + 1).astype(np.intp)

    @property
    def distinct(self) -> bool:
        """Whether no key is there twice."""
        return bool((self.counts == 1).all())

    @property
    def limit(self) -> int:
        """The largest key up to which nothing is left out."""
        return int(self.keys[-1]) if len(self.keys) == KEPT else 2**64 - 1

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return self.keys.nbytes + self.counts.nbytes

    def same_rows(self, other: Fingerprints) -> bool:
        """Say whether two passes seem to have read the same rows, in any order: as many, with the same keys."""
        same = np.array_equal(self.keys, other.keys) and np.array_equal(self.counts, other.counts)
        return same and self.items == other.items

    def share_rows(self, other: Fingerprints) -> bool:
        """Say whether two tables are seen to share rows."""
        if self.distinct and other.distinct:
            return bool(np.intersect1d(self.keys, other.keys, assume_unique=True).size)
        return self.same_rows(other) or log_chance(self, other) < math.log(FALSE_ALARMS)


def log_chance(first: Fingerprints, second: Fingerprints) -> float:
    """Return the logarithm of a bound on the probability that so many keys are common by chance.

    See the head of the module; 0 where no more are common than chance explains.
    """
    limit = min(first.limit, second.limit)
    one, two = first.to(limit), second.to(limit)
    _, here, there = np.intersect1d(one.keys, two.keys, assume_unique=True, return_indices=True)
    size = 2 * _MOST + 3
    both = np.bincount(one.few[here] + two.few[there], minlength=size)
    apart = np.zeros(size)
    for each, shared in ((one, here), (two, there)):
        apart += np.bincount(each.few, minlength=size) - np.bincount(each.few[shared], minlength=size)
    looked = slice(2, _MOST + 1)
    common, trials = int(both[looked].sum()), int((both + apart)[looked].sum())
    if not common:
        return 0.0
    part = one.items / (one.items + two.items)
    times = np.arange(size)
    expected = float(((both + apart) * (1 - part**times - (1 - part) ** times))[looked].sum()) / trials
    seen = common / trials
    if seen <= expected:
        return 0.0
    divergence = seen * math.log(seen / expected)
    divergence += (1 - seen) * math.log((1 - seen) / (1 - expected)) if seen < 1 else 0.0
    given_sizes = math.log(8 * part * two.items) / 2
    return min(0.0, given_sizes - trials * divergence)


def _exact(rows: Values, key: bytes) -> Keys:
    canonical = np.add(rows, 0.0, order="C")  # -0.0 becomes 0.0
    canonical[np.isnan(canonical)] = np.nan
    keyed = hashlib.blake2b(key=key, digest_size=8)
    found = np.empty(len(rows), dtype=np.uint64)
    for i, row in enumerate(canonical):
        each = keyed.copy()
        each.update(row.data)
        found[i] = int.from_bytes(each.digest(), "little")
    return found


@dataclass(frozen=True)
class Shape:
    """What two tables have in common that may be of the same people."""

    kind: str  # of the numbers, as NumPy writes it: "f", "i", "u" or "b"
    rows: int  # may be private
    columns: int


@dataclass(frozen=True)
class _Fit:
    """One release."""

    guarantee: Guarantee
    fingerprints: Fingerprints | None  # None of a rows.zarr
    shape: Shape
    dataset: str  # identity of the table
    account: Budget | None  # what it was charged to


@dataclass
class Register:
    """The releases of one process. Safe to use from several threads."""

    key: bytes = field(default_factory=lambda: bytes.fromhex(random_token()), repr=False)  # private
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
    cost = _cost(accounting.least_epsilon_micro, together, budget.delta_atto)
    cure = ""
    if cost is not None:
        cure = (
            " A larger budget_epsilon does not limit an answer that was seen before: the releases keep their joint "
            "cost only if no request followed from an answer. If none did, say it with "
            f"budget_epsilon={cost.epsilon_micro / MICRO!r}, budget_delta={cost.delta_atto / ATTO!r}."
        )
    raise RefusedError(
        f"These rows, or some of them, were released {_times(len(before))} before in this process. With this release "
        f"they would need a budget of {_written(cost)}; it is {_written(budget)}. Nothing was drawn. To use what is "
        "released already costs nothing (from_release(fitted.release_)). If you plan several fits, charge all of them "
        f"to one budget, from the first on: budget=dpdist.Budget(epsilon, delta).{cure}"
    )


def _cost(
    least: Callable[[list[Guarantee], int], int], together: list[Guarantee], delta_atto: int
) -> PrivacyLoss | None:
    """Return what releases cost together, at a larger delta than the given one if need be; None: beyond reason."""
    for delta in (delta_atto, sum(each.loss.delta_atto for each in together)):
        with suppress(UsageError, DataError):
            return PrivacyLoss(least(together, delta), delta)
    return None


def _warn_of_joint_cost(together: list[Guarantee]) -> None:
    """Warn of what the releases of one shape of table cost together if they are of the same people."""
    if len({each.neighbours for each in together}) > 1:
        cost = "more than either says, and losses of different neighbours cannot be added"
    else:
        largest = max(each.loss.delta_atto for each in together)
        cost = _written(_cost(accounting.composed_epsilon_micro, together, largest))
    warnings.warn(
        f"Rows of the same number and kind were released {_times(len(together) - 1)} before in this process. If they "
        f"are of the same people, all these releases together cost {cost}, provided that none was asked for because of "
        "an earlier one's answer. Rows are known again by their values only: charge all fits on the same people to "
        "one dpdist.Budget (budget), or to the ledger of one rows.zarr.",
        UserWarning,
        stacklevel=2,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _written(loss: PrivacyLoss | None) -> str:
    if loss is None:
        return "epsilon of more than a million"
    return f"epsilon {loss.epsilon_micro / MICRO!r}, delta {loss.delta_atto / ATTO!r}"


REGISTER = Register()
"""The register of this process."""


_NO_PROCESS = -1


class Budget:
    """A privacy budget that several fits share, whatever their rows are.

    Pass one object as the parameter ``budget`` of every :class:`dpdist.PrivatePCA` and
    :class:`dpdist.PrivateCovariance` that is fitted to rows of the same people. All answers together then keep
    (epsilon, delta), although each request may be chosen from earlier answers. What the fits may cost is fixed when the
    first of them is charged, before its noise is drawn. A fit beyond it is refused, and nothing is drawn.

    Parameters
    ----------
    epsilon : str, int, float or Decimal
        A number of whole millionths. A float is read as it is printed: 0.1 is one tenth.
    delta : str, int, float or Decimal, default 0
        Likewise, below 1, of whole units of 1e-18. 0: pure releases only.
    pure : str, int, float or Decimal, default 0
        The part of epsilon that is set apart for releases without Gaussian noise, beside Gaussian ones. 0: as the first
        fit needs it. Refused where delta is 0, since then all of it is pure.
    delta_reserve : str, int, float or Decimal, default 0
        Likewise the part of delta that is set apart for releases of positive delta without Gaussian noise, such as
        ``wishart``.

    Raises
    ------
    UsageError
        If a number cannot be read, or a part is larger than the whole.
    DataError
        If a number is out of range.

    Notes
    -----
    Safe to use from several threads. A copy would be a second budget, so there is none: ``copy.copy``,
    ``copy.deepcopy`` and :func:`sklearn.base.clone` return the same object, and all fits of a cross-validation are
    charged to it. That does not make the cross-validation private: it chooses by scores, which are exact. A pickled
    one, as another process gets it (``n_jobs`` of scikit-learn), and one in a forked process pay for nothing: every fit
    there is refused. Use ``n_jobs=None`` or threads, with ``joblib.parallel_config("threading")``.

    A charge stays whatever happens to the fit after it. The loss of all fits has to be about the same neighbours, those
    of the first one.

    See Also
    --------
    PrivatePCA, PrivateCovariance : Take it.
    Ledger : A durable budget, of a rows.zarr.

    References
    ----------
    Rogers, Roth, Ullman & Vadhan 2016 (privacy filters); the theorem is in :mod:`dpdist.privacy.profile`.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import dpdist
    >>> budget = dpdist.Budget("1.5", "1e-6")
    >>> asked = {"epsilon": 1, "delta": 1e-6, "clip": 2000, "budget": budget}
    >>> found = dpdist.PrivatePCA(2, **asked).fit(load_wine().data)
    >>> budget  # doctest: +NORMALIZE_WHITESPACE
    <Budget of epsilon 1.5, delta 1e-06; 1 fit charged;
    left: one gaussian release of epsilon 1.061 at delta 1e-06 or one pure release of epsilon 0.1996>
    >>> found = dpdist.PrivateCovariance(**asked).fit(load_wine().data)
    >>> dpdist.PrivateCovariance(**asked).fit(load_wine().data + 1)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    dpdist.errors.RefusedError: This release costs epsilon 1, delta 1e-06, ...
    """

    def __init__(self, epsilon: Number, delta: Number = 0, *, pure: Number = 0, delta_reserve: Number = 0) -> None:
        if "_process" in vars(self):
            raise RefusedError(
                "A budget is declared once: made anew it would forget what was charged to it. Make another Budget for "
                "other people; for the same ones it adds to this one."
            )
        with naming(BUDGET):
            self._loss = PrivacyLoss.declared(str(epsilon), str(delta), str(pure), str(delta_reserve))
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._account: Filter | None = None
        self._neighbours: Neighbours | None = None

    @property
    def loss(self) -> PrivacyLoss:
        """Epsilon and delta of everything that is charged to it."""
        return self._loss

    @property
    def left(self) -> Left:
        """What it still pays for: the largest Gaussian and the largest pure release, of which it pays one.

        Raises
        ------
        RefusedError
            If it is a copy in another process.
        """
        self._require_original()
        with self._lock:
            return self._left()

    def charge(self, guarantee: Guarantee) -> None:
        """Charge a release before its noise is drawn; there is no way back. The estimators call it.

        Raises
        ------
        RefusedError
            If it is not left, the release is private in another sense than the first one, or this is a copy. Nothing
            is charged.
        """
        self._require_original()
        with self._lock:
            if self._neighbours not in {None, guarantee.neighbours}:
                raise RefusedError(
                    f"This budget pays for releases under {self._neighbours}; a loss under {guarantee.neighbours} "
                    f"cannot be added to that. Nothing was drawn. Ask for neighbours={str(self._neighbours)!r}, or "
                    "charge it to a budget of its own, which adds to this one."
                )
            account = self._account or Filter(self._loss, caps_for(self._loss, guarantee))
            if not account.book(str(len(account)), guarantee):
                raise RefusedError(
                    f"This release costs {guarantee.loss}, and of the budget of {self._loss} there is left: "
                    f"{self._left()}. Nothing was drawn or charged. Ask for a smaller loss. What is released already "
                    "can be used at no cost (from_release(fitted.release_))."
                )
            self._account, self._neighbours = account, guarantee.neighbours

    def _left(self) -> Left:
        return (self._account or Filter(self._loss, caps_for(self._loss))).left()

    def _require_original(self) -> None:
        # before the lock is taken: in a forked process nobody might ever release it
        if self._process != os.getpid():
            raise RefusedError(
                "This is a copy of a budget in another process, and pays for nothing: two copies would be two budgets. "
                "Nothing was drawn. Fit in the process that made it: n_jobs=None, or threads "
                '(joblib.parallel_config("threading")).'
            )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[PrivacyLoss], Budget], tuple[PrivacyLoss]]:
        return _copy, (self._loss,)

    def __repr__(self) -> str:
        if self._process != os.getpid():
            return f"<Budget of {self._loss}; a copy, which pays for nothing>"
        with self._lock:
            count, left = len(self._account or ()), self._left()
        return f"<Budget of {self._loss}; {counted(count, 'fit')} charged; left: {left}>"


def _copy(loss: PrivacyLoss) -> Budget:
    """Return what another process gets of a budget."""
    made = object.__new__(Budget)
    made.__dict__.update(_loss=loss, _process=_NO_PROCESS, _lock=threading.Lock(), _account=None, _neighbours=None)
    return made
