"""Folders of the repository that tests read."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster"
RESULTS = ROOT / "benchmarks" / "results"
STORED = ROOT / "tests" / "stored"
"""What older versions wrote."""
PUBLIC_DATA = Path(os.environ.get("DPDIST_TEST_DATA", ROOT.parent / "shared" / "data"))
"""Real data sets: tests that read them are skipped where they are not; ``papers.common.fetch`` gets two of them."""
NO_GENOMES = "the real genomes are not beside this repository"
HOW_TO_FETCH = "python -m papers.common.fetch FOLDER, then DPDIST_TEST_DATA=FOLDER"


def unpack(stored: Path, folder: Path) -> None:
    with tarfile.open(stored) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # of Python 3.11.4 and newer
        archive.extractall(folder)  # noqa: S202 - our own files


def without_data(reasons: Iterable[str]) -> str:
    """Say how many tests were skipped for want of real data, and how to get it; nothing where none was."""
    told = [reason.removeprefix("Skipped: ") for reason in reasons if HOW_TO_FETCH in reason or NO_GENOMES in reason]
    if not told:
        return ""
    wanted = "; ".join(sorted(reason.partition(f": {HOW_TO_FETCH}")[0] for reason in told))
    return (
        f"{len(told)} tests were not run for want of real data ({wanted}). Smaller real tables that come with packages "
        f"were tried. To run those of MNIST and Covertype: {HOW_TO_FETCH}."
    )
