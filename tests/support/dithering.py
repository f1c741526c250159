"""A key of dithers that tests know."""

from __future__ import annotations

from dpdist.rows.dither import DitherKey

KEY = DitherKey(bytes(range(32)))
