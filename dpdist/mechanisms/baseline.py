"""`none`: the exact second moment, without privacy, to measure the others against.

Nothing is claimed and nothing is proved: the release is private data and must be kept like the rows themselves.
The tool therefore gives it out only where reproduction is asked for, and charges no ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdist.mechanisms.base import Additive, DeltaUse, Mechanism, Output, Statement
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import Entropy, Progress
from dpdist.privacy.guarantee import Arithmetic, PrivacyLoss
from dpdist.triangle import Triangle


@dataclass(frozen=True)
class CalibratedNone(Additive):
    """No noise."""

    entries: int
    guarantee: None = None
    claim: None = None

    @property
    def noise(self) -> dict[str, Any]:
        """Law and variances: zero."""
        return {"law": "none", "variance_diagonal": 0.0, "variance_off_diagonal": 0.0}

    def draw(self, entropy: Entropy, progress: Progress | None = None) -> Triangle:  # noqa: ARG002 - too fast for one
        """Return zeros; packed triangle, int64."""
        return np.zeros(self.entries, dtype=np.int64)


class NoPrivacy:
    """The exact second moment: evaluation only."""

    statement = Statement(
        name="none",
        output=Output.SECOND_MOMENT,
        additive=True,
        law="the exact second moment",
        sensitivity="none is used",
        claimed="nothing: evaluation only",
        proved="nothing",
        arithmetic=Arithmetic.INTEGER_EXACT,
        cost="nothing",
        reference="the non-private baseline of every paper",
        delta=DeltaUse.NONE,
        replacement="gaussian",
    )

    def calibrate(
        self,
        query: LatticeQuery,
        loss: PrivacyLoss,  # noqa: ARG002 - it is not kept
        options: Mapping[str, Any],  # noqa: ARG002 - it has none
    ) -> CalibratedNone:
        """Return the exact answer, whatever the loss."""
        return CalibratedNone(query.entries)


MECHANISMS: tuple[Mechanism, ...] = (NoPrivacy(),)
