"""What tests and examples need alike: a state folder that is nobody's home, and a register for each of them."""

from __future__ import annotations

import os
import tempfile

import pytest

from dpdist.core.ledger.register import Register
from dpdist.estimators import fit

_STATE = tempfile.TemporaryDirectory(prefix="dpdist-state-")
os.environ["DPDIST_STATE_HOME"] = _STATE.name  # also of the processes that the tests start: nobody's home is touched


@pytest.fixture(autouse=True)
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Give each test a register of its own: what one has released is no other's business, nor that of an example."""
    fresh = Register()
    monkeypatch.setattr(fit, "REGISTER", fresh)
    return fresh
