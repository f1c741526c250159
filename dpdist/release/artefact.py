"""release.zarr: written once, read and verified by anyone. Everything in it is public.

Arrays ``second_moment`` (d x d float64, the unnormalised sum in the units of the bounded rows) and ``lattice`` (the
released integers; with private centring they carry one more row and column). With private centring also ``row_sum``
(d,). Attributes ``dpdist``: what was guaranteed, how rows were bounded, the law and scale of the noise. The number
of rows stands there only under replace-one. There is no seed, no hash of the data, no count of clipped rows, no time.

A release is committed as one archive of its files and published by unpacking it, so that every publication of an id
is identical to the byte, whatever version of whatever library is installed by then.
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import MemoryStore

import dpdist
from dpdist.errors import DataError
from dpdist.moment.gram import unpacked
from dpdist.privacy.guarantee import Guarantee, Neighbours
from dpdist.rows.bounding import RowBound
from dpdist.staging import staged
from dpdist.store import put_array, read_arrays, require_format

FORMAT = "dpdist-release/1"

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Release:
    """A private second moment and what is publicly known about it.

    Attributes
    ----------
    release_id, mechanism
        Its id and the name of its mechanism.
    names
        Column names, length d.
    guarantee
        What is guaranteed.
    bound
        How rows were bounded.
    noise
        Law and scale of the noise, in lattice units.
    rows
        n under replace-one, None under add-remove.
    lattice
        The released integers, (w, w) int64, w = d or d + 1; one unit is ``bound.unit**2``.
    """

    release_id: str
    mechanism: str
    names: tuple[str, ...]
    guarantee: Guarantee
    bound: RowBound
    noise: dict[str, Any]
    rows: int | None
    lattice: npt.NDArray[np.int64]

    @property
    def second_moment(self) -> Matrix:
        """``sum x x^T`` plus noise, (d, d) float64, in squared units of the bounded rows."""
        d = self.bound.columns
        moment: Matrix = self.lattice[:d, :d].astype(np.float64) * self.bound.unit**2
        return moment

    @property
    def row_sum(self) -> Matrix | None:
        """``sum x`` plus noise, (d,) float64, in units of the bounded rows; None without private centring."""
        if not self.bound.constant:
            return None
        d = self.bound.columns
        total: Matrix = self.lattice[:d, d].astype(np.float64) * (self.bound.unit / self.bound.constant)
        return total

    @property
    def row_count(self) -> float | None:
        """Number of rows where n is public, its private estimate where the mean was released, else None."""
        if self.rows is not None:
            return float(self.rows)
        if not self.bound.constant:
            return None
        return float(self.lattice[-1, -1]) / self.bound.constant**2

    def attributes(self) -> dict[str, Any]:
        """Return the JSON attributes of release.zarr."""
        return {
            "format": FORMAT,
            "release_id": self.release_id,
            "mechanism": self.mechanism,
            "guarantee": self.guarantee.to_json(),
            "neighbours": self.guarantee.neighbours.value,
            "bound": self.bound.to_json(),
            "noise": self.noise,
            "columns": list(self.names),
            "n": self.rows,
            "library": f"dpdist {dpdist.__version__}",
        }


def assemble(
    *,
    release_id: str,
    mechanism: str,
    names: tuple[str, ...],
    guarantee: Guarantee,
    bound: RowBound,
    noise: dict[str, Any],
    rows: int,
    noisy: npt.NDArray[np.int64],
) -> Release:
    """Make a release of a noisy packed triangle.

    Under replace-one n is public: it is recorded, and the corner of an augmented matrix, ``n constant²``, is put
    back exactly. Under add-remove the number of rows is dropped here.
    """
    lattice = unpacked(noisy, bound.width)
    public = guarantee.neighbours is Neighbours.REPLACE_ONE
    if public and bound.constant:
        lattice[-1, -1] = rows * bound.constant**2
    return Release(release_id, mechanism, names, guarantee, bound, noise, rows if public else None, lattice)


def archived(release: Release) -> bytes:
    """Return the files of release.zarr as one archive; equal releases give equal bytes."""
    store = MemoryStore()
    group = zarr.create_group(store=store, zarr_format=3, attributes={"dpdist": release.attributes()})
    arrays = {"second_moment": release.second_moment, "row_sum": release.row_sum, "lattice": release.lattice}
    for name, values in arrays.items():
        if values is not None:
            put_array(group, name, values)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key in sorted(store._store_dict):  # noqa: SLF001 - the mapping it was given to fill
            content = store._store_dict[key].to_bytes()  # noqa: SLF001
            info = tarfile.TarInfo(key)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive.getvalue()


def publish(archive: bytes, target: Path) -> None:
    """Unpack an archive to target: all of it appears at once, flushed; the same bytes already there are left alone.

    Raises
    ------
    DataError
        If something else stands at target, or its folder cannot be written.
    """
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r") as tar:
        files = {member.name: _content(tar, member) for member in tar.getmembers()}
    if _holds(target, files):
        return
    try:
        with staged(target, "release") as aside:
            for name, content in files.items():
                path = aside / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    except DataError:
        if not _holds(target, files):  # another run of the same release may have been faster
            raise


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    if file is None:
        raise DataError(f"The archive of the release holds {member.name}, which is no file.")
    return file.read()


def _holds(target: Path, files: dict[str, bytes]) -> bool:
    return {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()} == files


def open_release(path: Path) -> Release:
    """Read and verify a release.zarr.

    Raises
    ------
    DataError
        If there is none, or its parts are damaged or contradict one another.
    """
    info = require_format(
        path, FORMAT, f"There is no release at {path}. Make one with: dpdist release ROWS {path} --epsilon E --clip C"
    )
    try:
        bound = RowBound.from_json(info["bound"])
        arrays = read_arrays(path, {"second_moment", "lattice"} | ({"row_sum"} if bound.constant else set()))
        release = Release(
            release_id=info["release_id"],
            mechanism=info["mechanism"],
            names=tuple(info["columns"]),
            guarantee=Guarantee.from_json(info["guarantee"]),
            bound=bound,
            noise=dict(info["noise"]),
            rows=info["n"],
            lattice=arrays["lattice"],
        )
        width = release.bound.width
        sound = (
            release.lattice.shape == (width, width)
            and release.lattice.dtype == np.int64
            and np.array_equal(release.lattice, release.lattice.T)
            and np.array_equal(arrays["second_moment"], release.second_moment)
            and (release.row_sum is None or np.array_equal(arrays["row_sum"], release.row_sum))
            and len(release.names) == release.bound.columns
        )
    except Exception:  # noqa: BLE001 - a damaged folder fails in as many ways as there are libraries
        sound = False
    if not sound:
        raise DataError(
            f"{path} is not a release.zarr, or it was damaged. Publish it again: the same dpdist release command "
            "yields the same bytes at no cost."
        )
    return release
