"""The notebook of a regression: every cell runs, in this process, and shows what it ends in."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.folders import ROOT


def run(cell: str, names: dict[str, Any]) -> object:
    """Run a cell, and return the value of its last line."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - our own
    return None if last is None else eval(ast.unparse(last), names)  # noqa: S307 - our own


def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _, *parts = (ROOT / "docs" / "notebooks" / "regression.py").read_text().split("# %%")
    cells = [cell for cell in parts if not cell.startswith(" [markdown]")]
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [run(cell, names) for cell in cells]
    assert [hasattr(value, "_repr_html_") for value in shown] == [False, False, True, True, False]
    assert "age: " in capsys.readouterr().out
    found = names["found"]
    assert found.coef_intervals_[0, 0] > 0
    assert found.r2_intervals_[0] > 0.3
    release = next(index for index, cell in enumerate(cells) if "release_rows" in cell)
    run(cells[release], names)
    assert not names["outcome"].fresh
