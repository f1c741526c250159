"""Small files that unpack to gigabytes, run code or lead elsewhere: refused in a sentence, in bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import textwrap
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import h5py
import numcodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray
import zarr
from support.ingest_scene import counts, refused, stored, words_of, write_anndata_zarr

from dpdist.errors import DataError
from dpdist.ingest.write import ingest
from dpdist.pipeline.sources import register_rows

MIB = 1 << 20
SIZE = 2 << 30
TINY = 4 << 20


def deflated(size: int) -> bytes:
    """Return zeros, packed by zlib without ever being there: a block of a megabyte, repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packer.compress(bytes(MIB))
    packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    body = block * (size // MIB) + packer.flush()
    return b"\x78\xda" + body + struct.pack(">I", size % 65521 << 16 | 1)


def zstandard(size: int) -> bytes:
    """Return zeros packed by Zstandard: blocks of one byte that is repeated."""
    block, last = [((128 << 10) << 3 | 1 << 1 | end).to_bytes(3, "little") + b"\0" for end in (0, 1)]
    head = struct.pack("<IBBQ", 0xFD2FB528, 0b11000000, 0x50, size)
    return head + block * (size // (128 << 10) - 1) + last


def gzipped(size: int) -> bytes:
    """Return zeros in many members of gzip."""
    return gzip.compress(bytes(MIB), mtime=0) * (size // MIB)


def three(path: Path, codec: str, configuration: dict[str, Any], content: bytes) -> None:
    """Write a store of 40 x 4 numbers, of which the one chunk is what is given."""
    zarr.create_array(path, shape=(40, 4), chunks=(40, 4), dtype="float64", compressors=None)
    about = json.loads((path / "zarr.json").read_text())
    about["codecs"].append({"name": codec, "configuration": configuration})
    (path / "zarr.json").write_text(json.dumps(about))
    (path / "c" / "0").mkdir(parents=True)
    (path / "c" / "0" / "0").write_bytes(content)


def two(path: Path, compressor: Any, filters: Any, content: bytes) -> None:
    """Write such a store in the older format."""
    zarr.create_array(path, shape=(40, 4), chunks=(40, 4), dtype="float64", zarr_format=2)
    about = json.loads((path / ".zarray").read_text())
    (path / ".zarray").write_text(json.dumps(about | {"compressor": compressor, "filters": filters}))
    (path / "0.0").write_bytes(content)


def packed_chunk(file: Path, name: str) -> None:
    """Put a chunk that unpacks to gigabytes for one of a data set."""
    with h5py.File(file, "r+") as opened:
        group, _, last = name.rpartition("/")
        parent = opened[group] if group else opened
        attributes = dict(parent[last].attrs)
        shape, dtype = parent[last].shape, parent[last].dtype
        del parent[last]
        made = parent.create_dataset(last, shape, dtype, chunks=shape, compression="gzip")
        made.attrs.update({key: value for key, value in attributes.items() if key.startswith("encoding")})
        made.id.write_direct_chunk((0,) * len(shape), deflated(SIZE))


def h5ad(path: Path) -> None:
    anndata.AnnData(np.ones((40, 4), np.float32)).write_h5ad(path)
    packed_chunk(path, "X")


def netcdf(path: Path) -> None:
    xarray.Dataset({"v": (("t", "x"), np.ones((40, 4)))}).to_netcdf(path, engine="h5netcdf")
    packed_chunk(path, "v")


def samples(path: Path) -> None:
    """Write genotypes of people without names, very many."""
    head = b"##fileformat=VCFv4.3\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT"
    path.write_bytes(gzip.compress(head + b"\t" * (60 << 20) + b"\n", 1))


def labels(path: Path) -> None:
    """Put a store of AnnData whose names unpack to gigabytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_anndata_zarr(path, anndata.AnnData(np.ones((40, 4), np.float32)), version=2)
    place = words_of(path / "var" / "_index")
    about = json.loads((place / ".zarray").read_text())
    (place / ".zarray").write_text(json.dumps(about | {"compressor": {"id": "zlib", "level": 9}}))
    (place / "0").write_bytes(deflated(SIZE))


def packed_table(path: Path) -> None:
    """Write an archive of one row of 10^8 columns."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("X.npy", "w") as out:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (1, 10**8)})
        out.write(head.getvalue())
        for _ in range(100):
            out.write(bytes(10**6))


def packed_names(path: Path) -> None:
    """Write an archive with 300 MB behind the names of three columns."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        table = io.BytesIO()
        np.save(table, np.full((4, 3), 73519.25))
        archive.writestr("X.npy", table.getvalue())
        names = io.BytesIO()
        np.save(names, np.array(["a", "b", "c"]))
        with archive.open("feature_names.npy", "w", force_zip64=True) as out:
            out.write(names.getvalue())
            for _ in range(3):
                out.write(bytes(10**8))


def long_names(path: Path) -> None:
    """Write an archive whose three names have 2 * 10^8 letters each."""
    head = io.BytesIO()
    about = {"descr": "<U200000000", "fortran_order": False, "shape": (3,)}
    np.lib.format.write_array_header_1_0(head, about)
    np.savez(path, X=np.full((4, 3), 73519.25))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("feature_names.npy", head.getvalue())


def short_netcdf(path: Path) -> None:
    """Write a head that announces an attribute of 4 GB."""
    xarray.Dataset({"a": (("t", "x"), counts())}, attrs={"title": "abcdefgh"}).to_netcdf(path, engine="scipy")
    whole = bytearray(path.read_bytes())
    place = whole.index(b"abcdefgh") - 4
    whole[place : place + 4] = struct.pack(">i", 2**31 - 8)
    path.write_bytes(whole[:388])


def one_name_many_times(path: Path) -> None:
    """Let each of many names be the same megabyte, stored once."""
    columns = 60_000
    made = anndata.AnnData(np.ones((2, columns), dtype=np.uint8))
    made.write_h5ad(path)
    with h5py.File(path, "r+") as file:
        del file["var/_index"]
        names = file.create_dataset("var/_index", (columns,), h5py.string_dtype(), chunks=(columns,), compression=9)
        names[0] = "a" * 10**6
        plain = names.id
        mask, chunk = plain.read_direct_chunk((0,))
        first = zlib.decompress(chunk)[:16]  # a length, and where the text is
        plain.write_direct_chunk((0,), zlib.compress(first * columns), mask)


BOMBS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "zarr, zstd": (
        "t.zarr",
        lambda path: three(path, "zstd", {"level": 1, "checksum": False}, zstandard(SIZE)),
    ),
    "zarr, gzip": (
        "t.zarr",
        lambda path: three(path, "gzip", {"level": 1}, gzipped(SIZE)),
    ),
    "zarr 2, zlib in zlib": (
        "t.zarr",
        lambda path: two(
            path, {"id": "zlib", "level": 9}, [{"id": "zlib", "level": 9}], zlib.compress(deflated(SIZE), 9)
        ),
    ),
    "names of AnnData": ("t.zarr", labels),
    "samples": ("t.vcf.gz", samples),
    "h5ad": ("t.h5ad", h5ad),
    "netcdf": ("t.nc", netcdf),
}
ANNOUNCED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "10^8 columns, packed": ("t.npz", packed_table),
    "300 MB behind the names": ("t.npz", packed_names),
    "names of 800 MB": ("t.npz", long_names),
    "10^9 columns of a store": (
        "t.zarr",
        lambda path: zarr.create_array(path, shape=(1, 10**9), chunks=(1, 10**6), dtype="uint8").set_basic_selection(
            (0, 0), 1
        ),
    ),
    "a head of 4 GB": ("t.nc", short_netcdf),
    "one name, many times": ("t.h5ad", one_name_many_times),
}
PEAKS = """
    import json, re, resource, sys
    from pathlib import Path
    from dpdist.errors import DataError
    from dpdist.ingest.write import ingest
    import xarray, h5netcdf, anndata
    def peak():
        return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10
    before = peak()
    for source in map(Path, sys.argv[1:]):
        try:
            ingest(source, source.parent / "rows.zarr")
        except DataError as error:
            apart = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
            print(json.dumps([peak() - before, apart - before, str(error)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there is memory limited")
def test_what_unpacks_to_gigabytes_is_refused_in_little_memory(tmp_path: Path) -> None:
    sources = []
    for number, (name, craft) in enumerate([*BOMBS.values(), *ANNOUNCED.values()]):
        sources.append(tmp_path / str(number) / name)
        sources[-1].parent.mkdir()
        craft(sources[-1])
    before = sorted(tmp_path.rglob("*"))
    assert sum(path.stat().st_size for path in before if path.is_file()) < len(sources) * TINY
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAKS), *sources],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) == len(sources)
    for number, ((here, apart, said), source) in enumerate(zip(found, sources, strict=True)):
        assert str(source) in said
        assert "does not fit into the memory" not in said or number < len(BOMBS)
        assert here < 300, source
        assert apart < 1100, source
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only there is memory limited")
def test_what_arrow_sets_aside_is_not_what_a_file_takes(tmp_path: Path) -> None:
    """Arrow's allocator reserves a GiB of addresses; a limit a little above it would leave nothing for the file."""
    pq.write_table(pa.table({"a": [1.0], "b": [2.0]}), tmp_path / "t.parquet")
    script = """
        import sys
        from pathlib import Path
        from dpdist.ingest.readers import isolated
        from dpdist.ingest.write import ingest
        for more in (2, 4, 8):
            isolated._MEMORY = (1 << 30) + (more << 20)
            ingest(Path(sys.argv[1]), Path(sys.argv[1]).parent / f"{more}.zarr")
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "t.parquet")]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("version", [2, 3])
def test_a_codec_that_runs_what_it_unpacks_is_not_followed(tmp_path: Path, version: int) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "run"),)

    name = "pickle" if version == 2 else "numcodecs.pickle"
    if version == 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_anndata_zarr(tmp_path / "t.zarr", anndata.AnnData(np.ones((40, 4), np.float32)), version=2)
        (tmp_path / "t.zarr" / ".zmetadata").unlink(missing_ok=True)
        place = words_of(tmp_path / "t.zarr" / "var" / "_index")
        about = json.loads((place / ".zarray").read_text())
        # words packed as words, and then once more: what the library looks for is the first
        about |= {"filters": [*about["filters"], {"id": "pickle"}], "compressor": None}
        (place / ".zarray").write_text(json.dumps(about))
        (place / "0").write_bytes(pickle.dumps(Evil()))
    else:
        three(tmp_path / "t.zarr", name, {}, pickle.dumps(Evil()))
    refused(tmp_path / "t.zarr", f"the codec '{name}'")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["alone", "codecs", "index_codecs", "a", ".zattrs", "consolidated before"])
def test_an_unknown_codec_is_named_wherever_it_stands(tmp_path: Path, where: str) -> None:
    path = tmp_path / "t.zarr"
    odd = {"name": "odd\x1b[2J", "configuration": {}}
    if where == "consolidated before":
        group = zarr.create_group(path, zarr_format=2)
        group.create_array("a", data=np.ones((40, 4)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(path)
        about = json.loads((path / ".zmetadata").read_text())
        about["metadata"]["a/.zarray"]["compressor"] = {"id": odd["name"]}
        (path / ".zmetadata").write_text(json.dumps(about))
    elif where in {"a", ".zattrs"}:  # consolidated, under this name
        zarr.create_group(path).create_array(where, data=np.ones((40, 4)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(path)
        about = json.loads((path / "zarr.json").read_text())
        about["consolidated_metadata"]["metadata"][where]["codecs"].append(odd)
        (path / "zarr.json").write_text(json.dumps(about))
    else:
        shards = None if where == "alone" else (40, 4)
        zarr.create_array(path, data=np.ones((40, 4)), chunks=(10, 4), shards=shards)
        about = json.loads((path / "zarr.json").read_text())
        codecs = about["codecs"][0]["configuration"][where] if shards else about["codecs"]
        codecs.append(odd)
        (path / "zarr.json").write_text(json.dumps(about))
    message = refused(path, "packed by the codec 'odd\\x1b[2J'")
    assert "\x1b" not in message


@pytest.mark.parametrize("version", [2, 3])
def test_the_usual_codecs_are_read(tmp_path: Path, version: int) -> None:
    rows = np.arange(160.0).reshape(40, 4)
    codecs: dict[int, list[Any]] = {
        2: [numcodecs.Blosc(), numcodecs.Zlib(), numcodecs.LZ4(), numcodecs.BZ2(), numcodecs.LZMA()],
        3: [zarr.codecs.BloscCodec(), zarr.codecs.ZstdCodec(), zarr.codecs.GzipCodec()],
    }
    for number, codec in enumerate(codecs[version]):
        path = tmp_path / f"{number}.zarr"
        zarr.create_array(path, data=rows, chunks=(10, 4), compressors=codec, zarr_format=version)  # type: ignore[arg-type]
        ingest(path, tmp_path / f"{number}.rows")
        assert np.array_equal(stored(tmp_path / f"{number}.rows"), rows)


@pytest.mark.parametrize("what", ["a chunk", "a folder", "a pipe", "itself, twice"])
def test_a_store_with_a_link_or_a_pipe_in_it_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "t.zarr"
    zarr.create_array(path, data=np.ones((40, 4)), chunks=(20, 4))
    other = tmp_path / "other.zarr"
    zarr.create_array(other, data=np.ones((40, 4)), chunks=(20, 4))
    chunk = path / "c" / "1" / "0"
    if what == "itself, twice":
        shutil.rmtree(path / "c")
        (path / "x").symlink_to(path)
        (path / "y").symlink_to(path)
    elif what == "a folder":
        shutil.rmtree(path / "c")
        (path / "c").symlink_to(other / "c")
    else:
        chunk.unlink()
        chunk.symlink_to(other / "c" / "1" / "0") if what == "a chunk" else os.mkfifo(chunk)
    refused(path, "t.zarr/", "is not a plain file")


def test_metadata_of_any_length_is_not_read(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "t.zarr", data=np.ones((40, 4)))
    os.truncate(tmp_path / "t.zarr" / "zarr.json", 1 << 40)  # a hole: it takes no room on the disk
    refused(tmp_path / "t.zarr", "'zarr.json' is of more than 64 MiB")


def test_folders_that_lead_back_to_themselves_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for name in ("a=1", "b=1"):
        (tmp_path / "t" / name).symlink_to(".")
    refused(tmp_path / "t", "a=1", "is a link")


@pytest.mark.parametrize("text", ["1_0", "١٢", "0x1", "nan", "inf", "1e999", "9" * 30])
def test_a_key_of_a_folder_is_a_number_as_others_read_numbers(tmp_path: Path, text: str) -> None:
    (tmp_path / "t" / f"year={text}").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1.0], "b": [2.0]}), tmp_path / "t" / f"year={text}" / "0.parquet")
    refused(tmp_path / "t", "'year'", "is not a number")


def test_an_archive_of_two_arrays_of_one_name_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
            for value in (1.0, 2.0):
                content = io.BytesIO()
                np.save(content, np.full((40, 4), value))
                archive.writestr("X.npy", content.getvalue())
    refused(tmp_path / "t.npz", "holds two arrays of one name")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.npy", "t.parquet", "t.h5ad", "t.nc", "t.zarr"])
def test_a_file_name_that_is_not_utf_8_is_a_name_like_any_other(tmp_path: Path, name: str) -> None:
    rows = np.arange(160.0).reshape(40, 4)
    made = tmp_path / name
    writers: dict[str, Callable[[], object]] = {
        "t.csv": lambda: made.write_text("a,b\n1,2\n3,4\n"),
        "t.csv.gz": lambda: made.write_bytes(gzip.compress(b"a,b\n1,2\n3,4\n")),
        "t.npy": lambda: np.save(made, rows),
        "t.parquet": lambda: pq.write_table(pa.table({"a": [1.0], "b": [2.0]}), made),
        "t.h5ad": lambda: anndata.AnnData(rows).write_h5ad(made),
        "t.nc": lambda: xarray.Dataset({"v": (("t", "x"), rows)}).to_netcdf(made, engine="h5netcdf"),
        "t.zarr": lambda: zarr.create_array(made, data=rows),
    }
    writers[name]()
    made = made.rename(tmp_path / os.fsdecode(b"gr\xf6\xdfe" + name.encode()))
    ingest(made, tmp_path / "rows.zarr")


def entries_of(folder: Path, what: str) -> str:
    """Make a folder of one table and a link, or a second name of the same, and return the name of that."""
    (folder / "t").mkdir()
    np.save(folder / "t" / "a.npy", np.ones((4, 2)))
    if what == "a hard link":
        (folder / "t" / "b.npy").hardlink_to(folder / "t" / "a.npy")
        return "b.npy"
    if what == "a store":
        zarr.create_array(folder / "secret.zarr", data=np.ones((4, 2)))
        (folder / "t" / "b.zarr").symlink_to(folder / "secret.zarr")
        return "b.zarr"
    if what == "a companion":
        (folder / "t" / "b.bed").write_bytes(b"")
        (folder / "t" / "b.fam").symlink_to(folder / "t" / "a.npy")
        return "b.fam"
    np.save(folder / "secret.npy", np.ones((4, 2)))
    (folder / "t" / "b.npy").symlink_to(folder / "secret.npy")
    return "b.npy"


@pytest.mark.parametrize("what", ["a file", "a store", "a companion", "a hard link"])
def test_a_link_in_a_folder_is_refused_and_so_is_a_file_twice(tmp_path: Path, what: str) -> None:
    """A link shows what whoever made it could not read; rows that are read twice count twice."""
    name = entries_of(tmp_path, what)
    needles = ("a.npy", "same file") if what == "a hard link" else ("is not a plain file",)
    refused(tmp_path / "t", name, *needles)
    with pytest.raises(DataError, match=needles[-1]):
        register_rows(tmp_path / "t", tmp_path / "there.zarr")
    (tmp_path / "link.npy").symlink_to(tmp_path / "t" / "a.npy")
    assert ingest(tmp_path / "link.npy", tmp_path / "rows.zarr").rows == 4  # what is named may be a link
