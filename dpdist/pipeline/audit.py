"""``dpdist audit``: attack a mechanism on a cluster; its privacy profile as claimed, as proved and as measured.

The tables are synthetic, so nothing here is private and no ledger is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist._util.paths import AnyPath
from dpdist._util.text import counted
from dpdist.errors import UsageError
from dpdist.mechanisms import attack
from dpdist.mechanisms.attack import AuditTask, Scene
from dpdist.mechanisms.base import Calibrated
from dpdist.pipeline.release import Cluster
from dpdist.privacy import audit
from dpdist.privacy.accounting import gaussian_delta
from dpdist.privacy.guarantee import MICRO, Guarantee, PrivacyLoss
from dpdist.report.figures import picture

_TASKS = 16
_GRID = 41
_LARGEST_EPSILON = 100
_UNBOUNDED = 500
"""An epsilon beyond this is shown by releases that only one of the tables can make."""


@dataclass(frozen=True)
class Audit:
    """The result of an attack on one mechanism.

    Attributes
    ----------
    task
        What was attacked, with all the draws.
    claim, guarantee
        What its authors claim and what is proved, at the parameters of the attack.
    counted
        The best event, from draws of two tables alone.
    weighted
        The best event, from weighted draws; None where the mechanism's likelihood ratio is not known.
    sample
        The attacker's numbers on draws of the two tables, (2, draws).
    """

    task: AuditTask
    claim: PrivacyLoss | None
    guarantee: Guarantee | None
    counted: audit.Finding
    weighted: audit.Finding | None
    sample: npt.NDArray[np.float64]

    @property
    def finding(self) -> audit.Finding:
        """What shows more."""
        return max(filter(None, (self.counted, self.weighted)), key=lambda each: each.epsilon(self.task.loss.delta))

    def _rejects(self, loss: PrivacyLoss) -> bool:
        return any(audit.rejects(each, loss) for each in (self.counted, self.weighted) if each is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        counted, weighted = (each and audit.to_json(each, self.task.loss) for each in (self.counted, self.weighted))
        return {
            "mechanism": self.task.mechanism,
            "neighbours": self.task.query.neighbours.value,
            "d": self.task.query.size,
            "draws": self.task.draws,
            "claim": None if self.claim is None else self.claim.to_json(),
            "proved": None if self.guarantee is None else self.guarantee.loss.to_json(),
            "counted": counted,
            "weighted": weighted,
            "epsilon_lower": self.finding.epsilon(self.task.loss.delta),
            "confidence": 1 - sum(each.error for each in (self.counted, self.weighted) if each is not None),
            "claim_rejected": self._rejects(self.task.loss),
            "proof_rejected": self.guarantee is not None and self._rejects(self.guarantee.loss),
        }

    def words(self) -> str:
        """Return the result in sentences."""
        loss, found = self.task.loss, self.to_json()
        verdict = "REJECTED" if found["claim_rejected"] else "not rejected"
        proved = "nothing" if self.guarantee is None else str(self.guarantee.loss)
        counts = found["counted"]
        margin = max(counts["delta_estimate"] - counts["delta_lower"], 0.0)
        words = (
            f"{self.task.mechanism}, {self.task.query.neighbours}, {self.task.draws} draws of each of two tables "
            f"{counted(counts['rows_apart'], 'row')} apart: at epsilon {loss.epsilon:g} delta is at least "
            f"{counts['delta_lower']:.4g} (estimate {counts['delta_estimate']:.4g} ± {margin:.2g}); at delta "
            f"{loss.delta:g} epsilon is at least {counts['epsilon_lower']:.4g}."
        )
        if found["weighted"]:
            shown = found["weighted"]["epsilon_lower"]
            least = "larger than any number" if shown > _UNBOUNDED else f"at least {shown:.4g}"
            words += f" Draws weighted by the likelihood ratio, which relies on its formula: epsilon is {least}."
        words += f" Confidence {found['confidence']:.6g}. Claimed {loss}: {verdict}. Proved {proved}."
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
    with cluster.connected() as found:

        def drawn(scene: Scene) -> npt.NDArray[np.float64]:
            part = replace(task, draws=-(-task.draws // _TASKS), scene=scene)
            count = len(found.workers)
            groups = [[part] * len(range(i, _TASKS, count)) for i in range(min(count, _TASKS))]
            sums = found.reduce(attack.run, _joined, groups, f"Drawing {task.mechanism}")
            return found.trusted(lambda *parts: _joined(parts), sums=sums)

        return _examined(task, calibrated, error, drawn)


def attacked(task: AuditTask, calibrated: Calibrated, error: float) -> Audit:
    """Do so in this process, with a mechanism that may differ from the one the task names."""
    return _examined(task, calibrated, error, lambda scene: attack.attack(calibrated, scene, task.draws))


def _examined(
    task: AuditTask, calibrated: Calibrated, error: float, drawn: Callable[[Scene], npt.NDArray[np.float64]]
) -> Audit:
    ratio_known = calibrated.log_ratio(np.eye(task.query.size), np.eye(task.query.size)) is not None
    part = error / 2 if ratio_known else error
    scene = attack.choose(calibrated, task.query, task.loss, task.draws, part, weighted=False)
    sample = drawn(scene)
    counted = audit.examine(sample[0], sample[1], part, delta=task.loss.delta, apart=scene.apart)
    weighted = None
    if ratio_known:
        tilted = drawn(attack.choose(calibrated, task.query, task.loss, task.draws, part, weighted=True))
        weighted = audit.examine_weighted(tilted[0], tilted[1], part, task.loss.delta)
    whole = replace(task, draws=sample.shape[1], scene=scene)
    return Audit(whole, calibrated.claim, calibrated.guarantee, counted, weighted, sample)


def _joined(parts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return np.concatenate(parts, axis=1)


def plot(result: Audit, path: AnyPath) -> None:
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
