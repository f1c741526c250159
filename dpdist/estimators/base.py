"""Shared base of the estimators: the parameters of a fit, and the hooks of scikit-learn and notebooks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, ClassVar, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from dpdist.core.errors import UsageError
from dpdist.core.html import table
from dpdist.core.ledger.address import AnyLedgerAddress
from dpdist.core.ledger.register import Budget
from dpdist.core.options import ROWS_AT_MOST
from dpdist.core.paths import AnyPath
from dpdist.core.privacy.guarantee import Number
from dpdist.core.release.artefact import Release
from dpdist.core.runtime.cluster import AnyCluster, client_of

Matrix = npt.NDArray[np.float64]
Vector = Sequence[float] | npt.NDArray[np.number]
Centre = AnyPath | Vector | Mapping[str, Vector]
"""Values of ``centre``: a keyword or file, public numbers, or a mapping with ``centre`` and ``scale``."""
Scale = AnyPath | Vector
"""Values of ``scale``: a keyword or file, or public numbers."""
_SHARED_ENTRIES = "{shared}\n"
_NOT_SAVED = "a Dask client that was not saved: pass set_params(cluster=...)"
Estimator = TypeVar("Estimator", bound="PrivateEstimator")


class Shared(TypedDict, total=False):
    """The parameters of all estimators, for type checkers."""

    epsilon: Number
    clip: float | str | None
    delta: Number | None
    mechanism: str | None
    neighbours: str
    centre: Centre
    scale: Scale
    scale_share: Number | None
    ledger: AnyLedgerAddress | None
    release: AnyPath | None
    budget_epsilon: Number | None
    budget_delta: Number | None
    budget: Budget | None
    accept_large_delta: bool
    grid_bits: int | None
    rows_at_most: int
    missing: str
    options: Mapping[str, object] | None
    name: str | None
    cluster: AnyCluster | None


class PrivateEstimator(BaseEstimator):  # type: ignore[misc] # no types
    """Base class of the estimators. Subclasses accept these parameters as ``**shared``.

    Parameters
    ----------
    epsilon : str, int, float or Decimal
        Privacy loss epsilon of the release: a number or decimal text with at most six decimals. Required.
    clip : float, "auto", "private" or "schema", default None
        Clip norm C, in the units of the rows after centring and scaling. Longer rows are clipped to this norm, and all
        fitted attributes describe the clipped rows. A :class:`dpdist.ClippedRowsWarning` is issued if the release shows
        that nearly all rows were clipped. Choose it from public knowledge and never from X, which would leak
        information. None: ``"auto"``, with a private scale and centre unless they are given. ``"auto"`` is 1.75 times
        the square root of d, for columns divided by a scale; with a private scale, d leaves out columns with nearly all
        values in one bin. ``"private"``: the release first chooses C from a private histogram of the row norms, after
        any private scaling. ``"schema"``: for rows that were ingested with a schema that bounds every column, the least
        C that clips none of them.
    delta : str, int, float or Decimal, default None
        Privacy loss delta, below 1, in the formats of ``epsilon``. None means pure differential privacy.
    mechanism : str, default None
        Name of the mechanism. None means ``gaussian`` with a delta and ``two-sided-wishart`` without.
    neighbours : {"replace-one", "add-remove"}, default "replace-one"
        ``"replace-one"``: neighbouring tables differ in one row, and the number of rows is public. ``"add-remove"``:
        one table has an extra row, and the number of rows is private.
    centre : str, path-like, sequence of float or mapping, default None
        ``"none"``: the second moment about zero. ``"private"``: mean and second moment are released together at no
        extra cost. ``"schema"``: the same for a rows.zarr with a schema, with categories and booleans about public
        middles. Otherwise a public centre: one number per column, a mapping with ``centre`` and ``scale``, or a
        ``.npy``, ``.npz`` or ``.json`` file with these. None: ``"private"`` if ``clip`` is None, ``"schema"`` for
        categories or booleans of a schema, and otherwise ``"none"``.
    scale : str, path-like or sequence of float, default "none"
        ``"private"``: the release first chooses a scale for each column from private histograms of all columns, and a
        centre from the same histograms unless a public one is given. Otherwise a public scale: one positive number per
        column, or a file as for ``centre``. ``clip`` is then in scaled units.
    scale_share : str, float or Decimal, default None
        Share of the mu² of the release spent on the private scale (share of epsilon if the mechanism has no mu).
        None: between .01 and .25, depending on n, epsilon and d.
    ledger : str or path-like, default None
        Location of the ledger of a rows.zarr, if it is not next to the table. Refused for rows in memory.
    release : str or path-like, default None
        Where to publish the release.zarr. None: next to a rows.zarr, named by the release id; rows in memory are not
        published.
    budget_epsilon, budget_delta : str, int, float or Decimal, default None
        For rows in memory: limit on the joint cost of this release and all earlier ones of this process that share a
        row with it. None: the cost of this release alone, so another release is refused. The limit also holds for fits
        chosen from earlier answers, provided all fits name the same limit; raising it after an answer does not bound
        that answer.
    budget : Budget, default None
        For rows in memory: a :class:`dpdist.Budget` to which this fit is charged, whatever its rows. It also decides
        whether rows released before may be released again, if they were charged to it. None: no shared budget.
    accept_large_delta : bool, default False
        Accept a delta of 1/n or more, which would permit publishing a random row unchanged. Such a delta is refused
        otherwise if n is public.
    grid_bits : int, default None
        The clip norm is ``2**grid_bits`` steps of the integer grid. None: enough bits to keep the rounding error below
        5 % of the noise.
    rows_at_most : int, default 10000000
        Public upper bound on n, used to choose the grid bits if n is private.
    missing : {"refuse", "centre"}, default "refuse"
        Treatment of NaN and infinity in rows in memory: refuse X, or replace each such cell by the centre of its
        column. ``"centre"`` needs ``scale="private"`` or a public centre. For a rows.zarr, the schema decides.
    options : mapping of str, default None
        Public parameters of the mechanism, by name.
    name : str, default None
        The id of the release, 1 to 64 letters, digits, hyphens or underscores. None: it follows from rows and
        parameters, so the same fit of the same rows returns the same release and is not charged. A name asks for
        another draw, which is charged.
    cluster : Cluster, dask.distributed.Client or cluster object, default None
        Where to compute. None: the path of a rows.zarr on this machine, as in :func:`dpdist.release_rows`; a Dask
        collection where Dask would compute it, such as on the current client, where its blocks are. Other rows in
        memory are summed in this process.
    """

    release_: Release
    fresh_: bool  # whether the release was drawn by this fit, or returned again; not public
    _centre: ClassVar[str | None] = None  # the default of ``centre``
    _layout: Sequence[tuple[str, Any]] = ()  # labels of the columns of a fitted xarray object

    def __init__(
        self,
        *,
        epsilon: Number,
        clip: float | str | None = None,
        delta: Number | None = None,
        mechanism: str | None = None,
        neighbours: str = "replace-one",
        centre: Centre | None = None,
        scale: Scale = "none",
        scale_share: Number | None = None,
        ledger: AnyLedgerAddress | None = None,
        release: AnyPath | None = None,
        budget_epsilon: Number | None = None,
        budget_delta: Number | None = None,
        budget: Budget | None = None,
        accept_large_delta: bool = False,
        grid_bits: int | None = None,
        rows_at_most: int = ROWS_AT_MOST,
        missing: str = "refuse",
        options: Mapping[str, object] | None = None,
        name: str | None = None,
        cluster: AnyCluster | None = None,
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
        self.name = name
        self.cluster = cluster

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())  # not the attributes themselves
        state.pop("fresh_", None)  # that the same rows were released before is not public, and a fitted estimator is
        if client_of(self.cluster) is not None:
            if "release_" not in state:
                raise UsageError(
                    "An estimator with a Dask client as cluster cannot be sent to another process. Pass "
                    "cluster=dpdist.Cluster('ADDRESS'), with the address of its scheduler."
                )
            state["cluster"] = _NOT_SAVED  # so that another fit goes to no other cluster unless it is named
        return state

    def __copy__(self) -> Any:
        copied = object.__new__(type(self))
        copied.__dict__.update(vars(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with the same client of Dask, which cannot be copied."""
        copied = object.__new__(type(self))
        memo |= {id(self): copied, id(self.cluster): self.cluster}
        copied.__dict__.update(deepcopy(vars(self), memo))
        return copied

    def __sklearn_clone__(self) -> Any:
        """Return a clone with the same client of Dask, which cannot be copied."""
        unconnected = copy(self)
        unconnected.cluster = None
        cloned = super(PrivateEstimator, unconnected).__sklearn_clone__()
        cloned.cluster = self.cluster
        return cloned

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = True
        return tags

    def _facts(self) -> dict[str, object]:
        """Return the facts shown in a notebook: the parameters and, once fitted, the release."""
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


def with_shared_parameters(kind: type[Estimator]) -> type[Estimator]:
    """Add the shared parameters to the signature and the docstring of an estimator class."""
    own_parameters = inspect.signature(kind.__init__).parameters.values()
    _, *shared = inspect.signature(PrivateEstimator.__init__).parameters.values()
    parameters = [
        *(parameter for parameter in own_parameters if parameter.kind is not parameter.VAR_KEYWORD),
        *(p.replace(default=kind._centre) if p.name == "centre" else p for p in shared),  # noqa: SLF001 - of this class
    ]
    kind.__init__.__signature__ = inspect.Signature(parameters, return_annotation="None")  # type: ignore[attr-defined]
    if kind.__doc__ and PrivateEstimator.__doc__:  # python -OO has none
        kind.__doc__ = _documented(inspect.cleandoc(kind.__doc__), inspect.cleandoc(PrivateEstimator.__doc__))
    return kind


def _documented(doc: str, of_base: str) -> str:
    """Return a docstring completed by the shared parameters that it does not describe itself."""
    documented = {name for head in re.findall(r"(?m)^(\w[\w, ]*) : ", doc) for name in head.split(", ")}
    entries = re.split(r"(?m)^(?=\w)", of_base.partition("----------\n")[2] + "\n")
    shared = (entry for entry in entries if not documented.issuperset(entry.partition(" :")[0].split(", ")))
    return doc.replace(_SHARED_ENTRIES, "".join(shared))
