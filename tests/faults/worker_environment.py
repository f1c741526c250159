"""The environment of the tests' Dask processes: what cluster/worker.env declares."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).parents[2] / "cluster" / "worker.env"


def declared() -> dict[str, str]:
    lines = FILE.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def without_tls() -> dict[str, str]:
    return {**declared(), "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "False"}
