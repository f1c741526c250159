"""What this user has registered, kept in the state folder: the same rows registered twice are one data set.

Registering makes no copy, so it can be done again at no cost. Each time there would be a new identity, and with it a
new budget. So a digest of what a registered table holds leads to the identity that it was given first. Registered
again, it gets the same one: it is a copy then, and charged to the same ledger (:mod:`dpdist.ledger.datasets`). A digest
of the objects, whatever was taken of them, leads there too: other columns of the same objects would be a second budget
for the same rows, and are refused.

What is seen is the same files, unchanged or copied. Rows that were written in another order or way, a part of them or
more than them are other rows to this. So are rows that were ingested. Another user's registering is not seen.

The digests are of private rows: whoever can read the state folder can test guesses at a whole table with them.
"""

from __future__ import annotations

from contextlib import ExitStack

from msgspec import Struct

from dpdist._util.ids import random_token
from dpdist.errors import RefusedError
from dpdist.ledger.state_folder import StateFile, state_home

FORMAT = "dpdist-registered-rows/1"


class Registration(Struct, frozen=True):
    """What is remembered of rows that were registered, as it is stored.

    Attributes
    ----------
    dataset_id
        Their identity.
    place
        Where their table was put first, for messages.
    """

    dataset_id: str
    place: str


def identity_of(content: str, objects: str, place: str) -> str:
    """Return the identity of rows that are registered: that which they had before, or a new one.

    It is remembered when this returns, before there is a table: should the process die then, the next gets the same.

    Parameters
    ----------
    content, objects
        SHA-256 of what the table holds, and of the objects it lies in, hexadecimal.
    place
        Where the table is put.

    Raises
    ------
    RefusedError
        If other columns of the same objects were registered.
    DataError
        If the state folder cannot be made private, written or locked.
    ResumableError
        If the disk is full, or another process holds it for a minute.
    """
    files = {digest: _file(digest) for digest in sorted((content, objects))}
    with ExitStack() as stack:
        for file in files.values():  # in one order, so that two processes never wait for each other
            stack.enter_context(file.locked())
        known = files[content].read()
        if known is None:
            other = files[objects].read()
            if other is not None:
                raise RefusedError(
                    f"Other columns of the same objects are registered, as {other.place}. A second table of the same "
                    "rows would be a second budget for them. Use that one, or remove it and register all columns "
                    f"that you need. If it is gone and nothing was ever released of it, remove {files[objects].path}."
                )
            known = Registration(random_token(), place)
            for digest in (content, objects):
                files[digest].write(known)
        return known.dataset_id


def _file(digest: str) -> StateFile[Registration]:
    place = state_home() / "registered" / f"{digest}.json"
    lost = "If it is lost, remove it: what it was of is then registered as new rows, with a budget of its own."
    return StateFile(place, "record of registered rows", FORMAT, Registration, lost)
