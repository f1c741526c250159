"""Progress: the library tells whoever asks and prints nothing; the command line draws bars of it."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from support.cli_scene import WHERE

from dpdist.cli.output import Bars
from dpdist.pipeline.budget import ingest_rows
from dpdist.pipeline.components import fit_components, project_rows
from dpdist.pipeline.release import release_rows
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.request import ReleaseRequest
from dpdist.runtime.cluster import Cluster

Told = list[tuple[str, int, int]]


def steps(folder: Path, cluster: Cluster, told: Told) -> None:
    """Ingest, release, take components, project."""
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(200, 3)))
    rows = folder / "rows.zarr"
    budget = PrivacyLoss.parse("2", "1e-5")
    ingest_rows(folder / "x.npy", rows, budget=budget, progress=lambda *facts: told.append(facts))
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), 4.0)
    release_rows(rows, folder / "release.zarr", request, cluster=cluster)
    fit_components(folder / "release.zarr", folder / "model.zarr", 1)
    project_rows(rows, folder / "model.zarr", folder / "scores.zarr", cluster=cluster)


def test_every_step_tells_how_far_it_is_and_the_library_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: Told = []
    steps(tmp_path, Cluster(progress=lambda *facts: told.append(facts)), told)
    assert capfd.readouterr() == ("", "")
    labels = list(dict.fromkeys(label for label, _, _ in told))
    assert [WHERE.sub("", label) for label in labels] == ["Ingesting", "Summing rows", "Projecting rows"]
    assert labels[1] == "Summing rows in this process"
    for label in labels:
        done = [(count, total) for name, count, total in told if name == label]
        assert done == sorted(done)
        assert done[-1][0] == done[-1][1] > 0
        assert len({total for _, total in done}) == 1


class Terminal(io.StringIO):
    """Takes itself for a terminal, so that bars are drawn."""

    def isatty(self) -> bool:
        return True


def test_each_piece_of_work_has_a_bar_and_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    bars = Bars()
    for label, total in (("One", 2), ("Two", 3)):
        for done in range(total + 1):
            bars(label, done, total)
    bars("Three", 1, 5)
    bars.end()  # it was interrupted
    bars.end()
    lines = screen.getvalue().split("\n")
    assert len(lines) == 4
    for line, label in zip(lines, ("One", "Two", "Three"), strict=False):
        assert label in line
    assert "100%" in lines[0]
    assert "100%" in lines[1]
    assert "100%" not in lines[2]


def test_a_bar_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    bars = Bars()
    for done in range(3):
        bars("Summing rows on 128 workers at tls://10.0.0.111:38786", done, 2)
    assert max(map(len, re.split(r"[\r\n]", re.sub(r"\x1b\[\S*?[a-z]", "", screen.getvalue())))) <= 80
