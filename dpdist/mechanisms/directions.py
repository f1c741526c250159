"""Directional noise: along which public directions matrix-variate noise is spread, and how much along each.

A published condition on the noise bounds a norm of its precisions; an allocation divides that bound among the
directions (Chanyaswad, Dytso, Poor & Mittal 2018, section 5). Directions, spectra and covariances are public
parameters: computed from the rows they would leak, whatever the noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.errors import UsageError
from dpdist.mechanisms.info import Kind, Option
from dpdist.naming import parameter

Matrix = npt.NDArray[np.float64]
OptionMatrix = tuple[tuple[float, ...], ...]
"""A matrix as an option gives it; empty where it is left out."""

ALLOCATION_OPTIONS = (
    Option(
        "allocation",
        Kind.WORD,
        "how the noise is spread: evenly, less on some directions, or by water-filling",
        "uniform",
        ("uniform", "binary", "optimal"),
    ),
    Option("informative", Kind.INTEGER, "for binary: how many of the first directions get less noise", 1),
    Option("share", Kind.NUMBER, "for binary: share of the precision they get together, between 0 and 1", 0.75),
    Option(
        "directions",
        Kind.MATRIX,
        "d x d, a public orthonormal direction per row, or a release.zarr: its eigenvectors; left out: the columns",
        (),
    ),
    Option("spectrum", Kind.NUMBERS, "for optimal: d public variances of the moment along them, in units of C⁴", ()),
)


@dataclass(frozen=True)
class Allocation:
    """How precision is divided among the directions; see :func:`precisions`."""

    kind: str = "uniform"
    informative: int = 1
    share: float = 0.75
    spectrum: tuple[float, ...] = ()


_SHARPNESS = 1e-6
"""How far directions may be from orthonormal, and a covariance from symmetric, before they are mended."""
_CONDITION = 1e9
"""Largest ratio of the eigenvalues of a covariance that float64 tells from a singular one with room to spare."""
_LEAST = 2.0**-20
"""Least precision under water-filling, relative to the greatest: noise must be finite where no water stands."""


def orthonormal(rows: OptionMatrix, size: int) -> Matrix | None:
    """Return the directions as orthonormal columns, (d, d), or None for the coordinate axes.

    What is off by rounding is replaced by the nearest orthogonal matrix, orthonormal to float64.
    """
    if not rows:
        return None
    matrix = np.array(rows)
    if matrix.shape != (size, size) or np.abs(matrix @ matrix.T - np.eye(size)).max() > _SHARPNESS:
        raise UsageError(
            f"The directions must be {size} orthonormal rows of {size} numbers (the constant of "
            f"{parameter('centre', 'private')} counts as a column): orthonormalise them, or leave the option out for "
            "the columns.",
            parameter="options.directions",
        )
    left, _, right = np.linalg.svd(matrix)
    mended: Matrix = (left @ right).T
    return mended


def covariance_spectrum(rows: OptionMatrix, size: int) -> tuple[Matrix, Matrix | None]:
    """Return eigenvalues (d,), ascending, and eigenvectors (d, d) of a public covariance, or of the identity."""
    if not rows:
        return np.ones(size), None
    matrix = np.array(rows)
    where = f"({parameter('options.sigma')})"
    if matrix.shape != (size, size):
        raise UsageError(
            f"The covariance must be {size} x {size}, the constant of {parameter('centre', 'private')} included "
            f"{where}."
        )
    if np.abs(matrix - matrix.T).max() > _SHARPNESS * np.abs(matrix).max():
        raise UsageError(f"The covariance must be symmetric: pass (Sigma + Sigma^T) / 2 {where}.")
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if not values[0] * _CONDITION > values[-1]:
        raise UsageError(
            f"The covariance must be positive definite, its largest eigenvalue at most 1e9 times its smallest: add a "
            f"multiple of the identity {where}."
        )
    return values, vectors


def precisions(total: float, power: int, size: int, allocation: Allocation) -> Matrix:
    """Divide precision among the directions: ``x_i > 0`` with ``sum x_i^power = total``.

    * uniform: all equal.
    * binary: the first k get the share tau of the total together, equally, the others the rest.
    * optimal: ``x_i = max(level - 1/v_i, 0)``, v the spectrum. Of all positive definite noise precisions K^{-1} with
      one trace it maximises ``det(I + V K^{-1})``, the power-to-noise ratio of the paper (KKT conditions; with every
      x_i positive the level is ``(trace + sum 1/v_i) / d``). The level is chosen to spend the total; an x_i of
      0 would be infinite noise and becomes 2^-20 of the greatest.
    """
    spectrum = np.array(allocation.spectrum)
    if allocation.kind == "optimal":
        if spectrum.size != size or not spectrum.min() > 0:
            raise UsageError(
                f"allocation=optimal needs {size} positive public variances.", parameter="options.spectrum"
            )
        return _water_filling(total, power, spectrum)
    if spectrum.size:
        raise UsageError("Only allocation=optimal reads a spectrum: leave it out.", parameter="options.spectrum")
    shares = np.full(size, 1 / size)
    if allocation.kind == "binary":
        count, share = allocation.informative, allocation.share
        if not 1 <= count < size:
            raise UsageError(
                f"Between 1 and {size - 1} of {size} directions can be informative.", parameter="options.informative"
            )
        if not 0 < share < 1:
            raise UsageError(
                "The share of the informative directions lies strictly between 0 and 1.", parameter="options.share"
            )
        shares[:count] = share / count
        shares[count:] = (1 - share) / (size - count)
    divided: Matrix = (total * shares) ** (1 / power)
    return divided


def _water_filling(total: float, power: int, spectrum: Matrix) -> Matrix:
    gap = 1 / spectrum - 1 / spectrum.max()  # how far the bed lies above its deepest point

    def filled(depth: float) -> Matrix:
        return np.asarray(np.maximum(depth - gap, _LEAST * depth))

    low, high = 0.0, total ** (1 / power)  # there the deepest point alone takes it all
    while True:
        depth = (low + high) / 2
        if not low < depth < high:
            return filled(low)  # spends at most the total
        low, high = (low, depth) if np.sum(filled(depth) ** power) > total else (depth, high)
