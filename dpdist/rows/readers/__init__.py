"""Readers of the files that ``ingest`` takes: NumPy arrays, CSV and Parquet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpdist.errors import DataError
from dpdist.rows.readers.arrays import Npy, Npz
from dpdist.rows.readers.base import NoRowsError, Places, Source, Survey, attempt, listed
from dpdist.rows.readers.parquet import Parquet
from dpdist.rows.readers.text import Csv

__all__ = ["KINDS", "NoRowsError", "Places", "Source", "Survey", "attempt", "listed", "sources_at"]

KINDS: dict[str, Callable[[Path, Path], Source]] = {
    ".npy": Npy,
    ".npz": Npz,
    ".csv": Csv,
    ".csv.gz": Csv,
    ".parquet": Parquet,
}


def sources_at(path: Path, beside: Path) -> list[Source]:
    """List a file, or the files of a folder in the order of their names.

    Parameters
    ----------
    path
        The file or folder. Names in a folder that begin with ``.`` or ``_`` are passed over.
    beside
        Folder in which a file may be unpacked for a while.

    Raises
    ------
    DataError
        If there is nothing, or something that is not a file of a supported kind.
    """
    if not attempt(path, path.is_dir):
        return [_source(path, beside)]
    entries = attempt(path, lambda: sorted(path.iterdir(), key=lambda entry: entry.name))
    found = [_source(entry, beside) for entry in entries if not entry.name.startswith((".", "_"))]
    if not found:
        raise DataError(f"The folder {path} holds no files to ingest. Put {', '.join(KINDS)} files there.")
    return found


def _source(path: Path, beside: Path) -> Source:
    if not attempt(path, path.is_file):
        raise DataError(f"{path} is not a file, or does not exist. Pass a file, or a folder of nothing but files.")
    for suffix, kind in KINDS.items():
        if path.name.lower().endswith(suffix):
            return kind(path, beside)
    raise DataError(f"{path} is of a kind that cannot be read. Supported are {', '.join(KINDS)}.")
