"""Whether nearly all rows of a release were shortened: then its values say little of the rows as they were.

Rows longer than C' are shortened to it: the clip norm C, or the little less than it that leaves room for rounding
(``RowBound.shortened_norm``). So the trace of the exact second moment is at most ``n C'²``. A
trace close to that shows that nearly all rows have norm C' afterwards: if the trace is ``(1 - s) n C'²``, at most a
share ``2 s`` of the rows has a squared norm below half of C'². Comparing the released trace with ``n C'²`` is free
post-processing. It needs a public n.

A smaller share tells less. If the mean squared norm is ``(1 - s) C'²``, at least a share ``1 - 2 s`` of the rows has a
squared norm of half of C'² or more (Markov's inequality for ``1 - r² / C'²``). Whether these were shortened, or are as
long as that by themselves, the trace does not tell.

The noise of the trace has the variance ``d v + d (d - 1) c``. Here v is the variance of an entry on the diagonal, and c
the covariance of two of them. c is 0 where entries are independent, and ``v - 2 w`` where the law is invariant under
rotations, with w the variance of an entry off the diagonal. The larger of the two is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpdist._util.text import rounded_norm
from dpdist.mechanisms.noise_law import Noise
from dpdist.naming import step
from dpdist.release.artefact import Release
from dpdist.rows.bounding import DITHERED

_FAR = 3.0
"""Standard deviations that the noise of the trace stays below with probability 0.998, if it is about normal."""
_MANY = 0.85
"""Mean squared norm over C'² from which on this is said: 0.7 of the rows have half of C'² or more."""
_LARGEST_ERROR = 0.05
"""Relative error of the trace from which on nothing is said: it would be near ``n C²`` for any rows."""


@dataclass(frozen=True)
class Shortened:
    """How long rows are, as far as a release tells.

    Attributes
    ----------
    norm
        C', in the units of the shifted and scaled rows.
    share
        Mean squared norm of the shortened rows over C'², as released; None where that is not known: n is private, a
        subspace was released, or nobody knows the variance of the noise.
    error
        What the share is off by at most, with probability 0.998; None likewise.
    """

    norm: float
    share: float | None
    error: float | None

    @property
    def nearly_all(self) -> bool | None:
        """Whether nearly every row is as long as the clip norm after it was bounded; None where that is not known."""
        if self.share is None or self.error is None or self.error > _LARGEST_ERROR:
            return None
        return self.share >= 1 - self.error

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {
            "norm": self.norm,
            "mean_squared_norm_share": self.share,
            "error": self.error,
            "nearly_all": self.nearly_all,
        }

    def warning(self) -> str:
        """Return a warning where nearly every row was shortened; else nothing."""
        if not self.nearly_all or self.share is None or self.error is None:
            return ""
        return (
            f"NEARLY EVERY ROW WAS SHORTENED to norm {rounded_norm(self.norm)}, or has just this norm, as "
            f"normalised rows have: their mean squared norm is {100 * self.share:.4g} % of its square, at most "
            f"{100 * self.error:.2g} % off. Variances of the rows as they are may be larger by any factor. Choose the "
            f"clip norm privately ({step('bound')}) and release again."
        )

    def note(self) -> str:
        """Return a sentence where nearly all rows are not shortened for sure, and many may be; else nothing."""
        if self.nearly_all or self.share is None or self.error is None or self.share - self.error < _MANY:
            return ""
        long = math.floor(100 * (1 - 2 * max(0.0, 1 - (self.share - self.error))))
        return (
            f"Many rows may have been shortened to norm {rounded_norm(self.norm)}, or be about as long by themselves: "
            f"their mean squared norm is {100 * self.share:.3g} % of its square, at most {100 * self.error:.2g} % off, "
            f"so {long} % of them or more are longer than 0.7 times it. {step('bound')} chooses a clip norm privately."
        )

    def words(self) -> str:
        """Return of which rows all values are."""
        return f"All values, exact ones included, are of rows shortened to norm {rounded_norm(self.norm)}."


def trace_deviation(noise: Noise, columns: int) -> float:
    """Return the standard deviation of the trace of noise on entries, or more, in lattice units."""
    on, off = noise.variance_diagonal or 0.0, noise.variance_off_diagonal or 0.0
    return math.sqrt(columns * on + columns * (columns - 1) * max(0.0, on - 2 * off))


def shortened(release: Release) -> Shortened:
    """Say how long the rows of a release are, as far as it tells: from its diagonal."""
    bound, noise, rows = release.bound, release.noise, release.rows
    d, norm = bound.columns, bound.shortened_norm
    if release.subspace is not None or not rows or noise.variance_diagonal is None:
        return Shortened(norm, None, None)
    largest = rows * norm**2
    trace = float(release.moment_diagonal.sum()) - d * noise.mean_diagonal * bound.unit**2
    deviation = trace_deviation(noise, d) * bound.unit**2
    if bound.rule == DITHERED:  # of 2 x.e + |e|²: rounding leaves the mean of the trace as it is
        grid = _FAR * math.sqrt(rows * (4**bound.grid_bits + 3 * d / 16)) * bound.unit**2 / largest
    else:
        grid = 2 * math.sqrt(d) / 2**bound.grid_bits  # a row's entries are each cut to whole steps
    return Shortened(norm, trace / largest, _FAR * deviation / largest + grid)
