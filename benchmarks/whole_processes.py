"""Whole processes: ``dpdist release``, and scripts that sum the same stored rows without privacy.

Each starts Python, imports what it needs, reads the same rows.zarr, whose pages are in memory, and ends with a result:
a private release on the disk, the float64 matrix of a Dask script, the components of a scikit-learn script. They run in
turns, so that another load strikes all; the figures are medians, and the medians of ratios of neighbours::

    python -m benchmarks.whole_processes --output benchmarks/results/whole_processes

``--before`` names a checkout of another version, which is run in turns too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

for _name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.pop(_name, None)  # what is pinned from outside can halve the speed of BLAS

from benchmarks.benchmark import Case, machine, write_rows  # noqa: E402 - OpenBLAS reads the environment

ROOT = Path(__file__).resolve().parent.parent
CASES = {
    "4,000,000 x 54": Case("float32", 4_000_000, 54, None),
    "300,000 x 784": Case("float32", 300_000, 784, None),
    "2,000 x 50": Case("float32", 2_000, 50, None),
}
SCRIPTS = {
    "dask": "import dask.array as da; rows = da.from_zarr('rows.zarr').astype('f8'); (rows.T @ rows).compute()",
    "scikit-learn": (
        "import zarr; from sklearn.decomposition import PCA; "
        "PCA(10, svd_solver='covariance_eigh').fit(zarr.open_array('rows.zarr', mode='r')[:])"
    ),
}


def seconds(folder: Path, *words: str, checkout: Path = ROOT) -> float:
    """Run Python in a folder; return the seconds from its start to its end."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "DPDIST_STATE_HOME": str(folder / "state")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=True, capture_output=True)  # noqa: S603 - ours
    return time.perf_counter() - begun


def measured(case: Case, folder: Path, versions: dict[str, Path], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of everything, in turns, after a turn that is not counted."""
    write_rows(case, folder / "rows.zarr")
    seconds(folder, "-m", "dpdist", "ledger", "create", "rows.ledger", "--rows", "rows.zarr")
    times: dict[str, list[float]] = {name: [] for name in (*versions, *SCRIPTS)}
    for turn in range(repeats + 1):
        for name, found in times.items():
            if name in versions:
                release = f"{name.replace(' ', '-')}-{turn}"
                words = ("release", "rows.zarr", f"{release}.zarr", "--epsilon", "1", "--delta", "1e-9", "--clip",
                         str(case.clip), "--id", release)  # fmt: skip
                took = seconds(folder, "-m", "dpdist", *words, checkout=versions[name])
            else:
                took = seconds(folder, "-c", SCRIPTS[name])
            if turn:
                found.append(round(took, 3))
    return times


def main() -> None:
    """Measure all cases, and write a JSON file and a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="Where to put the rows; a temporary folder by default.")
    parser.add_argument("--output", type=Path, required=True, help="without suffix: a .json and a .md are written")
    arguments = parser.parse_args()
    versions = {"dpdist": ROOT} | ({"dpdist before": arguments.before.resolve()} if arguments.before else {})
    found: dict[str, Any] = {"machine": machine(), "cases": {}}
    for name in arguments.cases:
        with TemporaryDirectory(dir=arguments.folder) as folder:
            found["cases"][name] = measured(CASES[name], Path(folder), versions, arguments.repeats)
        print(name, {key: median(times) for key, times in found["cases"][name].items()}, flush=True)
    host = found["machine"]
    heads = ["rows", *versions, *SCRIPTS, *(f"dpdist / {each}" for each in SCRIPTS)]
    text = (
        f"Whole processes from Python's start to its end, medians of {arguments.repeats} in turns, seconds; ratios are "
        f"medians of those of neighbours.\n{host['processor']}, {host['cores']} cores, {', '.join(host['blas'])}; "
        f"{host['load_before']:.1f} processes ready to run before.\n"
    )
    lines = [text, f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, times in found["cases"].items():
        ratios = [median(a / b for a, b in zip(times["dpdist"], times[each], strict=True)) for each in SCRIPTS]
        cells = [f"{median(each):.2f}" for each in times.values()] + [f"{each:.2f}" for each in ratios]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    arguments.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    arguments.output.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
