"""Replacing a file that dpdist wrote, and no other: a slip of the hand must not cost somebody his table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from dpdist.errors import DataError
from dpdist.storage.store import Store


def replace_own(place: Store, content: bytes, what: str, *, private: bool, own: Callable[[bytes], bool]) -> None:
    """Write a file; one that is there is replaced if dpdist wrote it.

    Parameters
    ----------
    place, content, what
        Where it goes, its bytes, and how messages name it.
    private
        Whether to deny it to everybody but the owner.
    own
        Says of the bytes that are there whether dpdist wrote them.

    Raises
    ------
    DataError
        If something else is there, or it cannot be written.
    """
    name, found = str(place).rpartition("/")[2], b""
    with suppress(OSError):
        found = place.parent.get(name)
    if place.exists() and not own(found):
        raise DataError(f"{place} exists already, and is no {what} of dpdist. Choose another place for the {what}.")
    place.parent.replace(name, content, what, private=private)
