"""Rows in place: they equal ingested rows, and changed sources are refused."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import stat
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from scipy import sparse
from support.ingest_scene import SECRET, refused_by, stored
from support.parts import added, parts_of

from dpdist.core.errors import DataError, DpdistError, RefusedError
from dpdist.core.ingest.readers import base, columnar, npy, zarr_store
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ingest.write import ingest
from dpdist.core.moment.total import Partial, complete, partition_moment
from dpdist.core.pipeline import sources
from dpdist.core.pipeline.inspect import inspect_path
from dpdist.core.pipeline.sources import register_rows
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.runtime.cluster import Cluster

Values = npt.NDArray[Any]
ROWS, COLUMNS = 97, 6


@pytest.fixture(autouse=True)
def here(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Compute and read in this process, in pieces of a few rows."""
    monkeypatch.setattr(Cluster, "named", False)
    monkeypatch.setattr(sources, "_TASKS_PER_WORKER", 1)
    for module in (base, npy, columnar, zarr_store):
        monkeypatch.setattr(module, "PIECE", 13 * COLUMNS * 4)
    assert not state.exists()
    return tmp_path


def values(dtype: npt.DTypeLike = np.float32) -> Values:
    return (np.random.default_rng(5).normal(size=(ROWS, COLUMNS)) * 3).astype(dtype)


def write_parquet(path: Path, rows: Values, row_group_size: int = 11) -> None:
    table = pa.table({f"c{i}": rows[:, i] for i in range(rows.shape[1])})
    pq.write_table(table, path, row_group_size=row_group_size)


def write_zarr(path: Path, rows: Values, **options: Any) -> None:
    array = zarr.create_array(path, shape=rows.shape, dtype=rows.dtype, **{"chunks": (10, 4), **options})
    array[:] = rows


def write_group(path: Path, rows: Values) -> None:
    group = zarr.create_group(path)
    group.create_array("deep/x", data=rows, chunks=(10, 4))
    group.create_array("y", data=np.ones((3, 3)))


def write_folder(path: Path, rows: Values) -> None:
    path.mkdir()
    for number, first in enumerate(range(0, len(rows), 40)):
        write_parquet(path / f"{number}.parquet", rows[first : first + 40])


def write_keys(path: Path, rows: Values) -> None:
    for key in (3, 7):
        (path / f"year={key}").mkdir(parents=True)
        write_parquet(path / f"year={key}" / "t.parquet", rows[: 10 * key])


WRITERS: dict[str, Callable[[Path, Values], Any]] = {
    "t.npy": np.save,
    "fortran.npy": lambda path, rows: np.save(path, np.asfortranarray(rows)),
    "big-endian.npy": lambda path, rows: np.save(path, rows.astype(">f8")),
    "half.npy": lambda path, rows: np.save(path, rows.astype(np.float16)),
    "flags.npy": lambda path, rows: np.save(path, rows > 0),
    "t.parquet": write_parquet,
    "one-group.parquet": lambda path, rows: write_parquet(path, rows, 1000),
    "folder": write_folder,
    "keys": write_keys,
    "three.zarr": write_zarr,
    "two.zarr": lambda path, rows: write_zarr(path, rows, zarr_format=2, order="F"),
    "sharded.zarr": lambda path, rows: write_zarr(path, rows, chunks=(5, 3), shards=(20, 3)),
    "rows.zarr": lambda path, rows: write_zarr(path, rows, chunks=(1, 6)),
    "one-chunk.zarr": lambda path, rows: write_zarr(path, rows, chunks=rows.shape),
    "cube.zarr": lambda path, rows: write_zarr(path, rows.reshape(len(rows), 2, 3), chunks=(10, 1, 2)),
    "group.zarr": write_group,
}


def made(folder: Path, name: str, rows: Values | None = None) -> Path:
    WRITERS[name](folder / name, values() if rows is None else rows)
    return folder / name


def summed(table: RowsTable, parts: int = 1) -> Partial[np.int64]:
    bound = RowBound(table.columns, 4.0)
    return complete(table, added(map(partition_moment, parts_of(table, bound, 2 * parts))))


@pytest.mark.parametrize("name", WRITERS)
def test_rows_in_place_have_the_names_the_type_and_the_bits_of_the_same_rows_ingested(here: Path, name: str) -> None:
    source = made(here, name)
    options: dict[str, Any] = {"variable": "deep/x"} if name == "group.zarr" else {}
    table = register_rows(source, here / "there.zarr", **options)
    copied = ingest(source, here / "copied.zarr", choices=Choices(options.get("variable")))
    assert (table.rows, table.names, table.dtype) == (copied.rows, copied.names, copied.dtype)
    if name.endswith(".zarr"):
        assert np.array_equal(stored(copied.path), values())
    assert np.array_equal(summed(table).values, summed(copied).values)
    assert sum(table.rows_in(i) for i in range(table.chunks)) == table.rows
    assert [table.chunk_of(table.first_row(i)) for i in range(table.chunks)] == list(range(table.chunks))
    assert all(table.rows_in(i) <= table.chunk_rows for i in range(table.chunks))
    if "one-" not in name:
        assert table.chunks > 1


def test_a_table_in_place_is_private_and_holds_no_row(here: Path) -> None:
    before = os.umask(0)
    try:
        register_rows(made(here, "t.npy", np.full((ROWS, 3), SECRET)), here / "rows.zarr")
    finally:
        os.umask(before)
    paths = [here / "rows.zarr", *(here / "rows.zarr").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths} == {0}
    names = {path.relative_to(here / "rows.zarr").as_posix() for path in paths if path.is_file()}
    assert {name for name in names if not re.fullmatch(r"manifest/\d+", name)} == {
        "zarr.json", "manifest/index", "manifest/sources",
    }  # fmt: skip
    assert not [path for path in paths if path.is_file() and np.float64(SECRET).tobytes() in path.read_bytes()]


# --- changed sources ---


def fault_of(table: RowsTable) -> str:
    """Read all chunks, and return the message of the first error."""
    reader = ChunkReader(table, 7)
    with pytest.raises(DataError) as failed:
        sum(len(batch) for index in range(table.chunks) for batch in reader.read(index))
    assert failed.value.__cause__ is None
    assert failed.value.__context__ is None or failed.value.__suppress_context__
    assert str(SECRET) not in str(failed.value)
    return str(failed.value)


CHUNKS = {"t.npy": "t.npy", "t.parquet": "t.parquet", "three.zarr": "three.zarr/c/3/0", "two.zarr": "two.zarr/3.0",
          "sharded.zarr": "sharded.zarr/c/2/0"}  # fmt: skip


def flip(path: Path) -> None:
    """Flip a bit of a value, and none of the metadata."""
    content = bytearray(path.read_bytes())
    offset = len(content) // 2
    if path.suffix == ".parquet":
        column = pq.read_metadata(path).row_group(3).column(2)
        offset = column.data_page_offset + column.total_compressed_size - 9
    content[offset] ^= 1
    path.write_bytes(content)


def flip_and_set_back(path: Path) -> None:
    about = path.stat()
    flip(path)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def become_a_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "changed": (flip, "changed|damaged or of another kind"),
    "changed behind its back": (flip_and_set_back, "damaged"),
    "removed": (Path.unlink, "missing"),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:-3]), "length|missing"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"0"), "length|missing"),
    "a link": (become_a_link, "missing|length|damaged"),
    "a pipe": (become_a_pipe, "missing|length|damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_source_that_is_not_what_it_was_is_refused_and_named(here: Path, damage: str) -> None:
    strike, reason = DAMAGES[damage]
    names = CHUNKS if damage == "changed" else ["t.npy", "t.parquet" if len(damage) % 2 else "three.zarr"]
    for name in names:
        inner, source = CHUNKS[name], made(here, name)
        table = register_rows(source, here / f"{name}.rows.zarr")
        strike(here / inner)
        message = fault_of(open_rows(table.store))
        assert str(source) in message, name
        assert any(word in message for word in reason.split("|")), message
        assert "Restore it" in message
        if name == "t.npy":
            assert 1 <= len(inspect_path(table.path, verify=True).damaged or ()) <= table.chunks


@pytest.mark.parametrize("name", ["t.npy", "folder", "three.zarr"])
def test_a_source_may_be_moved_away_and_back_and_other_rows_are_refused(here: Path, name: str) -> None:
    source, others = made(here, name), values()
    others[50, 3] += 1
    table = register_rows(source, here / f"{name}.rows.zarr")
    before, copy = summed(table).values, here / "copy"
    source.rename(copy)
    assert "missing" in fault_of(table)
    shutil.copytree(copy, source) if copy.is_dir() else shutil.copy(copy, source)  # with other times
    assert np.array_equal(summed(open_rows(table.store)).values, before)
    shutil.rmtree(source) if source.is_dir() else source.unlink()
    made(here, name, others)
    assert "since it was registered" in fault_of(table)
    with pytest.raises(DataError, match="since it was registered"):  # no two passes of a sum read different rows
        summed(table)


def test_a_chunk_of_zarr_that_vanishes_is_no_chunk_of_zeros(here: Path) -> None:
    """Zarr reads an absent chunk as its fill value, even if it held that value."""
    rows = values()
    rows[30:40] = 0
    source = here / "t.zarr"
    write_zarr(source, rows, chunks=(10, 6), config={"write_empty_chunks": True})
    table = register_rows(source, here / "rows.zarr")
    (source / "c/3/0").unlink()
    assert "missing" in fault_of(table)
    shutil.rmtree(source)
    write_zarr(source, rows, chunks=(10, 6), config={"write_empty_chunks": False})
    assert not (source / "c/3/0").exists()
    sparse = register_rows(source, here / "sparse.zarr")
    assert np.array_equal(stored(ingest(source, here / "copied.zarr").path), rows)
    assert np.array_equal(summed(sparse).values, summed(open_rows(here / "copied.zarr")).values)
    zarr.open_array(source)[30] = np.arange(6)
    assert "since it was registered" in fault_of(sparse)


def test_a_table_that_was_altered_is_refused(here: Path) -> None:
    table, copies = register_rows(made(here, "three.zarr"), here / "rows.zarr"), count()

    def copy() -> Path:  # the intact table is read once
        return Path(shutil.copytree(table.path, here / f"{next(copies)}.zarr"))

    for key in ("manifest/0", "manifest/index", "manifest/sources"):
        content = (table.path / key).read_bytes()
        for other in (None, content[:-1], bytes([content[0] ^ 1]) + content[1:]):
            altered = copy()
            (altered / key).unlink() if other is None else (altered / key).write_bytes(other)
            with pytest.raises(DataError, match=f"{key} is missing or damaged"):
                list(ChunkReader(open_rows(altered), 7).read(0))
    for change in ({"rows": 3}, {"chunks": 1}, {"dtype": "object"}, {"places": [0]}, {"columns": ["a"]}, {"index": 3}):
        altered = copy()
        head = json.loads((altered / "zarr.json").read_text())
        head["attributes"]["dpdist"] |= change
        (altered / "zarr.json").write_text(json.dumps(head))
        with pytest.raises(DataError):
            open_rows(altered)


# --- sources that are refused ---


def refused(source: Path, *needles: str, kind: type[DpdistError] = DataError, variable: str | None = None) -> None:
    folder = source.parent
    refused_by(lambda _: register_rows(source, folder / "never.zarr", variable=variable), folder, *needles, kind=kind)


def test_what_is_not_finite_is_refused_by_its_place(here: Path) -> None:
    rows = values(np.float64)
    rows[3] = SECRET
    rows[[61, 80], [4, 1]] = np.nan, np.inf
    for name in ("t.npy", "t.parquet", "three.zarr"):
        refused(made(here, name, rows), "row 61 (counting from 0), column 'c4'", "not finite")


def test_kinds_that_cannot_be_read_in_part_are_refused_with_the_way_to_copy_them(here: Path) -> None:
    (here / "t.csv").write_text("a,b\n1,2\n3,4\n")
    np.savez(here / "t.npz", X=values())
    annotated = anndata.AnnData(sparse.csr_matrix(values()))
    annotated.write_h5ad(here / "t.h5ad")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        annotated.write_zarr(here / "t.zarr")
    for name in ("t.csv", "t.npz", "t.h5ad", "t.zarr"):
        refused(here / name, "cannot be read in place", "ingest_rows")


def test_what_must_be_read_at_once_is_bounded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk or band of many GiB is refused before unpacking: a few bytes can declare it."""
    for module in (base, columnar, zarr_store):
        monkeypatch.setattr(module, "AT_ONCE", 1 << 12)
    write_zarr(here / "t.zarr", np.ones((3000, 4), np.float32), chunks=(1500, 1))
    refused(here / "t.zarr", "unpacks them at once", "fewer rows")
    monkeypatch.setattr(columnar, "_PAGES", 1 << 11)
    rows = np.random.default_rng(1).normal(size=(3000, 4))
    write_parquet(here / "t.parquet", rows, 3000)
    refused(here / "t.parquet", "at once", "row groups of at most")


def test_what_unpacks_to_more_than_it_announces_is_refused_by_the_worker(here: Path) -> None:
    write_zarr(here / "t.zarr", values(), chunks=(10, 6), compressors=[zarr.codecs.GzipCodec()])
    table = register_rows(here / "t.zarr", here / "rows.zarr")
    (here / "t.zarr/c/3/0").write_bytes(gzip.compress(bytes(1 << 20), 9))
    assert "since it was registered" in fault_of(table)
    refused(here / "t.zarr", "cannot be read")


def test_rows_of_dpdist_are_refused_within_a_group_too(here: Path) -> None:
    """A group around them does not make them foreign rows, with a second budget."""
    group = zarr.create_group(here / "p")
    ingest(made(here, "t.npy"), here / "p/rows.zarr")
    register_rows(here / "t.npy", here / "there.zarr")
    group.create_array("deep/x", data=values())
    zarr.open_group(here / "p")["deep"].attrs["dpdist"] = {}
    sources: list[tuple[Path, str | None]] = [
        (here / "p/rows.zarr", None), (here / "there.zarr", None), (here / "p", "rows.zarr"), (here / "p", "deep/x"),
    ]  # fmt: skip
    for source, variable in sources:
        refused(source, "written by dpdist", kind=RefusedError, variable=variable)
        with pytest.raises(RefusedError, match=r"written by dpdist|already have a budget"):
            ingest(source, here / "never.zarr", choices=Choices(variable))
    for member in ("", "X"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            anndata.AnnData(values()).write_zarr(here / f"a{member}.zarr")
        root: Any = zarr.open_group(here / f"a{member}.zarr")
        (root[member] if member else root).attrs["dpdist"] = {}
        with pytest.raises(RefusedError, match="written by dpdist"):
            ingest(here / f"a{member}.zarr", here / "never.zarr")


def test_a_source_of_too_many_chunks_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes may announce any number of rows."""
    array = zarr.create_array(here / "t.zarr", shape=(1 << 45, 2), chunks=(1 << 22, 2), dtype="u1", fill_value=1)
    array[:10] = 3
    refused(here / "t.zarr", "chunks", "2097152")
    made(here, "folder")
    assert register_rows(here / "folder" / "0.parquet", here / "one.zarr").chunks == 4
    monkeypatch.setattr("dpdist.core.ingest.readers.base.MOST_RUNS", 5)
    refused(here / "folder", "at most 5")
