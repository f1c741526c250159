"""Categories and booleans about their public middles, and the height of the constant beside them.

**Contrasts.** A category of k values is centred at 1/k, and the values of a boolean become -1/sqrt(2) and 1/sqrt(2),
times the weight of the column. So all categories and booleans have the same weight, and the norm ``sqrt(1 - 1/k)``.
Beside numbers that are divided by their deviations all are larger by sqrt(2): a boolean is -1 or 1, with at most the
deviation 1 of a number. Noise at sqrt(2) over that at 1 is .54 to .61 on cells of tables, .76 to .87 on sums of numbers
by category, and 1.07 to 1.22 on covariances of numbers (customers, five categories beside five numbers, Covertype:
``benchmarks/results/weights.md``).

**The constant** is the norm C of a row over two or four. A smaller one makes tables of two categories more accurate,
and means less. With numbers it is C/2: C/4 would make noise on means 1.7 times larger, and on covariances and tables
some 15 % smaller. Without numbers it is the one with less variance in the cells of all tables of two columns, from
least squares: if w_i is the weight of column i of k_i values, and c the constant, noise of variance
``s² = (C² + c²)²`` has

    ``s² (v_i (k_i - 1) / k_j + v_j (k_j - 1) / k_i + (k_i - 1) (k_j - 1) / (2 w_i² w_j²))``,

``1 / v_i = w_i² (2 c² + w_i² (1 - 2 / k_i))``, in the sum over the cells of columns i and j. The best real number has
at most 8 % less on tables from 2 to 40 columns of 2 to 40 values (``benchmarks/results/cells.md``). It follows from the
schema alone, so that releases of periods and of several tables can be added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpdist.core.rows.schema import Schema


def contrasts_of(schema: Schema, *, scaled: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the public centre and scale of the columns of the rows; ``scaled``: beside numbers of a private scale."""
    factor = math.sqrt(2) if scaled else 1.0
    centre: list[float] = []
    scale: list[float] = []
    for column in schema.columns:
        if not column.stored:
            continue
        weight, count = float(column.weight or 1), column.width
        centre += [weight / count if column.one_hot else 0.0] * count
        scale += [1 / factor if column.one_hot else 1.0] * count
        if column.whole and not column.one_hot:
            low, high, shift, slope = schema.affine(column)
            value = len(centre) - count  # before its indicator
            centre[value] = ((low + high) / 2 - shift) * slope
            scale[value] = (high - low) * slope / (math.sqrt(2) * weight * factor)
    return tuple(centre), tuple(scale)


def constant_bits_of(kinds: Sequence[tuple[float, int]]) -> int:
    """Return the power of two below C for columns given by weight and number of values, without numbers: 1 or 2."""
    varying = [(weight, k) for weight, k in kinds if k > 1]
    if not varying:
        return 1
    heaviest = max(weight for weight, _ in varying)
    squares = [((weight / heaviest) ** 2, k) for weight, k in varying]
    norm = math.fsum(w * (1 - 1 / k) for w, k in squares)

    def variance(bits: int) -> float:
        constant = norm / float(4**bits)
        margins = [1 / (w * (2 * constant + w * (1 - 2 / k))) for w, k in squares]
        cells = math.fsum(
            margins[i] * (k - 1) / m + margins[j] * (m - 1) / k + (k - 1) * (m - 1) / (2 * w * v)
            for (i, (w, k)), (j, (v, m)) in combinations(enumerate(squares), 2)
        )
        return cells * (norm + constant) * (norm + constant)

    return min((1, 2), key=variance)
