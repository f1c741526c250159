"""Folders of the repository that tests read."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster"
RESULTS = ROOT / "workflows" / "results"
STORED = ROOT / "tests" / "stored"
"""What older versions wrote."""
PUBLIC_DATA = Path(os.environ.get("DPDIST_TEST_DATA", ROOT.parent / "shared" / "data"))
"""Real data sets: tests that read them are skipped where they are not; ``papers.common.fetch`` gets two of them."""
