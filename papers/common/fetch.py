"""The public data sets that can be fetched, kept as files, for experiments (``--data``) and tests.

    python -m papers.common.fetch FOLDER
    DPDIST_TEST_DATA=FOLDER python tests/all.py

MNIST and Covertype come through scikit-learn, which needs the network. What comes is checked: other rows than those of
the committed results are refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import DataError
from papers.common import data

SETS: dict[str, tuple[Callable[[Path | None], data.Table], str, str, str]] = {
    "mnist": (data.mnist, "uint8", "y", "5b92582eb909c82a"),
    "covertype": (data.covertype, "int16", "y7", "1d8ed656c88560e0"),
}
"""How each is fetched, its dtype and the name of its labels in the file, and the fingerprint of its rows."""


def fetch(name: str, folder: Path) -> Path:
    """Fetch a data set, unless it is there, check it, and return its file.

    Raises
    ------
    DataError
        If it cannot be had, or is not the one that the results are about.
    """
    source, dtype, labels, known = SETS[name]
    path = folder / f"{name}.npz"
    table = source(folder)
    rows = table.rows.astype(dtype)
    if data.digest(rows) != known:
        raise DataError(f"{table.source} has other rows than the results of {name} are about. Fetch it again.")
    if not path.exists():
        content: dict[str, Any] = {"X": rows, labels: table.labels.astype(np.uint8)}
        np.savez_compressed(path, **content)
    return path


def main() -> None:
    """Fetch all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        try:
            print(fetch(name, folder))
        except DataError as error:
            raise SystemExit(f"{error}") from None


if __name__ == "__main__":
    main()
