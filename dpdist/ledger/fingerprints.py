"""Fingerprints of rows in memory: how a process knows rows again that it released before. Private.

A row's key is BLAKE2b of its float64 values in their order, under a secret key of the process. Two tables in which no
row is there twice share rows if one key is common. So do two tables of as many rows with the same keys, each as often.

In tables of categories, or of answers yes and no, rows of different people have the same key. There one common key is
no proof: what counts is whether more keys are common than chance explains.

Suppose that two tables share no row, and that chance alone split the rows between them, as into training and test rows.
Look at the keys that both tables together hold 2 to 8 times (c), and count how many are in both. If every row goes to
the first table with probability q, a key is in both with probability ``1 - q^c - (1 - q)^c``, independently of the
others. So the count has the tail of Hoeffding (1963, theorem 1). In fact the number of rows in the first table is fixed
and not random. That multiplies the bound by at most ``sqrt(8 n1 n2 / (n1 + n2))``, the inverse of the least probability
of that number (Cover & Thomas 2006, lemma 17.5.1). Tables are said to share rows where the bound is below
:data:`FALSE_ALARMS`.

Only the smallest keys are kept (a bottom-k sketch: Cohen & Kaplan 2007). If tables of different rows share a part f of
those of the first one, no key is seen to be common with probability at most ``(1 - f)^KEPT``.

What is seen and what is not (``tests/ledger/test_fingerprints.py``):

======================================================  ========
the second table                                        is known
======================================================  ========
the same values: copy, order, type, chunks; one of them yes
these among others, or a part of them                   yes
any other values: float32 of float64, units, scalers    **no**
columns in another order, added or left out             **no**
one of them, where some rows are twice in a table       **no**
columns of yes/no, with a row more or less              **no**
a half of a table of few different rows, as of yes/no   **no**
======================================================  ========

What is not known again comes with a warning of the joint cost where rows and columns are as many
(:mod:`dpdist.ledger.in_memory`). This protects against accidents in a notebook, and not against intent. All
fingerprints stay in the memory of this process and of its Dask workers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]
KEPT = 2**16
"""Keys kept of one table, half a MiB."""
FALSE_ALARMS = 1e-4
"""Probability that two tables that share no row are said to, if they are a random split of one table."""
_MOST = 8
"""Keys that two tables hold more often are no evidence."""


@dataclass(frozen=True)
class Fingerprints:
    """The smallest distinct keys of the rows of a table, or of a part of it. Private."""

    keys: Keys  # sorted and distinct
    counts: npt.NDArray[np.uint32]  # how many rows have each key
    items: int  # rows, those whose keys are not kept included

    @classmethod
    def of(cls, rows: Values, key: bytes) -> Fingerprints:
        """Return the fingerprints of rows."""
        return cls.of_keys(_exact(rows, key))

    @classmethod
    def of_keys(cls, keys: Keys) -> Fingerprints:
        """Return the fingerprints of rows with these keys."""
        found, counts = np.unique(keys, return_counts=True)
        return cls(found[:KEPT], counts[:KEPT].astype(np.uint32), len(keys))

    @classmethod
    def union(cls, parts: Sequence[Fingerprints]) -> Fingerprints:
        """Return those of the rows of all parts. A key that it keeps was kept by each that had it."""
        keys, place = np.unique(np.concatenate([each.keys for each in parts]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([each.counts for each in parts]), len(keys))
        return cls(keys[:KEPT], counts[:KEPT].astype(np.uint32), sum(each.items for each in parts))

    def to(self, limit: int) -> Fingerprints:
        """Return the part of it with keys up to a limit."""
        stop = int(np.searchsorted(self.keys, np.uint64(limit), side="right"))
        return Fingerprints(self.keys[:stop], self.counts[:stop], self.items)

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
        return int(self.keys[-1]) if len(self.keys) == KEPT else 2**64 - 1

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return self.keys.nbytes + self.counts.nbytes

    def same_rows(self, other: Fingerprints) -> bool:
        """Say whether two passes seem to have read the same rows, in any order: as many, with the same keys."""
        same = np.array_equal(self.keys, other.keys) and np.array_equal(self.counts, other.counts)
        return same and self.items == other.items

    def share_rows(self, other: Fingerprints) -> bool:
        """Say whether two tables are seen to share rows."""
        if self.distinct and other.distinct:
            return bool(np.intersect1d(self.keys, other.keys, assume_unique=True).size)
        return self.same_rows(other) or log_chance(self, other) < math.log(FALSE_ALARMS)


def log_chance(first: Fingerprints, second: Fingerprints) -> float:
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
