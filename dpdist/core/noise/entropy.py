"""The only access to the operating system's randomness for noise; identifiers come from :mod:`dpdist.core.text`.

There are no seeds, because a stored seed would remove the noise. Tests pass their own :class:`Entropy` to force rare
branches; all other code passes :data:`SYSTEM`.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


class Entropy(Protocol):
    """A source of independent uniform 64-bit words."""

    def words(self, count: int) -> Words:
        """Return ``count`` fresh words, dtype uint64; must be thread-safe."""
        ...


class SystemEntropy:
    """The kernel's cryptographic generator (``getrandom``), read at every call; safe across forks."""

    def words(self, count: int) -> Words:
        """Return ``count`` fresh words, dtype uint64."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


SYSTEM = SystemEntropy()
