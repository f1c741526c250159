"""What every reader of files promises: one test for each promise, run for every kind of file.

A new reader needs one entry in :data:`KINDS`: how an independent library writes such a file, and what the kind cannot
hold. The reader is done when this file passes.
"""

from __future__ import annotations

import importlib
import os
import pickle
import pkgutil
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from inspect import isabstract
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray
import zarr
from faults import fuzzing
from scipy import sparse
from support.folders import ROOT
from support.ingest_scene import (
    LAYOUTS,
    SECRET,
    Table,
    refused,
    write_anndata_zarr,
    write_csv,
    write_parquet,
    write_vcf_zarr,
)

from dpdist import formats, ingest_rows
from dpdist.cli import pipeline
from dpdist.core.ingest import readers, sources
from dpdist.core.ingest.readers.base import Choices, NoRowsError
from dpdist.core.ingest.readers.source import Source
from dpdist.core.ingest.sources import opened_sources
from dpdist.core.ingest.write import ingest
from dpdist.core.rows.columns import DTYPES

NAMES = ("one", "two", "Åthree", "with,comma", "five")
ROWS = 23
KEEP = (4, 0, 2)
WORD = "secretword"


@dataclass(frozen=True)
class Kind:
    """One kind of file: its name, and what writes a table under a path, with these names for its columns."""

    file: str
    write: Callable[[Path, Table, Sequence[str]], object]
    named: bool = True  # the file names its columns
    genotypes: bool = False  # it holds 0, 1 and 2 alone
    within: tuple[str, ...] = ()  # in a folder: the files without which there is no table
    other: object = WORD  # a value of the kind that is not a number
    wordless: bool = False  # it can hold no such thing
    where: str = "row 3 (counting from 0)"  # how a message names the fourth row
    ends: bool = True  # a file cut short is not another whole file

    @property
    def crashes(self) -> bool:
        """Whether bytes at the wrong place can end the process."""
        return self.file.endswith(".h5ad") or self.file == "t.nc"

    @property
    def names(self) -> tuple[str, ...]:
        return NAMES if self.named else tuple(f"c{i}" for i in range(len(NAMES)))

    def table(self, rows: int = ROWS) -> Table:
        """Return many zeros, and the secret or genotypes elsewhere; the last column is sorted, as a partition needs."""
        rows_of_kind: Table = np.random.default_rng(0).integers(0, 3, (rows, len(NAMES)))
        rows_of_kind[:, -1] = np.arange(rows) >= rows // 2
        return rows_of_kind.astype(np.uint8) if self.genotypes else rows_of_kind * np.array([SECRET] * 4 + [1.0])

    def good(self, folder: Path) -> Path:
        self.write(folder / self.file, self.table(), NAMES)
        return folder / self.file

    def parts(self, path: Path) -> list[Path]:
        """List the files that matter."""
        return [part for name in self.within for part in sorted(path.glob(name))] or [path]


def quietly(write: Callable[[], object]) -> None:
    """Write with a library that warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write()


def write_arrow(path: Path, rows: Table, names: Sequence[str]) -> None:
    columns = pa.table([pa.array(column) for column in rows.T], names=list(names))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, columns.schema) as writer:
        writer.write_table(columns, max_chunksize=9)


def write_partitioned(path: Path, rows: Table, names: Sequence[str]) -> None:
    """Let the last column be the key of the folders."""
    for key in np.unique(rows[:, -1]) if rows.size else [0.0]:
        folder = path / f"{names[-1]}={key}"
        folder.mkdir(parents=True, exist_ok=True)
        write_parquet(folder / "part.parquet", rows[rows[:, -1] == key][:, :-1], names[:-1], 9)


def write_anndata(layout: str) -> Callable[[Path, Table, Sequence[str]], None]:
    """Return what writes X in a layout, in HDF5 or in Zarr."""

    def write(path: Path, rows: Table, names: Sequence[str]) -> None:
        adata = anndata.AnnData(LAYOUTS[layout](rows))
        adata.var_names = list(names)
        if path.suffix == ".zarr":
            write_anndata_zarr(path, adata, chunks=(4, 5))
        else:
            quietly(lambda: adata.write_h5ad(path))

    return write


def write_netcdf(engine: Any) -> Callable[[Path, Table, Sequence[str]], None]:
    """Return what writes NetCDF 4 or the older format."""

    def write(path: Path, rows: Table, names: Sequence[str]) -> None:
        data = xarray.Dataset({"a": (("t", "x"), rows)}, {"x": list(names)})
        encoding = {"a": {"chunksizes": (4, 5)}} if engine == "h5netcdf" and len(rows) > 4 else {}
        quietly(lambda: data.to_netcdf(path, engine=engine, encoding=encoding))

    return write


def write_zarr(path: Path, rows: Table, names: Sequence[str]) -> None:  # noqa: ARG001 - an array names no column
    chunks = (max(1, min(4, len(rows))), 5)
    zarr.create_array(path, data=rows, chunks=chunks) if rows.size else zarr.create_array(
        path, shape=rows.shape, chunks=chunks, dtype=rows.dtype
    )


def genotypes(write: Callable[..., None], key: str) -> Callable[[Path, Table, Sequence[str]], None]:
    """Return what writes genotypes, with names for the variants."""
    return lambda path, rows, names: write(path, rows, **{key: list(names)})


KINDS = [
    Kind("t.npy", lambda path, rows, _: np.save(path, rows), named=False),
    Kind("t.npz", lambda path, rows, names: np.savez_compressed(path, X=rows, feature_names=np.array(names))),
    Kind("t.csv", write_csv, where="line 5", ends=False),
    Kind("t.csv.gz", write_csv, where="line 5"),
    Kind("t.parquet", lambda path, rows, names: write_parquet(path, rows, names, 9)),
    Kind("t.arrow", write_arrow),
    Kind("t.feather", write_arrow),
    Kind("partitioned", write_partitioned, within=("*/part.parquet",), wordless=True),
    Kind("dense.h5ad", write_anndata("dense"), wordless=True),
    Kind("csr.h5ad", write_anndata("csr"), wordless=True),
    Kind("csc.h5ad", write_anndata("csc"), wordless=True),
    Kind("t.nc", write_netcdf("h5netcdf")),
    Kind("classic.nc", write_netcdf("scipy")),
    Kind("t.zarr", write_zarr, named=False, within=("zarr.json", "c/0/0"), other=SECRET + 1j),
    Kind("anndata.zarr", write_anndata("dense"), within=("zarr.json", "X/c/0/0"), other=SECRET + 1j),
    Kind(
        "vcf.zarr", genotypes(write_vcf_zarr, "names"), genotypes=True, wordless=True,
        within=("zarr.json", "call_genotype/c/0/0/0"),
    ),
]  # fmt: skip
MODULES = [
    importlib.import_module(f"{package.__name__}.{found.name}")
    for package in (readers, formats)
    for found in pkgutil.iter_modules(package.__path__)
]


def those(*, named: bool = False, numbers: bool = False, words: bool = False) -> pytest.MarkDecorator:
    """Run a test for every applicable kind of file."""
    kinds = [
        kind
        for kind in KINDS
        if (kind.named or not named) and not (kind.genotypes and numbers) and not (kind.wordless and words)
    ]
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.file)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every reader work in pieces of a row or a few, in this process."""
    for module in MODULES:
        for name, size in (("PIECE", 60), ("WINDOW", 20), ("_LINE", 200 if module.__name__.endswith("text") else None)):
            if hasattr(module, name) and size is not None:
                monkeypatch.setattr(module, name, size)


@pytest.fixture
def source(kind: Kind, tmp_path: Path) -> Iterator[list[Source]]:
    """Give the readers of a good file, as ingest opens them."""
    with opened_sources(kind.good(tmp_path), tmp_path, Choices()) as opened:
        yield list(opened)


def read(source: Sequence[Source], keep: tuple[int, ...]) -> list[Table]:
    """Return all pieces, which a reader may not use again."""
    return [np.array(block) for one in source for block in one.rows(keep)]


@pytest.mark.parametrize("suffix", sources.KINDS)
def test_people_are_told_of_every_kind_of_file(suffix: str) -> None:
    page = ROOT / "docs" / "howto" / "ingest.md"
    texts = {
        "the help of ingest": str(pipeline.ingest.help), "ingest_rows": str(ingest_rows.__doc__),
        "page": page.read_text(), "damaged files": " ".join(fuzzing.KINDS),
    }  # fmt: skip
    assert [who for who, text in texts.items() if suffix not in text] == []


@pytest.mark.usefixtures("other_process")
def test_every_reader_has_an_entry(tmp_path: Path) -> None:
    classes = [member for module in MODULES for member in vars(module).values() if isinstance(member, type)]
    tried: set[type[Source]] = set()
    for kind in KINDS:
        with opened_sources(kind.good(tmp_path), tmp_path, Choices()) as opened:
            one: Any = opened[0]
            while one is not None:
                tried.add(type(one))
                one = getattr(one, "inner", None)
    assert tried == {member for member in classes if issubclass(member, Source) and not isabstract(member)}
    assert set(sources.KINDS) <= {suffix for suffix in sources.KINDS for kind in KINDS if kind.file.endswith(suffix)}


@pytest.mark.usefixtures("small_pieces")
@those()
def test_rows_come_in_order_in_small_pieces_as_announced(kind: Kind, source: list[Source], tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    assert all(one.head.names == kind.names for one in source)
    assert all(type(name) is str for one in source for name in one.head.names)
    for keep in (tuple(range(5)), KEEP):
        per_file = [read([one], keep) for one in source]
        for one, parts in zip(source, per_file, strict=True):
            survey = one.survey(keep)
            assert survey.dtype in DTYPES
            assert sum(map(len, parts)) == survey.rows
            assert all(block.shape[1:] == (len(keep),) and np.can_cast(block.dtype, survey.dtype) for block in parts)
        assert max(len(block) for parts in per_file for block in parts) <= ROWS // 2
        assert np.array_equal(np.vstack([block for parts in per_file for block in parts]), kind.table()[:, keep])
    for one in source:
        with closing(one.rows(KEEP)) as blocks:
            next(blocks)
    assert np.array_equal(np.vstack(read(source, KEEP)), kind.table()[:, KEEP])
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("small_pieces")
@those()
def test_fragments_hold_each_row_once(kind: Kind, source: list[Source]) -> None:
    blocks = []
    for one in source:
        ends = one.fragments(KEEP).ends.tolist()
        assert one.head.rows is None or ends[-1] == one.survey(KEEP).rows
        if len(ends) > 1:
            parts = zip([0, *ends[:-1]], ends, strict=True)
            blocks += [np.array(block) for part in parts for block in one.rows(KEEP, part)]
        else:
            blocks += read([one], KEEP)
    assert np.array_equal(np.vstack(blocks), kind.table()[:, KEEP])


@pytest.mark.usefixtures("small_pieces")
@those()
def test_the_table_is_that_of_the_same_numbers_in_npy(kind: Kind, tmp_path: Path) -> None:
    np.save(tmp_path / "same.npy", kind.table())
    path, chosen = kind.good(tmp_path), [kind.names[column] for column in KEEP]
    before = sorted(tmp_path.iterdir())
    table = ingest(path, tmp_path / "rows.zarr", columns=chosen)
    assert sorted(tmp_path.iterdir()) == sorted([*before, table.path])
    expected = ingest(tmp_path / "same.npy", tmp_path / "same.zarr", columns=[f"c{column}" for column in KEEP])
    assert (table.names, table.rows, table.dtype) == (tuple(chosen), expected.rows, expected.dtype)
    assert (table.path / "c/0/0").read_bytes() == (expected.path / "c/0/0").read_bytes()


@those(numbers=True)
def test_what_is_not_finite_is_refused_by_its_place(kind: Kind, tmp_path: Path) -> None:
    rows = kind.table()
    rows[3, 1], rows[4, 0] = np.nan if kind.named else -np.inf, np.inf
    kind.write(tmp_path / kind.file, rows, NAMES)
    refused(tmp_path / kind.file, kind.where, repr(kind.names[1]), never=("nan", "inf,"))


@those(words=True)
def test_what_is_no_number_is_refused(kind: Kind, tmp_path: Path) -> None:
    kind.write(tmp_path / kind.file, np.full((9, 5), kind.other), NAMES)
    message = refused(tmp_path / kind.file, columns=list(kind.names[:2]))
    assert "cannot be read" not in message  # names the fault


@those(numbers=True)
def test_a_file_without_rows_is_told_from_a_damaged_one(kind: Kind, tmp_path: Path) -> None:
    kind.write(tmp_path / kind.file, kind.table()[:0], NAMES)
    with opened_sources(tmp_path / kind.file, tmp_path, Choices()) as (one,):
        assert one.head.names == kind.names
        with pytest.raises(NoRowsError):
            one.survey(KEEP)
    refused(tmp_path / kind.file, "no rows")


@those(named=True)
def test_hostile_and_repeated_names_are_refused(kind: Kind, tmp_path: Path) -> None:
    for number, (name, needle) in enumerate(
        (("b\x1b[2J", "holds a control or invisible character"), ("one", "the same name: one"))
    ):
        path = tmp_path / str(number) / kind.file
        path.parent.mkdir()
        quietly(lambda path=path, name=name: kind.write(path, kind.table(), ("one", name, *NAMES[2:])))  # type: ignore[misc]
        assert refused(path, needle).isprintable()


@those()
def test_an_unreadable_file_is_refused(kind: Kind, tmp_path: Path) -> None:
    path = kind.good(tmp_path)
    for part in kind.parts(path):
        part.unlink()
        part.symlink_to("/proc/self/mem")  # whose first byte not even root can read
        refused(path)


@those()
def test_damaged_and_truncated_files_are_refused(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdist.core.ingest.readers.isolated.ISOLATED", kind.crashes)
    path = kind.good(tmp_path)
    for part in kind.parts(path):
        intact = part.read_bytes()
        ends = [intact[: len(intact) // 2], intact[:-8]] if kind.ends else []
        for content in [b"", pickle.dumps([SECRET, WORD]), *ends]:
            part.write_bytes(content)
            refused(path)
        part.write_bytes(intact)


MEMORY = """
    import re, sys
    from pathlib import Path
    from dpdist.core.ingest.write import ingest
    def peak():  # not ru_maxrss, which a process inherits from the one that started it
        return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10
    ingest(Path(sys.argv[2]), Path(sys.argv[3]))  # includes late imports
    before = peak()
    ingest(Path(sys.argv[1]), Path(sys.argv[4]))
    print(peak() - before)
"""


def write_big(path: Path, rows: int, columns: int) -> None:
    """Write a table that is mostly zero."""
    if path.suffix == ".parquet":
        wide = pa.table({f"c{i}": np.zeros(rows) for i in range(columns)})
        pq.write_table(wide, path, row_group_size=10**7, use_dictionary=False, compression="none")
    elif path.suffix == ".h5ad":
        matrix: Any = sparse.random_array((rows, columns), density=0.002, rng=np.random.default_rng(0))
        anndata.AnnData(LAYOUTS[path.stem[-3:]](matrix.astype(np.float32))).write_h5ad(path)
    else:
        data = xarray.Dataset({"v": (("t", "x"), np.ones((rows, columns), dtype=np.float32))})
        data.to_netcdf(path, engine="h5netcdf", encoding={"v": {"chunksizes": (min(rows, 5000), columns)}})


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak of one process, as Linux gives it")
@pytest.mark.parametrize(
    ("name", "rows", "columns", "size", "bound"),
    [
        ("t.parquet", 600_000, 80, 8, 170),
        ("csc.h5ad", 200_000, 500, 4, 190),
        ("t.nc", 200_000, 500, 4, 190),
    ],
)
def test_memory_stays_small(tmp_path: Path, name: str, rows: int, columns: int, size: int, bound: int) -> None:
    write_big(tmp_path / f"big-{name}", rows, columns)
    write_big(tmp_path / f"small-{name}", 5, columns)
    arguments = [tmp_path / f"big-{name}", tmp_path / f"small-{name}", tmp_path / "small.zarr", tmp_path / "big.zarr"]
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEMORY), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "16"},  # Arrow's threads: the bound holds on a larger machine too
    )
    for path in arguments:  # pytest would keep them for three more runs
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert int(ran.stdout) < bound < rows * columns * size / 2**20 / 2  # less than half of the table, in MiB
