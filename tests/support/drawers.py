"""Mechanisms whose draws depend on their place alone."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.mechanisms.base import IndependentEntries
from dpdist.mechanisms.gaussian import CalibratedGaussian
from dpdist.noise.entropy import Entropy, SystemEntropy
from dpdist.triangle import Band, Triangle
from support.scripted import Scripted


@dataclass(frozen=True)
class Replayed(IndependentEntries):
    """A mechanism whose draws follow from the place of their band."""

    fixed: CalibratedGaussian
    seed: int

    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:
        assert isinstance(entropy, SystemEntropy)
        return self.fixed.draw_band(band, Scripted(self.seed + band.start))


@dataclass(frozen=True)
class Again(Replayed):
    """The twin that must fail: every piece begins one stream anew, as a state copied by a fork would."""

    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:
        assert isinstance(entropy, SystemEntropy)
        return self.fixed.draw_band(band, Scripted(self.seed))
