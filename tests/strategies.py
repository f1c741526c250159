"""What properties are tested on: rows as hostile as floats can be, seeds and random words."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

SEEDS = st.integers(0, 2**32 - 1)
WORDS = st.integers(0, 2**64 - 1)
"""What a generator of random bits gives at once."""
ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)


def float_rows(
    rows: int, columns: int, elements: st.SearchStrategy[float] = ANY_FLOAT
) -> st.SearchStrategy[npt.NDArray[np.float64]]:
    """Return tables of this shape; of any floats, or of those that are given."""
    return hnp.arrays(np.float64, (rows, columns), elements=elements)
