"""Reader of genotypes in VCF Zarr, as bio2zarr and sgkit write it: rows are samples, values are allele counts.

Columns are variants with two alleles; other sites need rules (:mod:`dpdist.formats.genotypes`). A store holds one
variant after another, and is transposed first. ``call_genotype`` is (variants, samples, ploidy), -1 for a missing
allele and -2 for none, as in a haploid call among diploid ones. ``call_DS`` is (variants, samples).

Column names are public, and the variants of a store may reveal its samples: keep those of a public list
(``--columns``).

References
----------
VCF Zarr specification 0.4; Czech et al. 2024.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import CURE, MOST_LABELS, Places, Rows, attempted, require_table
from dpdist.core.ingest.readers.chunked import chunk_bytes, require_chunks
from dpdist.core.ingest.readers.source import Fragment, Head, Source, neighbours, transposed, width_for
from dpdist.core.ingest.readers.zarr_store import dimension_names, holds_values, opened, require_foreign
from dpdist.core.naming import parameter
from dpdist.core.rows.units import named_units
from dpdist.formats.genotypes import NO_RULES, Genotypes, columns_of_site, invalid_genotype, not_biallelic, unique_names

_CALLS, _DOSES = "call_genotype", "call_DS"
_TOGETHER = 4096  # variants read at once
_ABSENT, _NONE = -1, -2
"""Missing allele, and no allele."""
MaskedCounts = tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]  # allele counts or dosages, and the mask of missing ones


class Site(NamedTuple):
    """Location of a column: its variant, the counted allele, and the number of columns of the variant."""

    variant: int
    allele: int
    columns: int


class Facts(NamedTuple):
    """Samples and columns of a store."""

    samples: int
    people: Mapping[str, Sequence[str]]  # names of the samples by label; may be empty
    names: tuple[str, ...]
    alleles: Sequence[tuple[str, str]]  # counted and other allele per column
    sites: Sequence[Site]  # of the columns


class VcfZarr(Source):
    """A VCF Zarr store: counts of the alternative allele, 0, 1 or 2, or dosages."""

    takes: ClassVar[tuple[str, ...]] = ("missing", "genotypes")
    fragile = True

    @property
    def rules(self) -> Genotypes:
        rules = self.choices.genotypes
        return rules if isinstance(rules, Genotypes) else NO_RULES

    @property
    def _array(self) -> str:
        return _DOSES if self.rules.field == "DS" else _CALLS

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
        for values, absent in self._calls(keep):
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
        yield named_units([self.facts.people[label] for label in labels], key)

    @cached_property
    @attempted
    def facts(self) -> Facts:
        require_foreign(self.path, _CALLS)
        with opened(self.path) as root:
            if self._array not in root:
                raise DataError(f"{self.path} has no dosages (DS). {CURE}")
            values = root[self._array]
            self._require_shape(values)
            shape = values.shape
            people = self._people(root, shape[1])
            names, sites, pairs = list[str](), list[Site](), list[tuple[str, str]]()
            for variant, (contig, position, name, site_alleles) in enumerate(self._fixed(root, shape[0])):
                if not all(site_alleles) or len(set(site_alleles)) < len(site_alleles):
                    raise DataError(
                        f"{self.path}, variant {variant} (counting from 0): an allele is empty or repeated. {CURE}"
                    )
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

    def _require_shape(self, values: Any) -> None:
        shape = values.shape
        if (values.ndim, values.dtype.kind) != ((2, "f") if self._array == _DOSES else (3, "i")):
            raise DataError(f"{self.path}: {self._array} does not have the shape and type of VCF Zarr. {CURE}")
        dims = dimension_names(values)
        if dims and (*dims,)[:2] != ("variants", "samples"):
            raise DataError(f"{self.path}: {self._array} is not along variants and samples, in this order. {CURE}")
        require_chunks(self.path, chunk_bytes(values))
        if self._array == _CALLS and shape[2] > 2:
            raise DataError(
                f"{self.path} has calls of {shape[2]} alleles for a sample, and at most two are read. Leave such "
                "calls out."
            )

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
        for name, array in (*marks.items(), *(() if ids is None else (("id", ids),))):
            kinds = "iu" if name in {"contig", "position"} else "OUST"
            if array.ndim != (2 if name == "allele" else 1) or array.dtype.kind not in kinds:
                raise DataError(f"{self.path}: variant_{name} does not have the shape and type of VCF Zarr. {CURE}")
            if array.shape[0] != variants:
                raise DataError(f"{self.path}: its arrays have different numbers of variants. {CURE}")
            require_chunks(self.path, chunk_bytes(array))
        for start in range(0, variants, _TOGETHER):
            stop = min(start + _TOGETHER, variants)
            contig_indexes, positions, texts = (np.asarray(array[start:stop]).tolist() for array in marks.values())
            if min(contig_indexes) < 0:
                raise DataError(f"{self.path}: variant_contig has a number below 0. {CURE}")
            alleles = [_without_fill(map(_text, site_texts)) for site_texts in texts]
            named = ["."] * (stop - start) if ids is None else _texts(ids, start, stop)
            for contig, position, name, site_alleles in zip(contig_indexes, positions, named, alleles, strict=True):
                size += len(name) + sum(map(len, site_alleles))
                if size > MOST_LABELS:
                    raise DataError(
                        f"{self.path} has variant names of more than {MOST_LABELS >> 20} MiB. Split it by variants."
                    )
                yield contigs[contig], str(position), name or ".", site_alleles

    @cached_property
    @attempted
    def unpacked(self) -> int:
        with opened(self.path) as root:
            return chunk_bytes(root[self._array])

    def _calls(self, keep: Places) -> Iterator[MaskedCounts]:
        """Yield blocks of columns, in order, of shape (n, v)."""
        sites, width = self.facts.sites, width_for(self.facts.samples, np.dtype(np.float64))
        with opened(self.path) as root:
            values = root[self._array]
            for run in neighbours(keep, width):
                columns = keep[run]
                start = sites[columns[0]].variant
                block = np.asarray(values[start : sites[columns[-1]].variant + 1])
                counted = [self._counts(block[sites[column].variant - start], sites[column]) for column in columns]
                values_of, absent = (np.stack(arrays, axis=1) for arrays in zip(*counted, strict=True))
                yield values_of, absent

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


def _without_fill(alleles: Iterable[str]) -> list[str]:
    """Return the alleles of a site without the fill at the end, where others have more."""
    found = list(alleles)
    while len(found) > 1 and found[-1] in {"", "."}:
        found.pop()
    return found


def _texts(array: Any, start: int, stop: int) -> list[str]:
    return [_text(value) for value in np.asarray(array[start:stop]).tolist()]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
