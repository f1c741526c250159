"""Models are read back unchanged; scores are the same bytes for any split of the work, and never incomplete."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parts import table_of

from dpdist.answers.components import Components
from dpdist.answers.model import Model, open_model, save
from dpdist.core.errors import DataError, UsageError
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.pipeline.inspect import inspect_path
from dpdist.core.pipeline.projection import ProjectionTask, project_chunks, scores_of
from dpdist.core.rows.dataset import RowsTable, partitions
from dpdist.core.rows.units import Unit
from dpdist.core.rows.writing import chunk_key
from dpdist.core.storage.arrays import ChunkWriter, put_array
from dpdist.core.storage.store import AnyStore, Store, store_at
from papers.common.drawn import drawn

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.generic]
NAMES = ("a", "b", "c")
ROWS = 67
CHUNKS = 7
"""Six of eleven rows and one of a single row."""
MEAN = np.array([100.5, -3.25, 7.0])
SCALE = np.array([2.0, 0.3, 11.0])
VECTORS = np.array([[2.0, 2.0, 1.0], [-2.0, 1.0, 2.0]]) / 3


def values(dtype: str) -> Rows:
    rng = np.random.default_rng(5)
    if dtype.startswith("float"):
        return rng.normal(scale=1e3, size=(ROWS, 3)).astype(dtype)
    limits = np.iinfo(dtype)
    rows: Rows = rng.integers(limits.min, limits.max, size=(ROWS, 3), dtype=dtype, endpoint=True)
    return rows


RELEASE = drawn(np.eye(ROWS, 3), 10.0, mechanism="two-sided-wishart", names=NAMES).release()


def write_model(path: Path, mean: Floats = MEAN, scale: Floats = SCALE, *, per_row: bool = True) -> Model:
    found = Components(VECTORS, np.array([9.5, -0.25]), per_row, mean, scale)
    save(Model(RELEASE.release_id, NAMES, found), RELEASE, path)
    return open_model(path)


def cut(whole: ProjectionTask, count: int) -> list[ProjectionTask]:
    return [whole.for_task(run) for run in partitions(whole.table.chunks, count)]


def project(table: RowsTable, model: Path, target: Path, tasks: int = 3, *, lost: int | None = None) -> None:
    """Project in this process; the lost task is never run."""
    with scores_of(table, open_model(model), model, target) as whole:
        for i, task in enumerate(cut(whole, tasks)):
            if i != lost:
                project_chunks(task)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def chunks(place: AnyStore) -> dict[str, bytes]:
    store = store_at(place)
    return {key: store.get(key) for key, _ in store.list("c")}


@pytest.fixture
def table(tmp_path: Path) -> RowsTable:
    return table_of(tmp_path / "rows.zarr", values("int16"), 11, names=NAMES)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_model(tmp_path / "model.zarr")
    return tmp_path / "model.zarr"


# --- models

ARRAYS = ("components", "eigenvalues", "mean", "scale")


@pytest.mark.parametrize("per_row", [True, False])
def test_a_model_reads_back_as_it_was_written(tmp_path: Path, per_row: bool) -> None:
    found = write_model(tmp_path / "model.zarr", per_row=per_row)
    assert (found.release_id, found.names, found.components.per_row) == (RELEASE.release_id, NAMES, per_row)
    for name, written in zip(ARRAYS, (VECTORS, np.array([9.5, -0.25]), MEAN, SCALE), strict=True):
        assert getattr(found.components, name).tobytes() == written.tobytes()


def test_loadings_go_into_a_frame_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "model.zarr")
    frame = model.to_frame()
    assert (list(frame.columns), list(frame.index)) == (list(NAMES), [1, 2])
    np.testing.assert_array_equal(frame.to_numpy(), VECTORS)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        model.to_frame()


def test_a_model_says_which_release_it_came_from_and_what_was_guaranteed(tmp_path: Path) -> None:
    place = tmp_path / "model.zarr"
    model = write_model(place)
    info = json.loads((place / "zarr.json").read_text())["attributes"]["dpdist"]
    for cosine, (low, high) in zip(info.pop("squared_cosines"), info.pop("squared_cosine_intervals"), strict=True):
        assert cosine is low is high is None or 0 <= low <= cosine <= high <= 1
    told = {
        "format": "dpdist-model/1", "release_id": RELEASE.release_id, "mechanism": "two-sided-wishart",
        "status": "private", "guarantee": RELEASE.attributes()["guarantee"], "columns": list(NAMES), "k": 2,
        "eigenvalues": True, "eigenvalues_per_row": True,
    }  # fmt: skip
    assert info.items() >= told.items()
    assert info["confidence"] == 0.95
    shutil.rmtree(place)
    save(model, replace(RELEASE, noise=Noise("own", variance_diagonal=2.0, variance_off_diagonal=1.0)), place)
    assert (
        json.loads((place / "zarr.json").read_text())["attributes"]["dpdist"] == told
    )  # its noise has no known distribution


def test_a_model_says_whose_rows_its_guarantee_is_of_and_on_what_it_depends(tmp_path: Path) -> None:
    place, unit = tmp_path / "model.zarr", Unit("patient", 3)
    save(write_model(tmp_path / "first.zarr"), replace(RELEASE, unit=unit, condition="it rains"), place)
    info = json.loads((place / "zarr.json").read_text())["attributes"]["dpdist"]
    assert (info["unit"], info["condition"]) == ({"column": "patient", "max_rows": 3}, "it rains")
    told = inspect_path(place)
    assert "of the rows of one patient, 3 at most, if it rains" in " ".join(told.describe().split())
    assert told.to_json()["guarantee"] == info["guarantee"]


def refused(path: Path) -> str:
    with pytest.raises(DataError) as error:
        open_model(path)
    message = str(error.value)
    assert str(path) in message
    assert "dpdist.fit_components" in message or "restore it from a copy" in message
    return message


def test_a_model_that_contradicts_itself_is_refused(tmp_path: Path, model: Path) -> None:
    text = (model / "zarr.json").read_text()
    info = json.loads(text)["attributes"]["dpdist"]
    wrong = [{**info, "release_id": 7}, {**info, "columns": ["a", "b"]}, {**info, "columns": [1, 2, 3]}]
    wrong += [{**info, "columns": ["a", "a", "b"]}, {**info, "columns": ["a", "b", "\x1b[2J"]}, {**info, "k": 3}]
    wrong += [{**info, "status": "private indeed"}, {**info, "guarantee": "all"}]
    lost = ("columns", "eigenvalues_per_row", "status", "guarantee", "mechanism", "k")
    wrong += [{key: value for key, value in info.items() if key != name} for name in lost]
    attributes = [json.dumps({**json.loads(text), "attributes": {"dpdist": each}}) for each in wrong]
    for content in ("", '["attributes"]', *attributes):
        (model / "zarr.json").write_text(content)
        refused(model)
    for i, (name, values) in enumerate([
        ("components", np.ones((2, 3))), ("components", np.array([1.0, 0, 0])), ("eigenvalues", np.ones(3)),
        ("mean", np.ones(2)), ("scale", np.ones(4)), ("mean", np.array([0, np.inf, 0])),
        ("scale", np.array([1, 0, 1.0])),
        ("eigenvalues", np.array([1.0, 2.0])), ("eigenvalues", np.array([np.nan, 1.0])), ("scale", np.ones(3)),
    ]):  # fmt: skip
        write_model(place := tmp_path / f"{i}.zarr")
        shutil.rmtree(place / name)
        put_array(zarr.open_group(place, mode="r+"), name, values)
        if i < 9:
            refused(place)
        else:  # the twin: what fits is read
            assert open_model(place).components.scale.tolist() == [1, 1, 1]


@pytest.mark.parametrize("array", ARRAYS)
def test_a_model_with_a_damaged_array_is_refused(model: Path, array: str) -> None:
    [chunk] = [path for path in (model / array).rglob("*") if path.is_file() and path.name != "zarr.json"]
    content = chunk.read_bytes()
    flipped = bytearray(content)
    flipped[6] ^= 0x10  # in the exponent of the first number
    for damage in (flipped, content[:-3]):
        chunk.write_bytes(damage)
        refused(model)
    chunk.unlink()  # Zarr reads it as zeros: scores about a wrong mean
    refused(model)
    shutil.rmtree(model / array)
    refused(model)


# --- scores


@pytest.mark.parametrize(
    ("dtype", "stored", "mean", "scale"),
    [
        ("uint8", "float64", MEAN[0], SCALE[0]), ("float32", "float32", MEAN[0], SCALE[0]),
        ("int64", "float64", MEAN[0], SCALE[0]), ("float64", "float64", MEAN[0], SCALE[0]),
        ("float32", "float64", 1e30, 1.0), ("float32", "float64", 0, 1e-30), ("float32", "float64", 0, 1e30),
    ],
)  # fmt: skip
def test_scores_are_the_centred_and_scaled_rows_times_the_components(
    tmp_path: Path, dtype: str, stored: str, mean: float, scale: float
) -> None:
    """At the precision of the rows, or of float64 if float32 cannot represent the model."""
    rows, means, scales = values(dtype), np.array([mean, *MEAN[1:]]), np.array([scale, *SCALE[1:]])
    write_model(tmp_path / "model.zarr", means, scales)
    table = table_of(tmp_path / "rows.zarr", rows, 11, names=NAMES)
    assert table.chunks == CHUNKS
    project(table, tmp_path / "model.zarr", tmp_path / "scores.zarr")
    scores = zarr.open_array(tmp_path / "scores.zarr", mode="r")
    assert scores.dtype == stored
    sizes = (np.abs(rows.astype(np.float64)) + np.abs(means)) / scales @ np.abs(VECTORS.T)
    expected = ((rows.astype(np.float64) - means) / scales) @ VECTORS.T
    assert (np.abs(np.asarray(scores[...]) - expected) <= 8 * np.finfo(stored).eps * sizes).all()


def scores_of_rows(folder: Path, rows: Rows, model: Path) -> Floats:
    project(table_of(folder / "rows.zarr", rows, 11, names=NAMES), model, folder / "scores.zarr")
    return np.asarray(zarr.open_array(folder / "scores.zarr", mode="r")[...], dtype=np.float64)


def test_a_row_without_numbers_has_such_scores_and_spoils_no_other(tmp_path: Path, model: Path) -> None:
    rows = values("float32")
    (tmp_path / "spoilt").mkdir()
    whole = scores_of_rows(tmp_path, rows, model)
    rows[3] = [np.nan, np.inf, -np.inf]
    found = scores_of_rows(tmp_path / "spoilt", rows, model)
    assert np.flatnonzero(~np.isfinite(found).all(axis=1)).tolist() == [3]
    assert np.delete(found, 3, axis=0).tobytes() == np.delete(whole, 3, axis=0).tobytes()


def test_the_rounding_of_the_mean_shifts_no_score_and_none_overflows_on_the_way(tmp_path: Path) -> None:
    """Float32 represents these rows and their differences exactly, but not a tenth of the mean."""
    rows = (16_000_000 + np.arange(ROWS * 3).reshape(ROWS, 3) % 7).astype(np.float32)
    mean = np.array([16_000_003.1, 16_000_002.9, 16_000_003.4])
    write_model(tmp_path / "model.zarr", mean, np.ones(3))
    expected = (rows.astype(np.float64) - mean) @ VECTORS.T
    assert scores_of_rows(tmp_path, rows, tmp_path / "model.zarr") == pytest.approx(expected, abs=1e-5)
    (tmp_path / "wide").mkdir()
    rows[3] = [3e38, -3e38, 3e38]
    write_model(tmp_path / "wide" / "model.zarr", np.array([-1e8, 1e8, 0]), np.array([2.0, 2, 2]))
    found = scores_of_rows(tmp_path / "wide", rows, tmp_path / "wide" / "model.zarr")
    assert found[3] == pytest.approx((rows[3].astype(np.float64) / 2) @ VECTORS.T, rel=1e-6)
    assert np.isfinite(found).all()


def test_scores_appear_when_all_tasks_ran_once_or_more_and_say_that_they_are_private(
    tmp_path: Path, table: RowsTable, model: Path
) -> None:
    with scores_of(table, open_model(model), model, tmp_path / "scores.zarr") as whole:
        for task in cut(whole, 3):
            project_chunks(task)
        once = chunks(whole.scores)
        for task in reversed(cut(whole, 3)):  # Dask runs a task at least once
            project_chunks(task)
            assert not (tmp_path / "scores.zarr").exists()
    assert chunks(tmp_path / "scores.zarr") == once
    assert len(once) == CHUNKS
    assert names_in(tmp_path) == ["model.zarr", "rows.zarr", "scores.zarr"]
    info = json.loads((tmp_path / "scores.zarr" / "zarr.json").read_text())["attributes"]["dpdist"]
    assert (info["format"], info["dataset_id"]) == ("dpdist-scores/1", table.dataset_id)
    assert (info["release_id"], info["k"]) == (RELEASE.release_id, 2)
    assert "do not publish" in info["private"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[RowsTable, Path, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("reference")
    table = table_of(folder / "rows.zarr", values("float32"), 11, names=NAMES)
    write_model(folder / "model.zarr")
    project(table, folder / "model.zarr", folder / "scores.zarr", 1)
    return table, folder / "model.zarr", chunks(folder / "scores.zarr")


def test_a_slow_write_keeps_its_scores_and_the_last_one_that_fails_is_told(
    tmp_path: Path, reference: tuple[RowsTable, Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, model, expected = reference
    write = ChunkWriter.write

    def slow(self: ChunkWriter, store: Store, key: str) -> None:
        time.sleep(0.01)  # the next chunk is made meanwhile
        if full and key == chunk_key(CHUNKS - 1):
            raise DataError("The disk is full.")
        write(self, store, key)

    monkeypatch.setattr(ChunkWriter, "write", slow)
    full = False
    project(table, model, tmp_path / "scores.zarr", 1)
    assert chunks(tmp_path / "scores.zarr") == expected
    full = True
    with pytest.raises(DataError, match="disk is full"):
        project(table, model, tmp_path / "others.zarr", 1)


@settings(max_examples=6)
@given(tasks=st.integers(1, 3 * CHUNKS))
def test_any_number_of_tasks_writes_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, reference: tuple[RowsTable, Path, dict[str, bytes]], tasks: int
) -> None:
    table, model, expected = reference
    target = tmp_path_factory.mktemp("split") / "scores.zarr"
    project(table, model, target, tasks)
    assert chunks(target) == expected


def test_without_a_chunk_that_is_missing_there_are_no_scores(tmp_path: Path, table: RowsTable, model: Path) -> None:
    with pytest.raises(DataError, match="not written"):
        project(table, model, tmp_path / "scores.zarr", lost=1)
    assert names_in(tmp_path) == ["model.zarr", "rows.zarr"]


def test_rows_with_other_columns_than_the_model_are_refused(tmp_path: Path, model: Path) -> None:
    """The same columns in another order would give plausible nonsense."""
    for i, names in enumerate((("a", "b", "d"), ("b", "a", "c"), ("a", "b", "c", "d"), ("a", "b"))):
        table = table_of(tmp_path / f"{i}.zarr", np.ones((9, len(names)), dtype=np.uint8), names=names)
        with pytest.raises(DataError, match="columns of the model"):
            project(table, model, tmp_path / "scores.zarr")
    assert not (tmp_path / "scores.zarr").exists()
