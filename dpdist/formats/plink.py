"""Readers of PLINK genotypes: .bed with .bim and .fam, and of PLINK 2: .pgen with .pvar and .psam.

bed-reader and pgenlib read the genotypes. pgenlib is native code, and runs in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.readers.base import CURE, MOST_LABELS, Places, attempt, attempted, require_columns, required
from dpdist.core.naming import parameter
from dpdist.core.text import listed
from dpdist.formats.calls import FID_IID, Calls, Facts, MaskedCounts, Site
from dpdist.formats.genotypes import NO_RULES, Genotypes, columns_of_site, not_biallelic, unique_names

_MISSING = -127  # missing genotype in bed-reader
_ABSENT = -9  # missing genotype in pgenlib
_FIELDS = 6  # per line of a .bim or .fam
_LINE = 1 << 20
_SITE = ("#CHROM", "POS", "ID", "REF", "ALT")
_SITE_OF_BIM = {5: (0, 2, 1, 4, 3), 6: (0, 3, 1, 5, 4)}
"""Indices of these in a line of a .pvar without a header, which has the columns of a .bim."""
_MOST_SAMPLES = 1 << 27


class Plink(Calls):
    """A .bed file: counts of allele 1 (fifth column of .bim), 0, 1 or 2."""

    needs_file = True
    companions = (".bim", ".fam")

    @cached_property
    @attempted
    def facts(self) -> Facts:
        required("bed_reader", "genomics", ".bed files")
        bim, fam = (_companion(self.path, suffix) for suffix in self.companions)
        people, sites = attempt(fam, lambda: _samples(fam)), attempt(bim, lambda: _sites(bim, NO_RULES))
        names = sites.names
        with self.path.open("rb") as file:
            size, by_variant = self.path.stat().st_size, file.read(3)[2] == 1
        inner, outer = (len(people[0]), len(names)) if by_variant else (len(names), len(people[0]))
        if size != 3 + outer * -(-inner // 4):
            raise DataError(
                f"{self.path} has another length than its .fam and .bim declare: {len(people[0])} samples of "
                f"{len(names)} variants. Restore the files."
            )
        if wrong := [name for name in ("multiallelic", "haploid", "field") if getattr(self.rules, name) is not None]:
            raise UsageError(
                f"A .bed file holds counts of one of two alleles. Leave {listed(wrong)} out of "
                f"{parameter('genotypes')}."
            )
        return Facts(len(people[0]), dict(zip(FID_IID, people, strict=True)), names, sites.pairs)

    def calls(self, keep: Places) -> Iterator[MaskedCounts]:
        width = self.width
        unread = dict.fromkeys((
            "fid", "iid", "father", "mother", "sex", "pheno", "chromosome", "sid", "cm_position", "bp_position",
            "allele_1", "allele_2",
        ))  # fmt: skip
        shape = (self.facts.samples, len(self.facts.names))
        library = required("bed_reader", "genomics", ".bed files")
        with library.open_bed(self.path, *shape, properties=unread, num_threads=1) as bed:
            for first in range(0, len(keep), width):
                counts = bed.read(index=np.s_[:, list(keep[first : first + width])], dtype="int8", num_threads=1)
                yield counts, counts == _MISSING


class Sites(NamedTuple):
    """The variants of a file."""

    names: tuple[str, ...]  # of the columns
    sites: list[Site]  # of the columns
    alleles: list[int]  # number per variant
    pairs: list[tuple[str, str]]  # counted and other allele per column


class Plink2(Calls):
    """A .pgen file: counts or dosages of the alternative alleles."""

    needs_file = True
    fragile = True
    companions = (".pvar", ".psam")

    @cached_property
    def _sites(self) -> Sites:
        if self.rules.haploid is not None:
            raise UsageError(f"A .pgen file holds pairs of alleles. Leave haploid out of {parameter('genotypes')}.")
        path = _companion(self.path, ".pvar")
        return attempt(path, lambda: _sites(path, self.rules))

    @cached_property
    @attempted
    def facts(self) -> Facts:
        required("pgenlib", "genomics", ".pgen files")
        path, sites = _companion(self.path, ".psam"), self._sites
        people = attempt(path, lambda: _samples(path))
        with self._read() as file:
            announced = file.get_raw_sample_ct(), file.get_variant_ct()
        count = len(people[0])
        if announced != (count, len(sites.alleles)):
            raise DataError(
                f"{self.path} does not match its .psam and .pvar: {count} samples of {len(sites.alleles)} variants. "
                "Restore the files."
            )
        return Facts(count, dict(zip(FID_IID, people, strict=True)), sites.names, sites.pairs, sites.sites)

    def _read(self) -> Any:
        library = required("pgenlib", "genomics", ".pgen files")
        alleles = self._sites.alleles
        begins = np.concatenate([[0], np.cumsum(alleles)]).astype(np.uintp)  # first allele of each variant, cumulative
        several = {} if set(alleles) == {2} else {"allele_idx_offsets": begins}
        return library.PgenReader(str(self.path).encode(), **several)

    def calls(self, keep: Places) -> Iterator[MaskedCounts]:
        width = self.width
        with self._read() as file:
            for first in range(0, len(keep), width):
                counts = self._counted(file, [self.facts.sites[column] for column in keep[first : first + width]]).T
                yield counts, counts == _ABSENT

    def _counted(self, file: Any, sites: list[Site]) -> npt.NDArray[Any]:
        """Return allele counts or dosages, (columns, samples)."""
        dosages = self.rules.field == "DS"
        counts = np.full((len(sites), self.facts.samples), _ABSENT, np.float32 if dosages else np.int8)
        if all(site.allele == 1 for site in sites):
            variants = np.array([site.variant for site in sites], np.uint32)
            (file.read_dosages_list if dosages else file.read_list)(variants, counts)
        else:
            for row, site in zip(counts, sites, strict=True):
                (file.read_dosages if dosages else file.read)(site.variant, row, allele_idx=site.allele)
        if not ((counts == _ABSENT) | ((counts >= 0) & (counts <= 2))).all():
            raise DataError(f"{self.path} holds allele counts outside 0 to 2. {CURE}")
        return counts


def _companion(path: Path, suffix: str) -> Path:
    companion = path.with_suffix(suffix)
    if not companion.is_file():
        packed = companion.with_name(companion.name + ".zst")
        cure = f"Unpack {packed.name} (zstd -d)." if packed.is_file() else "Add it."
        raise DataError(f"{path} needs {companion.name} in the same folder. {cure}")
    return companion


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line that is neither empty nor a comment; PLINK 1 has no comments."""
    comment = () if path.suffix in Plink.companions else b"##"
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE + 1):
            number += 1
            if len(line) > _LINE:
                raise DataError(f"{path}, line {number} is longer than {_LINE >> 20} MiB. {CURE}")
            if line.strip() and not line.startswith(comment):
                yield number, line.decode()


def _records(
    path: Path,
    header: Callable[[list[str]], Sequence[int | None] | None],
    plain: Callable[[int], Sequence[int] | None],
    expected: str,
) -> Iterator[tuple[int, list[str]]]:
    """Yield number and fields of every line; a header, or the number of fields, gives their order."""
    indexes: Sequence[int | None] | None = None
    old = path.suffix in Plink.companions  # no header, and a fixed number of fields
    for number, line in _lines(path):
        fields = line.split()
        if indexes is None:
            indexes = None if old else header(fields)
            if indexes is not None:
                continue
            indexes = plain(len(fields))
        sound = len(fields) == _FIELDS if old else not line.startswith("#")
        if indexes is None or not sound or len(fields) <= max(index or 0 for index in indexes):
            raise DataError(
                f"{path}, line {number} has {len(fields)} fields. Expected: "
                f"{f'{_FIELDS} fields' if old else expected}, separated by tabs or spaces. {CURE}"
            )
        yield number, ["0" if index is None else fields[index] for index in indexes]


def _samples(path: Path) -> tuple[list[str], list[str]]:
    """Return family, "0" if none, and name of each sample of a .psam or .fam."""

    def header(fields: list[str]) -> tuple[int | None, int] | None:
        if fields[0] not in {"#FID", "#IID"} or "IID" not in (fields[0][1:], *fields[1:2]):
            return None
        return (0, 1) if fields[0] == "#FID" else (None, 0)

    families, people = list[str](), list[str]()
    expected = "an optional header that begins with #FID and IID, or with #IID, and a line per sample"
    for _, (family, person) in _records(path, header, lambda count: (0, 1) if count > 1 else None, expected):
        families.append(family)
        people.append(person)
        if len(people) > _MOST_SAMPLES:
            raise DataError(f"{path} names more than {_MOST_SAMPLES} samples. Split it by samples.")
    return families, people


def _sites(path: Path, rules: Genotypes) -> Sites:

    def header(fields: list[str]) -> list[int] | None:
        return [fields.index(name) for name in _SITE] if fields[0] == _SITE[0] and set(_SITE) <= set(fields) else None

    names, sites, alleles, pairs = list[str](), list[Site](), list[int](), list[tuple[str, str]]()
    letters, old = 0, path.suffix == ".bim"
    expected = f"an optional header with {', '.join(_SITE)}, and a line per variant"
    for number, (contig, position, name, first, others) in _records(path, header, _SITE_OF_BIM.get, expected):
        site_alleles = [first, *((others,) if old else () if others == "." else others.split(","))]
        columns = columns_of_site(contig, position, "." if old and name == "0" else name, site_alleles, rules)
        if columns is None:
            raise not_biallelic(f"{path}, line {number}")
        sites += [Site(len(alleles), allele, len(columns)) for allele in range(1, len(columns) + 1)]
        alleles.append(max(2, len(site_alleles)))
        names += columns
        pairs += [(other, first) for other in site_alleles[1:]] if columns else []
        letters += sum(map(len, columns))
        require_columns(path, len(names))
        if letters > MOST_LABELS:
            raise DataError(f"{path} has column names of more than {MOST_LABELS >> 20} MiB. Split it by variants.")
    return Sites(unique_names(names, [counted for counted, _ in pairs]), sites, alleles, pairs)
