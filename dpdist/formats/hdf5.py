"""HDF5 files without references to other files, and with bounded text.

A data set may be in any file that its reader can open: raw bytes at an offset (external storage), a data set of another
HDF5 file (an external link, or a soft link through one), or parts of several (a virtual data set). So a crafted file
could publish another file of the user, as column names. One string may also be referenced any number of times, so that
a small file declares unlimited text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import MOST_LABELS

_FEW = 64  # most strings of an attribute


@contextmanager
def contained(path: Any, h5py: Any) -> Iterator[Any]:
    """Open an HDF5 file, and refuse references to other files."""
    with h5py.File(path, "r") as file:

        def elsewhere(name: str, link: Any) -> str | None:
            if not isinstance(link, h5py.HardLink):
                return name
            target = file[name]
            return name if isinstance(target, h5py.Dataset) and (target.external or target.is_virtual) else None

        name = file.visititems_links(elsewhere)
        if name is not None:
            raise DataError(
                f"{path}: {name!r} is a link, or is stored outside of the file. Only data in the file itself is read. "
                "Copy it into the file (h5copy -f soft,ext) and ingest again."
            )
        yield file


def require_few_attributes(path: Any, h5py: Any, file: Any) -> None:
    """Refuse large attributes, which some libraries read when they open a file."""
    length, total = path.stat().st_size, 0

    def too_many(_: str, member: Any) -> bool | None:
        nonlocal total
        for name in member.attrs:
            attribute = member.attrs.get_id(name)
            count = math.prod(attribute.shape)
            if attribute.dtype.kind != "O" or h5py.check_string_dtype(attribute.dtype) is None:
                total += count * attribute.dtype.itemsize
            elif count > _FEW:
                total += count * length  # each may be as long as the file
            else:
                value = member.attrs[name]
                total += sum(map(len, [value] if isinstance(value, str) else value.flat))
            if total > MOST_LABELS:
                return True
        return None

    if too_many("", file) or file.visititems(too_many):
        raise DataError(
            f"{path} has attributes that may exceed {MOST_LABELS >> 20} MiB. Remove attributes that are not needed."
        )
