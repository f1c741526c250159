"""How many rows of a release were clipped: then its values say less of the rows as they were.

Rows longer than C' are clipped to it: the clip norm C, or the little less than it that leaves room for rounding
(``RowBound.shortened_norm``). A clipped row adds C'² to the trace of the exact second moment. So the mean squared norm
over C'², m, is at least the share of the rows that were clipped. The released trace tells m, free of charge, where n is
public or was released with the mean.

Whether rows were clipped, or are as long as that by themselves, the trace does not tell. Rows about zero may all have
the same norm. Of rows about a centre, 14 tables in their own units and standardised, clipped at 19 quantiles of their
norms each, the middle half of the shares was .2 to .3 where m was .5 to .6, .25 to .4 at .6 to .7, .35 to .54 at .7 to
.8 and .5 to .7 at .8 to .9. That is what "perhaps" says below, of such rows only. If m is 1 as far as the noise lets
see, nearly every row has norm C'. A release that chose its clip norm from a histogram of the norms knows more. One
whose schema lets no row be longer knows that none was clipped.

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
_SAID = {0.5: "perhaps a quarter", 0.6: "perhaps a third", 0.75: "perhaps half"}
"""Of rows about a centre, by the mean squared norm over C'² from which on it is said."""
_WARNED, _WARNED_LONGER = 0.6, 1 / 3
"""That, or the share of longer rows, from which on a warning is given."""
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
    longer
        The share of the rows that were longer, as the release's own histogram of the norms tells, or 0 where a schema
        lets no row be longer; None where neither tells.
    centred
        Whether rows were shifted by a centre before they were clipped.
    """

    norm: float
    share: float | None
    error: float | None
    longer: float | None = None
    centred: bool = False

    @property
    def nearly_all(self) -> bool | None:
        """Whether nearly every row is as long as the clip norm after it was bounded; None where that is not known."""
        if self.share is None or self.error is None or self.error > _LARGEST_ERROR:
            return None
        return self.share >= 1 - self.error

    @property
    def many(self) -> str:
        """How many rows were clipped, where a quarter or more may have been, as part of a sentence; else nothing."""
        if self.longer is not None:
            return f"about {self.longer:.0%} of the rows" if self.longer >= _WARNED_LONGER else ""
        if self.share is None or self.error is None:
            return ""
        said = [words for least, words in _SAID.items() if self.share - self.error >= least]
        most = f"at most {min(1.0, self.share + self.error):.0%}"
        return "" if not said else f"{said[-1]} of the rows, {most}" if self.centred else f"{most} of the rows"

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {
            "norm": self.norm,
            "mean_squared_norm_share": self.share,
            "error": self.error,
            "nearly_all": self.nearly_all,
            "longer": self.longer,
        }

    def warning(self) -> str:
        """Return a warning where perhaps a third of the rows were clipped, or nearly all; else nothing."""
        if self.nearly_all and self.longer is None and self.share is not None and self.error is not None:
            return (
                f"NEARLY EVERY ROW WAS CLIPPED to norm {rounded_norm(self.norm)}, or has just this norm, as "
                f"normalised rows have: their mean squared norm is {100 * self.share:.4g} % of its square, at most "
                f"{100 * self.error:.2g} % off. Variances of the rows as they are may be larger by any factor. Choose "
                f"the clip norm privately ({step('bound')}) and release again."
            )
        known = self.longer is not None
        if not self.many or not (known or (self.centred and (self.share or 0) - (self.error or 0) >= _WARNED)):
            return ""
        many = f"{self.many[0].upper()}{self.many[1:]}{'' if known else ','}"
        return (
            f"{many} were clipped to norm {rounded_norm(self.norm)}. Of the rows as they are, variances are larger, "
            "and slopes and components may be off by more than their intervals."
        )

    def words(self) -> str:
        """Return of which rows all values are, as part of the sentence that gives an answer."""
        most = "nearly all were" if self.nearly_all and self.longer is None else self.many
        if self.longer is not None and not self.many:
            most = "none is longer" if not self.longer else f"about {self.longer:.0%} of them were"
        return f"of rows clipped to norm {rounded_norm(self.norm)}{most and f' ({most})'}"


def trace_deviation(noise: Noise, columns: int) -> float:
    """Return the standard deviation of the trace of noise on entries, or more, in lattice units."""
    on, off = noise.variance_diagonal or 0.0, noise.variance_off_diagonal or 0.0
    return math.sqrt(columns * on + columns * (columns - 1) * max(0.0, on - 2 * off))


def shortened(release: Release) -> Shortened:
    """Say how long the rows of a release are, as far as it tells: from its diagonal."""
    bound, noise = release.bound, release.noise
    d, norm, longer = bound.columns, bound.shortened_norm, _longer(release)
    rows = None if release.subspace is not None or release.weights else release.row_count
    if rows is None or rows <= 0 or noise.variance_diagonal is None:
        return Shortened(norm, None, None, longer, bound.centre is not None)
    largest = rows * norm**2
    trace = float(release.moment_diagonal.sum()) - d * noise.mean_diagonal * bound.unit**2
    deviation = trace_deviation(noise, d) * bound.unit**2
    if bound.rule == DITHERED:  # of 2 x.e + |e|²: rounding leaves the mean of the trace as it is
        grid = _FAR * math.sqrt(rows * (4**bound.grid_bits + 3 * d / 16)) * bound.unit**2 / largest
    else:
        grid = 2 * math.sqrt(d) / 2**bound.grid_bits  # a row's entries are each cut to whole steps
    if release.rows is None:  # n is an estimate, by the corner of the moment
        grid += trace / largest * _FAR * math.sqrt(noise.variance_diagonal) / bound.constant**2 / rows
    return Shortened(norm, trace / largest, _FAR * deviation / largest + grid, longer, bound.centre is not None)


def _longer(release: Release) -> float | None:
    """Return the share of the rows that were longer than the clip norm, where more than the trace tells it."""
    bound, schema, stage = release.bound, release.schema, release.stage
    as_given = bound.centre is None and bound.scale is None
    if as_given and schema is not None and schema.norm is not None and schema.norm <= bound.clip_norm:
        return 0.0
    quantile = None if stage is None else stage.chosen.get("quantile")
    return None if not isinstance(quantile, float) else 1 - quantile
