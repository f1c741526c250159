"""`none`: the exact second moment, without privacy, to measure the others against.

Nothing is claimed and nothing is proved: the release is private data and must be kept like the rows themselves.
The tool therefore gives it out only where reproduction is asked for, and charges no ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.mechanisms.base import IndependentEntries, Matrix, Mechanism
from dpdist.mechanisms.info import DeltaUse, MechanismInfo, Output
from dpdist.mechanisms.noise_law import Noise
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import Entropy
from dpdist.privacy.guarantee import Arithmetic, PrivacyLoss
from dpdist.triangle import Band, Triangle


@dataclass(frozen=True)
class CalibratedNone(IndependentEntries):
    """No noise."""

    size: int
    guarantee: None = None
    claim: None = None

    @property
    def noise(self) -> Noise:
        """Law and variances: zero."""
        return Noise("none", variance_diagonal=0.0, variance_off_diagonal=0.0)

    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:  # noqa: ARG002 - there is nothing to draw
        """Return zeros; packed, int64."""
        return np.zeros(band.entries, dtype=np.int64)

    def log_ratio(self, here: Matrix, there: Matrix) -> None:
        """Return None: what is released is the moment itself."""


class NoPrivacy:
    """The exact second moment: evaluation only."""

    info = MechanismInfo(
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
        replacement="two-sided-wishart",
        semidefinite=True,
    )

    def calibrate(self, query: LatticeQuery, _loss: PrivacyLoss) -> CalibratedNone:
        """Return the exact answer, whatever the loss."""
        return CalibratedNone(query.size)


MECHANISMS: tuple[Mechanism, ...] = (NoPrivacy(),)
