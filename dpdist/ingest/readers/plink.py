"""Reader of PLINK 1 genotypes, .bed with .bim and .fam: rows are samples, columns variants, values alleles counted.

The file holds a variant after the other, so it is turned first. The names of the columns are public, and which
variants a file lists may tell who is in it: keep those of a public list (``--columns``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dpdist._util.text import listed
from dpdist.errors import DataError, UsageError
from dpdist.ingest.readers.base import Places, Rows, Source, Survey, attempt, require_table, required, surveyed
from dpdist.ingest.readers.genotypes import NO_RULES, Genotypes
from dpdist.ingest.readers.transpose import turned, width_for
from dpdist.naming import parameter
from dpdist.rows.units import named_units

_MISSING = -127
LABELS = ("FID", "IID")
"""Family and name of a sample, the first two columns of a .fam file."""


class Plink(Source):
    """A .bed file: how many copies of allele 1 (fifth column of .bim) each sample has, 0, 1 or 2."""

    takes = ("missing", "genotypes")
    needs_file = True
    companions = (".bim", ".fam")

    def _read(self, **others: Any) -> Any:
        return required("bed_reader", "genomics", ".bed files").open_bed(self.path, num_threads=1, **others)

    @cached_property
    def _facts(self) -> tuple[list[str], list[str], tuple[str, ...]]:
        """Return the family and the name of each sample, and the names of the variants."""
        required("bed_reader", "genomics", ".bed files")
        for suffix in self.companions:
            if not self.path.with_suffix(suffix).is_file():
                raise DataError(f"{self.path} needs {self.path.with_suffix(suffix).name} beside it. Put it there.")

        def read() -> tuple[list[str], list[str], tuple[str, ...], int, bool]:
            with self._read() as bed:
                marks = zip(bed.sid, bed.chromosome, bed.bp_position, bed.allele_2, bed.allele_1, strict=True)
                names = tuple(
                    str(sid) if sid not in {"", ".", "0"} else f"{where}:{bp}:{other}:{counted}"
                    for sid, where, bp, other, counted in marks
                )
                with self.path.open("rb") as file:
                    by_variant = file.read(3)[2] == 1
                return bed.fid.tolist(), bed.iid.tolist(), names, self.path.stat().st_size, by_variant

        families, people, names, size, by_variant = attempt(self.path, read)
        samples = len(people)
        inner, outer = (samples, len(names)) if by_variant else (len(names), samples)
        if size != 3 + outer * -(-inner // 4):
            raise DataError(
                f"{self.path} is not as long as its .fam and .bim announce: {samples} samples of {len(names)} "
                "variants. Restore the files."
            )
        if wrong := [name for name in ("multiallelic", "haploid", "field") if getattr(self._rules, name) is not None]:
            raise UsageError(
                f"A .bed file holds counts of one of two alleles: leave {listed(wrong)} out of "
                f"{parameter('genotypes')}."
            )
        require_table(self.path, (samples, len(names)), self._rules.dtype)
        return families, people, names

    @property
    def _rules(self) -> Genotypes:
        return self.choices.genotypes or NO_RULES

    @property
    def names(self) -> tuple[str, ...]:
        return self._facts[2]

    @property
    def labels(self) -> tuple[str, ...]:
        return LABELS

    @property
    def repeated(self) -> str | None:
        families, people, _ = self._facts
        return sample_twice(self.path.with_suffix(".fam"), families, people)

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        known = dict(zip(LABELS, self._facts[:2], strict=True))
        yield named_units([known[label] for label in labels], key)

    def survey(self, keep: Places) -> Survey:  # noqa: ARG002 - all are counts
        return surveyed(self.path, len(self._facts[1]), self._rules.dtype.name)

    def blocks(self, keep: Places) -> Generator[Rows]:
        shape = (len(self._facts[1]), len(keep))
        yield from turned(self.path, self.beside, self._columns(keep), shape, self._rules.dtype)

    def _columns(self, keep: Places) -> Iterator[Rows]:
        width = width_for(len(self._facts[1]), self._rules.dtype)
        p = self._rules.allele_frequencies([self.names[place] for place in keep])
        with self._read() as bed:
            for first in range(0, len(keep), width):
                places = list(keep[first : first + width])
                counts = bed.read(index=np.s_[:, places], dtype="int8", num_threads=1)
                absent = counts == _MISSING
                if absent.any() and p is None:
                    if self.choices.missing is None:
                        sample, place = np.argwhere(absent)[0]
                        raise missing(self.path, f"sample {sample + 1} of the .fam", self.names[places[place]])
                    counts[absent] = self.choices.missing
                yield self._rules.finished(counts, absent, None if p is None else p[first : first + width])


def missing(path: Any, sample: str, variant: str) -> DataError:
    """Return what is said of a genotype that is missing."""
    return DataError(
        f"{path}, {sample}, variant {variant!r}: the genotype is missing. Leave the variant out "
        f"({parameter('columns')}), say how many alleles to put where one is missing, 0, 1 or 2 "
        f"({parameter('missing')}), or name a public file of frequencies ({parameter('genotypes')})."
    )


def sample_twice(path: Any, families: Sequence[str], people: Sequence[str]) -> str | None:
    """Return what is said where a file of samples names one twice; None where it does not."""
    if len(set(zip(families, people, strict=True))) == len(people):
        return None
    return (
        f"{path} names a sample twice: one person would have several rows. Remove the repetition, name the samples "
        "apart if they are different people, or say that FID,IID are the privacy unit "
        f"({parameter('privacy_unit')})."
    )
