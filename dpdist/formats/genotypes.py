"""User-chosen rules for genotypes other than pairs of two alleles.

Each rule maps one sample, so the guarantee protects the samples of the file. The sites of a file and their alleles
count as public: keep those of a public list (``--columns``).

* ``multiallelic``: sites with more than two alleles are left out (``skip``), or each alternative allele has a column
  of counts, named ``NAME:ALLELE`` (``split``).
* ``haploid``: a single allele, as on X and Y of men, counts once (``single``), or twice as in PLINK (``double``).
* ``field``: the genotype (``GT``), or the dosage of the alternative allele, from 0 to 2 (``DS``).
* ``frequencies``: a public file of the frequency p of the counted allele of each variant, from a reference panel and
  not from these samples. Missing values become 2p.
* ``standardise``: ``yes`` maps each value to ``(g - 2p) / sqrt(2p(1 - p))`` (Patterson, Price & Reich 2006).

A genotype with one missing allele is missing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, UsageError
from dpdist.core.naming import parameter
from dpdist.core.paths import local, read_plain
from dpdist.core.text import counted, listed

Counts = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]
MISSING = 254  # marks a missing count
_RULES: dict[str, tuple[str, ...]] = {
    "multiallelic": ("skip", "split"), "haploid": ("single", "double"), "field": ("GT", "DS"), "standardise": ("yes",),
}  # fmt: skip
_LARGEST_FILE = 1 << 30


@dataclass(frozen=True)
class Genotypes:
    """Rules for genotypes (see the module); None: refuse such a genotype or site."""

    multiallelic: str | None = None
    haploid: str | None = None
    field: str | None = None
    frequencies: str | None = None  # absolute path of the public file
    standardise: str | None = None
    digest: str | None = None  # SHA-256 of that file, hexadecimal

    def __post_init__(self) -> None:
        for name, choices in _RULES.items():
            if (value := getattr(self, name)) not in {None, *choices}:
                raise UsageError(f"{name} of {parameter('genotypes')} is {' or '.join(choices)}, not {value!r}.")
        if self.standardise and self.frequencies is None:
            raise UsageError(f"standardise of {parameter('genotypes')} needs frequencies, a public file.")

    @classmethod
    def of(cls, rules: Mapping[str, str], folder: Path | None = None) -> Genotypes | None:
        """Parse the rules of a user; None if there are none."""
        names = (*_RULES, "frequencies")
        if unknown := [name for name in rules if name not in names]:
            raise UsageError(f"{parameter('genotypes')} takes {', '.join(names)}, not {listed(unknown)}.")
        if not rules:
            return None
        file = rules.get("frequencies")
        path = None if file is None else (local(file) if folder is None else folder / local(file)).absolute()
        digest = None if path is None else hashlib.sha256(_read(path)).hexdigest()
        return cls(**{**rules, "frequencies": None if path is None else str(path), "digest": digest})

    def to_json(self) -> dict[str, str]:
        """Return the rules as JSON values, with the digest of the file instead of its path."""
        return self._without("frequencies")

    @property
    def stated(self) -> dict[str, str]:
        """The rules, as :meth:`of` takes them."""
        return self._without("digest")

    def _without(self, field: str) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if value is not None and name != field}

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of the mapped values."""
        return np.dtype(np.float32 if self.frequencies is not None or self.field == "DS" else np.uint8)

    def allele_frequencies(self, names: Sequence[str]) -> npt.NDArray[np.float64] | None:
        """Return p of each variant; None without a file."""
        if self.frequencies is None:
            return None
        by_name = _frequencies(self.frequencies, self.digest or "")
        if lacking := [name for name in names if name not in by_name]:
            raise DataError(
                f"{self.frequencies} lacks the frequency of {counted(len(lacking), 'variant')}, such as "
                f"{listed(lacking[:3])}. Add them, or leave the variants out ({parameter('columns')})."
            )
        return np.array([by_name[name] for name in names])

    def finished(self, values: Values, absent: npt.NDArray[np.bool_], p: npt.NDArray[np.float64] | None) -> Values:
        """Map counts or dosages, (samples, v), with frequencies (v,)."""
        if p is None:
            return values.astype(self.dtype)
        result = np.where(absent, 2 * p, values)
        if self.standardise:
            result = (result - 2 * p) / np.sqrt(2 * p * (1 - p))
        return result.astype(self.dtype)


NO_RULES = Genotypes()


def columns_of_site(
    contig: str, position: str, name: str, alleles: Sequence[str], rules: Genotypes
) -> list[str] | None:
    """Return the column names of a site, one per alternative allele; None if it is refused."""
    first, *alternatives = alleles
    if len(alternatives) == 1:
        return [f"{contig}:{position}:{first}:{alternatives[0]}" if name == "." else name]
    if rules.multiallelic is None:
        return None
    if rules.multiallelic == "skip":
        return []
    return [f"{contig}:{position}:{first}:{allele}" if name == "." else f"{name}:{allele}" for allele in alternatives]


def unique_names(names: Sequence[str], alleles: Sequence[str]) -> tuple[str, ...]:
    """Append the counted allele to repeated column names.

    Examples
    --------
    >>> unique_names(["rs1", "rs1", "rs2"], ["T", "C", "A"])
    ('rs1:T', 'rs1:C', 'rs2')
    """
    times = Counter(names)
    return tuple(f"{name}:{allele}" if times[name] > 1 else name for name, allele in zip(names, alleles, strict=True))


def not_biallelic(where: str) -> DataError:
    """Return the error for a site without two alleles."""
    return DataError(
        f"{where}: the site does not have two alleles. Leave such sites out, or give each alternative allele a column "
        f"({parameter('genotypes.multiallelic', 'skip')} or split)."
    )


def invalid_genotype(where: str, rules: Genotypes, cure: str) -> DataError:
    """Return the error for an invalid dosage or genotype."""
    if rules.field == "DS":
        return DataError(f"{where}: the dosage is not a number from 0 to 2. {cure}")
    lone = parameter("genotypes.haploid", "single")
    rule = "" if rules.haploid else f" For single alleles, as on X of men, choose a rule ({lone}, or double)."
    return DataError(f"{where}: the genotype is not a pair of the alleles of its site.{rule} {cure}")


def _read(path: Path) -> bytes:
    try:
        return read_plain(path, _LARGEST_FILE)
    except (OSError, ValueError):
        raise DataError(f"The file of frequencies {path} cannot be read. Check the path and its permissions.") from None


@lru_cache(maxsize=1)
def _frequencies(path: str, digest: str) -> dict[str, float]:
    content = _read(Path(path))
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"The file of frequencies {path} changed during the ingest. Ingest again.")
    frequencies: dict[str, float] = {}
    try:
        text = content.decode()
        rows = csv.reader(io.StringIO(text), delimiter="\t" if "\t" in text.partition("\n")[0] else ",")
        for number, row in enumerate(rows, 1):
            if number == 1 and row[1:2] == ["frequency"]:
                continue
            name, frequency = row
            if name in frequencies:
                raise DataError(f"{path}, line {number}: {name!r} is repeated. Remove one line.")
            frequencies[name] = float(frequency)
            if not 0 < frequencies[name] < 1 or not math.isfinite(frequencies[name]):
                raise ValueError  # noqa: TRY301 - one message for all faults of a line
    except (ValueError, csv.Error):
        pass
    else:
        return frequencies
    raise DataError(
        f"{path} is not a file of frequencies. Write a line per variant: its name and the frequency of the counted "
        "allele, above 0 and below 1, separated by a comma or a tab. The first line may be `name,frequency`."
    )
