"""The share of clipped rows and the error of rounding of a release: post-processing of public numbers.

**Clipping.** Only the numbers of a row are clipped: to the norm C' (``RowBound.numbers_norm``), beside categories and
booleans of known norm. A clipped row adds C'² to the trace of the exact second moment of the numbers. So their mean
squared norm over C'², m, is at least the share of clipped rows. The released trace gives m, free of charge, if n is
public or was released with the mean.

The trace does not show whether rows were clipped or had this norm already: rows about zero may all have the same norm.
For rows about a centre (14 tables, in their own units and standardised, clipped at 19 quantiles of their norms), the
middle half of the shares was .2 to .3 where m was .5 to .6, .25 to .4 at .6 to .7, .35 to .54 at .7 to .8 and .5 to .7
at .8 to .9, and in another table all rows were clipped there. "Perhaps" below refers to these values, for such rows
only. If m is 1 within the noise, nearly every row has norm C'. If the schema permits no longer row, none was clipped.

A release that chose its scale counts the longer rows, and one that chose its clip norm has a histogram of the norms:
then the share of clipped rows is between two ends with probability .95, by the noise of the counts; of a histogram the
bin with the clip norm counts for the upper end alone. This replaces the bound by the trace. Of 200 releases each of
27 tables at three epsilons it held the true share in .905 to 1 (``benchmarks/results/messy.md``, "clipped").

The noise of the trace has the variance ``d v + d (d - 1) c``. Here v is the variance of a diagonal entry, and c the
covariance of two of them: 0 for independent entries, and ``v - 2 w`` for a rotation-invariant distribution, with w the
variance of an entry off the diagonal. The larger of the two is used.

**Rounding.** :mod:`dpdist.core.rows.rounding` derives its distribution for rows rounded without bias.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dpdist.answers.noise_edge import CONFIDENCE, law_of
from dpdist.answers.skewed import clipping, skewed_message
from dpdist.core.mechanisms.counts import CountNoise, noise_from_json
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.naming import parameter, step
from dpdist.core.release.artefact import Release
from dpdist.core.rows.columns import shown
from dpdist.core.rows.rounding import LARGEST_SHARE, entry_variances, spectral_error
from dpdist.core.text import counted, listed, rounded_norm

if TYPE_CHECKING:
    from dpdist.core.pipeline.release import Outcome
    from dpdist.core.rows.columns import Column


@dataclass(frozen=True)
class Rounding:
    """The error of rounding, in the units of the components' eigenvalues."""

    grid_bits: int
    error: float  # bound on the change of an eigenvalue, at confidence 0.95
    share: float | None  # ``error`` over the edge of the noise at the same confidence; None if the edge is unknown
    shift: float  # bound on a further common increase of the eigenvalues if n is neither public nor released, else 0
    variances: tuple[float, float]  # upper bounds for a diagonal and an off-diagonal entry

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {
            "grid_bits": self.grid_bits,
            "rounding_error": self.error,
            "rounding_share": self.share,
            "rounding_shift": self.shift,
        }

    def describe(self) -> str:
        """Return one or two sentences."""
        share = "" if self.share is None else f", {100 * self.share:.2g} % of the noise"
        message = (
            f"Rounding to 2^{self.grid_bits} steps changes eigenvalues by at most {self.error:.3g} (confidence "
            f"{CONFIDENCE:g}){share}."
        )
        if self.shift:
            message += f" As n is private, it also raises all of them by the same amount, at most {self.shift:.3g}."
        return message


def rounding(release: Release) -> Rounding | None:
    """Return the error of rounding of a release; None if n has no public bound."""
    bound, count = release.bound, release.row_count
    rows = release.rows_at_most if count is None else count
    if release.subspace is not None or rows is None or rows <= 0:
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
    """Return a warning if the grid is too coarse for the noise, else an empty string."""
    error = rounding(release)
    return "" if error is None or error.share is None or error.share <= LARGEST_SHARE else f" {error.describe()}"


def described(outcome: Outcome) -> str:
    """Return the description of a published release, with what clipping and rounding did to it."""
    release = outcome.release
    if release.weights or not release.private_as_claimed:  # both are known for equal weights only
        return outcome.describe()
    said = outcome.describe(), f"{clipped_rows(release).warning()}{warning(release)}".strip(), skewed_message(release)
    return " ".join(filter(None, said))


_CONFIDENT = 1.96
"""Standard deviations to each side of a count of rows: probability 0.95, if its noise is nearly normal."""
_FAR = 3.0
"""Standard deviations that bound the noise of the trace with probability 0.998, if it is nearly normal."""
_GUESSES = {0.5: "perhaps a quarter", 0.6: "perhaps a third", 0.75: "perhaps half", 0.8: "perhaps most"}
"""Share of clipped rows about a centre, by the least mean squared norm over C'²."""
_MANY = 0.25
"""Share of clipped rows that causes a warning, if it was counted."""
_WARN_FROM = 0.6
"""Mean squared norm over C'² that causes a warning, as a third of the rows may be longer."""
_MOSTLY = 0.9
"""The same for rows about zero, most of which may have been clipped."""
_LARGEST_ERROR = 0.05
"""Relative error of the trace above which it is near ``n C²`` for any rows, so no conclusion is drawn."""


@dataclass(frozen=True)
class ClippedRows:
    """The norms of the rows, as known from a release."""

    norm: float  # C', in the units of the shifted and scaled rows
    share: float | None  # mean squared norm of the clipped rows over C'², as released; None if unknown
    error: float | None  # bound on the error of the share, with probability 0.998
    most: float | None = None  # bound on the share of longer rows, by the trace
    between: tuple[float, float] | None = None  # both ends of it (probability 0.95), by a count of rows
    longest: float | None = None  # largest norm permitted by the schema, if at most C'
    centred: bool = False  # whether rows were shifted by a centre before clipping
    dropping: tuple[str, ...] = ()  # columns whose missing values replace the row by the centre
    centring: bool = False  # missing cells count as the centre
    pairwise: bool = False  # some are counted, so that covariances are of the rows that have both values
    about: str = ""  # what the values are about if neither a mean nor a centre is known
    beside: bool = False  # only numbers were clipped, beside categories
    limits: tuple[str, ...] = ()  # what the schema did to values before, as parts of a sentence
    categories: bool = False  # the rows have some, about their middles
    skewed: tuple[str, ...] = ()  # columns without a transform that a histogram shows to be, and to reach the clip norm
    untouched: bool = False  # what an answer is about has no number, and so was not clipped
    ranged: bool = False  # by the schema there is a clip norm that clips no row
    kept: str = ""  # that only some rows of a privacy unit are, as part of a sentence
    unit: UnitWeights | None = None  # the privacy units whose rows are all kept; the shares are then of units

    @property
    def nearly_all(self) -> bool | None:
        """Whether nearly every bounded row has the clip norm; None if unknown."""
        if self.share is None or self.error is None or self.error > _LARGEST_ERROR:
            return None
        return self.share >= 1 - self.error

    @property
    def guess(self) -> str:
        """The share of rows about a centre that perhaps were clipped, as text; empty if few."""
        known = self.longest is not None or self.between is not None
        if not self.centred or known or self.share is None or self.error is None:
            return ""
        least = self.share - (self.error if self.error > _LARGEST_ERROR else 0)
        return ([""] + [text for share, text in _GUESSES.items() if least >= share])[-1]

    @property
    def clipped(self) -> str:
        """What is known of the share of clipped rows, as part of a sentence."""
        if self.longest is not None:
            return f"none is longer than {rounded_norm(self.longest)}"
        if self.between is not None and not (self.nearly_all and self.between[1] > _MOSTLY):  # all in the last bin
            low, high = (100 * end for end in self.between)
            return f"{_percent(low)} to {_percent(high)}% of them" if low else f"at most {_percent(high)}% of them"
        if self.nearly_all:
            return "nearly all were"
        if self.guess:
            return f"{self.guess} of them" + (self._bound and f", {self._bound}")
        if self.most is None:
            return "how many is unknown"
        return f"{self._bound or 'up to all'} of them"

    @property
    def noun(self) -> str:
        """The rows that answers are about."""
        return "clipped rows" if self.unit is None else "weighted rows"

    @property
    def _busy(self) -> str:
        """The share of units that weigh less; empty if unknown."""
        if self.between is None:
            return ""
        low, high = (_percent(100 * end) for end in self.between)
        return f"{low} to {high}%"

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
            "longer_at_most": 0.0 if self.longest is not None else self.between[1] if self.between else self.most,
            "longer_at_least": self.between[0] if self.between and self.longest is None else 0.0,
        }

    def warning(self) -> str:
        """Return a warning if perhaps a third of the rows or more were clipped, or units weigh less; else empty."""
        if self.unit is None and (self.nearly_all or not self._many):
            return self.alarm()
        return self.caveat("means, slopes, correlations and components")

    def caveat(self, what: str) -> str:
        """Return that nothing is known of these answers for the rows as they are; empty if no row was clipped."""
        return f"For the rows as they are, {what} are {self.unknown}." if self.unknown else ""

    @property
    def _many(self) -> bool:
        known = self.share is not None and self.error is not None and self.longest is None
        return known and self.between is not None and self.between[0] >= _MANY

    def alarm(self) -> str:
        """Return the warning beside a caveat, which says the rest; empty with a privacy unit."""
        if self.unit is not None or (self._many and not self.nearly_all):
            return ""
        if self.share is None or self.error is None or self.longest is not None:
            return ""
        if self.nearly_all:
            rows = "THE NUMBERS OF NEARLY EVERY ROW WERE" if self.beside else "NEARLY EVERY ROW WAS"
            return (
                f"{rows} CLIPPED to norm {rounded_norm(self.norm)}, or already had this norm, like "
                f"normalised rows: the mean squared norm is {100 * self.share:.4g} % of its square, with an error of "
                f"at most {100 * self.error:.2g} %. Variances of the original rows may be larger by any factor. "
                f"With {parameter('scale', 'private')} and {parameter('clip', 'auto')} few are clipped, in a release "
                "with a charge of its own."
            )
        few = self.between is not None or (self.most is not None and self.most < 1 / 3)
        if not self.centred and not few and self.error <= _LARGEST_ERROR and self.share - self.error >= _MOSTLY:
            rows = "The numbers of most rows" if self.beside else "Most rows"
            return (
                f"{rows} may have been clipped to norm {rounded_norm(self.norm)}, or are nearly as long: the mean "
                f"squared norm is {100 * self.share:.3g} % of its square. If they were clipped, slopes, correlations "
                f"and components of the original rows may be outside the intervals. A larger clip norm would show "
                f"which ({step('bound')})."
            )
        if not self.guess or few or self.share - self.error < _WARN_FROM:
            return ""
        rows = f"{self.guess[0].upper()}{self.guess[1:]} of the rows{self._bound and f', {self._bound},'}"
        rows += " had their numbers" if self.beside else " were"
        return (
            f"{rows} clipped to norm {rounded_norm(self.norm)}. The original rows have larger variances, and "
            "their slopes and components may be outside the intervals."
        )

    @property
    def unknown(self) -> str:
        """Why nothing is known of the rows as they are, as the end of a sentence; empty if no row was clipped."""
        if self.longest is not None or self.untouched:
            return ""
        if self.unit is not None:
            busy = f"the rows of {f'{self._busy} of all' if self._busy else 'some'} units of {self.unit.column} weigh"
            return f"unknown: {busy} less (with a larger clip norm fewer do, with more noise)"
        share = {"nearly all were": "nearly all of them", "how many is unknown": "some of them"}
        rows = share.get(self.clipped, self.clipped).replace("of them", "of the rows")
        fewer = [f"a transform of {listed(self.skewed)}"] if self.skewed else []
        if not self.ranged:
            fewer.append("a larger clip norm")
        cures = [f"{' or '.join(fewer)} clips fewer"] if fewer else []
        if self.ranged:
            cures.append(f"{parameter('clip', 'schema')} clips none")
        what = f"{'numbers of ' * self.beside}{rows}"
        cure = f"{', '.join(cures)}, in a release with a charge of its own; {step('forecast')} tells its noise"
        return f"unknown: {what} were clipped ({cure})"

    @property
    def filled(self) -> ClippedRows:
        """The same for an answer that takes every missing cell at the centre."""
        if not self.pairwise:
            return self
        middle = "with missing cells at the centre or, of booleans and scaled ranges, at the middle, which may create "
        return replace(self, pairwise=False, limits=(f"{middle}correlations", *self.limits))

    def describe(self) -> str:
        """Return a description of the rows, as part of a sentence with a result."""
        if self.unit is not None:
            clipped = f"{'their numbers' if self.beside else 'each'} clipped to norm {rounded_norm(self.norm)}"
            return self._described(f"of {self.unit.describe(self._busy, '' if self.untouched else clipped)}")
        what = "rows with numbers" if self.beside else "rows"
        clipped = f"of {what} clipped to norm {rounded_norm(self.norm)} ({self.clipped})"
        return self._described("of all rows" if self.untouched else clipped)

    def _described(self, text: str) -> str:
        text += f", about {self.about}, as no mean was released" if self.about else ""
        text += f", {self.kept}" if self.kept else ""
        filled = (
            ", with any missing cells set to the centre, which weakens correlations, slopes and differences of means"
        )
        text += filled if self.centring else ""
        text += ", from the rows that have both values of a pair, as if gaps were random" if self.pairwise else ""
        text += "".join(f", {limit}" for limit in self.limits)
        if not self.dropping:
            return text
        text += f", with rows that lack {listed(self.dropping)} replaced by the centre"
        return f"{text}, where all values of a category have the same share" if self.categories else text


def _percent(share: float) -> str:
    return f"{share:.0f}" if share >= 10 else f"{share:.2g}"


@dataclass(frozen=True)
class UnitWeights:
    """The weights of the rows of privacy units whose rows are all kept (:mod:`dpdist.core.rows.unit_moment`)."""

    column: str
    moment: float | None  # norm of the mean moment of a row over B; None if unknown
    row: float | None  # that of the moment of a row of mean squared norm
    total: tuple[float, float] | None = None  # 95 % interval of the sum of all weights
    rows: int | None = None  # n, if it is public

    @property
    def full(self) -> float | None:
        """Typical, independent rows of a unit up to which they weigh 1, about; None if unknown."""
        if self.moment is None or self.row is None:
            return None
        # the mean of the squared norm of the moment of m such rows is m² moment² + m (row² - moment²)
        a, b = self.moment**2, max(0.0, self.row**2 - self.moment**2)
        return max(1.0, (math.sqrt(b * b + 4 * a) - b) / (2 * a))

    def weight(self, rows: float) -> float:
        """Return the weight of each row of a unit of typical rows, about; 1 if unknown."""
        if self.moment is None or self.row is None:
            return 1.0
        square = rows * rows * self.moment**2 + rows * max(0.0, self.row**2 - self.moment**2)
        return min(1.0, 1 / math.sqrt(square))

    def describe(self, share: str, clipped: str) -> str:
        """Return a description of the weighted rows, as part of a sentence; ``share`` is that of the busy units."""
        details = [f"{share} of them"] if share else []
        if self.full is not None and self.row is not None:
            alike, busy = max(1.0, min(self.full, 1 / self.row)), 2 * math.ceil(self.full)
            least = min(self.weight(busy), 1 / (busy * self.row))
            details += [
                f"with typical rows from about {_span(alike, self.full, '.0f')} on, the fewer the more alike they are",
                f"{counted(busy, 'typical row')} weigh {_span(least, self.weight(busy), '.2g')} each",
            ]
        if self.total is not None and self.rows is not None:
            step = 10.0 ** (math.floor(math.log10(max(self.total[1], 1))) - 2)
            low, high = math.floor(self.total[0] / step) * step, min(math.ceil(self.total[1] / step) * step, self.rows)
            details.append(f"all weights add up to {_span(low, high, '.0f')} of {self.rows} rows")
        rows = "all rows, " + f"{clipped}, " * bool(clipped)
        text = f"{rows}where those of a {self.column} with many or long ones weigh less"
        return f"{text} ({'; '.join(details)})" if details else text


def _span(low: float, high: float, form: str) -> str:
    """Return two numbers as text, or one if they are equal as shown."""
    ends = f"{low:{form}}", f"{high:{form}}"
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def unit_weights(release: Release) -> UnitWeights | None:
    """Return the weights of rows of privacy units; None if each row, or a number of them, is bounded alone."""
    if not release.bound.unit_norm or release.unit is None:
        return None
    column, total, noise = release.unit.column, release.row_count, release.noise
    if release.subspace is not None or not release.in_memory or not total or total <= 0:
        return UnitWeights(column, None, None)
    moment, d = release.lattice.astype(np.float64), release.bound.columns
    moment[np.diag_indices(d)] -= release.rounding_diagonal / release.bound.unit**2
    moment[np.diag_indices(len(moment))] -= noise.mean_diagonal
    on, off, width = noise.variance_diagonal or 0.0, noise.variance_off_diagonal or 0.0, len(moment)
    square = float((moment**2).sum()) - width * on - width * (width - 1) * off
    trace, limit = float(np.trace(moment)) / total, float(release.bound.norm_bound)
    reach = _CONFIDENT * _deviation_of_rows(release)
    if square <= 0 or reach > total / 2 or _FAR * trace_deviation(noise, width) > trace * total / 2:
        return UnitWeights(column, None, None)  # of more noise than anything else
    norm = trace if release.bound.unit_norm == "trace" else math.sqrt(square) / total
    return UnitWeights(column, min(norm, trace) / limit, trace / limit, (total - reach, total + reach), release.rows)


def trace_deviation(noise: Noise, columns: int) -> float:
    """Return an upper bound on the standard deviation of the trace of the noise, in lattice units."""
    on, off = noise.variance_diagonal or 0.0, noise.variance_off_diagonal or 0.0
    return math.sqrt(columns * on + columns * (columns - 1) * max(0.0, on - 2 * off))


def clipped_rows(release: Release, columns: Sequence[int] | None = None) -> ClippedRows:
    """Return the norms of the rows as known from the diagonal of a release, for an answer about some or all columns."""
    bound, noise = release.bound, release.noise
    numbers, norm = bound.numbers or range(bound.columns), bound.numbers_norm or bound.shortened_norm
    d, centre = len(numbers), bound.centre or (0.0,) * bound.columns
    longest, between, centred = _schema_norm(release), _longer_share(release), any(centre[place] for place in numbers)
    schema, beside = release.schema, bool(bound.whole) and d < bound.columns
    used = described_by(release, columns)
    known = ClippedRows(
        norm, None, None, None, between, longest, centred, () if schema is None else schema.dropping,
        any(column.missing == "centre" for column in used), any(column.missing == "pairwise" for column in used),
        origin_of(release), beside, limits_of(used), _of_contrasts(release),
        tuple(clipping(release)), columns is not None and beside and not {*columns} & {*numbers},
        schema is not None and schema.clip_norm is not None and not schema.uncentred,
        _kept(release), unit_weights(release),
    )  # fmt: skip
    if known.unit is not None:  # the trace says nothing of a unit
        return known
    rows = None if release.subspace is not None or release.weights else release.row_count
    if rows is None or rows <= 0 or noise.variance_diagonal is None:
        return known
    largest = rows * norm**2
    trace = float(release.moment_diagonal[list(numbers)].sum()) - d * noise.mean_diagonal * bound.unit**2
    deviation = trace_deviation(noise, d) * bound.unit**2
    # of 2 x.e + |e|²: rounding has no bias on the trace
    grid = _FAR * math.sqrt(rows * (4**bound.grid_bits + 3 * d / 16)) * bound.unit**2 / largest
    if release.exact_count is None:  # n is an estimate, by the corner of the moment
        grid += trace / largest * _FAR * _deviation_of_rows(release) / rows
    share, error = trace / largest, _FAR * deviation / largest + grid
    return replace(known, share=share, error=error, most=min(1.0, max(0.0, share + error)))


def _kept(release: Release) -> str:
    """Return that only some rows of a privacy unit are in a release, as part of a sentence; empty if all are."""
    unit = release.unit
    if unit is None or unit.max_rows is None:
        return ""
    periods = "" if unit.max_periods is None else " and period"
    return f"without rows beyond {unit.max_rows} of a {unit.column}{periods}"


def _of_contrasts(release: Release) -> bool:
    """Whether categories are about their public middles, at which all values have the same share."""
    schema, centre = release.schema, release.bound.centre
    if schema is None or centre is None or not any(column.one_hot for column in schema.columns):
        return False
    middles = schema.contrasts()[0]
    return all(centre[place] == middles[place] for place in schema.whole().columns)


def described_by(release: Release, columns: Sequence[int] | None) -> list[Column]:
    """Return the columns of the schema from which some or all columns of a release are derived."""
    names = {*release.names} if columns is None else {release.names[place] for place in columns}
    schema = () if release.schema is None else release.schema.columns
    return [column for column in schema if column.stored and names & {*column.features}]


def limits_of(columns: Sequence[Column]) -> tuple[str, ...]:
    """Return what a schema did to values before rows were clipped, as parts of a sentence."""
    ranged = any(column.range is not None for column in columns)
    filled = [
        column for column in columns
        if column.missing == "fill" or (column.missing == "indicator" and not column.one_hot)
    ]  # fmt: skip
    middle = [column.name for column in filled if column.fill is None and column.ends is not None]
    named = [
        f"{column.name} at {0 if column.fill is None else shown(column.fill)}"
        for column in filled if column.name not in middle
    ]  # fmt: skip
    if middle:
        named.append(f"{listed(middle)} at the middle of {'its range' if len(middle) == 1 else 'their ranges'}")
    beyond = "with any values outside a public range set to its end" if ranged else ""
    absent = f"with missing values of {', and of '.join(named)}, which moves means and slopes" if named else ""
    return tuple(filter(None, (beyond, absent)))


def origin_of(release: Release) -> str:
    """Return what a release without a mean and a centre is about; empty if it has one."""
    chosen = release.stage is not None and "centre" in release.stage.chosen
    if chosen and release.bound.unit_norm and release.unit is not None and not release.bound.constant:
        return f"a centre that counts each {release.unit.column} once"
    if release.bound.constant or release.bound.centre is not None or release.subspace is not None:
        return ""
    ranged = release.schema is not None and release.schema.scale == "range"
    return "the middle of each range" if ranged else "zero"


def _deviation_of_rows(release: Release) -> float:
    """Return the standard deviation of a private n."""
    constant, variance = release.bound.constant, release.noise.variance_diagonal
    return math.sqrt(variance) / constant**2 if constant and variance else 0.0


def _schema_norm(release: Release) -> float | None:
    """Return the largest norm permitted by the schema, if it is at most the one that rows are clipped to."""
    bound, schema = release.bound, release.schema
    if bound.unit_norm:  # a unit may have any number of rows
        return None
    if not bound.numbers:
        return bound.whole_norm
    if schema is None or schema.numbers_norm is None:
        return None
    shifts, scales = bound.input_units
    shifted = any(shifts[place] or scales[place] != 1 for place in bound.numbers)
    return None if shifted or schema.numbers_norm > bound.numbers_norm else schema.numbers_norm


def _longer_share(release: Release) -> tuple[float, float] | None:
    """Return the ends of the share of longer rows from the release's own counts of norms; None without any."""
    stage, n = release.stage, release.row_count
    answer = {} if stage is None else stage.answer.get("norms", stage.answer)
    if (n is None and not release.bound.unit_norm) or not {"counts", "edges", "noise"} <= answer.keys():
        return None
    counts, edges, noise = answer["counts"], answer["edges"], noise_from_json(answer["noise"])
    edge, exact = release.bound.clip_edge, release.exact_count
    first = bisect_right(edges, edge)  # the bin that contains the clip norm, or begins with it
    begins = first > 0 and edges[first - 1] == edge
    of_n = 0.0 if exact is not None else 2 * _deviation_of_rows(release)
    if release.bound.unit_norm:  # counts are of units, and their number is known by these alone
        n, of_n = float(sum(counts)), 2 * math.sqrt(noise.variance * len(counts))
        if n <= of_n:  # too few to be seen
            return None
    low = _counted(counts, noise, first + (not begins), exact, -_CONFIDENT) / ((n or 0.0) + of_n)
    high = _counted(counts, noise, first, exact, _CONFIDENT) / max(1.0, (n or 0.0) - of_n)
    return min(1.0, max(0.0, low)), min(1.0, max(0.0, high))


def _counted(counts: Sequence[int], noise: CountNoise, first: int, rows: int | None, deviations: float) -> float:
    """Return the rows in the bins from ``first`` on, plus a number of standard deviations."""
    bins, kept = len(counts), len(counts) - first
    weight = 0.0 if rows is None else kept / bins  # a public n removes part of the noise
    counted = sum(counts[first:]) - weight * (sum(counts) - (rows or 0))
    return counted + deviations * math.sqrt(noise.variance * kept * (1 - weight))
