"""Replacing a file that dpdist wrote, and no other: a slip of the hand must not cost somebody his table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from dpdist.errors import DataError
from dpdist.storage.store import Store


def replace_own(place: Store, content: bytes, what: str, *, private: bool, own: Callable[[bytes], bool]) -> None:
    """Write a file; one that is there is replaced if dpdist wrote it."""
    name, found = str(place).rpartition("/")[2], b""
    with suppress(OSError):
        found = place.parent.get(name)
    if place.exists() and not own(found):
        raise DataError(f"{place} exists already, and is no {what} of dpdist. Choose another place for the {what}.")
    place.parent.replace(name, content, what, private=private)
