"""model.zarr: what is written is what is read, and whatever is not a sound model is refused with the cure."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from support.releases import archive_of, assemble

from dpdist.errors import DataError, UsageError
from dpdist.mechanisms.noise_law import EdgeKind, Noise
from dpdist.pca.components import Components
from dpdist.pca.model import Model, open_model, save
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.release.archive import publish
from dpdist.release.artefact import Release
from dpdist.rows.bounding import RowBound
from dpdist.triangle import packed

pytestmark = pytest.mark.usefixtures("typed")

NAMES = ("age", "height", "weight")
ARRAYS = ("components", "eigenvalues", "mean", "scale")


def release() -> Release:
    return assemble(
        release_id="week-47",
        mechanism="two-sided-wishart",
        names=NAMES,
        guarantee=Guarantee(
            Neighbours.REPLACE_ONE, PrivacyLoss.parse("1"), None, Arithmetic.IDEAL_REAL, "none: made by hand"
        ),
        bound=RowBound(3, 10.0),
        noise=Noise("by hand", variance_diagonal=2.0, variance_off_diagonal=1.0),
        rows=100,
        neighbours=Neighbours.REPLACE_ONE,
        claim=PrivacyLoss.parse("1"),
        answer=packed(np.diag([300, 200, 100])),
    )


def model(*, per_row: bool = True) -> Model:
    third = 1 / 3
    vectors = np.array([[2 * third, 2 * third, third], [-2 * third, third, 2 * third]])
    found = Components(vectors, np.array([9.5, -0.25]), per_row, np.array([1.0, -2.0, 0.1]), np.array([2.0, 0.5, 3.0]))
    return Model("week-47", NAMES, found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a sound model.zarr."""
    save(model(), release(), tmp_path / "model.zarr")
    return tmp_path / "model.zarr"


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("per_row", [True, False])
def test_a_model_reads_back_as_it_was_written(tmp_path: Path, per_row: bool) -> None:
    written = model(per_row=per_row)
    save(written, release(), tmp_path / "model.zarr")
    found = open_model(tmp_path / "model.zarr")
    assert (found.release_id, found.names, found.components.per_row) == ("week-47", NAMES, per_row)
    for name in ARRAYS:
        assert getattr(found.components, name).tobytes() == getattr(written.components, name).tobytes()


def test_loadings_go_into_a_frame_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = model().to_frame()
    assert list(frame.columns) == list(NAMES)
    assert list(frame.index) == list(range(1, len(model().components.components) + 1))
    np.testing.assert_array_equal(frame.to_numpy(), model().components.components)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        model().to_frame()


def test_a_model_says_between_what_the_squared_cosines_lie_where_the_edge_is_known(tmp_path: Path) -> None:
    known = replace(release(), noise=Noise("g", EdgeKind.NORMAL, variance_diagonal=2.0, variance_off_diagonal=1.0))
    save(model(), known, tmp_path / "model.zarr")
    info = json.loads((tmp_path / "model.zarr" / "zarr.json").read_text())["attributes"]["dpdist"]
    for cosine, (low, high) in zip(info["squared_cosines"], info["squared_cosine_intervals"], strict=True):
        assert cosine is low is high is None or 0 <= low <= cosine <= high <= 1
    assert info["confidence"] == 0.95
    assert open_model(tmp_path / "model.zarr").release_id == "week-47"


def test_a_model_says_which_release_it_came_from_and_what_was_guaranteed(folder: Path) -> None:
    info = json.loads((folder / "zarr.json").read_text())["attributes"]["dpdist"]
    assert info == {
        "format": "dpdist-model/1",
        "release_id": "week-47",
        "mechanism": "two-sided-wishart",
        "status": "private",
        "guarantee": release().attributes()["guarantee"],
        "columns": list(NAMES),
        "k": 2,
        "eigenvalues": True,
        "eigenvalues_per_row": True,
    }


def test_a_model_never_replaces_what_exists(folder: Path) -> None:
    before = tree(folder)
    with pytest.raises(DataError, match="exists already"):
        save(replace(model(), release_id="another"), release(), folder)
    assert tree(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["model.zarr"]


def test_a_model_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Create it first"):
        save(model(), release(), tmp_path / "nowhere" / "model.zarr")
    assert list(tmp_path.iterdir()) == []


def refused(path: Path) -> str:
    """Open what is no sound model; return the message, which must name the place and the cure."""
    with pytest.raises(DataError) as error:
        open_model(path)
    message = str(error.value)
    assert str(path) in message
    assert "dpdist pca" in message
    return message


def test_what_is_no_model_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    refused(tmp_path / "model.zarr")  # nothing is there
    refused(tmp_path)
    (tmp_path / "file.zarr").write_text("a file")
    refused(tmp_path / "file.zarr")
    zarr.create_group(store=tmp_path / "foreign.zarr", zarr_format=3, attributes={"author": "someone"})
    refused(tmp_path / "foreign.zarr")
    # the likeliest mistake: dpdist project ROWS RELEASE SCORES
    publish(archive_of(release()), tmp_path / "release.zarr")
    assert "dpdist-release/1" in refused(tmp_path / "release.zarr")


def _rewrite_attributes(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    whole = json.loads((folder / "zarr.json").read_text())
    change(whole["attributes"]["dpdist"])
    (folder / "zarr.json").write_text(json.dumps(whole))


def _replace_array(folder: Path, name: str, values: npt.NDArray[Any]) -> None:
    shutil.rmtree(folder / name)
    zarr.open_group(folder, mode="r+").create_array(name=name, data=values, compressors=None)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no zarr.json": lambda f: (f / "zarr.json").unlink(),
    "an empty zarr.json": lambda f: (f / "zarr.json").write_text(""),
    "garbage in zarr.json": lambda f: (f / "zarr.json").write_bytes(b"\xff\x00garbage"),
    "zarr.json of another shape": lambda f: (f / "zarr.json").write_text('["attributes"]'),
    "no columns": lambda f: _rewrite_attributes(f, lambda info: info.pop("columns")),
    "no release id": lambda f: _rewrite_attributes(f, lambda info: info.pop("release_id")),
    "a column too few": lambda f: _rewrite_attributes(f, lambda info: info["columns"].pop()),
    "a release id that is no text": lambda f: _rewrite_attributes(f, lambda info: info.update(release_id=7)),
    "columns that are no names": lambda f: _rewrite_attributes(f, lambda info: info.update(columns=[1, 2, 3])),
    "columns that are a word": lambda f: _rewrite_attributes(f, lambda info: info.update(columns="abc")),
    "no eigenvalues_per_row": lambda f: _rewrite_attributes(f, lambda info: info.pop("eigenvalues_per_row")),
    "components not orthonormal": lambda f: _replace_array(f, "components", np.ones((2, 3))),
    "components of one dimension": lambda f: _replace_array(f, "components", np.array([1.0, 0.0, 0.0])),
    "too many eigenvalues": lambda f: _replace_array(f, "eigenvalues", np.ones(3)),
    "a mean for other columns": lambda f: _replace_array(f, "mean", np.ones(2)),
    "a scale for other columns": lambda f: _replace_array(f, "scale", np.ones(4)),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_model_that_contradicts_itself_is_refused(folder: Path, damage: Callable[[Path], object]) -> None:
    damage(folder)
    refused(folder)


def chunk(folder: Path, array: str) -> Path:
    """Return the only chunk of an array."""
    [file] = [path for path in (folder / array).rglob("*") if path.is_file() and path.name != "zarr.json"]
    return file


def _flip(file: Path) -> None:
    """Flip one bit in the exponent of the first number."""
    content = bytearray(file.read_bytes())
    content[6] ^= 0x10
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda folder, array: shutil.rmtree(folder / array),
        lambda folder, array: chunk(folder, array).unlink(),  # Zarr reads it as zeros: scores about a wrong mean
        lambda folder, array: chunk(folder, array).write_bytes(chunk(folder, array).read_bytes()[:-3]),
        lambda folder, array: _flip(chunk(folder, array)),
    ],
    ids=["gone", "a chunk lost", "a chunk cut short", "a bit flipped"],
)
def test_a_model_with_a_damaged_array_is_refused(
    folder: Path, array: str, damage: Callable[[Path, str], object]
) -> None:
    damage(folder, array)
    refused(folder)
