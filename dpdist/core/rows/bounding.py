"""Bounds rows one by one: public affine map, clip to norm C, integer grid, verification.

Each row x is mapped independently to an integer vector z with ``sum(z**2) <= 4**b`` (b = grid bits; the clip norm C is
``2**b`` grid steps). Privacy allows any map of single rows; only the *integer* norm bound matters. It is verified on
the integers that are summed, so no float error in the clip can weaken a guarantee. :mod:`dpdist.core.rows.dither` clips
and rounds, with the argument for its dithers.

**Two blocks.** A row is ``[u, v]``, u of categories, booleans and indicators, and v of numbers. The norm of u is at
most ``C_cat``, which is public by the schema, and only v is clipped: to ``C_num``, where ``C_cat² + C_num² = C'²`` and
C' is the norm to which rows are shortened before they are rounded. So no u is changed before it is rounded, however
long v is, and all v are clipped to the same norm: counts and tables of categories have no error but that of noise and
rounding, where one row in 100,000 is shortened by single steps. (Where by the schema no v is longer than ``C_num``, the
indicators of missing numbers take the room of these numbers, and ``C_cat`` counts none.)

*Privacy.* ``[u, v] -> [u, v min(1, r / |v|)]`` with ``r² = min(C_num², max(C'² - |u|², 0))`` is a map of single rows.
So neighbouring tables are mapped to neighbouring tables under either relation, and the rows of a privacy unit to as
many rows; a weight multiplies the sum of a period afterwards. The result is clipped to C' and rounded as any other row,
and its integers are verified. So the guarantee depends neither on the schema nor on its norms. ∎

**Privacy units.** Where all rows of a unit are kept, they are clipped like others, and then shortened together
(:mod:`dpdist.core.rows.unit_moment`): that module has the argument for such rows.

**No caps.** Limiting each scaled number first, so that a heavy column would shorten the others less, made slopes worse
on nearly all of nine skewed tables (``benchmarks/results/caps.md``): clipping all numbers of a row keeps slopes,
because it shortens both sides.

The number of clipped rows and all norms are private: they are neither returned nor stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NotRequired, TypedDict, cast, get_args

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, UsageError
from dpdist.core.mechanisms.sensitivity import UnitNorm
from dpdist.core.rows.dither import ALONE, Affine, Dithering, Dithers, Units
from dpdist.core.text import rounded_up

Block = npt.NDArray[np.float64]
EXACT = 2.0**53
"""Sums of integers below it are exact in float64, in any order."""
MARGIN = 1 + 2.0**-20
"""Exceeds the relative error of the norm of a moment (:mod:`dpdist.core.rows.unit_moment`)."""
COMPILED_VALUES = 1 << 26
"""Table size from which numba saves more time than its import takes: NumPy needs half a second for so large a table."""


Rounding = Callable[[Dithering, npt.NDArray[np.generic], Affine, Dithers, Block, Units], None]
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
    whole: NotRequired[list[int]]  # all three where there are such columns; clip_norm is then C
    whole_norm: NotRequired[float]
    numbers_norm: NotRequired[float]
    unit_norm: NotRequired[str]  # where all rows of a privacy unit are bounded together


def unit_norm_of(value: object) -> UnitNorm:
    """Return a stored norm of the moments of privacy units."""
    if value not in get_args(UnitNorm):
        raise DataError(f"The norm {value!r} of the moment of a privacy unit is unknown. Use a newer dpdist.")
    return cast("UnitNorm", value)


_UNBIASED = "unbiased"


def require_unbiased(bound: object, place: object) -> None:
    """Refuse a stored bound of rows that were rounded in another way."""
    if isinstance(bound, dict) and bound.get("rounding") != _UNBIASED:
        raise DataError(
            f"{place} is of a version before 0.1.0, which rounded rows in another way; this version does not read it. "
            "Use the version that wrote it."
        )


def unclipped_norm(norm: float, columns: int, grid_bits: int) -> float:
    """Return the least clip norm, of seven digits, with which no row of a norm is shortened before it is rounded.

    Rows are shortened to slightly less than the clip norm (:attr:`RowBound.shortened_norm`), and norms that are equal
    on paper differ by some 1e-15 in float64.
    """
    return float(rounded_up(norm * (1 + 1e-12) / Dithering(columns, grid_bits).inner, 7))


@dataclass(frozen=True)
class RowBound:
    """Public parameters that bound every row before it is summed.

    A row x becomes ``(x - centre) / scale``, is clipped to slightly less than the clip norm, and is rounded to a grid
    of integers. Beside columns that are never shortened, only the others are clipped.

    Parameters
    ----------
    columns : int
        Number of columns d of the table.
    clip_norm : float
        Clip norm > 0, in the units of the shifted and scaled rows. It is public and never computed from the data.
    grid_bits : int, default 16
        b, between 2 and 24: the norm C of a row is ``2**b`` grid steps. C is the clip norm, or that of numbers and of
        columns that are never shortened together.
    centre : tuple of float, default None
        Public shift, one number per column. None: no shift.
    scale : tuple of float, default None
        Public divisor, one positive number per column. None: no divisor.
    constant : int, default 0
        Constant appended to every row, in grid steps, for private centring. At most ``2**b``, where the sensitivity
        formulas are tight. 0: none.
    whole : tuple of int, default ()
        Numbers of the columns of categories, booleans and indicators, which are never shortened, in ascending order.
    whole_norm : float, default 0.0
        Their norm, in the units of the shifted and scaled rows.
    unit_norm : {"", "frobenius", "trace"}, default ""
        Norm of the second moment of all rows of a privacy unit, with their constants, that is at most C². Rows are
        clipped to C first. "": each row is bounded alone.

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
    whole: tuple[int, ...] = ()
    whole_norm: float = 0.0
    unit_norm: UnitNorm = ""

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
        self._require_sound_whole()
        for name, vector in (("centre", self.centre), ("scale", self.scale)):
            if vector is not None:
                self._require_sound(name, vector)

    def _require_sound_whole(self) -> None:
        if list(self.whole) != sorted({column for column in self.whole if 0 <= column < self.columns}):
            raise UsageError("The columns that are never shortened must be in ascending order.")
        if not 0 <= self.whole_norm < 2.0**500 or bool(self.whole_norm) > bool(self.whole):
            raise UsageError("The norm of the columns that are never shortened must be finite.")
        narrow = self.numbers_norm == 0 if self.numbers else self.whole_norm >= self.shortened_norm
        if self.unit_norm and self.whole and narrow:
            least = unclipped_norm(math.hypot(self.whole_norm, self.constant * self.unit), self.columns, self.grid_bits)
            raise UsageError(
                f"The clip norm of a privacy unit must exceed {1.05 * least:.3g}: the categories and booleans of one "
                "row, with the constant of the mean, have nearly this norm.",
                parameter="clip",
            )
        if not (self.numbers or self.whole_norm):
            raise UsageError("By the schema no column varies: all have one value. Add others.")

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
        """Largest squared norm S of an integer row: ``4**b + constant**2``; of a whole privacy unit, ``4**b``."""
        return int(4**self.grid_bits) + (0 if self.unit_norm else self.constant**2)

    @property
    def largest(self) -> int:
        """Largest magnitude of an entry of an integer row."""
        return max(int(2**self.grid_bits) - 1, self.constant)

    @cached_property
    def row_norm(self) -> float:
        """The norm C of a row: the clip norm, enlarged by the columns that are never shortened."""
        if not self.whole or self.unit_norm:
            return self.clip_norm
        norm = math.hypot(self.whole_norm, self.clip_norm) if self.numbers else self.whole_norm
        return unclipped_norm(norm, self.columns, self.grid_bits)

    @property
    def unit(self) -> float:
        """One grid step in the units of the bounded rows: ``C / 2**b``."""
        return self.row_norm / float(2**self.grid_bits)

    @property
    def shortened_norm(self) -> float:
        """Norm to which rows are clipped, in their units: slightly less than C, because rounding makes rows longer."""
        return Dithering(self.columns, self.grid_bits).radius * self.unit

    @property
    def numbers_norm(self) -> float:
        """Norm to which numbers are clipped, ``C_num``; C' if there are no other columns, and 0 if no numbers."""
        if not self.numbers:
            return 0.0
        beside = (self.constant * self.unit) ** 2 if self.unit_norm else 0.0  # so that few units are shortened
        room = self.shortened_norm**2 - self.whole_norm**2 - beside
        return math.sqrt(max(0.0, room)) if self.whole else self.shortened_norm

    @property
    def clip_edge(self) -> float:
        """Norm beyond which rows, or whole privacy units, are shortened: of the numbers alone, if rows are."""
        return self.clip_norm if self.unit_norm else self.numbers_norm

    @property
    def numbers(self) -> tuple[int, ...]:
        """The columns that are clipped."""
        whole = set(self.whole)
        return tuple(column for column in range(self.columns) if column not in whole)

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
        if not (self.whole and self.numbers):
            return Affine(centre, scale, self.row_norm)
        numbers = np.zeros(self.columns, dtype=np.bool_)
        numbers[list(self.numbers)] = True
        return Affine(centre, scale, self.row_norm, numbers, self.numbers_norm)

    @property
    def input_units(self) -> tuple[Block, Block]:
        """Public centre and scale, (columns,) each: ``centre + scale * row`` is in the units of the input."""
        centre = np.zeros(self.columns) if self.centre is None else np.array(self.centre)
        return centre, np.ones(self.columns) if self.scale is None else np.array(self.scale)

    def to_json(self) -> BoundJson:
        """Return JSON values; floats are exact."""
        value: BoundJson = {
            "columns": self.columns,
            "clip_norm": self.clip_norm,
            "grid_bits": self.grid_bits,
            "centre": None if self.centre is None else list(self.centre),
            "scale": None if self.scale is None else list(self.scale),
            "constant": self.constant,
            "rounding": _UNBIASED,
        }
        if self.whole:
            value |= {
                "clip_norm": self.row_norm, "whole": list(self.whole), "whole_norm": self.whole_norm,
                "numbers_norm": self.clip_norm,
            }  # fmt: skip
        if self.unit_norm:
            value["unit_norm"] = self.unit_norm
        return value

    @classmethod
    def from_json(cls, value: BoundJson) -> RowBound:
        """Read the result of :meth:`to_json`."""
        centre, scale = value["centre"], value["scale"]
        bound = cls(
            columns=value["columns"],
            clip_norm=value.get("numbers_norm", value["clip_norm"]),
            grid_bits=value["grid_bits"],
            centre=None if centre is None else tuple(centre),
            scale=None if scale is None else tuple(scale),
            constant=value["constant"],
            whole=tuple(value.get("whole", ())),
            whole_norm=value.get("whole_norm", 0.0),
            unit_norm=unit_norm_of(value.get("unit_norm", "")),
        )
        if bound.row_norm != value["clip_norm"]:
            raise DataError("The clip norm of a bound is not that of its numbers and other columns.")
        return bound

    def shifted(self, rows: npt.NDArray[np.generic], out: Block) -> None:
        """Write ``(rows - centre) / scale`` as float64 to out, shape (r, columns)."""
        self.affine.shifted(rows, out)

    def apply(self, rows: npt.NDArray[np.generic], out: Block, dithers: Dithers, *, compiled: bool = True) -> Block:
        """Bound rows, (r, columns), of any real dtype; return a view (r, width) of the float64 buffer out.

        It holds integers; the squared norm of each row is at most :attr:`norm_bound`. A row with NaN or infinity counts
        as zero: failing would reveal it. `compiled` allows the kernel (:data:`COMPILED_VALUES`), which changes no bit.
        """
        if self.unit_norm:
            raise AssertionError("the rows of a privacy unit are bounded together")
        bounded = out[: rows.shape[0]]
        self.round(rows, bounded[:, : self.columns], dithers, ALONE, compiled=compiled)
        if self.constant:
            bounded[:, self.columns] = self.constant
        return bounded

    def round(
        self, rows: npt.NDArray[np.generic], out: Block, dithers: Dithers, units: Units, *, compiled: bool = True
    ) -> None:
        """Clip, shorten and round rows into out, (r, columns), with a column for the constant of units."""
        kernel = compiled_kernel() if compiled else None
        rule = Dithering(self.columns, self.grid_bits)
        if kernel is None:
            rule.apply(rows, self.affine, dithers, out, units)
        else:
            kernel(rule, rows, self.affine, dithers, out, units)
