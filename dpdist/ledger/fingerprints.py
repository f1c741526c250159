"""Fingerprints of rows in memory: how a process knows rows again that it released before. Private.

A row is known again in four ways. Each makes keys of rows, under a secret key of the process:

1. **exact**: BLAKE2b of the float64 values in their order. Two tables in which no row is there twice share rows if one
   key is common. So do two tables of as many rows with the same keys, each as often.
2. **in place**: three sums of the magnitudes with secret weights of the columns, to a relative 2^-16. It survives the
   last bits of every value, float32, signs, and columns of zeros at the end.
3. **largest**: the ratios of the three largest magnitudes of the row, to a relative 2^-16. It survives all of that,
   any order of the columns, another unit of the whole table, each row divided by its norm, and columns that are added
   or left out, as long as the largest values stay.
4. **steps**: of three rows that follow one another, two sums over the columns of what part the second step is of both.
   It survives a scaling and a centring of every column (a ``StandardScaler``, other units) and any order of the
   columns, but neither another order of the rows nor a random part of them.

Keys 2 to 4 are not unique to a row. Two rows of different people may agree in them, and in tables of categories, or of
answers yes and no, most do, in all their values too. So one common key is no proof there: what counts is whether more
keys are common than chance explains.

Suppose that two tables share no row, and that chance alone split the rows between them, as into training and test rows.
Look at the keys that both tables together hold 2 to 8 times (c), and count how many are in both. If every row goes to
the first table with probability q, a key is in both with probability ``1 - q^c - (1 - q)^c``, independently of the
others. So the count has the tail of Hoeffding (1963, theorem 1). In fact the number of rows in the first table is fixed
and not random. That multiplies the bound by at most ``sqrt(8 n1 n2 / (n1 + n2))``, the inverse of the least probability
of that number (Cover & Thomas 2006, lemma 17.5.1).

Tables are said to share rows where the bound is below :data:`FALSE_ALARMS`. Two tables of 300 rows need some 25 common
rows for that, two of 100,000 some 30. The bound is proved for keys 2 and 3. Three rows that follow one another are no
random part of a table, so for keys 4 it is a model; ``tests/ledger/test_fingerprints.py`` measures all of them.

Exact keys that both hold more often, as of yes and no, are looked at another way. Of two parts of one table, split by
chance, the counts differ by about their roots: the sum of ``(c1 n2 - c2 n1)² / ((c1 + c2) n1 n2)``, over the keys of
which five are expected in each, is about chi-square, with one degree of freedom fewer than keys (Pearson 1900). The
same people again, with a row more or less, or as another fold of a cross-validation, differ by less. Tables are said to
share rows where a sum so small has a probability below :data:`FALSE_ALARMS`. It is a model: parts of different shares,
as of two years, differ by more. Parts that were split to have the same shares (``stratify=``), and copies of a designed
experiment, differ by less, and are refused though they share no row.

Of each kind only the smallest keys are kept (a bottom-k sketch: Cohen & Kaplan 2007). If tables of different rows share
a part f of those of the first one, no exact key is seen to be common with probability at most ``(1 - f)^EXACT_KEPT``.

What is seen and what is not, measured with 300 rows of 8 normal columns (``tests/ledger/test_fingerprints.py``):

======================================================  ========
the second table                                        is known
======================================================  ========
the same rows: copy, order, type, chunks; one of them   yes
one ulp, relative noise of 1e-9, float32, six digits    yes
these in a half of the rows, a tenth among others       yes
columns in another order, rows too                      yes
columns of zeros, or of ones, added; a column left out  yes
another unit of the whole table; rows of norm 1         yes
each column scaled or centred: ``StandardScaler``, ...  yes
the same, and the rows in another order                 **no**
the same, and a column left out                         **no**
``log1p``; values rounded to three digits               **no**
fifteen rows, changed by an ulp, among others           **no**
one of them, where some rows are twice in a table       **no**
categories, changed or in another order of the columns  **no**
five columns of yes/no, with a row more or less; folds  yes
one to four columns of yes/no, the same                 **no**
a half of a table of few different rows, as of yes/no   **no**
======================================================  ========

The rows of a time series with seasons are no random split. Where rows that follow one another come back every year, one
year may be taken for another. Then a release is refused that need not be.

All keys take 0.7 (d = 1) to 1.9 times (d = 500) the time of the exact ones alone: 0.9 microseconds a row at d = 1, 25
at d = 2000. The whole sum over rows takes 1.0 to 1.6 times as long as with these alone.

This protects against accidents in a notebook, and not against intent: a row that is added to every other one is enough
to be missed. Keys of kinds 2 to 4 come from a fast mixing of bits and not from a cryptographic hash. All fingerprints
stay in the memory of this process and of its Dask workers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]
EXACT_KEPT = 2**16
"""Exact keys kept of one table, half a MiB."""
KEPT = 2**14
"""Keys of each other kind kept of one table."""
FALSE_ALARMS = 1e-4
"""Probability that two tables that share no row are said to, if they are a random split of one table."""
_MOST = 8
"""Keys that two tables hold more often are no evidence."""
_EXPECTED = 5
"""Rows of a key in the smaller table from which on its counts are about normal."""
_STEP = 2.0**-16
_PIECE = 2**15
"""Values whose keys are made at once, so that they stay in the cache."""


@dataclass(frozen=True)
class Sketch:
    """The smallest distinct keys of some items.

    Attributes
    ----------
    keys
        Sorted and distinct.
    counts
        uint32: how many items have each key.
    items
        How many items there are, those whose keys are not kept included.
    kept
        Most keys that are kept.
    """

    keys: Keys
    counts: npt.NDArray[np.uint32]
    items: int
    kept: int

    @classmethod
    def of(cls, keys: Keys, kept: int) -> Sketch:
        """Return the sketch of items with these keys."""
        found, counts = np.unique(keys, return_counts=True)
        return cls(found[:kept], counts[:kept].astype(np.uint32), len(keys), kept)

    @classmethod
    def union(cls, sketches: Sequence[Sketch]) -> Sketch:
        """Return the sketch of the items of all. A key that it keeps was kept by each that had it."""
        keys, place = np.unique(np.concatenate([each.keys for each in sketches]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([each.counts for each in sketches]), len(keys))
        kept = sketches[0].kept
        return cls(keys[:kept], counts[:kept].astype(np.uint32), sum(each.items for each in sketches), kept)

    def to(self, limit: int) -> Sketch:
        """Return the part of it with keys up to a limit."""
        stop = int(np.searchsorted(self.keys, np.uint64(limit), side="right"))
        return Sketch(self.keys[:stop], self.counts[:stop], self.items, self.kept)

    @property
    def few(self) -> npt.NDArray[np.intp]:
        """The counts, up to one more than is looked at."""
        return np.minimum(self.counts, _MOST + 1).astype(np.intp)

    @property
    def distinct(self) -> bool:
        """Whether no key is there twice."""
        return bool((self.counts == 1).all())

    @property
    def limit(self) -> int:
        """The largest key up to which nothing is left out."""
        return int(self.keys[-1]) if len(self.keys) == self.kept else 2**64 - 1


@dataclass(frozen=True)
class Fingerprints:
    """The fingerprints of a table, or of a part of it. Private.

    Attributes
    ----------
    exact
        Of the values.
    alike
        In place, largest and steps.
    """

    exact: Sketch
    alike: tuple[Sketch, ...]

    @classmethod
    def of(cls, rows: Values, key: bytes) -> Fingerprints:
        """Return the fingerprints of rows."""
        step = max(64, _PIECE // max(1, rows.shape[1]))
        pieces = [rows[start : start + step] for start in range(0, len(rows), step)]
        with np.errstate(all="ignore"):  # what is not finite is left out below, and refused elsewhere
            alike = [
                Sketch.of(np.concatenate([_NONE, *(_keys(kind, piece, key) for piece in pieces)]), KEPT)
                for kind in _KINDS
            ]
        return cls(Sketch.of(_exact(rows, key), EXACT_KEPT), tuple(alike))

    @classmethod
    def union(cls, parts: Sequence[Fingerprints]) -> Fingerprints:
        """Return the fingerprints of all rows of several parts of a table."""
        alike = zip(*(part.alike for part in parts), strict=True)
        return cls(Sketch.union([part.exact for part in parts]), tuple(Sketch.union(each) for each in alike))

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return sum(each.keys.nbytes + each.counts.nbytes for each in (self.exact, *self.alike))

    def same_rows(self, other: Fingerprints) -> bool:
        """Say whether two passes seem to have read the same rows, in any order: as many, with the same exact keys."""
        one, two = self.exact, other.exact
        same = np.array_equal(one.keys, two.keys) and np.array_equal(one.counts, two.counts)
        return same and one.items == two.items

    def share_rows(self, other: Fingerprints) -> bool:
        """Say whether two tables are seen to share rows."""
        if self.exact.distinct and other.exact.distinct:
            if np.intersect1d(self.exact.keys, other.exact.keys, assume_unique=True).size:
                return True
        elif self.same_rows(other):
            return True
        kinds = [(self.exact, other.exact), *zip(self.alike, other.alike, strict=True)]
        level = math.log(FALSE_ALARMS / (len(kinds) + 1))
        return too_alike(self.exact, other.exact) < math.exp(level) or any(log_chance(*pair) < level for pair in kinds)


def log_chance(first: Sketch, second: Sketch) -> float:
    """Return the logarithm of a bound on the probability that so many keys are common by chance.

    See the head of the module; 0 where no more are common than chance explains.
    """
    limit = min(first.limit, second.limit)
    one, two = first.to(limit), second.to(limit)
    _, here, there = np.intersect1d(one.keys, two.keys, assume_unique=True, return_indices=True)
    size = 2 * _MOST + 3
    both = np.bincount(one.few[here] + two.few[there], minlength=size)
    apart = np.zeros(size)
    for each, shared in ((one, here), (two, there)):
        apart += np.bincount(each.few, minlength=size) - np.bincount(each.few[shared], minlength=size)
    looked = slice(2, _MOST + 1)
    common, trials = int(both[looked].sum()), int((both + apart)[looked].sum())
    if not common:
        return 0.0
    part = one.items / (one.items + two.items)
    times = np.arange(size)
    expected = float(((both + apart) * (1 - part**times - (1 - part) ** times))[looked].sum()) / trials
    seen = common / trials
    if seen <= expected:
        return 0.0
    divergence = seen * math.log(seen / expected)
    divergence += (1 - seen) * math.log((1 - seen) / (1 - expected)) if seen < 1 else 0.0
    given_sizes = math.log(8 * part * two.items) / 2
    return min(0.0, given_sizes - trials * divergence)


def too_alike(first: Sketch, second: Sketch) -> float:
    """Return the probability that two parts of one table, split by chance, are as alike in keys that both hold often.

    See the head of the module; 1 where there are no two such keys, or not all are kept.
    """
    from scipy.special import gammainc  # noqa: PLC0415 - SciPy takes its time, and few need it

    if len(first.keys) == first.kept or len(second.keys) == second.kept:
        return 1.0
    keys = np.union1d(first.keys, second.keys)
    counts = np.zeros((2, len(keys)))
    for row, sketch in zip(counts, (first, second), strict=True):
        row[np.searchsorted(keys, sketch.keys)] = sketch.counts
    expected = counts.sum(axis=0) * min(first.items, second.items) / max(1, first.items + second.items)
    counts = counts[:, expected >= _EXPECTED]
    if counts.shape[1] < 2:
        return 1.0
    one, two = counts.sum(axis=1)
    apart = float(((counts[0] * two - counts[1] * one) ** 2 / (counts.sum(axis=0) * one * two)).sum())
    return float(gammainc((counts.shape[1] - 1) / 2, apart / 2))


def _exact(rows: Values, key: bytes) -> Keys:
    canonical = np.add(rows, 0.0, order="C")  # -0.0 becomes 0.0
    canonical[np.isnan(canonical)] = np.nan
    keyed = hashlib.blake2b(key=key, digest_size=8)
    found = np.empty(len(rows), dtype=np.uint64)
    for i, row in enumerate(canonical):
        each = keyed.copy()
        each.update(row.data)
        found[i] = int.from_bytes(each.digest(), "little")
    return found


def _in_place(rows: Values, key: bytes) -> Values:
    found: Values = np.log2(np.abs(rows) @ _weights(key, rows.shape[1]))
    return found


def _largest(rows: Values, _: bytes) -> Values:
    left = np.abs(rows)
    every = np.arange(len(left))
    largest = np.zeros((len(left), 3))
    for rank in range(min(3, left.shape[1])):
        column = left.argmax(axis=1)
        largest[:, rank] = left[every, column]
        left[every, column] = 0
    first, second, third = largest.T
    found: Values = np.log2(np.stack([first / second, np.where(third > 0, second / third, 1)], axis=1))
    found[second == 0] = np.nan  # one value alone has no ratio
    return found


def _steps(rows: Values, _: bytes) -> Values:
    steps = np.abs(np.diff(rows, axis=0))
    part = steps[1:]
    whole = steps[:-1] + part
    np.divide(part, whole, out=whole, where=whole > 0)  # where nothing moves the part is 0 already
    found: Values = np.stack([whole.sum(axis=1), np.einsum("ij,ij->i", whole, whole)], axis=1)
    return found


_KINDS: tuple[Callable[[Values, bytes], Values], ...] = (_in_place, _largest, _steps)
_NONE: Keys = np.empty(0, dtype=np.uint64)


def _keys(kind: Callable[[Values, bytes], Values], rows: Values, key: bytes) -> Keys:
    """Return the keys of the items that some rows make, without those that are zero or not finite."""
    features = kind(rows, key)
    features = features[np.isfinite(features).all(axis=1) & features.any(axis=1)]
    first, factor, *shifts = _words(key, kind.__name__, 2 + features.shape[1])
    found = np.full(len(features), first)
    for feature, shift in zip(features.T, shifts, strict=True):
        # a secret origin: else round numbers would lie where cells meet
        cells = np.floor(feature / _STEP + float(shift >> np.uint64(11)) * 2.0**-53).astype(np.int64)
        found = _mixed((found ^ cells.view(np.uint64)) * (factor | np.uint64(1)))
    return found


def _mixed(words: Keys) -> Keys:
    """Return words whose every bit depends on every bit (the finaliser of splitmix64: Steele, Lea & Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=64)
def _words(key: bytes, name: str, count: int) -> Keys:
    return np.frombuffer(hashlib.shake_256(key + name.encode()).digest(8 * count), dtype="<u8").astype(np.uint64)


@lru_cache(maxsize=8)
def _weights(key: bytes, columns: int) -> Values:
    """Return three weights of every column, between 0.5 and 1.5; those of a column depend on its place alone."""
    words = _words(key, "weights", 3 * columns)
    weights: Values = 0.5 + (words >> np.uint64(11)).astype(np.float64).reshape(columns, 3) * 2.0**-53
    return weights
