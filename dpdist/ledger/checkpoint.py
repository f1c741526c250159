"""Checkpoints: the folded view of a journal up to one entry, so that opening a ledger need not read all entries.

A checkpoint is a cache next to the witness, in the state folder of the user who runs dpdist, and bound to the digest of
its last entry. It is never read from the location of the ledger, where others could forge it.

**Use.** A checkpoint is used only if the journal has an entry with its number and digest. The digest covers all earlier
entries, so the checkpoint was computed from the same beginning, in any copy or backup; later entries are read and
checked as usual. A checkpoint that is newer than the journal, belongs to another copy, is damaged, or was written by
another version is ignored, and the journal is read from its first entry. If an entry before the checkpoint is altered
without its digests, that has no effect, because it is not read again.

**Trust.** A checkpoint is trusted only if this user owns the file and no one else can write it. An attacker with the
rights of this user can forge one, but could also supply an empty witness. ``ledger verify`` trusts no checkpoint: it
folds the journal from its first entry, and requires the checkpoint to agree byte for byte.

Checkpoints are not flushed. One that a power cut loses or damages fails its SHA-256, which costs only time.
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
"""A checkpoint is written after this many entries or 1/32 of the journal, so that the cost per entry is constant."""
_FORMAT = f"dpdist-checkpoint/3 of dpdist {__version__}"
"""Versions ignore the checkpoints of others, which may fold entries differently.

Increase the number when folding changes without a new version of the package.
"""
_SEPARATE = {"records", "accounts", "budget"}
_PLAIN = tuple(field.name for field in fields(View) if field.init and field.name not in _SEPARATE)


_NUMBERED = {"parameters": int, "guarantee": int}
_Release: Any = msgspec.defstruct(
    "_Release",
    [(name, _NUMBERED.get(name, kind)) for name, kind in get_type_hints(Record).items()],
    frozen=True, array_like=True,
)  # fmt: skip
"""A :class:`Record` with parameters and guarantee as indices into tables, because most are equal."""


class _Account(Struct, frozen=True, array_like=True):
    """Charges and remainder, as indices into a table of prices, because most are equal."""

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
    """Assigns indices to values; equal values get the same index."""

    def __init__(self) -> None:
        self._by_value: dict[Hashable, int] = {}
        self._by_identity: dict[int, tuple[Hashable, int]] = {}  # keeps values alive, so that ids are unique

    def number(self, value: Hashable) -> int:
        """Return the index of a value; by identity first, because fractions are slow to hash."""
        entry = self._by_identity.get(id(value))
        if entry is None:
            entry = value, self._by_value.setdefault(value, len(self._by_value))
            self._by_identity[id(value)] = entry
        return entry[1]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._by_value)


def encoded(view: View) -> bytes:
    """Encode a view as a checkpoint; equal views have equal bytes."""
    texts, guarantees, priced = _Table(), _Table(), _Table()
    names = _Release.__struct_fields__
    records = tuple(
        _Release(**{
            **{name: getattr(record, name) for name in names},
            "parameters": texts.number(canonical(record.parameters)), "guarantee": guarantees.number(record.guarantee),
        })
        for record in view.records.values()
    )  # fmt: skip

    def account(of: Filter) -> _Account:
        return _Account({key: priced.number(price) for key, price in of.charged.items()}, priced.number(of.rest))

    accounts = None
    if view.accounts is not None:
        caps = tuple(cap_set.to_json() for cap_set in view.accounts.caps)
        closed = {period: account(filter_) for period, filter_ in view.accounts.closed.items()}
        accounts = _Accounts(caps, account(view.accounts.to_come), closed)
    checkpoint = _Checkpoint(
        _FORMAT,
        {name: getattr(view, name) for name in _PLAIN},
        view.budget.to_json() if view.budget else {},
        tuple(texts),
        tuple(guarantee.to_json() for guarantee in guarantees),
        records,
        tuple(tuple(None if cap_set is None else cap_set.to_json() for cap_set in price) for price in priced),
        accounts,
    )
    body = msgspec.json.encode(checkpoint)
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def resumed(content: bytes) -> View | None:
    """Return the view of a checkpoint, or None if it is damaged or written by another version."""
    # cached: a job opens its ledger a dozen times, and copying is five times faster than decoding
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
    guarantees = [Guarantee.from_json(value) for value in checkpoint.guarantees]
    prices: list[Price] = [
        tuple(None if value is None else CapSet.from_json(value) for value in price) for price in checkpoint.prices
    ]
    parameters = [json.loads(text) for text in checkpoint.parameters]
    records = [
        Record(**{
            **msgspec.structs.asdict(record),
            "parameters": parameters[record.parameters], "guarantee": guarantees[record.guarantee],
        })
        for record in checkpoint.records
    ]  # fmt: skip
    budget = PrivacyLoss.from_json(checkpoint.budget)
    accounts = None
    if checkpoint.accounts is not None:
        caps = tuple(CapSet.from_json(value) for value in checkpoint.accounts.caps)

        def account(of: _Account) -> Filter:
            charged = {key: prices[number] for key, number in of.charged.items()}
            return Filter(budget, caps, charged, prices[of.rest])

        closed = {period: account(filter_) for period, filter_ in checkpoint.accounts.closed.items()}
        accounts = PeriodFilters.resumed(account(checkpoint.accounts.to_come), closed)
    return View(
        budget=budget,
        records={record.release_id: record for record in records},
        accounts=accounts,
        **msgspec.to_builtins(checkpoint.plain),
    )


def due(after: int, last: int) -> bool:
    """Return whether to write a checkpoint after entry ``after``, if the last one was written after ``last``."""
    return after - last >= max(SPACING, after // 32)


def path_of(ledger_id: str) -> Path | None:
    """Return the path of the checkpoint of a ledger, or None if it cannot have one."""
    if not re.fullmatch(r"[0-9a-f]{32}", ledger_id):
        return None
    try:
        return state_home() / "checkpoints" / f"{ledger_id}.json"
    except DpdistError:  # no state folder: reported where one is required
        return None


def read(ledger_id: str) -> bytes | None:
    """Return the checkpoint of a ledger, or None; a file that others own or can write is ignored."""
    path = path_of(ledger_id)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())  # of the open file, not of the path
            return file.read() if status.st_uid == os.geteuid() and not status.st_mode & 0o022 else None
    except OSError:
        return None


def write(view: View) -> bool:
    """Replace the checkpoint of a ledger, under the lock of its witness; return False on failure."""
    path = path_of(view.ledger_id)
    if path is None:
        return False
    staging = path.with_suffix(".partial")
    try:
        content = encoded(view)
        make_private(path.parent)
        staging.unlink(missing_ok=True)
        with open(os.open(staging, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:  # noqa: PTH123 - a handle
            file.write(content)
        staging.replace(path)
    except (OSError, ValueError, OverflowError, RecursionError):
        with suppress(OSError):
            staging.unlink(missing_ok=True)
        return False
    return True
