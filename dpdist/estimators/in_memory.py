"""The exact sum over rows in memory, block by block. With one key it has the same integers as a pass over a rows.zarr.

Each part of the rows summed by one thread or task is dithered with its own key (:mod:`dpdist.core.moment.total`).

A block is a NumPy array, or a sparse matrix densified in batches. Besides the integer moment, the sum records what must
be checked before noise is drawn: whether all values are finite, fingerprints that recognise rows, and sums that detect
parameters computed from the data. All results are private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError
from dpdist.core.frames import sum_duplicates
from dpdist.core.ledger.in_memory import KEPT, Fingerprints
from dpdist.core.moment.gram import Arithmetic, gram_sum
from dpdist.core.moment.histograms import Counting, Counts
from dpdist.core.moment.total import block_rows, key_here, piece_rows
from dpdist.core.rows.bounding import COMPILED_VALUES, RowBound
from dpdist.core.rows.columns import DTYPES
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.triangle import Band, Triangle

Values = npt.NDArray[np.float64]
_NARROWEST = 24
"""Narrower rows are multiplied in float64: the integer code takes time to load."""
MISSING_CURE = (
    "Fill such values by a public rule, or pass missing='centre' (with scale='private' or a public centre) to replace "
    "such cells by the centre of their column."
)
_ALIKE = 1e-6
_ROUNDING = 1e-10
"""A mean this small relative to the root mean square indicates that the column mean was subtracted."""


@dataclass(frozen=True)
class ArraySum:
    """A sum over some rows of an array. Private."""

    values: Triangle  # packed ``sum z z^T``, int64, exact
    rows: int
    fingerprints: Fingerprints  # recognise the rows in the register
    finite: bool  # whether every value is a finite number
    reaching: int  # rows whose norm, after the public shift and scale, is the clip norm to six digits
    beyond: int  # rows with a larger norm
    sums: Values  # (d,): column sums of the input rows
    squares: Values  # (d,): column sums of squares

    def __sizeof__(self) -> int:
        # Dask's scheduler uses it to place additions and to watch the memory of workers
        return object.__sizeof__(self) + self.values.nbytes + self.fingerprints.nbytes

    @property
    def clipped_by_data(self) -> bool:
        """Whether only the longest row has the clip norm; many such rows indicate a public rule."""
        return self.reaching == 1 and not self.beyond

    @property
    def centred_by_data(self) -> bool:
        """Whether every nonzero column has mean zero, as after subtracting the column means."""
        used = self.squares > 0
        sums, squares = self.sums[used], self.squares[used]
        if not (used.any() and np.isfinite(squares).all()):
            return False
        return bool((np.abs(sums) <= _ROUNDING * np.sqrt(squares) * self.rows**0.5).all())


class RowSum:
    """Adds rows that come in blocks of any length."""

    def __init__(self, bound: RowBound, key: bytes, dither: DitherKey) -> None:
        self._bound = bound
        self._key = key
        self._dither = dither
        self._step = block_rows(2**62, bound)
        arithmetic = Arithmetic.FLOAT64 if bound.width < _NARROWEST else None
        self._gram = gram_sum(Band.whole(bound.width), bound.norm_bound, arithmetic, bound.largest)
        self._buffer = np.empty((0, bound.width))
        self._fingerprints = [Fingerprints.of(np.empty((0, bound.columns)), key)]
        self._pending = 0
        self._rows = 0
        self._finite = True
        self._reaching = self._beyond = 0
        self._sums = np.zeros(bound.columns)
        self._squares = np.zeros(bound.columns)

    def add(self, rows: Any) -> None:
        """Add a block, (r, d): a NumPy array of real numbers or a row-sliceable sparse matrix."""
        for start in range(0, rows.shape[0], self._step):
            self._add(dense(rows[start : start + self._step]))

    def _add(self, rows: npt.NDArray[np.generic]) -> None:
        count = rows.shape[0]
        if count > self._buffer.shape[0]:
            self._buffer = np.empty((count, self._bound.width))
        dithers = Dithers(self._dither, self._rows)
        self._rows += count
        compiled = self._rows * self._bound.columns >= COMPILED_VALUES
        self._gram.add(
            self._bound.apply(with_centre(rows, self._bound.centre), self._buffer, dithers, compiled=compiled)
        )
        values = rows.astype(np.float64)
        self._fingerprint(values)
        with np.errstate(all="ignore"):  # a warning of overflow would reveal something about the data
            self._finite &= bool(np.isfinite(values).all())
            self._sums += values.sum(axis=0)
            self._squares += np.einsum("ij,ij->j", values, values)
            self._bound.shifted(rows, values)
            norms = np.sqrt(np.einsum("ij,ij->i", values, values)) / self._bound.clip_norm
            self._reaching += int((np.abs(norms - 1) <= _ALIKE).sum())
            self._beyond += int((norms > 1 + _ALIKE).sum())

    def _fingerprint(self, values: Values) -> None:
        self._fingerprints.append(Fingerprints.of(values, self._key))
        self._pending += len(values)
        if self._pending >= KEPT:  # a union for every block would be slow
            self._fingerprints, self._pending = [Fingerprints.union(self._fingerprints)], 0

    def total(self) -> ArraySum:
        """Return the sum of everything added."""
        return ArraySum(
            values=self._gram.total(),
            rows=self._rows,
            fingerprints=Fingerprints.union(self._fingerprints),
            finite=self._finite,
            reaching=self._reaching,
            beyond=self._beyond,
            sums=self._sums,
            squares=self._squares,
        )


def with_centre(rows: npt.NDArray[np.generic], centre: Sequence[float] | Values | None) -> npt.NDArray[np.generic]:
    """Return rows with their centre, if it is known, in place of NaN and infinity."""
    finite = np.isfinite(rows)
    return rows if centre is None or finite.all() else np.where(finite, rows, centre)


def dense(rows: Any) -> npt.NDArray[np.generic]:
    """Return rows as a C-ordered NumPy array; types other than the stored ones become float64."""
    if isinstance(rows, np.ma.MaskedArray):
        raise DataError("A block of X is a masked array. Fill masked entries by a public rule (X.filled).")
    array = np.ascontiguousarray(sum_duplicates(rows).toarray() if hasattr(rows, "tocsr") else rows)
    usual = array.dtype.name in DTYPES and array.dtype.isnative
    return array if usual else array.astype(np.float64)


@dataclass(frozen=True)
class BlockSum:
    """Sums one block, (r, d), on a worker."""

    # Rows are numbered from 0 in each block. The dither key is drawn on the worker and stays there. Each block enters
    # the total once, in one version, so no other sum contains the dithers of its rows.

    bound: RowBound
    key: bytes = field(repr=False)  # Dask logs the arguments of a task that fails

    def __call__(self, rows: Any) -> ArraySum:
        """Sum the rows of a block."""
        row_sum = RowSum(self.bound, self.key, key_here())
        row_sum.add(rows)
        return row_sum.total()


def count_block(rows: Any, counting: Counting) -> Counts:
    """Count the rows of a block, (r, d)."""
    counts = np.zeros(counting.bins, dtype=np.int64)
    step = piece_rows(counting.columns)
    for start in range(0, rows.shape[0], step):
        counting.count(with_centre(dense(rows[start : start + step]), counting.centre), counts)
    return counts


def add_sums(total: ArraySum, part: ArraySum) -> ArraySum:
    """Add a sum over other rows to a total in place; use only the result afterwards."""
    values = total.values if total.values.flags.writeable else total.values.copy()  # read-only from another process
    values += part.values
    with np.errstate(all="ignore"):  # as in one sum
        sums, squares = total.sums + part.sums, total.squares + part.squares
    return ArraySum(
        values=values,
        rows=total.rows + part.rows,
        fingerprints=Fingerprints.union([total.fingerprints, part.fingerprints]),
        finite=total.finite and part.finite,
        reaching=total.reaching + part.reaching,
        beyond=total.beyond + part.beyond,
        sums=sums,
        squares=squares,
    )


def require_sound(total: ArraySum, bound: RowBound, *, missing: bool = False) -> None:
    """Check a total before anything is charged for it."""
    if not total.rows:
        raise DataError("X has no rows, so there is nothing to release.")
    if not total.finite and not missing:
        raise DataError(f"X contains NaN or infinity. {MISSING_CURE} Nothing was released or charged.")
    if total.rows > bound.total_rows:
        raise DataError(
            f"X has more rows than 64-bit integers can sum at {bound.grid_bits} grid bits. Pass a smaller grid_bits."
        )
