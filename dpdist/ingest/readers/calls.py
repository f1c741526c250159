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
from dpdist.ingest.readers.base import Fragment, Head, Places, Rows, Source, require_table
from dpdist.ingest.readers.genotypes import NO_RULES, Genotypes
from dpdist.ingest.readers.transpose import turned, width_for
from dpdist.naming import parameter
from dpdist.rows.units import named_units

FID_IID = ("FID", "IID")
"""Family and name of a sample, the first two columns of a .fam file."""


class Site(NamedTuple):
    """Where a column is: its variant, the allele that it counts, and how many columns the variant has."""

    variant: int
    allele: int
    columns: int


class Facts(NamedTuple):
    """Samples and columns of a file.

    Attributes
    ----------
    samples
        How many.
    people
        What names them, by label: of each label a name for every sample; none where the file names none.
    names
        Of the columns.
    alleles
        Of each column: that which it counts, and the other one.
    sites
        Where each column is, in files that are read by it.
    """

    samples: int
    people: Mapping[str, Sequence[str]]
    names: tuple[str, ...]
    alleles: Sequence[tuple[str, str]]
    sites: Sequence[Site] = ()


class Calls(Source):
    """A file of genotypes: how many copies of an allele each sample has, or its dosage."""

    takes: ClassVar[tuple[str, ...]] = ("missing", "genotypes")

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """Samples and columns, as the file announces them."""

    @abstractmethod
    def columns(self, keep: Places) -> Iterator[Rows]:
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
        yield from turned(self.path, self.beside, self.columns(keep), shape, self.rules.dtype)

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        parts = [self.facts.people[label] for label in labels]
        if (*labels,) == FID_IID[:1] and "0" in parts[0]:
            raise DataError(
                f"{self.path}, sample {parts[0].index('0') + 1}: its family (FID) is 0, which stands for none, and it "
                f"is not said whose row it is. Take {parameter('privacy_unit')} IID or FID,IID."
            )
        found = named_units(parts, key)
        if (*labels,) == FID_IID:  # a family that says nothing: the sample is that of a VCF of this name
            alone = np.array([family in {"0", name} for family, name in zip(*parts, strict=True)], dtype=np.bool_)
            found = np.where(alone[:, None], named_units(parts[1:], key), found)
        yield found

    def width(self, dtype: np.dtype[np.generic] | None = None) -> int:
        """Return how many columns make a block."""
        return width_for(self.facts.samples, dtype or self.rules.dtype)

    def frequencies(self, keep: Places) -> npt.NDArray[np.float64] | None:
        """Return the public frequencies of the alleles that some columns count, or None."""
        return self.rules.allele_frequencies([self.facts.names[place] for place in keep])

    def finished(
        self, values: npt.NDArray[Any], absent: npt.NDArray[np.bool_], keep: Places, p: npt.NDArray[np.float64] | None
    ) -> Rows:
        """Return what becomes of copies or dosages, (n, v), of which some are absent; DataError if no rule says it."""
        if p is None and absent.any():
            if self.choices.missing is None:
                sample, place = map(int, np.argwhere(absent)[0])
                raise DataError(
                    f"{self.path}, sample {sample + 1}, variant {self.facts.names[keep[place]]!r}: the genotype is "
                    f"missing. Leave the variant out ({parameter('columns')}), say how many alleles to put where one "
                    f"is missing, 0, 1 or 2 ({parameter('missing')}), or name a public file of frequencies "
                    f"({parameter('genotypes')})."
                )
            values[absent] = self.choices.missing
        return self.rules.finished(values, absent, p)
