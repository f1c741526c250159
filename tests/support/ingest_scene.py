"""Files for the tests of ingest, as independent writers make them, and the checks of every refusal."""

from __future__ import annotations

import csv
import gzip
import io
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anndata
import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from scipy import sparse

from dpdist.core.errors import DataError, DpdistError
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.survey import Job, Run
from dpdist.core.ingest.workers import run_job_task
from dpdist.core.ingest.write import ingest
from dpdist.core.storage.store import Store

Table = npt.NDArray[Any]
SECRET = 73519.25
"""A cell that no message may repeat; nor may one repeat ``secretword``."""
NAMES = ("alpha", "beta", "gamma")
GENES = ("BRCA1", "TP53", "ÅGENE", "with, comma", "five")
SAMPLES, VARIANTS = 23, 11


def table(dtype: npt.DTypeLike = np.float64, rows: int = 7) -> Table:
    return np.arange(3 * rows).reshape(rows, 3).astype(dtype)


def write_npy(path: Path, rows: Table) -> None:
    np.save(path, rows)


def write_npz(path: Path, rows: Table) -> None:
    np.savez_compressed(path, y=np.arange(len(rows)), X=rows, feature_names=np.array(NAMES))


def write_csv(path: Path, rows: Table, names: Sequence[str] = NAMES) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows.tolist()])
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix.lower() == ".gz" else content)


def write_parquet(path: Path, rows: Table, names: Sequence[str] = NAMES, group: int = 3) -> None:
    pq.write_table(pa.table([pa.array(column) for column in rows.T], names=list(names)), path, row_group_size=group)


WRITERS: dict[str, Callable[[Path, Table], None]] = {
    "t.npy": write_npy,
    "t.npz": write_npz,
    "t.csv": write_csv,
    "T.CSV.GZ": write_csv,
    "t.parquet": write_parquet,
}


def stored(target: Path) -> Table:
    array = zarr.open(target, mode="r")
    assert isinstance(array, zarr.Array)
    return np.asarray(array[:])


def refused_by(
    make: Callable[[Path], object],
    folder: Path,
    *needles: str,
    never: tuple[str, ...] = (),
    kind: type[DpdistError] = DataError,
) -> str:
    """Make rows that must be refused; check the message, that no value is in it or behind it, and what is left."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(kind) as caught:
        make(folder / "rows.zarr")
    message = str(caught.value)
    for needle in needles:
        assert needle in message
    for value in ("73519", "secretword", *never):
        assert value not in message
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert sorted(folder.rglob("*")) == before
    return message


def refused(
    source: Path,
    *needles: str,
    columns: list[str] | None = None,
    never: tuple[str, ...] = (),
    choices: Choices = Choices(),  # noqa: B008 - frozen
) -> str:
    """Ingest a file that must be refused, as :func:`refused_by`."""
    return refused_by(
        lambda target: ingest(source, target, columns=columns, choices=choices), source.parent, *needles, never=never
    )


@dataclass
class Others:
    """Workers that run tasks in any order, some twice, from their pickled state alone."""

    seed: int = 0
    before: Callable[[Job, int], object] = lambda _job, _unit: None
    done: list[tuple[str, int]] = field(default_factory=list)
    named: bool = True
    again: bool = True

    @contextmanager
    def connected(self, staging: Store, choices: Choices) -> Iterator[Run]:
        def run(job: Job, units: Sequence[Any]) -> list[Any]:
            order, results = random.Random(self.seed), {}
            numbers = [*range(len(units)), *range(0, len(units) if self.again else 0, 3)]
            for number in order.sample(numbers, k=len(numbers)):
                self.before(job, number)
                self.done.append((job.name, number))
                task = cloudpickle.loads(cloudpickle.dumps((units[number], (job, staging, choices))))
                results[number] = run_job_task(*task)
            return [results[number] for number in range(len(units))]

        yield run


def counts(rows: int = 40, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    found: Table = rng.poisson(0.4, (rows, len(GENES))).astype(np.float32)
    return found


def write_anndata_zarr(
    path: Path, made: anndata.AnnData, *, version: Literal[2, 3] = 3, chunks: tuple[int, int] | None = None
) -> None:
    """Write a store of AnnData in a version of Zarr, whichever anndata would take by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anndata about the formats of Zarr
        group = zarr.open_group(path, mode="w", zarr_format=version)
        anndata.io.write_elem(group, "/", made)
        if chunks is not None:
            anndata.io.write_elem(group, "X", made.X, dataset_kwargs={"chunks": chunks})


def words_of(folder: Path) -> Path:
    """Return the array of words at a place of an AnnData store, which anndata 0.13 puts beside a mask of its own."""
    return folder / "values" if (folder / "values").exists() else folder


def write_h5ad(path: Path, x: Any, **others: Any) -> None:
    made = anndata.AnnData(x, **others)
    made.var_names = list(GENES)
    made.write_h5ad(path)


LAYOUTS: dict[str, Callable[[Table], Any]] = {
    "dense": np.asarray,
    "csr": sparse.csr_matrix,
    "csc": sparse.csc_matrix,
    "csr-array": sparse.csr_array,
}


def genotypes(seed: int = 3) -> Table:
    found: Table = np.random.default_rng(seed).integers(0, 3, (SAMPLES, VARIANTS)).astype(np.uint8)
    return found


def write_vcf_zarr(
    path: Path,
    values: Table,
    names: list[str] | None = None,
    samples: list[str] | None = None,
    alleles: tuple[str, str] = ("A", "G"),
) -> None:
    """Write genotypes as bio2zarr does; 127 is missing."""
    people, variants = values.shape
    calls = np.array([[[value > 1, value > 0] for value in column] for column in values.T.tolist()], np.int8)
    arrays = {
        "call_genotype": np.where((values.T == 127)[:, :, None], -1, calls).astype(np.int8),
        "contig_id": np.array(["7"]), "sample_id": np.array(samples or [f"s{i}" for i in range(people)]),
        "variant_contig": np.zeros(variants, np.int8),
        "variant_position": np.arange(100, 100 + variants, dtype=np.int32),
        "variant_id": np.array(names or [f"rs{i}" for i in range(variants)]),
        "variant_allele": np.array([alleles] * variants),
    }  # fmt: skip
    write_vcf_arrays(path, arrays)


def write_vcf_arrays(path: Path, arrays: dict[str, Table], version: Literal[2, 3] = 3) -> None:
    """Write a store of VCF Zarr, two variants in a chunk."""
    group = zarr.create_group(path, zarr_format=version, attributes={"vcf_zarr_version": "0.4"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a type that the specification of Zarr does not have yet
        for name, found in arrays.items():
            group.create_array(name, data=found, chunks=(2, *found.shape[1:]) if found.ndim > 1 else found.shape)
