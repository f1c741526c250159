"""Mechanisms that say how they were drawn, light enough to be imported in every process that draws."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import numpy as np

from dpdist.mechanisms.base import IndependentEntries
from dpdist.mechanisms.gaussian import CalibratedGaussian
from dpdist.noise.entropy import Entropy, SystemEntropy
from dpdist.triangle import Band, Triangle
from support.scripted import Scripted


@dataclass(frozen=True)
class Replayed(IndependentEntries):
    """A mechanism whose draws follow from where they stand, in whatever process they are made."""

    fixed: CalibratedGaussian
    seed: int
    slow: int = 0

    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:
        """Draw from a stream of the band's own; in the process that is told to be slow, leave the others the work."""
        assert isinstance(entropy, SystemEntropy)
        if os.getpid() == self.slow:
            time.sleep(0.05)
        return self.fixed.draw_band(band, Scripted(self.seed + band.start))


@dataclass(frozen=True)
class Again(Replayed):
    """The twin that must fail: every piece begins one stream anew, as a state copied by a fork would."""

    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:
        """Draw what every other band draws."""
        assert isinstance(entropy, SystemEntropy)
        return self.fixed.draw_band(band, Scripted(self.seed))


@dataclass(frozen=True)
class Marked(IndependentEntries):
    """A mechanism whose noise is the id of the process that drew it; others than ours die over it, if mortal."""

    ours: int
    mortal: bool = False

    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:
        """Return the id of this process, for every entry."""
        assert isinstance(entropy, SystemEntropy)
        if os.getpid() == self.ours:
            time.sleep(0.05)
        elif self.mortal:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(band.entries, os.getpid(), dtype=np.int64)
