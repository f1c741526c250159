"""How far long work has come, told to whoever asks."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""What a slow sampler reports to: steps done, and steps expected in all."""
