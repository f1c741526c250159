"""What other libraries take for the same rows: run by benchmark.py in a process of its own, with a time limit.

    python -m benchmarks.rivals NAME rows.zarr CLIP WORKERS

prints a JSON line per repeat. It needs none of dpdist, so it may run in another environment; each library is optional.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr

COMPONENTS = 10
REPEATS = 5
Work = Callable[[], object]


def in_memory(path: str) -> Any:
    """Return the rows as float64."""
    return np.asarray(zarr.open_array(path, mode="r")[:]).astype(np.float64)


@contextmanager
def dask_rows(path: str, workers: int) -> Iterator[Any]:
    """Give the rows as a float64 dask.array, on a local cluster with Dask's own settings."""
    import dask.array as da
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        yield da.from_zarr(path).astype(np.float64)


@contextmanager
def dask_array(path: str, _: float, workers: int) -> Iterator[Work]:
    with dask_rows(path, workers) as rows:
        yield lambda: (rows.T @ rows).compute()


@contextmanager
def dask_ml_pca(path: str, _: float, workers: int) -> Iterator[Work]:
    from dask_ml.decomposition import PCA

    with dask_rows(path, workers) as rows:
        yield lambda: PCA(COMPONENTS, svd_solver="full").fit(rows)


@contextmanager
def covariance_eigh(path: str, _clip: float, _workers: int) -> Iterator[Work]:
    from sklearn.decomposition import PCA

    rows = in_memory(path)
    yield lambda: PCA(COMPONENTS, svd_solver="covariance_eigh").fit(rows)


@contextmanager
def incremental_pca(path: str, _clip: float, _workers: int) -> Iterator[Work]:
    from sklearn.decomposition import IncrementalPCA

    rows = in_memory(path)
    yield lambda: IncrementalPCA(COMPONENTS, batch_size=5 * rows.shape[1]).fit(rows)


@contextmanager
def diffprivlib_pca(path: str, clip: float, _: int) -> Iterator[Work]:
    from diffprivlib.models import PCA

    rows = in_memory(path)
    yield lambda: PCA(COMPONENTS, epsilon=1.0, data_norm=clip, centered=True).fit(rows)


@contextmanager
def opendp_pca(path: str, clip: float, _: int) -> Iterator[Work]:
    import opendp.prelude as dp

    dp.enable_features("contrib", "floating-point", "honest-but-curious")
    rows = in_memory(path)
    count, columns = rows.shape

    def fit() -> object:
        kind: Any = dp.sklearn.decomposition.PCA
        return kind(
            epsilon=1.0, row_norm=clip, n_samples=count, n_features=columns, n_components=COMPONENTS, n_changes=1
        ).fit(rows)

    yield fit


RIVALS = {
    "dask.array X.T @ X": dask_array,
    "dask-ml PCA": dask_ml_pca,
    "scikit-learn PCA covariance_eigh": covariance_eigh,
    "scikit-learn IncrementalPCA": incremental_pca,
    "diffprivlib PCA": diffprivlib_pca,
    "OpenDP PCA": opendp_pca,
}


def main() -> None:
    """Print the seconds and the peak memory of every repeat."""
    name, path, clip, workers = sys.argv[1:]
    try:
        with RIVALS[name](path, float(clip), int(workers)) as work:
            for _ in range(REPEATS):
                started = time.perf_counter()
                work()
                seconds = time.perf_counter() - started
                peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
                print(json.dumps({"seconds": seconds, "peak_mib": peak}), flush=True)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)


if __name__ == "__main__":
    main()
