"""What a mechanism of the package answers about a public second moment, and how well its components do.

Mechanisms are taken as a release would take them; one that is not private as claimed is taken for reproduction. Nothing
is charged to a ledger, because whoever scores an answer against the exact moment must not do so with private data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import Neighbours, PrivacyLoss, RefusedError, ReleaseRequest, RowBound, UsageError
from dpdist.answers.components import captured_variance
from dpdist.answers.eigen import top_eigenpairs
from dpdist.core.mechanisms.base import Answer
from dpdist.core.mechanisms.info import DeltaUse
from dpdist.core.mechanisms.registry import mechanism_named
from dpdist.core.moment.gram import gram_sum
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.triangle import Band, Triangle, unpacked

Floats = npt.NDArray[np.float64]
NOTICE = "evaluation on public data: not private"


@dataclass(frozen=True)
class PublicMoment:
    """The exact second moment of public rows.

    Attributes
    ----------
    triangle
        Packed, in lattice units.
    bound
        How rows were bounded.
    rows
        n.
    """

    triangle: Triangle
    bound: RowBound
    rows: int

    @property
    def matrix(self) -> Floats:
        """The sum of x x^T in units of the rows, (d, d)."""
        return _in_row_units(self.triangle, self.bound)


def _in_row_units(triangle: Triangle, bound: RowBound) -> Floats:
    return unpacked(triangle, bound.width).astype(np.float64) * bound.unit**2


def moment_of(rows: Floats, clip_norm: float = 1.0, grid_bits: int = 16) -> PublicMoment:
    """Return the exact second moment of rows that fit into memory, bounded by :class:`dpdist.RowBound`.

    They are rounded to the grid with a public key: public rows need no secret one, and every answer about them is one
    about the same integers.

    Parameters
    ----------
    rows
        (n, d), finite.
    clip_norm
        Rows of a larger norm are scaled down to it.
    grid_bits
        The clip norm is ``2**grid_bits`` grid steps.
    """
    bound = RowBound(rows.shape[1], clip_norm, grid_bits)
    sums = gram_sum(Band.whole(bound.width), bound.norm_bound)
    step = min(bound.exact_rows, 4096)
    buffer = np.empty((step, bound.width))
    for start in range(0, len(rows), step):
        sums.add(bound.apply(rows[start : start + step], buffer, Dithers(DitherKey(bytes(32)), start)))
    return PublicMoment(sums.total(), bound, len(rows))


def request_for(
    mechanism: str,
    loss: tuple[str, str],
    bound: RowBound,
    options: Mapping[str, Any],
    neighbours: Neighbours = Neighbours.REPLACE_ONE,
) -> ReleaseRequest:
    """Return the request for an answer, as a reproduction where the mechanism is not private as claimed.

    Parameters
    ----------
    mechanism
        Its name.
    loss
        Epsilon and delta as decimal text; delta is left out where the mechanism takes none.
    bound
        How the rows were bounded; neither shifted nor scaled.
    options
        Values by name; those the mechanism does not know are left out.
    neighbours
        The neighbouring relation.

    Raises
    ------
    UsageError
        If the mechanism, its loss and its options do not go together.
    """
    info = mechanism_named(mechanism).info
    epsilon, delta = loss
    known = {option.name for option in info.options}
    common: dict[str, Any] = {
        "mechanism": mechanism,
        "loss": PrivacyLoss.parse(epsilon, "0" if info.delta is DeltaUse.NONE else delta),
        "clip_norm": bound.clip_norm,
        "grid_bits": bound.grid_bits,
        "neighbours": neighbours,
        "options": {name: value for name, value in options.items() if name in known},
    }
    request = ReleaseRequest(**common)
    try:
        planned(request, Dimensions(bound.columns))
    except RefusedError:
        request = ReleaseRequest(**common, for_reproduction=True)
    return request


def answer(request: ReleaseRequest, moment: PublicMoment) -> Answer:
    """Draw one answer, in lattice units: a packed triangle, or (k, d) components."""
    width = moment.bound.width
    return planned(request, Dimensions(moment.bound.columns)).moment.answer(
        MomentMatrix(moment.triangle, width), SYSTEM
    )


def private_moment(request: ReleaseRequest, moment: PublicMoment) -> Floats:
    """Draw one private second moment, in units of the rows, (d, d) float64.

    Raises
    ------
    UsageError
        If the mechanism answers with components.
    """
    found = answer(request, moment)
    if found.ndim != 1:
        raise UsageError(f"{request.mechanism} releases components, not a second moment.")
    return _in_row_units(found.astype(np.int64, copy=False), moment.bound)


def private_components(request: ReleaseRequest, moment: PublicMoment, count: int) -> Floats:
    """Draw one answer and return its top components, (count, d) orthonormal rows."""
    found = answer(request, moment)
    if found.ndim == 1:
        noisy = unpacked(found.astype(np.int64, copy=False), moment.bound.width).astype(np.float64)
        return top_eigenpairs(noisy, count)[1]
    return found.astype(np.float64, copy=False)[:count]


def low_rank(matrix: Floats, components: int) -> Floats:
    """Return the matrix of rank k with the k largest eigenvalues and their eigenvectors, (d, d)."""
    values, vectors = top_eigenpairs(matrix, components)
    best: Floats = (vectors.T * values) @ vectors
    return best


def captured_energy(components: Floats, moment: PublicMoment) -> float:
    """Return ``tr(V A V^T)`` of the exact moment in per cent of what the best components of that number capture."""
    return 100 * captured_variance(components, moment.matrix)
