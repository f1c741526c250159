"""Parquet datasets in folders named KEY=VALUE, as Hive, Spark and Arrow write them: each key is a column.

As in Arrow, the columns of the keys follow those of the files, and their values are read from the names of the folders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from dpdist.errors import DataError
from dpdist.ingest.readers.base import CURE, Places, Rows, Runs, Source, Survey
from dpdist.naming import parameter

Keys = tuple[tuple[str, str], ...]
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
"""Not what Python takes beside it: digits of other scripts, and underscores between digits."""


def key_in(name: str) -> tuple[str, str] | None:
    """Return key and value of the name of a folder, or None.

    Examples
    --------
    >>> key_in("year=2026"), key_in("year")
    (('year', '2026'), None)
    """
    key, equals, value = name.partition("=")
    return (unquote(key), unquote(value)) if equals and key else None


@dataclass(frozen=True)
class Partitioned(Source):
    """A file of a dataset, with the keys of the folders it lies in.

    Parameters
    ----------
    inner
        The file.
    keys
        Name and text of every key, the outermost first.
    """

    inner: Any = None  # a Source
    keys: Keys = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.inner.names, *(key for key, _ in self.keys))

    @property
    def kinds(self) -> tuple[Any, ...] | None:
        found = self.inner.kinds
        return None if found is None else (*found, *(pa.string() for _ in self.keys))

    def _split(self, keep: Places) -> tuple[Places, dict[int, np.generic]]:
        """Return the columns of the file, and the values of the keys by their places in ``keep``."""
        count = len(self.inner.names)
        held = tuple(place for place in keep if place < count)
        keys = {at: self._value(*self.keys[place - count]) for at, place in enumerate(keep) if place >= count}
        return held, keys

    def _value(self, key: str, text: str) -> np.generic:
        value: float | None = None
        if _WHOLE.fullmatch(text):
            value = int(text)
        elif _NUMBER.fullmatch(text):
            value = float(text)
        if value is None or not math.isfinite(value) or (isinstance(value, int) and not -(2**63) <= value < 2**64):
            raise DataError(
                f"{self.path}, column {key!r}: the value in the name of the folder is not a number. Leave the column "
                f"out ({parameter('columns')}). {CURE}"
            )
        dtype = np.min_scalar_type(value) if isinstance(value, int) else np.dtype(np.float64)
        found: np.generic = dtype.type(value)
        return found

    def survey(self, keep: Places) -> Survey:
        held, keys = self._split(keep)
        found: Survey = self.inner.survey(held)
        kinds = [value.dtype for value in keys.values()] + ([found.dtype] if held else [])
        return Survey(found.rows, np.result_type(*kinds))

    def kept_as(self, place: int) -> np.dtype[np.generic] | None:
        held, _ = self._split((place,))
        found: np.dtype[np.generic] | None = self.inner.kept_as(place) if held else None
        return found

    def blocks(self, keep: Places) -> Generator[Rows]:
        return self._completed(keep, self.inner.blocks(self._split(keep)[0]))

    def runs(self, keep: Places) -> Runs | None:
        found: Runs | None = self.inner.runs(self._split(keep)[0])
        return found

    def part(self, keep: Places, start: int, stop: int) -> Generator[Rows]:
        return self._completed(keep, self.inner.part(self._split(keep)[0], start, stop))

    def _completed(self, keep: Places, blocks: Generator[Rows]) -> Generator[Rows]:
        """Put the columns of the keys beside those of the file."""
        _, keys = self._split(keep)
        if not keys:
            yield from blocks
            return
        dtype = self.survey(keep).dtype
        others = [at for at in range(len(keep)) if at not in keys]
        for block in blocks:
            out = np.empty((block.shape[0], len(keep)), dtype=dtype)
            out[:, others] = block
            for at, value in keys.items():
                out[:, at] = value
            yield out
