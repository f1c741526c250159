"""Forecast of a release before it is charged. A forecast uses public numbers only, so it costs nothing.

The noise of a mechanism depends on d, the clip norm, epsilon and delta. The signal grows with the number of rows: a
component with share v of the squared norm of each row has the exact eigenvalue ``theta = n v``. Its expected squared
cosine is ``1 - R'(g) h``, with ``g`` and ``h`` the means of ``1/(theta - theta_j)`` and of its square over all other
columns (0 if not guessed), and R the R-transform of the noise. This is the measure of :mod:`dpdist.answers.overlap` for
exact eigenvalues; components are counted and grouped by its rules. Near the number of rows reported as needed, chance
decides: fewer than half of the releases show the component there. The guessed spectrum must be public; computing it
from the table would leak information.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpdist.answers.noise_edge import CONFIDENCE, NoiseLaw, law_of
from dpdist.answers.overlap import FAR, GAP, REACH, cut
from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.base import is_private_as_claimed
from dpdist.core.mechanisms.info import DeltaUse
from dpdist.core.mechanisms.registry import MECHANISMS
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.naming import parameter, step
from dpdist.core.privacy.checks import LARGEST_EPSILON, cautions
from dpdist.core.privacy.guarantee import MICRO, Neighbours, PrivacyLoss
from dpdist.core.privacy.persons import rows_charged
from dpdist.core.release.advice import two_digits
from dpdist.core.release.bounds import Dimensions, calibrated, require_schema
from dpdist.core.release.clip_trade import Trade, trades
from dpdist.core.release.plan import Plan, planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.rounding import spectral_error
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Unit

GOOD = 0.9
"""Squared cosine of a good component."""
_MOST_ROWS = 2**63
SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Shares of C² per row for which a forecast without a guess reports the number of rows needed."""


@dataclass(frozen=True)
class Expected:
    """The expectation for one component."""

    variance: float  # its guessed eigenvalue per row, in squared units of the bounded rows
    squared_cosine: float  # with the exact component, or between spans if several are indistinguishable
    told: bool  # whether it is expected to be above the noise
    rows_to_see: int | None  # rows needed for that; None: no number suffices, as others are equally strong
    rows_for_good: int | None  # rows needed for its own squared cosine to reach 0.9


@dataclass(frozen=True)
class Person:
    """A privacy unit that owns several rows and is protected as a whole."""

    max_rows: int | None = 1  # None: all of them, bounded together
    max_periods: int | None = None

    def __post_init__(self) -> None:
        Unit("", self.max_rows, max_periods=self.max_periods)  # validates the numbers

    @property
    def counted_once(self) -> int:
        """Rows charged for a release of one period, or of a table without periods."""
        return (self.max_rows or 1) * rows_charged(self.max_periods or 1, 1)

    @property
    def counted_at_most(self) -> int:
        """Rows of one period charged for a release of max_periods or more periods, or with weights."""
        return (self.max_rows or 1) * rows_charged(self.max_periods or 1, self.max_periods or 1)

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        counted = {"counted_rows": self.counted_once, "counted_rows_at_most": self.counted_at_most}
        return {"max_rows": self.max_rows, "max_periods": self.max_periods, **counted}


@dataclass(frozen=True)
class Forecast:
    """The noise of a planned release, and the components expected above it; per row, in units of the bounded rows."""

    plan: Plan  # of the release, with the mechanism of its moment after private choices
    rows: int
    person: Person
    error: float  # standard deviation of the noise in an entry off the diagonal
    edge: float  # largest eigenvalue of the noise, at confidence 0.95
    rounding: float  # bound on the change of an eigenvalue by rounding, at confidence 0.95
    threshold: float  # variance of a single component needed to be above the noise
    expected: tuple[Expected, ...]  # one per guessed variance or, without a guess, per share of C²
    guessed: bool  # whether the variances were guessed
    law: NoiseLaw  # distribution of the noise, for the sum of all rows
    alternatives: tuple[tuple[str, float], ...]  # private mechanisms of this loss and their thresholds, best first
    trades: tuple[Trade, ...] = ()  # costs of each guessed norm as a clip norm
    nothing: str = ""  # a sentence if no component is expected above the noise

    @property
    def request(self) -> ReleaseRequest:
        """The request of the release."""
        return self.plan.request

    @property
    def columns(self) -> int:
        """The number of columns."""
        return self.plan.dimensions.columns

    def __repr__(self) -> str:
        summary = f"{self.seen} of {len(self.expected)} components seen" if self.guessed else f"edge {self.edge:.4g}"
        return f"Forecast({self.request.mechanism}, d={self.columns}, n={self.rows}, {summary})"

    @property
    def largest(self) -> float:
        """C², the largest squared norm of a row."""
        return self.plan.bound.row_norm**2

    @property
    def rounding_share(self) -> float:
        """The error of rounding over the edge of the noise."""
        return self.rounding / self.edge

    @property
    def bingham_gap(self) -> float | None:
        """The gap per row up to which `bingham` is better for one component; None unless `two-sided-wishart` is asked.

        Measured for a flat rest of the spectrum.
        """
        if self.request.mechanism != "two-sided-wishart" or self.columns == 1 or self.person.counted_once > 1:
            return None
        nuclear = LatticeQuery(self.columns, 1, self.request.neighbours).nuclear
        gap = MECHANISMS["bingham"].info.gap
        return (
            None if gap is None else gap * self.columns * nuclear * self.largest / (self.plan.loss.epsilon * self.rows)
        )

    @property
    def cautions(self) -> tuple[str, ...]:
        """Warnings about a weak guarantee, one or two sentences each."""
        return cautions(self.plan.loss, self.request.neighbours, self.rows)

    @property
    def seen(self) -> int:
        """Number of guessed components expected above the noise."""
        return sum(e.told for e in self.expected)

    def cosine_at(self, rows: float, component: int) -> float:
        """Return the expected squared cosine of a component, counted from 0, for a number of rows."""
        spectrum = [expected.variance for expected in self.expected]
        if not self.guessed:
            spectrum, component = [spectrum[component]], 0
        return _cosine(self.law, rows, spectrum, component)

    def to_json(self) -> dict[str, object]:
        """Return the forecast as JSON values."""
        return {
            "mechanism": self.request.mechanism,
            "epsilon": self.plan.loss.epsilon,
            "delta": self.plan.loss.delta,
            "neighbours": self.request.neighbours.value,
            "clip_norm": self.plan.bound.clip_norm,
            "d": self.columns,
            "n": self.rows,
            "person": self.person.to_json(),
            "entry_standard_deviation": self.error,
            "noise_edge": self.edge,
            "grid_bits": self.plan.bound.grid_bits,
            "rounding_error": self.rounding,
            "rounding_share": self.rounding_share,
            "threshold": self.threshold,
            "guessed": self.guessed,
            "components_seen": self.seen if self.guessed else None,
            "nothing": self.nothing or None,
            "bingham_gap": self.bingham_gap,
            "components": [vars(e) for e in self.expected],
            "cautions": list(self.cautions),
            "alternatives": [{"mechanism": name, "threshold": value} for name, value in self.alternatives],
            "trades": [vars(trade) for trade in self.trades],
        }


def forecast_release(
    request: ReleaseRequest,
    columns: int,
    rows: int,
    spectrum: Sequence[float] = (),
    norms: Sequence[float] = (),
    *,
    max_rows: int | None = 1,
    max_periods: int | None = None,
    schema: Schema | None = None,
) -> Forecast:
    """Forecast the noise of a release and the components above it, at no cost.

    The forecast uses public numbers only.

    Parameters
    ----------
    request : ReleaseRequest
        The planned release; its clip norm bounds the rows. If the release chooses its clip norm or a scale itself, the
        forecast is for the moment that follows, at its part of the loss: in units of the clip norm (C = 1), or in
        scaled units.
    columns : int
        Number of columns d of the table.
    rows : int
        Number of rows n of the table, or a public guess.
    spectrum : sequence of float, default ()
        Guessed eigenvalues of the second moment per row, in squared units of the bounded rows, largest first. They must
        be public; computing them from the rows would leak information. Empty: shares of the squared clip norm are used.
    norms : sequence of float, default ()
        Guessed norms of the rows at equally spaced quantiles, such as deciles. They must be public too. Each is
        evaluated as a clip norm, whatever that of the request: noise against clipping.
    max_rows : int or None, default 1
        Largest number of rows of a privacy unit, from 1 to 2^20; if rows come in periods, in each period. None: all
        rows of a unit are kept, and the clip norm is that of their second moment.
    max_periods : int or None, default None
        Largest number of periods with rows of one privacy unit, from 1 to 4096, for ``gaussian`` only. The forecast is
        then for the release of one period with ``rows`` rows.
    schema : Schema, default None
        The schema of the rows: beside numbers of a clip norm, its categories and booleans have their own norm.

    Returns
    -------
    Forecast
        ``error``, ``edge``, ``threshold`` and ``rounding`` (float, per row, in squared units of the bounded rows),
        ``expected`` (one per guessed eigenvalue), ``seen``, ``alternatives``, and ``trades`` (one per guessed norm).

    Raises
    ------
    UsageError
        If there are no rows, the spectrum or a norm is impossible, a privacy unit has no rows or too many, or the
        mechanism adds no noise with a known edge or does not support a privacy unit in several periods.
    RefusedError
        If the mechanism is not private as claimed.

    See Also
    --------
    release_rows : Makes the release.
    fit_components : Reports the same for a release.

    References
    ----------
    Biane 1998; Benaych-Georges & Nadakuditi 2011, theorems 2.1 and 2.2 (:mod:`dpdist.answers.overlap`).

    Examples
    --------
    >>> import dpdist
    >>> request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, 1e-6), clip_norm=2500)
    >>> dpdist.forecast_release(request, columns=784, rows=60000, spectrum=[5e5, 2e5, 5e4, 1e4])
    Forecast(gaussian, d=784, n=60000, 3 of 4 components seen)
    """
    if rows < 1:
        raise UsageError("A forecast needs at least one row.", parameter="n")
    person = Person(max_rows, max_periods)
    if max_periods is not None and request.mechanism != "gaussian":
        raise UsageError(
            f"Only gaussian supports a privacy unit with rows in several periods, not {request.mechanism}. Use "
            f"gaussian, or leave out {parameter('max_periods')}."
        )
    counted = person.counted_once
    public = rows if request.neighbours is Neighbours.REPLACE_ONE else None
    require_schema(request, schema)
    plan = planned(request, Dimensions(columns, public, counted, counted, schema, together=max_rows is None))
    bound = plan.bound
    largest = bound.row_norm**2
    if len(spectrum) > columns or any(v <= 0 for v in spectrum) or sum(spectrum) > largest * (1 + 1e-9):
        raise UsageError(
            f"The guessed spectrum has too many numbers, one that is not positive, or too large a sum. Pass at most "
            f"{columns} positive numbers with a sum of at most the squared clip norm, {largest:g}.",
            parameter="spectrum",
        )
    if any(not 0 < norm < math.inf for norm in norms):
        raise UsageError("The guessed norms of rows must be positive and finite.", parameter="norms")
    law = _noise_law(plan, plan.loss)
    if law is None:
        raise UsageError(
            f"There is no forecast for {request.mechanism}, as the largest eigenvalue of its noise is unknown. Use "
            f"gaussian or two-sided-wishart. {step('mechanisms')} lists the output of each mechanism."
        )
    noise, unit = plan.moment.noise, bound.unit**2
    error, edge = math.sqrt(noise.variance_off_diagonal or 0.0) * unit, law.edge_at(CONFIDENCE)
    spectrum = sorted(spectrum, reverse=True)
    cases = [(spectrum, i) for i in range(len(spectrum))] or [([share * largest], 0) for share in SHARES]
    expected = tuple(_expected(law, eigenvalues, rows, i) for eigenvalues, i in cases)
    threshold = _strength_for(law) / rows
    return Forecast(
        plan=plan,
        rows=rows,
        person=person,
        error=error / rows,
        edge=edge / rows,
        rounding=spectral_error(rows, columns, bound.grid_bits) * unit / rows,
        threshold=threshold,
        expected=expected,
        guessed=bool(spectrum),
        law=law,
        alternatives=_alternatives(plan, rows, person),
        trades=trades(norms, columns, rows, error / largest, edge / largest) if norms else (),
        nothing=_needed_of_guess(expected) if spectrum else _needed(plan, rows, threshold),
    )


def _needed_of_guess(expected: Sequence[Expected]) -> str:
    if any(component.told for component in expected):
        return ""
    needed = [component.rows_to_see for component in expected if component.rows_to_see is not None]
    takes = f"the first needs {min(needed)} rows" if needed else "no number of rows suffices"
    return f"No component of this guess will be above the noise: {takes}."


def _needed(plan: Plan, rows: int, threshold: float) -> str:
    """Return the rows or epsilon needed if not even a component with all of C² is above the noise, else nothing."""
    # columns with a private scale and clip ``auto`` have a third of C² as their whole variance
    request = plan.request
    scaled = request.scale == "private" and request.clip_norm == "auto"
    largest = plan.bound.row_norm**2 / (3 if scaled else 1)
    if threshold <= largest:
        return ""
    enough, micro, excess = "", plan.loss.epsilon_micro, threshold / largest
    part = request.loss.epsilon_micro / micro
    while not enough and part * micro * excess < LARGEST_EPSILON * MICRO:
        micro = math.ceil(micro * max(1.05, excess))  # noise decreases like 1 / epsilon, or slightly slower
        law = _noise_law(plan, replace(plan.loss, epsilon_micro=micro))
        excess = math.inf if law is None else _strength_for(law) / rows / largest
        if excess <= 1:
            enough = f", or {parameter('epsilon', f'{two_digits(part * micro) / MICRO:g}')}"
    share = "a third of C², the whole variance of scaled columns," if scaled else "all of C²"
    return (
        f"No component will be above the noise, not even one with {share} of each row. This needs "
        f"{math.ceil(rows * threshold / largest)} rows{enough}."
    )


def _noise_law(plan: Plan, loss: PrivacyLoss) -> NoiseLaw | None:
    """Return the distribution of the noise of the moment at a loss, in units of bounded rows."""
    return law_of(plan.noise_at(loss).noise, plan.dimensions.columns, plan.bound.unit**2)


def _tangent(law: NoiseLaw, rows: float, spectrum: Sequence[float], component: int, others: Sequence[int]) -> float:
    """Return T of a component, given others of the spectrum and 0 for the columns not guessed."""
    rest = law.size - len(spectrum)
    gaps = [(rows * (spectrum[component] - spectrum[i]), 1) for i in others]
    gaps += [(rows * spectrum[component], rest)] if rest > 0 else []
    if any(gap == 0 for gap, _ in gaps):
        return math.inf
    deviation = math.sqrt(law.variance / law.size)
    pull = deviation * sum(count / gap for gap, count in gaps) / math.sqrt(law.size)
    lost = (
        law.nonlinearity(pull)[1] * deviation**2 * sum(count / gap**2 for gap, count in gaps)
    )  # of the squared cosine
    return lost / (1 - lost) if lost < 1 else math.inf


def count_seen(law: NoiseLaw, rows: float, spectrum: Sequence[float]) -> int:
    """Return the number of components of a guessed spectrum above the noise, by the rule for releases."""
    far, size, count = FAR * math.sqrt(2 * law.variance / law.size), law.size, 0
    if size == 1:
        return int(rows * spectrum[0] > law.edge_at(CONFIDENCE))
    last = min(len(spectrum), size - 1)
    while True:
        for q in range(count, min(count + REACH, last)):
            below = range(q + 1, len(spectrum))
            if rows * spectrum[q] > far and _tangent(law, rows, spectrum, q, below) < cut(size - q, law):
                count = q + 1
                break
        else:
            return count + int(count == size - 1 < len(spectrum) and rows * spectrum[-1] > far)


def _cosine(law: NoiseLaw, rows: float, spectrum: Sequence[float], component: int) -> float:
    """Return the expected squared cosine of a component, or of the span of indistinguishable ones."""
    gap = GAP * math.sqrt(law.variance / law.size)
    first = last = component
    while first and rows * (spectrum[first - 1] - spectrum[first]) < gap:
        first -= 1
    while last + 1 < len(spectrum) and rows * (spectrum[last] - spectrum[last + 1]) < gap:
        last += 1
    others = [i for i in range(len(spectrum)) if not first <= i <= last]
    return sum(1 / (1 + _tangent(law, rows, spectrum, i, others)) for i in range(first, last + 1)) / (last + 1 - first)


def _smallest(holds: Callable[[float], bool], first: float, *, error: float, absolute: float = 0.0) -> float:
    """Return the least number from which ``holds`` is true, by bisection."""
    low, high = 0.0, first
    while not holds(high):
        low, high = high, 2 * high
        if absolute and high > _MOST_ROWS:
            return math.inf
    while high - low > error * high + absolute:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _expected(law: NoiseLaw, spectrum: Sequence[float], rows: int, component: int) -> Expected:
    variance = spectrum[component]
    others = [i for i in range(len(spectrum)) if i != component]

    def rows_for(holds: Callable[[float], bool]) -> int | None:
        least = _smallest(holds, law.threshold / variance, error=1e-6, absolute=0.1)
        return None if least == math.inf else math.ceil(least)

    return Expected(
        variance,
        _cosine(law, rows, spectrum, component),
        count_seen(law, rows, spectrum) > component,
        rows_for(lambda count: count_seen(law, count, spectrum) > component),
        rows_for(lambda count: 1 / (1 + _tangent(law, count, spectrum, component, others)) >= GOOD),
    )


def least_rows_seen(law: NoiseLaw, variance: float) -> float:
    """Return the least number of rows for which a single component with this variance is above the noise."""
    return _strength_for(law) / variance


def _strength_for(law: NoiseLaw) -> float:
    """Return the least eigenvalue of a single component above the noise."""
    return _smallest(lambda strength: bool(count_seen(law, strength, (1.0,))), law.threshold, error=1e-9)


def _alternatives(plan: Plan, rows: int, person: Person) -> tuple[tuple[str, float], ...]:
    """Return private mechanisms at the same loss with a known edge and no required option, best first."""
    thresholds, bound = [], plan.bound
    for name, mechanism in MECHANISMS.items():
        info = mechanism.info
        several = ((person.counted_once > 1 or person.max_rows is None) and not info.units) or (
            person.max_periods is not None and name != "gaussian"
        )
        lacks_delta = info.delta is DeltaUse.REQUIRED and not plan.loss.delta_atto
        needs_option = any(option.default is None for option in info.options)
        if not info.additive or info.replacement or needs_option or several or lacks_delta:
            continue
        delta = 0 if info.delta is DeltaUse.NONE else plan.loss.delta_atto
        other = ReleaseRequest(
            name, PrivacyLoss(plan.loss.epsilon_micro, delta), bound.clip_norm, plan.request.neighbours,
        )  # fmt: skip
        try:
            noisy = calibrated(other, bound, person.counted_once)
        except UsageError:  # its noise overflows the lattice
            continue
        law = law_of(noisy.noise, bound.columns, bound.unit**2)
        if law is not None and is_private_as_claimed(noisy):
            thresholds.append((name, _strength_for(law) / rows))
    return tuple(sorted(thresholds, key=lambda pair: pair[1]))
