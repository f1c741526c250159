"""What the estimators share: the parameters of a fit, each once, and what scikit-learn and notebooks ask of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from dpdist._util.html import table
from dpdist._util.paths import AnyPath
from dpdist.ledger.address import LedgerAddressGiven
from dpdist.ledger.in_memory import Budget
from dpdist.options import ROWS_AT_MOST
from dpdist.privacy.guarantee import Number
from dpdist.release.artefact import Release
from dpdist.runtime.cluster import Cluster

Matrix = npt.NDArray[np.float64]
Vector = Sequence[float] | npt.NDArray[np.number]
Centre = AnyPath | Vector | Mapping[str, Vector]
"""What the parameter ``centre`` takes: a word or file, public numbers, or a mapping with ``centre`` and ``scale``."""
Scale = AnyPath | Vector
"""What the parameter ``scale`` takes: a word or file, or public numbers."""
_HERE = "{shared}\n"
Estimator = TypeVar("Estimator", bound="PrivateEstimator")


class Shared(TypedDict, total=False):
    """The parameters that all estimators take, for type checkers."""

    epsilon: Number
    clip: float | str
    delta: Number | None
    mechanism: str | None
    neighbours: str
    centre: Centre
    scale: Scale
    scale_share: Number | None
    ledger: LedgerAddressGiven | None
    release: AnyPath | None
    budget_epsilon: Number | None
    budget_delta: Number | None
    budget: Budget | None
    accept_large_delta: bool
    grid_bits: int | None
    rows_at_most: int
    missing: str
    options: Mapping[str, object] | None
    cluster: Cluster | None


class PrivateEstimator(BaseEstimator):  # type: ignore[misc] # no types
    """Base of the estimators: each takes these parameters as ``**shared``, and documents them by :func:`sharing`.

    Parameters
    ----------
    epsilon : str, int, float or Decimal
        What the release may cost: a number, or decimal text, of whole millionths. Required.
    clip : float, "auto" or "private"
        The clip norm C, in the units of the rows after centre and scale: longer rows are shortened to it, and all
        that is fitted is of rows so shortened; a release that tells that nearly all were comes with a
        :class:`dpdist.ClippedRowsWarning`. Required, and to be chosen from what is publicly known, never from
        X: that would be a leak. ``"auto"`` is 1.75 times the square root of d, for columns divided by a scale; with a
        private scale, of the number of columns of which that choice saw a variance. ``"private"``: the release chooses
        it first, from a private histogram of the norms; after a private scale, of the norms of scaled rows.
    delta : str, int, float or Decimal, default None
        Likewise as ``epsilon``, below 1; None for pure differential privacy.
    mechanism : str, default None
        Its name; None takes ``gaussian`` where a delta is given and ``two-sided-wishart`` where none is.
    neighbours : {"replace-one", "add-remove"}, default "replace-one"
        ``replace-one``: one row exchanged, and the number of rows public; ``add-remove``: one row more or fewer, and
        it is private.
    centre : str, path-like, sequence of float or mapping, default "none"
        ``"none"``: the second moment about zero. ``"private"``: mean and second moment are released together for the
        one price. Or a public centre: one number per column, a mapping with ``centre`` and ``scale``, or a ``.npy``,
        ``.npz`` or ``.json`` file of these.
    scale : str, path-like or sequence of float, default "none"
        ``"private"``: the release chooses a scale of each column first, from private histograms of all columns, and
        shifts by a centre from the same, unless a public one is given. Or a public scale: one positive number per
        column, or a file of these as for ``centre``. ``clip`` is in scaled units then.
    scale_share : str, float or Decimal, default None
        The share of the release's mu² that this choice takes (of epsilon, where the mechanism has no mu). None: .01 to
        .25, by n, epsilon and d.
    ledger : str or path-like, default None
        For the path of a rows.zarr: the place of its ledger, if it is not beside it. Refused for rows in memory.
    release : str or path-like, default None
        Where to publish the release.zarr. None: for a rows.zarr beside it under the release id; for rows in memory
        nowhere.
    budget_epsilon, budget_delta : str, int, float or Decimal, default None
        For rows in memory: what this release may cost together with all earlier ones of this process that share a row
        with it. None: no more than this release alone, so that a second fit is refused. It holds also for fits that
        were chosen from earlier answers if all of them name the same; a larger one, named after an answer, was no limit
        on that answer.
    budget : Budget, default None
        For rows in memory: a :class:`dpdist.Budget` that this fit is charged to, whatever its rows are. Then it decides
        about rows that were released before, if they were charged to it too. None: there is none.
    accept_large_delta : bool, default False
        Whether a delta of 1/n or more is meant, which lets a random row be published as it is; where n is public it is
        refused otherwise.
    grid_bits : int, default None
        The clip norm is ``2**grid_bits`` steps of the integer grid. None: so many that the error of rounding is below
        5 % of the noise.
    rows_at_most : int, default 10000000
        A public number that n is at most, from which grid bits follow where n is private.
    missing : {"refuse", "centre"}, default "refuse"
        Of rows in memory that hold a NaN or an infinity: refuse X, or take such a row, as a whole, for the centre. It
        counts in n. It needs ``scale="private"`` or a public centre. Of a rows.zarr the schema says it.
    options : mapping of str, default None
        Public parameters of the mechanism, by name.
    cluster : Cluster, default None
        For the path of a rows.zarr: where to compute. None: on this machine, as :func:`dpdist.release_rows`.
    """

    release_: Release
    _centre: ClassVar[str] = "none"  # the default of ``centre``

    def __init__(
        self,
        *,
        epsilon: Number,
        clip: float | str,
        delta: Number | None = None,
        mechanism: str | None = None,
        neighbours: str = "replace-one",
        centre: Centre = "none",
        scale: Scale = "none",
        scale_share: Number | None = None,
        ledger: LedgerAddressGiven | None = None,
        release: AnyPath | None = None,
        budget_epsilon: Number | None = None,
        budget_delta: Number | None = None,
        budget: Budget | None = None,
        accept_large_delta: bool = False,
        grid_bits: int | None = None,
        rows_at_most: int = ROWS_AT_MOST,
        missing: str = "refuse",
        options: Mapping[str, object] | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.clip = clip
        self.delta = delta
        self.mechanism = mechanism
        self.neighbours = neighbours
        self.centre = centre
        self.scale = scale
        self.scale_share = scale_share
        self.ledger = ledger
        self.release = release
        self.budget_epsilon = budget_epsilon
        self.budget_delta = budget_delta
        self.budget = budget
        self.accept_large_delta = accept_large_delta
        self.grid_bits = grid_bits
        self.rows_at_most = rows_at_most
        self.missing = missing
        self.options = options
        self.cluster = cluster

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = True
        return tags

    def _facts(self) -> dict[str, object]:
        """Return what a notebook shows: what it was asked for and, once fitted, what it holds."""
        release: Release | None = getattr(self, "release_", None)
        facts = {"epsilon": self.epsilon, "delta": self.delta, "clip": self.clip, "neighbours": self.neighbours}
        if release is None:
            return {**facts, "fitted": "no"}
        guarantee, columns = release.guarantee_words(), release.bound.columns
        return {**facts, "release": release.release_id, "guarantee": guarantee, "columns": columns}

    def _repr_html_(self) -> str:
        return table(type(self).__name__, self._facts())

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:  # noqa: ARG002 - what a notebook passes
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def sharing(kind: type[Estimator]) -> type[Estimator]:
    """Give a class that takes ``**shared`` their signature and descriptions, which scikit-learn and people read."""
    own = inspect.signature(kind.__init__).parameters.values()
    _, *shared = inspect.signature(PrivateEstimator.__init__).parameters.values()
    taken = [each for each in own if each.kind is not each.VAR_KEYWORD]
    taken += [each.replace(default=kind._centre) if each.name == "centre" else each for each in shared]  # noqa: SLF001 - of this class
    kind.__init__.__signature__ = inspect.Signature(taken, return_annotation="None")  # type: ignore[attr-defined]
    if kind.__doc__ and PrivateEstimator.__doc__:  # python -OO has none
        kind.__doc__ = _documented(inspect.cleandoc(kind.__doc__), inspect.cleandoc(PrivateEstimator.__doc__))
    return kind


def _documented(doc: str, of_base: str) -> str:
    """Return a docstring with the descriptions of the shared parameters that it does not give itself."""
    own = {name for head in re.findall(r"(?m)^(\w[\w, ]*) : ", doc) for name in head.split(", ")}
    entries = re.split(r"(?m)^(?=\w)", of_base.partition("----------\n")[2] + "\n")
    shared = (entry for entry in entries if not own.issuperset(entry.partition(" :")[0].split(", ")))
    return doc.replace(_HERE, "".join(shared))
