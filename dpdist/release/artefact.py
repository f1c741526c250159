"""release.zarr: written once, read and verified by anyone. Everything in it is public.

Arrays ``second_moment`` (d x d float64, the unnormalised sum in the units of the bounded rows) and ``lattice`` (the
released integers; with private centring they carry one more row and column). With private centring also ``row_sum``
(d,). A mechanism that releases a subspace has one array instead, ``components`` (k x d float64, orthonormal rows).
Attributes ``dpdist``: what was claimed and guaranteed, how rows were bounded, the law and scale of the noise, and the
head of the ledger's hash chain before it was drawn, by which a ledger that forgot it is found out. The number of rows
stands there only under replace-one. There is no seed, no hash of the data, no count of clipped rows, no time.

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
from dpdist.errors import DataError, UsageError
from dpdist.mechanisms.base import Answer, Output
from dpdist.mechanisms.registry import mechanism_named
from dpdist.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss
from dpdist.rows.bounding import RowBound
from dpdist.staging import staged
from dpdist.store import put_array, read_arrays, require_format
from dpdist.triangle import unpacked

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
    neighbours
        The neighbouring relation.
    claim
        The (epsilon, delta) its authors claim; None for a mechanism that is not private at all.
    guarantee
        What is proved, or None; it falls short of the claim only in a release made for reproduction.
    bound
        How rows were bounded.
    noise
        Law and scale of the noise, in lattice units.
    rows
        n under replace-one, None under add-remove.
    answer
        The released integers, (w, w) int64, w = d or d + 1, one unit is ``bound.unit**2``; or the released subspace,
        (k, d) float64, orthonormal rows.
    ledger_head
        Where the journal of its ledger ended after it was reserved and before the noise was drawn: 64 hexadecimal
        digits; None in a release made for reproduction, which no ledger knows.
    """

    release_id: str
    mechanism: str
    names: tuple[str, ...]
    neighbours: Neighbours
    claim: PrivacyLoss | None
    guarantee: Guarantee | None
    bound: RowBound
    noise: dict[str, Any]
    rows: int | None
    answer: npt.NDArray[np.int64] | Matrix
    ledger_head: str | None = None

    @property
    def private_as_claimed(self) -> bool:
        """Whether what is proved is at least what is claimed."""
        return self.guarantee is not None and self.claim is not None and self.guarantee.loss.within(self.claim)

    @property
    def status(self) -> str:
        """``private``, or ``not private as claimed``."""
        return "private" if self.private_as_claimed else "not private as claimed"

    @property
    def subspace(self) -> Matrix | None:
        """The released components, (k, d) float64, orthonormal rows; None where a second moment was released."""
        return None if np.issubdtype(self.answer.dtype, np.integer) else self.answer.astype(np.float64, copy=False)

    @property
    def lattice(self) -> npt.NDArray[np.int64]:
        """The released integers, (w, w) int64.

        Raises
        ------
        UsageError
            If a subspace was released.
        """
        if self.subspace is not None:
            raise UsageError(f"{self.mechanism} released components, and no second moment.")
        return self.answer.astype(np.int64, copy=False)

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
        corner = float(self.lattice[-1, -1]) - float(self.noise.get("mean_diagonal", 0.0))
        return corner / self.bound.constant**2

    def attributes(self) -> dict[str, Any]:
        """Return the JSON attributes of release.zarr."""
        return {
            "format": FORMAT,
            "release_id": self.release_id,
            "mechanism": self.mechanism,
            "status": self.status,
            "claim": None if self.claim is None else self.claim.to_json(),
            "guarantee": None if self.guarantee is None else self.guarantee.to_json(),
            "neighbours": self.neighbours.value,
            "bound": self.bound.to_json(),
            "noise": self.noise,
            "columns": list(self.names),
            "n": self.rows,
            "ledger_head": self.ledger_head,
            "library": f"dpdist {dpdist.__version__}",
        }

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of release.zarr."""
        if self.subspace is not None:
            return {"components": self.subspace}
        found: dict[str, npt.NDArray[Any]] = {"second_moment": self.second_moment, "lattice": self.lattice}
        total = self.row_sum
        return found if total is None else {**found, "row_sum": total}


def assemble(
    *,
    release_id: str,
    mechanism: str,
    names: tuple[str, ...],
    neighbours: Neighbours,
    claim: PrivacyLoss | None,
    guarantee: Guarantee | None,
    bound: RowBound,
    noise: dict[str, Any],
    rows: int,
    answer: Answer,
    ledger_head: str | None = None,
) -> Release:
    """Make a release of what a mechanism answered: a noisy packed triangle, or the rows of a subspace.

    Under replace-one n is public: it is recorded, and the corner of an augmented matrix, ``n constant²``, is put
    back exactly. Under add-remove the number of rows is dropped here.
    """
    public = neighbours is Neighbours.REPLACE_ONE
    values: npt.NDArray[np.int64] | Matrix
    if answer.ndim == 1:
        values = unpacked(answer.astype(np.int64, copy=False), bound.width)
        if public and bound.constant:
            values[-1, -1] = rows * bound.constant**2
    else:
        values = answer.astype(np.float64, copy=False)
    known = rows if public else None
    return Release(release_id, mechanism, names, neighbours, claim, guarantee, bound, noise, known, values, ledger_head)


def archived(release: Release) -> bytes:
    """Return the files of release.zarr as one archive; equal releases give equal bytes."""
    store = MemoryStore()
    group = zarr.create_group(store=store, zarr_format=3, attributes={"dpdist": release.attributes()})
    for name, values in release.arrays().items():
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
    files = _files(archive)
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


def holds(target: Path, archive: bytes) -> bool:
    """Say whether what stands at target is what an archive publishes, to the byte."""
    return _holds(target, _files(archive))


def _files(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r") as tar:
        return {member.name: _content(tar, member) for member in tar.getmembers()}


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    if file is None:
        raise DataError(f"The archive of the release holds {member.name}, which is no file.")
    return file.read()


def _holds(target: Path, files: dict[str, bytes]) -> bool:
    return {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()} == files


def _is_sound(release: Release, arrays: dict[str, npt.NDArray[Any]]) -> bool:
    """Say whether the arrays of a release have the right shapes and agree with one another."""
    answer, d, width = release.answer, release.bound.columns, release.bound.width
    if len(release.names) != d:
        return False
    if release.subspace is not None:
        k = answer.shape[0]
        return answer.shape == (k, d) and 1 <= k <= d and bool(np.allclose(answer @ answer.T, np.eye(k)))
    return (
        answer.shape == (width, width)
        and answer.dtype == np.int64
        and np.array_equal(answer, answer.T)
        and all(np.array_equal(arrays[name], values) for name, values in release.arrays().items())
    )


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
        moment = mechanism_named(info["mechanism"]).statement.output is Output.SECOND_MOMENT
        names = {"second_moment", "lattice"} | ({"row_sum"} if bound.constant else set()) if moment else {"components"}
        arrays = read_arrays(path, names)
        release = Release(
            release_id=info["release_id"],
            mechanism=info["mechanism"],
            names=tuple(info["columns"]),
            neighbours=Neighbours(info["neighbours"]),
            claim=None if info["claim"] is None else PrivacyLoss.from_json(info["claim"]),
            guarantee=None if info["guarantee"] is None else Guarantee.from_json(info["guarantee"]),
            bound=bound,
            noise=dict(info["noise"]),
            rows=info["n"],
            answer=arrays["lattice" if moment else "components"],
            ledger_head=info["ledger_head"],
        )
        sound = _is_sound(release, arrays) and info["status"] == release.attributes()["status"]
    except Exception:  # noqa: BLE001 - a damaged folder fails in as many ways as there are libraries
        sound = False
    if not sound:
        raise DataError(
            f"{path} is not a release.zarr, or it was damaged. Publish it again: the same dpdist release command "
            "yields the same bytes at no cost."
        )
    return release
