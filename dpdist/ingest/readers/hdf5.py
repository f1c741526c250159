"""HDF5 files, read without following them: nothing is taken from another file, nor more than the file itself holds.

A data set of HDF5 may lie in any other file that its reader can open. It may be raw bytes from an offset on (external
storage), a data set of another HDF5 file (an external link, or a soft link over one), or pieces of several (a virtual
data set). With these, a crafted file could publish another file of whoever ingests it, as names of columns. One string
may also be pointed to any number of times, so that a small file announces text without end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpdist.errors import DataError
from dpdist.ingest.readers.base import MOST_LABELS

_TOGETHER = 4096  # strings of a data set that are read at once at most
_FEW = 64  # strings that one attribute may hold, however long the file is


@contextmanager
def contained(path: Any, h5py: Any) -> Iterator[Any]:
    """Open an HDF5 file that points to nothing outside of it."""
    with h5py.File(path, "r") as file:

        def elsewhere(name: str, link: Any) -> str | None:
            if not isinstance(link, h5py.HardLink):
                return name
            target = file[name]
            return name if isinstance(target, h5py.Dataset) and (target.external or target.is_virtual) else None

        name = file.visititems_links(elsewhere)
        if name is not None:
            raise DataError(
                f"{path}: {name!r} is a link, or is stored outside of the file. Only what is in the file itself is "
                "read. Copy the content into it (h5copy -f soft,ext) and ingest again."
            )
        yield file


def require_few_attributes(path: Any, h5py: Any, file: Any) -> None:
    """Refuse attributes of many bytes, for libraries that read all of them when they open a file."""
    length, total = path.stat().st_size, 0

    def too_many(_: str, member: Any) -> bool | None:
        nonlocal total
        for name in member.attrs:
            attribute = member.attrs.get_id(name)
            count = math.prod(attribute.shape)
            if attribute.dtype.kind != "O" or h5py.check_string_dtype(attribute.dtype) is None:
                total += count * attribute.dtype.itemsize
            elif count > _FEW:
                total += count * length  # each may be as long as the file, and none can be read alone
            else:
                value = member.attrs[name]
                total += sum(map(len, [value] if isinstance(value, str) else value.flat))
            if total > MOST_LABELS:
                return True
        return None

    if too_many("", file) or file.visititems(too_many):
        raise DataError(
            f"{path} has attributes that may be of more than {MOST_LABELS >> 20} MiB. Remove those that are not needed."
        )


def strings(data: Any, count: int, longest: int) -> Iterator[list[str]]:
    """Yield strings in pieces, the fewer at a time the longer one of them may be."""
    step = max(1, min(_TOGETHER, MOST_LABELS // max(1, longest)))
    for start in range(0, count, step):
        batch = np.asarray(data[start : start + step]).tolist()
        yield [text.decode() if isinstance(text, bytes) else str(text) for text in batch]
