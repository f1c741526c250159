"""Totals and windows of a series of periods, and their components, computed by each run from published releases.

The releases that a run opens, and the noise of its total, follow from the plan and from published files. The numbers of
rows and bytes of a period may be private, so previews name only the periods whose rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dpdist.answers.fitting import fit_components
from dpdist.core.errors import BelowNoiseError
from dpdist.core.paths import local
from dpdist.core.privacy import checks
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions, bound_of
from dpdist.core.release.combine import combined, estimated, last_periods, next_total, write_sum
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import proved
from dpdist.core.release.series import Node, PeriodSum, Toeplitz, Tree, total_of, variance_factor
from dpdist.core.rows.bounding import RowBound
from dpdist.core.storage.atomic import make_public_folder
from dpdist.core.text import counted
from dpdist.jobs.job_file import Job
from dpdist.jobs.series import Series

_ENTRY_BYTES = 8


@dataclass(frozen=True)
class TotalReads:
    """Files opened for the total of some periods, if no earlier total is missing."""

    periods: int
    releases: int  # published releases and totals, including those of a window
    size: int | None  # bytes of their entries before compression; None if the number of columns is unknown

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {"periods": self.periods, "releases": self.releases, "bytes": self.size}


@dataclass(frozen=True)
class TotalNoise:
    """The noise of a published total, and of the next one."""

    periods: int
    now: float  # standard deviation of an entry off the diagonal, in bounded units
    following: float | None  # of the next total; None after the last period of a series

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {"periods": self.periods, "now": self.now, "next": self.following}


def opened(plan: Tree | Toeplitz, count: int, window: int | None) -> int:
    """Return how many releases and totals a total and its window open."""
    if isinstance(plan, Tree):
        last = total_of(count, plan.levels)[-1]
        return (2 << last.level) - 1 + (last.start > 0)
    earlier = set(plan.earlier(count))
    return 1 + len(earlier | ({count - window} if window is not None and window < count else set()))


def largest(plan: Tree | Toeplitz, window: int | None) -> int:
    """Return the number of periods whose total opens the most files."""
    if isinstance(plan, Tree):
        return max(2, 1 << (plan.levels - 1))
    last = plan.horizon or len(plan.weights) + 1 + (window or 0)
    return max(range(1, last + 1), key=lambda count: opened(plan, count, window))


def total_reads(job: Job, columns: int | None, count: int) -> TotalReads:
    """Return the files opened for the total of ``count`` periods."""
    releases, size = opened(job.plan, count, job.window), None
    if columns is not None:
        width = bound_of(job.request, Dimensions(columns), RowBound.grid_bits).width
        size = releases * _ENTRY_BYTES * width**2
    return TotalReads(count, releases, size)


def total_noise(job: Job, periods: Sequence[str]) -> TotalNoise | None:
    """Return the noise of the last published total and of the next one, or None."""
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
    """Return the variance of a total, relative to that of one release."""
    return plan.variance_factor(count) if isinstance(plan, Toeplitz) else float(variance_factor(count, plan.levels))


def conclude(series: Series, periods: Sequence[str], say: Callable[[str], None]) -> tuple[Path | None, Path | None]:
    """Write the total of the periods and its components; return their paths."""
    job = series.job
    if not periods:
        return None, None
    total = series.total_path(periods[-1])
    _write_total(series, periods, total)
    scope = " for all its releases together" if series.plan.shares > 1 else ""
    released = open_release(total)
    guarantee = f"{released.guarantee_words()}{scope}"
    if series.first_scale is not None:
        loss = proved(series.first_scale.plan.guarantee).loss
        guarantee += f"; with the choice of the scale, charged to rows of {periods[0]}, {loss}"
    say(
        f"{total}: the total of {counted(len(periods), 'period')}, {guarantee}. This file is public."
        f"{checks.cautions_message(released.cautions)}"
    )
    parts = [(total, series.models)]
    if job.window is not None and isinstance(series.plan, Toeplitz):
        window = _write_window(series, series.plan, periods, job.window)
        last = counted(min(job.window, len(periods)), "period")
        say(f"{window}: the total of the last {last}, from the same releases. This file is public.")
        parts.append((window, series.models and series.models / window.parent.name))
    models = [_fit(job, path, folder / path.name, say) for path, folder in parts if folder is not None]
    return total, models[0] if models else None


def _fit(job: Job, path: Path, model: Path, say: Callable[[str], None]) -> Path | None:
    """Write the components of a total or a window; None if all are below the noise."""
    make_public_folder(model.parent)
    try:
        fitted = fit_components(
            path, model, job.components, correlation=job.correlation, drop_first=job.drop_first, cluster=job.cluster
        ).model
    except BelowNoiseError as error:  # no failure: more periods may raise some above it
        say(f"No model of {path} was written. {error}")
        return None
    say(f"{model}: {counted(len(fitted.components.components), 'component')}.")
    return model


def _opened(series: Series, periods: Sequence[str], node: Node | PeriodSum) -> Release:
    return open_release(series.path_of(periods, node))


def _write_total(series: Series, periods: Sequence[str], target: Path) -> None:
    """Write the total of some periods: for a tree, the sum of the best estimates of its roots."""
    # A published total before the last root replaces its releases.
    plan, parts = series.plan, list[Release]()
    if isinstance(plan, Toeplitz):
        _write_totals(series, plan, periods)
        return
    for node in reversed(total_of(len(periods), plan.levels)):
        parts.append(estimated(node, partial(_opened, series, periods)))
        earlier_total = _known_total(series, periods[: node.start])
        if earlier_total is not None:
            parts.append(earlier_total)
            break
    write_sum(combined(parts), target)


def _write_totals(series: Series, plan: Toeplitz, periods: Sequence[str]) -> None:
    """Write the total of all periods, after any missing earlier totals that it needs."""
    missing, needed = [], {len(periods)}
    if series.job.window is not None:
        needed.add(len(periods) - series.job.window)
    for count in range(len(periods), 0, -1):
        if count in needed and not series.total_path(periods[count - 1]).exists():
            missing.append(count)
            needed.update(plan.earlier(count))
    for count in reversed(missing):
        night = _opened(series, periods, plan.sum_at(count))
        write_sum(next_total(plan, night, partial(_total, series, periods)), series.total_path(periods[count - 1]))


def _write_window(series: Series, plan: Toeplitz, periods: Sequence[str], window: int) -> Path:
    """Write the sum of the last periods unless it exists; return its path."""
    count = len(periods)
    target = series.window_path(periods[-1], window)
    if target.exists():
        return target
    make_public_folder(target.parent)
    earlier = _total(series, periods, count - window) if count > window else None
    night = _opened(series, periods, plan.sum_at(count))
    write_sum(last_periods(plan, window, night, _total(series, periods, count), earlier), target)
    return target


def _total(series: Series, periods: Sequence[str], count: int) -> Release:
    return open_release(series.total_path(periods[count - 1]))


def _known_total(series: Series, periods: Sequence[str]) -> Release | None:
    """Return the published total of some periods, or None if it is missing."""
    if not periods or not (target := series.total_path(periods[-1])).exists():
        return None
    return open_release(target)
