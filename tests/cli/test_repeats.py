"""A command run again leaves alone what it made, and says so; what it would make otherwise, it does not replace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.cli_scene import LOSS, Call, tree

INGEST = ("ingest", "table.npy", "rows.zarr", "--budget-epsilon", "2", "--budget-delta", "1e-5")
LEDGER = ("ledger", "create", "rows.ledger", "--rows", "rows.zarr")
PCA = ("pca", "release.zarr", "model.zarr", "--components", "2")
PROJECT = ("project", "rows.zarr", "model.zarr", "scores.zarr")
COMBINE = ("combine", "sum.zarr", "release.zarr")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, scheduler: str) -> Path:
    """Return a folder in which everything was done once, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    np.save(folder / "table.npy", np.random.default_rng(3).integers(0, 255, (500, 3), dtype=np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in (INGEST, ("release", "rows.zarr", "release.zarr", *LOSS), PCA, PROJECT, COMBINE):
            _done(patch, *_there(command, scheduler))
    return folder


def _there(command: tuple[str, ...], scheduler: str) -> tuple[str, ...]:
    return (*command, "--scheduler", scheduler) if command[0] in {"release", "project"} else command


def _done(patch: pytest.MonkeyPatch, *arguments: str) -> None:
    from dpdist import cli

    patch.setattr("sys.argv", ["dpdist", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0


@pytest.fixture
def place(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a copy of that folder."""
    folder = tmp_path / "place"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (INGEST, "ingested before from the same files and left alone"),
        (INGEST[:3], "Budget epsilon 2, delta 1e-05 in rows.ledger."),
        ((*LEDGER, "--budget-epsilon", "2", "--budget-delta", "1e-5"), "created before for these rows and left alone"),
        (("release", "rows.zarr", "release.zarr", *LOSS), "nothing spent"),
        (PCA, "written before and left alone"),
        (PROJECT, "written before, and left alone"),
        (COMBINE, "written before and left alone"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_a_command_run_again_changes_nothing_and_says_so(
    place: Path, call: Call, scheduler: str, command: tuple[str, ...], words: str
) -> None:
    before = tree(place)
    said = call(*_there(command, scheduler))
    assert (said.code, words in said.err) == (0, True), said.err
    assert tree(place) == before
    assert call(*_there(command, scheduler), "--json").json["fresh"] is False


def test_what_is_not_the_same_is_not_replaced(place: Path, call: Call, scheduler: str) -> None:
    before = tree(place)
    for code, command in (
        (4, ("ingest", "table.npy", "rows.zarr", "--columns", "c0,c1")),
        (2, ("ingest", "table.npy", "rows.zarr", "--budget-epsilon", "3")),
        (4, ("ingest", "table.npy", "rows.zarr", "--compress")),
        (4, ("ingest", "table.npy", "release.zarr")),
        (4, ("pca", "release.zarr", "model.zarr", "--components", "1")),
        (4, ("pca", "sum.zarr", "model.zarr", "--components", "2")),
        (4, ("pca", "release.zarr", "scores.zarr", "--components", "2")),
        (4, ("project", "rows.zarr", "model.zarr", "model.zarr")),
        (4, ("project", "rows.zarr", "model.zarr", "table.npy")),
        (4, ("combine", "release.zarr", "release.zarr")),
    ):
        said = call(*_there(command, scheduler))
        assert (said.code, bool(said.message)) == (code, True)
        assert tree(place) == before


def test_rows_of_files_that_changed_since_are_not_taken_for_theirs(place: Path, call: Call) -> None:
    os.utime(place / "table.npy", (1, 1))
    said = call(*INGEST)
    assert said.code == 4
    assert "not ingested from these files, as they are now" in said.message


def test_components_above_the_noise_are_counted_before_a_model_is_taken_for_theirs(place: Path, call: Call) -> None:
    shutil.rmtree("model.zarr")
    auto = ("pca", "release.zarr", "model.zarr", "--components", "auto")
    found = call(*auto, "--json").json["components"]
    before = tree(place)
    assert call(*auto, "--json").json["fresh"] is False
    assert tree(place) == before
    shutil.rmtree("model.zarr")
    assert call("pca", "release.zarr", "model.zarr", "--components", str(found % 3 + 1)).code == 0
    said = call(*auto)
    assert said.code == 4
    assert "made from something else" in said.message


def test_damaged_scores_are_not_taken_for_scores(place: Path, call: Call, scheduler: str) -> None:
    next(path for path in (place / "scores.zarr" / "c").rglob("*") if path.is_file()).unlink()
    said = call(*_there(PROJECT, scheduler))
    assert said.code == 4
    assert "damaged" in said.message
