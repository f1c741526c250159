"""Ingest: rows are exact; errors name file and row but no value, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.ingest_scene import (
    NAMES,
    SECRET,
    WRITERS,
    Table,
    refused,
    stored,
    table,
    write_csv,
    write_npy,
    write_npz,
    write_parquet,
)

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.readers import columnar, npy
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.write import ingest


def pieces_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Make the readers read in small pieces, in bytes, in this process."""
    for reader in (npy, columnar):
        monkeypatch.setattr(reader, "PIECE", size)


TYPES = {
    "t.npy": "uint8 int16 uint32 int64 float32 float16 >i2 >u8", "t.npz": "bool >f8",
    "t.parquet": "int8 uint16 int32 uint64 float32 float64 bool float16",
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name in TYPES for dtype in TYPES[name].split()])
def test_columns_keep_their_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str) -> None:
    pieces_of(monkeypatch, 50)  # several pieces
    rows = np.asarray(table(dtype), order="F" if dtype[-1] in "18" else "C")
    WRITERS[name](tmp_path / name, rows)
    opened = ingest(tmp_path / name, tmp_path / "rows.zarr")
    assert opened.dtype == {"bool": "uint8", "float16": "float32"}.get(dtype, np.dtype(dtype).newbyteorder("=").name)
    assert np.array_equal(stored(tmp_path / "rows.zarr"), rows)


def test_a_wide_parquet_file_is_unpacked_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces_of(monkeypatch, 50)
    monkeypatch.setattr(columnar, "_ROW_GROUP", 10)
    monkeypatch.setattr(columnar, "_COLUMNS", 2)
    kinds = (pa.float32(), pa.uint8(), pa.int16())
    columns = {name: pa.array(table()[:, at], kind) for at, (name, kind) in enumerate(zip(NAMES, kinds, strict=True))}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=4)
    modes: list[int] = []

    def progress(_done: int, _all: int) -> None:
        modes.extend(path.stat().st_mode & 0o777 for path in tmp_path.glob(".unpacked.*"))

    opened = ingest(tmp_path / "t.parquet", tmp_path / "rows.zarr", columns=list(NAMES[::-1]), progress=progress)
    assert (opened.dtype, set(modes)) == ("float32", {0o700})
    assert np.array_equal(stored(tmp_path / "rows.zarr"), table()[:, ::-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.zarr", "t.parquet"]


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (0, 255, "uint8"), (-128, 127, "int8"), (0, 256, "uint16"), (-1, 128, "int16"), (0, 65536, "uint32"),
        (-1, 32768, "int32"), (0, 2**32, "int64"), (1 - 2**53, 2**53 - 1, "int64"), (0, 2**53, "float64"),
        (0, 0.5, "float64"),
    ],
)  # fmt: skip
def test_whole_numbers_in_csv_take_the_narrowest_type(tmp_path: Path, low: float, high: float, dtype: str) -> None:
    (tmp_path / "t.csv").write_text(f"{low},1\n2.0,{high}\n")
    opened = ingest(tmp_path / "t.csv", tmp_path / "rows.zarr", choices=Choices(header="no"))
    assert (opened.dtype, opened.names) == (dtype, ("c0", "c1"))
    assert stored(tmp_path / "rows.zarr").tolist() == [[low, 1], [2, high]]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n3,-4\r\n", ("a", "b")),
        (b"\xef\xbb\xbf1,2\n3,-4", ("c0", "c1")),
        (b"a,b\r1,2\r3,-4\r", ("a", "b")),
        (b'\n\n"a,x","b"\n\n"1",+2\n\n 3 ,-.4e1\n\n', ("a,x", "b")),
        ("größe,b\n1,2\n3,-4\n".encode(), ("größe", "b")),
        (b"id,2019\n1,2\n3,-4\n", ("id", "2019")),
    ],
)
def test_csv_dialects(tmp_path: Path, content: bytes, names: tuple[str, ...]) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    header = {"c0": "no", "id": "yes"}.get(names[0])
    assert ingest(tmp_path / "t.csv", tmp_path / "rows.zarr", choices=Choices(header=header)).names == names
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, 2], [3, -4]]


@settings(max_examples=20)
@given(data=st.data())
def test_any_split_into_files_gives_one_table(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("split")
    kind = data.draw(st.sampled_from(["csv", "csv.gz", "parquet", "npz"]))
    low, high = data.draw(st.sampled_from([(0, 255), (-128, 127), (-200, 90), (0, 70_000)]))
    integers = st.integers(low, high)
    value = data.draw(st.sampled_from([integers, st.floats(-1e300, 1e300)]))
    rows = np.array(data.draw(st.lists(st.tuples(value, value, value), min_size=2, max_size=12)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows) - 1))))
    parts = [part.tolist() for part in np.split(rows, cuts)]
    assume(all(part not in parts[:number] for number, part in enumerate(parts)))  # files of one content are refused
    write = write_csv if kind == "csv.gz" else WRITERS[f"t.{kind}"]
    (folder / "parts").mkdir()
    (folder / "parts" / "_SUCCESS").touch()
    (folder / "parts" / ".hidden").mkdir()
    for number, part in enumerate(np.split(rows, cuts)):
        write(folder / "parts" / f"part-{number:02}.{kind}", part)
    write(folder / f"one.{kind}", rows)
    one = ingest(folder / f"one.{kind}", folder / "one.zarr")
    table = ingest(folder / "parts", folder / "many.zarr")
    assert (one.dtype, one.rows, one.names) == (table.dtype, table.rows, table.names)
    assert np.array_equal(stored(folder / "one.zarr"), rows)
    assert np.array_equal(stored(folder / "many.zarr"), rows)


def test_files_of_several_kinds_and_types_are_promoted(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    write_csv(tmp_path / "parts" / "0.csv", table("int64") + 300)
    write_parquet(tmp_path / "parts" / "1.parquet", -table("int8"))
    opened = ingest(tmp_path / "parts", tmp_path / "rows.zarr")
    assert opened.dtype == "int32"
    assert np.array_equal(stored(tmp_path / "rows.zarr"), np.vstack([table("int64") + 300, -table("int64")]))


@pytest.mark.parametrize(
    ("content", "needles"),
    [
        ("a,b\n1,2\n\n1,secretword\n3,4\n", ("line 4", "'b'", "not a number")),
        ("1,2\n1,2\n1,73519.25x\n", ("line 3", "'c1'", "not a number")),
        ("a,b\n1,2\n73519.25\n", ("line 3", "1 cells")),
        ("73519.25,\n1,2\n", ("line 1", "'c1'", "missing")),
        ('a,b\n1,2\n73519.25,""\n', ("line 3", "'b'", "missing")),
        ("a,b\n73519.25,NA\n", ("line 2", "'b'", "missing")),
        ("a,b\n73519.25,+nan\n", ("line 2", "'b'", "not finite")),
        ("a,b\n1,2\n73519.25,1e999\n", ("line 3", "'b'", "not finite")),
        ('a,b\n1,2\n"73519.25,3\n4,5\n', ("line 3", "quote")),
        ('a,b\n1,2\n73519.25,"3\n4"\n', ("line 3", "'b'", "not a number")),
        ('a,b\n"x\ny",2\n73519.25,"3"4\n', ("line 4", "quote")),
        ("a,b\n1,2\n73519.25,\ud8ff\n", ("line 3", "UTF-8")),
        ('"a,b\n1,2\n', ("line 1", "quote")),
        ("a,b", ("no rows",)),
        ("\n\n", ("empty",)),
        ("a;b\n73519.25;1\n", ("1 column", "commas")),
        ("a,b\n" + "1,2.5\n" * 200_000 + "73519.25," + "1" * (5 << 20) + "\n", ("line 200002", "longer")),
    ],
    ids=range(17),
)
def test_a_bad_csv_is_refused_by_line(tmp_path: Path, content: str, needles: tuple[str, ...]) -> None:
    raw = content.encode("utf-8", errors="surrogatepass").replace(b"\xed\xa3\xbf", b"\xff")
    (tmp_path / "bad.csv").write_bytes(raw)
    refused(tmp_path / "bad.csv", *needles, choices=Choices(header="no" if content[:1].isdigit() else None))


def test_an_open_quote_in_a_column_left_out_does_not_swallow_rows(tmp_path: Path) -> None:
    for content in ('who,a,b\nAnn,1,2\n"secretword,3,4\nBob,5,6\n', 'a,b,who\n1,2,Ann\n3,4,"secretword\n5,6,Bob\n'):
        (tmp_path / "bad.csv").write_text(content)
        refused(tmp_path / "bad.csv", "bad.csv", "line 3", "quote", columns=["a", "b"])


def test_an_array_that_is_no_table_of_numbers_is_refused_by_shape_or_type(tmp_path: Path) -> None:
    for shape in ((5,), (5, 3, 2), (0, 4), (5, 1), (5, 0), ()):
        np.save(tmp_path / "t.npy", np.full(shape, SECRET))
        refused(tmp_path / "t.npy", "has no rows" if shape == (0, 4) else f"shape {shape}")
    for array, kind in (
        (np.full((3, 3), SECRET, dtype=complex), "complex128"), (np.full((3, 3), "secretword"), "str"),
        (np.full((3, 3), b"secretword"), "bytes"), (np.zeros((3, 3), dtype="M8[s]"), "datetime64"),
        (np.zeros((3, 3), dtype=[("a", "f8"), ("b", "i4")]), "void"),
        (np.full((3, 3), SECRET, dtype=np.longdouble), "float"),
        (np.full((3, 3), {"a": "secretword"}, dtype=object), "object"),
    ):  # fmt: skip
        np.save(tmp_path / "t.npy", array)
        refused(tmp_path / "t.npy", f"type {kind}")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array(["secretword"] * 3), "string"),
        (pa.array([[SECRET]] * 3), "list"),
        (pa.array([1, 2, 3], pa.timestamp("s")), "timestamp"),
        (pa.array(["secretword"] * 3).dictionary_encode(), "dictionary"),
        (pa.nulls(3), "null"),
        (pa.array([1, None, 3], pa.int32()), "row 1 (counting from 0)"),
    ],
)
def test_a_parquet_column_of_other_things_or_with_gaps_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: Any, kind: str
) -> None:
    pieces_of(monkeypatch, 50)  # a row at a time
    pq.write_table(pa.table({"a": [SECRET] * 3, "odd": column, "a.b": [1, 2, 3]}), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", "t.parquet", "'odd'", kind)
    ingest(tmp_path / "t.parquet", tmp_path / "rows.zarr", columns=["a.b", "a"])
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, SECRET], [2, SECRET], [3, SECRET]]


def test_a_damaged_member_is_found_by_its_checksum(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=np.full((1000, 3), SECRET))
    content = bytearray((tmp_path / "t.npz").read_bytes())
    content[5000] ^= 1
    (tmp_path / "t.npz").write_bytes(content)
    refused(tmp_path / "t.npz", "t.npz", "BadZipFile")


def test_columns_must_exist_once_and_be_two(tmp_path: Path) -> None:
    write_npy(tmp_path / "t.npy", np.full((2, 50), SECRET))
    for columns, needles in (
        (["c0", "nope"], ("nope", "'c0', 'c1',", "'c19', ... (50 in all)")),
        (["c0", "c1", "c0"], ("twice",)),
    ):
        with pytest.raises(UsageError) as caught:
            ingest(tmp_path / "t.npy", tmp_path / "rows.zarr", columns=columns)
        assert all(needle in str(caught.value) for needle in needles)
    refused(tmp_path / "t.npy", "t.npy", "1 column", columns=["c7"])


def test_a_folder_holds_only_files_of_one_table(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    refused(folder, "parts", "no files")
    write_csv(folder / "0.csv", table() + SECRET)
    write_csv(folder / "1.csv", table())
    write_npy(folder / "2.npy", table())
    write_npy(folder / "3.npy", table()[:, :2])
    refused(folder, "2.npy has other columns", "0.csv", never=("3.npy",))
    for path in folder.glob("*.npy"):
        path.unlink()
    (folder / "notes.txt").write_text("secretword")
    refused(folder, "notes.txt", ".csv.gz", ".parquet")
    (folder / "notes.txt").unlink()
    (folder / "deeper.csv").mkdir()
    refused(folder, "deeper.csv")


def test_a_source_that_is_missing_and_a_target_that_is_there_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.csv", "none.csv", "does not exist")
    (tmp_path / "rows.zarr").mkdir()
    refused(tmp_path / "none.csv", "rows.zarr exists already")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "t.npz", table())
    sizes: list[int] = []

    def full(_: object, rows: Table, start: int) -> None:  # noqa: ARG001 - where they go
        sizes.append(len(rows))
        (scratch,) = tmp_path.glob(".unpacked.*")
        assert scratch.stat().st_mode & 0o777 == 0o700
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpdist.core.rows.writing.RowsWriter.append", full)
    with pytest.raises(DataError, match="No space left on device"):
        ingest(tmp_path / "t.npz", tmp_path / "rows.zarr")
    assert sizes == [7]
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]
