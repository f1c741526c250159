"""How the noise of a band is drawn: in pieces, by threads where there is much to draw.

**Law.** A piece is some rows of the triangle. The noise of a mechanism with independent entries is drawn piece by
piece, each entry in one piece and each piece from fresh random bits of the kernel. So the pieces together have the law
of one draw of the band (:class:`~dpdist.mechanisms.base.IndependentEntries`). Where pieces are cut follows from the
band alone, whatever number of threads draws them.

**Once.** Each piece is drawn by one thread and added once, and the band is given out when all of its pieces were.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpdist._util.cores import available_cores, threaded
from dpdist.mechanisms.base import IndependentEntries
from dpdist.noise.entropy import Entropy
from dpdist.triangle import Band, Triangle

PIECE = 1 << 20
"""Entries of a piece, or of one row where that is longer: 8 MiB, and a tenth of a second to draw."""


def pieces(band: Band) -> Iterator[Band]:
    """Cut a band into pieces of :data:`PIECE` entries at most, or of one row."""
    start = band.start
    while start < band.stop:
        stop = min(band.stop, start + max(1, PIECE // (band.size - start)))
        yield Band(start, stop, band.size)
        start = stop


def noisy(calibrated: IndependentEntries, band: Band, exact: Triangle, entropy: Entropy) -> Triangle:
    """Return a band of the moment plus its noise, every entry drawn once."""
    out, first = np.empty_like(exact), 0
    with threaded(available_cores() if band.entries > PIECE else 1) as each:
        for noise in each(lambda piece: calibrated.draw_band(piece, entropy), pieces(band)):
            run = slice(first, first + noise.size)
            np.add(exact[run], noise, out=out[run])
            first += noise.size
    return out
