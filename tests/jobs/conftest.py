"""A job with periods, and a record of the rows it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.nightly_scene import Place, noted_chunks, place_in


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return place_in(tmp_path, monkeypatch)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return noted_chunks(monkeypatch)
