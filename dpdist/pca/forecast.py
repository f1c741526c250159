"""What a budget buys, before it is spent. A forecast uses public numbers alone, so it costs nothing.

The noise of a mechanism follows from d, the clip norm, epsilon and delta. The signal grows with the number of rows: a
component that holds a share v of the squared norm of each row has strength ``n v``. It is seen when that exceeds the
threshold of the noise (:mod:`dpdist.pca.noise_edge`). The shares come from a guess of the spectrum. The guess must be
public: one that is taken from the table itself would leak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpdist.errors import UsageError
from dpdist.mechanisms.base import is_private_as_claimed
from dpdist.mechanisms.info import DeltaUse
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.naming import parameter, step
from dpdist.pca.noise_edge import CONFIDENCE, NoiseLaw, law_of
from dpdist.privacy.caution import cautions
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.privacy.persons import rows_charged
from dpdist.release.clip_trade import Trade, trades
from dpdist.release.request import ReleaseRequest, auto_clip
from dpdist.rows.bounding import DITHERED
from dpdist.rows.rounding import spectral_error
from dpdist.rows.units import Unit

GOOD = 0.9
"""The squared cosine that counts as a good component."""
SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Shares of C² per row for which a forecast without a guess says how many rows are needed."""


@dataclass(frozen=True)
class Expected:
    """What is expected of one component.

    Attributes
    ----------
    variance
        Its guessed eigenvalue per row, in squared units of the bounded rows.
    squared_cosine
        Of the component that will be seen with the true one; 0: it drowns.
    rows_to_see, rows_for_good
        Rows needed until it stands above the noise, and until the squared cosine is 0.9.
    """

    variance: float
    squared_cosine: float
    rows_to_see: int
    rows_for_good: int


@dataclass(frozen=True)
class Person:
    """Somebody who owns several rows, whom a release protects as a whole.

    Parameters
    ----------
    max_rows
        R: rows that he has at most; where rows come in periods, in each period.
    max_periods
        K: periods that he is in at most; None: rows do not come in periods.

    Raises
    ------
    UsageError
        If R or K is not positive, or too large.
    """

    max_rows: int = 1
    max_periods: int | None = None

    def __post_init__(self) -> None:
        Unit("", self.max_rows, max_periods=self.max_periods)  # says which numbers there may be

    def counted(self, periods: int) -> int:
        """Return for how many rows of one period he is counted by a release of so many periods."""
        return self.max_rows * rows_charged(self.max_periods or 1, periods)

    @property
    def counted_once(self) -> int:
        """The same of a release of one period, or of a table without periods."""
        return self.counted(1)

    @property
    def counted_at_most(self) -> int:
        """The same of a release of K periods or more: of any night with weights, and of the top of a tree."""
        return self.counted(self.max_periods or 1)

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        counted = {"counted_rows": self.counted_once, "counted_rows_at_most": self.counted_at_most}
        return {"max_rows": self.max_rows, "max_periods": self.max_periods, **counted}


@dataclass(frozen=True)
class Forecast:
    """The noise of a release that was not made yet, and what will be seen over it.

    Attributes
    ----------
    request, columns, rows
        The release, d and n.
    person
        How many rows somebody has, and for how many of one period he is counted.
    error
        Standard deviation of the noise on an entry off the diagonal, per row, in squared units of the bounded rows.
    edge
        Largest eigenvalue of the noise, per row, at confidence 0.95.
    rounding
        What rounding moves an eigenvalue by at most, per row, at confidence 0.95; None where rows are truncated.
    threshold
        Variance per row a component needs to be seen at all.
    expected
        One per guessed variance or, without a guess, per share of C².
    guessed
        Whether the variances were guessed.
    law
        Of the noise, for the sum of all rows.
    alternatives
        (mechanism, threshold) of every mechanism that is private at this loss and has a known edge, best first.
    trades
        What each guessed norm would cost as a clip norm; empty without a guess.
    """

    request: ReleaseRequest
    columns: int
    rows: int
    person: Person
    error: float
    edge: float
    rounding: float | None
    threshold: float
    expected: tuple[Expected, ...]
    guessed: bool
    law: NoiseLaw
    alternatives: tuple[tuple[str, float], ...]
    trades: tuple[Trade, ...] = ()

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
        """How many of the guessed components will stand above the noise."""
        return sum(e.squared_cosine > 0 for e in self.expected)

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
    """Say what a release would show, before anything is spent: its noise, and which components stand above it.

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
    Benaych-Georges & Nadakuditi 2011, theorems 2.1 and 2.2 (:mod:`dpdist.pca.noise_edge`).

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
    parts = request.parts(columns, counted)
    if parts is not None:
        scaled = auto_clip(columns) if request.clip_norm == "auto" else parts.moment.clip_norm
        request = replace(parts.moment, clip_norm=scaled)
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
    rounded = spectral_error(rows, columns, bound.grid_bits) * unit / rows
    good = _strength_for(law, GOOD)
    error, edge = math.sqrt(noise.variance_off_diagonal or 0.0) * unit, law.edge_at(CONFIDENCE)
    variances = tuple(spectrum) or tuple(share * largest for share in SHARES)
    expected = tuple(
        Expected(v, law.squared_cosine(rows * v), _at_least(law.threshold / v), _at_least(good / v)) for v in variances
    )
    return Forecast(
        request=request,
        columns=columns,
        rows=rows,
        person=person,
        error=error / rows,
        edge=edge / rows,
        rounding=rounded if request.rule == DITHERED else None,
        threshold=law.threshold / rows,
        expected=expected,
        guessed=bool(spectrum),
        law=law,
        alternatives=_alternatives(request, columns, rows, person),
        trades=trades(norms, columns, rows, error / largest, edge / largest) if norms else (),
    )


def _law(request: ReleaseRequest, columns: int, counted: int) -> NoiseLaw | None:
    return law_of(request.calibrated(columns, counted).noise, columns, request.bound(columns).unit ** 2)


def _at_least(rows: float) -> int:
    return int(rows) + 1


def _strength_for(law: NoiseLaw, cosine: float) -> float:
    """Return the strength at which the expected squared cosine reaches a value: it grows with the strength, from 0."""
    from scipy.optimize import brentq  # noqa: PLC0415 - SciPy takes its time, and few need it

    high = 2 * law.threshold
    while law.squared_cosine(high) < cosine:
        high *= 2
    root: float = brentq(lambda t: law.squared_cosine(t) - cosine, law.threshold, high)
    return root


def _alternatives(request: ReleaseRequest, columns: int, rows: int, person: Person) -> tuple[tuple[str, float], ...]:
    """Return the mechanisms that are private at the loss, take no required option and have an edge, best first."""
    found = []
    for name, mechanism in MECHANISMS.items():
        info = mechanism.info
        if not info.additive or info.replacement or any(o.default is None for o in info.options):
            continue
        if (person.counted_once > 1 and not info.units) or (person.max_periods is not None and name != "gaussian"):
            continue
        pure = info.delta is DeltaUse.NONE
        if info.delta is DeltaUse.REQUIRED and not request.loss.delta_atto:
            continue
        loss = PrivacyLoss(request.loss.epsilon_micro, 0 if pure else request.loss.delta_atto)
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
            found.append((name, law.threshold / rows))
    return tuple(sorted(found, key=lambda pair: pair[1]))
