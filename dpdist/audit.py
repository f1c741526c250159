"""``dpdist audit``: attack a mechanism on a cluster; its privacy profile as claimed, as proved and as measured.

The tables are synthetic, so nothing here is private and no ledger is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.errors import UsageError
from dpdist.mechanisms import attack
from dpdist.mechanisms.attack import AuditTask
from dpdist.pictures import picture
from dpdist.pipeline import Cluster
from dpdist.privacy import audit
from dpdist.privacy.accounting import gaussian_delta
from dpdist.privacy.guarantee import MICRO, Guarantee, PrivacyLoss

_TASKS = 16
_GRID = 41
_LARGEST_EPSILON = 100


@dataclass(frozen=True)
class Audit:
    """The result of an attack on one mechanism.

    Attributes
    ----------
    task
        What was attacked, with all the draws.
    claim, guarantee
        What its authors claim and what is proved, at the parameters of the attack.
    finding
        The best event at the claimed epsilon, counted.
    sample
        The attacker's numbers, (2, draws).
    """

    task: AuditTask
    claim: PrivacyLoss | None
    guarantee: Guarantee | None
    finding: audit.Finding
    sample: npt.NDArray[np.float64]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        found = audit.to_json(self.finding, self.task.loss)
        rejected = found.pop("rejected")
        return {
            "mechanism": self.task.mechanism,
            "neighbours": self.task.query.neighbours.value,
            "d": self.task.query.size,
            "draws": self.task.draws,
            "claim": None if self.claim is None else self.claim.to_json(),
            "proved": None if self.guarantee is None else self.guarantee.loss.to_json(),
            **found,
            "claim_rejected": rejected,
            "proof_rejected": self.guarantee is not None and audit.rejects(self.finding, self.guarantee.loss),
        }

    def words(self) -> str:
        """Return the result in sentences."""
        loss, found = self.task.loss, self.to_json()
        margin = max(found["delta_estimate"] - found["delta_lower"], 0.0)
        verdict = "REJECTED" if found["claim_rejected"] else "not rejected"
        proved = "nothing" if self.guarantee is None else str(self.guarantee.loss)
        words = (
            f"{self.task.mechanism}, {self.task.query.neighbours}, {self.task.draws} draws of each of two tables: at "
            f"epsilon {loss.epsilon:g} delta is at least {found['delta_lower']:.4g} (estimate "
            f"{found['delta_estimate']:.4g} ± {margin:.2g}); at delta {loss.delta:g} epsilon is at least "
            f"{found['epsilon_lower']:.4g}; confidence {found['confidence']:.6g}. Claimed {loss}: {verdict}. "
            f"Proved {proved}."
        )
        if found["proof_rejected"]:
            words += " THE PROOF IS CONTRADICTED: please report this."
        return words


def run(task: AuditTask, error: float, cluster: Cluster) -> Audit:
    """Draw on the cluster and examine what was drawn.

    Parameters
    ----------
    task
        What to attack, with all the draws.
    error
        Probability with which a bound of the finding is wrong.
    cluster
        Where to draw.

    Raises
    ------
    UsageError
        If there are too few draws, the mechanism does not know an option, or its claim is about no epsilon.
    DataError
        If the cluster cannot be used.
    """
    if task.draws < 2 * _TASKS or not 0 < error < 0.5:
        raise UsageError(f"An audit needs at least {2 * _TASKS} draws and a confidence between 0.5 and 1.")
    if task.loss.epsilon > _LARGEST_EPSILON:
        raise UsageError(f"No number of draws says anything about an epsilon above {_LARGEST_EPSILON} (--epsilon).")
    calibrated = task.calibrated()
    share = -(-task.draws // _TASKS)
    part = AuditTask(task.mechanism, task.query, task.loss, task.options, share)
    with cluster.connected() as found:
        count = len(found.workers)
        groups = [[part] * len(range(i, _TASKS, count)) for i in range(min(count, _TASKS))]
        sums = found.reduce(attack.run, _joined, groups, f"Drawing {task.mechanism}")
        sample = found.trusted(lambda *parts: _joined(parts), sums=sums)
    finding = audit.examine(sample[0], sample[1], task.loss.epsilon, error)
    whole = AuditTask(task.mechanism, task.query, task.loss, task.options, sample.shape[1])
    return Audit(whole, calibrated.claim, calibrated.guarantee, finding, sample)


def _joined(parts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return np.concatenate(parts, axis=1)


def plot(result: Audit, path: Path) -> None:
    """Draw the privacy profile: delta against epsilon as claimed, as proved and as measured.

    Raises
    ------
    UsageError
        If matplotlib is not installed.
    DataError
        If the file cannot be written.
    """
    loss = result.task.loss
    grid = np.linspace(0, 2 * loss.epsilon, _GRID)
    first, second = result.sample
    measured = [audit.examine(first, second, epsilon, result.finding.error).delta(epsilon) for epsilon in grid]
    low, middle, _ = np.array(measured).T
    with picture(path) as axes:
        if result.claim is not None:
            claim = result.claim
            axes.plot(grid, [audit.implied_delta(claim, e) for e in grid], "--", color="tab:gray", label="claimed")
        if result.guarantee is not None:
            proved = [_proved_delta(result.guarantee, e) for e in grid]
            axes.plot(grid, proved, color="tab:blue", label="proved (upper bound)")
        axes.fill_between(grid, low, np.maximum(low, middle), color="tab:red", alpha=0.25, lw=0)
        confidence = 1 - result.finding.error
        axes.plot(grid, low, color="tab:red", label=f"measured lower bound, confidence {confidence:g} at each epsilon")
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
