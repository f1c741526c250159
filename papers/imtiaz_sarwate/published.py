"""The classification errors that Imtiaz & Sarwate printed, in per cent: table 1 of the paper and the talk's table."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

SVD, AG, PPM, PPCA, SN = LABELS = ("SVD", "AG", "PPM", "PPCA", "SN")
DATA = ("synthetic", "covertype", "mnist")

# rows: methods; columns: synthetic at both splits, Covertype at both, MNIST at both
_PAPER = {
    SVD: ("5.65", "5.80", "0.025", "0.025", "0.575", "0.25"),
    AG: ("5.80", "5.75", "16.80", "5.775", "3.025", "3.125"),
    PPM: ("9.00", "9.05", "22.00", "15.175", "3.10", "2.55"),
    PPCA: ("6.375", "6.125", "31.85", "19.875", "2.725", "2.80"),
    SN: ("7.50", "7.075", "7.225", "0.35", "2.50", "2.00"),
}
_TALK = {
    SVD: ("6.63", "6.34", "0.08", "0.08", "0.61", "0.32"),
    AG: ("6.58", "6.32", "1.08", "0.85", "2.72", "2.38"),
    PPM: ("10.48", "10.06", "2.05", "1.26", "2.67", "2.48"),
    PPCA: ("7.43", "7.21", "5.21", "4.85", "3.16", "2.91"),
    SN: ("7.99", "7.48", "0.05", "0.05", "2.22", "2.09"),
}
SPLITS = ("train 4000", "train 6000", "70%", "50%")
"""Of the paper, and of the talk."""
TEST_ROWS = 4000
"""Rows that the paper tests with; the talk does not say how many it does."""


def published_error(label: str, data: str, split: str) -> float:
    """Return a printed error, in per cent.

    Examples
    --------
    >>> published_error("SN", "covertype", "train 6000"), published_error("AG", "mnist", "50%")
    (0.35, 2.38)
    """
    place = SPLITS.index(split)
    table = _PAPER if place < 2 else _TALK
    return float(table[label][2 * DATA.index(data) + place % 2])


@dataclass(frozen=True)
class Counted:
    """What the printed cells of table 1 say of how many runs they are.

    Attributes
    ----------
    cells
        How many there are.
    whole
        How many are a whole number of the test rows, exactly.
    chance
        The probability that so many would be, if each were an average over some runs whose sum of errors is equally
        likely to leave each remainder.
    """

    cells: int
    whole: int
    chance: float


def counted(runs: int = 10) -> Counted:
    """Count the cells of table 1 that one run alone could give.

    The paper says that all its results are averages over 10 runs. An average of 10 counts of 4000 rows is a multiple of
    0.0025 %, and a tenth of these are multiples of 0.025 %. Three printed decimals keep the two apart.

    Examples
    --------
    >>> counted()
    Counted(cells=30, whole=30, chance=1e-30)
    """
    cells = [Fraction(Decimal(text)) * TEST_ROWS / 100 for row in _PAPER.values() for text in row]
    whole = sum(cell.denominator == 1 for cell in cells)
    return Counted(len(cells), whole, float(Fraction(1, runs**whole)))


def could_be_one_run(printed: str, rows: int) -> bool:
    """Return whether a printed error, rounded to its decimals, is a whole number of wrong rows among so many.

    Examples
    --------
    >>> could_be_one_run("6.63", 3000), could_be_one_run("6.58", 3000)
    (True, False)
    """
    value = Decimal(printed)
    nearest = round(value * rows / 100)
    step = Decimal(1).scaleb(int(value.as_tuple().exponent))
    return abs(Decimal(100 * nearest) / rows - value) <= step / 2


def talk_as_one_run(data: str, split: str, rows: int) -> int:
    """Return how many of the five cells of a column of the talk's table one run on so many rows could give.

    Examples
    --------
    >>> talk_as_one_run("synthetic", "70%", 3000)
    2
    """
    place = 2 * DATA.index(data) + SPLITS.index(split) % 2
    return sum(could_be_one_run(row[place], rows) for row in _TALK.values())
