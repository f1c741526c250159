"""What a command writes about a release replaces what dpdist wrote there, and no file of somebody else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call

G = ("--budget-epsilon", "40", "--budget-delta", "1e-4")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("report", "release.zarr"), "out.html"),
        (("report", "release.zarr"), "out.json"),
        (("covariance", "release.zarr"), "out.csv"),
        (("covariance", "release.zarr"), "out.npz"),
        (("pca", "release.zarr", "model.zarr", "--components", "1", "--table"), "out.csv"),
        (("pca", "release.zarr", "model.zarr", "--components", "1", "--table"), "out.parquet"),
    ],
)
def test_a_file_of_somebody_else_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, command: tuple[str, ...], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(9000, 3)), columns=list("abc"))
    frame.to_csv("table.csv", index=False)
    assert call("ingest", "table.csv", "rows.zarr", *G).code == 0
    assert call("release", "rows.zarr", "release.zarr", "--epsilon", "20", "--delta", "1e-6", "--clip", "6").code == 0
    said = call(*command, name)
    assert said.code == 0, said.err
    assert call(*command, name).code == 0  # again
    for own in ("table.csv", "foreign"):
        content = Path("table.csv").read_bytes() if own == "table.csv" else b"a,b,c\n1,2,3\n"
        Path(name).write_bytes(content)
        said = call(*command, name)
        assert said.code == 4
        assert "exists already, and is no " in said.err
        assert Path(name).read_bytes() == content
