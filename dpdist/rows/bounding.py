"""Bounds rows one by one: public affine map, clip to norm C, integer grid, verification.

Each row x is mapped independently to an integer vector z with ``sum(z**2) <= 4**b`` (b = grid bits; the clip norm C is
``2**b`` grid steps). Privacy allows any map of single rows; only the *integer* norm bound matters. It is verified on
the integers that are summed, so no float error in the clip can weaken a guarantee.

The map gives the same integers on every processor and for every block size. Up to the truncation it is elementwise
IEEE arithmetic with public constants. The squared norm is then a sum of integers. If its float64 sum is below 2^53,
every partial sum was too, so it is exact in any order; if it is not below 2^53, it is not in any other order either.
So the float64 sum that finds a row within the bound *is* its verified integer norm. Only rows above the bound are
scaled, by a factor computed from that exact integer with one correctly rounded square root and one division, and the
result is verified again.

The number of clipped rows and all norms are private: they are neither returned nor stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError, UsageError
from dpdist.rows.dither import Affine, Dithering, Dithers, shorten

Block = npt.NDArray[np.float64]
_EXACT = 2.0**53
COMPILED_VALUES = 1 << 26
"""Table size from which numba saves more time than its import takes: NumPy needs half a second for so large a table."""


@cache
def compiled_kernel() -> Callable[..., int] | None:
    """Return the compiled kernel, which changes no bit; None if numba refuses the installed NumPy."""
    try:
        from dpdist.rows.kernel import bound_rows  # noqa: PLC0415 - numba is slow to import
    except ImportError:
        return None
    kernel: Callable[..., int] = bound_rows
    return kernel


class BoundJson(TypedDict):
    """A :class:`RowBound` as JSON values."""

    columns: int
    clip_norm: float
    grid_bits: int
    centre: list[float] | None
    scale: list[float] | None
    constant: int
    rule: NotRequired[int]


TRUNCATED, DITHERED = 1, 2


@dataclass(frozen=True)
class RowBound:
    """Public parameters that bound every row before it is summed.

    A row x becomes ``(x - centre) / scale``, is clipped to norm ``shortened_norm``, and is rounded to a grid of
    integers. Its norm is then at most C.

    Parameters
    ----------
    columns : int
        Number of columns d of the table.
    clip_norm : float
        Clip norm C > 0, in the units of the shifted and scaled rows. It is public and never computed from the data.
    grid_bits : int, default 16
        b, between 2 and 24: the clip norm is ``2**b`` grid steps.
    centre : tuple of float, default None
        Public shift, one number per column. None: no shift.
    scale : tuple of float, default None
        Public divisor, one positive number per column. None: no divisor.
    constant : int, default 0
        Constant appended to every row, in grid steps, for private centring. At most ``2**b``, where the sensitivity
        formulas are tight. 0: none.
    rule : int, default 1
        Rounding rule: 1 truncates towards zero, 2 rounds without bias (:mod:`dpdist.rows.dither`).

    Raises
    ------
    DataError
        If the clip norm is out of range.
    UsageError
        If another parameter is out of range, or the norm of a row of this width exceeds the integer arithmetic.

    See Also
    --------
    ReleaseRequest : Describes a whole release.
    Release : Contains the bound of its rows.

    Examples
    --------
    >>> import dpdist
    >>> bound = dpdist.RowBound(columns=784, clip_norm=2500.0)
    >>> bound.unit, bound.norm_bound  # size of a grid step; largest squared norm of an integer row
    (0.03814697265625, 4294967296)
    """

    columns: int
    clip_norm: float
    grid_bits: int = 16
    centre: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    constant: int = 0
    rule: int = TRUNCATED

    def __post_init__(self) -> None:
        if self.columns < 1:
            raise UsageError("A table has at least one column.", parameter="columns")
        if not (math.isfinite(self.clip_norm) and self.clip_norm > 0):
            raise DataError("The clip norm must be a positive finite number.", parameter="clip")
        if not 2.0**-500 < self.clip_norm < 2.0**500:
            raise DataError(
                "The square of the clip norm exceeds the range of float64: express the data in other units."
            )
        if not 2 <= self.grid_bits <= 24:
            raise UsageError("Grid bits must be between 2 and 24.", parameter="grid_bits")
        if self.columns * 4 ** (self.grid_bits + 1) >= 2**63:
            raise UsageError(
                f"{self.columns} columns at {self.grid_bits} grid bits exceed 64-bit integers: use fewer grid bits."
            )
        self._require_rule()
        if not 0 <= self.constant <= 2**self.grid_bits:
            raise UsageError("The constant column must be between 0 and the clip norm.")
        for name, vector in (("centre", self.centre), ("scale", self.scale)):
            if vector is not None:
                self._require_sound(name, vector)

    def _require_rule(self) -> None:
        if self.rule not in {TRUNCATED, DITHERED}:
            raise UsageError("This version of dpdist does not support the rounding rule of these rows: upgrade dpdist.")
        if self.rule == DITHERED:
            Dithering(self.columns, self.grid_bits)  # refuses a grid that is too coarse

    def _require_sound(self, name: str, vector: tuple[float, ...]) -> None:
        if len(vector) != self.columns:
            raise UsageError(f"The public {name} has {len(vector)} entries for {self.columns} columns.")
        if not all(math.isfinite(v) for v in vector):
            raise UsageError(f"The public {name} must be finite.")
        if name == "scale" and not all(v > 0 for v in vector):
            raise UsageError("The public scale must be positive in every column.")

    @property
    def width(self) -> int:
        """Number of entries of an integer row, including the constant."""
        return self.columns + (1 if self.constant else 0)

    @property
    def norm_bound(self) -> int:
        """Largest squared norm S of an integer row: ``4**b + constant**2``."""
        return int(4**self.grid_bits) + self.constant**2

    @property
    def largest(self) -> int:
        """Largest magnitude of an entry of an integer row; less than ``2**b`` with unbiased rounding."""
        return max(int(2**self.grid_bits) - (self.rule == DITHERED), self.constant)

    @property
    def unit(self) -> float:
        """One grid step in the units of the bounded rows: ``C / 2**b``."""
        return self.clip_norm / float(2**self.grid_bits)

    @property
    def _steps(self) -> float:
        return float(2**self.grid_bits) / self.clip_norm

    @property
    def shortened_norm(self) -> float:
        """Norm to which rows are clipped, in the units of the bounded rows.

        It is C with truncation, and slightly less with unbiased rounding, which makes rows longer.
        """
        if self.rule == TRUNCATED:
            return self.clip_norm
        return Dithering(self.columns, self.grid_bits).radius * self.unit

    @property
    def exact_rows(self) -> int:
        """Largest number of rows whose Gram matrix is exact in float64, in any order: ``floor(2^53 / S)``."""
        return 2**53 // self.norm_bound

    @property
    def total_rows(self) -> int:
        """Largest number of rows whose Gram matrix leaves a quarter of int64 for noise: ``3 2^61 / S``."""
        return 3 * 2**61 // self.norm_bound

    @cached_property
    def affine(self) -> Affine:
        """Shift and scale of rows."""
        centre, scale = (None if vector is None else np.array(vector) for vector in (self.centre, self.scale))
        return Affine(centre, scale, self.clip_norm)

    @property
    def input_units(self) -> tuple[Block, Block]:
        """Public centre and scale, (columns,) each: ``centre + scale * row`` is in the units of the input."""
        centre = np.zeros(self.columns) if self.centre is None else np.array(self.centre)
        return centre, np.ones(self.columns) if self.scale is None else np.array(self.scale)

    def to_json(self) -> BoundJson:
        """Return JSON values; floats are exact."""
        content: BoundJson = {
            "columns": self.columns,
            "clip_norm": self.clip_norm,
            "grid_bits": self.grid_bits,
            "centre": None if self.centre is None else list(self.centre),
            "scale": None if self.scale is None else list(self.scale),
            "constant": self.constant,
        }
        if self.rule != TRUNCATED:  # omitted as in versions before rule 2, so that identifiers stay the same
            content["rule"] = self.rule
        return content

    @classmethod
    def from_json(cls, value: BoundJson) -> RowBound:
        """Read the result of :meth:`to_json`."""
        centre, scale = value["centre"], value["scale"]
        return cls(
            columns=value["columns"],
            clip_norm=value["clip_norm"],
            grid_bits=value["grid_bits"],
            centre=None if centre is None else tuple(centre),
            scale=None if scale is None else tuple(scale),
            constant=value["constant"],
            rule=value.get("rule", TRUNCATED),
        )

    def shifted(self, rows: npt.NDArray[np.generic], out: Block) -> None:
        """Write ``(rows - centre) / scale`` as float64 to out, shape (r, columns)."""
        self.affine.shifted(rows, out)

    def apply(
        self, rows: npt.NDArray[np.generic], out: Block, dithers: Dithers | None = None, *, compiled: bool = True
    ) -> Block:
        """Bound rows, (r, columns), of any real dtype; return a view (r, width) of the float64 buffer out.

        It holds integers; the squared norm of each row is at most :attr:`norm_bound`. A row with NaN or infinity counts
        as zero: failing would reveal it. `dithers` belong to rule 2. `compiled` allows the kernel
        (:data:`COMPILED_VALUES`), which changes no bit.
        """
        bounded = out[: rows.shape[0]]
        z = bounded[:, : self.columns]
        kernel = compiled_kernel() if compiled else None
        if (dithers is None) == (self.rule == DITHERED):
            raise AssertionError("dithers must be given exactly for rule 2")
        if dithers is not None:
            Dithering(self.columns, self.grid_bits).apply(rows, self.affine, dithers, z, compiled=compiled)
        elif kernel is None:
            self._bounded(rows, z)
        else:
            unfinished = np.empty(rows.shape[0], dtype=np.int64)
            centre, scale = (np.empty(0) if vector is None else vector for vector in self.affine[:2])
            count = kernel(rows, centre, scale, self._steps, 2.0**self.grid_bits, z, unfinished)
            if count:
                remainder = np.empty((count, self.columns))
                self._bounded(rows[unfinished[:count]], remainder)
                z[unfinished[:count]] = remainder
        if self.constant:
            bounded[:, self.columns] = self.constant
        return bounded

    def _bounded(self, rows: npt.NDArray[np.generic], z: Block) -> None:
        """Bound rows into z, shape (r, columns), and verify the norm of every row."""
        self.shifted(rows, z)
        limit = 4**self.grid_bits
        with np.errstate(all="ignore"):
            z *= self._steps
            np.trunc(z, out=z)
            squares = np.einsum("ij,ij->i", z, z)
            # NaN compares false everywhere, so "not at most" also catches rows with NaN and infinity
            if (squares <= limit).all():
                return
            huge = np.flatnonzero(~(squares < _EXACT))
        z[huge], squares[huge] = 0, 0
        squares = self._shrink(z, squares)
        if huge.size:
            z[huge], squares[huge] = self._from_huge(rows[huge])
        if not (squares <= limit).all():
            raise AssertionError("a bounded row exceeds the norm bound")

    def _shrink(self, z: Block, squares: Block) -> Block:
        """Scale integer rows above the bound onto the ball, in place, truncating; return all new squared norms."""
        # The given ones are exact integers, or correctly rounded from 2^53 on. A scaled row exceeds the ball only by
        # rounding, so its squared norm is exact in float64 again.
        limit = 4**self.grid_bits
        factor = np.where(squares > limit, 2.0**self.grid_bits / np.sqrt(np.maximum(squares, 1)), 1.0)
        z *= factor[:, None]
        np.trunc(z, out=z)
        return shorten(z, limit)  # if a factor was rounded up

    def _from_huge(self, rows: npt.NDArray[np.generic]) -> tuple[Block, Block]:
        """Bound rows with norms above 2^26.5 steps, zero those with NaN or infinity; return rows and squared norms."""
        t = self.affine.shifted(rows)
        t[~np.isfinite(t).all(axis=1)] = 0
        largest = np.abs(t).max(axis=1)
        exponent = np.frexp(largest)[1]
        # an exact power of two scales the largest entry into [2^b, 2^(b+1)): still above the bound, no longer huge
        z: Block = np.trunc(np.ldexp(t, (self.grid_bits + 1 - exponent)[:, None]))
        integers = z.astype(np.int64)  # a squared norm is at most columns 4^(b+1) < 2^63
        return z, self._shrink(z, np.einsum("ij,ij->i", integers, integers).astype(np.float64))
