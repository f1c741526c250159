"""Reader of genotypes in VCF text, .vcf and .vcf.gz: rows are samples, columns biallelic variants.

A strict reader of the one field that is needed, GT. It is not htslib, which repeats words of a damaged file on standard
error and ignores surplus cells; a line of junk can crash its Python readers. The file stores variant after variant, so
it is transposed first. It is never cut by bytes: a row has one cell in each line, and no range of bytes holds whole
rows. On the names of the columns see :mod:`dpdist.ingest.readers.plink`.
"""

from __future__ import annotations

import gzip
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

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
from dpdist.ingest.readers.plink import missing
from dpdist.ingest.readers.transpose import turned, width_for

_LINE = 64 << 20
_MOST_SAMPLES = 1 << 21
"""Samples of a file at most: one line names them all, and names take more memory than they have letters."""
_DTYPE = np.dtype(np.uint8)
_FIXED = 9
_MISSING, _BAD = 254, 255
_COUNTS = {b".": _MISSING} | {
    f"{one}{mark}{other}".encode(): _MISSING if "." in {one, other} else int(one) + int(other)
    for one in "01."
    for other in "01."
    for mark in "/|"
}
_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
"""The empty block that ends every BGZF file."""


class Vcf(Source):
    """A .vcf or .vcf.gz file: how many copies of the alternative allele each sample has, 0, 1 or 2, phased or not."""

    takes = ("missing",)

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
        require_table(self.path, (samples, len(names)), _DTYPE)
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

    def _surveyed(self) -> tuple[int, tuple[str, ...]]:
        samples, names = 0, []
        for number, (where, bp, name, one, other, _, _, _, form), rest in self._records():
            if not samples:
                samples = rest.count(b"\t") + 1
                if samples > _MOST_SAMPLES:
                    raise DataError(f"{self.path} names more than {_MOST_SAMPLES} samples. Split it by samples.")
                people = rest.split(b"\t")
                if len(set(people)) < samples:
                    raise DataError(f"{self.path} names a sample twice: one person would have several rows. {CURE}")
                continue
            if b"," in other or other == b".":
                raise DataError(
                    f"{self.path}, line {number}: not a site of two alleles. Keep those alone, as with: "
                    "bcftools view -m2 -M2"
                )
            if form.split(b":", 1)[0] != b"GT":
                raise DataError(
                    f"{self.path}, line {number} gives no genotypes (GT) as the first of its fields. {CURE}"
                )
            label = name if name != b"." else b":".join((where, bp, one, other))
            names.append(label.decode())
        return samples, tuple(names)

    @property
    def names(self) -> tuple[str, ...]:
        return self._facts[1]

    def survey(self, keep: Places) -> Survey:  # noqa: ARG002 - all are counts
        return surveyed(self.path, self._facts[0], _DTYPE.name)

    def blocks(self, keep: Places) -> Generator[Rows]:
        # columns come as they are in the file, and are put in order when they are rows
        order = np.argsort(np.argsort(keep))
        shape = (self._facts[0], len(keep))
        for piece in turned(self.path, self.beside, self._columns(frozenset(keep)), shape, _DTYPE):
            yield piece if (np.diff(order) == 1).all() else piece[:, order]

    def _columns(self, keep: frozenset[int]) -> Iterator[Rows]:
        samples, names = self._facts
        width = width_for(samples, _DTYPE)
        columns: list[Rows] = []
        place = -2
        for place, (number, fields, rest) in enumerate(self._records(), -1):
            if place in keep:
                columns.append(self._counts(number, fields, rest, names[place]))
            if len(columns) == width:
                yield np.stack(columns, axis=1)
                columns = []
        if place + 1 != len(names):
            raise changed(self.path)
        if columns:
            yield np.stack(columns, axis=1)

    def _counts(self, number: int, fields: list[bytes], rest: bytes, name: str) -> Rows:
        samples = self._facts[0]
        found = rest.count(b"\t") + 1  # before they are set apart: cells of a byte take dozens
        if found != samples:
            raise DataError(f"{self.path}, line {number} has {found} genotypes, not {samples}. {CURE}")
        cells: Any = rest.split(b"\t")
        if b":" in fields[-1]:
            cells = (cell.split(b":", 1)[0] for cell in cells)
        counts = np.frombuffer(bytearray(_COUNTS.get(cell, _BAD) for cell in cells), dtype=_DTYPE)
        if (counts == _BAD).any():
            sample = int(np.argmax(counts == _BAD)) + 1
            raise DataError(
                f"{self.path}, line {number}, sample {sample}: the genotype is not a pair of the alleles 0 and 1. Keep "
                f"diploid genotypes alone. {CURE}"
            )
        if (counts == _MISSING).any():
            if self.choices.missing is None:
                raise missing(self.path, f"sample {int(np.argmax(counts == _MISSING)) + 1}", name)
            counts[counts == _MISSING] = self.choices.missing
        return counts
