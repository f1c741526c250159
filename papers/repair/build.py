"""The preprint as a PDF; its numbers are read from the results.

    pip install -e '.[preprint]'
    python -m papers.repair.build

It writes ``repair.pdf`` to the folder of results.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import typst

from dpdist import cli
from papers.common.command import Asked, experiment

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER.parent / "results"
OTHERS = ("erratum", "jiang_xie_zhang_samples")
ANALYST = FOLDER.parent.parent / "benchmarks" / "results" / "adaptive_analyst.json"


@experiment(__doc__, "a second")
def main(asked: Asked) -> None:
    """Compile the text in a folder with all that it reads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("repair.typ", "repair.yml"):
            shutil.copy(FOLDER / part, folder)
        shutil.copy(ANALYST, folder / "analyst.json")
        (folder / "results").mkdir()
        for path in (*RESULTS.glob("repair_*.json"), *(RESULTS / f"{name}.json" for name in OTHERS)):
            shutil.copy(path, folder / "results")
        typst.compile(folder / "repair.typ", output=asked.output / "repair.pdf", root=folder)
    asked.finish("repair", ".pdf", ())


if __name__ == "__main__":
    cli.execute(main)
