"""How many rows of a release were clipped: then its values say less of the rows as they were.

Rows longer than C' are clipped to it: the clip norm C, or the little less than it that leaves room for rounding
(``RowBound.shortened_norm``). A clipped row adds C'² to the trace of the exact second moment. So the mean squared norm
over C'², m, is at least the share of the rows that were clipped. The released trace tells m, free of charge, where n is
public or was released with the mean.

Whether rows were clipped, or are as long as that by themselves, the trace does not tell. Rows about zero may all have
the same norm. Of rows about a centre, 14 tables in their own units and standardised, clipped at 19 quantiles of their
norms each, the middle half of the shares was .2 to .3 where m was .5 to .6, .25 to .4 at .6 to .7, .35 to .54 at .7 to
.8 and .5 to .7 at .8 to .9. That is what "perhaps" says below, of such rows only. If m is 1 as far as the noise lets
see, nearly every row has norm C'. A release that chose its clip norm from a histogram of the norms has a bound from
that, too: the noisy counts from the bin of the clip norm on. One whose schema lets no row be longer clips none.

The noise of the trace has the variance ``d v + d (d - 1) c``. Here v is the variance of an entry on the diagonal, and c
the covariance of two of them. c is 0 where entries are independent, and ``v - 2 w`` where the law is invariant under
rotations, with w the variance of an entry off the diagonal. The larger of the two is taken.

What rounding adds to the error of a release, beside its noise: post-processing of public numbers.

The law of it stands in :mod:`dpdist.rows.rounding`. It is known of releases whose rows were rounded without bias. Rows
of older releases were truncated to the grid: their error grows like n, follows from the rows, and is not told.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from dpdist._util.text import listed, rounded_norm
from dpdist.mechanisms.counts import noise_from_json
from dpdist.mechanisms.noise_law import Noise
from dpdist.naming import step
from dpdist.pca.noise_edge import CONFIDENCE, law_of
from dpdist.release.artefact import Release
from dpdist.rows.bounding import DITHERED
from dpdist.rows.rounding import LARGEST_SHARE, entry_variances, spectral_error


@dataclass(frozen=True)
class Rounding:
    """The error of rounding, in the units of the components' eigenvalues."""

    grid_bits: int
    error: float  # what eigenvalues are moved by at most, with probability 0.95
    share: float | None  # that over the edge of the noise at the same confidence; None where no edge is known
    shift: float  # what eigenvalues are raised by at most besides, where n is neither public nor released; else 0
    variances: tuple[float, float]  # the largest ones of an entry on the diagonal, and off it

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {
            "grid_bits": self.grid_bits,
            "rounding_error": self.error,
            "rounding_share": self.share,
            "rounding_shift": self.shift,
        }

    def describe(self) -> str:
        """Return the same in a sentence or two."""
        share = "" if self.share is None else f", {100 * self.share:.2g} % of the noise"
        said = (
            f"Rounding to 2^{self.grid_bits} steps moves eigenvalues by {self.error:.3g} at most (confidence "
            f"{CONFIDENCE:g}){share}."
        )
        if self.shift:
            said += f" It raises all of them by the same besides, {self.shift:.3g} at most: n is private."
        return said


def rounding(release: Release) -> Rounding | None:
    """Return the error of rounding of a release; None where rows were truncated, or nothing public bounds n."""
    bound, count = release.bound, release.row_count
    rows = release.rows_at_most if count is None else count
    if bound.rule != DITHERED or release.subspace is not None or rows is None or rows <= 0:
        return None
    unit = bound.unit**2 / (count or 1.0)
    error = spectral_error(rows, bound.columns, bound.grid_bits) * unit
    law = law_of(release.noise, bound.columns, unit)
    on, off = entry_variances(rows, bound.grid_bits)
    return Rounding(
        grid_bits=bound.grid_bits,
        error=error,
        share=None if law is None else error / law.edge_at(CONFIDENCE),
        shift=rows / 4 * unit if count is None else 0.0,
        variances=(on * unit**2, off * unit**2),
    )


def warning(release: Release) -> str:
    """Return what is said of a release whose grid is too coarse for its noise; else nothing."""
    found = rounding(release)
    return "" if found is None or found.share is None or found.share <= LARGEST_SHARE else f" {found.describe()}"


_FAR = 3.0
"""Standard deviations that the noise of the trace stays below with probability 0.998, if it is about normal."""
_SAID = {0.5: "perhaps a quarter", 0.6: "perhaps a third", 0.75: "perhaps half"}
"""Of rows about a centre, by the mean squared norm over C'² from which on it is said."""
_WARNED = 0.6
"""That from which on a warning is given, where a third of the rows may be longer."""
_FULL = 0.9
"""That from which on rows about zero may most of them have been clipped."""
_LARGEST_ERROR = 0.05
"""Relative error of the trace from which on nothing is said: it would be near ``n C²`` for any rows."""


@dataclass(frozen=True)
class ClippedRows:
    """How long rows are, as far as a release tells."""

    norm: float  # C', in the units of the shifted and scaled rows
    share: float | None  # mean squared norm of the shortened rows over C'², as released; None where it is not known
    error: float | None  # what the share is off by at most, with probability 0.998
    most: float | None = None  # share of longer rows, at most: by the trace or, with probability 0.977, the histogram
    longest: float | None = None  # a norm that no row exceeds by the schema, at most the clip norm
    centred: bool = False  # whether rows were shifted by a centre before they were clipped
    dropping: tuple[str, ...] = ()  # columns of which a missing value makes the row count as the centre

    @property
    def nearly_all(self) -> bool | None:
        """Whether nearly every row is as long as the clip norm after it was bounded; None where that is not known."""
        if self.share is None or self.error is None or self.error > _LARGEST_ERROR:
            return None
        return self.share >= 1 - self.error

    @property
    def guess(self) -> str:
        """How many rows perhaps were clipped, about a centre, as words; nothing where few were."""
        if not self.centred or self.longest is not None or self.share is None or self.error is None:
            return ""
        return ([""] + [words for least, words in _SAID.items() if self.share - self.error >= least])[-1]

    @property
    def clipped(self) -> str:
        """How many rows were clipped, as part of a sentence; nothing where nothing is known."""
        if self.longest is not None:
            return f"none is longer than {rounded_norm(self.longest)}"
        if self.nearly_all:
            return "nearly all were"
        if self.guess:
            return f"{self.guess} of them" + (self._bound and f", {self._bound}")
        return self._bound and f"{self._bound} of them"

    @property
    def _bound(self) -> str:
        return "" if self.most is None or self.most >= 1 else f"at most {math.ceil(100 * self.most)}%"

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {
            "norm": self.norm,
            "mean_squared_norm_share": self.share,
            "error": self.error,
            "nearly_all": self.nearly_all,
            "dropping": list(self.dropping),
            "warning": self.warning(),
            "longer_at_most": 0.0 if self.longest is not None else self.most,
        }

    def warning(self) -> str:
        """Return a warning where perhaps a third of the rows were clipped, or nearly all; else nothing."""
        if self.share is None or self.error is None or self.longest is not None:
            return ""
        if self.nearly_all:
            return (
                f"NEARLY EVERY ROW WAS CLIPPED to norm {rounded_norm(self.norm)}, or has just this norm, as "
                f"normalised rows have: their mean squared norm is {100 * self.share:.4g} % of its square, at most "
                f"{100 * self.error:.2g} % off. Variances of the rows as they are may be larger by any factor. Choose "
                f"the clip norm privately ({step('bound')}) and release again."
            )
        few = self.most is not None and self.most < 1 / 3
        if not self.centred and not few and self.error <= _LARGEST_ERROR and self.share - self.error >= _FULL:
            return (
                f"Most rows may have been clipped to norm {rounded_norm(self.norm)}, or are nearly as long: their mean "
                f"squared norm is {100 * self.share:.3g} % of its square. If they were, slopes, correlations and "
                f"components of the rows as they are may lie beyond the intervals. A larger clip norm tells "
                f"({step('bound')})."
            )
        if not self.guess or few or self.share - self.error < _WARNED:
            return ""
        rows = f"{self.guess[0].upper()}{self.guess[1:]} of the rows{self._bound and f', {self._bound},'}"
        return (
            f"{rows} were clipped to norm {rounded_norm(self.norm)}. Of the rows as they are, variances are "
            "larger, and slopes and components may be off by more than their intervals."
        )

    def describe(self) -> str:
        """Return of which rows all values are, as part of the sentence that gives an answer."""
        said = f"of rows clipped to norm {rounded_norm(self.norm)}{self.clipped and f' ({self.clipped})'}"
        return f"{said}, those without {listed(self.dropping)} counted as the centre" if self.dropping else said


def trace_deviation(noise: Noise, columns: int) -> float:
    """Return the standard deviation of the trace of noise on entries, or more, in lattice units."""
    on, off = noise.variance_diagonal or 0.0, noise.variance_off_diagonal or 0.0
    return math.sqrt(columns * on + columns * (columns - 1) * max(0.0, on - 2 * off))


def clipped_rows(release: Release) -> ClippedRows:
    """Say how long the rows of a release are, as far as it tells: from its diagonal."""
    bound, noise = release.bound, release.noise
    d, norm = bound.columns, bound.shortened_norm
    longest, most, centred = _longest(release), _longer(release), bound.centre is not None
    dropping = () if release.schema is None else release.schema.dropping
    rows = None if release.subspace is not None or release.weights else release.row_count
    if rows is None or rows <= 0 or noise.variance_diagonal is None:
        return ClippedRows(norm, None, None, most, longest, centred, dropping)
    largest = rows * norm**2
    trace = float(release.moment_diagonal.sum()) - d * noise.mean_diagonal * bound.unit**2
    deviation = trace_deviation(noise, d) * bound.unit**2
    if bound.rule == DITHERED:  # of 2 x.e + |e|²: rounding leaves the mean of the trace as it is
        grid = _FAR * math.sqrt(rows * (4**bound.grid_bits + 3 * d / 16)) * bound.unit**2 / largest
    else:
        grid = 2 * math.sqrt(d) / 2**bound.grid_bits  # a row's entries are each cut to whole steps
    if release.rows is None:  # n is an estimate, by the corner of the moment
        grid += trace / largest * _FAR * _deviation_of_rows(release) / rows
    share, error = trace / largest, _FAR * deviation / largest + grid
    by_trace = min(1.0, max(0.0, share + error))
    return ClippedRows(
        norm, share, error, by_trace if most is None else min(most, by_trace), longest, centred, dropping
    )


def _deviation_of_rows(release: Release) -> float:
    """Return the standard deviation of a private n."""
    constant, variance = release.bound.constant, release.noise.variance_diagonal
    return math.sqrt(variance) / constant**2 if constant and variance else 0.0


def _longest(release: Release) -> float | None:
    """Return a norm that no row exceeds by the schema, if it is no larger than the clip norm."""
    bound, schema = release.bound, release.schema
    if bound.centre is not None or bound.scale is not None or schema is None or schema.norm is None:
        return None
    return schema.norm if schema.norm <= bound.clip_norm else None


def _longer(release: Release) -> float | None:
    """Return the share of the rows that were longer at most, by the release's own histogram of the norms.

    Of its noisy counts those above the last edge below the clip norm hold all of them: two deviations more.
    """
    stage, n = release.stage, release.row_count
    told = {} if stage is None else stage.answer.get("norms", stage.answer)
    if n is None or not {"counts", "edges", "noise"} <= told.keys():
        return None
    counts, noise = told["counts"], noise_from_json(told["noise"])
    bins = len(counts)
    first = bisect_right(told["edges"], release.bound.shortened_norm)  # the bin of the clip norm, and all after it
    weight = 0.0 if release.rows is None else (bins - first) / bins  # a public n takes back some of the noise
    rows = sum(counts[first:]) - weight * (sum(counts) - (release.rows or 0))
    deviation = math.sqrt(noise.variance * (bins - first) * (1 - weight))
    least = n if release.rows is not None else n - 2 * _deviation_of_rows(release)
    return None if least <= 0 else min(1.0, max(0.0, (rows + 2 * deviation) / least))
