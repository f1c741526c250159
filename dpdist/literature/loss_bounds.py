"""Statistical audit of a privacy claim: lower bounds on epsilon and delta from draws, with a stated confidence.

An attacker computes one number from the release and guesses which of two tables it came from. The rates of correct and
wrong guesses over many draws bound the privacy profile
``delta(epsilon) = max over events of P(event) - exp(epsilon) Q(event)`` of any mechanism. The event is chosen on one
half of the draws and measured on the other, so the choice costs no confidence.

**Counted.** Draws from both tables; counts are bounded exactly (Clopper & Pearson 1934). This depends on the draws
alone. Events with a probability far below one over the number of draws are invisible.

**Weighted.** Draws from a third table, on which the event is common, weighted by the likelihood ratio of either table
to it (importance sampling). An event here bounds the weights on it, so their mean is that of variables in [0, 1], and
is bounded by Hoeffding (1963, theorem 1): n independent ones with mean m have an average beyond x, on either side, with
probability at most ``exp(-n KL(x, m))``, KL the divergence of two coins. This depends on the draws and on the ratio.

**Tables at a distance.** Along a chain of j neighbours an (epsilon, delta) mechanism has
``P(event) <= exp(j epsilon) Q(event) + delta (exp(j epsilon) - 1) / (exp(epsilon) - 1)``: apply the definition j times.
So measurements on tables that differ in j rows bound epsilon and delta as well. This helps if one row moves a release
by a fraction of its noise, and epsilon is reached only far out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from dpdist.core.privacy.guarantee import PrivacyLoss

Sample = npt.NDArray[np.float64]
_CANDIDATES = 8000  # largest number of thresholds, evenly spread over the draws
_SPANS = (1.5, 3.0, 6.0)  # widths of the window of log weights in an event of weighted draws
_SELECTION_FACTOR = 0.01
"""Events are chosen by wider bounds than they are measured by, because other draws may see less."""
_MAX_EXPONENT = 700.0  # largest exponent


@dataclass(frozen=True)
class Count:
    """Number of independent draws in which an event occurred."""

    hits: int
    draws: int

    def interval(self, error: float) -> tuple[float, float]:
        """Return Clopper-Pearson bounds on its probability; each fails with probability at most ``error``."""
        low, high = clopper_pearson(np.array([float(self.hits)]), self.draws, error)
        return float(low[0]), float(high[0])

    @property
    def estimate(self) -> float:
        """Unbiased estimate."""
        return self.hits / self.draws


def clopper_pearson(hits: Sample, draws: int, error: float) -> tuple[Sample, Sample]:
    """Return lower and upper bounds for an array of counts, each wrong with probability at most ``error``."""
    with np.errstate(invalid="ignore"):  # 0 hits, or all
        low = np.where(hits <= 0, 0.0, special.betaincinv(hits, draws - hits + 1, error))
        high = np.where(hits >= draws, 1.0, special.betainccinv(hits + 1, draws - hits, error))
    return low, high


@dataclass(frozen=True)
class Weighted:
    """The probability of an event as the mean of weights in [0, 1] times ``exp(log_unit)``."""

    hits: int
    draws: int
    mean: float
    log_unit: float

    @classmethod
    def of(cls, log_weights: Sample, event: npt.NDArray[np.bool_], log_unit: float) -> Weighted:
        """Measure an event with no log weight above ``log_unit``."""
        inside = log_weights[event] - log_unit
        if inside.max(initial=0.0) > 1e-9:
            raise AssertionError("the event bounds the weights")
        weights = np.zeros(log_weights.size)
        weights[event] = np.exp(np.minimum(inside, 0.0))
        return cls(inside.size, weights.size, float(weights.mean()), log_unit)

    def interval(self, error: float) -> tuple[float, float]:
        """Return Hoeffding bounds; each fails with probability at most ``error``."""
        unit, limit = math.exp(self.log_unit), -math.log(error) / self.draws
        return _divergence_root(self.mean, 0.0, limit) * unit, _divergence_root(self.mean, 1.0, limit) * unit

    @property
    def estimate(self) -> float:
        """Unbiased estimate."""
        return self.mean * math.exp(self.log_unit)


def _divergence_root(mean: float, end: float, limit: float) -> float:
    """Return the point between a mean and an end of [0, 1] where the divergence of the mean is ``limit``."""

    def divergence(x: float) -> float:
        if not 0 < x < 1:
            return math.inf
        hit = mean * math.log(mean / x) if mean > 0 else 0.0
        return hit + (1 - mean) * math.log((1 - mean) / (1 - x)) if mean < 1 else hit

    near, far = mean, end
    for _ in range(40):
        middle = (near + far) / 2
        near, far = (middle, far) if divergence(middle) <= limit else (near, middle)
    return far  # on the safe side


@dataclass(frozen=True)
class Finding:
    """Evidence from one event: its measured probabilities on two tables."""

    more: Count | Weighted
    less: Count | Weighted
    error: float
    distance: int = 1
    ratio: float = -math.inf

    def delta(self, epsilon: float) -> tuple[float, float, float]:
        """Return a lower bound for delta of the mechanism at epsilon, and estimate and upper bound for this event."""
        (low, high), (less_low, less_high) = self.more.interval(self.error / 2), self.less.interval(self.error / 2)
        factor = math.exp(min(self.distance * epsilon, _MAX_EXPONENT))
        chain = math.fsum(math.exp(min(i * epsilon, _MAX_EXPONENT)) for i in range(self.distance))
        estimate = self.more.estimate - factor * self.less.estimate
        bound = max(0.0, low - factor * less_high, -low * math.expm1(min(epsilon - self.ratio, _MAX_EXPONENT)))
        return bound / chain, estimate / chain, (high - factor * less_low) / chain

    def epsilon(self, delta: float) -> float:
        """Return a lower bound on the epsilon of the mechanism at delta; 0 without evidence."""
        if self.delta(0.0)[0] <= delta:
            return 0.0
        low, high = 0.0, 1.0
        while self.delta(high)[0] > delta and high < _MAX_EXPONENT:
            low, high = high, 2 * high
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle)[0] > delta else (low, middle)
        return low


def examine(
    first: Sample, second: Sample, error: float, *, epsilon: float | None = None, delta: float = 0.0, distance: int = 1
) -> Finding:
    """Find the threshold that best distinguishes two samples, and count it on independent draws."""
    halves = [(sample[: sample.size // 2], sample[sample.size // 2 :]) for sample in (first, second)]
    (chosen_first, rest_first), (chosen_second, rest_second) = halves
    best = (-math.inf, math.inf, 1, False)
    for swapped, (more, less) in enumerate([(chosen_first, chosen_second), (chosen_second, chosen_first)]):
        for sign in (1, -1):
            score, threshold = _best_threshold(sign * more, sign * less, error, epsilon, delta, distance)
            best = max(best, (score, threshold, sign, bool(swapped)))
    _, threshold, sign, swapped_over = best
    more, less = (rest_second, rest_first) if swapped_over else (rest_first, rest_second)
    hits = [int((sign * sample >= threshold).sum()) for sample in (more, less)]
    return Finding(Count(hits[0], more.size), Count(hits[1], less.size), error, distance)


def _best_threshold(
    more: Sample, less: Sample, error: float, epsilon: float | None, delta: float, distance: int
) -> tuple[float, float]:
    """Return the best score over thresholds t of the event ``x >= t`` among the draws, and that t."""
    points = np.unique(np.concatenate([more, less]))
    if points.size > _CANDIDATES:
        points = points[np.linspace(0, points.size - 1, _CANDIDATES).astype(int)]
    hits, wrong = (sample.size - np.searchsorted(np.sort(sample), points).astype(float) for sample in (more, less))
    if epsilon is not None:
        # one more count on the other side penalises events that look impossible there in too few draws
        score = hits / more.size - math.exp(min(distance * epsilon, _MAX_EXPONENT)) * (wrong + 1) / less.size
    else:
        low, high = clopper_pearson(hits, more.size, error / 2)[0], clopper_pearson(wrong, less.size, error / 2)[1]
        score = log_excess(low, delta, high)
    index = int(np.argmax(score))
    return float(score[index]), float(points[index])


def log_excess(low: Sample, delta: float, high: Sample) -> Sample:
    """Return ``log((low - delta) / high)``, the epsilon that an event between neighbours shows."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(low > delta, np.log((low - delta) / high), -math.inf)


def examine_weighted(first: Sample, second: Sample, error: float, delta: float) -> Finding:
    """Find the event with the largest epsilon on half of the weighted draws, and measure it on the other half."""
    half = first.size // 2
    event = weighted_event(first[:half], second[:half], error, delta, half)
    more, less = (second, first) if event.swapped else (first, second)
    return event.measured(more[half:], less[half:], error)


@dataclass(frozen=True)
class WeightedEvent:
    """Releases with log-likelihood ratio at least ``threshold`` and log weight in a window below ``top``."""

    shown_epsilon: float
    swapped: bool  # whether it is more likely on the second table
    threshold: float
    top: float
    span: float

    def measured(self, more: Sample, less: Sample, error: float, draws: int = 0) -> Finding:
        """Measure the event by log weights, as if there were this number of draws."""
        event = (_difference(more, less) >= self.threshold) & (more <= self.top) & (more >= self.top - self.span)
        unit = self.top - min(self.threshold, _MAX_EXPONENT)
        first, second = Weighted.of(more, event, self.top), Weighted.of(less, event, unit)
        if draws:
            first, second = replace(first, draws=draws), replace(second, draws=draws)
        return Finding(first, second, error, ratio=self.threshold)


def weighted_event(
    first: Sample, second: Sample, error: float, delta: float, draws: int, *, candidates: int = 25, fewest: int = 8
) -> WeightedEvent:
    """Return the event, with ``fewest`` draws or more, that appears to show the largest epsilon at delta."""
    error *= _SELECTION_FACTOR
    best = WeightedEvent(-math.inf, False, math.inf, 0.0, 0.0)  # no draw is in it
    for swapped, (more, less) in enumerate([(first, second), (second, first)]):
        ratio = _difference(more, less)
        usable = (ratio > 0) & np.isfinite(more)
        if not usable.any():
            continue
        for threshold in np.unique(np.quantile(ratio[usable], np.linspace(0, 0.98, candidates), method="lower")):
            for top in np.unique(
                np.quantile(more[usable & (ratio >= threshold)], [0.3, 0.5, 0.7, 0.85, 1.0], method="higher")
            ):
                for span in _SPANS:
                    event = WeightedEvent(0.0, bool(swapped), float(threshold), float(top), span)
                    finding = event.measured(more, less, error, draws)
                    shown = _shown_epsilon(finding, delta) if finding.more.hits >= fewest else -math.inf
                    if shown > best.shown_epsilon:
                        best = replace(event, shown_epsilon=shown)
    return best


def _difference(more: Sample, less: Sample) -> Sample:
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(more - less, nan=0.0, posinf=math.inf, neginf=-math.inf)


def _shown_epsilon(finding: Finding, delta: float) -> float:
    low, high = finding.more.interval(finding.error / 2)[0], finding.less.interval(finding.error / 2)[1]
    if low <= delta or low < finding.more.estimate / 2:
        return -math.inf
    return max(math.log((low - delta) / high), finding.ratio + math.log1p(-delta / low))


def rejects(finding: Finding, loss: PrivacyLoss) -> bool:
    """Whether a finding contradicts (epsilon, delta); wrong with at most the finding's probability of error."""
    return finding.delta(loss.epsilon)[0] > loss.delta


def implied_delta(loss: PrivacyLoss, epsilon: float) -> float:
    """Return the largest delta that (epsilon0, delta0) allows at another epsilon."""
    if epsilon >= loss.epsilon:
        return loss.delta
    # below epsilon0, randomised response dominates (Kairouz, Oh & Viswanath 2017):
    # delta0 + (1 - delta0) (e^epsilon0 - e^epsilon) / (1 + e^epsilon0), divided by e^epsilon0 against overflow
    share = -math.expm1(epsilon - loss.epsilon) / (1 + math.exp(-loss.epsilon))
    return loss.delta + (1 - loss.delta) * share


def to_json(finding: Finding, loss: PrivacyLoss) -> dict[str, Any]:
    """Return a finding about a claim as JSON values."""
    low, estimate, high = finding.delta(loss.epsilon)
    return {
        "delta_lower": low,
        "delta_estimate": estimate,
        "delta_upper_of_this_event": high,
        "epsilon_lower": finding.epsilon(loss.delta),
        "confidence": 1 - finding.error,
        "rows_apart": finding.distance,
        "counts": [[measured.hits, measured.draws] for measured in (finding.more, finding.less)],
        "rejected": rejects(finding, loss),
    }
