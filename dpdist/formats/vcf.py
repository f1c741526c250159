"""Readers of genotypes: VCF text, .vcf and .vcf.gz, and VCF Zarr, as bio2zarr and sgkit write it.

Rows are samples, columns are variants with two alleles. Other sites need rules
(:mod:`dpdist.formats.genotypes`). Files store one variant after another, and are transposed first.

The reader of text is strict, and parses only the field GT or DS. It does not use htslib, which prints text of damaged
files on standard error and ignores surplus cells, and whose Python readers crash on some lines. Text is not cut into
fragments: every line holds one cell of each row.

In VCF Zarr, ``call_genotype`` is (variants, samples, ploidy), -1 for a missing allele and -2 for none, as in a haploid
call among diploid ones. ``call_DS`` is (variants, samples).

References
----------
VCF Zarr specification 0.4; Czech et al. 2024.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import CURE, MOST_LABELS, Places, Rows, attempted, changed
from dpdist.core.ingest.readers.chunked import chunk_bytes, require_chunks
from dpdist.core.ingest.readers.source import Fragment, neighbours, width_for
from dpdist.core.ingest.readers.zarr_store import holds_values, opened, require_foreign
from dpdist.formats.calls import Calls, Facts, MaskedCounts, Site
from dpdist.formats.genotypes import MISSING, columns_of_site, invalid_genotype, not_biallelic, unique_names

_LINE = 64 << 20
_MOST_SAMPLES = 1 << 21
"""Most samples of a file: one line names them all, and names take more memory than letters."""
_FIXED = 9
_BAD = 255
_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
"""The empty block that ends every BGZF file."""

_CALLS, _DOSES = "call_genotype", "call_DS"
_TOGETHER = 4096  # variants read at once
_ABSENT, _NONE = -1, -2
"""Missing allele, and no allele."""


class Vcf(Calls):
    """A .vcf or .vcf.gz file: counts of the alternative allele, 0, 1 or 2, phased or not."""

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        packed = self.path.suffix.lower() == ".gz"
        with self.path.open("rb") as raw, gzip.open(raw) if packed else nullcontext(raw) as file:
            number = 0
            while line := file.readline(_LINE + 1):
                number += 1
                if len(line) > _LINE:
                    raise DataError(f"{self.path}, line {number} is longer than {_LINE >> 20} MiB. {CURE}")
                yield number, line.rstrip(b"\r\n")

    def _records(self) -> Iterator[tuple[int, list[bytes], bytes]]:
        """Yield line number, fixed fields and remaining text of the header and every variant."""
        started = False
        for number, line in self._lines():
            if not started and line.startswith(b"##"):
                continue
            fields = line.split(b"\t", _FIXED)
            if not started and line.startswith(b"#CHROM") and len(fields) in {_FIXED - 1, _FIXED}:
                raise DataError(
                    f"{self.path} lists sites without samples, so it has no rows. Ingest a file with genotypes."
                )
            if started is line.startswith(b"#") or len(fields) <= _FIXED:
                raise DataError(
                    f"{self.path}, line {number} is not valid VCF: header lines, one that begins with #CHROM and names "
                    f"the samples, and a line of tab-separated fields per variant. {CURE}"
                )
            started = True
            yield number, fields[:_FIXED], fields[_FIXED]

    def _require_end(self) -> None:
        """Refuse truncated bgzip files, which gzip would accept."""
        if self.path.suffix.lower() != ".gz":
            return
        with self.path.open("rb") as raw:
            blocked = raw.read(16)[12:14] == b"BC"
            size = self.path.stat().st_size
            raw.seek(max(0, size - len(_END)))
            if blocked and raw.read() != _END:
                raise DataError(f"{self.path} is truncated: its last block is missing. Restore the file.")

    @cached_property
    @attempted
    def facts(self) -> Facts:
        self._require_end()
        people, names, alleles = list[str](), list[str](), list[tuple[str, str]]()
        for number, fields, rest in self._records():
            if not people:
                if rest.count(b"\t") >= _MOST_SAMPLES:
                    raise DataError(f"{self.path} names more than {_MOST_SAMPLES} samples. Split it by samples.")
                people = [name.decode() for name in rest.split(b"\t")]
                continue
            columns = self._columns_of(number, fields)
            names += columns
            alleles += [(other, fields[3].decode()) for other in fields[4].decode().split(",")] if columns else []
        return Facts(len(people), {"sample": people}, unique_names(names, [counted for counted, _ in alleles]), alleles)

    def _columns_of(self, number: int, fields: list[bytes]) -> list[str]:
        """Return the column names of a variant, one per alternative allele."""
        contig, bp, name, reference, other = (field.decode() for field in fields[:5])
        alleles = [reference, *(() if other == "." else other.split(","))]
        columns = columns_of_site(contig, bp, name, alleles, self.rules)
        if columns is None:
            raise not_biallelic(f"{self.path}, line {number}")
        formats = fields[-1].split(b":")
        if columns and self.rules.field == "DS" and b"DS" not in formats:
            raise DataError(f"{self.path}, line {number} has no dosages (DS). {CURE}")
        if columns and self.rules.field != "DS" and formats[0] != b"GT":
            raise DataError(f"{self.path}, line {number} does not have genotypes (GT) as its first field. {CURE}")
        return columns

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        # columns come in file order, and are reordered as rows
        order = np.argsort(np.argsort(keep))
        for block in super().blocks(tuple(sorted(keep)), fragment):
            yield block if (np.diff(order) == 1).all() else block[:, order]

    def calls(self, keep: Places) -> Iterator[MaskedCounts]:
        kept, width, columns = frozenset(keep), max(1, self.width // 2), list[MaskedCounts]()  # two copies in memory
        column, records = 0, self._records()
        next(records)  # the header
        for number, fields, rest in records:
            names = self._columns_of(number, fields)
            cells = None
            for allele in range(1, len(names) + 1):
                if column in kept:
                    cells = self._cells(number, fields, rest) if cells is None else cells
                    columns.append(self._values(number, cells, allele, len(names)))
                column += 1
                if len(columns) == width:
                    yield _side_by_side(columns)
                    columns = []
        if column != len(self.facts.names):
            raise changed(self.path)
        if columns:
            yield _side_by_side(columns)

    def _cells(self, number: int, fields: list[bytes], rest: bytes) -> list[bytes]:
        samples = self.facts.samples
        count = rest.count(b"\t") + 1  # before the split: a cell of one byte takes dozens
        if count != samples:
            raise DataError(f"{self.path}, line {number} has {count} genotypes, not {samples}. {CURE}")
        cells = rest.split(b"\t")
        if b":" not in fields[-1]:
            return cells
        index = fields[-1].split(b":").index(b"DS" if self.rules.field == "DS" else b"GT")
        # omitted trailing fields are missing
        parts = (cell.split(b":", index + 1) for cell in cells)
        return [part[index] if len(part) > index else b"." for part in parts]

    def _values(self, number: int, cells: list[bytes], allele: int, alleles: int) -> MaskedCounts:
        if self.rules.field == "DS":
            values: Any = np.array([_dosage(cell, allele, alleles) for cell in cells])
            wrong, absent = np.isnan(values), values < 0
        else:
            copies = bytearray(_copies(cell, allele, alleles, self.rules.haploid) for cell in cells)
            values = np.frombuffer(copies, np.uint8)
            wrong, absent = values == _BAD, values == MISSING
        if wrong.any():
            where = f"{self.path}, line {number}, sample {int(np.argmax(wrong)) + 1}"
            raise invalid_genotype(where, self.rules, CURE)
        return values, absent


def _side_by_side(columns: Sequence[MaskedCounts]) -> MaskedCounts:
    values, absent = (np.stack(arrays, axis=1) for arrays in zip(*columns, strict=True))
    return values, absent


@lru_cache(maxsize=1 << 14)
def _copies(cell: bytes, allele: int, alleles: int, haploid: str | None) -> int:
    """Count an allele in a genotype; :data:`MISSING` or :data:`_BAD` otherwise."""
    # since version 4.4 a phase may precede the first allele
    parts = cell.replace(b"|", b"/").removeprefix(b"/").split(b"/")
    if len(parts) > 2 or not all(part == b"." or (part.isdigit() and len(part) < 4) for part in parts):
        return _BAD
    called = [int(part) for part in parts if part != b"."]
    if any(part > alleles for part in called):
        return _BAD
    if len(called) < len(parts):
        return MISSING
    if len(parts) == 1:
        return _BAD if haploid is None else (called[0] == allele) * (2 if haploid == "double" else 1)
    return called.count(allele)


def _dosage(cell: bytes, allele: int, alleles: int) -> float:
    """Return the dosage of an allele; -1 if missing, NaN if invalid."""
    if cell == b".":
        return -1.0
    parts = cell.split(b",")
    try:
        dosage = -1.0 if parts[allele - 1] == b"." else float(parts[allele - 1])
    except (ValueError, IndexError):
        return math.nan
    sound = len(parts) == alleles and (parts[allele - 1] == b"." or 0 <= dosage <= 2)
    return dosage if sound else math.nan


class VcfZarr(Calls):
    """A VCF Zarr store: counts of the alternative allele, 0, 1 or 2."""

    fragile = True

    @property
    def _array(self) -> str:
        return _DOSES if self.rules.field == "DS" else _CALLS

    @cached_property
    @attempted
    def facts(self) -> Facts:
        require_foreign(self.path, _CALLS)
        with opened(self.path) as root:
            if self._array not in root:
                raise DataError(f"{self.path} has no dosages (DS). {CURE}")
            values, alleles = root[self._array], root["variant_allele"]
            shape = values.shape
            if (values.ndim, values.dtype.kind) != ((2, "f") if self._array == _DOSES else (3, "i")):
                raise DataError(f"{self.path}: {self._array} does not have the shape and type of VCF Zarr. {CURE}")
            require_chunks(self.path, chunk_bytes(values))
            if self._array == _CALLS and shape[2] > 2:
                raise DataError(
                    f"{self.path} holds genotypes with more than two alleles. Only diploid ones are read: {CURE}"
                )
            if len(shape) < 2 or alleles.shape[0] != shape[0]:
                raise DataError(f"{self.path}: its arrays have different numbers of variants. {CURE}")
            people = self._people(root, shape[1])
            names, sites, pairs = list[str](), list[Site](), list[tuple[str, str]]()
            for variant, (contig, position, name, site_alleles) in enumerate(self._fixed(root, shape[0])):
                columns = columns_of_site(contig, position, name, site_alleles, self.rules)
                if columns is None:
                    raise not_biallelic(f"{self.path}, variant {variant} (counting from 0)")
                if len(columns) > 1 and self._array == _DOSES:
                    raise DataError(
                        f"{self.path} has one dosage per sample, but variant {variant} has more alleles. {CURE}"
                    )
                names += columns
                pairs += [(other, site_alleles[0]) for other in site_alleles[1:]] if columns else []
                sites += [Site(variant, allele, len(columns)) for allele in range(1, len(columns) + 1)]
        if not holds_values(self.path, self._array):
            raise DataError(f"{self.path} declares genotypes without stored values. Restore it.")
        return Facts(shape[1], people, unique_names(names, [counted for counted, _ in pairs]), pairs, sites)

    def _people(self, root: Any, samples: int) -> dict[str, list[str]]:
        names = root.get("sample_id")
        if names is None:
            return {}
        if names.shape != (samples,):
            raise DataError(f"{self.path} has different numbers of sample names and genotypes. {CURE}")
        return {"sample": _texts(names, 0, samples)}

    def _fixed(self, root: Any, variants: int) -> Iterator[tuple[str, str, str, list[str]]]:
        """Yield contig, position, name and alleles of each variant."""
        contigs = _texts(root["contig_id"], 0, root["contig_id"].shape[0])
        marks = {name: root[f"variant_{name}"] for name in ("contig", "position", "allele")}
        ids, size = root.get("variant_id"), 0
        for array in (*marks.values(), *(() if ids is None else (ids,))):
            if array.shape[0] != variants:
                raise DataError(f"{self.path}: its arrays have different numbers of variants. {CURE}")
            require_chunks(self.path, chunk_bytes(array))
        for start in range(0, variants, _TOGETHER):
            stop = min(start + _TOGETHER, variants)
            contig_indexes, positions, texts = (np.asarray(array[start:stop]).tolist() for array in marks.values())
            alleles = [[_text(allele) for allele in site_texts] for site_texts in texts]
            named = ["."] * (stop - start) if ids is None else _texts(ids, start, stop)
            for contig, position, name, site_alleles in zip(contig_indexes, positions, named, alleles, strict=True):
                size += len(name) + sum(map(len, site_alleles))
                if size > MOST_LABELS:
                    raise DataError(
                        f"{self.path} has variant names of more than {MOST_LABELS >> 20} MiB. Split it by variants."
                    )
                yield contigs[contig], str(position), name or ".", [site_alleles[0], *filter(None, site_alleles[1:])]

    @cached_property
    @attempted
    def unpacked(self) -> int:
        with opened(self.path) as root:
            return chunk_bytes(root[self._array])

    def calls(self, keep: Places) -> Iterator[MaskedCounts]:
        sites, width = self.facts.sites, width_for(self.facts.samples, np.dtype(np.float64))
        with opened(self.path) as root:
            values = root[self._array]
            for run in neighbours(keep, width):
                columns = keep[run]
                start = sites[columns[0]].variant
                block = np.asarray(values[start : sites[columns[-1]].variant + 1])
                counted = [self._counts(block[sites[column].variant - start], sites[column]) for column in columns]
                yield _side_by_side(counted)

    def _counts(self, values: npt.NDArray[Any], site: Site) -> MaskedCounts:
        if self.rules.field == "DS":
            absent = np.isnan(values)
            wrong = ~absent & ~((values >= 0) & (values <= 2))
            counts = np.where(absent, 0, values)
        else:
            alleles = (values != _NONE).sum(axis=1)
            absent = (values == _ABSENT).any(axis=1) | (alleles == 0)
            lone = (alleles == 1) & ~absent
            wrong = ((values > site.columns) | (values < _NONE)).any(axis=1)
            wrong |= lone & (self.rules.haploid is None)
            counts = (values == site.allele).sum(axis=1)
            counts[lone] *= 2 if self.rules.haploid == "double" else 1
        if wrong.any():
            where = f"{self.path}, variant {site.variant}, sample {int(np.argmax(wrong))} (counting from 0)"
            raise invalid_genotype(where, self.rules, CURE)
        return counts, absent


def _texts(array: Any, start: int, stop: int) -> list[str]:
    return [_text(value) for value in np.asarray(array[start:stop]).tolist()]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
