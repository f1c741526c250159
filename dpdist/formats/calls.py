"""Files of genotypes, stored variant by variant: rows are samples, columns are variants, values are allele counts.

Column names are public, and the variants of a file may reveal its samples: keep those of a public list (``--columns``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import Places, Rows, require_table
from dpdist.core.ingest.readers.source import Fragment, Head, Source, transposed, width_for
from dpdist.core.naming import parameter
from dpdist.core.rows.units import named_units
from dpdist.formats.genotypes import NO_RULES, Genotypes

FID_IID = ("FID", "IID")  # family and name of a sample in a .fam file
MaskedCounts = tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]  # allele counts or dosages, and the mask of missing ones


class Site(NamedTuple):
    """Location of a column: its variant, the counted allele, and the number of columns of the variant."""

    variant: int
    allele: int
    columns: int


class Facts(NamedTuple):
    """Samples and columns of a file."""

    samples: int
    people: Mapping[str, Sequence[str]]  # names of the samples by label; may be empty
    names: tuple[str, ...]
    alleles: Sequence[tuple[str, str]]  # counted and other allele per column
    sites: Sequence[Site] = ()  # of the columns, for readers that need them


class Calls(Source):
    """A file of genotypes: allele counts or dosages."""

    takes: ClassVar[tuple[str, ...]] = ("missing", "genotypes")

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """Samples and columns of the file."""

    @abstractmethod
    def calls(self, keep: Places) -> Iterator[MaskedCounts]:
        """Yield blocks of columns, in order, of shape (n, v)."""

    @property
    def rules(self) -> Genotypes:
        rules = self.choices.genotypes
        return rules if isinstance(rules, Genotypes) else NO_RULES

    @cached_property
    def head(self) -> Head:
        facts = self.facts
        if not facts.names:
            raise DataError(f"{self.path} has no variants that these rules keep. Change the rules.")
        require_table(self.path, (facts.samples, len(facts.names)), self.rules.dtype)
        labels = tuple(facts.people)
        counted = blake2b("\n".join(f"{one} {other}" for one, other in facts.alleles).encode(), digest_size=16)
        return Head(
            facts.names, facts.samples, self.rules.dtype.name,
            labels=labels, samples=labels, meaning=counted.hexdigest(), features=True,
        )  # fmt: skip

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:  # noqa: ARG002 - it has one
        shape = (self.facts.samples, len(keep))
        yield from transposed(self.path, self.scratch_dir, self._columns(keep), shape, self.rules.dtype)

    def _columns(self, keep: Places) -> Iterator[Rows]:
        """Yield mapped counts or dosages; DataError if some are missing and no rule fills them."""
        names = [self.facts.names[column] for column in keep]
        p, first = self.rules.allele_frequencies(names), 0
        for values, absent in self.calls(keep):
            if p is None and absent.any():
                if self.choices.missing is None:
                    sample, column = map(int, np.argwhere(absent)[0])
                    raise DataError(
                        f"{self.path}, sample {sample + 1}, variant {names[first + column]!r}: the genotype is missing."
                        f" Leave the variant out ({parameter('columns')}), choose the count for missing genotypes, "
                        f"0, 1 or 2 ({parameter('missing')}), or pass a public file of frequencies "
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
                f"{self.path}, sample {parts[0].index('0') + 1}: its family (FID) is 0, which means none, so the row "
                f"belongs to no privacy unit. Use {parameter('privacy_unit')} IID or FID,IID."
            )
        units = named_units(parts, key)
        if (*labels,) == FID_IID:  # without a family, the sample has the same identity as in a VCF
            alone = np.array([family in {"0", name} for family, name in zip(*parts, strict=True)], dtype=np.bool_)
            units = np.where(alone[:, None], named_units(parts[1:], key), units)
        yield units

    @property
    def width(self) -> int:
        """Columns per block."""
        return width_for(self.facts.samples, np.dtype(np.float64) if self.rules.field == "DS" else self.rules.dtype)
