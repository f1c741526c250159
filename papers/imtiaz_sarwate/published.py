"""The classification errors that Imtiaz & Sarwate printed, in per cent: table 1 of the paper and the talk's table."""

from __future__ import annotations

SVD, AG, PPM, PPCA, SN = LABELS = ("SVD", "AG", "PPM", "PPCA", "SN")
DATA = ("synthetic", "covertype", "mnist")

# rows: methods; columns: synthetic at both splits, Covertype at both, MNIST at both
_PAPER = {
    SVD: (5.65, 5.80, 0.025, 0.025, 0.575, 0.25),
    AG: (5.80, 5.75, 16.80, 5.775, 3.025, 3.125),
    PPM: (9.00, 9.05, 22.00, 15.175, 3.10, 2.55),
    PPCA: (6.375, 6.125, 31.85, 19.875, 2.725, 2.80),
    SN: (7.50, 7.075, 7.225, 0.35, 2.50, 2.00),
}
_TALK = {
    SVD: (6.63, 6.34, 0.08, 0.08, 0.61, 0.32),
    AG: (6.58, 6.32, 1.08, 0.85, 2.72, 2.38),
    PPM: (10.48, 10.06, 2.05, 1.26, 2.67, 2.48),
    PPCA: (7.43, 7.21, 5.21, 4.85, 3.16, 2.91),
    SN: (7.99, 7.48, 0.05, 0.05, 2.22, 2.09),
}
SPLITS = ("train 4000", "train 6000", "70%", "50%")
"""Of the paper, and of the talk."""


def published_error(label: str, data: str, split: str) -> float:
    """Return a printed error, in per cent.

    Examples
    --------
    >>> published_error("SN", "covertype", "train 6000"), published_error("AG", "mnist", "50%")
    (0.35, 2.38)
    """
    place = SPLITS.index(split)
    table = _PAPER if place < 2 else _TALK
    return table[label][2 * DATA.index(data) + place % 2]
