"""In how many periods each person had rows: a private register next to the rows, and whose rows it leaves out.

``persons`` in the folder of a period is about all periods up to it: for every person the digest of a number or name,
and the number of periods in which rows of that person were kept. A digest is 16 bytes of BLAKE2b under a key that
follows from the key of the folder, so that only its holder can test a person; two of N persons collide with probability
N² 2^-129 at most. The file begins with HMAC-SHA256, under the same key, of itself, the seal of its period, and whether
persons are called by names: a period that calls them otherwise would count each anew, and is refused.

**Counted once.** The register of a period is made from that of the last closed period, with its rows and before its
seal is closed in the ledger. So it counts from the very transaction that closes the period. What died before that is
made anew from the same register, however often; the folder is locked. A register that is missing, altered, or of other
rows is refused, and with it every further period: it is never begun anew.

**Theorem.** Let two series of sources differ in the rows of one person. Then kept rows differ in those of this person
only, in at most K periods. *Proof.* Whether rows of a period are left out depends on how many earlier periods had rows
of the same person. Of everybody else that number is the same, and of the person it is counted. ∎

A period reads the register before it, writes its own, and removes the one before that: 18 bytes for everybody who ever
had rows, and about four times as much memory.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist._util.text import canonical
from dpdist.errors import DataError
from dpdist.rows.chunks import key_of
from dpdist.rows.periods import PeriodicTable
from dpdist.rows.units import Digests, KeptRows, Numbers, Unit, named_units
from dpdist.storage.store import MOST_AT_ONCE

_FILE = "persons"
_TAG = 32
_RECORD = np.dtype([("person", "S16"), ("periods", "<u2")])
_MANY = 1 << 20
"""Digests that are gathered before those that are there twice are dropped."""


@dataclass
class Watch:
    """Looks at whose the rows of one new period are, and leaves out those of persons who were in enough periods."""

    unit: Unit
    key: bytes
    known: npt.NDArray[Any]
    named: bool | None = None
    excluded: Sequence[str] = ()
    _new: Digests = field(default_factory=lambda: np.empty(0, dtype="S16"))
    _left_out: KeptRows | None = None

    @classmethod
    def of(cls, table: PeriodicTable, closed: Mapping[str, str], excluded: Sequence[str] = ()) -> Watch | None:
        """Return what watches the next period of a table; None where every row counts alone."""
        if table.unit is None:
            return None
        names = list(closed)
        known, named = _read(table, names[-1], closed[names[-1]]) if names else (np.empty(0, dtype=_RECORD), None)
        for old in names[-2:-1]:
            address = table.rows_of(old).address(_FILE)
            if isinstance(address, Path):  # periods stand in folders
                address.unlink(missing_ok=True)
        return cls(table.unit, _key(table), known, named, excluded)

    def watched(self, units: Iterable[Numbers | Digests], rows: int, names: int = 0) -> Iterator[Digests]:
        """Yield the digest of the person of every row, in order, and note whose rows are left out."""
        if self.named not in {None, names > 0}:
            now, before = ("names", "whole numbers") if names else ("whole numbers", "names")
            raise DataError(
                f"{self.unit.column} calls persons by {now} here, and by {before} in earlier periods: each would be "
                f"counted anew. Call them by {before}."
            )
        excluded = self._excluded(names)
        enough = self.known["person"][self.known["periods"] >= (self.unit.max_periods or 1)]
        out, row, pending = KeptRows(rows), 0, [self._new]
        for piece in units:
            found, place = np.unique(piece, return_inverse=True)
            persons = np.asarray(found, dtype="S16") if names else digests(found.astype(np.int64), self.key)
            full = _among(persons, enough) | _among(persons, excluded)
            pending.append(persons[~full])
            if sum(each.size for each in pending) > _MANY:
                pending = [np.unique(np.concatenate(pending))]
            out.add(row + np.flatnonzero(full[place]))
            row += piece.size
            yield persons[place]
        self._new, self._left_out = np.unique(np.concatenate(pending)), out
        if self._new.size:
            self.named = names > 0

    def _excluded(self, names: int) -> Digests:
        """Return the digests of persons who are left out, in order."""
        try:
            if not names:
                numbers = np.array(sorted({int(line) for line in self.excluded}), dtype=np.int64)
                return np.unique(digests(numbers, self.key))
            lines = [[line] if names == 1 else next(csv.reader([line], strict=True)) for line in self.excluded]
            if not lines:
                return np.empty(0, dtype="S16")
            parts = list(zip(*lines, strict=True))
        except (ValueError, OverflowError, csv.Error):
            parts = []
        if len(parts) != names or not names:
            one = "one name" if names == 1 else f"{names} names, with commas between," if names else "one whole number"
            raise DataError(
                f"The list of excluded persons must have {one} on each line, as the privacy unit {self.unit.column} "
                "has. Mend it: no period is taken in meanwhile."
            )
        return np.unique(np.ascontiguousarray(named_units(parts, self.key)).view("S16")[:, 0])

    def leave_out(self, kept: KeptRows) -> None:
        """Take the rows that are left out from those that are kept; after all were watched."""
        if self._left_out is not None:
            kept.leave_out(self._left_out)

    def register(self) -> npt.NDArray[Any]:
        """Return the register up to this period, persons in order."""
        place = np.searchsorted(self.known["person"], self._new)
        old = _among(self._new, self.known["person"])
        content = self.known.copy()
        content["periods"][place[old]] += 1
        fresh = np.empty(int((~old).sum()), dtype=_RECORD)
        fresh["person"], fresh["periods"] = self._new[~old], 1
        content = np.concatenate([content, fresh])
        return content[np.argsort(content["person"], kind="stable")]

    def write(self, table: PeriodicTable, period: str, seal: str) -> None:
        """Write the register up to this period, beside its rows, which are not closed yet."""
        content = self.register().tobytes()
        if _TAG + len(content) > MOST_AT_ONCE:
            raise DataError(
                f"{table.store} has a register of {MOST_AT_ONCE // _RECORD.itemsize} persons at most, and the period "
                f"{period} brings more. Begin another folder of periods."
            )
        tag = _tag(table, period, seal, content, named=bool(self.named))
        table.rows_of(period).replace(_FILE, tag + content, "rows", private=True)


def digests(numbers: Numbers, key: bytes) -> Digests:
    """Return the digest of every person, shape (r,), as the numbers."""
    whole = np.ascontiguousarray(numbers, dtype="<i8").tobytes()
    made = [hashlib.blake2b(whole[at : at + 8], digest_size=16, key=key).digest() for at in range(0, len(whole), 8)]
    return np.frombuffer(b"".join(made), dtype="S16")


def _among(persons: Digests, known: Digests) -> npt.NDArray[np.bool_]:
    """Say which are among some that are in order."""
    place = np.searchsorted(known, persons)
    found = place < known.size
    found[found] = known[place[found]] == persons[found]
    return found


def _key(table: PeriodicTable) -> bytes:
    return hmac.digest(key_of(table.store), b"dpdist persons", hashlib.sha256)


def _tag(table: PeriodicTable, period: str, seal: str, content: bytes, *, named: bool) -> bytes:
    unit = None if table.unit is None else table.unit.to_json()
    about = canonical([period, seal, unit, *(["names"] if named else [])]).encode()
    return hmac.digest(_key(table), about + b"\n" + content, hashlib.sha256)


def _read(table: PeriodicTable, period: str, seal: str) -> tuple[npt.NDArray[Any], bool | None]:
    """Return the register up to a period, and whether it calls persons by names; None: nobody stands in it."""
    stored = table.rows_of(period)
    try:
        found = stored.get(_FILE)
    except OSError:
        found = b""
    tag, content = found[:_TAG], found[_TAG:]
    for named in (False, True):
        if hmac.compare_digest(tag, _tag(table, period, seal, content, named=named)):
            known = np.frombuffer(content, dtype=_RECORD)
            return known, named if known.size else None
    raise DataError(
        f"{stored.address(_FILE)} is missing or not what was written when its period was closed: it tells in how "
        "many periods each person had rows. Restore it from a copy: without it no further period can be closed."
    )


def read_excluded(path: Path) -> tuple[str, ...]:
    """Read a private list of persons whose rows are left out, one a line; spaces around it do not count."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"The list of excluded persons {path} cannot be read: {error.strerror}. Restore it.") from None
    except ValueError:
        raise DataError(f"The list of excluded persons {path} is no text in UTF-8. Mend it.") from None
    return tuple(line.strip() for line in lines if line.strip())
