"""The golden record: what some fifty requests answer at fixed random numbers, which no change of structure may alter.

``DPDIST_RECORD=1 pytest tests/whole/test_record.py`` writes it again: its diff is what a change alters.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.cli_scene import Call
from support.folders import STORED
from support.record import record

RECORD = STORED / "golden" / "record.json"


def test_requests_at_fixed_random_numbers_answer_what_they_answered(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    found = record(tmp_path, call, monkeypatch)
    if os.environ.get("DPDIST_RECORD"):
        RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    recorded = json.loads(RECORD.read_text())
    assert list(found) == list(recorded)
    for name, answers in found.items():
        assert answers == recorded[name], name
