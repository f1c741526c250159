"""Compare a printed error, which is one run, with the single runs measured here."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from papers.common.runs import Json

FEWEST = 10
"""With fewer runs there are no quantiles to speak of, and nothing is compared."""
QUANTILES = (0.05, 0.5, 0.95)
_STEPS = 24
"""Points between two epsilons of the scan, for the quantiles in between."""


def spread(values: Sequence[float]) -> Json:
    """Return the quantiles of single runs, the extremes, and how many runs there are.

    Examples
    --------
    >>> spread([1.0, 2.0, 3.0])
    {'runs': 3, '5%': 1.1, 'median': 2.0, '95%': 2.9, 'smallest': 1.0, 'largest': 3.0}
    """
    low, middle, high = (round(float(value), 4) for value in np.quantile(values, QUANTILES))
    return {"runs": len(values), "5%": low, "median": middle, "95%": high} | {
        "smallest": min(values),
        "largest": max(values),
    }


def agreeing(scan: dict[str, Json], printed: float) -> list[float] | None:
    """Return the epsilons at which a printed error lies between the 5 and 95 % quantiles of single runs.

    Between two epsilons of the scan the quantiles are interpolated in the logarithm of epsilon.

    Parameters
    ----------
    scan
        :func:`spread` by epsilon, ascending.
    printed
        In per cent.

    Returns
    -------
    list of float, or None
        None where there are fewer than ``FEWEST`` runs.

    Examples
    --------
    >>> scan = {"0.1": spread([8.0, 9, 10, 11, 12] * 2), "1": spread([4.0, 5, 6, 7, 8] * 2)}
    >>> [round(e, 2) for e in agreeing(scan, 10.5)[:2]], agreeing(scan, 3.0), agreeing({"1": spread([1.0])}, 1.0)
    ([0.1, 0.11], [], None)
    """
    if any(one["runs"] < FEWEST for one in scan.values()):
        return None
    places = np.log([float(epsilon) for epsilon in scan])
    low, high = ([one[name] for one in scan.values()] for name in ("5%", "95%"))
    fine = [places[0]]
    for a, b in itertools.pairwise(places):
        fine += list(np.linspace(a, b, _STEPS + 1)[1:])
    inside = (np.interp(fine, places, low) <= printed) & (printed <= np.interp(fine, places, high))
    return [float(epsilon) for epsilon in np.exp(np.array(fine)[inside])]


def in_words(found: list[float] | None, scan: dict[str, Json], printed: float) -> str:
    """Return where a printed error agrees, in words.

    Examples
    --------
    >>> scan = {"0.1": spread([8.0, 9, 10, 11, 12] * 2), "1": spread([4.0, 5, 6, 7, 8] * 2)}
    >>> in_words(agreeing(scan, 10.5), scan, 10.5), in_words(agreeing(scan, 3.0), scan, 3.0)
    ('0.1 or less to 0.24', 'none: printed is smaller')
    """
    if found is None:
        return "too few runs"
    if not found:
        low = min(one["5%"] for one in scan.values())
        high = max(one["95%"] for one in scan.values())
        return "none: printed is " + ("smaller" if printed < low else "larger" if printed > high else "in a gap")
    ends = [float(epsilon) for epsilon in scan]
    first, last = f"{found[0]:.2g}", f"{found[-1]:.2g}"
    first += " or less" if np.isclose(found[0], ends[0]) else ""
    last += " or more" if np.isclose(found[-1], ends[-1]) else ""
    return f"{first} to {last}" if len(found) > 1 else first


def in_common(found: Sequence[list[float] | None]) -> list[float]:
    """Return the epsilons at which every method agrees whose runs suffice.

    Examples
    --------
    >>> in_common([[0.1, 0.2], None, [0.2, 0.3]]), in_common([None])
    ([0.2], [])
    """
    known = [{round(e, 12) for e in each} for each in found if each is not None]
    return sorted(set.intersection(*known)) if known else []
