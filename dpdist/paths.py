"""Paths as callers name them: text, or anything that stands for a path."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dpdist.errors import UsageError

AnyPath = str | os.PathLike[str]
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_address(text: str) -> bool:
    """Say whether text is the address of something in a store, such as ``s3://bucket/folder``, and no path.

    Examples
    --------
    >>> is_address("s3://bucket/rows.zarr"), is_address("data/rows.zarr")
    (True, False)
    """
    return _ADDRESS.match(text) is not None


def local(path: AnyPath) -> Path:
    """Return a path on this machine.

    Raises
    ------
    UsageError
        If it is an address: as a path it would name a folder that is not there.
    """
    text = os.fspath(path)
    if is_address(text):
        raise UsageError(
            f"{text} is an address, and this is read and written on this machine only: copy it here, and name the "
            "copy. Only the source of an ingest may be an address."
        )
    return Path(text)
