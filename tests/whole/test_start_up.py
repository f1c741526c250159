"""What a command imports: start-up is most of what a small table takes. It is counted in modules, not in seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOR_WORKERS = {"dask", "distributed", "tornado", "cryptography"}
FOR_FILES = {"pyarrow", "pandas", "h5py"}
FOR_OTHERS = {"numba", "sklearn", "matplotlib", "jinja2", "scipy.optimize"}
LIBRARIES = {"numpy", "scipy", "zarr", "mpmath", "msgspec"}


def imported(folder: Path, *arguments: str | Path) -> set[str]:
    """Return the packages that a command imports, but those of Python; and ``scipy.optimize``, which is slow."""
    command = [sys.executable, "-X", "importtime", "-m", "dpdist", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.splitlines()[-1]
    told = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    slow = {name for name in told if name == "scipy.optimize"}
    return slow | {name.partition(".")[0] for name in told} - sys.stdlib_module_names


SLOW = FOR_WORKERS | FOR_FILES | FOR_OTHERS
COMMANDS: dict[str, tuple[set[str], set[str]]] = {
    "--version": ({"click"}, LIBRARIES | SLOW),
    "--help": ({"click"}, LIBRARIES | SLOW),
    "release rows.zarr other.zarr --epsilon 0.5 --delta 1e-6 --clip 300": (LIBRARIES - {"scipy"}, SLOW),
    "ingest t.csv new.zarr --budget-epsilon 2": ({"pyarrow"}, SLOW - {"pyarrow"}),
    "pca release.zarr model.zarr --components 1": (LIBRARIES, SLOW - {"scipy.optimize"}),
    "project rows.zarr model.zarr scores.zarr": (LIBRARIES - {"scipy"}, SLOW),
}


def test_a_command_imports_no_library_that_it_does_not_need(released: Path) -> None:
    (released / "t.csv").write_text("a,b\n1,2\n3,4\n")
    for command, (needed, others) in COMMANDS.items():
        found = imported(released, *command.split())
        assert (needed - found, others & found) == (set(), set()), command
