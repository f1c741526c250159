"""Three hospitals, and their session with all keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sites_scene import Hospitals


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hospitals:
    return Hospitals.at(tmp_path, monkeypatch)


@pytest.fixture
def ready(hospitals: Hospitals) -> tuple[Hospitals, str]:
    hospitals.create()
    return hospitals, hospitals.exchange()
