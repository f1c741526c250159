"""The privacy profile of an audit, drawn."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from dpdist._util.paths import AnyPath
from dpdist.pipeline.audit import Audit
from dpdist.privacy import audit
from dpdist.privacy.accounting import gaussian_delta
from dpdist.privacy.guarantee import MICRO, Guarantee
from dpdist.report.figures import picture

_GRID = 41


def plot(result: Audit, path: AnyPath) -> None:
    """Draw the privacy profile: delta against epsilon as claimed, as proved and as measured."""
    loss = result.task.loss
    grid = np.linspace(0, 2 * loss.epsilon, _GRID)
    first, second = result.sample
    error, apart = result.counted.error, result.counted.apart
    measured = [audit.examine(first, second, error, epsilon=e, apart=apart).delta(e) for e in grid]
    low, middle, _ = np.array(measured).T
    with picture(path) as axes:
        if result.claim is not None:
            claim = result.claim
            axes.plot(grid, [audit.implied_delta(claim, e) for e in grid], "--", color="tab:gray", label="claimed")
        if result.guarantee is not None:
            proved = [_proved_delta(result.guarantee, e) for e in grid]
            axes.plot(grid, proved, color="tab:blue", label="proved (upper bound)")
        axes.fill_between(grid, low, np.maximum(low, middle), color="tab:red", alpha=0.25, lw=0)
        confidence = 1 - error
        axes.plot(grid, low, color="tab:red", label=f"counted lower bound, confidence {confidence:g} at each epsilon")
        axes.axvline(loss.epsilon, color="black", lw=0.6, ls=":")
        axes.set(xlabel="epsilon", ylabel="delta", xlim=(0, grid[-1]), ylim=(0, None))
        axes.set_title(f"{result.task.mechanism}: claimed {loss}, {result.task.query.neighbours}")
        axes.legend(frameon=False)


def _proved_delta(guarantee: Guarantee, epsilon: float) -> float:
    """Return the delta proved at another epsilon: the exact Gaussian profile where there is one."""
    implied = audit.implied_delta(guarantee.loss, epsilon)
    if guarantee.mu_squared is None:
        return implied
    return min(implied, gaussian_delta(Fraction(round(epsilon * MICRO), MICRO), guarantee.mu_squared))
