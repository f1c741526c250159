"""The format release.zarr: public, written once, and verified when it is read.

Arrays: ``second_moment`` (d x d float64, the unnormalised sum in the units of the bounded rows) and ``lattice`` (the
released integers; private centring adds a row and a column). With private centring also ``row_sum`` (d,). A mechanism
that releases a subspace stores one array instead, ``components`` (k x d float64, orthonormal rows). The attributes
``dpdist`` contain claim and guarantee, how rows were bounded, distribution and scale of the noise, and the head of the
ledger's hash chain before the draw, which detects a ledger that has lost the release. The number of rows is stored only
under replace-one; otherwise a public upper bound, if rows were rounded without bias. ``extents`` identify the rows by
public names: periods, and a digest of a random identity. A sum of releases has the same format, and lists its parts.
There is no seed, no hash of the data, no count of clipped rows and no time.

Rounding without bias adds n/4 squared steps to each diagonal entry (:mod:`dpdist.core.rows.dither`). Both stored
matrices include them; :attr:`Release.second_moment` subtracts them if n is public or released. A release with
``weights`` has only ``lattice``: it is not a second moment, but part of a series (:mod:`dpdist.core.release.series`).

Matrices are stored in square tiles (:mod:`dpdist.core.release.archive`), and a large one is read tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import to_builtins

from dpdist.core._version import __version__
from dpdist.core.errors import UsageError
from dpdist.core.html import short, table
from dpdist.core.mechanisms.columns import BEYOND
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.naming import step
from dpdist.core.privacy.checks import cautions
from dpdist.core.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss
from dpdist.core.release.attributes import Attributes, Coverage, SessionFacts, Stage
from dpdist.core.release.questions import Questions
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Unit
from dpdist.core.storage.arrays import Array
from dpdist.core.text import as_json, exactly
from dpdist.core.triangle import TILE

FORMAT = "dpdist-release/1"
_AS_STORED = (
    "release_id", "mechanism", "neighbours", "rows_at_most", "ledger_head", "extents", "releases", "condition", "stage",
    "weights", "window", "session",
)  # fmt: skip
"""Fields with the same type in memory and in the attributes."""

Matrix = npt.NDArray[np.float64]


_ALWAYS = {"claim", "guarantee", "n", "ledger_head", "unit"}
"""Attributes that are stored even if they are null."""


def guarantee_words(
    guarantee: Guarantee | None, neighbours: Neighbours, unit: Unit | None, condition: str | None
) -> str:
    """Return a guarantee, if any, as part of a sentence."""
    text = f"{guarantee.loss if guarantee else 'nothing proved'} under {neighbours}"
    if unit is not None:
        text += f" of the rows of one {unit.column}, {unit.most}"
    return text if condition is None else f"{text}, if {condition}"


@dataclass(frozen=True, kw_only=True)
class Heading:
    """Public metadata of a release; :class:`Release` describes each field."""

    release_id: str
    mechanism: str
    names: tuple[str, ...]
    neighbours: Neighbours
    claim: PrivacyLoss | None
    guarantee: Guarantee | None
    bound: RowBound
    noise: Noise
    rows: int | None
    rows_at_most: int | None = None
    ledger_head: str | None = None
    extents: tuple[Coverage, ...] = ()
    releases: tuple[str, ...] = ()
    unit: Unit | None = None
    condition: str | None = None
    schema: Schema | None = None
    stage: Stage | None = None
    weights: tuple[int, ...] = ()
    window: int | None = None
    session: SessionFacts | None = None

    @property
    def private_as_claimed(self) -> bool:
        """Whether the proved guarantee is at least as strong as the claim."""
        return self.guarantee is not None and self.claim is not None and self.guarantee.loss.within(self.claim)

    @property
    def status(self) -> str:
        """``private``, or ``not private as claimed``."""
        return "private" if self.private_as_claimed else "not private as claimed"

    @property
    def cautions(self) -> tuple[str, ...]:
        """Warnings about a weak guarantee, in a sentence or two each; usually empty."""
        return () if self.guarantee is None else cautions(self.guarantee.loss, self.neighbours, self.rows)

    @property
    def blindly_scaled(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Columns whose variance a private choice of the scale did not see, and columns beyond its grid."""
        beyond = tuple(name for name, scale in zip(self.names, self.bound.scale or (), strict=False) if scale == BEYOND)
        bins = () if self.stage is None else self.stage.chosen.get("bins", ())
        counts = dict(zip(self.names, () if isinstance(bins, float) else bins, strict=False))
        return tuple(name for name, count in counts.items() if count < 2 and name not in beyond), beyond

    @property
    def corner(self) -> int | None:
        """The exact last entry of an augmented matrix, ``n constant²``; None if it is noisy."""
        is_public = self.bound.constant and self.exact_count is not None and not self.weights
        return (self.exact_count or 0) * self.bound.constant**2 if is_public else None

    @property
    def exact_count(self) -> int | None:
        """The sum of the weights of all rows, if it is public: n, unless busy privacy units weigh less."""
        return None if self.bound.unit_norm else self.rows

    @property
    def row_sum_step(self) -> float:
        """A lattice unit of the sum of the rows, in units of the bounded rows."""
        return self.bound.unit / self.bound.constant

    def guarantee_words(self) -> str:
        """Return the guarantee, if any, as part of a sentence."""
        return guarantee_words(self.guarantee, self.neighbours, self.unit, self.condition)

    def attributes(self) -> dict[str, object]:
        """Return the JSON attributes of release.zarr."""
        values = {
            "format": FORMAT,
            "release_id": self.release_id,
            "mechanism": self.mechanism,
            "status": self.status,
            "claim": self.claim,
            "guarantee": self.guarantee,
            "neighbours": self.neighbours,
            "bound": self.bound,
            "noise": self.noise,
            "columns": self.names,
            "n": self.rows,
            "rows_at_most": self.rows_at_most,
            "ledger_head": self.ledger_head,
            "extents": self.extents,
            "releases": self.releases or None,
            "unit": self.unit,
            "condition": self.condition,
            "schema": self.schema,
            "stage": None if self.stage is None else to_builtins(self.stage),
            "weights": self.weights or None,
            "window": self.window,
            "session": None if self.session is None else to_builtins(self.session),
            "library": f"dpdist {__version__}",
        }
        return {name: as_json(value) for name, value in values.items() if value is not None or name in _ALWAYS}


@dataclass(frozen=True, kw_only=True)
class Release(Heading, Questions):
    """A private second moment, or subspace, and all that is publicly known about it.

    :func:`dpdist.open_release` and the estimators make it; everything in it is public.

    Attributes
    ----------
    second_moment : ndarray
        ``sum x x^T`` plus noise, (d, d) float64, symmetric, in squared units of the bounded rows, less
        ``rounding_diagonal``. Computed on access.
    row_sum : ndarray or None
        ``sum x`` plus noise, (d,) float64, in units of the bounded rows; None without private centring.
    row_count : float or None
        Number of rows if n is public, its private estimate if the mean was released, else None.
    subspace : ndarray or None
        The released components, (k, d) float64, orthonormal rows; None if a second moment was released.
    status : str
        ``"private"``, or ``"not private as claimed"``.
    cautions : tuple of str
        Warnings about a weak guarantee; usually empty.
    release_id, mechanism : str
        Its id, and the name of its mechanism.
    names : tuple of str
        Column names, length d.
    neighbours : Neighbours
        The neighbouring relation.
    claim : PrivacyLoss or None
        The (epsilon, delta) that the mechanism's authors claim; None for a mechanism that is not private.
    guarantee : Guarantee or None
        The proved guarantee. Only a release for reproduction has a weaker one than claimed.
    bound : RowBound
        How rows were bounded.
    noise : Noise
        Distribution of the noise, in lattice units of ``bound.unit**2``.
    rows : int or None
        n under replace-one, None under add-remove.
    rows_at_most : int or None
        A public upper bound on n, if n is private and a bound is known.
    ledger_head : str or None
        Head of the ledger's journal before the noise was drawn, 64 hexadecimal digits. None for a release for
        reproduction or in memory, and for a sum of releases.
    extents : tuple of Coverage
        The rows of the release, as disjoint extents.
    releases : tuple of str
        Ids of the summed releases; empty for a single release.
    unit : Unit or None
        Privacy unit whose rows change together between neighbours, and their maximum number; None: one row.
    condition : str or None
        The statements about a ledger's past, and about the sites of a session, on which the guarantee depends; None:
        it is unconditional.
    schema : Schema or None
        Schema that turned the columns of the source into numbers; None: they were numbers.
    stage : Stage or None
        Stages that were drawn first under the same id (``mechanism``, ``guarantee``, ``chosen`` and ``answer``); None
        without stages. The guarantee of the release includes them.
    weights : tuple of int
        Multiplicity of the rows of each period of its extent; empty: every row counts once. A release with weights is
        not a second moment.
    window : int or None
        Number of last periods of its extent that it sums up, while its guarantee covers all periods; None: all.
    session : SessionFacts or None
        The session of several sites that it is the sum of (``id``, ``sites`` and ``colluding``); None: it is of one.
    answer : ndarray or Array
        The released integers, (w, w) int64, w = d or d + 1; or the released subspace, (k, d) float64. A large array
        stays on the disk and is read in parts.

    See Also
    --------
    open_release : Reads a release.
    PrivatePCA.from_release, PrivateCovariance.from_release : Compute answers from it, at no cost.

    Examples
    --------
    >>> import numpy as np
    >>> import dpdist
    >>> rows = np.random.default_rng(4).normal(size=(400, 4))
    >>> release = dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=4).fit(rows).release_
    >>> release.second_moment.shape, release.rows, release.status
    ((4, 4), 400, 'private')
    """

    answer: npt.NDArray[np.int64] | Matrix | Array

    def __repr__(self) -> str:
        d, proved = self.bound.columns, "not private as claimed"
        if self.guarantee is not None and self.private_as_claimed:
            loss = self.guarantee.loss
            proved = f"epsilon={loss.epsilon:.12g}, delta={loss.delta:.12g}"
        return f"Release({short(self.release_id)}, {self.mechanism}, d={d}, {proved})"

    def _repr_html_(self) -> str:
        return table(
            "Release",
            {
                "release": self.release_id,
                "status": self.status,
                "guarantee": self.guarantee_words(),
                "mechanism": self.mechanism,
                "columns": self.bound.columns,
                "rows": self.rows,
                "clip norm": exactly(self.bound.clip_norm),
                "cautions": " ".join(self.cautions) or None,
            },
        )

    @property
    def in_memory(self) -> bool:
        """Whether the numbers are in memory rather than on the disk."""
        return isinstance(self.answer, np.ndarray)

    @property
    def subspace(self) -> Matrix | None:
        """The released components, (k, d) float64, orthonormal rows; None if a second moment was released."""
        return None if np.issubdtype(self.answer.dtype, np.integer) else np.asarray(self.answer[:], dtype=np.float64)

    def _require_matrix(self) -> None:
        if not np.issubdtype(self.answer.dtype, np.integer):
            raise UsageError(
                f"{self.mechanism} released components, not a second moment. Release with a mechanism that adds noise "
                f"to the moment: {step('mechanisms')} lists them."
            )

    @property
    def lattice(self) -> npt.NDArray[np.int64]:
        """The released integers, (w, w) int64; UsageError if a subspace was released."""
        self._require_matrix()
        return np.asarray(self.answer[:], dtype=np.int64)

    def require_moment(self) -> None:
        """Refuse a release that is not a second moment: components, or a weighted sum of periods."""
        self._require_matrix()
        if self.weights:
            raise UsageError(
                f"{self.release_id} is one release of a series, a weighted sum of periods, and not a second moment. "
                "Use the total of the series instead, in the folder total next to it."
            )

    def _integers(self, rows: slice, columns: slice) -> npt.NDArray[np.int64]:
        self.require_moment()
        return np.asarray(self.answer[rows, columns], dtype=np.int64)

    @property
    def rounding_diagonal(self) -> float:
        """Contribution of rounding to diagonal entries, ``n/4`` steps², in squared units of the rows; 0 if unknown."""
        rows = self.row_count if self.rows is None else self.rows  # that were rounded, whatever their weight
        return 0.0 if rows is None else rows / 4 * self.bound.unit**2

    @property
    def second_moment(self) -> Matrix:
        """``sum x x^T`` plus noise, (d, d) float64, in squared units of the bounded rows, in memory."""
        return self.moment_rows(0, self.bound.columns)

    def moment_rows(self, start: int, stop: int) -> Matrix:
        """Return some rows of the second moment, (stop - start, d) float64."""
        d = self.bound.columns
        rows: Matrix = self._integers(slice(start, min(stop, d)), slice(d)).astype(np.float64)
        rows *= self.bound.unit**2
        indices = np.arange(len(rows))
        rows[indices, start + indices] -= self.rounding_diagonal
        return rows

    @property
    def moment_diagonal(self) -> Matrix:
        """The diagonal of the second moment, (d,) float64; reads square tiles along the diagonal only."""
        d, parts = self.bound.columns, []
        for start in range(0, d, TILE):
            tile = slice(start, min(start + TILE, d))
            parts.append(np.diagonal(self._integers(tile, tile)))
        diagonal: Matrix = np.concatenate(parts).astype(np.float64)
        diagonal *= self.bound.unit * self.bound.unit
        return diagonal - self.rounding_diagonal

    @property
    def row_sum(self) -> Matrix | None:
        """``sum x`` plus noise, (d,) float64, in units of the bounded rows; None without private centring."""
        if not self.bound.constant:
            return None
        d = self.bound.columns
        return self._integers(slice(d), slice(d, None))[:, 0].astype(np.float64) * self.row_sum_step

    @property
    def row_count(self) -> float | None:
        """Sum of the weights of the rows: n if it is public, its private estimate if the mean was released, else None.

        Rows weigh 1, and those of busy privacy units less if all rows of a unit are kept: see
        :mod:`dpdist.core.rows.unit_moment`.
        """
        if self.exact_count is not None:
            return float(self.exact_count)
        if not self.bound.constant:
            return None
        d = self.bound.columns
        corner = float(self._integers(slice(d, None), slice(d, None))[0, 0])
        count = (corner - self.noise.mean_diagonal) / self.bound.constant**2
        return count if self.rows is None else min(count, float(self.rows))  # no row weighs more than 1


def release_of(attributes: Attributes, answer: npt.NDArray[np.int64] | Matrix | Array) -> Release:
    """Return a release from its stored attributes and its answer."""
    return Release(
        names=attributes.columns,
        claim=None if attributes.claim is None else PrivacyLoss.from_json(attributes.claim),
        guarantee=None if attributes.guarantee is None else Guarantee.from_json(attributes.guarantee),
        bound=RowBound.from_json(attributes.bound),
        noise=Noise.from_json(attributes.noise),
        rows=attributes.n,
        answer=answer,
        unit=None if attributes.unit is None else attributes.unit.unit,
        schema=None if attributes.schema is None else Schema.from_json(attributes.schema),
        **{name: getattr(attributes, name) for name in _AS_STORED},
    )
