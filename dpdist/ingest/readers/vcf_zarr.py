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
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from dpdist.errors import DataError
from dpdist.ingest.readers.base import CURE, MOST_LABELS, Places, Rows, attempt
from dpdist.ingest.readers.calls import Calls, Facts, Site
from dpdist.ingest.readers.chunked import require_chunks
from dpdist.ingest.readers.genotypes import columns_of_site, no_pair, not_biallelic, told_apart
from dpdist.ingest.readers.zarr_store import holds_values, opened, require_foreign

_CALLS, _DOSES = "call_genotype", "call_DS"
_TOGETHER = 4096
"""Variants whose names are read at once."""
_ABSENT, _NONE = -1, -2
"""Of an allele: it is missing, or there is none."""


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


class VcfZarr(Calls):
    """A store of genotypes: how many copies of the alternative allele each sample has, 0, 1 or 2."""

    fragile = True

    @property
    def _array(self) -> str:
        return _DOSES if self.rules.field == "DS" else _CALLS

    @cached_property
    def facts(self) -> Facts:
        require_foreign(self.path, _CALLS)
        found = attempt(self.path, self._surveyed)
        if not attempt(self.path, lambda: holds_values(self.path, self._array)):
            raise DataError(f"{self.path} announces genotypes of which nothing is stored. Restore it.")
        return found

    def _surveyed(self) -> Facts:
        with opened(self.path) as root:
            if self._array not in root:
                raise DataError(f"{self.path} gives no dosages (DS). {CURE}")
            values, alleles = root[self._array], root["variant_allele"]
            shape = values.shape
            if (values.ndim, values.dtype.kind) != ((2, "f") if self._array == _DOSES else (3, "i")):
                raise DataError(f"{self.path}: {self._array} has another shape or type than VCF Zarr gives it. {CURE}")
            require_chunks(self.path, math.prod(values.chunks) * values.dtype.itemsize)
            if self._array == _CALLS and shape[2] > 2:
                raise DataError(f"{self.path} holds genotypes of more than two alleles each, and people are diploid.")
            if len(shape) < 2 or alleles.shape[0] != shape[0]:
                raise DataError(f"{self.path}: its arrays are of different numbers of variants. {CURE}")
            people = self._people(root, shape[1])
            names, places, pairs = list[str](), list[Site](), list[tuple[str, str]]()
            for variant, (where, place, name, some) in enumerate(self._fixed(root, shape[0])):
                made = columns_of_site(where, place, name, some, self.rules)
                if made is None:
                    raise not_biallelic(f"{self.path}, variant {variant} (counting from 0)")
                if len(made) > 1 and self._array == _DOSES:
                    raise DataError(f"{self.path} has one dosage for each sample, and variant {variant} more alleles.")
                names += made
                pairs += [(other, some[0]) for other in some[1:]] if made else []
                places += [Site(variant, allele, len(made)) for allele in range(1, len(made) + 1)]
        return Facts(shape[1], people, told_apart(names, [counted for counted, _ in pairs]), pairs, places)

    def _people(self, root: Any, samples: int) -> dict[str, list[str]]:
        names = root.get("sample_id")
        if names is None:
            return {}
        if names.shape != (samples,):
            raise DataError(f"{self.path} names another number of samples than it has genotypes of. {CURE}")
        return {"sample": _words(names, 0, samples)}

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

    @cached_property
    def unpacked(self) -> int:
        def read() -> int:
            with opened(self.path) as root:
                values = root[self._array]
                return int(math.prod(values.chunks) * values.dtype.itemsize)

        found: int = attempt(self.path, read)
        return found

    def columns(self, keep: Places) -> Iterator[Rows]:
        sites, width, p = self.facts.sites, self.width(np.dtype(np.float64)), self.frequencies(keep)
        with opened(self.path) as root:
            values = root[self._array]
            first = 0
            while first < len(keep):  # those of neighbouring variants are read together
                last = first + 1
                while last < len(keep) and last - first < width and keep[last] == keep[last - 1] + 1:
                    last += 1
                some = keep[first:last]
                start = sites[some[0]].variant
                block = np.asarray(values[start : sites[some[-1]].variant + 1])
                found = [self._counts(block[sites[place].variant - start], sites[place]) for place in some]
                counts, absent = (np.stack(each, axis=1) for each in zip(*found, strict=True))
                yield self.finished(counts, absent, some, None if p is None else p[first:last])
                first = last

    def _counts(self, values: npt.NDArray[Any], place: Site) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the copies of an allele that each sample has, and of which that is missing."""
        if self.rules.field == "DS":
            absent = np.isnan(values)
            wrong = ~absent & ~((values >= 0) & (values <= 2))
            counts = np.where(absent, 0, values)
        else:
            alleles = (values != _NONE).sum(axis=1)
            absent = (values == _ABSENT).any(axis=1) | (alleles == 0)
            lone = (alleles == 1) & ~absent
            wrong = ((values > place.columns) | (values < _NONE)).any(axis=1)
            wrong |= lone & (self.rules.haploid is None)
            counts = (values == place.allele).sum(axis=1)
            counts[lone] *= 2 if self.rules.haploid == "double" else 1
        if wrong.any():
            where = f"{self.path}, variant {place.variant}, sample {int(np.argmax(wrong))} (counting from 0)"
            if self.rules.field == "DS":
                raise DataError(f"{where}: the dosage is not a number of copies from 0 to 2. {CURE}")
            raise no_pair(where, self.rules, CURE)
        return counts, absent


def _words(array: Any, start: int, stop: int) -> list[str]:
    return [_word(each) for each in np.asarray(array[start:stop]).tolist()]


def _word(each: object) -> str:
    return each.decode() if isinstance(each, bytes) else str(each)
