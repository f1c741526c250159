"""What this user has seen of a data set, kept outside of its rows: its one ledger, or that it was reproduced from.

Rows that were copied before they had a ledger know nothing of it, and neither does the ledger know of them. Each copy
would get a ledger of its own, and so a second budget; or it would be reproduced from without noise. But a copy keeps
the identity of its data set. So each identity has one private file in the state folder. It names the one ledger that
may be charged, or says that a release for reproduction was made. The first of the two excludes the other for ever.

**Order.** It is written when the ledger is there, and before the rows name it. Should the process die before the file
is written, the ledger was charged nothing: the same command takes it up, or another copy's ledger comes first. Should
it die after that, the same command finds its own ledger named and completes the rows. A ledger that none of this
happened to (an older version made it, or another machine) is written down when it is first charged here.

A copy on another machine, under another state folder or another user's cannot be seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from dpdist.errors import DataError, RefusedError
from dpdist.ledger.state_folder import StateFile, state_home
from dpdist.naming import parameter, step

FORMAT = "dpdist-dataset/1"


class Seen(Struct, frozen=True):
    """What was seen of a data set, as it is stored.

    Attributes
    ----------
    ledger_id
        Identity of the one ledger that may be charged for it; None while there is none.
    place
        Where that ledger was when it was seen first, for messages.
    reproduced
        Whether a release for reproduction was made of it.
    """

    ledger_id: str | None = None
    place: str | None = None
    reproduced: bool = False

    def require_charged_to(self, ledger_id: str, place: str) -> None:
        """Refuse to charge another ledger than the one that was seen first."""
        if self.reproduced:
            raise RefusedError(
                f"The rows of the ledger {place}, or a copy of them, were released for reproduction, perhaps without "
                "any noise. No budget of theirs can promise anything any more. Nothing was drawn."
            )
        if self.ledger_id not in {None, ledger_id}:
            raise RefusedError(
                f"The rows of the ledger {place} have another ledger, {self.place}, created for them or for a copy of "
                f"them, and two ledgers would be two budgets. Nothing was drawn. {_cure()} What this ledger has given "
                "out can be published again."
            )


_LOST = "If it is lost, remove it: the ledger that is charged next is then the only one."


def _cure() -> str:
    return (
        f"Release from the rows that name that ledger, and if it was moved, name its place ({parameter('ledger')}). If "
        f"it is lost, restore it from a copy, and charge what the copy misses with: {step('ledger adopt', 'LEDGER')}."
    )


def _file(dataset_id: str) -> StateFile[Seen]:
    if not re.fullmatch(r"[0-9a-f]{32}", dataset_id):
        raise DataError("The rows have no proper identity: their zarr.json is damaged. Restore it from a copy.")
    return StateFile(state_home() / "datasets" / f"{dataset_id}.json", "record of the data set", FORMAT, Seen, _LOST)


def seen(dataset_id: str) -> Seen:
    """Return what was seen of a data set, without a lock; nothing is created."""
    return _file(dataset_id).read() or Seen()


@contextmanager
def held(dataset_id: str) -> Iterator[StateFile[Seen]]:
    """Hold the file that says what was seen of a data set against every other process."""
    file = _file(dataset_id)
    with file.locked():
        yield file


def charge(dataset_id: str, ledger_id: str, place: str) -> None:
    """Let a ledger be the one that is charged for a data set; idempotent."""
    known = seen(dataset_id)
    known.require_charged_to(ledger_id, place)
    if known.ledger_id is None:
        with held(dataset_id) as file:
            known = seen(dataset_id)  # another process may have been faster
            known.require_charged_to(ledger_id, place)
            if known.ledger_id is None:
                file.write(Seen(ledger_id, place))
