"""``dpdist audit``: attack a mechanism, and compare its privacy profile as claimed, proved and measured.

The tables are synthetic, so nothing is private, and no ledger is charged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.base import Calibrated
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss, neighbours_of
from dpdist.core.rows.bounding import RowBound
from dpdist.core.runtime.cluster import AnyCluster, chosen
from dpdist.core.runtime.local import Computation
from dpdist.core.text import counted
from dpdist.literature import attack
from dpdist.literature import loss_bounds as audit
from dpdist.literature.attack import AuditTask, Scene
from dpdist.literature.ratios import log_ratio

_TASKS = 16
_LARGEST_EPSILON = 100
_UNBOUNDED = 500
"""A larger epsilon is the result of releases that only one of the tables can produce."""


@dataclass(frozen=True)
class Audit:
    """The result of an attack on one mechanism."""

    task: AuditTask  # the attack, with all draws
    claim: PrivacyLoss | None  # claim and guarantee at the parameters of the attack
    guarantee: Guarantee | None
    counted: audit.Finding  # the best event, from the draws alone
    weighted: audit.Finding | None  # from weighted draws; None if the mechanism's likelihood ratio is unknown
    sample: npt.NDArray[np.float64]  # the attack's statistic for draws of the two tables, (2, draws)

    def __repr__(self) -> str:
        audited = self.to_json()
        verdict = "rejected" if audited["claim_rejected"] else "not rejected"
        return f"Audit({self.task.mechanism}, epsilon at least {audited['epsilon_lower']:.4g}, claim {verdict})"

    @property
    def _findings(self) -> list[audit.Finding]:
        return [finding for finding in (self.counted, self.weighted) if finding is not None]

    @property
    def finding(self) -> audit.Finding:
        """The finding with the larger epsilon."""
        return max(self._findings, key=lambda finding: finding.epsilon(self.task.loss.delta))

    def _rejects(self, loss: PrivacyLoss) -> bool:
        return any(audit.rejects(finding, loss) for finding in self._findings)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "mechanism": self.task.mechanism,
            "neighbours": self.task.query.neighbours.value,
            "d": self.task.query.size,
            "draws": self.task.draws,
            "claim": None if self.claim is None else self.claim.to_json(),
            "proved": None if self.guarantee is None else self.guarantee.loss.to_json(),
            "counted": audit.to_json(self.counted, self.task.loss),
            "weighted": None if self.weighted is None else audit.to_json(self.weighted, self.task.loss),
            "epsilon_lower": self.finding.epsilon(self.task.loss.delta),
            "confidence": 1 - sum(finding.error for finding in self._findings),
            "claim_rejected": self._rejects(self.task.loss),
            "proof_rejected": self.guarantee is not None and self._rejects(self.guarantee.loss),
        }

    def describe(self) -> str:
        """Return the result in sentences."""
        loss, result = self.task.loss, self.to_json()
        verdict = "REJECTED" if result["claim_rejected"] else "not rejected"
        proved = "nothing" if self.guarantee is None else str(self.guarantee.loss)
        counts = result["counted"]
        margin = max(counts["delta_estimate"] - counts["delta_lower"], 0.0)
        text = (
            f"{self.task.mechanism}, {self.task.query.neighbours}, {self.task.draws} draws of each of two tables "
            f"{counted(counts['rows_apart'], 'row')} apart: at epsilon {loss.epsilon:g} delta is at least "
            f"{counts['delta_lower']:.4g} (estimate {counts['delta_estimate']:.4g} ± {margin:.2g}); at delta "
            f"{loss.delta:g} epsilon is at least {counts['epsilon_lower']:.4g}."
        )
        if result["weighted"]:
            shown = result["weighted"]["epsilon_lower"]
            least = "larger than any number" if shown > _UNBOUNDED else f"at least {shown:.4g}"
            text += f" Draws weighted by the likelihood ratio, which relies on its formula: epsilon is {least}."
        text += f" Confidence {result['confidence']:.6g}. Claimed {loss}: {verdict}. Proved {proved}."
        if result["proof_rejected"]:
            text += " THE PROOF IS CONTRADICTED. Please report this."
        return text


def audit_mechanism(
    mechanism: str,
    loss: PrivacyLoss,
    *,
    columns: int = 3,
    draws: int = 20_000,
    confidence: float = 0.999,
    neighbours: Neighbours | str = Neighbours.REPLACE_ONE,
    options: Mapping[str, object] | None = None,
    cluster: AnyCluster | None = None,
) -> Audit:
    """Attack a mechanism on synthetic tables, and bound its epsilon and delta from below. No ledger is charged.

    Parameters
    ----------
    mechanism : str
        Its name (:func:`dpdist.list_mechanisms`).
    loss : PrivacyLoss
        The claimed epsilon, at most 100, and delta.
    columns : int, default 3
        Columns d of the tables.
    draws : int, default 20000
        Draws from each of the two tables, at least 32.
    confidence : float, default 0.999
        Joint confidence of the bounds, between 0.5 and 1.
    neighbours : Neighbours or str, default Neighbours.REPLACE_ONE
        The relation between the two tables.
    options : mapping of str, default None
        The mechanism's own parameters, by name. None: their defaults.
    cluster : Cluster, dask.distributed.Client or cluster object, default None
        Where to draw. None: threads of this process.

    Returns
    -------
    Audit
        ``finding`` (the best event), ``sample`` ((2, draws) float64), ``to_json()`` and ``describe()``.

    Raises
    ------
    UsageError
        If there are too few draws, the mechanism has no such option, or its claim has no epsilon.
    RefusedError
        If no guarantee is proved for these neighbours.
    DataError
        If the cluster cannot be used.

    See Also
    --------
    list_mechanisms : The claim and the proved guarantee of each mechanism.

    References
    ----------
    Clopper & Pearson 1934 and Hoeffding 1963, theorem 1, for the bounds (:mod:`dpdist.literature.loss_bounds`).

    Examples
    --------
    Not run here:

    >>> import dpdist
    >>> result = dpdist.audit_mechanism("two-sided-wishart", dpdist.PrivacyLoss.parse(1))  # doctest: +SKIP
    >>> result.to_json()["claim_rejected"]  # doctest: +SKIP
    False
    """
    error, cluster = 1 - confidence, chosen(cluster)
    if draws < 2 * _TASKS or not 0 < error < 0.5:
        raise UsageError(f"An audit needs at least {2 * _TASKS} draws and a confidence between 0.5 and 1.")
    if loss.epsilon > _LARGEST_EPSILON:
        raise UsageError(f"An audit cannot examine an epsilon above {_LARGEST_EPSILON}.", parameter="epsilon")
    bound = RowBound(columns, 1.0)
    query = LatticeQuery(bound.width, bound.norm_bound, neighbours_of(neighbours))
    task = AuditTask(mechanism, query, loss, dict(options or {}), draws)
    calibrated = task.calibrated()
    with cluster.connected() as executor:

        def drawn(scene: Scene) -> npt.NDArray[np.float64]:
            part = replace(task, draws=-(-task.draws // _TASKS), scene=scene)
            computation = Computation("attack", attack.run, None, [part] * _TASKS, _joined)
            return executor.reduce(computation, np.asarray, label=f"Drawing {task.mechanism}")

        return _examined(task, calibrated, error, drawn)


def attacked(task: AuditTask, calibrated: Calibrated, error: float) -> Audit:
    """Attack in this process, with a mechanism that may differ from that of the task."""
    return _examined(task, calibrated, error, lambda scene: attack.attack(calibrated, scene, task.draws))


def _examined(
    task: AuditTask, calibrated: Calibrated, error: float, drawn: Callable[[Scene], npt.NDArray[np.float64]]
) -> Audit:
    ratio_known = log_ratio(calibrated, np.eye(task.query.size), np.eye(task.query.size)) is not None
    part = error / 2 if ratio_known else error
    scene = attack.choose(calibrated, task.query, task.loss, task.draws, part, weighted=False)
    sample = drawn(scene)
    counted = audit.examine(sample[0], sample[1], part, delta=task.loss.delta, distance=scene.apart)
    weighted = None
    if ratio_known:
        weighted_sample = drawn(attack.choose(calibrated, task.query, task.loss, task.draws, part, weighted=True))
        weighted = audit.examine_weighted(weighted_sample[0], weighted_sample[1], part, task.loss.delta)
    full_task = replace(task, draws=sample.shape[1], scene=scene)
    return Audit(full_task, calibrated.claim, calibrated.guarantee, counted, weighted, sample)


def _joined(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.concatenate([first, second], axis=1)
