"""What this user has registered, kept in the state folder: the same rows registered twice are one data set.

Registering makes no copy, so it can be done again at no cost. Each time there would be a new identity, and with it a
new budget. So a digest of what a registered table holds leads to the identity that it was given first. Registered
again, it gets the same one: it is a copy then, and charged to the same ledger (:mod:`dpdist.ledger.datasets`). Nothing
else decides: no name, place or time of a file. All columns of a source are registered, so that none of the choices of
whoever registers makes other rows of the same files.

What is seen is the same files, unchanged or copied. Rows that were written in another order or way, a part of them or
more than them are other rows to this. So are rows that were ingested. Another user's registering is not seen.

The digests are of private rows: whoever can read the state folder can test guesses at a whole table with them.
"""

from __future__ import annotations

from msgspec import Struct

from dpdist._util.ids import random_token
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


def identity_of(content: str, place: str) -> str:
    """Return the identity of rows that are registered: that which they had before, or a new one.

    It is remembered when this returns, before there is a table: should the process die then, the next gets the same.
    """
    file = _file(content)
    with file.locked():
        known = file.read()
        if known is None:
            known = Registration(random_token(), place)
            file.write(known)
        return known.dataset_id


def _file(digest: str) -> StateFile[Registration]:
    place = state_home() / "registered" / f"{digest}.json"
    lost = "If it is lost, remove it: what it was of is then registered as new rows, with a budget of its own."
    return StateFile(place, "record of registered rows", FORMAT, Registration, lost)
