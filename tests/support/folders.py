"""Folders of the repository that tests read."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster"
RESULTS = ROOT / "benchmarks" / "results"
STORED = ROOT / "tests" / "stored"
"""What older versions wrote."""
PUBLIC_DATA = Path(os.environ.get("DPDIST_TEST_DATA", ROOT.parent / "shared" / "data"))
"""Real data sets: tests that read them are skipped where they are not; ``papers.common.fetch`` gets two of them."""
HOW_TO_FETCH = "python -m papers.common.fetch FOLDER, then DPDIST_TEST_DATA=FOLDER"


def unpack(stored: Path, folder: Path) -> None:
    with tarfile.open(stored) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # of Python 3.11.4 and newer
        archive.extractall(folder)  # noqa: S202 - our own files
