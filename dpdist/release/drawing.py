"""How the noise of a band is drawn: in pieces, by this process and, where there is much to draw, by others beside it.

**Law.** A piece is some rows of the triangle. The noise of a mechanism with independent entries is drawn piece by
piece, each entry in one piece and each piece from fresh random bits of the kernel, taken by the process that draws it.
So the pieces together have the law of one draw of the band (:class:`~dpdist.mechanisms.base.IndependentEntries`). Where
pieces are cut follows from the band alone: the same draws of the pieces are the same noise, however many processes drew
them.

**Once.** A piece is added when it has arrived as a whole, and the band is given out when all of its pieces were. What a
process was drawing when it died was seen by nobody and is used nowhere, so another draw in its place is independent of
all that is released.

**What travels.** The exact sums stay in this process. Noise comes to it through a pipe. Whoever knows the noise and the
release knows the sums, so noise is drawn on this machine only, by processes whose memory is dumped nowhere.

**Memory.** This process holds the exact band, the noisy one, and a piece for itself and for each process beside it;
what another process takes is counted where bands are cut (:mod:`dpdist.moment.layout`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from dpdist.mechanisms.base import IndependentEntries
from dpdist.noise.entropy import Entropy
from dpdist.runtime.pool import Pool, usable_cores
from dpdist.triangle import Band, Triangle

PIECE = 1 << 20
"""Entries of a piece, or of one row where that is longer: 8 MiB, and a tenth of a second to draw."""
WORTH_A_PROCESS = 1 << 25
"""Entries of a triangle from which on other processes are started: seconds of drawing, where one takes a second to
start."""


def processes_for(width: int, most: int) -> int:
    """Return how many processes beside this one shall draw the noise of a moment.

    Parameters
    ----------
    width
        Rows of the whole triangle.
    most
        For how many there is memory.
    """
    if not most or Band.whole(width).entries < WORTH_A_PROCESS:
        return 0
    return min(most, usable_cores() - 1)


def pieces(band: Band) -> Iterator[Band]:
    """Cut a band into pieces of :data:`PIECE` entries at most, or of one row."""
    start = band.start
    while start < band.stop:
        stop = min(band.stop, start + max(1, PIECE // (band.size - start)))
        yield Band(start, stop, band.size)
        start = stop


def noisy(calibrated: IndependentEntries, band: Band, exact: Triangle, entropy: Entropy, pool: Pool[Band]) -> Triangle:
    """Return a band of the moment plus its noise, every entry drawn once.

    Parameters
    ----------
    calibrated
        The mechanism.
    band, exact
        Rows of the triangle, and the exact sums there, packed. Private.
    entropy
        Where random bits come from, in whatever process: it is sent to those of the pool.
    pool
        The processes that draw.
    """
    out = np.empty_like(exact)

    def add(piece: Band, noise: Triangle) -> None:
        first = Band(band.start, piece.start, band.size).entries if piece.start > band.start else 0
        run = slice(first, first + piece.entries)
        np.add(exact[run], noise, out=out[run])

    pool.each(partial(_noise, calibrated, entropy), pieces(band), add)
    return out


def _noise(calibrated: IndependentEntries, entropy: Entropy, piece: Band) -> Triangle:
    return calibrated.draw_band(piece, entropy)
