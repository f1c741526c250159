"""Tables under another suffix or of another kind than their name: each message gives a cure that works when typed."""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import lzma
import pathlib
import re
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pytest
import scipy.io
import scipy.sparse
import xarray
from support.ingest_scene import stored

from dpdist.core.errors import DataError
from dpdist.core.ingest.write import ingest

FRAME = pd.DataFrame({"a": [1.0, 2.5, 3.0], "b": [4.0, 5.0, 6.5]})
TEXT = FRAME.to_csv(index=False)
NAMES = {"pandas": pd, "numpy": np, "h5py": h5py, "scipy": scipy, "pyarrow": pa, "sqlite3": sqlite3, "lzma": lzma}


def bytes_of(write: Callable[[Any], object]) -> bytes:
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def file_of(path: Path, write: Callable[[Path], object]) -> bytes:
    write(path)
    return path.read_bytes()


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["NAME"] = FRAME.to_numpy()


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("t.csv", TEXT)


def database(path: Path) -> None:
    connection = sqlite3.connect(path)
    FRAME.to_sql("NAME", connection, index=False)
    connection.close()


def made(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Return files by name: contents, and the suffix of what the cure makes."""
    path, text, table = folder / "made", TEXT.encode(), pa.Table.from_pandas(FRAME)
    parquet = bytes_of(FRAME.to_parquet)
    feather = file_of(path, lambda path: pa.feather.write_feather(table, path))
    stream = bytes_of(lambda out: pa.ipc.new_stream(out, table.schema).write_table(table))
    netcdf = file_of(path, lambda path: xarray.Dataset({"x": (("r", "c"), FRAME.to_numpy())}).to_netcdf(path))
    packed = gzip.compress(text)
    archive, h5 = file_of(folder / "z", zipped), file_of(folder / "h", hdf5)
    return {
        "t.csv.bz2": (bz2.compress(text), ".csv"),
        "t.csv.xz": (lzma.compress(text), ".csv"),
        "t.csv.zst": (pa.compress(text, "zstd", asbytes=True), ".csv"),
        "t.parquet.gz": (gzip.compress(parquet), ".parquet"),
        "t.zip": (archive, "folder"),
        "t.txt": (text, ".csv"),
        "t.dat": (text.replace(b",", b"\t"), ".csv"),
        "t.tsv": (text.replace(b",", b"\t"), ".csv"),
        "t.tsv.gz": (gzip.compress(text.replace(b",", b"\t")), ".csv"),
        "t.pq": (parquet, "renamed"),
        "t.PARQ": (parquet, "renamed"),
        "t.ipc": (feather, "renamed"),
        "t.arrows": (stream, ".arrow"),
        "t.nc4": (netcdf, "renamed"),
        "t.h5": (h5, ".npy"),
        "t.hdf5": (h5, ".npy"),
        "t.jsonl": (bytes_of(lambda out: FRAME.to_json(out, orient="records", lines=True)), ".parquet"),
        "t.json": (bytes_of(FRAME.to_json), ".parquet"),
        "t.orc": (bytes_of(FRAME.to_orc), ".parquet"),
        "t.dta": (bytes_of(lambda out: FRAME.to_stata(out, write_index=False)), ".parquet"),
        "t.mat": (bytes_of(lambda out: scipy.io.savemat(out, {"NAME": FRAME.to_numpy()})), ".npy"),
        "t.mtx": (bytes_of(lambda out: scipy.io.mmwrite(out, scipy.sparse.csr_array(FRAME.to_numpy()))), ".npy"),
        "t.pkl": (bytes_of(FRAME.to_pickle), ".parquet"),
        "t.sqlite": (file_of(folder / "s", database), ".parquet"),
        "gzip.csv": (packed, "renamed"),
        "xz.csv": (lzma.compress(text), ".csv"),
        "zip.csv": (archive, "folder"),
        "zst.csv": (pa.compress(text, "zstd", asbytes=True), ".csv"),
        "parquet.csv": (parquet, "renamed"),
        "arrow.csv": (feather, "renamed"),
        "hdf5.csv": (h5, ".npy"),
        "wide.csv": (TEXT.encode("utf-16"), ".csv"),
        "half.csv": (TEXT.encode("utf-16-le"), ".csv"),
        "json.csv": (bytes_of(lambda out: FRAME.to_json(out, orient="records", lines=True)), ".parquet"),
        "text.parquet": (text, "renamed"),
        "text.npy": (text, "renamed"),
        "gzip.parquet": (gzip.compress(parquet), ".parquet"),
        "csv.csv.gz": (text, "renamed"),
        "npy.csv": (bytes_of(lambda out: np.save(out, FRAME.to_numpy())), "renamed"),
    }


def typed(told: str, path: Path, makes: str) -> Path:
    """Do what a message says, and return the file that it makes."""
    if makes == "renamed":
        found = re.search(r"Rename it to (\S+?)(\.$|\. Move| if )", told)
        assert found, told
        return path.rename(path.with_name(found[1]))
    new = path.with_name(f"new{makes.removeprefix('folder')}")
    code = re.search(r"in Python: (.*?)(, and ingest|, with \.T|, or, if|\.$|\. (If|Move))", told)
    assert code, told
    names = {**NAMES, "pathlib": pathlib, "zipfile": zipfile, "FILE": str(path), "NEW": str(new)}
    exec(code[1], names)  # noqa: S102 - the message says that this can be typed
    return new


def told_of(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        ingest(path, path.parent / "rows.zarr")
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:The default value for `spmatrix`:DeprecationWarning")  # of SciPy 1.19
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what is typed, closed by no one
def test_what_is_said_of_a_table_of_another_kind_makes_it_one_that_is_read(tmp_path: Path) -> None:
    for name, (contents, makes) in made(tmp_path).items():
        folder = tmp_path / name.lower().replace(".", "-")
        folder.mkdir()
        path = folder / name
        path.write_bytes(contents)
        new = typed(told_of(path), path, makes)
        ingest(new, folder / "rows.zarr")
        assert np.array_equal(stored(folder / "rows.zarr"), FRAME), name
    gc.collect()  # what was typed leaves a connection open


def test_what_is_no_table_is_said_to_be_what_it_is(tmp_path: Path) -> None:
    cells = bytes_of(lambda out: out.write(gzip.compress(b"x")))
    for name, contents, words in (
        ("t.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "git lfs pull"),
        ("t.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "git lfs pull"),
        ("t.npy", b"/annex/objects/MD5E-s12--00.npy\n", "git annex get FILE"),
        ("t.csv", b"\n<!DOCTYPE html>\n<html lang='en'><head>", "a web page, perhaps a log-in"),
        ("t.xls", b"<html><table>", "a web page, perhaps a log-in"),
        ("t.sas7bdat", b"\0\0\0", r"pandas\.read_sas"),
        ("t.sav", b"$FL2", r"pandas\.read_spss"),
        *(("t" + end, cells, "vcf2zarr convert FILE NEW.zarr") for end in (".bcf", ".vcf.gz", ".vcf.bgz")),
        ("t.vcf", b"##fileformat=VCFv4.2\n", "vcf2zarr convert FILE NEW.zarr"),
        ("t.bed", b"\x6c\x1b\x01", "plink2zarr convert PREFIX NEW.zarr"),
        ("t.fam", b"f a 0 0 0 -9\n", "plink2zarr convert PREFIX NEW.zarr"),
        ("t.pgen", b"\x6c\x1b\x02", "plink2 --pfile .*vcf2zarr"),
        ("t.bgen", b"\0\1", "plink2 --bgen .*vcf2zarr"),
        ("t.loom", b"\x89HDF\r\n\x1a\n", r"anndata\.io\.read_loom"),
        ("t.rds", cells, "readRDS"),
        ("t.xlsx", b"PK\x03\x04", r"pandas\.read_excel"),
        ("t.xyz", b"\0\1", r"not of a supported kind \(\.npy, .*\)\. Move it elsewhere if it is not a table"),
    ):
        path = tmp_path / name
        path.write_bytes(contents)
        assert re.search(words, told_of(path)), (name, told_of(path))
    (tmp_path / "link.npy").symlink_to(".git/annex/objects/none")
    assert "git annex get FILE" in told_of(tmp_path / "link.npy")
