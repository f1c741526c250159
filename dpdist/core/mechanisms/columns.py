"""`column-histograms`: one private histogram per column, from which its centre and scale follow by post-processing.

**Distribution.** The bins of all d columns form one list of integer counts. Each count gets independent integer noise
with one integer scale: rounded normals if the loss has a delta, discrete Laplace otherwise
(:mod:`dpdist.core.mechanisms.counts`). The noisy counts are the release; everything else is post-processing.

**Sensitivity.** A row adds 1 to exactly one bin of each column, which depends on this row alone, or to no bin if one of
its values is not finite (:mod:`dpdist.core.moment.histograms`). So in each column the bins of M rows add up to at most
M. Let neighbours differ in at most M rows, those of one privacy unit (M = 1: one row).

* add-remove: one column changes by counts that are not negative and add up to at most M: by at most M in the l1 and in
  the l2 norm. All d columns together change by at most ``M d`` in the l1 and ``M sqrt(d)`` in the l2 norm.
* replace-one: one column changes by a - b, where neither a nor b has a negative entry and each adds up to at most M.
  ``|a - b|_1 <= 2 M`` and ``|a - b|_2² <= |a|_2² + |b|_2² <= 2 M²``. All columns together: at most ``2 M d`` and
  ``M sqrt(2 d)``.

All four are attained by M equal rows, exchanged for M others that differ from them in the bin of every column. Rounding
of values is irrelevant: a value falls into one bin, whichever it is.

**Theorem.** With noise calibrated to these sensitivities, the release is mu-GDP and (epsilon, delta)-private for
Gaussian noise and epsilon-private for discrete Laplace noise (proof: :mod:`dpdist.core.mechanisms.counts`). ∎

**Grids**, public. A column with a public range has 64 equal bins over it, and one on either side. The logarithms of a
column with a transform and no range have bins of .1 from 0 to 40, or from -40 to 40. Any other column has a signed
logarithmic grid: four bins per octave from 2^-10 to 2^20 for both signs, one bin around 0, and one at each end.

**Bins that count.** An interval of k adjacent bins is occupied if the sum of their noisy counts exceeds a threshold
that the sum of k empty bins exceeds with probability at most 0.001 divided by the number of intervals of all columns
(bound: :mod:`dpdist.core.mechanisms.counts`). So with probability at least .999 no empty interval is occupied, which
near 2^20 would give a scale of thousands. Sums detect more than single bins, because the noise of k bins grows only
like sqrt(k). All bins from the first to the last shortest occupied interval count, with their noise, which is unbiased,
and two more on either side (half an octave) for thin tails; a single occupied bin counts alone. Values of few rows far
out are missed.

Measured at a tenth of mu² of epsilon 1, the scale is .82 to 1.07 of the true standard deviation (.05 to .95 quantile)
for 6,000 normal rows of 6 columns, .91 to 1.03 for 15,697 of 13. It is too small if a few distant rows dominate the
deviation, as for a lognormal with sigma 1 (.55 to .98). For one column in 500 it is more than a quarter too large.

**Noise above 2 % of n on a count** is refused before anything is charged
(:func:`dpdist.core.release.stages.require_seen`). Measured (`benchmarks/scale_seen.py`): with noise of 1 %, the spread
of eight kinds of columns was seen in all of 60 draws; with 2 %, it was missed in .8 of them for columns far from 0 and
for skewed ones with 60 % zeros; with 3 %, in .8 for a standard normal, too.

**Centre and scale** of a column, with p the shares of the bins that count, m their midpoints (geometric on the
logarithmic grid; the end of the range for the bins next to it) and w their widths:

    centre = sum p m,    scale² = sum p ((m - centre)² + w²/12).

The last term is the mean variance within a bin, which matters if few bins count. Both are rounded to six digits, except
a centre that would move by more than a thousandth of the scale. Their sums are rounded once, so they are reproducible.

If fewer than two bins count, the variance is unknown, and the scale is chosen so that undetected values cannot dominate
the moment. With a public range it is the length of the range; otherwise the width of the one bin, such as 326 for
years; and 1 if that is the bin around 0 or no bin counts, because a rare 0/1 column shows only its zeros, and divided
by the width of that bin its ones would be 512. If a bin beyond 2^20 counts, the values are unbounded and could dominate
the moment at any scale of that order: the scale is 2^64, which gives the column no weight. All these columns are
reported.

References
----------
Dwork, McSherry, Nissim & Smith 2006 (histograms).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.counts import CalibratedHistogram, CountNoise, Counts, calibrated_histogram
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss

NAME = "column-histograms"
FALSE_RATE = 0.001  # bound on the probability that any empty interval is occupied
MAX_BINS = 1 << 23  # of all columns together: 64 MiB in each counting process
BEYOND = 2.0**64  # the scale of a column with numbers beyond the logarithmic grid
_LOWEST, _HIGHEST, _PER_OCTAVE = -10, 20, 4
_ROOTS = (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)
"""``2^(i/4)``, as literals, so that all machines agree."""
_LINEAR = 64
_MARGIN = 2  # bins on either side of the occupied ones that count as well
GRID: dict[str, Any] = {
    "low": 2.0**_LOWEST, "high": 2.0**_HIGHEST, "per_octave": _PER_OCTAVE, "linear": _LINEAR
}  # fmt: skip
"""The public description of the grids."""


@lru_cache(maxsize=4096)
def _edges(ends: tuple[float, float] | None, steps: int) -> tuple[float, ...]:
    if ends is not None:
        low, high = ends
        return (*(low + (high - low) * (i / steps) for i in range(steps)), high)
    positive = [
        math.ldexp(_ROOTS[i % _PER_OCTAVE], i // _PER_OCTAVE)
        for i in range(_LOWEST * _PER_OCTAVE, _HIGHEST * _PER_OCTAVE + 1)
    ]
    return (*(-edge for edge in reversed(positive)), *positive)


@dataclass(frozen=True)
class Grid:
    """The public bins of one column: bin i is the half-open interval from edge i - 1 to edge i."""

    ends: tuple[float, float] | None = None
    steps: int = _LINEAR

    @classmethod
    def of_range(cls, low: float, high: float, steps: int = _LINEAR) -> Grid:
        """Return the grid of a public range; the logarithmic grid if the range is too short or too long to divide."""
        edges = _edges((low, high), steps) if 2.0**-200 < high - low < 2.0**200 else ()
        rising = all(low < high for low, high in pairwise(edges))
        return cls((low, high), steps) if edges and rising else cls()

    @classmethod
    def from_json(cls, value: Sequence[Any] | None) -> Grid:
        """Read the result of :meth:`to_json`."""
        return cls() if value is None else cls((value[0], value[1]), *value[2:])

    def to_json(self) -> list[float] | None:
        """Return JSON values: the range, with the number of its bins if that is another than usual."""
        return None if self.ends is None else [*self.ends, *([] if self.steps == _LINEAR else [self.steps])]

    @property
    def edges(self) -> tuple[float, ...]:
        return _edges(self.ends, self.steps)

    @property
    def bins(self) -> int:
        return len(self.edges) + 1

    def bin_of(self, number: float) -> int:
        return bisect_right(self.edges, number)

    def middle(self, index: int) -> float:
        """Return the number that represents a bin."""
        edges = self.edges
        if index in {0, len(edges)}:
            return edges[max(0, index - 1)]
        low, high = edges[index - 1], edges[index]
        if self.ends is not None or low * high <= 0:
            return low + (high - low) / 2
        return math.copysign(math.sqrt(low * high), low)

    def width(self, index: int) -> float:
        edges = self.edges
        return 0.0 if index in {0, len(edges)} else edges[index] - edges[index - 1]


@dataclass(frozen=True)
class Standardised:
    """Centre and scale of one column, and the number of its bins that count."""

    centre: float
    scale: float
    bins: int

    @property
    def seen(self) -> bool:
        """Whether the scale is the standard deviation of the bins that count."""
        return self.bins > 1 and self.scale != BEYOND

    @property
    def short(self) -> bool:
        """Whether the column adds next to nothing to norms: most of its values are in one bin, or it has no weight."""
        return self.bins == 1 or self.scale == BEYOND


def calibrated(loss: PrivacyLoss, neighbours: Neighbours, columns: int, max_rows: int = 1) -> CalibratedHistogram:
    """Return noise of the least integer scale that keeps the loss for neighbours that differ in at most ``max_rows``.

    >>> calibrated(PrivacyLoss.parse("0.1"), Neighbours.REPLACE_ONE, 54).noise
    DiscreteLaplace(scale=1080)
    >>> calibrated(PrivacyLoss.parse("0.1", "1e-6"), Neighbours.REPLACE_ONE, 54).noise
    RoundedNormal(sigma=378)
    """
    return calibrated_histogram(loss, neighbours, columns, max_rows, __name__)


def require_bins(bins: int, columns: int) -> None:
    """Refuse a table with too many columns for histograms."""
    if bins > MAX_BINS:
        raise UsageError(
            f"The histograms of {columns} columns have {bins} bins; the limit is {MAX_BINS}. "
            "Scale the columns by public values instead.",
            parameter="scale",
        )


@lru_cache(maxsize=256)
def _thresholds(noise: CountNoise, bins: int, intervals: int) -> tuple[int, ...]:
    """Return the sums that 1, 2, ... adjacent empty bins exceed with probability at most FALSE_RATE / intervals."""
    return tuple(math.ceil(noise.bound(((width, 1.0),), FALSE_RATE / intervals)) for width in range(1, bins + 1))


def occupied(noisy: Counts, noise: CountNoise, intervals: int) -> tuple[int, int] | None:
    """Return the bins from the first to the last shortest occupied interval, half open, or None."""
    sums = np.concatenate([[0], noisy.cumsum()])
    first, last, starts_last, ends_first = 0, 0, -1, noisy.size + 1
    for width, least in enumerate(_thresholds(noise, noisy.size, intervals), start=1):
        starts = np.flatnonzero(sums[width:] - sums[:-width] > least)
        if starts.size and starts[-1] > starts_last:
            starts_last = int(starts[-1])
            last = starts_last + width
        if starts.size and starts[0] + width < ends_first:
            first, ends_first = int(starts[0]), int(starts[0]) + width
    return None if starts_last < 0 else (first, last)


def intervals_of(grids: Sequence[Grid]) -> int:
    """Return the number of intervals of bins of all histograms."""
    return sum(grid.bins * (grid.bins + 1) // 2 for grid in grids)


def least_rows(noise: CountNoise, grids: Sequence[Grid]) -> int:
    """Return the rows a table needs for a choice of the scale to detect its columns."""
    one_bin, *_, two_octaves = _thresholds(noise, 2 * _PER_OCTAVE, intervals_of(grids))
    # or two octaves hold two thirds, as for a normal column
    return max(2 * one_bin, math.ceil(1.5 * two_octaves)) + 1


def counting_bins(grid: Grid, noisy: Counts, noise: CountNoise, intervals: int) -> list[tuple[int, int]]:
    """Return the bins of a column that count, with their noisy counts."""
    interval = occupied(noisy, noise, intervals)
    if interval is None:
        return []
    first, last = interval
    if last - first > 1:
        # a bin at an end is unbounded, and counts only if it is occupied
        first, last = min(first, max(1, first - _MARGIN)), max(last, min(grid.bins - 1, last + _MARGIN))
    return [(index, int(noisy[index])) for index in range(first, last)]


def standardised(grid: Grid, counting: Sequence[tuple[int, int]]) -> Standardised:
    """Return centre and scale of a column from the noisy counts of the bins that count (see the module)."""
    total = sum(count for _, count in counting)
    if total <= 0:
        counting = [(index, count) for index, count in counting if count > 0]
        total = sum(count for _, count in counting)
    bins = len(counting)
    if grid.ends is None and any(index in {0, grid.bins - 1} for index, _ in counting):
        return Standardised(0.0, BEYOND, bins)
    if bins > 1:
        centre = math.fsum(count * grid.middle(index) for index, count in counting) / total
        variance = math.fsum(
            count * ((grid.middle(index) - centre) ** 2 + grid.width(index) ** 2 / 12) for index, count in counting
        )
        if variance <= 0:  # negative noisy counts in nearly empty bins far out
            return standardised(grid, [(index, count) for index, count in counting if count > 0])
        return _standardised(centre, math.sqrt(variance / total), bins)
    if grid.ends is not None:
        low, high = grid.ends
        centre, scale = low + (high - low) / 2, high - low
    else:
        centre, scale = 0.0, 1.0
    for index, _ in counting:
        centre = grid.middle(index)
        if grid.ends is None and index != grid.bin_of(0.0):
            scale = grid.width(index)
    return _standardised(centre, scale, bins)


def _standardised(centre: float, scale: float, bins: int) -> Standardised:
    rounded = _rounded(centre)
    if abs(rounded - centre) > scale / 1000:  # a range far from 0 relative to its length
        rounded = centre
    return Standardised(rounded, _rounded(scale), bins)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
