"""What becomes of genotypes that are more than a pair of two alleles, or less: rules that a person states.

Each is a map of one sample, so the guarantee is about the samples of the file. Which sites a file lists, and with which
alleles, is taken for public: keep those of a public list (``--columns``).

* ``multiallelic``: a site of more than two alleles is left out (``skip``), or each alternative allele has a column of
  its own, named ``NAME:ALLELE``, of the copies of that allele (``split``).
* ``haploid``: one allele alone, as on X and Y of men, counts once (``single``), or twice as PLINK codes it
  (``double``).
* ``field``: the genotype (``GT``), or the expected copies of the alternative allele, from 0 to 2 (``DS``).
* ``frequencies``: a public file of the frequency p of the counted allele of each variant, of a reference panel and not
  of these samples. What is missing becomes 2p.
* ``standardise``: ``yes`` makes each value ``(g - 2p) / sqrt(2p(1 - p))`` (Patterson, Price & Reich 2006).

A genotype of which one allele is missing is missing.
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

from dpdist._util.paths import local, read_plain
from dpdist._util.text import counted, listed
from dpdist.errors import DataError, UsageError
from dpdist.naming import parameter

Counts = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]
MISSING = 254  # what marks a count that is missing
_RULES: dict[str, tuple[str, ...]] = {
    "multiallelic": ("skip", "split"), "haploid": ("single", "double"), "field": ("GT", "DS"), "standardise": ("yes",),
}  # fmt: skip
_LARGEST_FILE = 1 << 30


@dataclass(frozen=True)
class Genotypes:
    """Rules for genotypes (see the module); None: such a genotype, or site, is refused."""

    multiallelic: str | None = None
    haploid: str | None = None
    field: str | None = None
    frequencies: str | None = None  # absolute path of the public file
    standardise: str | None = None
    digest: str | None = None  # SHA-256 of its content, hexadecimal

    def __post_init__(self) -> None:
        for name, choices in _RULES.items():
            if (value := getattr(self, name)) not in {None, *choices}:
                raise UsageError(f"{name} of {parameter('genotypes')} is {' or '.join(choices)}, not {value!r}.")
        if self.standardise and self.frequencies is None:
            raise UsageError(f"standardise of {parameter('genotypes')} needs frequencies, a public file.")

    @classmethod
    def of(cls, rules: Mapping[str, str], folder: Path | None = None) -> Genotypes | None:
        """Return what a person stated; None if nothing."""
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
        """Return JSON values: what was stated, and of the file its digest, wherever it is."""
        return self._without("frequencies")

    @property
    def stated(self) -> dict[str, str]:
        """The rules, as :meth:`of` takes them."""
        return self._without("digest")

    def _without(self, field: str) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if value is not None and name != field}

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of what comes out."""
        return np.dtype(np.float32 if self.frequencies is not None or self.field == "DS" else np.uint8)

    def allele_frequencies(self, names: Sequence[str]) -> npt.NDArray[np.float64] | None:
        """Return p of each variant; None where there is no file."""
        if self.frequencies is None:
            return None
        by_name = _frequencies(self.frequencies, self.digest or "")
        if lacking := [name for name in names if name not in by_name]:
            raise DataError(
                f"{self.frequencies} has no frequency of {counted(len(lacking), 'variant')}, such as "
                f"{listed(lacking[:3])}. Add them, or leave the variants out ({parameter('columns')})."
            )
        return np.array([by_name[name] for name in names])

    def finished(self, values: Values, absent: npt.NDArray[np.bool_], p: npt.NDArray[np.float64] | None) -> Values:
        """Return what becomes of counts or dosages, (samples, v), of which some are absent, by frequencies (v,)."""
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
    """Return the names of the columns that a site becomes, one for each alternative allele; None: it is refused."""
    first, *alternatives = alleles
    if len(alternatives) == 1:
        return [f"{contig}:{position}:{first}:{alternatives[0]}" if name == "." else name]
    if rules.multiallelic is None:
        return None
    if rules.multiallelic == "skip":
        return []
    return [f"{contig}:{position}:{first}:{allele}" if name == "." else f"{name}:{allele}" for allele in alternatives]


def unique_names(names: Sequence[str], alleles: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns, and behind one that several have the allele that is counted.

    Examples
    --------
    >>> unique_names(["rs1", "rs1", "rs2"], ["T", "C", "A"])
    ('rs1:T', 'rs1:C', 'rs2')
    """
    times = Counter(names)
    return tuple(f"{name}:{allele}" if times[name] > 1 else name for name, allele in zip(names, alleles, strict=True))


def not_biallelic(where: str) -> DataError:
    """Return what is said of a site without two alleles, where nobody said what to do with it."""
    return DataError(
        f"{where}: not a site of two alleles. Leave such sites out, or give each allele but the first a column of its "
        f"own ({parameter('genotypes', 'multiallelic=skip')} or split)."
    )


def invalid_genotype(where: str, rules: Genotypes, cure: str) -> DataError:
    """Return the error for a dosage out of range, or a genotype that is not a pair of the alleles of its site."""
    if rules.field == "DS":
        return DataError(f"{where}: the dosage is not a number of copies from 0 to 2. {cure}")
    lone = parameter("genotypes", "haploid=single")
    rule = "" if rules.haploid else f" One allele alone, as on X of men, is read by a rule ({lone}, or double)."
    return DataError(f"{where}: the genotype is not a pair of the alleles of its site.{rule} {cure}")


def _read(path: Path) -> bytes:
    try:
        return read_plain(path, _LARGEST_FILE)
    except (OSError, ValueError):
        raise DataError(f"The file of frequencies {path} cannot be read.") from None


@lru_cache(maxsize=1)
def _frequencies(path: str, digest: str) -> dict[str, float]:
    content = _read(Path(path))
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"The file of frequencies {path} changed while it was used. Ingest again.")
    frequencies: dict[str, float] = {}
    try:
        text = content.decode()
        rows = csv.reader(io.StringIO(text), delimiter="\t" if "\t" in text.partition("\n")[0] else ",")
        for number, row in enumerate(rows, 1):
            if number == 1 and row[1:2] == ["frequency"]:
                continue
            name, frequency = row
            if name in frequencies:
                raise DataError(f"{path}, line {number}: {name!r} has a frequency already.")
            frequencies[name] = float(frequency)
            if not 0 < frequencies[name] < 1 or not math.isfinite(frequencies[name]):
                raise ValueError  # noqa: TRY301 - one message for whatever is wrong with a line
    except (ValueError, csv.Error):
        pass
    else:
        return frequencies
    raise DataError(
        f"{path} is no file of frequencies: a line for each variant with its name and the frequency of the counted "
        "allele, between 0 and 1, both excluded, separated by a comma or a tab. The first line may be `name,frequency`."
    )
