"""Components of a matrix too large for one process: Lanczos from products, each computed row by row of tiles.

A product with the matrix is cut where its tiles are, not by the number of workers, so the same release gives the same
components to the bit wherever it is computed on one kind of processor. A release is public: workers may keep rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr
from scipy.sparse.linalg import LinearOperator, eigsh

from dpdist import triangle

Matrix = npt.NDArray[np.float64]
Piece = tuple[int, Matrix]
"""Number of the first row, and the rows of a product."""


@dataclass(frozen=True)
class ProductTask:
    """Some rows of a released second moment, and what they are multiplied with; all of it public.

    Parameters
    ----------
    release
        The release.zarr.
    rows
        Rows that begin where a tile does.
    vectors
        (d, k) float64.
    keep
        Whether the process keeps the rows in memory for the next product.
    """

    release: Path
    rows: range
    vectors: Matrix
    keep: bool


def tile_rows(size: int, count: int) -> list[range]:
    """Cut the rows of a (size, size) matrix into at most so many runs of whole tiles, about equally long.

    Examples
    --------
    >>> tile_rows(2500, 2)
    [range(0, 1024), range(1024, 2500)]
    """
    tiles = -(-size // triangle.TILE)
    ends = [min(size, triangle.TILE * (tiles * (i + 1) // count)) for i in range(count)]
    return [range(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True) if a < b]


def rows_product(task: ProductTask) -> tuple[Piece, ...]:
    """Multiply rows of a second moment, one row of tiles after the other."""
    read = _kept if task.keep else _read
    starts = range(task.rows.start, task.rows.stop, triangle.TILE)
    return tuple((i, read(task.release, i, min(i + triangle.TILE, task.rows.stop)) @ task.vectors) for i in starts)


def joined(parts: Sequence[tuple[Piece, ...]]) -> tuple[Piece, ...]:
    """Put pieces of a product together, in any order."""
    return tuple(piece for part in parts for piece in part)


def stacked(pieces: tuple[Piece, ...]) -> Matrix:
    """Return the product of which these are the pieces."""
    return np.concatenate([rows for _, rows in sorted(pieces, key=lambda piece: piece[0])])


def _read(release: Path, start: int, stop: int) -> Matrix:
    array = zarr.open_array(release / "second_moment", mode="r", zarr_format=3)
    return np.asarray(array[start:stop], dtype=np.float64)


_kept = lru_cache(maxsize=1024)(_read)


def top_eigenpairs_of(
    product: Callable[[Matrix], Matrix], size: int, count: int, tolerance: float = 0.0
) -> tuple[Matrix, Matrix]:
    """Return the eigenpairs of largest eigenvalue of a symmetric matrix that is only multiplied.

    The start is fixed, so that the same release gives the same components, and has no pattern: one orthogonal to an
    eigenvector (the constant one, where columns sum to zero) would miss it.

    Parameters
    ----------
    product
        Takes (d, k) vectors and returns the matrix times them.
    size, count
        d and k, k < d.
    tolerance
        Largest ``|A v - lambda v| / |lambda|`` of a pair: an eigenvalue of the matrix is as near. 0 is full precision.

    Returns
    -------
    eigenvalues
        (k,), in no order.
    columns
        (d, k), orthonormal columns.

    Raises
    ------
    ArpackError
        If it does not converge.
    """

    def times(vector: Matrix) -> Matrix:
        return product(vector.reshape(size, -1)).reshape(vector.shape)

    operator = LinearOperator((size, size), matvec=times, matmat=times, dtype=np.float64)
    start = np.modf(np.arange(1, size + 1) * 0.6180339887498949)[0] - 0.5  # Weyl's sequence
    values, columns = eigsh(operator, k=count, which="LA", v0=start, tol=tolerance)
    return values, columns
