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
from dpdist.ingest.readers.base import (
    CURE,
    Places,
    Rows,
    Source,
    Survey,
    attempt,
    changed,
    require_table,
    surveyed,
)
from dpdist.ingest.readers.genotypes import MISSING, NO_RULES, Genotypes, columns_of_site, no_pair, not_biallelic
from dpdist.ingest.readers.plink import missing
from dpdist.ingest.readers.transpose import turned, width_for

_LINE = 64 << 20
_MOST_SAMPLES = 1 << 21
"""Samples of a file at most: one line names them all, and names take more memory than they have letters."""
_FIXED = 9
_BAD = 255
_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
"""The empty block that ends every BGZF file."""


class Vcf(Source):
    """A .vcf or .vcf.gz file: how many copies of the alternative allele each sample has, 0, 1 or 2, phased or not."""

    takes = ("missing", "genotypes")

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
    def _facts(self) -> tuple[int, tuple[str, ...]]:
        """Return the number of samples, and the names of the variants."""
        attempt(self.path, self._require_end)
        samples, names = attempt(self.path, self._surveyed)
        if not names:
            raise DataError(f"{self.path} has no variants that are read by these rules, and so no columns.")
        require_table(self.path, (samples, len(names)), self._rules.dtype)
        return samples, names

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

    @property
    def _rules(self) -> Genotypes:
        return self.choices.genotypes or NO_RULES

    def _surveyed(self) -> tuple[int, tuple[str, ...]]:
        samples, names = 0, list[str]()
        for number, fields, rest in self._records():
            if not samples:
                samples = rest.count(b"\t") + 1
                if samples > _MOST_SAMPLES:
                    raise DataError(f"{self.path} names more than {_MOST_SAMPLES} samples. Split it by samples.")
                people = rest.split(b"\t")
                if len(set(people)) < samples:
                    raise DataError(f"{self.path} names a sample twice: one person would have several rows. {CURE}")
                continue
            names += self._columns_of(number, fields)
        return samples, tuple(names)

    def _columns_of(self, number: int, fields: list[bytes]) -> list[str]:
        """Return the names of the columns that a variant becomes, one for each alternative allele."""
        where, bp, name, one, other = (field.decode() for field in fields[:5])
        made = columns_of_site(where, bp, name, [one, *(() if other == "." else other.split(","))], self._rules)
        if made is None:
            raise not_biallelic(f"{self.path}, line {number}")
        known = fields[-1].split(b":")
        if made and self._rules.field == "DS" and b"DS" not in known:
            raise DataError(f"{self.path}, line {number} gives no dosages (DS). {CURE}")
        if made and self._rules.field != "DS" and known[0] != b"GT":
            raise DataError(f"{self.path}, line {number} gives no genotypes (GT) as the first of its fields. {CURE}")
        return made

    @property
    def names(self) -> tuple[str, ...]:
        return self._facts[1]

    def survey(self, keep: Places) -> Survey:  # noqa: ARG002 - all are counts, or all dosages
        return surveyed(self.path, self._facts[0], self._rules.dtype.name)

    def blocks(self, keep: Places) -> Generator[Rows]:
        # columns come as they are in the file, and are put in order when they are rows
        order = np.argsort(np.argsort(keep))
        shape = (self._facts[0], len(keep))
        for piece in turned(self.path, self.beside, self._columns(frozenset(keep)), shape, self._rules.dtype):
            yield piece if (np.diff(order) == 1).all() else piece[:, order]

    def _columns(self, keep: frozenset[int]) -> Iterator[Rows]:
        samples, names = self._facts
        rules, width = self._rules, width_for(samples, self._rules.dtype)
        kept = sorted(keep)
        known = rules.allele_frequencies([names[place] for place in kept])
        p = None if known is None else dict(zip(kept, known, strict=True))
        columns: list[Rows] = []
        place, records = 0, self._records()
        next(records)  # the header's
        for number, fields, rest in records:
            made = self._columns_of(number, fields)
            cells = None
            for allele, name in enumerate(made, 1):
                if place in keep:
                    cells = self._cells(number, fields, rest) if cells is None else cells
                    values, absent = self._values(number, cells, allele, len(made), name, filled=p is not None)
                    columns.append(rules.finished(values, absent, None if p is None else p[place]))
                place += 1
                if len(columns) == width:
                    yield np.stack(columns, axis=1)
                    columns = []
        if place != len(names):
            raise changed(self.path)
        if columns:
            yield np.stack(columns, axis=1)

    def _cells(self, number: int, fields: list[bytes], rest: bytes) -> list[bytes]:
        """Return the field of each sample that is read."""
        samples = self._facts[0]
        found = rest.count(b"\t") + 1  # before they are set apart: cells of a byte take dozens
        if found != samples:
            raise DataError(f"{self.path}, line {number} has {found} genotypes, not {samples}. {CURE}")
        cells = rest.split(b"\t")
        if b":" not in fields[-1]:
            return cells
        place = fields[-1].split(b":").index(b"DS" if self._rules.field == "DS" else b"GT")
        # fields at the end may be left out, and are missing then
        parts = (cell.split(b":", place + 1) for cell in cells)
        return [part[place] if len(part) > place else b"." for part in parts]

    def _values(
        self, number: int, cells: list[bytes], allele: int, alleles: int, name: str, *, filled: bool
    ) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Return the copies of an allele that each sample has, and of which that is missing."""
        if self._rules.field == "DS":
            values: Any = np.array([_dosage(cell, allele, alleles) for cell in cells])
            wrong, absent = np.isnan(values), values < 0
        else:
            copies = bytearray(_copies(cell, allele, alleles, self._rules.haploid) for cell in cells)
            values = np.frombuffer(copies, np.uint8)
            wrong, absent = values == _BAD, values == MISSING
        if wrong.any():
            where = f"{self.path}, line {number}, sample {int(np.argmax(wrong)) + 1}"
            if self._rules.field == "DS":
                raise DataError(f"{where}: the dosage is not a number of copies from 0 to 2. {CURE}")
            raise no_pair(where, self._rules, CURE)
        if absent.any() and not filled:
            if self.choices.missing is None:
                raise missing(self.path, f"sample {int(np.argmax(absent)) + 1}", name)
            values[absent] = self.choices.missing
        return values, absent


@lru_cache(maxsize=1 << 14)
def _copies(cell: bytes, allele: int, alleles: int, haploid: str | None) -> int:
    """Return how often an allele is in a genotype, :data:`MISSING`, or :data:`_BAD`."""
    parts = cell.replace(b"|", b"/").split(b"/")
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
