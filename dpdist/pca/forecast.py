"""What a budget buys, before it is spent. A forecast uses public numbers alone, so it costs nothing.

The noise of a mechanism follows from d, the clip norm, epsilon and delta. The signal grows with the number of rows: a
component that holds a share v of the squared norm of each row has the exact eigenvalue ``theta = n v``. Its squared
cosine is expected to be ``1 - R'(g) h``, with ``g`` and ``h`` the means of ``1/(theta - theta_j)`` and of its square
over all other columns, those of which nothing is guessed at 0, and R the R-transform of the noise: the measure of
:mod:`dpdist.pca.overlap`, of exact eigenvalues. Components are counted and grouped by its rules. Chance decides near
the number of rows that is said to be needed: fewer than half of the releases tell the component there. The guess of
the spectrum must be public: one that is taken from the table itself would leak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpdist.errors import UsageError
from dpdist.mechanisms.base import is_private_as_claimed
from dpdist.mechanisms.info import DeltaUse
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.naming import parameter, step
from dpdist.pca.noise_edge import CONFIDENCE, NoiseLaw, law_of
from dpdist.pca.overlap import FAR, GAP, REACH, cut
from dpdist.privacy.checks import LARGEST_EPSILON, cautions
from dpdist.privacy.guarantee import MICRO, Neighbours, PrivacyLoss
from dpdist.privacy.persons import rows_charged
from dpdist.release.advice import two_digits
from dpdist.release.clip_trade import Trade, trades
from dpdist.release.request import ReleaseRequest, auto_clip
from dpdist.rows.bounding import DITHERED
from dpdist.rows.rounding import spectral_error
from dpdist.rows.units import Unit

GOOD = 0.9
"""The squared cosine that counts as a good component."""
_MOST_ROWS = 2**63
SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Shares of C² per row for which a forecast without a guess says how many rows are needed."""


@dataclass(frozen=True)
class Expected:
    """What is expected of one component."""

    variance: float  # its guessed eigenvalue per row, in squared units of the bounded rows
    squared_cosine: float  # with the exact one, or of the spans of several that will not be told from one another
    told: bool  # whether it is expected to be told from noise
    rows_to_see: int | None  # rows until it is; None: no number is enough, as others are as strong
    rows_for_good: int | None  # rows until its own squared cosine is 0.9


@dataclass(frozen=True)
class Person:
    """Somebody who owns several rows, whom a release protects as a whole."""

    max_rows: int = 1
    max_periods: int | None = None

    def __post_init__(self) -> None:
        Unit("", self.max_rows, max_periods=self.max_periods)  # says which numbers there may be

    @property
    def counted_once(self) -> int:
        """For how many rows a release of one period, or of a table without periods, counts him."""
        return self.max_rows * rows_charged(self.max_periods or 1, 1)

    @property
    def counted_at_most(self) -> int:
        """For how many rows of one period a release of K periods or more counts him, or one with weights."""
        return self.max_rows * rows_charged(self.max_periods or 1, self.max_periods or 1)

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        counted = {"counted_rows": self.counted_once, "counted_rows_at_most": self.counted_at_most}
        return {"max_rows": self.max_rows, "max_periods": self.max_periods, **counted}


@dataclass(frozen=True)
class Forecast:
    """The noise of a release that was not made yet, and what will be seen over it.

    Errors and thresholds are per row, in squared units of the bounded rows.
    """

    request: ReleaseRequest
    columns: int
    rows: int
    person: Person
    error: float  # standard deviation of the noise on an entry off the diagonal
    edge: float  # largest eigenvalue of the noise, at confidence 0.95
    rounding: float | None  # what rounding moves an eigenvalue by at most, likewise; None where rows are truncated
    threshold: float  # variance that a component needs to be told from noise, beside nothing else
    expected: tuple[Expected, ...]  # one per guessed variance or, without a guess, per share of C²
    guessed: bool  # whether the variances were guessed
    law: NoiseLaw  # of the noise, for the sum of all rows
    alternatives: tuple[tuple[str, float], ...]  # private mechanisms of this loss and their thresholds, best first
    trades: tuple[Trade, ...] = ()  # what each guessed norm would cost as a clip norm
    nothing: str = ""  # a sentence where no component will be told from noise

    def __repr__(self) -> str:
        seen = f"{self.seen} of {len(self.expected)} components seen" if self.guessed else f"edge {self.edge:.4g}"
        return f"Forecast({self.request.mechanism}, d={self.columns}, n={self.rows}, {seen})"

    @property
    def largest(self) -> float:
        """C²: rows hold no more."""
        return self.request.bound(self.columns).clip_norm ** 2

    @property
    def rounding_share(self) -> float | None:
        """The error of rounding over the edge of the noise; None where rows are truncated."""
        return None if self.rounding is None else self.rounding / self.edge

    @property
    def cautions(self) -> tuple[str, ...]:
        """What should be known of a guarantee that promises little, a sentence or two each; none of most."""
        return cautions(self.request.loss, self.request.neighbours, self.rows)

    @property
    def seen(self) -> int:
        """How many of the guessed components will be told from noise."""
        return sum(e.told for e in self.expected)

    def cosine_at(self, rows: float, component: int) -> float:
        """Return the squared cosine that is expected of a component, counted from 0, of so many rows."""
        spectrum = [each.variance for each in self.expected]
        if not self.guessed:
            spectrum, component = [spectrum[component]], 0
        return _cosine(self.law, rows, spectrum, component)

    def to_json(self) -> dict[str, object]:
        """Return the forecast as JSON values."""
        return {
            "mechanism": self.request.mechanism,
            "epsilon": self.request.loss.epsilon,
            "delta": self.request.loss.delta,
            "neighbours": self.request.neighbours.value,
            "clip_norm": self.request.clip_norm,
            "d": self.columns,
            "n": self.rows,
            "person": self.person.to_json(),
            "entry_standard_deviation": self.error,
            "noise_edge": self.edge,
            "grid_bits": self.request.grid_bits,
            "rounding_error": self.rounding,
            "rounding_share": self.rounding_share,
            "threshold": self.threshold,
            "guessed": self.guessed,
            "components_seen": self.seen if self.guessed else None,
            "nothing": self.nothing or None,
            "components": [vars(e) for e in self.expected],
            "cautions": list(self.cautions),
            "alternatives": [{"mechanism": name, "threshold": value} for name, value in self.alternatives],
            "trades": [vars(each) for each in self.trades],
        }


def forecast_release(
    request: ReleaseRequest,
    columns: int,
    rows: int,
    spectrum: Sequence[float] = (),
    norms: Sequence[float] = (),
    *,
    max_rows: int = 1,
    max_periods: int | None = None,
) -> Forecast:
    """Say what a release would show, before anything is spent: its noise, and which components are told from it.

    It follows from public numbers alone, so it costs nothing.

    Parameters
    ----------
    request : ReleaseRequest
        The release; its clip norm bounds what rows can hold. Where it chooses that or a scale itself, the forecast is
        of the moment that follows, at its part of the loss: in units of the clip norm (C = 1), or in scaled units.
    columns : int
        Columns d of the table.
    rows : int
        Rows n of the table, or a public guess.
    spectrum : sequence of float, default ()
        Guessed eigenvalues of the second moment per row, in squared units of the bounded rows, largest first. It must
        be public: taken from the rows, it would be a leak. Empty: shares of the squared clip norm are looked at.
    norms : sequence of float, default ()
        Guessed norms of the rows, equally many of each, such as their deciles. It must be public too. Each is weighed
        as a clip norm, whatever that of the request is: noise against shortening.
    max_rows : int, default 1
        Rows that a privacy unit has at most, from 1 to 2^20; where rows come in periods, in each period.
    max_periods : int or None, default None
        Periods that a privacy unit has rows in at most, from 1 to 4096, for ``gaussian`` alone. The forecast is then of
        the release of one period, which has so many rows.

    Returns
    -------
    Forecast
        ``error``, ``edge`` and ``threshold`` of the noise, and ``rounding`` (float, per row, in squared units of the
        bounded rows),
        ``expected`` (one for each guessed eigenvalue), ``seen``, ``alternatives`` and ``trades`` (one for each guessed
        norm).

    Raises
    ------
    UsageError
        If there are no rows, the spectrum or a norm is impossible, a privacy unit has no rows or too many, or the
        mechanism does not add noise with a known edge, or is not for a privacy unit in several periods.
    RefusedError
        If the mechanism is not private as claimed.

    See Also
    --------
    release_rows : Spends it.
    fit_components : Says the same of a release.

    References
    ----------
    Biane 1998; Benaych-Georges & Nadakuditi 2011, theorems 2.1 and 2.2 (:mod:`dpdist.pca.overlap`).

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
            f"A privacy unit with rows in several periods is for gaussian only, not {request.mechanism}. Take "
            f"gaussian, or leave out {parameter('max_periods')}."
        )
    counted = person.counted_once
    request = request.on_grid(columns, rows if request.neighbours is Neighbours.REPLACE_ONE else None, counted)
    asked, request = request, _moment(request, columns, counted)
    largest = request.bound(columns).clip_norm ** 2
    if len(spectrum) > columns or any(v <= 0 for v in spectrum) or sum(spectrum) > largest * (1 + 1e-9):
        raise UsageError(
            f"The guessed spectrum has too many numbers, one that is not positive, or too large a sum. Give at most "
            f"{columns} positive numbers. Their sum is at most the squared clip norm, {largest:g}.",
            parameter="spectrum",
        )
    if any(not 0 < norm < math.inf for norm in norms):
        raise UsageError("The guessed norms of rows are positive numbers.", parameter="norms")
    law = _law(request, columns, counted)
    if law is None:
        raise UsageError(
            f"There is no forecast for {request.mechanism}: it adds no noise whose largest eigenvalue is known. Take "
            f"gaussian or two-sided-wishart. {step('mechanisms')} lists what each mechanism releases."
        )
    noise, bound = request.calibrated(columns, counted).noise, request.bound(columns)
    unit = bound.unit**2
    error, edge = math.sqrt(noise.variance_off_diagonal or 0.0) * unit, law.edge_at(CONFIDENCE)
    spectrum = sorted(spectrum, reverse=True)
    each = [(spectrum, i) for i in range(len(spectrum))] or [([share * largest], 0) for share in SHARES]
    expected = tuple(_expected(law, among, rows, i) for among, i in each)
    threshold = _strength_for(law) / rows
    return Forecast(
        request=request,
        columns=columns,
        rows=rows,
        person=person,
        error=error / rows,
        edge=edge / rows,
        rounding=spectral_error(rows, columns, bound.grid_bits) * unit / rows if request.rule == DITHERED else None,
        threshold=threshold,
        expected=expected,
        guessed=bool(spectrum),
        law=law,
        alternatives=_alternatives(request, columns, rows, person),
        trades=trades(norms, columns, rows, error / largest, edge / largest) if norms else (),
        nothing=_nothing_guessed(expected) if spectrum else _nothing(asked, request, columns, rows, counted, threshold),
    )


def _nothing_guessed(expected: Sequence[Expected]) -> str:
    if any(each.told for each in expected):
        return ""
    needed = [each.rows_to_see for each in expected if each.rows_to_see is not None]
    takes = f"the first takes {min(needed)} rows" if needed else "no number of rows is enough"
    return f"No component of this guess will be told from noise: {takes}."


def _nothing(asked: ReleaseRequest, moment: ReleaseRequest, columns: int, rows: int, counted: int, told: float) -> str:
    """Say how many rows or which epsilon it takes, where not even a component of all of C² is told; or nothing.

    Of columns that a private scale divides, and ``auto`` bounds, a third of C² is all their variance.
    """
    scaled = asked.scale == "private" and asked.clip_norm == "auto"
    most = moment.bound(columns).clip_norm ** 2 / (3 if scaled else 1)
    if told <= most:
        return ""
    enough, micro, over = "", moment.loss.epsilon_micro, told / most
    part = asked.loss.epsilon_micro / micro
    while not enough and part * micro * over < LARGEST_EPSILON * MICRO:
        micro = math.ceil(micro * max(1.05, over))  # noise falls as 1 / epsilon, or a little slower
        law = _law(replace(moment, loss=replace(moment.loss, epsilon_micro=micro)), columns, counted)
        over = math.inf if law is None else _strength_for(law) / rows / most
        if over <= 1:
            enough = f", or {parameter('epsilon', f'{two_digits(part * micro) / MICRO:g}')}"
    held = "a third of C², all that scaled columns have," if scaled else "all of C²"
    return (
        f"Nothing will be told of components: even one that holds {held} drowns in the noise. It takes "
        f"{math.ceil(rows * told / most)} rows{enough}."
    )


def _moment(request: ReleaseRequest, columns: int, counted: int) -> ReleaseRequest:
    """Return the release that follows from what a request chooses first."""
    parts = request.parts(columns, counted)
    if parts is None:
        return request
    clip = auto_clip(columns, request.choice_rule) if request.clip_norm == "auto" else parts.moment.clip_norm
    return replace(parts.moment, clip_norm=clip)


def _law(request: ReleaseRequest, columns: int, counted: int) -> NoiseLaw | None:
    return law_of(request.calibrated(columns, counted).noise, columns, request.bound(columns).unit ** 2)


def _tangent(law: NoiseLaw, rows: float, spectrum: Sequence[float], component: int, others: Sequence[int]) -> float:
    """Return T of a component beside others of the spectrum and the columns of which nothing is guessed, at 0."""
    rest = law.size - len(spectrum)
    gaps = [(rows * (spectrum[component] - spectrum[i]), 1) for i in others]
    gaps += [(rows * spectrum[component], rest)] if rest > 0 else []
    if any(gap == 0 for gap, _ in gaps):
        return math.inf
    deviation = math.sqrt(law.variance / law.size)
    pull = deviation * sum(count / gap for gap, count in gaps) / math.sqrt(law.size)
    lost = law.stretched(pull)[1] * deviation**2 * sum(count / gap**2 for gap, count in gaps)  # of the squared cosine
    return lost / (1 - lost) if lost < 1 else math.inf


def _counted(law: NoiseLaw, rows: float, spectrum: Sequence[float]) -> int:
    """Return how many components of a guessed spectrum will be counted, by the rule of a release."""
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
    """Return the squared cosine expected of a component, or of the span of those that are not told from it."""
    apart = GAP * math.sqrt(law.variance / law.size)
    first = last = component
    while first and rows * (spectrum[first - 1] - spectrum[first]) < apart:
        first -= 1
    while last + 1 < len(spectrum) and rows * (spectrum[last] - spectrum[last + 1]) < apart:
        last += 1
    others = [i for i in range(len(spectrum)) if not first <= i <= last]
    return sum(1 / (1 + _tangent(law, rows, spectrum, i, others)) for i in range(first, last + 1)) / (last + 1 - first)


def _least(holds: Callable[[float], bool], first: float, *, error: float, absolute: float = 0.0) -> float:
    """Return the least number from which on something holds, by bisection."""
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
        found = _least(holds, law.threshold / variance, error=1e-6, absolute=0.1)
        return None if found == math.inf else math.ceil(found)

    return Expected(
        variance,
        _cosine(law, rows, spectrum, component),
        _counted(law, rows, spectrum) > component,
        rows_for(lambda count: _counted(law, count, spectrum) > component),
        rows_for(lambda count: 1 / (1 + _tangent(law, count, spectrum, component, others)) >= GOOD),
    )


def _strength_for(law: NoiseLaw) -> float:
    """Return the eigenvalue from which on a component beside nothing is counted."""
    return _least(lambda strength: bool(_counted(law, strength, (1.0,))), law.threshold, error=1e-9)


def _alternatives(request: ReleaseRequest, columns: int, rows: int, person: Person) -> tuple[tuple[str, float], ...]:
    """Return the mechanisms that are private at the loss, take no required option and have an edge, best first."""
    found = []
    for name, mechanism in MECHANISMS.items():
        info = mechanism.info
        several = (person.counted_once > 1 and not info.units) or (
            person.max_periods is not None and name != "gaussian"
        )
        lacks_delta = info.delta is DeltaUse.REQUIRED and not request.loss.delta_atto
        needs_option = any(option.default is None for option in info.options)
        if not info.additive or info.replacement or needs_option or several or lacks_delta:
            continue
        delta = 0 if info.delta is DeltaUse.NONE else request.loss.delta_atto
        loss = PrivacyLoss(request.loss.epsilon_micro, delta)
        other = ReleaseRequest(
            name, loss, request.clip_norm, request.neighbours, centring=request.centring, grid_bits=request.grid_bits,
            rule=request.rule,
        )  # fmt: skip
        try:
            calibrated = other.calibrated(columns, person.counted_once)
        except UsageError:  # its noise leaves the lattice here
            continue
        law = law_of(calibrated.noise, columns, request.bound(columns).unit ** 2)
        if law is not None and is_private_as_claimed(calibrated):
            found.append((name, _strength_for(law) / rows))
    return tuple(sorted(found, key=lambda pair: pair[1]))
