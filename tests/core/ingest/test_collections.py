"""Tables that Python code holds: the same bits as of the same values in a file, written where they are computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from support.ingest_scene import SECRET, Table, refused_by, stored, table

import dpdist
from dpdist.core.errors import DataError, DpdistError, ResumableError, UsageError
from dpdist.core.ingest import blocks
from dpdist.core.ingest.collection import collection_of
from dpdist.core.ingest.write import ingest, secret_of
from dpdist.core.rows import dataset
from dpdist.core.runtime.collections import map_blocks
from dpdist.core.storage.store import FolderStore

NAMES = ["a", "b", "c"]
N = 23


def drawn(rows: float) -> Any:
    """Return an array of four other rows each time, under a name that Dask draws at random."""

    def draw() -> Table:
        return np.random.default_rng(random.getrandbits(64)).normal(size=(4, 3))

    return da.from_delayed(dask.delayed(draw, pure=False)(), (rows, 3), float)


def unknown(rows: Table, chunks: Any) -> Any:
    array = da.from_array(rows, chunks=chunks)
    return array[da.from_array(np.ones(len(rows), dtype=bool), chunks=array.chunks[0])]


def framed(rows: Table, count: int) -> Any:
    return dd.from_pandas(pd.DataFrame(rows, columns=NAMES), npartitions=count)


KINDS: dict[str, Callable[[Table], Any]] = {
    "unknown lengths": lambda rows: unknown(rows, (5, 2)),
    "sparse array": lambda rows: da.from_array(rows, chunks=(5, 3)).map_blocks(sparse.coo_matrix),
    "DataFrame": lambda rows: framed(rows, 4),
    "DataArray": lambda rows: xarray.DataArray(rows, {"x": NAMES}, ("t", "x")),
    "DataArray of a cube": lambda rows: xarray.DataArray(
        da.from_array(rows.reshape(-1, 1, 3), chunks=(5, 1, 2)), dims=("t", "y", "x")
    ),
    "Dataset": lambda rows: xarray.Dataset(
        {"a": (("t", "x"), rows[:, :2]), "b": ("t", da.from_array(rows[:, 2], chunks=4))}
    ),
    "pandas": lambda rows: pd.DataFrame(rows, columns=NAMES),
    "numpy": lambda rows: rows,
}
CALLED = {
    "DataFrame": NAMES, "DataArray": NAMES, "pandas": NAMES, "Dataset": ["a[0]", "a[1]", "b"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let seven rows be a chunk, so that blocks end within chunks."""
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 7 * 24)


def require_same(collection: Any, rows: Table, folder: Path, **options: Any) -> None:
    """Hold what a collection becomes to what the same values in a file become."""
    table = dpdist.ingest_rows(collection, folder / "rows.zarr", **options)
    np.save(folder / "same.npy", rows)
    same = ingest(folder / "same.npy", folder / "same.zarr", compress=options.get("compress", False))
    for fact in ("rows", "columns", "dtype", "chunk_rows", "compressed"):
        assert getattr(table, fact) == getattr(same, fact)
    chunks = [
        {path.relative_to(each.path): path.is_file() and path.read_bytes() for path in (each.path / "c").rglob("*")}
        for each in (table, same)
    ]
    assert chunks[0] == chunks[1]


def refused(collection: Any, folder: Path, *needles: str, **options: Any) -> None:
    refused_by(lambda target: dpdist.ingest_rows(collection, target, **options), folder, *needles)


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_that_of_the_same_values_in_a_file_and_columns_are_kept_by_name(tmp_path: Path, kind: str) -> None:
    rows, names = table(rows=N), CALLED.get(kind, ["c0", "c1", "c2"])
    require_same(KINDS[kind](rows), rows, tmp_path, compress=kind in {"unknown lengths", "pandas"})
    selected = dpdist.ingest_rows(KINDS[kind](rows), tmp_path / "some.zarr", columns=[names[2], names[0]])
    assert selected.names == (names[2], names[0])
    assert np.array_equal(stored(selected.path), rows[:, [2, 0]])
    with pytest.raises(UsageError, match="no column 'other'"):
        dpdist.ingest_rows(KINDS[kind](rows), tmp_path / "other.zarr", columns=["other", names[0]])


@settings(max_examples=12)
@given(st.data())
def test_any_chunks_give_the_same_bits(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 40))
    dtype = data.draw(st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float32", "float64", ">f8"]))
    known_lengths = data.draw(st.booleans())
    least = 0 if known_lengths else 1  # Dask itself doubles rows of a mask that has empty chunks
    lengths = data.draw(st.lists(st.integers(least, 9), max_size=6).filter(lambda sizes: sum(sizes) < rows))
    chunks = ((*lengths, rows - sum(lengths)), data.draw(st.sampled_from([(3,), (2, 1), (1, 1, 1)])))
    values = table(rows=rows).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_TARGET_CHUNK", 7 * 24)
        array = da.from_array(values, chunks=chunks) if known_lengths else unknown(values, chunks)
        require_same(array, values, tmp_path_factory.mktemp("any"))


def test_columns_of_no_numbers_are_refused_by_name(tmp_path: Path) -> None:
    frame = pd.DataFrame({
        "a": [1.0, 2], "who": ["secretword", "Ann"], "day": pd.to_datetime([0, 1]), "b": [SECRET, 2],
        "span": pd.arrays.IntervalArray.from_breaks([1, 2, 3]),
    })  # fmt: skip
    for collection in (frame, dd.from_pandas(frame, npartitions=2)):
        refused(collection, tmp_path, "'who' (", "'day' (datetime64[ns])", "'span' (", "columns")
    for kind in ("O", "complex128", "U9", "longdouble"):
        refused(da.from_array(np.ones((3, 2)).astype(kind), chunks=(2, 2)), tmp_path, "'c0'", "not hold real numbers")
    index = pd.DataFrame({"Unnamed: 0": [0, 1], "a": [1, 2], "b": [3, 4]})
    refused(dd.from_pandas(index, npartitions=1), tmp_path, "'Unnamed: 0'", "index", "columns")
    assert dpdist.ingest_rows(index, tmp_path / "index.zarr", columns=list(index.columns)).columns == 3
    assert dpdist.ingest_rows(frame, tmp_path / "rows.zarr", columns=["b", "a"]).names == ("b", "a")
    for other in (pd.Series([SECRET]), [[SECRET, 2]]):
        with pytest.raises(DpdistError, match=f"of type .*{type(other).__name__}") as caught:
            dpdist.ingest_rows(other, tmp_path / "no.zarr")
        assert "73519" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_block_and_row(tmp_path: Path, value: float) -> None:
    rows = table() + SECRET
    rows[4, 1] = value
    needles = ("Block 1 (counting from 0)", "row 1 (counting from 0)")
    refused(da.from_array(rows, chunks=(3, 2)), tmp_path, *needles, "'c1'", "not finite")
    refused(unknown(rows, (3, 2)), tmp_path, *needles, "'c1'", "not finite")
    refused(dd.from_pandas(pd.DataFrame(rows, columns=NAMES), chunksize=3), tmp_path, *needles, "'b'")
    refused(rows, tmp_path, "Block 0", "row 4 (counting from 0)", "'c1'")
    lacking = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [SECRET, 2, 3]})
    refused(lacking, tmp_path, "row 1 (counting from 0)", "'a'", "missing")


def of(*values: Any, shape: tuple[float, int] = (np.nan, 3), dtype: str = "float64") -> Any:
    """Return an array with declared shape and type, whose blocks are these values."""
    blocks = [dask.delayed(lambda value=value: value, pure=False)() for value in values]
    return da.concatenate([da.from_delayed(block, shape=shape, dtype=dtype) for block in blocks])


def test_blocks_that_are_not_what_was_announced_are_refused(tmp_path: Path) -> None:
    good = table(rows=4) + SECRET
    refused(of(good, good, shape=(5, 3)), tmp_path, "Block ", "differs from its metadata")
    refused(of(good, good[:, :2]), tmp_path, "Block 1", "the columns of its metadata")
    refused(of(good, good[0]), tmp_path, "Block 1", "the columns of its metadata")
    refused(of(good, np.hstack([good, good])), tmp_path, "Block 1", "the columns of its metadata")
    turned = [dask.delayed(pd.DataFrame(good, columns=order)) for order in (NAMES, NAMES[::-1])]
    meta = pd.DataFrame(good, columns=NAMES)
    refused(dd.from_delayed(turned, meta=meta, verify_meta=False), tmp_path, "Block 1", "the columns of its metadata")
    refused(of(good, np.array([["secretword"] * 3])), tmp_path, "Block 1", "not real numbers")
    refused(of(good, np.ma.masked_greater(good, 3)), tmp_path, "Block 1", "masked")
    refused(of(good + 0.5, shape=(4, 3), dtype="int64"), tmp_path, "Block 0", "metadata")
    refused(of(good[:0], good[:0]), tmp_path, "no rows")
    refused(da.ones((4, 1)), tmp_path, "two or more")
    refused(da.ones((4, 1, 2)), tmp_path, "3 dimensions")
    refused(xarray.Dataset({"x": ("t", [SECRET]), "y": ((), SECRET)}), tmp_path, "different first dimensions")
    refused(xarray.Dataset({"x": ("variants", [SECRET])}), tmp_path, "one row per variant")
    refused(xarray.DataArray(good, dims=("variants", "samples")), tmp_path, "one row per variant")
    for names in (["a", "a", "b"], [0, 0, 1]):
        refused(pd.DataFrame(good, columns=names), tmp_path, f"the same name: {names[0]}")
    refused(pd.DataFrame(good, columns=["a", "b\x1b[2J", "c"]), tmp_path, "control or invisible character")


@pytest.mark.parametrize("kind", ["array", "DataFrame"])
def test_a_block_is_computed_once_so_that_one_of_random_rows_is_a_table(tmp_path: Path, kind: str) -> None:
    made: list[Any] = []

    def make() -> Any:
        rows = np.random.default_rng(random.getrandbits(64)).normal(size=(4 + len(made), 3))
        made.append(rows)
        return rows if kind == "array" else pd.DataFrame(rows, columns=NAMES)

    delayed = [dask.delayed(make, pure=False)() for _ in range(3)]
    arrays = [da.from_delayed(block, (np.nan, 3), float) for block in delayed]
    frame = dd.from_delayed(delayed, meta=pd.DataFrame(columns=NAMES, dtype=float), verify_meta=False)
    with dask.config.set(scheduler="synchronous"):
        ingested = dpdist.ingest_rows(da.concatenate(arrays) if kind == "array" else frame, tmp_path / "rows.zarr")
    assert len(made) == 3
    rows = np.concatenate(made)  # Dask computes the blocks in its own order
    assert np.array_equal(np.sort(stored(ingested.path), axis=0), np.sort(rows, axis=0))
    assert not [*ingested.path.rglob("work*")]


def test_a_block_that_a_lost_worker_writes_late_is_not_left_behind(tmp_path: Path) -> None:
    collection = collection_of(table())
    assert collection is not None
    staging = FolderStore(tmp_path / "staging")
    staging.path.mkdir()
    secret_of(staging)
    write = blocks._WriteBlock(collection.reader((0, 1)), staging)
    write(0, None, table())
    assert staging.exists("work/blocks/00000000.npy")
    staging.drop("work")
    write(0, None, table())
    assert not [path for path in staging.path.rglob("*") if path.is_file()]


def test_what_the_graph_raises_is_not_repeated(tmp_path: Path) -> None:
    def broken() -> Table:
        raise ValueError("secretword 73519.25")

    refused(da.from_delayed(dask.delayed(broken)(), shape=(4, 3), dtype=float), tmp_path, "ValueError")


def test_the_same_collection_again_is_known(tmp_path: Path) -> None:
    budget = dpdist.PrivacyLoss.parse("1", "1e-6")
    collection = framed(table(), 2)
    first = dpdist.ingest_rows(collection, tmp_path / "rows.zarr", budget=budget)
    assert (tmp_path / "rows.ledger").exists()
    again = dpdist.ingest_rows(framed(table(), 2), tmp_path / "rows.zarr", budget=budget)
    assert (again.dataset_id, again.ledger_id) == (first.dataset_id, first.ledger_id)
    for other, columns in ((framed(table() + 1, 2), None), (collection, ["a", "b"]), (table(), None)):
        with pytest.raises(DataError, match="not ingested from this collection"):
            dpdist.ingest_rows(other, tmp_path / "rows.zarr", columns=columns)
    from_random = dpdist.ingest_rows(drawn(4), tmp_path / "drawn.zarr")
    with pytest.raises(DataError, match=r"cannot compare all graphs.*open_rows"):
        dpdist.ingest_rows(drawn(4), tmp_path / "drawn.zarr")
    assert dpdist.open_rows(tmp_path / "drawn.zarr").dataset_id == from_random.dataset_id


@pytest.mark.parametrize(
    "container",
    [np.array, lambda rows: pd.DataFrame(rows, columns=NAMES), lambda rows: xarray.DataArray(rows, dims=["t", "x"])],
)
def test_what_is_in_memory_is_known_by_its_values_in_their_places(
    container: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Dask hashes the bytes of an array, so a C-ordered array equals its Fortran-ordered transpose."""
    rows = np.arange(9.0).reshape(3, 3)
    first = dpdist.ingest_rows(container(rows), tmp_path / "rows.zarr")
    again = dpdist.ingest_rows(container(np.asfortranarray(rows.copy())), tmp_path / "rows.zarr")
    assert again.dataset_id == first.dataset_id
    masked = np.ma.MaskedArray(rows, rows == 4)
    for other in (container(rows.T), container(rows.T.copy()), container(rows[::-1]), masked):
        with pytest.raises(DataError, match="not ingested from this collection"):
            dpdist.ingest_rows(other, tmp_path / "rows.zarr")


@pytest.mark.parametrize(
    "named",
    [
        lambda rows: da.from_array(rows, chunks=2, name="cohort"),
        lambda rows: da.from_array(rows, chunks=2, name="cohort") + 1,
        lambda rows: xarray.DataArray(da.from_array(rows, chunks=2, name="cohort"), dims=("t", "x")),
        lambda rows: dd.from_delayed([dask.delayed(pd.DataFrame(rows), name="cohort")], pd.DataFrame(rows[:0])),
    ],
)
def test_a_name_that_the_owner_gave_is_not_taken_for_a_graph(named: Callable[[Table], Any], tmp_path: Path) -> None:
    """Dask knows a graph by its name: with a name of its owner's choice, two of other rows are one to it."""
    rows = table()
    first = dpdist.ingest_rows(named(rows), tmp_path / "rows.zarr")
    assert dpdist.ingest_rows(named(rows), tmp_path / "rows.zarr").dataset_id == first.dataset_id
    with pytest.raises(DataError, match="not ingested from this collection"):
        dpdist.ingest_rows(named(rows + 1), tmp_path / "rows.zarr")


def test_what_a_lost_cluster_had_written_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another time the graph may read other rows, and with rows of both a person could be in the table twice."""
    rows = table(rows=N)
    array = da.from_array(rows, chunks=(5, 3))

    def lost(executor: Any, tasks: Any, progress: Any, label: str) -> None:
        map_blocks(executor, tasks[:3], progress, label)
        raise ResumableError("The scheduler is gone.")

    with monkeypatch.context() as patch:
        patch.setattr(blocks, "map_blocks", lost)
        with pytest.raises(ResumableError):
            dpdist.ingest_rows(array, tmp_path / "rows.zarr")
    assert [*tmp_path.iterdir()] == []
    require_same(array, rows, tmp_path)


def test_what_is_for_files_is_refused(tmp_path: Path) -> None:
    options: Any = ({"privacy_unit": "a", "max_rows": 1}, {"header": "yes"}, {"variable": "x"}, {"missing": 0})
    for option in options:
        with pytest.raises(UsageError, match="is for files"):
            dpdist.ingest_rows(framed(table(), 2), tmp_path / "rows.zarr", **option)


@pytest.mark.parametrize("named", [False, True], ids=["its own client", "a named cluster"])
def test_workers_write_what_they_compute_and_return_no_rows(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    results: list[Any] = []
    compute = Client.compute

    def recorded(self: Client, tasks: Any, *arguments: Any, **options: Any) -> Any:
        futures = compute(self, tasks, *arguments, **options)
        results.extend(self.gather(futures, errors="skip"))
        return futures

    monkeypatch.setattr(Client, "compute", recorded)
    rows = np.random.default_rng(0).normal(size=(40, 3)) + SECRET
    where = dpdist.Cluster(scheduler) if named else None
    steps: list[tuple[str, int, int]] = []
    with nullcontext() if named else Client(scheduler):
        require_same(unknown(rows, (13, 2)), rows, tmp_path, cluster=where, progress=lambda *step: steps.append(step))
    assert {label for label, done, total in steps if done == total} == {"Writing blocks", "Ingesting in this process"}
    assert results == [None] * 4
    rows[30, 2] = np.nan
    (tmp_path / "bad").mkdir()
    with Client(scheduler):
        refused(da.from_array(rows, chunks=(13, 2)), tmp_path / "bad", "Block 2", "row 4", "'c2'", cluster=where)
