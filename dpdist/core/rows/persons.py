"""Counts the periods in which each person had rows, in a private register, and excludes rows above the limit.

The file ``persons`` in the folder of a period covers all periods up to it. For each person it has the digest of a
number or name, and the number of periods with kept rows of that person. A digest is 16 bytes of BLAKE2b under a key
derived from the key of the folder, so that only its holder can test a person; a collision among N persons has
probability at most N² 2^-129. The file begins with an HMAC-SHA256, under the same key, of its content, the seal of its
period, and whether persons are identified by names. A period that identifies them differently would count each of them
anew, and is refused.

**Counted once.** The register of a period is computed from that of the last closed period and the new rows, before the
ledger records the seal of the new period. So it takes effect in the transaction that closes the period. An interrupted
period is computed again from the same register, any number of times; the folder is locked. If a register is missing,
altered, or belongs to other rows, all further periods are refused: it is never started anew.

**Theorem.** Let two series of sources differ in the rows of one person. Then the kept rows differ only in rows of this
person, in at most K periods. *Proof.* Whether rows are excluded depends on the number of earlier periods with rows of
the same person. For all other persons that number is equal in both series, and for this person it is limited to K. ∎

A period reads the previous register, writes its own, and removes the one before: 18 bytes for each person who ever had
rows, and about four times as much memory.
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

from dpdist.core.errors import DataError
from dpdist.core.rows.chunks import key_of
from dpdist.core.rows.periods import PeriodicTable
from dpdist.core.rows.units import Digests, KeptRows, Numbers, Unit, named_units
from dpdist.core.storage.atomic import MOST_AT_ONCE
from dpdist.core.text import canonical, visible

_FILE = "persons"
_TAG = 32
_RECORD = np.dtype([("person", "S16"), ("periods", "<u2")])
_MANY = 1 << 20
"""Digests collected before duplicates are dropped."""


@dataclass
class Watch:
    """Counts the persons of one new period, and excludes rows of those who reached the limit of periods."""

    unit: Unit
    key: bytes
    earlier: npt.NDArray[Any]
    named: bool | None = None
    excluded: Sequence[str] = ()
    _new: Digests = field(default_factory=lambda: np.empty(0, dtype="S16"))
    _left_out: KeptRows | None = None

    @classmethod
    def of(cls, table: PeriodicTable, closed: Mapping[str, str], excluded: Sequence[str] = ()) -> Watch | None:
        """Return the watch of the next period of a table; None if each row is a unit."""
        if table.unit is None:
            return None
        names = list(closed)
        register, named = _read(table, names[-1], closed[names[-1]]) if names else (np.empty(0, dtype=_RECORD), None)
        for old in names[-2:-1]:
            address = table.rows_of(old).address(_FILE)
            if isinstance(address, Path):  # periods are stored in folders
                address.unlink(missing_ok=True)
        return cls(table.unit, _key(table), register, named, excluded)

    def watched(self, units: Iterable[Numbers | Digests], rows: int, names: int = 0) -> Iterator[Digests]:
        """Yield the digests of the persons of consecutive rows, and record excluded rows."""
        if self.named not in {None, names > 0}:
            now, before = ("names", "whole numbers") if names else ("whole numbers", "names")
            raise DataError(
                f"{self.unit.column} identifies persons by {now} here, and by {before} in earlier periods, so each "
                f"would be counted again. Identify them by {before}."
            )
        excluded = self._excluded(names)
        enough = self.earlier["person"][self.earlier["periods"] >= (self.unit.max_periods or 1)]
        left_out, row, pending = KeptRows(rows), 0, [self._new]
        for batch in units:
            unique, index = np.unique(batch, return_inverse=True)
            persons = np.asarray(unique, dtype="S16") if names else digests(unique.astype(np.int64), self.key)
            full = _among(persons, enough) | _among(persons, excluded)
            pending.append(persons[~full])
            if sum(persons.size for persons in pending) > _MANY:
                pending = [np.unique(np.concatenate(pending))]
            left_out.add(row + np.flatnonzero(full[index]))
            row += batch.size
            yield persons[index]
        self._new, self._left_out = np.unique(np.concatenate(pending)), left_out
        if self._new.size:
            self.named = names > 0

    def _excluded(self, names: int) -> Digests:
        """Return the sorted digests of excluded persons."""
        try:
            if not names:
                numbers = np.array(sorted({int(visible(line)) for line in self.excluded}), dtype=np.int64)
                return np.unique(digests(numbers, self.key))
            lines = [[line] if names == 1 else next(csv.reader([line], strict=True)) for line in self.excluded]
            if not lines:
                return np.empty(0, dtype="S16")
            parts = list(zip(*lines, strict=True))
        except (ValueError, OverflowError, csv.Error):
            parts = []
        if len(parts) != names or not names:
            line_form = "one name" if names == 1 else f"{names} comma-separated names" if names else "one whole number"
            raise DataError(
                f"The list of excluded persons must have {line_form} on each line, like the privacy unit "
                f"{self.unit.column}. Correct it: no period is ingested until then."
            )
        return np.unique(np.ascontiguousarray(named_units(parts, self.key)).view("S16")[:, 0])

    def leave_out(self, kept: KeptRows) -> None:
        """Remove excluded rows from the kept ones, after all rows were watched."""
        if self._left_out is not None:
            kept.leave_out(self._left_out)

    def register(self) -> npt.NDArray[Any]:
        """Return the register up to this period, sorted by person."""
        index = np.searchsorted(self.earlier["person"], self._new)
        old = _among(self._new, self.earlier["person"])
        content = self.earlier.copy()
        content["periods"][index[old]] += 1
        fresh = np.empty(int((~old).sum()), dtype=_RECORD)
        fresh["person"], fresh["periods"] = self._new[~old], 1
        content = np.concatenate([content, fresh])
        return content[np.argsort(content["person"], kind="stable")]

    def write(self, table: PeriodicTable, period: str, seal: str) -> None:
        """Write the register up to this period, next to its rows, before the period is closed."""
        content = self.register().tobytes()
        if _TAG + len(content) > MOST_AT_ONCE:
            raise DataError(
                f"The register of {table.store} has room for {MOST_AT_ONCE // _RECORD.itemsize} persons, and {period} "
                "exceeds it. Start another folder of periods."
            )
        tag = _tag(table, period, seal, content, named=bool(self.named))
        table.rows_of(period).replace(_FILE, tag + content, "rows", private=True)


def digests(numbers: Numbers, key: bytes) -> Digests:
    """Return the digest of each number, shape (r,)."""
    content = np.ascontiguousarray(numbers, dtype="<i8").tobytes()
    values = [
        hashlib.blake2b(content[start : start + 8], digest_size=16, key=key).digest()
        for start in range(0, len(content), 8)
    ]
    return np.frombuffer(b"".join(values), dtype="S16")


def _among(persons: Digests, register: Digests) -> npt.NDArray[np.bool_]:
    """Return a mask of the persons that are in a sorted register."""
    index = np.searchsorted(register, persons)
    present = index < register.size
    present[present] = register[index[present]] == persons[present]
    return present


def _key(table: PeriodicTable) -> bytes:
    return hmac.digest(key_of(table.store), b"dpdist persons", hashlib.sha256)


def _tag(table: PeriodicTable, period: str, seal: str, content: bytes, *, named: bool) -> bytes:
    unit = None if table.unit is None else table.unit.to_json()
    header = canonical([period, seal, unit, *(["names"] if named else [])]).encode()
    return hmac.digest(_key(table), header + b"\n" + content, hashlib.sha256)


def _read(table: PeriodicTable, period: str, seal: str) -> tuple[npt.NDArray[Any], bool | None]:
    """Return the register up to a period, and whether it identifies persons by names; None if it is empty."""
    stored = table.rows_of(period)
    try:
        data = stored.get(_FILE)
    except OSError:
        data = b""
    tag, content = data[:_TAG], data[_TAG:]
    for named in (False, True):
        if hmac.compare_digest(tag, _tag(table, period, seal, content, named=named)):
            register = np.frombuffer(content, dtype=_RECORD)
            return register, named if register.size else None
    raise DataError(
        f"{stored.address(_FILE)} is missing or differs from the file written when its period was closed. It counts "
        "the periods of each person: restore it from a backup, as no further period can be closed without it."
    )


def read_excluded(path: Path) -> tuple[str, ...]:
    """Read a private list of excluded persons, one per line, without surrounding spaces."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(
            f"The list of excluded persons {path} cannot be read: {error.strerror}. Correct its path or permissions."
        ) from None
    except ValueError:
        raise DataError(f"The list of excluded persons {path} is not UTF-8 text. Correct it.") from None
    return tuple(line.strip() for line in lines if line.strip())
