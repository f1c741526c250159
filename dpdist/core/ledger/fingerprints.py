"""Fingerprints of rows: by them a process recognises rows that it has released.

**The same rows.** Two tables are the same if the sums of the 128-bit keyed digests of all their rows are equal modulo
2^128, as well as their numbers of rows, types and names. The order of the rows does not matter, unless each belongs to
a privacy unit (:class:`Order`). The key is secret and new in each process, so equal sums of different rows cannot be
sought; by chance two tables have them with probability 2^-128. An answer that is returned again tells the caller that
the rows are the same; releases do not, as each names its table otherwise.

**Fingerprints.** The key of a row is BLAKE2b of its float64 values in order, under a secret key of the process. Two
tables without duplicate rows share rows if they have a common key. Two tables with the same keys, at the same
frequencies, also share rows.

In tables of categories or yes/no answers, rows of different people can have the same key. A common key then proves
nothing; the test is whether more keys are common than chance explains.

Suppose that two tables share no row, and that rows were split between them at random, such as into training and test
rows. Consider the keys that occur c = 2 to 8 times in both tables together, and count those that occur in both. If each
row goes to the first table with probability q, a key is in both with probability ``1 - q^c - (1 - q)^c``, independently
of the others. So the count satisfies the tail bound of Hoeffding (1963, theorem 1). Since the number of rows in the
first table is fixed, not random, the bound is multiplied by at most ``sqrt(8 n1 n2 / (n1 + n2))``, the inverse of the
least probability of that number (Cover & Thomas 2006, lemma 17.5.1). Two tables count as sharing rows if the bound is
below :data:`FALSE_ALARMS`.

Only the smallest keys are kept (a bottom-k sketch: Cohen & Kaplan 2007). If a fraction f of the distinct rows of the
first table is shared, no common key is found with probability at most ``(1 - f)^KEPT``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]
KEPT = 2**16
"""Keys kept per table, half a MiB."""
FALSE_ALARMS = 1e-4
"""Probability that a random split of one table counts as two tables that share rows."""
_MAX_COUNT = 8
"""More frequent keys are no evidence."""
_MODULUS = 1 << 128


@dataclass(frozen=True)
class Fingerprints:
    """The smallest distinct keys of the rows of a table or a part of it. Private."""

    keys: Keys  # sorted and distinct
    counts: npt.NDArray[np.uint32]  # how many rows have each key
    items: int  # all rows, including those whose keys are not kept
    total: int = 0  # sum of 128-bit keyed digests of all rows, modulo 2^128: equal for equal rows in any order

    @classmethod
    def of(cls, rows: Values, key: bytes) -> Fingerprints:
        """Return the fingerprints of rows."""
        return cls.of_digests(row_digests(rows, key))

    @classmethod
    def of_digests(cls, digests: Keys) -> Fingerprints:
        """Return the fingerprints of rows with these digests."""
        total = sum(int(part) << 64 * place for place, part in enumerate(map(_summed, digests[:, 1:].T)))
        return replace(cls.of_keys(np.ascontiguousarray(digests[:, 0])), total=total % _MODULUS)

    @classmethod
    def of_keys(cls, keys: Keys) -> Fingerprints:
        """Return the fingerprints of rows with these keys."""
        distinct, counts = np.unique(keys, return_counts=True)
        return cls(distinct[:KEPT], counts[:KEPT].astype(np.uint32), len(keys))

    @classmethod
    def union(cls, parts: Sequence[Fingerprints]) -> Fingerprints:
        """Return the fingerprints of the rows of all parts, which kept all keys that the union keeps."""
        keys, index = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
        counts = np.bincount(index, np.concatenate([part.counts for part in parts]), len(keys))
        items, total = sum(part.items for part in parts), sum(part.total for part in parts) % _MODULUS
        return cls(keys[:KEPT], counts[:KEPT].astype(np.uint32), items, total)

    def up_to(self, limit: int) -> Fingerprints:
        """Return the fingerprints with keys up to a limit."""
        stop = int(np.searchsorted(self.keys, np.uint64(limit), side="right"))
        return Fingerprints(self.keys[:stop], self.counts[:stop], self.items)

    @property
    def capped_counts(self) -> npt.NDArray[np.intp]:
        """The counts, capped at one above the largest that is evaluated."""
        return np.minimum(self.counts, _MAX_COUNT + 1).astype(np.intp)

    @property
    def distinct(self) -> bool:
        """Whether no key occurs twice."""
        return bool((self.counts == 1).all())

    @property
    def limit(self) -> int:
        """The largest key up to which all keys are kept."""
        return int(self.keys[-1]) if len(self.keys) == KEPT else 2**64 - 1

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.keys.nbytes + self.counts.nbytes

    def same_rows(self, other: Fingerprints) -> bool:
        """Return whether two tables have the same number of rows with the same keys, in any order."""
        same = np.array_equal(self.keys, other.keys) and np.array_equal(self.counts, other.counts)
        return same and (self.items, self.total) == (other.items, other.total)

    def share_rows(self, other: Fingerprints) -> bool:
        """Return whether two tables appear to share rows."""
        if self.distinct and other.distinct:
            return bool(np.intersect1d(self.keys, other.keys, assume_unique=True).size)
        return self.same_rows(other) or log_chance(self, other) < math.log(FALSE_ALARMS)


def log_chance(first: Fingerprints, second: Fingerprints) -> float:
    """Return the logarithm of the bound on the probability of this many common keys by chance (module docstring)."""
    limit = min(first.limit, second.limit)
    left, right = first.up_to(limit), second.up_to(limit)
    _, left_index, right_index = np.intersect1d(left.keys, right.keys, assume_unique=True, return_indices=True)
    size = 2 * _MAX_COUNT + 3
    both = np.bincount(left.capped_counts[left_index] + right.capped_counts[right_index], minlength=size)
    single = np.zeros(size)
    for table, shared in ((left, left_index), (right, right_index)):
        counts = table.capped_counts
        single += np.bincount(counts, minlength=size) - np.bincount(counts[shared], minlength=size)
    looked = slice(2, _MAX_COUNT + 1)
    common, trials = int(both[looked].sum()), int((both + single)[looked].sum())
    if not common:
        return 0.0
    part = left.items / (left.items + right.items)
    times = np.arange(size)
    expected = float(((both + single) * (1 - part**times - (1 - part) ** times))[looked].sum()) / trials
    observed = common / trials
    if observed <= expected:
        return 0.0
    divergence = observed * math.log(observed / expected)
    divergence += (1 - observed) * math.log((1 - observed) / (1 - expected)) if observed < 1 else 0.0
    given_sizes = math.log(8 * part * right.items) / 2
    return min(0.0, given_sizes - trials * divergence)


def row_digests(rows: Values, key: bytes) -> Keys:
    """Return keyed digests of rows, (r, 3): the key of a row, and 128 bits that are summed."""
    canonical = np.add(rows, 0.0, order="C")  # -0.0 becomes 0.0
    canonical[np.isnan(canonical)] = np.nan
    keyed = hashlib.blake2b(key=key, digest_size=24)
    digests = bytearray()
    for row in canonical:
        digest = keyed.copy()
        digest.update(row.data)
        digests += digest.digest()
    return np.frombuffer(bytes(digests), dtype="<u8").astype(np.uint64).reshape(-1, 3)


def _summed(words: Keys) -> int:
    """Return the exact sum of 64-bit words."""
    low, high = words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)
    return int(low.sum()) + (int(high.sum()) << 32)


class Order:
    """The order of rows: the sum of their digests, each times the number of its row, modulo 2^64 in both words.

    It is taken over parts, in any partition: by chance two orders of different rows have the same with probability
    2^-64 or less, unless they exchange rows at distances that large powers of two divide.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sums, self._placed = np.zeros(2, np.uint64), np.zeros(2, np.uint64)

    def add(self, digests: Keys) -> None:
        """Add the next rows of a part."""
        words, count = digests[:, 1:], len(digests)
        numbers = np.arange(self.rows, self.rows + count, dtype=np.uint64)
        self._sums += words.sum(axis=0, dtype=np.uint64)
        self._placed += (words * numbers[:, None]).sum(axis=0, dtype=np.uint64)
        self.rows += count

    def placed_after(self, rows: int) -> tuple[int, int]:
        """Return the sums of a part that follows after ``rows`` rows."""
        low, high = self._placed + self._sums * np.uint64(rows)
        return int(low), int(high)
