"""The ``dpdist`` attributes of rows, releases, models and scores: what a folder says it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpdist.errors import DataError


def attributes_at(path: Path) -> dict[str, Any] | None:
    """Return the ``dpdist`` attributes of a Zarr v3 folder, or None when there are none to read."""
    try:
        found = json.loads((path / "zarr.json").read_text(encoding="utf-8"))["attributes"]["dpdist"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def require_format(path: Path, expected: str, otherwise: str) -> dict[str, Any]:
    """Return the attributes of a folder of one format.

    Parameters
    ----------
    expected
        Such as ``dpdist-rows/1``.
    otherwise
        What to tell the user when there is no such folder: what is missing and how to make one.

    Raises
    ------
    DataError
        If there is no such folder or it has another format.
    """
    found = attributes_at(path)
    if found is None:
        raise DataError(otherwise)
    if found.get("format") != expected:
        raise DataError(f"{path} has format {found.get('format')!r}, not {expected!r}. {otherwise}")
    return found
