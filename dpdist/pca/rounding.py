"""What rounding adds to the error of a release, beside its noise: post-processing of public numbers.

The law of it stands in :mod:`dpdist.rows.rounding`. It is known of releases whose rows were rounded without bias. Rows
of older releases were truncated to the grid: their error grows like n, follows from the rows, and is not told.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.pca.noise_edge import CONFIDENCE, law_of
from dpdist.release.artefact import Release
from dpdist.rows.bounding import DITHERED
from dpdist.rows.rounding import LARGEST_SHARE, entry_variances, spectral_error


@dataclass(frozen=True)
class Rounding:
    """The error of rounding, in the units of the components' eigenvalues.

    Attributes
    ----------
    grid_bits
        b.
    error
        What eigenvalues are moved by at most, with probability 0.95.
    share
        That over the edge of the noise at the same confidence; None where no edge is known.
    shift
        What each eigenvalue is raised by at most besides, where n is neither public nor released, so that the diagonal
        that rounding adds stays in; else 0.
    variances
        The largest ones of an entry on the diagonal, and of one off it, in squared such units.
    """

    grid_bits: int
    error: float
    share: float | None
    shift: float
    variances: tuple[float, float]

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {
            "grid_bits": self.grid_bits,
            "rounding_error": self.error,
            "rounding_share": self.share,
            "rounding_shift": self.shift,
        }

    def words(self) -> str:
        """Return the same in a sentence or two."""
        share = "" if self.share is None else f", {100 * self.share:.2g} % of the noise"
        said = (
            f"Rounding to 2^{self.grid_bits} steps moves eigenvalues by {self.error:.3g} at most (confidence "
            f"{CONFIDENCE:g}){share}."
        )
        if self.shift:
            said += f" It raises all of them by the same besides, {self.shift:.3g} at most: n is private."
        return said


def rounding(release: Release) -> Rounding | None:
    """Return the error of rounding of a release; None where rows were truncated, or nothing public bounds n."""
    bound, count = release.bound, release.row_count
    rows = release.rows_at_most if count is None else count
    if bound.rule != DITHERED or release.subspace is not None or rows is None or rows <= 0:
        return None
    unit = bound.unit**2 / (count or 1.0)
    error = spectral_error(rows, bound.columns, bound.grid_bits) * unit
    law = law_of(release.noise, bound.columns, unit)
    on, off = entry_variances(rows, bound.grid_bits)
    return Rounding(
        grid_bits=bound.grid_bits,
        error=error,
        share=None if law is None else error / law.edge_at(CONFIDENCE),
        shift=rows / 4 * unit if count is None else 0.0,
        variances=(on * unit**2, off * unit**2),
    )


def warning(release: Release) -> str:
    """Return what is said of a release whose grid is too coarse for its noise; else nothing."""
    found = rounding(release)
    if found is None or found.share is None or found.share <= LARGEST_SHARE:
        return ""
    return f" {found.words()}"
