"""Reader of PLINK 2 genotypes, .pgen with .pvar and .psam: rows are samples, columns variants, values alleles counted.

Counted is the alternative allele, or each of them (:mod:`dpdist.ingest.readers.genotypes`), or its dosage. The two
texts are read here, and the genotypes by pgenlib, which is native code: another process asks it. The file holds a
variant after the other, so it is turned first. On the names of the columns see :mod:`dpdist.ingest.readers.plink`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError, UsageError
from dpdist.ingest.readers.base import (
    CURE,
    MOST_LABELS,
    Places,
    Rows,
    Source,
    Survey,
    attempt,
    require_columns,
    require_table,
    required,
    surveyed,
)
from dpdist.ingest.readers.genotypes import NO_RULES, Genotypes, columns_of_site, not_biallelic
from dpdist.ingest.readers.plink import LABELS, missing, sample_twice
from dpdist.ingest.readers.transpose import turned, width_for
from dpdist.naming import parameter
from dpdist.rows.units import named_units

_ABSENT = -9
"""What pgenlib gives where a genotype is missing."""
_LINE = 1 << 20
_SITE = ("#CHROM", "POS", "ID", "REF", "ALT")
_SITE_OF_BIM = {5: (0, 2, 1, 4, 3), 6: (0, 3, 1, 5, 4)}
"""Where these stand in a line of a .pvar without a header, which is that of a .bim."""
_MOST_SAMPLES = 1 << 27


class _Facts(NamedTuple):
    families: list[str]
    people: list[str]
    names: tuple[str, ...]
    columns: list[tuple[int, int]]
    """Of each column the variant, and which of its alleles is counted."""
    alleles: npt.NDArray[np.uintp]
    """Where the alleles of each variant begin, those of all counted on; and how many there are."""


class Plink2(Source):
    """A .pgen file: how many copies of the alternative allele each sample has, 0, 1 or 2, or their dosage."""

    takes = ("missing", "genotypes")
    needs_file = True
    fragile = True
    companions = (".pvar", ".psam")

    @property
    def _rules(self) -> Genotypes:
        return self.choices.genotypes or NO_RULES

    def _read(self, alleles: npt.NDArray[np.uintp]) -> Any:
        library = required("pgenlib", "genomics", ".pgen files")
        several = {} if (np.diff(alleles) == 2).all() else {"allele_idx_offsets": alleles}
        return library.PgenReader(str(self.path).encode(), **several)

    def _text(self, suffix: str) -> Path:
        place: Path = self.path.with_suffix(suffix)
        if not place.is_file():
            packed = place.with_name(place.name + ".zst")
            cure = f"Unpack {packed.name} (zstd -d)." if packed.is_file() else "Put it there."
            raise DataError(f"{self.path} needs {place.name} beside it. {cure}")
        return place

    @cached_property
    def _facts(self) -> _Facts:
        required("pgenlib", "genomics", ".pgen files")
        if self._rules.haploid is not None:
            raise UsageError(f"A .pgen file holds pairs of alleles: leave haploid out of {parameter('genotypes')}.")
        sites, samples = self._text(".pvar"), self._text(".psam")
        families, people = attempt(samples, lambda: _samples(samples))
        names, columns, alleles = attempt(sites, lambda: _sites(sites, self._rules))
        if not names:
            raise DataError(f"{self.path} has no variants that are read by these rules, and so no columns.")
        require_table(self.path, (len(people), len(names)), self._rules.dtype)
        begins = np.concatenate([[0], np.cumsum(alleles)]).astype(np.uintp)

        def announced() -> tuple[int, int]:
            with self._read(begins) as file:
                return file.get_raw_sample_ct(), file.get_variant_ct()

        if attempt(self.path, announced) != (len(people), len(alleles)):
            raise DataError(
                f"{self.path} does not hold what its .psam and .pvar announce: {len(people)} samples of "
                f"{len(alleles)} variants. Restore the files."
            )
        return _Facts(families, people, names, columns, begins)

    @property
    def names(self) -> tuple[str, ...]:
        return self._facts.names

    @property
    def labels(self) -> tuple[str, ...]:
        return LABELS

    @property
    def repeated(self) -> str | None:
        return sample_twice(self.path.with_suffix(".psam"), self._facts.families, self._facts.people)

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        known = dict(zip(LABELS, self._facts[:2], strict=True))
        yield named_units([known[label] for label in labels], key)

    def survey(self, keep: Places) -> Survey:  # noqa: ARG002 - all are counts, or all dosages
        return surveyed(self.path, len(self._facts.people), self._rules.dtype.name)

    def blocks(self, keep: Places) -> Generator[Rows]:
        shape = (len(self._facts.people), len(keep))
        yield from turned(self.path, self.beside, self._columns(keep), shape, self._rules.dtype)

    def _columns(self, keep: Places) -> Iterator[Rows]:
        facts, rules = self._facts, self._rules
        width = width_for(len(facts.people), rules.dtype)
        p = rules.allele_frequencies([facts.names[place] for place in keep])
        with self._read(facts.alleles) as file:
            for first in range(0, len(keep), width):
                places = keep[first : first + width]
                found = self._counted(file, [facts.columns[place] for place in places]).T
                absent = found == _ABSENT
                if absent.any() and p is None:
                    if self.choices.missing is None:
                        sample, place = np.argwhere(absent)[0]
                        raise missing(self.path, f"sample {sample + 1} of the .psam", facts.names[places[place]])
                    found[absent] = self.choices.missing
                yield rules.finished(found, absent, None if p is None else p[first : first + width])

    def _counted(self, file: Any, columns: list[tuple[int, int]]) -> npt.NDArray[Any]:
        """Return the copies or dosages of alleles, (columns, samples)."""
        dosages = self._rules.field == "DS"
        found = np.full((len(columns), len(self._facts.people)), _ABSENT, np.float32 if dosages else np.int8)
        if all(allele == 1 for _, allele in columns):
            variants = np.array([variant for variant, _ in columns], np.uint32)
            (file.read_dosages_list if dosages else file.read_list)(variants, found)
        else:
            for row, (variant, allele) in zip(found, columns, strict=True):
                (file.read_dosages if dosages else file.read)(variant, row, allele_idx=allele)
        if not ((found == _ABSENT) | ((found >= 0) & (found <= 2))).all():
            raise DataError(f"{self.path} holds what is no number of copies from 0 to 2. {CURE}")
        return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every line that is no comment and not empty."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE + 1):
            number += 1
            if len(line) > _LINE:
                raise DataError(f"{path}, line {number} is longer than {_LINE >> 20} MiB. {CURE}")
            if line.strip() and not line.startswith(b"##"):
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


def _sites(path: Path, rules: Genotypes) -> tuple[tuple[str, ...], list[tuple[int, int]], list[int]]:
    """Return the names of the columns, what each counts, and how many alleles each variant has."""
    names: list[str] = []
    columns: list[tuple[int, int]] = []
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
        columns += [(len(alleles), allele) for allele in range(1, len(made) + 1)]
        alleles.append(max(2, len(told)))
        names += made
        letters += sum(map(len, made))
        require_columns(path, len(names))
        if letters > MOST_LABELS:
            raise DataError(f"{path}: the names of its columns take more than {MOST_LABELS >> 20} MiB. Take fewer.")
    return tuple(names), columns, alleles
