"""What draws prove about a privacy claim: lower bounds on epsilon and delta with a stated confidence.

An attacker looks at one number computed from the release and says whether a row was there. From how often he is right
and wrong, over many draws from two neighbouring tables, follow bounds on the privacy profile
``delta(epsilon) = max over events of P(event) - exp(epsilon) Q(event)`` that hold whatever the mechanism is. The event
is chosen on one half of the draws and counted on the other, so the choice costs no confidence. Counts are bounded
after Clopper & Pearson (1934), exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpdist.privacy.guarantee import PrivacyLoss

Sample = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Count:
    """How often an event came in so many independent draws."""

    hits: int
    draws: int

    def interval(self, error: float) -> tuple[float, float]:
        """Return Clopper-Pearson bounds on its probability; each fails with probability at most ``error``."""
        k, n = self.hits, self.draws
        low = 0.0 if k == 0 else float(stats.beta.ppf(error, k, n - k + 1))
        high = 1.0 if k == n else float(stats.beta.isf(error, k + 1, n - k))
        return low, high


@dataclass(frozen=True)
class Finding:
    """What one event shows: its counts on the two tables.

    Parameters
    ----------
    more, less
        Counts on the table on which the event is more likely, and on the other.
    error
        Probability that a bound below is wrong.
    """

    more: Count
    less: Count
    error: float

    def delta(self, epsilon: float) -> tuple[float, float, float]:
        """Return a lower bound, the estimate and an upper bound on ``P(event) - exp(epsilon) Q(event)``.

        The lower bound is one on the delta of the mechanism at epsilon. The upper bound is about this event only.
        """
        (low, high), (less_low, less_high) = self.more.interval(self.error / 2), self.less.interval(self.error / 2)
        factor = math.exp(epsilon)
        estimate = self.more.hits / self.more.draws - factor * self.less.hits / self.less.draws
        return max(0.0, low - factor * less_high), estimate, high - factor * less_low

    def epsilon(self, delta: float) -> float:
        """Return a lower bound on the epsilon of the mechanism at delta; 0 where nothing is shown."""
        low, high = self.more.interval(self.error / 2)[0], self.less.interval(self.error / 2)[1]
        return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def examine(first: Sample, second: Sample, epsilon: float, error: float) -> Finding:
    """Find the threshold that tells two samples apart best at epsilon, and count it on draws that had no say in it.

    Parameters
    ----------
    first, second
        The attacker's number on draws from either of two neighbouring tables, shapes (m,) and (n,), each of at least
        four independent draws; infinite values are allowed.
    epsilon
        The epsilon at which ``P(event) - exp(epsilon) Q(event)`` is made as large as possible.
    error
        Probability with which a bound of the finding is wrong.
    """
    halves = [(sample[: sample.size // 2], sample[sample.size // 2 :]) for sample in (first, second)]
    (chosen_first, rest_first), (chosen_second, rest_second) = halves
    best = (-math.inf, math.inf, 1, False)
    for swapped, (more, less) in enumerate([(chosen_first, chosen_second), (chosen_second, chosen_first)]):
        for sign in (1, -1):
            advantage, threshold = _best_threshold(sign * more, sign * less, math.exp(epsilon))
            best = max(best, (advantage, threshold, sign, bool(swapped)))
    _, threshold, sign, swapped_over = best
    more, less = (rest_second, rest_first) if swapped_over else (rest_first, rest_second)
    hits = [int((sign * sample >= threshold).sum()) for sample in (more, less)]
    return Finding(Count(hits[0], more.size), Count(hits[1], less.size), error)


def _best_threshold(more: Sample, less: Sample, factor: float) -> tuple[float, float]:
    """Return the largest ``P(x >= t) - factor Q(x >= t)`` over thresholds t among the draws, and that t."""
    points = np.unique(np.concatenate([more, less]))
    p = 1 - np.searchsorted(np.sort(more), points) / more.size
    q = 1 - np.searchsorted(np.sort(less), points) / less.size
    # One count more on the other side penalises events that look impossible there only because few were drawn. It
    # guides the choice of the event alone; the bound itself comes from the other half of the draws.
    advantage = p - factor * (q + 1 / less.size)
    where = int(np.argmax(advantage))
    return float(advantage[where]), float(points[where])


def rejects(finding: Finding, loss: PrivacyLoss) -> bool:
    """Say whether a finding contradicts (epsilon, delta); wrong with at most the finding's probability of error."""
    return finding.delta(loss.epsilon)[0] > loss.delta


def implied_delta(loss: PrivacyLoss, epsilon: float) -> float:
    """Return the largest delta that (epsilon0, delta0) allows at another epsilon.

    ``delta0`` from epsilon0 on; below, ``delta0 + (1 - delta0) (e^epsilon0 - e^epsilon) / (1 + e^epsilon0)``: the
    profile of randomised response, which dominates every (epsilon0, delta0) mechanism (Kairouz, Oh & Viswanath 2017).
    """
    if epsilon >= loss.epsilon:
        return loss.delta
    # divided by e^epsilon0: large epsilons do not overflow
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
        "counts": [[c.hits, c.draws] for c in (finding.more, finding.less)],
        "rejected": rejects(finding, loss),
    }
