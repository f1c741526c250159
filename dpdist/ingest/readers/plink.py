"""Readers of PLINK genotypes: .bed with .bim and .fam, and of PLINK 2: .pgen with .pvar and .psam.

The texts are read here, and the genotypes by bed-reader and pgenlib. pgenlib is native code: another process asks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist._util.text import listed
from dpdist.errors import DataError, UsageError
from dpdist.ingest.readers.base import CURE, MOST_LABELS, Places, Rows, attempt, require_columns, required
from dpdist.ingest.readers.calls import FID_IID, Calls, Facts, Site
from dpdist.ingest.readers.genotypes import Genotypes, columns_of_site, not_biallelic, told_apart
from dpdist.naming import parameter

_MISSING = -127
"""What bed-reader gives where a genotype is missing, and pgenlib."""
_ABSENT = -9
_FIELDS = 6
_LINE = 1 << 20
_SITE = ("#CHROM", "POS", "ID", "REF", "ALT")
_SITE_OF_BIM = {5: (0, 2, 1, 4, 3), 6: (0, 3, 1, 5, 4)}
"""Where these stand in a line of a .pvar without a header, which is that of a .bim."""
_MOST_SAMPLES = 1 << 27


class Plink(Calls):
    """A .bed file: how many copies of allele 1 (fifth column of .bim) each sample has, 0, 1 or 2."""

    needs_file = True
    companions = (".bim", ".fam")

    @cached_property
    def facts(self) -> Facts:
        required("bed_reader", "genomics", ".bed files")
        sites, people = (_fields(self.path, suffix) for suffix in self.companions)
        names = told_apart(
            [
                name if name not in {".", "0"} else f"{where}:{bp}:{other}:{counted}"
                for where, name, _, bp, counted, other in sites
            ],
            [counted for *_, counted, _ in sites],
        )

        def read() -> tuple[int, bool]:
            with self.path.open("rb") as file:
                return self.path.stat().st_size, file.read(3)[2] == 1

        size, by_variant = attempt(self.path, read)
        inner, outer = (len(people), len(names)) if by_variant else (len(names), len(people))
        if size != 3 + outer * -(-inner // 4):
            raise DataError(
                f"{self.path} is not as long as its .fam and .bim announce: {len(people)} samples of {len(names)} "
                "variants. Restore the files."
            )
        if wrong := [name for name in ("multiallelic", "haploid", "field") if getattr(self.rules, name) is not None]:
            raise UsageError(
                f"A .bed file holds counts of one of two alleles: leave {listed(wrong)} out of "
                f"{parameter('genotypes')}."
            )
        named = zip(FID_IID, ([line[at] for line in people] for at in range(2)), strict=True)
        alleles = [(counted, other) for *_, counted, other in sites]
        return Facts(len(people), dict(named), names, alleles)

    def columns(self, keep: Places) -> Iterator[Rows]:
        width, p = self.width(), self.frequencies(keep)
        unread = dict.fromkeys((
            "fid", "iid", "father", "mother", "sex", "pheno", "chromosome", "sid", "cm_position", "bp_position",
            "allele_1", "allele_2",
        ))  # fmt: skip
        shape = (self.facts.samples, len(self.facts.names))
        library = required("bed_reader", "genomics", ".bed files")
        with library.open_bed(self.path, *shape, properties=unread, num_threads=1) as bed:
            for first in range(0, len(keep), width):
                some = keep[first : first + width]
                counts = bed.read(index=np.s_[:, list(some)], dtype="int8", num_threads=1)
                yield self.finished(counts, counts == _MISSING, some, None if p is None else p[first : first + width])


def _fields(path: Path, suffix: str) -> list[list[str]]:
    """Return the six fields of each line of a file beside a .bed file."""
    beside = path.with_suffix(suffix)
    if not beside.is_file():
        raise DataError(f"{path} needs {beside.name} beside it. Put it there.")
    found = []
    for number, line in attempt(beside, lambda: list(_lines(beside, comments=False))):
        fields = line.split()
        if len(fields) != _FIELDS:
            raise DataError(
                f"{beside}, line {number} has {len(fields)} fields, and PLINK writes {_FIELDS}, separated by tabs or "
                f"spaces. {CURE}"
            )
        found.append(fields)
    return found


class Plink2(Calls):
    """A .pgen file: how many copies of the alternative allele, or of each, each sample has, or their dosage."""

    needs_file = True
    fragile = True
    companions = (".pvar", ".psam")

    def _text(self, suffix: str) -> Path:
        place: Path = self.path.with_suffix(suffix)
        if not place.is_file():
            packed = place.with_name(place.name + ".zst")
            cure = f"Unpack {packed.name} (zstd -d)." if packed.is_file() else "Put it there."
            raise DataError(f"{self.path} needs {place.name} beside it. {cure}")
        return place

    @cached_property
    def _sites(self) -> tuple[tuple[str, ...], list[Site], list[int], list[tuple[str, str]]]:
        if self.rules.haploid is not None:
            raise UsageError(f"A .pgen file holds pairs of alleles: leave haploid out of {parameter('genotypes')}.")
        path = self._text(".pvar")
        return attempt(path, lambda: _sites(path, self.rules))

    @cached_property
    def facts(self) -> Facts:
        required("pgenlib", "genomics", ".pgen files")
        path = self._text(".psam")
        people = attempt(path, lambda: _samples(path))
        names, sites, alleles, pairs = self._sites

        def announced() -> tuple[int, int]:
            with self._read() as file:
                return file.get_raw_sample_ct(), file.get_variant_ct()

        count = len(people[0])
        if attempt(self.path, announced) != (count, len(alleles)):
            raise DataError(
                f"{self.path} does not hold what its .psam and .pvar announce: {count} samples of {len(alleles)} "
                "variants. Restore the files."
            )
        return Facts(count, dict(zip(FID_IID, people, strict=True)), names, pairs, sites)

    def _read(self) -> Any:
        library = required("pgenlib", "genomics", ".pgen files")
        alleles = self._sites[2]
        begins = np.concatenate([[0], np.cumsum(alleles)]).astype(np.uintp)  # those of each variant, of all counted on
        several = {} if set(alleles) == {2} else {"allele_idx_offsets": begins}
        return library.PgenReader(str(self.path).encode(), **several)

    def columns(self, keep: Places) -> Iterator[Rows]:
        width, p = self.width(), self.frequencies(keep)
        with self._read() as file:
            for first in range(0, len(keep), width):
                some = keep[first : first + width]
                found = self._counted(file, [self.facts.sites[place] for place in some]).T
                yield self.finished(found, found == _ABSENT, some, None if p is None else p[first : first + width])

    def _counted(self, file: Any, sites: list[Site]) -> npt.NDArray[Any]:
        """Return the copies or dosages of alleles, (columns, samples)."""
        dosages = self.rules.field == "DS"
        found = np.full((len(sites), self.facts.samples), _ABSENT, np.float32 if dosages else np.int8)
        if all(site.allele == 1 for site in sites):
            variants = np.array([site.variant for site in sites], np.uint32)
            (file.read_dosages_list if dosages else file.read_list)(variants, found)
        else:
            for row, site in zip(found, sites, strict=True):
                (file.read_dosages if dosages else file.read)(site.variant, row, allele_idx=site.allele)
        if not ((found == _ABSENT) | ((found >= 0) & (found <= 2))).all():
            raise DataError(f"{self.path} holds what is no number of copies from 0 to 2. {CURE}")
        return found


def _lines(path: Path, *, comments: bool = True) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every line that is not empty, and no comment."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE + 1):
            number += 1
            if len(line) > _LINE:
                raise DataError(f"{path}, line {number} is longer than {_LINE >> 20} MiB. {CURE}")
            if line.strip() and not (comments and line.startswith(b"##")):
                yield number, line.decode()


def _samples(path: Path) -> tuple[list[str], list[str]]:
    """Return the family, "0" where there is none, and the name of each sample of a .psam."""
    families: list[str] = []
    people: list[str] = []
    where: tuple[int | None, int] | None = None
    for number, line in _lines(path):
        fields = line.split()
        if where is None:
            where = (0, 1)  # without a header it is a .fam
            if fields[0] in {"#FID", "#IID"} and "IID" in (fields[0][1:], *fields[1:2]):
                where = (0, 1) if fields[0] == "#FID" else (None, 0)
                continue
        family, person = where
        if line.startswith("#") or len(fields) <= person:
            raise DataError(
                f"{path}, line {number} is not what a .psam has there: a header that begins with #FID and IID, or with "
                f"#IID, and a line for each sample. {CURE}"
            )
        families.append("0" if family is None else fields[family])
        people.append(fields[person])
        if len(people) > _MOST_SAMPLES:
            raise DataError(f"{path} names more than {_MOST_SAMPLES} samples. Split it by samples.")
    return families, people


def _sites(path: Path, rules: Genotypes) -> tuple[tuple[str, ...], list[Site], list[int], list[tuple[str, str]]]:
    """Return the names of the columns, where each is, how many alleles each variant has, and those of columns."""
    names: list[str] = []
    pairs: list[tuple[str, str]] = []
    sites: list[Site] = []
    alleles: list[int] = []
    where: Sequence[int] | None = None
    letters = 0
    for number, line in _lines(path):
        fields = line.split()
        if where is None:
            if fields[0] == _SITE[0] and set(_SITE) <= set(fields):
                where = [fields.index(name) for name in _SITE]
                continue
            where = _SITE_OF_BIM.get(len(fields))
        if where is None or line.startswith("#") or len(fields) <= max(where):
            raise DataError(
                f"{path}, line {number} is not what a .pvar has there: a header that names {', '.join(_SITE)}, and a "
                f"line for each variant. {CURE}"
            )
        contig, position, name, first, others = (fields[place] for place in where)
        told = [first, *(() if others == "." else others.split(","))]
        made = columns_of_site(contig, position, name, told, rules)
        if made is None:
            raise not_biallelic(f"{path}, line {number}")
        sites += [Site(len(alleles), allele, len(made)) for allele in range(1, len(made) + 1)]
        alleles.append(max(2, len(told)))
        names += made
        pairs += [(other, first) for other in told[1:]] if made else []
        letters += sum(map(len, made))
        require_columns(path, len(names))
        if letters > MOST_LABELS:
            raise DataError(f"{path}: the names of its columns take more than {MOST_LABELS >> 20} MiB. Take fewer.")
    return told_apart(names, [counted for counted, _ in pairs]), sites, alleles, pairs
