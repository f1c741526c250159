"""Every notebook, run from its first cell to its last in a process of its own, and kept with what it shows.

    pip install -e '.[notebooks]'
    python -m benchmarks.notebooks [NAME ...]

The sources are docs/notebooks/NAME.py. What they show is of one draw of the noise: it is written to NAME.ipynb beside
them. A cell that fails ends the run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
PATIENCE = 900
"""Seconds for a cell."""


def executed(source: Path) -> float:
    """Run a notebook, keep what it shows, and return the seconds that it took."""
    notebook = jupytext.read(source)
    began = time.monotonic()
    NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3").execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # else every run would change all of them
        cell.metadata.pop("execution", None)  # when it ran
    jupytext.write(notebook, source.with_suffix(".ipynb"), fmt="ipynb")
    return time.monotonic() - began


def main() -> None:
    """Run those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names or sorted(path.stem for path in FOLDER.glob("*.py"))
    with tempfile.TemporaryDirectory() as state:
        os.environ["DPDIST_STATE_HOME"] = state  # nobody's ledgers are touched
        for name in names:
            print(f"{name}: {executed(FOLDER / f'{name}.py'):.0f} s", flush=True)


if __name__ == "__main__":
    main()
