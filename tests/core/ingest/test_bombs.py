"""Small files that unpack to gigabytes, run code or lead elsewhere: refused in a sentence, in bounded memory."""

from __future__ import annotations

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
import pytest
import xarray
import zarr
from support.ingest_scene import counts, refused, stored, words_of, write_anndata_zarr

from dpdist.core.errors import DataError
from dpdist.core.ingest.write import ingest
from dpdist.core.pipeline.sources import register_rows

MIB = 1 << 20
SIZE = 2 << 30


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


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    about = json.loads(path.read_text())
    change(about)
    path.write_text(json.dumps(about))


def three(path: Path, codec: str, configuration: dict[str, Any], content: bytes) -> None:
    """Write a store of 40 x 4 numbers, and put other content for its one chunk."""
    zarr.create_array(path, shape=(40, 4), chunks=(40, 4), dtype="float64", compressors=None)
    added = {"name": codec, "configuration": configuration}
    change_json(path / "zarr.json", lambda about: about["codecs"].append(added))
    (path / "c" / "0").mkdir(parents=True)
    (path / "c" / "0" / "0").write_bytes(content)


def two(path: Path) -> None:
    """Write such a store in the older format, packed twice."""
    zlibs = {"compressor": {"id": "zlib", "level": 9}, "filters": [{"id": "zlib", "level": 9}]}
    zarr.create_array(path, shape=(40, 4), chunks=(40, 4), dtype="float64", zarr_format=2)
    change_json(path / ".zarray", lambda about: about.update(zlibs))
    (path / "0.0").write_bytes(zlib.compress(deflated(SIZE), 9))


def h5ad(path: Path) -> None:
    """Put a chunk that unpacks to gigabytes for the one of X."""
    anndata.AnnData(np.ones((40, 4), np.float32)).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        attributes = dict(file["X"].attrs)
        del file["X"]
        dataset = file.create_dataset("X", (40, 4), np.float32, chunks=(40, 4), compression="gzip")
        dataset.attrs.update({key: value for key, value in attributes.items() if key.startswith("encoding")})
        dataset.id.write_direct_chunk((0, 0), deflated(SIZE))


def annotated(path: Path, change: Callable[[Any], object], content: bytes) -> None:
    """Write a store of AnnData whose names are packed otherwise."""
    write_anndata_zarr(path, anndata.AnnData(np.ones((40, 4), np.float32)), version=2)
    (path / ".zmetadata").unlink(missing_ok=True)
    index_path = words_of(path / "var" / "_index")
    change_json(index_path / ".zarray", change)
    (index_path / "0").write_bytes(content)


def labels(path: Path) -> None:
    annotated(path, lambda about: about.update(compressor={"id": "zlib", "level": 9}), deflated(SIZE))


def head_of(descr: str, shape: tuple[int, ...]) -> bytes:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    return head.getvalue()


def packed(path: Path, name: str, head: bytes, size: int) -> None:
    """Add an array of very many zeros to an archive of a table."""
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{name}.npy", "w", force_zip64=True) as out,
    ):
        out.write(head)
        for _ in range(size // 10**7):
            out.write(bytes(10**7))


def packed_names(path: Path) -> None:
    """Write an archive with 300 MB behind the names of three columns."""
    names = io.BytesIO()
    np.save(names, np.array(["a", "b", "c"]))
    np.savez(path, X=np.full((4, 3), 73519.25))
    packed(path, "feature_names", names.getvalue(), 3 * 10**8)


def long_names(path: Path) -> None:
    """Write an archive whose three names have 2 * 10^8 letters each."""
    np.savez(path, X=np.full((4, 3), 73519.25))
    packed(path, "feature_names", head_of("<U200000000", (3,)), 0)


def short_netcdf(path: Path) -> None:
    """Write a head that announces an attribute of 4 GB."""
    xarray.Dataset({"a": (("t", "x"), counts())}, attrs={"title": "abcdefgh"}).to_netcdf(path, engine="scipy")
    content = bytearray(path.read_bytes())
    offset = content.index(b"abcdefgh") - 4
    content[offset : offset + 4] = struct.pack(">i", 2**31 - 8)
    path.write_bytes(content[:388])


def one_name_many_times(path: Path) -> None:
    """Let each of many names be the same megabyte, stored once."""
    columns = 60_000
    adata = anndata.AnnData(np.ones((2, columns), dtype=np.uint8))
    adata.write_h5ad(path)
    with h5py.File(path, "r+") as file:
        del file["var/_index"]
        names = file.create_dataset("var/_index", (columns,), h5py.string_dtype(), chunks=(columns,), compression=9)
        names[0] = "a" * 10**6
        plain = names.id
        mask, chunk = plain.read_direct_chunk((0,))
        first = zlib.decompress(chunk)[:16]  # a length, and where the text is
        plain.write_direct_chunk((0,), zlib.compress(first * columns), mask)


BOMBS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "zarr, zstd": ("t.zarr", lambda path: three(path, "zstd", {"level": 1, "checksum": False}, zstandard(SIZE))),
    "zarr 2, zlib in zlib": ("t.zarr", two),
    "names of AnnData": ("t.zarr", labels),
    "h5ad": ("t.h5ad", h5ad),
}
ANNOUNCED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "10^8 columns, packed": ("t.npz", lambda path: packed(path, "X", head_of("|u1", (1, 10**8)), 10**8)),
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
    from dpdist.core.errors import DataError
    from dpdist.core.ingest.write import ingest
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
    assert sum(path.stat().st_size for path in before if path.is_file()) < len(sources) * 4 * MIB
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAKS), *sources],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    results = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(results) == len(sources)
    for number, ((own_peak, child_peak, message), source) in enumerate(zip(results, sources, strict=True)):
        assert str(source) in message
        assert "does not fit into memory" not in message or number < len(BOMBS)
        assert own_peak < 300, source
        assert child_peak < 1100, source
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("version", [2, 3])
def test_a_codec_that_runs_what_it_unpacks_is_not_followed(tmp_path: Path, version: int) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "run"),)

    def again(about: Any) -> None:
        """Pack words as words, and then once more: what the library looks for is the first."""
        about |= {"filters": [*about["filters"], {"id": "pickle"}], "compressor": None}

    if version == 2:
        annotated(tmp_path / "t.zarr", again, pickle.dumps(Evil()))
    else:
        three(tmp_path / "t.zarr", "numcodecs.pickle", {}, pickle.dumps(Evil()))
    refused(tmp_path / "t.zarr", "the codec 'pickle'" if version == 2 else "the codec 'numcodecs.pickle'")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["alone", "codecs", "index_codecs", "a", ".zattrs", "consolidated before"])
def test_an_unknown_codec_is_named_wherever_it_is(tmp_path: Path, where: str) -> None:
    path, odd, about = tmp_path / "t.zarr", {"name": "odd\x1b[2J", "configuration": {}}, "zarr.json"
    if where in {"alone", "codecs", "index_codecs"}:
        shards = None if where == "alone" else (40, 4)
        zarr.create_array(path, data=np.ones((40, 4)), chunks=(10, 4), shards=shards)
    else:
        before = where == "consolidated before"
        group = zarr.create_group(path, zarr_format=2 if before else 3)
        group.create_array("a" if before else where, data=np.ones((40, 4)))
        about = ".zmetadata" if before else about
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(path)
    changes: dict[str, Callable[[Any], object]] = {
        "alone": lambda found: found["codecs"].append(odd),
        "consolidated before": lambda found: found["metadata"]["a/.zarray"].update(compressor={"id": odd["name"]}),
        **dict.fromkeys(
            ("codecs", "index_codecs"), lambda found: found["codecs"][0]["configuration"][where].append(odd)
        ),
        **dict.fromkeys(
            ("a", ".zattrs"), lambda found: found["consolidated_metadata"]["metadata"][where]["codecs"].append(odd)
        ),
    }
    change_json(path / about, changes[where])
    refused(path, "uses the codec 'odd\\x1b[2J'", never=("\x1b",))


def test_the_usual_codecs_are_read(tmp_path: Path) -> None:
    rows = np.arange(160.0).reshape(40, 4)
    codecs: list[tuple[Any, Any]] = [
        *((2, codec()) for codec in (numcodecs.Blosc, numcodecs.LZ4, numcodecs.BZ2, numcodecs.LZMA)),
        *((3, codec()) for codec in (zarr.codecs.BloscCodec, zarr.codecs.ZstdCodec, zarr.codecs.GzipCodec)),
    ]
    for number, (version, codec) in enumerate(codecs):
        path = tmp_path / f"{number}.zarr"
        zarr.create_array(path, data=rows, chunks=(10, 4), compressors=codec, zarr_format=version)
        ingest(path, tmp_path / f"{number}.rows")
        assert np.array_equal(stored(tmp_path / f"{number}.rows"), rows)


@pytest.mark.parametrize("what", ["a chunk", "a folder", "a pipe", "itself, twice"])
def test_a_store_with_a_link_or_a_pipe_in_it_is_refused(tmp_path: Path, what: str) -> None:
    path, other = tmp_path / "t.zarr", tmp_path / "other.zarr"
    for store in (path, other):
        zarr.create_array(store, data=np.ones((40, 4)), chunks=(20, 4))
    chunk = path / "c" / "1" / "0"
    if what in {"a chunk", "a pipe"}:
        chunk.unlink()
        chunk.symlink_to(other / "c" / "1" / "0") if what == "a chunk" else os.mkfifo(chunk)
    else:
        shutil.rmtree(path / "c")
        for name in ("c",) if what == "a folder" else ("x", "y"):
            (path / name).symlink_to(other / "c" if name == "c" else path)
    refused(path, "t.zarr/", "is not a plain file")


def test_metadata_of_any_length_and_folders_that_lead_back_to_themselves_are_refused(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "t.zarr", data=np.ones((40, 4)))
    os.truncate(tmp_path / "t.zarr" / "zarr.json", 1 << 40)  # a hole: it takes no room on the disk
    refused(tmp_path / "t.zarr", "'zarr.json' is larger than 64 MiB")
    (tmp_path / "t").mkdir()
    for name in ("a=1", "b=1"):
        (tmp_path / "t" / name).symlink_to(".")
    refused(tmp_path / "t", "a=1", "is a link")


def test_an_archive_of_two_arrays_of_one_name_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            packed(tmp_path / "t.npz", "X", head_of("|u1", (10, 10)) + bytes(100), 0)
    refused(tmp_path / "t.npz", "holds two arrays with the same name")


@pytest.mark.parametrize("what", ["a file", "a store", "a hard link"])
def test_a_link_in_a_folder_is_refused_and_so_is_a_file_twice(tmp_path: Path, what: str) -> None:
    """A link shows what its maker could not read; rows that are read twice count twice."""
    folder, names = tmp_path / "t", {"a file": "b.npy", "a store": "b.zarr"}
    folder.mkdir()
    for path in (folder / "a.npy", tmp_path / "secret.npy"):
        np.save(path, np.ones((4, 2)))
    zarr.create_array(tmp_path / "secret.zarr", data=np.ones((4, 2)))
    link = folder / names.get(what, "b.npy")
    if what == "a hard link":
        link.hardlink_to(folder / "a.npy")
    else:
        link.symlink_to(tmp_path / ("secret.zarr" if what == "a store" else "secret.npy"))
    needles = ("a.npy", "same file") if what == "a hard link" else ("is not a plain file",)
    refused(folder, link.name, *needles)
    with pytest.raises(DataError, match=needles[-1]):
        register_rows(folder, tmp_path / "there.zarr")
    (tmp_path / "link.npy").symlink_to(folder / "a.npy")
    assert ingest(tmp_path / "link.npy", tmp_path / "rows.zarr").rows == 4  # a named path may be a link
