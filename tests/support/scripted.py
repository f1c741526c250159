"""An entropy source whose bits a test knows: bulk words from a script or a stream, single words from another stream."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dpdist.core.noise.entropy import Words


class Scripted:
    """Gives bulk words from a script, then from one stream, and single words (further bits of a draw) from another."""

    def __init__(self, seed: int) -> None:
        self._streams = [np.random.default_rng([seed, kind]) for kind in (0, 1)]
        self._script: list[Words] = []
        self.drawn: list[Words] = []
        self.singles: list[int] = []

    @property
    def extended(self) -> int:
        return len(self.singles)

    def script(self, *bulk: Iterable[int]) -> None:
        self._script += [np.array(list(words), dtype=np.uint64) for words in bulk]

    def words(self, count: int) -> Words:
        if count == 1:
            self.singles.append(int(self._streams[1].integers(0, 2**64, dtype=np.uint64)))
            return np.array(self.singles[-1:], dtype=np.uint64)
        scripted = self._script and count == self._script[0].size
        words = self._script.pop(0) if scripted else self._streams[0].integers(0, 2**64, count, dtype=np.uint64)
        self.drawn.append(words)
        return words
