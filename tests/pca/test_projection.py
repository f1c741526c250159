"""Scores: right for every stored type, the same bytes however the work is cut, and never half of them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.releases import assemble

from dpdist.errors import DataError
from dpdist.ingest.registered import open_rows
from dpdist.mechanisms.noise_law import Noise
from dpdist.pca.components import Components
from dpdist.pca.model import Model, open_model, save
from dpdist.pca.projection import ProjectionTask, project_chunks, scores_of
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.rows import dataset
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import RowsTable, created, partitions
from dpdist.rows.writing import chunk_key
from dpdist.storage.arrays import ChunkWriter
from dpdist.storage.store import AnyStore, Store, store_at
from dpdist.triangle import packed

NAMES = ("a", "b", "c")
ROWS = 67
CHUNKS = 7
"""Six whole chunks of eleven rows and one of a single row."""
MEAN = np.array([100.5, -3.25, 7.0])
SCALE = np.array([2.0, 0.3, 11.0])
VECTORS = np.array([[2.0, 2.0, 1.0], [-2.0, 1.0, 2.0]]) / 3


def values(dtype: str) -> npt.NDArray[np.generic]:
    rng = np.random.default_rng(5)
    if dtype.startswith("float"):
        return rng.normal(scale=1e3, size=(ROWS, 3)).astype(dtype)
    limits = np.iinfo(dtype)
    rows: npt.NDArray[np.generic] = rng.integers(limits.min, limits.max, size=(ROWS, 3), dtype=dtype, endpoint=True)
    return rows


def write_rows(path: Path, rows: npt.NDArray[np.generic], names: tuple[str, ...] = NAMES) -> RowsTable:
    """Write a table in chunks of eleven rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_TARGET_CHUNK", rows[:11].nbytes)
        with created(path, rows=rows.shape[0], dtype=rows.dtype.name, names=names, budget=None) as writer:
            writer.append(rows)
    return open_rows(path)


def write_model(path: Path, mean: npt.NDArray[np.float64] = MEAN, scale: npt.NDArray[np.float64] = SCALE) -> Model:
    release = assemble(
        release_id="week-47",
        mechanism="two-sided-wishart",
        names=NAMES,
        guarantee=Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss.parse("1"), None, Arithmetic.IDEAL_REAL, "by hand"),
        bound=RowBound(3, 10.0),
        noise=Noise("by hand", variance_diagonal=2.0, variance_off_diagonal=1.0),
        rows=ROWS,
        neighbours=Neighbours.REPLACE_ONE,
        claim=PrivacyLoss.parse("1"),
        answer=packed(np.eye(3)),
    )
    save(Model("week-47", NAMES, Components(VECTORS, np.array([2.0, 1.0]), True, mean, scale)), release, path)
    return open_model(path)


def cut(whole: ProjectionTask, count: int) -> list[ProjectionTask]:
    return [whole.cut(run) for run in partitions(whole.table.chunks, count)]


def project(table: RowsTable, model: Path, target: Path, tasks: int = 3, *, lost: int | None = None) -> None:
    """Project in this process; the lost task is never run."""
    with scores_of(table, open_model(model), model, target) as whole:
        for i, task in enumerate(cut(whole, tasks)):
            if i != lost:
                project_chunks(task)


def chunks(place: AnyStore) -> dict[str, bytes]:
    store = store_at(place)
    return {key: store.get(key) for key, _ in store.list("c")}


@pytest.fixture
def table(tmp_path: Path) -> RowsTable:
    """Return a table of several chunks."""
    return write_rows(tmp_path / "rows.zarr", values("int16"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the place of a model for it."""
    write_model(tmp_path / "model.zarr")
    return tmp_path / "model.zarr"


def require_scores(folder: Path, rows: npt.NDArray[np.generic], stored: str, model: Model) -> None:
    """Project rows and compare with the formula, at the precision of the type that scores must have."""
    table = write_rows(folder / "rows.zarr", rows)
    assert table.chunks == CHUNKS
    project(table, folder / "model.zarr", folder / "scores.zarr")
    scores = zarr.open_array(folder / "scores.zarr", mode="r")
    assert scores.dtype == stored
    mean, scale = model.components.mean, model.components.scale
    sizes = (np.abs(rows.astype(np.float64)) + np.abs(mean)) / scale @ np.abs(VECTORS.T)
    expected = ((rows.astype(np.float64) - mean) / scale) @ VECTORS.T
    assert (np.abs(np.asarray(scores[...]) - expected) <= 8 * np.finfo(stored).eps * sizes).all()


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("uint8", "float64"), ("float32", "float32"), ("int64", "float64"), ("float64", "float64")],
)
def test_scores_are_the_centred_and_scaled_rows_times_the_components(tmp_path: Path, dtype: str, stored: str) -> None:
    require_scores(tmp_path, values(dtype), stored, write_model(tmp_path / "model.zarr"))


@pytest.mark.parametrize(("mean", "scale"), [(1e30, 1.0), (0.0, 1e-30), (0.0, 1e30)])
def test_what_float32_has_no_room_for_is_projected_in_float64(tmp_path: Path, mean: float, scale: float) -> None:
    model = write_model(tmp_path / "model.zarr", np.array([mean, 0, 0]), np.array([scale, 1, 1]))
    require_scores(tmp_path, values("float32"), "float64", model)


def test_a_row_without_numbers_has_such_scores_and_spoils_no_other(tmp_path: Path, model: Path) -> None:
    rows, places = values("float32"), [tmp_path / "whole", tmp_path / "spoilt"]
    for place in places:
        place.mkdir()
    whole = scores_of_rows(places[0], rows, model)
    rows[3] = [np.nan, np.inf, -np.inf]
    found = scores_of_rows(places[1], rows, model)
    assert np.flatnonzero(~np.isfinite(found).all(axis=1)).tolist() == [3]
    assert np.delete(found, 3, axis=0).tobytes() == np.delete(whole, 3, axis=0).tobytes()


def scores_of_rows(folder: Path, rows: npt.NDArray[np.generic], model: Path) -> npt.NDArray[np.float64]:
    project(write_rows(folder / "rows.zarr", rows), model, folder / "scores.zarr")
    return np.asarray(zarr.open_array(folder / "scores.zarr", mode="r")[...], dtype=np.float64)


def test_the_rounding_of_the_mean_shifts_no_score(tmp_path: Path) -> None:
    """Float32 holds these rows exactly, and their differences; of the mean it drops a tenth."""
    rows = (16_000_000 + np.arange(ROWS * 3).reshape(ROWS, 3) % 7).astype(np.float32)
    mean = np.array([16_000_003.1, 16_000_002.9, 16_000_003.4])
    write_model(tmp_path / "model.zarr", mean, np.ones(3))
    expected = (rows.astype(np.float64) - mean) @ VECTORS.T
    assert scores_of_rows(tmp_path, rows, tmp_path / "model.zarr") == pytest.approx(expected, abs=1e-5)


def test_a_score_that_float32_can_hold_does_not_overflow_on_the_way(tmp_path: Path) -> None:
    rows = values("float32")
    rows[3] = [3e38, -3e38, 3e38]
    write_model(tmp_path / "model.zarr", np.array([-1e8, 1e8, 0]), np.array([2.0, 2, 2]))
    found = scores_of_rows(tmp_path, rows, tmp_path / "model.zarr")
    assert found[3] == pytest.approx((rows[3].astype(np.float64) / 2) @ VECTORS.T, rel=1e-6)
    assert np.isfinite(found).all()


def test_scores_say_that_they_are_private_and_where_they_come_from(
    tmp_path: Path, table: RowsTable, model: Path
) -> None:
    project(table, model, tmp_path / "scores.zarr")
    info = json.loads((tmp_path / "scores.zarr" / "zarr.json").read_text())["attributes"]["dpdist"]
    assert info["format"] == "dpdist-scores/1"
    assert info["dataset_id"] == table.dataset_id
    assert (info["release_id"], info["k"]) == ("week-47", 2)
    assert "do not publish" in info["private"]


def test_running_a_task_twice_writes_the_same_bytes(tmp_path: Path, table: RowsTable, model: Path) -> None:
    # Dask runs a task at least once
    with scores_of(table, open_model(model), model, tmp_path / "scores.zarr") as whole:
        for task in cut(whole, 3):
            project_chunks(task)
        once = chunks(whole.scores)
        for task in reversed(cut(whole, 3)):
            project_chunks(task)
        assert chunks(whole.scores) == once
    assert chunks(tmp_path / "scores.zarr") == once
    assert len(once) == CHUNKS


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[RowsTable, Path, dict[str, bytes]]:
    """Return a table, a model, and the scores that one single task writes."""
    folder = tmp_path_factory.mktemp("reference")
    table = write_rows(folder / "rows.zarr", values("float32"))
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
        write(self, store, key)

    monkeypatch.setattr(ChunkWriter, "write", slow)
    project(table, model, tmp_path / "scores.zarr", 1)
    assert chunks(tmp_path / "scores.zarr") == expected

    def full(self: ChunkWriter, store: Store, key: str) -> None:
        if key == chunk_key(CHUNKS - 1):
            raise DataError("The disk is full.")
        write(self, store, key)

    monkeypatch.setattr(ChunkWriter, "write", full)
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


def test_scores_that_are_all_zero_are_written_like_any_others(tmp_path: Path) -> None:
    # Zarr leaves chunks of zeros out unless told otherwise, and a chunk left out counts as not written
    rows = np.full((ROWS, 3), 4, dtype=np.uint8)
    write_model(tmp_path / "centred.zarr", np.array([4.0, 4.0, 4.0]))
    project(write_rows(tmp_path / "rows.zarr", rows), tmp_path / "centred.zarr", tmp_path / "scores.zarr")
    assert not np.asarray(zarr.open_array(tmp_path / "scores.zarr", mode="r")[...]).any()
    assert len(chunks(tmp_path / "scores.zarr")) == CHUNKS


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_scores_with_a_missing_chunk_never_appear(tmp_path: Path, table: RowsTable, model: Path) -> None:
    with pytest.raises(DataError, match="not written"):
        project(table, model, tmp_path / "scores.zarr", lost=1)
    assert names_in(tmp_path) == ["model.zarr", "rows.zarr"]


def test_scores_do_not_appear_before_the_last_chunk_is_written(tmp_path: Path, table: RowsTable, model: Path) -> None:
    with scores_of(table, open_model(model), model, tmp_path / "scores.zarr") as whole:
        for task in cut(whole, 2):
            project_chunks(task)
            assert not (tmp_path / "scores.zarr").exists()
    assert names_in(tmp_path) == ["model.zarr", "rows.zarr", "scores.zarr"]


def test_a_damaged_chunk_of_rows_stops_the_projection_and_leaves_nothing(
    tmp_path: Path, table: RowsTable, model: Path
) -> None:
    file = table.path / chunk_key(4)
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"Chunk 4 .* altered"):
        project(table, model, tmp_path / "scores.zarr")
    assert names_in(tmp_path) == ["model.zarr", "rows.zarr"]


@pytest.mark.parametrize("names", [("a", "b", "d"), ("b", "a", "c"), ("a", "b", "c", "d"), ("a", "b")], ids=" ".join)
def test_rows_with_other_columns_than_the_model_are_refused(
    tmp_path: Path, model: Path, names: tuple[str, ...]
) -> None:
    # the same columns in another order would give plausible nonsense
    table = write_rows(tmp_path / "rows.zarr", np.ones((9, len(names)), dtype=np.uint8), names)
    with pytest.raises(DataError, match="other columns"):
        project(table, model, tmp_path / "scores.zarr")
    assert names_in(tmp_path) == ["model.zarr", "rows.zarr"]


def test_scores_never_replace_what_exists(tmp_path: Path, table: RowsTable, model: Path) -> None:
    (tmp_path / "scores.zarr").write_text("precious")
    with pytest.raises(DataError, match="exists already"):
        project(table, model, tmp_path / "scores.zarr")
    assert (tmp_path / "scores.zarr").read_text() == "precious"
