"""Rows for the tests of the estimators in every form that they take, and a register of their own for each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse
import xarray as xr
import zarr

from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import PrivacyLoss

Table = npt.NDArray[Any]
ROWS, COLUMNS = 300, 7
CLIP = 5.0
NAMES = [f"gene {i}" for i in range(COLUMNS)]


def table(seed: int = 0) -> npt.NDArray[np.float64]:
    """Return rows; some are clipped, and many entries are zero."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(ROWS, COLUMNS)) * np.linspace(3, 0.5, COLUMNS) + 1
    rows[generator.uniform(size=rows.shape) < 0.3] = 0
    return rows


def _zarr_array(rows: Table, folder: Path) -> Any:
    array = zarr.create_array(store=folder / "plain.zarr", shape=rows.shape, chunks=(64, 4), dtype=rows.dtype)
    array[...] = rows
    return array


def _data_array(rows: Any) -> xr.DataArray:
    return xr.DataArray(
        rows,
        dims=("cell", "gene"),
        coords={"gene": NAMES, "cell": np.arange(len(rows)), "run": 3, "batch": ("cell", np.arange(len(rows)) % 2)},
    )


def _ann_data(rows: Any) -> anndata.AnnData:
    return anndata.AnnData(rows, var=pd.DataFrame(index=NAMES))


def _backed(made: anndata.AnnData, folder: Path) -> anndata.AnnData:
    made.write_h5ad(folder / "cells.h5ad")
    return anndata.read_h5ad(folder / "cells.h5ad", backed="r")


HELD: dict[str, Callable[[Table], Any]] = {
    "numpy": lambda rows: rows,
    "list": lambda rows: rows.tolist(),
    "fortran": np.asfortranarray,
    "big-endian": lambda rows: rows.astype(">f8"),
    "a view": lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
    "csr": scipy.sparse.csr_matrix,
    "coo": scipy.sparse.coo_array,
    "pandas": lambda rows: pd.DataFrame(rows, columns=NAMES),
    "dask": lambda rows: da.from_array(rows, chunks=(41, COLUMNS)),
    "dask, cut columns": lambda rows: da.from_array(rows, chunks=(300, 3)),
    "dask, sparse blocks": lambda rows: da.from_array(rows, chunks=(41, COLUMNS)).map_blocks(scipy.sparse.csr_matrix),
    "dask, unknown rows": lambda rows: (blocks := da.from_array(rows, chunks=(41, COLUMNS)))[blocks[:, 0] > -np.inf],
    "xarray": _data_array,
    "xarray of dask": lambda rows: _data_array(da.from_array(rows, chunks=(41, 2))),
    "anndata": _ann_data,
    "anndata, sparse": lambda rows: _ann_data(scipy.sparse.csr_matrix(rows)),
}
STORED: dict[str, Callable[[Table, Path], Any]] = {
    "zarr": _zarr_array,
    "dask of zarr": lambda rows, folder: da.from_zarr(_zarr_array(rows, folder)),
    "anndata, backed": lambda rows, folder: _backed(_ann_data(rows), folder),
    "anndata, sparse, backed": lambda rows, folder: _backed(_ann_data(scipy.sparse.csr_matrix(rows)), folder),
}
FORMS = (*HELD, *STORED)
"""Every kind of X that is not the path of a rows.zarr."""


def formed(form: str, rows: Table, folder: Path) -> Any:
    return HELD[form](rows) if form in HELD else STORED[form](rows, folder)


def ingested(rows: Table, folder: Path, *, budget: str = "10") -> Path:
    np.save(folder / "rows.npy", rows)
    ingest_rows(folder / "rows.npy", folder / "rows.zarr", budget=PrivacyLoss.parse(budget, "1e-5"))
    return folder / "rows.zarr"
