"""Files of genotypes, which store a variant after the other: rows are samples, columns variants, values copies.

The names of the columns are public, and which variants a file lists may tell who is in it: keep those of a public list
(``--columns``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError
from dpdist.ingest.readers.base import Places, Rows, require_table
from dpdist.ingest.readers.genotypes import NO_RULES, Genotypes
from dpdist.ingest.readers.source import Fragment, Head, Source, transposed, width_for
from dpdist.naming import parameter
from dpdist.rows.units import named_units

FID_IID = ("FID", "IID")  # family and name of a sample, the first two columns of a .fam file
MaskedCounts = tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]  # copies of an allele or dosages, and which are missing


class Site(NamedTuple):
    """Where a column is: its variant, the allele that it counts, and how many columns the variant has."""

    variant: int
    allele: int
    columns: int


class Facts(NamedTuple):
    """Samples and columns of a file."""

    samples: int
    people: Mapping[str, Sequence[str]]  # names of the samples, by label; none where the file names none
    names: tuple[str, ...]
    alleles: Sequence[tuple[str, str]]  # of each column: that which it counts, and the other one
    sites: Sequence[Site] = ()  # where each column is, in files that are read by it


class Calls(Source):
    """A file of genotypes: how many copies of an allele each sample has, or its dosage."""

    takes: ClassVar[tuple[str, ...]] = ("missing", "genotypes")

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """Samples and columns, as the file announces them."""

    @abstractmethod
    def calls(self, keep: Places) -> Iterator[MaskedCounts]:
        """Yield blocks of columns in their order, of shape (n, v)."""

    @property
    def rules(self) -> Genotypes:
        """The rules for genotypes."""
        return self.choices.genotypes or NO_RULES

    @cached_property
    def head(self) -> Head:
        facts = self.facts
        if not facts.names:
            raise DataError(f"{self.path} has no variants that are read by these rules, and so no columns.")
        require_table(self.path, (facts.samples, len(facts.names)), self.rules.dtype)
        labels = tuple(facts.people)
        counted = blake2b("\n".join(f"{one} {other}" for one, other in facts.alleles).encode(), digest_size=16)
        return Head(
            facts.names, facts.samples, self.rules.dtype.name,
            labels=labels, samples=labels, meaning=counted.hexdigest(),
        )  # fmt: skip

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:  # noqa: ARG002 - it has one
        shape = (self.facts.samples, len(keep))
        yield from transposed(self.path, self.scratch_dir, self._columns(keep), shape, self.rules.dtype)

    def _columns(self, keep: Places) -> Iterator[Rows]:
        """Yield what becomes of copies or dosages; DataError if some are missing and no rule says what they are."""
        names = [self.facts.names[column] for column in keep]
        p, first = self.rules.allele_frequencies(names), 0
        for values, absent in self.calls(keep):
            if p is None and absent.any():
                if self.choices.missing is None:
                    sample, column = map(int, np.argwhere(absent)[0])
                    raise DataError(
                        f"{self.path}, sample {sample + 1}, variant {names[first + column]!r}: the genotype is missing. "
                        f"Leave the variant out ({parameter('columns')}), say how many alleles to put where one is "
                        f"missing, 0, 1 or 2 ({parameter('missing')}), or name a public file of frequencies "
                        f"({parameter('genotypes')})."
                    )
                values[absent] = self.choices.missing
            last = first + values.shape[1]
            yield self.rules.finished(values, absent, None if p is None else p[first:last])
            first = last

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        parts = [self.facts.people[label] for label in labels]
        if (*labels,) == FID_IID[:1] and "0" in parts[0]:
            raise DataError(
                f"{self.path}, sample {parts[0].index('0') + 1}: its family (FID) is 0, which stands for none, and it "
                f"is not said whose row it is. Take {parameter('privacy_unit')} IID or FID,IID."
            )
        units = named_units(parts, key)
        if (*labels,) == FID_IID:  # a family that says nothing: the sample is that of a VCF of this name
            alone = np.array([family in {"0", name} for family, name in zip(*parts, strict=True)], dtype=np.bool_)
            units = np.where(alone[:, None], named_units(parts[1:], key), units)
        yield units

    @property
    def width(self) -> int:
        """How many columns make a block."""
        return width_for(self.facts.samples, np.dtype(np.float64) if self.rules.field == "DS" else self.rules.dtype)
