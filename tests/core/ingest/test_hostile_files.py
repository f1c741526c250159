"""Crafted files: none has another file published, fills a disk or the memory, or is assumed to be something else."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anndata
import h5py
import numpy as np
import pytest
import xarray
import zarr
from scipy import sparse
from support.cli_scene import Call
from support.ingest_scene import GENES, LAYOUTS, counts, refused, stored, write_anndata_zarr, write_h5ad

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.write import ingest
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.dataset import created
from dpdist.core.storage.atomic import make_public_folder

pytestmark = pytest.mark.usefixtures("typed")


def outside(file: h5py.File, way: str, other: str) -> None:
    """Let something of an AnnData file be stored in another file."""
    if way == "names":
        del file["var/_index"]
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_external(other.encode(), 0, 5 * 8)
        space, kind = h5py.h5s.create_simple((5,)), h5py.h5t.py_create(np.dtype("S8"))
        h5py.h5d.create(file.id, b"var/_index", kind, space, plist)
        return
    del file["X"]
    if way == "x":
        file["X"] = h5py.ExternalLink(other, "/X")
    elif way == "virtual":
        layout = h5py.VirtualLayout((40, 5), "float32")
        layout[:] = h5py.VirtualSource(other, "X", (40, 5))
        file.create_virtual_dataset("X", layout)
    else:
        anndata.io.write_elem(file, "X", sparse.csr_matrix(counts()))
        del file["X/data"]
        file["X/data"] = h5py.ExternalLink(other, "/X")


@pytest.mark.parametrize("what", ["names", "x", "virtual", "a part"])
def test_an_h5ad_that_points_to_another_file_is_refused(tmp_path: Path, what: str) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["X"] = counts() + 73519
    write_h5ad(tmp_path / "t.h5ad", counts())
    with h5py.File(tmp_path / "t.h5ad", "r+") as file:
        outside(file, what, str(tmp_path / "other.h5"))
    refused(tmp_path / "t.h5ad", "t.h5ad", "stored outside of the file")


@pytest.mark.parametrize("name", ["a", "x"])
def test_a_netcdf_file_that_points_to_another_file_is_refused(tmp_path: Path, name: str) -> None:
    other = str(tmp_path / "other.nc")
    for path in (tmp_path / "t.nc", other):
        xarray.Dataset({"a": (("t", "x"), counts())}, {"x": list(GENES)}).to_netcdf(path, engine="h5netcdf")
    with h5py.File(tmp_path / "t.nc", "r+") as file:
        del file[name]
        file[name] = h5py.ExternalLink(other, name)
    refused(tmp_path / "t.nc", "t.nc", "stored outside of the file")


def test_memory_that_does_not_suffice_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "t.npy", counts())

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", full)
    refused(tmp_path / "t.npy", "t.npy", "does not fit into memory")


@pytest.mark.parametrize("some", [True, False])
@pytest.mark.parametrize("name", ["t.zarr", "t.h5ad"])
def test_what_no_disk_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, some: bool) -> None:
    if name == "t.zarr":
        array: Any = zarr.create_array(tmp_path / name, shape=(10**12, 3), chunks=(1000, 3), dtype="float64")
        if some:
            array[5] = 1
    else:
        write_h5ad(tmp_path / name, counts())
        with h5py.File(tmp_path / name, "r+") as file:
            del file["X"]
            file.create_dataset("X", (10**12, 5), "float64", chunks=(1000, 5))[5 : 5 + some] = 1
    monkeypatch.setattr("dpdist.core.rows.writing.RowsWriter.append", None)
    refused(tmp_path / name, *(("are free in",) if some else (name, "without stored values")), never=(str(10**12),))


def test_a_sparse_matrix_of_which_a_part_is_not_stored_is_refused(tmp_path: Path) -> None:
    for part in ("data", "indices", "indptr"):
        write_h5ad(tmp_path / "t.h5ad", sparse.csr_matrix(counts()))
        with h5py.File(tmp_path / "t.h5ad", "r+") as file:
            shape, dtype = file["X"][part].shape, file["X"][part].dtype
            del file["X"][part]
            file["X"].create_dataset(part, shape, dtype, chunks=(10,))
        refused(tmp_path / "t.h5ad", "t.h5ad", "without stored values")


def test_a_negative_shape_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "t.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (-5, 3)})
        file.write(bytes(99))
    refused(tmp_path / "t.npy", "t.npy")
    write_h5ad(tmp_path / "t.h5ad", sparse.csr_matrix(counts()))
    with h5py.File(tmp_path / "t.h5ad", "r+") as file:
        file["X"].attrs["shape"] = [-5, 5]
    refused(tmp_path / "t.h5ad", "t.h5ad", "(-5, 5)")
    zarr.create_array(tmp_path / "t.zarr", data=counts())
    about = json.loads((tmp_path / "t.zarr" / "zarr.json").read_text())
    for shape in ([-40, 5], [40, -5], [40, -5, -1]):
        (tmp_path / "t.zarr" / "zarr.json").write_text(json.dumps(about | {"shape": shape}))
        refused(tmp_path / "t.zarr", "t.zarr")


def test_unpacked_files_need_free_space_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "t.npz", X=np.zeros((10**5, 5)))
    usage = shutil.disk_usage(tmp_path)._replace(free=10**6 * 4 + 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    refused(tmp_path / "t.npz", "that are free in")  # the rows would fit, but not with their archive
    usage = usage._replace(free=10**6 * 4 + 128)
    ingest(tmp_path / "t.npz", tmp_path / "rows.zarr")
    assert not list(tmp_path.glob(".*"))


def store_of(path: Path, x: Any, *, version: Literal[2, 3] = 3, **others: Any) -> None:
    """Write an AnnData store with the library that defines it."""
    adata = anndata.AnnData(x, **others)
    adata.var_names = list(GENES)
    write_anndata_zarr(path, adata, version=version)


@pytest.mark.parametrize(("layout", "version"), [("dense", 2), ("csc", 2), ("csr-array", 3)])
def test_anndata_gives_x_and_never_a_matrix_made_of_it(tmp_path: Path, layout: str, version: Literal[2, 3]) -> None:
    others = {"obsm": {"X_pca": np.ones((40, 2))}, "obsp": {"d": np.ones((40, 40))}}
    store_of(tmp_path / "t.zarr", LAYOUTS[layout](counts()), version=version, **others)
    opened = ingest(tmp_path / "t.zarr", tmp_path / "rows.zarr", columns=["five", "BRCA1"])
    assert np.array_equal(stored(opened.path), counts()[:, [4, 0]])
    for hidden in ("obsm/X_pca", "obsp/d", "varm"):
        with pytest.raises(DataError, match="no matrix") as caught:
            ingest(tmp_path / "t.zarr", tmp_path / "no.zarr", choices=Choices(hidden))
        assert "obsm" not in str(caught.value).partition("--variable")[2]


def test_arrays_of_anndata_within_a_larger_store_are_refused(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "t.zarr", zarr_format=3).create_group("mod")
    store_of(tmp_path / "t.zarr/mod/rna", sparse.csr_matrix(counts()), obsm={"X_pca": np.ones((40, 2))})
    refused(tmp_path / "t.zarr", "holds AnnData", "t.zarr/mod/rna")


@pytest.fixture(params=[0o000, 0o077], ids=["umask 000", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run under a umask that allows everything, or nothing to others."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> set[tuple[bool, int]]:
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (root, *root.rglob("*"))}


def test_modes_do_not_depend_on_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, scheduler: str, umask: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("a,b\n" + "1,2\n3,4\n" * 20)
    Path("job.toml").write_text(
        '[rows]\npath = "rows.zarr"\nsource = "t.csv"\nbudget_epsilon = 2\nbudget_delta = 1e-5\n'
        '[release]\npath = "release.zarr"\nepsilon = 1\ndelta = 1e-6\nclip = 8\n'
        '[pca]\npath = "model.zarr"\ncomponents = 1\n[project]\npath = "scores.zarr"\n'
    )
    assert call("run", "job.toml", "--scheduler", scheduler).code == 0
    for private in ("rows.zarr", "rows.ledger", "scores.zarr"):
        assert modes(tmp_path / private) == {(True, 0o700), (False, 0o600)}, private
    for public in ("release.zarr", "model.zarr"):
        assert modes(tmp_path / public) == {(True, 0o755 & ~umask), (False, 0o644 & ~umask)}, public


def test_the_folders_of_nightly_releases_can_only_be_changed_by_their_owner(tmp_path: Path, umask: int) -> None:
    make_public_folder(tmp_path / "published" / "total")
    assert modes(tmp_path / "published") == {(True, 0o755 & ~umask)}


def test_a_control_character_in_a_name_or_an_option_is_refused(tmp_path: Path) -> None:
    for letter in ("\x1b", "\x01", "\x9b", "\u202e", "\n"):
        np.savez(tmp_path / "t.npz", X=counts()[:, :2], feature_names=["a", f"b{letter}[2J"])
        refused(
            tmp_path / "t.npz", "column 2 (counting from 1) holds a control or invisible character", never=(letter,)
        )
    loss = PrivacyLoss.parse("1", "1e-6")
    for wrong in ({"name": "week\x1b[2J"}, {"period": "week\x1b[2J"}):
        with pytest.raises(UsageError, match="control or invisible character") as caught:
            ReleaseRequest(**{"mechanism": "gaussian", "loss": loss, "clip_norm": 1.0, **wrong})  # type: ignore[arg-type]
        assert "\x1b" not in str(caught.value)


def test_what_a_terminal_would_obey_is_spelled_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.chdir(tmp_path)
    with created(tmp_path / "rows.zarr", rows=1, dtype="uint8", names=("a\x1b[2J", "b"), budget=None) as writer:
        writer.append(np.ones((1, 2), dtype=np.uint8))  # as a version before this one took them
    assert "a\\x1b[2J" in call("inspect", "rows.zarr").out
    assert "\\x1b[2J" in call("inspect", "\x1b[2J.zarr").message
