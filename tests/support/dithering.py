"""A key of dithers that tests know."""

from __future__ import annotations

from dpdist.core.rows.dither import DitherKey

KEY = DitherKey(bytes(range(32)))
