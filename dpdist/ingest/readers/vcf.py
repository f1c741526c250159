"""Reader of genotypes in VCF text, .vcf and .vcf.gz: rows are samples, columns variants of two alleles.

What else a site may be is read by rules (:mod:`dpdist.ingest.readers.genotypes`), and refused without.

A strict reader of the one field that is needed, GT or DS. It is not htslib, which repeats words of a damaged file on
standard error and ignores surplus cells; a line of junk can crash its Python readers. The file stores variant after
variant, so it is transposed first. It is never cut by bytes: a row has one cell in each line, and no range of bytes
holds whole rows. On the names of the columns see :mod:`dpdist.ingest.readers.plink`.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError
from dpdist.ingest.readers.base import CURE, Fragment, Places, Rows, attempt, changed
from dpdist.ingest.readers.calls import Calls, Facts
from dpdist.ingest.readers.genotypes import MISSING, columns_of_site, no_pair, not_biallelic, told_apart

_LINE = 64 << 20
_MOST_SAMPLES = 1 << 21
"""Samples of a file at most: one line names them all, and names take more memory than they have letters."""
_FIXED = 9
_BAD = 255
_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
"""The empty block that ends every BGZF file."""


class Vcf(Calls):
    """A .vcf or .vcf.gz file: how many copies of the alternative allele each sample has, 0, 1 or 2, phased or not."""

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with self.path.open("rb") as raw:
            if self.path.suffix.lower() == ".gz":
                with gzip.open(raw) as file:
                    yield file
            else:
                yield raw

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self._opened() as file:
            number = 0
            while line := file.readline(_LINE + 1):
                number += 1
                if len(line) > _LINE:
                    raise DataError(f"{self.path}, line {number} is longer than {_LINE >> 20} MiB. {CURE}")
                yield number, line.rstrip(b"\r\n")

    def _records(self) -> Iterator[tuple[int, list[bytes], bytes]]:
        """Yield the number of the line, its fixed fields and the rest of every variant; first of the header's."""
        started = False
        for number, line in self._lines():
            if not started and line.startswith(b"##"):
                continue
            fields = line.split(b"\t", _FIXED)
            if not started and line.startswith(b"#CHROM") and len(fields) in {_FIXED - 1, _FIXED}:
                raise DataError(f"{self.path} names no samples: it lists sites, and there is no row to take from it.")
            if started is line.startswith(b"#") or len(fields) <= _FIXED:
                raise DataError(
                    f"{self.path}, line {number} is not what VCF text has there: header lines, one that begins with "
                    f"#CHROM and names the samples, and a line of tab-separated fields for every variant. {CURE}"
                )
            started = True
            yield number, fields[:_FIXED], fields[_FIXED]

    @cached_property
    def facts(self) -> Facts:
        attempt(self.path, self._require_end)
        return attempt(self.path, self._surveyed)

    def _require_end(self) -> None:
        """Refuse what bgzip wrote and something cut: gzip itself would take it for complete."""
        if self.path.suffix.lower() != ".gz":
            return
        with self.path.open("rb") as raw:
            blocked = raw.read(16)[12:14] == b"BC"
            size = self.path.stat().st_size
            raw.seek(max(0, size - len(_END)))
            if blocked and raw.read() != _END:
                raise DataError(f"{self.path} is truncated: the block that ends it is not there. Restore the file.")

    def _surveyed(self) -> Facts:
        people, names, alleles = list[str](), list[str](), list[tuple[str, str]]()
        for number, fields, rest in self._records():
            if not people:
                if rest.count(b"\t") >= _MOST_SAMPLES:
                    raise DataError(f"{self.path} names more than {_MOST_SAMPLES} samples. Split it by samples.")
                people = [name.decode() for name in rest.split(b"\t")]
                continue
            made = self._columns_of(number, fields)
            names += made
            alleles += [(other, fields[3].decode()) for other in fields[4].decode().split(",")] if made else []
        return Facts(len(people), {"sample": people}, told_apart(names, [counted for counted, _ in alleles]), alleles)

    def _columns_of(self, number: int, fields: list[bytes]) -> list[str]:
        """Return the names of the columns that a variant becomes, one for each alternative allele."""
        where, bp, name, one, other = (field.decode() for field in fields[:5])
        made = columns_of_site(where, bp, name, [one, *(() if other == "." else other.split(","))], self.rules)
        if made is None:
            raise not_biallelic(f"{self.path}, line {number}")
        known = fields[-1].split(b":")
        if made and self.rules.field == "DS" and b"DS" not in known:
            raise DataError(f"{self.path}, line {number} gives no dosages (DS). {CURE}")
        if made and self.rules.field != "DS" and known[0] != b"GT":
            raise DataError(f"{self.path}, line {number} gives no genotypes (GT) as the first of its fields. {CURE}")
        return made

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        # columns come as they are in the file, and are put in order when they are rows
        order = np.argsort(np.argsort(keep))
        for piece in super().blocks(keep, fragment):
            yield piece if (np.diff(order) == 1).all() else piece[:, order]

    def columns(self, keep: Places) -> Iterator[Rows]:
        kept, width = sorted(keep), self.width()
        known = self.frequencies(tuple(kept))
        p = {} if known is None else dict(zip(kept, known, strict=True))
        columns: list[Rows] = []
        wanted = frozenset(keep)
        place, records = 0, self._records()
        next(records)  # the header's
        for number, fields, rest in records:
            made = self._columns_of(number, fields)
            cells = None
            for allele in range(1, len(made) + 1):
                if place in wanted:
                    cells = self._cells(number, fields, rest) if cells is None else cells
                    values, absent = self._values(number, cells, allele, len(made))
                    one = np.array([p[place]]) if p else None
                    columns.append(self.finished(values[:, None], absent[:, None], (place,), one))
                place += 1
                if len(columns) == width:
                    yield np.concatenate(columns, axis=1)
                    columns = []
        if place != len(self.facts.names):
            raise changed(self.path)
        if columns:
            yield np.concatenate(columns, axis=1)

    def _cells(self, number: int, fields: list[bytes], rest: bytes) -> list[bytes]:
        """Return the field of each sample that is read."""
        samples = self.facts.samples
        found = rest.count(b"\t") + 1  # before they are set apart: cells of a byte take dozens
        if found != samples:
            raise DataError(f"{self.path}, line {number} has {found} genotypes, not {samples}. {CURE}")
        cells = rest.split(b"\t")
        if b":" not in fields[-1]:
            return cells
        place = fields[-1].split(b":").index(b"DS" if self.rules.field == "DS" else b"GT")
        # fields at the end may be left out, and are missing then
        parts = (cell.split(b":", place + 1) for cell in cells)
        return [part[place] if len(part) > place else b"." for part in parts]

    def _values(
        self, number: int, cells: list[bytes], allele: int, alleles: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the copies of an allele that each sample has, and of which that is missing."""
        if self.rules.field == "DS":
            values: Any = np.array([_dosage(cell, allele, alleles) for cell in cells])
            wrong, absent = np.isnan(values), values < 0
        else:
            copies = bytearray(_copies(cell, allele, alleles, self.rules.haploid) for cell in cells)
            values = np.frombuffer(copies, np.uint8)
            wrong, absent = values == _BAD, values == MISSING
        if wrong.any():
            where = f"{self.path}, line {number}, sample {int(np.argmax(wrong)) + 1}"
            if self.rules.field == "DS":
                raise DataError(f"{where}: the dosage is not a number of copies from 0 to 2. {CURE}")
            raise no_pair(where, self.rules, CURE)
        return values, absent


@lru_cache(maxsize=1 << 14)
def _copies(cell: bytes, allele: int, alleles: int, haploid: str | None) -> int:
    """Return how often an allele is in a genotype, :data:`MISSING`, or :data:`_BAD`."""
    # from version 4.4 on a phase may stand before the first allele
    parts = cell.replace(b"|", b"/").removeprefix(b"/").split(b"/")
    if len(parts) > 2 or not all(part == b"." or (part.isdigit() and len(part) < 4) for part in parts):
        return _BAD
    known = [int(part) for part in parts if part != b"."]
    if any(part > alleles for part in known):
        return _BAD
    if len(known) < len(parts):
        return MISSING
    if len(parts) == 1:
        return _BAD if haploid is None else (known[0] == allele) * (2 if haploid == "double" else 1)
    return known.count(allele)


def _dosage(cell: bytes, allele: int, alleles: int) -> float:
    """Return the expected copies of an allele; -1 where they are missing, NaN where they make no sense."""
    if cell == b".":
        return -1.0
    parts = cell.split(b",")
    try:
        found = -1.0 if parts[allele - 1] == b"." else float(parts[allele - 1])
    except (ValueError, IndexError):
        return math.nan
    sound = len(parts) == alleles and (parts[allele - 1] == b"." or 0 <= found <= 2)
    return found if sound else math.nan
