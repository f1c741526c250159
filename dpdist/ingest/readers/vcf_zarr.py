"""Reader of VCF Zarr, as bio2zarr and sgkit write it: rows are samples, columns variants of two alleles.

A variant is a row there, and the people its columns; so it is transposed. What else a site may be is read by the rules
that VCF text is read by (:mod:`dpdist.ingest.readers.genotypes`).

``call_genotype`` is (variants, samples, ploidy): an allele of each, -1 where it is missing, and -2 where there is none,
as for one allele alone among pairs. ``call_DS`` is (variants, samples).

References
----------
VCF Zarr specification 0.4; Czech et al. 2024.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr

from dpdist.errors import DataError
from dpdist.ingest.readers.base import (
    CURE,
    MOST_LABELS,
    Places,
    Rows,
    Source,
    Survey,
    attempt,
    require_table,
    surveyed,
)
from dpdist.ingest.readers.chunked import require_chunks
from dpdist.ingest.readers.genotypes import NO_RULES, Genotypes, columns_of_site, no_pair, not_biallelic
from dpdist.ingest.readers.plink import missing
from dpdist.ingest.readers.transpose import turned, width_for
from dpdist.ingest.readers.zarr_store import holds_values, opened, require_foreign

_CALLS, _DOSES = "call_genotype", "call_DS"
_TOGETHER = 4096
"""Variants whose names are read at once."""
_ABSENT, _NONE = -1, -2
"""Of an allele: it is missing, or there is none."""


class _Place(NamedTuple):
    """Where a column is: its variant, its allele, and how many columns that variant has."""

    variant: int
    allele: int
    alleles: int


def is_vcf_zarr(path: Any) -> bool:
    """Tell whether a store holds genotypes by variant; a damaged one does not."""

    def says() -> bool:
        with opened(path) as root:
            return (
                isinstance(root, zarr.Group) and getattr(root.get(_CALLS), "ndim", 0) == 3 and "variant_allele" in root
            )

    try:
        return bool(attempt(path, says))
    except DataError:
        return False


class VcfZarr(Source):
    """A store of genotypes: how many copies of the alternative allele each sample has, 0, 1 or 2."""

    takes = ("missing", "genotypes")
    fragile = True

    @property
    def _rules(self) -> Genotypes:
        return self.choices.genotypes or NO_RULES

    @property
    def _values(self) -> str:
        return _DOSES if self._rules.field == "DS" else _CALLS

    @cached_property
    def _facts(self) -> tuple[int, tuple[str, ...], tuple[_Place, ...]]:
        """Return the number of samples, the names of the columns, and of each where it is."""
        require_foreign(self.path, _CALLS)
        stored = attempt(self.path, lambda: holds_values(self.path, self._values))
        samples, names, places = attempt(self.path, self._surveyed)
        if not names:
            raise DataError(f"{self.path} has no variants that are read by these rules, and so no columns.")
        if not stored:
            raise DataError(f"{self.path} announces genotypes of which nothing is stored. Restore it.")
        require_table(self.path, (samples, len(names)), self._rules.dtype)
        return samples, names, places

    def _surveyed(self) -> tuple[int, tuple[str, ...], tuple[_Place, ...]]:
        with opened(self.path) as root:
            if self._values not in root:
                raise DataError(f"{self.path} gives no dosages (DS). {CURE}")
            values, alleles = root[self._values], root["variant_allele"]
            shape = values.shape
            if (values.ndim, values.dtype.kind) != ((2, "f") if self._values == _DOSES else (3, "i")):
                raise DataError(f"{self.path}: {self._values} has another shape or type than VCF Zarr gives it. {CURE}")
            require_chunks(self.path, math.prod(values.chunks) * values.dtype.itemsize)
            if self._values == _CALLS and shape[2] > 2:
                raise DataError(f"{self.path} holds genotypes of more than two alleles each, and people are diploid.")
            if len(shape) < 2 or alleles.shape[0] != shape[0]:
                raise DataError(f"{self.path}: its arrays are of different numbers of variants. {CURE}")
            self._require_people(root, shape[1])
            names, places = list[str](), list[_Place]()
            for variant, (where, place, name, some) in enumerate(self._fixed(root, shape[0])):
                made = columns_of_site(where, place, name, some, self._rules)
                if made is None:
                    raise not_biallelic(f"{self.path}, variant {variant} (counting from 0)")
                if len(made) > 1 and self._values == _DOSES:
                    raise DataError(f"{self.path} has one dosage for each sample, and variant {variant} more alleles.")
                names += made
                places += [_Place(variant, allele, len(made)) for allele in range(1, len(made) + 1)]
        return shape[1], tuple(names), tuple(places)

    def _require_people(self, root: Any, samples: int) -> None:
        people = root.get("sample_id")
        if people is None:
            return
        if people.shape != (samples,):
            raise DataError(f"{self.path} names another number of samples than it has genotypes of. {CURE}")
        if len(set(_words(people, 0, samples))) < samples:
            raise DataError(f"{self.path} names a sample twice: one person would have several rows. {CURE}")

    def _fixed(self, root: Any, variants: int) -> Iterator[tuple[str, str, str, list[str]]]:
        """Yield where each variant is, its place there, its name, and its alleles."""
        contigs = _words(root["contig_id"], 0, root["contig_id"].shape[0])
        marks = {name: root[f"variant_{name}"] for name in ("contig", "position", "allele")}
        ids, size = root.get("variant_id"), 0
        for array in (*marks.values(), *(() if ids is None else (ids,))):
            if array.shape[0] != variants:
                raise DataError(f"{self.path}: its arrays are of different numbers of variants. {CURE}")
            require_chunks(self.path, math.prod(array.chunks) * array.dtype.itemsize)
        for start in range(0, variants, _TOGETHER):
            stop = min(start + _TOGETHER, variants)
            where, places = (np.asarray(marks[name][start:stop]).tolist() for name in ("contig", "position"))
            alleles = [[_word(each) for each in some] for some in np.asarray(marks["allele"][start:stop]).tolist()]
            named = ["."] * (stop - start) if ids is None else _words(ids, start, stop)
            for contig, place, name, some in zip(where, places, named, alleles, strict=True):
                size += len(name) + sum(map(len, some))
                if size > MOST_LABELS:
                    raise DataError(f"{self.path} names its variants by more than {MOST_LABELS >> 20} MiB.")
                yield contigs[contig], str(place), name or ".", [some[0], *filter(None, some[1:])]

    @property
    def names(self) -> tuple[str, ...]:
        return self._facts[1]

    @cached_property
    def unpacked(self) -> int:
        def read() -> int:
            with opened(self.path) as root:
                values = root[self._values]
                return int(math.prod(values.chunks) * values.dtype.itemsize)

        found: int = attempt(self.path, read)
        return found

    def survey(self, keep: Places) -> Survey:  # noqa: ARG002 - all are counts, or all dosages
        return surveyed(self.path, self._facts[0], self._rules.dtype.name)

    def blocks(self, keep: Places) -> Generator[Rows]:
        shape = (self._facts[0], len(keep))
        yield from turned(self.path, self.beside, self._columns(keep), shape, self._rules.dtype)

    def _columns(self, keep: Places) -> Iterator[Rows]:
        """Yield columns in the order that is asked for; those of neighbouring variants are read together."""
        samples, names, places = self._facts
        width = width_for(samples, np.dtype(np.float64))
        p = self._rules.allele_frequencies([names[place] for place in keep])
        with opened(self.path) as root:
            values = root[self._values]
            first = 0
            while first < len(keep):
                last = first + 1
                while last < len(keep) and last - first < width and keep[last] == keep[last - 1] + 1:
                    last += 1
                start = places[keep[first]].variant
                block = np.asarray(values[start : places[keep[last - 1]].variant + 1])
                columns = []
                for at in range(first, last):
                    place = places[keep[at]]
                    found, absent = self._counts(block[place.variant - start], place)
                    if p is None and absent.any():
                        if self.choices.missing is None:
                            raise missing(self.path, f"sample {int(np.argmax(absent)) + 1}", names[keep[at]])
                        found[absent] = self.choices.missing
                    columns.append(self._rules.finished(found, absent, None if p is None else p[at]))
                yield np.stack(columns, axis=1)
                first = last

    def _counts(self, values: npt.NDArray[Any], place: _Place) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the copies of an allele that each sample has, and of which that is missing."""
        if self._rules.field == "DS":
            absent = np.isnan(values)
            wrong = ~absent & ~((values >= 0) & (values <= 2))
            counts = np.where(absent, 0, values)
        else:
            alleles = (values != _NONE).sum(axis=1)
            absent = (values == _ABSENT).any(axis=1) | (alleles == 0)
            lone = (alleles == 1) & ~absent
            wrong = ((values > place.alleles) | (values < _NONE)).any(axis=1)
            wrong |= lone & (self._rules.haploid is None)
            counts = (values == place.allele).sum(axis=1)
            counts[lone] *= 2 if self._rules.haploid == "double" else 1
        if wrong.any():
            where = f"{self.path}, variant {place.variant}, sample {int(np.argmax(wrong))} (counting from 0)"
            if self._rules.field == "DS":
                raise DataError(f"{where}: the dosage is not a number of copies from 0 to 2. {CURE}")
            raise no_pair(where, self._rules, CURE)
        return counts, absent


def _words(array: Any, start: int, stop: int) -> list[str]:
    return [_word(each) for each in np.asarray(array[start:stop]).tolist()]


def _word(each: object) -> str:
    return each.decode() if isinstance(each, bytes) else str(each)
