"""A job with periods, and a record of the rows it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faults.nightly import JOB
from support.nightly_scene import Place

from dpdist.rows.chunks import ChunkReader
from dpdist.runtime.cluster import Cluster


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(Cluster, "named", False)
    (tmp_path / "incoming").mkdir()
    (tmp_path / "job.toml").write_text(JOB)
    return Place(tmp_path)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every chunk that is read from now on, as the period it is of."""
    seen: list[str] = []
    original = ChunkReader._checked

    def noted(self: ChunkReader, part: Any, index: int, digest: Any) -> Any:
        seen.append(f"{part.period}/{index}")
        return original(self, part, index, digest)

    monkeypatch.setattr(ChunkReader, "_checked", noted)
    return seen
