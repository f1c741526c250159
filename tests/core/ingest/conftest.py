"""Where the tests of ingest read."""

from __future__ import annotations

import pytest


@pytest.fixture
def other_process() -> None:
    """Let another process read what may crash a library, as for users."""


@pytest.fixture(autouse=True)
def in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in this process unless a test is about isolation: starting another takes seconds."""
    if "other_process" not in request.fixturenames:
        monkeypatch.setattr("dpdist.core.ingest.readers.isolated.ISOLATED", False)
