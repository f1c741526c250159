"""Entropy that can be replayed, to compare two ways to the same bits; the product has no such thing, on purpose."""

from __future__ import annotations

from collections.abc import Iterable

from dpdist.core.noise.entropy import SYSTEM, Words


class Recording:
    """The system's entropy, and how much of it was drawn."""

    def __init__(self) -> None:
        self.drawn: list[Words] = []

    def words(self, count: int) -> Words:
        self.drawn.append(SYSTEM.words(count))
        return self.drawn[-1]


class Replaying:
    """What was drawn before, in the same order and the same portions."""

    def __init__(self, drawn: Iterable[Words]) -> None:
        self.left = list(drawn)

    def words(self, count: int) -> Words:
        found = self.left.pop(0)
        assert found.shape == (count,)
        return found
