"""The share of the loss that a private histogram takes, where nobody names one.

Noise on a count has a standard deviation of ``Delta / (mu sqrt(share))``, or ``sqrt(2) Delta / (epsilon share)`` where
the loss has no mu, with the sensitivity ``Delta`` of the histogram. The share is the least whole percent at which that
is at most .005 n for the histograms of the columns, whose sums then give a scale within some 20 %, and .004 n for that
of the norms. It is at least .01 and at most .25: the release has ``1 / (1 - share)`` times the variance. More does not
pay: at epsilon .1 and K = 10 a tenth of mu² on the norms of 48,842 x 123 numbers captured .958, .02 captured .963. n is
public, or ``rows_at_most`` where somebody names it. Where nothing is known of n the share is a tenth.

All of it is public and fixed before anything is drawn, so the theorem of :mod:`dpdist.privacy.staged` holds at any
share.
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpdist.privacy.accounting import gaussian_sigma
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss

UNKNOWN = Fraction(1, 10)
"""Where nothing is known of n; and by the first rule."""
LARGEST = Fraction(1, 4)
_COLUMNS, _NORMS = 0.005, 0.004


def share_for(
    loss: PrivacyLoss, neighbours: Neighbours, rows: int, *, columns: int | None, max_rows: int, gaussian: bool
) -> Fraction:
    """Return the share that a histogram takes, in whole percents."""
    exchanged = 2 if neighbours is Neighbours.REPLACE_ONE else 1
    allowed = rows * (_NORMS if columns is None else _COLUMNS) / max_rows
    if gaussian:
        share = exchanged * (columns or 1) * (float(gaussian_sigma(loss)) / allowed) ** 2
    else:
        share = math.sqrt(2) * exchanged * (columns or 1) / (loss.epsilon * allowed)
    return min(LARGEST, Fraction(max(1, math.ceil(100 * min(share, 1))), 100))
