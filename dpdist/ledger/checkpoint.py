"""A checkpoint: what a journal amounted to up to one entry, kept so that opening need not read all before it.

It is a cache beside the witness, in the state folder of the user who runs dpdist, and bound to the digest of that
entry. It is never read from the ledger's place, so whoever may write there can forge none.

**When it is used.** Only if the journal has an entry of that number and digest; what follows is then read and checked
as ever. The digest covers every entry before it. So a checkpoint that fits was made of this very beginning, whichever
copy or backup is read; one that is older than the journal is gone on from; one that is newer, of another copy, damaged,
or written by another version is passed over, and the journal is read from its first entry. An entry before the
checkpoint that was altered without its digests has no effect, as what it says is not read again.

**Who may trust it.** It is believed only if this user owns the file and nobody else may write to it. Whoever has this
user's rights could give a witness that says nothing, and could forge a checkpoint. ``ledger verify`` believes none: it
folds the journal from its first entry, and what the checkpoint says must be what the journal says, to the byte.

It is not flushed: if it is lost or torn in a power cut, its SHA-256 tells, and only time is lost.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from dpdist._util.text import canonical
from dpdist._version import __version__
from dpdist.errors import DpdistError
from dpdist.ledger.state import Record, View
from dpdist.ledger.state_folder import make_private, state_home
from dpdist.privacy.accounting import CapSet, CapSetJson, Filter, Price
from dpdist.privacy.guarantee import Guarantee, GuaranteeJson, PrivacyLoss
from dpdist.privacy.parallel import PeriodFilters

SPACING = 256
"""A checkpoint is written after so many entries, or a 32nd of the journal: so writing it costs each entry the same."""
_FORMAT = f"dpdist-checkpoint/3 of dpdist {__version__}"
"""Another version may fold entries differently, so it believes no checkpoint of this one.

Whoever changes what an entry amounts to, without a new version of the package, raises the number.
"""
_APART = {"records", "accounts", "budget"}
_PLAIN = tuple(each.name for each in fields(View) if each.init and each.name not in _APART)


_NUMBERED = {"parameters": int, "guarantee": int}
_Release: Any = msgspec.defstruct(
    "_Release",
    [(name, _NUMBERED.get(name, kind)) for name, kind in get_type_hints(Record).items()],
    frozen=True, array_like=True,
)  # fmt: skip
"""A :class:`Record`, of which parameters and guarantee are numbers of a table: most are alike."""


class _Account(Struct, frozen=True, array_like=True):
    """What each release is charged as, and what is left: numbers of prices in a table, as most are alike."""

    charged: dict[str, int]
    rest: int


class _Accounts(Struct, frozen=True):
    caps: tuple[CapSetJson, ...]
    to_come: _Account
    closed: dict[str, _Account]


class _Format(Struct):
    format: str


class _Checkpoint(Struct, frozen=True):
    format: str
    plain: dict[str, object]
    budget: dict[str, int]
    parameters: tuple[str, ...]
    guarantees: tuple[GuaranteeJson, ...]
    records: tuple[_Release, ...]
    prices: tuple[tuple[CapSetJson | None, ...], ...]
    accounts: _Accounts | None


class _Table:
    """Numbers for values, equal ones for equal values."""

    def __init__(self) -> None:
        self._by_value: dict[Hashable, int] = {}
        self._by_identity: dict[int, tuple[Hashable, int]] = {}  # it keeps each value, so that no other has its place

    def number(self, value: Hashable) -> int:
        """Return the number of a value; of the same object at no cost, since most fractions take long to hash."""
        found = self._by_identity.get(id(value))
        if found is None:
            found = value, self._by_value.setdefault(value, len(self._by_value))
            self._by_identity[id(value)] = found
        return found[1]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._by_value)


def encoded(view: View) -> bytes:
    """Return a view as a checkpoint; equal views have equal bytes."""
    texts, guarantees, priced = _Table(), _Table(), _Table()
    names = _Release.__struct_fields__
    records = tuple(
        _Release(**{
            **{name: getattr(each, name) for name in names},
            "parameters": texts.number(canonical(each.parameters)), "guarantee": guarantees.number(each.guarantee),
        })
        for each in view.records.values()
    )  # fmt: skip

    def account(of: Filter) -> _Account:
        return _Account({key: priced.number(price) for key, price in of.charged.items()}, priced.number(of.rest))

    accounts = None
    if view.accounts is not None:
        caps = tuple(each.to_json() for each in view.accounts.caps)
        closed = {period: account(each) for period, each in view.accounts.closed.items()}
        accounts = _Accounts(caps, account(view.accounts.to_come), closed)
    checkpoint = _Checkpoint(
        _FORMAT,
        {name: getattr(view, name) for name in _PLAIN},
        view.budget.to_json() if view.budget else {},
        tuple(texts),
        tuple(each.to_json() for each in guarantees),
        records,
        tuple(tuple(None if one is None else one.to_json() for one in price) for price in priced),
        accounts,
    )
    body = msgspec.json.encode(checkpoint)
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def resumed(content: bytes) -> View | None:
    """Return the view of a checkpoint, or None where it is damaged, or another version wrote it.

    Bytes that were decoded last are not again: a night opens its ledger a dozen times, and decoding takes five times as
    long as a copy.
    """
    view = _decoded(content)
    return None if view is None else view.copy()


@lru_cache(maxsize=1)
def _decoded(content: bytes) -> View | None:
    body, _, digest = content.rpartition(b"\n")[0].rpartition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    try:
        if msgspec.json.decode(body, type=_Format).format != _FORMAT:
            return None
        return _view(msgspec.json.decode(body, type=_Checkpoint))
    except (ValueError, ArithmeticError, LookupError, TypeError, RecursionError, DpdistError):
        return None


def _view(checkpoint: _Checkpoint) -> View:
    guarantees = [Guarantee.from_json(each) for each in checkpoint.guarantees]
    prices: list[Price] = [
        tuple(None if one is None else CapSet.from_json(one) for one in price) for price in checkpoint.prices
    ]
    parameters = [json.loads(text) for text in checkpoint.parameters]
    records = [
        Record(**{
            **msgspec.structs.asdict(each),
            "parameters": parameters[each.parameters], "guarantee": guarantees[each.guarantee],
        })
        for each in checkpoint.records
    ]  # fmt: skip
    budget = PrivacyLoss.from_json(checkpoint.budget)
    accounts = None
    if checkpoint.accounts is not None:
        caps = tuple(CapSet.from_json(each) for each in checkpoint.accounts.caps)

        def account(of: _Account) -> Filter:
            charged = {key: prices[number] for key, number in of.charged.items()}
            return Filter.resumed(budget, caps, charged, prices[of.rest])

        closed = {period: account(each) for period, each in checkpoint.accounts.closed.items()}
        accounts = PeriodFilters.resumed(account(checkpoint.accounts.to_come), closed)
    return View(
        budget=budget,
        records={record.release_id: record for record in records},
        accounts=accounts,
        **msgspec.to_builtins(checkpoint.plain),
    )


def due(after: int, kept: int) -> bool:
    """Say whether one is to be written after an entry, where the last one was written after another."""
    return after - kept >= max(SPACING, after // 32)


def path_of(ledger_id: str) -> Path | None:
    """Return where the checkpoint of a ledger is kept; None where it can have none."""
    if not re.fullmatch(r"[0-9a-f]{32}", ledger_id):
        return None
    try:
        return state_home() / "checkpoints" / f"{ledger_id}.json"
    except DpdistError:  # there is no state folder: that is told where it is needed
        return None


def read(ledger_id: str) -> bytes | None:
    """Return what is kept of a ledger, or None; nothing is created.

    A file that another user owns or may write is passed over: in a state folder that others may write to, it is forged.
    """
    path = path_of(ledger_id)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())  # of what is read, whatever stands at the path by then
            return file.read() if found.st_uid == os.geteuid() and not found.st_mode & 0o022 else None
    except OSError:
        return None


def write(view: View) -> bool:
    """Replace what is kept of a ledger by this view, while its witness is locked; False where that cannot be done."""
    path = path_of(view.ledger_id)
    if path is None:
        return False
    aside = path.with_suffix(".partial")
    try:
        content = encoded(view)
        make_private(path.parent)
        aside.unlink(missing_ok=True)
        with open(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:  # noqa: PTH123 - a handle
            file.write(content)
        aside.replace(path)
    except (OSError, ValueError, OverflowError, RecursionError):
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        return False
    return True
