"""The public data sets of the papers, kept as files, for experiments (``--data``) and tests.

    python -m papers.common.fetch FOLDER
    DPDIST_TEST_DATA=FOLDER python tests/all.py

MNIST and Covertype come through scikit-learn, Liver Disorders, Movement and Cardiotocography from the UCI repository;
all need the network. What comes is checked: other rows than those of the committed results are refused. A file of the
UCI repository that is in FOLDER already, under the name that a message gives, is not fetched.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import DataError
from papers.common import data
from papers.common.data import Floats

_UCI = "https://archive.ics.uci.edu/static/public"
_SECONDS = 60


@dataclass(frozen=True)
class Learned:
    """A data set that scikit-learn fetches: its dtype, the name of its labels and the fingerprint of its rows."""

    source: Callable[[Path | None], data.Table]
    dtype: str
    labels: str
    known: str

    def content(self, folder: Path) -> dict[str, Any]:
        """Return the arrays of its file.

        Raises
        ------
        DataError
            If it cannot be had, or is not the one that the results are about.
        """
        table = self.source(folder)
        rows = table.rows.astype(self.dtype)
        if data.digest(rows) != self.known:
            raise DataError(f"{table.source} has other rows than the results are about. Fetch it again.")
        return {"X": rows, self.labels: table.labels.astype(np.uint8)}


@dataclass(frozen=True)
class Uci:
    """A file of the UCI repository: address, local name, its reader and the fingerprint of its rows."""

    address: str
    file: str
    read: Callable[[bytes], Floats]
    known: str

    def content(self, folder: Path) -> dict[str, Any]:
        """Return the arrays of its file.

        Raises
        ------
        DataError
            If it cannot be had, or is not the one that the results are about.
        """
        local = folder / self.file
        try:
            if not local.exists():
                with urllib.request.urlopen(f"{_UCI}/{self.address}", timeout=_SECONDS) as answer:  # noqa: S310 - https
                    local.write_bytes(answer.read())
            rows = self.read(local.read_bytes())
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{_UCI}/{self.address} could not be fetched or read ({type(error).__name__}). Download it and "
                f"put it into {folder} as {self.file}; papers/chanyaswad/README.md says which columns are used."
            ) from None
        self.check(rows, local)
        return {"X": rows}

    def check(self, rows: Floats, path: Path) -> None:
        """Refuse the rows of a file that the results are not about."""
        if fingerprint(rows) != self.known:
            raise DataError(f"{path} has other rows than the results are about. Remove it, and fetch it again.")


def fingerprint(rows: Floats) -> str:
    """Return the fingerprint of rows to four decimals, in which copies of the repository agree."""
    return data.digest(np.round(rows, 4) + 0.0)


def named(*columns: str) -> Callable[[bytes], Floats]:
    """Return a reader of the columns of these names, whatever their case, of a CSV file."""

    def read(content: bytes) -> Floats:
        lines = csv.DictReader(io.StringIO(content.decode("utf-8-sig")))
        by_name = ({str(name).strip().lower(): value for name, value in line.items()} for line in lines)
        return np.array([[float(line[name.lower()]) for name in columns] for line in by_name])

    return read


def movement(content: bytes) -> Floats:
    """Read the sequences of an archive, ``MovementAAL_RSS_1.csv`` and so on, one after the other."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        found = {
            int(match[1]): name
            for name in archive.namelist()
            if (match := re.search(r"(?:^|/)MovementAAL_RSS_(\d+)\.csv$", name))
        }
        parts = [np.loadtxt(io.BytesIO(archive.read(found[i])), delimiter=",", ndmin=2) for i in sorted(found)]
    return np.concatenate(parts)


LIVER = ("mcv", "alkphos", "sgpt", "sgot", "gammagt", "drinks")
HEART = (
    "LB", "AC", "FM", "UC", "DL", "DS", "DP", "ASTV", "MSTV", "ALTV", "MLTV", "Width", "Min", "Max", "Nmax", "Nzeros",
    "Mode", "Mean", "Median", "Variance", "Tendency",
)  # fmt: skip
SETS: dict[str, Learned | Uci] = {
    "mnist": Learned(data.mnist, "uint8", "y", "5b92582eb909c82a"),
    "covertype": Learned(data.covertype, "int16", "y7", "1d8ed656c88560e0"),
    "liver_disorders": Uci("60/data.csv", "liver_disorders.csv", named(*LIVER), "f65b98eb615f6c13"),
    "movement_rss": Uci(
        "348/indoor+user+movement+prediction+from+rss+data.zip", "movement_rss.zip", movement, "ce1f8815ee930703"
    ),
    "cardiotocography": Uci("193/data.csv", "cardiotocography.csv", named(*HEART), "97e825e376df3a44"),
}


def fetch(name: str, folder: Path) -> Path:
    """Fetch a data set, unless it is there, check it, and return its file.

    Raises
    ------
    DataError
        If it cannot be had, or is not the one that the results are about.
    """
    path = folder / f"{name}.npz"
    wanted = SETS[name]
    if path.exists() and isinstance(wanted, Uci):
        wanted.check(data.required(folder, name)["X"].astype(np.float64), path)
        return path
    content = wanted.content(folder)
    if not path.exists():
        np.savez_compressed(path, **content)
    return path


def main() -> None:
    """Fetch all of them, and say which could not be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for name in SETS:
        try:
            print(fetch(name, folder))
        except DataError as error:
            missing.append(str(error))
    if missing:
        raise SystemExit("\n".join(missing))


if __name__ == "__main__":
    main()
