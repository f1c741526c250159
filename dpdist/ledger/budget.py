"""A budget that fits in Python are charged to, whatever their rows are.

The register of a process knows rows again by their values, and misses what it cannot see. A budget does not look at
rows at all. If every fit on the same people is charged to one :class:`Budget`, all fits together have the guarantee of
:mod:`dpdist.privacy.accounting`, even if each is chosen from the answers of the earlier ones. A budget lasts as long as
the process, as the register does. The ledger of a rows.zarr is durable.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import ClassVar, Self

from dpdist._util.text import counted
from dpdist.errors import RefusedError
from dpdist.naming import Python, naming
from dpdist.privacy.accounting import Filter, Left, caps_for
from dpdist.privacy.guarantee import Guarantee, Neighbours, Number, PrivacyLoss

_NO_PROCESS = -1


class _Own(Python):
    """As Python, with the names that a budget has for its parts."""

    renamed: ClassVar[Mapping[str, str]] = {
        "budget_pure": "pure",
        "budget_delta_reserve": "delta_reserve",
        "budget_delta": "delta",
    }


_OWN = _Own()


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
        with naming(_OWN):
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
        """Charge a release before its noise is drawn. The estimators call it; there is no way back.

        Parameters
        ----------
        guarantee
            Of the release.

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
