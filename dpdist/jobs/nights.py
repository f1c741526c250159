"""What a night of a series costs in published files that it opens, and what noise its total has.

Both follow from the plan and from what is published. How many rows a period has, or bytes, may be private, so of rows
it is told which periods are read, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpdist._util.paths import local
from dpdist.jobs.job_file import Job
from dpdist.release.artefact import open_release
from dpdist.release.series import Toeplitz, Tree, total_of, variance_factor

_ENTRY = 8
"""Bytes of an entry of a release."""


@dataclass(frozen=True)
class TotalReads:
    """What is opened for the total of some periods, where no earlier total is missing.

    Attributes
    ----------
    periods
        Of how many periods the total is.
    releases
        Published releases and totals that are opened, of a window too.
    size
        Their entries in bytes, before compression; None where the number of columns is not known yet.
    """

    periods: int
    releases: int
    size: int | None

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {"periods": self.periods, "releases": self.releases, "bytes": self.size}


@dataclass(frozen=True)
class TotalNoise:
    """The noise of a total that is published, and of the next one.

    Attributes
    ----------
    periods
        Of how many periods the published total is.
    now, following
        Standard deviation of an entry off the diagonal, in the units of the columns as they are bounded; ``following``
        is that of the total of one more period, None after the last one of a series.
    """

    periods: int
    now: float
    following: float | None

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {"periods": self.periods, "now": self.now, "next": self.following}


def opened(plan: Tree | Toeplitz, count: int, window: int | None) -> int:
    """Return how many releases and totals are opened for the total of so many periods, and for the window.

    Examples
    --------
    >>> from dpdist.release.series import banded
    >>> [opened(banded(64), count, None) for count in (1, 2, 365)], opened(banded(64), 365, 30)
    ([1, 2, 17], 18)
    >>> [opened(Tree(9), count, None) for count in (1, 7, 256)]
    [1, 2, 511]
    """
    if isinstance(plan, Tree):
        last = total_of(count, plan.levels)[-1]
        return (2 << last.level) - 1 + (last.start > 0)
    earlier = set(plan.earlier(count))
    return 1 + len(earlier | ({count - window} if window is not None and window < count else set()))


def largest(plan: Tree | Toeplitz, window: int | None) -> int:
    """Return of how many periods the total is for which most is opened, of those that a plan is for.

    Examples
    --------
    >>> from dpdist.release.series import banded, square_root
    >>> largest(Tree(9), None), largest(banded(64), None), largest(square_root(365), 7)
    (256, 65, 210)
    """
    if isinstance(plan, Tree):
        return max(2, 1 << (plan.levels - 1))
    last = plan.horizon or len(plan.weights) + 1 + (window or 0)
    return max(range(1, last + 1), key=lambda count: opened(plan, count, window))


def total_reads(job: Job, columns: int | None, count: int) -> TotalReads:
    """Return what is opened for the total of so many periods."""
    releases, size = opened(job.plan, count, job.window), None
    if columns is not None:
        width = job.request.sized.bound(columns).width
        size = releases * _ENTRY * width**2
    return TotalReads(count, releases, size)


def total_noise(job: Job, periods: Sequence[str]) -> TotalNoise | None:
    """Return the noise of the last total that is published, and of the next; None where there is none."""
    folder = local(str(job.release))
    count = next((n for n in range(len(periods), 0, -1) if (folder / "total" / f"{periods[n - 1]}.zarr").exists()), 0)
    if not count:
        return None
    release = open_release(folder / "total" / f"{periods[count - 1]}.zarr")
    variance = release.noise.variance_off_diagonal
    if variance is None:
        return None
    now = variance**0.5 * release.bound.unit**2
    over = [_variance(job.plan, n) for n in (count, count + 1)]
    ended = job.plan.horizon is not None and count >= job.plan.horizon
    return TotalNoise(count, now, None if ended else now * (over[1] / over[0]) ** 0.5)


def _variance(plan: Tree | Toeplitz, count: int) -> float:
    """Return the variance of a total in some unit: all releases of a series have the same noise."""
    return plan.variance_factor(count) if isinstance(plan, Toeplitz) else float(variance_factor(count, plan.levels))
