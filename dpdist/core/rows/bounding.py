"""Bounds rows one by one: public affine map, clip to norm C, integer grid, verification.

Each row x is mapped independently to an integer vector z with ``sum(z**2) <= 4**b`` (b = grid bits; the clip norm C is
``2**b`` grid steps). Privacy allows any map of single rows; only the *integer* norm bound matters. It is verified on
the integers that are summed, so no float error in the clip can weaken a guarantee. :mod:`dpdist.core.rows.dither` clips
and rounds, with the argument for its dithers.

The number of clipped rows and all norms are private: they are neither returned nor stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, UsageError
from dpdist.core.rows.dither import Affine, Dithering, Dithers

Block = npt.NDArray[np.float64]
COMPILED_VALUES = 1 << 26
"""Table size from which numba saves more time than its import takes: NumPy needs half a second for so large a table."""


Rounding = Callable[[Dithering, npt.NDArray[np.generic], Affine, Dithers, Block], None]
"""Signature of :meth:`dpdist.core.rows.dither.Dithering.apply` in machine code."""


@cache
def compiled_kernel() -> Rounding | None:
    """Return the compiled kernel, which changes no bit; None without numba."""
    try:
        from dpdist.core.rows import dither_kernel  # noqa: PLC0415 - numba takes time to import
    except ImportError:
        return None
    return dither_kernel.round_rows


class BoundJson(TypedDict):
    """A :class:`RowBound` as JSON values."""

    columns: int
    clip_norm: float
    grid_bits: int
    centre: list[float] | None
    scale: list[float] | None
    constant: int
    rounding: str


_UNBIASED = "unbiased"


def require_unbiased(bound: object, place: object) -> None:
    """Refuse a stored bound of rows that were rounded in another way."""
    if isinstance(bound, dict) and bound.get("rounding") != _UNBIASED:
        raise DataError(
            f"{place} is of a version before 0.1.0, which rounded rows in another way; this version does not read it. "
            "Use the version that wrote it."
        )


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
        Dithering(self.columns, self.grid_bits)  # refuses a grid that is too coarse
        if not 0 <= self.constant <= 2**self.grid_bits:
            raise UsageError("The constant column must be between 0 and the clip norm.")
        for name, vector in (("centre", self.centre), ("scale", self.scale)):
            if vector is not None:
                self._require_sound(name, vector)

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
        """Largest magnitude of an entry of an integer row."""
        return max(int(2**self.grid_bits) - 1, self.constant)

    @property
    def unit(self) -> float:
        """One grid step in the units of the bounded rows: ``C / 2**b``."""
        return self.clip_norm / float(2**self.grid_bits)

    @property
    def shortened_norm(self) -> float:
        """Norm to which rows are clipped, in their units: slightly less than C, because rounding makes rows longer."""
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
        return {
            "columns": self.columns,
            "clip_norm": self.clip_norm,
            "grid_bits": self.grid_bits,
            "centre": None if self.centre is None else list(self.centre),
            "scale": None if self.scale is None else list(self.scale),
            "constant": self.constant,
            "rounding": _UNBIASED,
        }

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
        )

    def shifted(self, rows: npt.NDArray[np.generic], out: Block) -> None:
        """Write ``(rows - centre) / scale`` as float64 to out, shape (r, columns)."""
        self.affine.shifted(rows, out)

    def apply(self, rows: npt.NDArray[np.generic], out: Block, dithers: Dithers, *, compiled: bool = True) -> Block:
        """Bound rows, (r, columns), of any real dtype; return a view (r, width) of the float64 buffer out.

        It holds integers; the squared norm of each row is at most :attr:`norm_bound`. A row with NaN or infinity counts
        as zero: failing would reveal it. `compiled` allows the kernel (:data:`COMPILED_VALUES`), which changes no bit.
        """
        bounded = out[: rows.shape[0]]
        kernel = compiled_kernel() if compiled else None
        rule, z = Dithering(self.columns, self.grid_bits), bounded[:, : self.columns]
        if kernel is None:
            rule.apply(rows, self.affine, dithers, z)
        else:
            kernel(rule, rows, self.affine, dithers, z)
        if self.constant:
            bounded[:, self.columns] = self.constant
        return bounded
