"""Totals and windows of a series of periods, and their components: written anew each night from what is published.

What a night opens and the noise of its total follow from the plan and from what is published. How many rows or bytes a
period has may be private, so of rows it is told which periods are read, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dpdist._util.paths import local
from dpdist._util.text import counted
from dpdist.errors import BelowNoiseError
from dpdist.jobs.job_file import Job
from dpdist.jobs.series import Series
from dpdist.pipeline.components import fit_components
from dpdist.privacy import checks
from dpdist.release.artefact import Release, open_release
from dpdist.release.combine import combined, estimated, last_periods, next_total, write_sum
from dpdist.release.series import Night, Node, Toeplitz, Tree, total_of, variance_factor
from dpdist.storage.arrays import attributes_of
from dpdist.storage.atomic import make_public_folder
from dpdist.storage.store import store_at

_ENTRY = 8
"""Bytes of an entry of a release."""


@dataclass(frozen=True)
class TotalReads:
    """What is opened for the total of some periods, where no earlier total is missing."""

    periods: int
    releases: int  # published releases and totals, of a window too
    size: int | None  # of their entries in bytes, before compression; if the number of columns is known

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {"periods": self.periods, "releases": self.releases, "bytes": self.size}


@dataclass(frozen=True)
class TotalNoise:
    """The noise of a total that is published, and of the next one."""

    periods: int
    now: float  # standard deviation of an entry off the diagonal, in bounded units
    following: float | None  # with one more period; None after the last one of a series

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {"periods": self.periods, "now": self.now, "next": self.following}


def opened(plan: Tree | Toeplitz, count: int, window: int | None) -> int:
    """Return how many releases and totals are opened for a total and its window.

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
    """Return the number of periods whose total opens most.

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
        width = job.request.with_placeholders.bound(columns).width
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


def conclude(series: Series, periods: Sequence[str], say: Callable[[str], None]) -> tuple[Path | None, Path | None]:
    """Write the total of the periods, and the components of it; return where they are."""
    job = series.job
    if not periods:
        return None, None
    total = series.total_path(periods[-1])
    _write_total(series, periods, total)
    scope = " for all releases that it is made of, together" if series.plan.shares > 1 else ""
    released = open_release(total)
    guarantee = f"{released.guarantee_words()}{scope}"
    if series.first_scale is not None:
        loss = series.first_scale.request.parts(series.first_scale.table).guarantee.loss
        guarantee += f"; with the choice of the scale, which rows of {periods[0]} bear as well, {loss}"
    say(
        f"{total}: the total of {counted(len(periods), 'period')}, {guarantee}. This file is public."
        f"{checks.in_words(released.cautions)}"
    )
    parts = [(total, series.models)]
    if job.window is not None and isinstance(series.plan, Toeplitz):
        window = _write_window(series, series.plan, periods, job.window)
        last = counted(min(job.window, len(periods)), "period")
        say(f"{window}: that of the last {last}, from the same releases. This file is public.")
        parts.append((window, series.models and series.models / window.parent.name))
    models = [_fit(job, path, folder / path.name, say) for path, folder in parts if folder is not None]
    return total, models[0] if models else None


def _fit(job: Job, path: Path, model: Path, say: Callable[[str], None]) -> Path | None:
    """Write the components of a total or a window; None where all of them drown in the noise."""
    make_public_folder(model.parent)
    try:
        fitted, _, _ = fit_components(path, model, job.components, correlation=job.correlation, cluster=job.cluster)
    except BelowNoiseError as error:  # more periods may lift some above it: the release of this one is no failure
        say(f"No model of {path} was written. {error}")
        return None
    say(f"{model}: {counted(len(fitted.components.components), 'component')}.")
    return model


def _opened(series: Series, periods: Sequence[str], node: Node | Night) -> Release:
    return open_release(series.path_of(periods, node))


def _write_total(series: Series, periods: Sequence[str], target: Path) -> None:
    """Write the total of some periods: of trees, the sum of the best estimate of each; else that of all nights.

    The total before the last tree, if it is there, spares reading its releases again. A total of an older version,
    which took the roots only, stays as it was published, and is not built upon.
    """
    plan, parts = series.plan, list[Release]()
    if isinstance(plan, Toeplitz):
        _write_totals(series, plan, periods)
        return
    for node in reversed(total_of(len(periods), plan.levels)):
        parts.append(estimated(node, partial(_opened, series, periods)))
        earlier_total = _known_total(series, plan, periods[: node.start])
        if earlier_total is not None:
            parts.append(earlier_total)
            break
    total = combined(parts)
    published_ids = set((attributes_of(store_at(target)) or {}).get("releases", ()))
    if not (published_ids and published_ids < set(total.releases)):
        write_sum(total, target)


def _write_totals(series: Series, plan: Toeplitz, periods: Sequence[str]) -> None:
    """Write the total of all nights, and before it those it follows from that are missing: caught up or removed."""
    missing, needed = [], {len(periods)}
    if series.job.window is not None:
        needed.add(len(periods) - series.job.window)
    for count in range(len(periods), 0, -1):
        if count in needed and not series.total_path(periods[count - 1]).exists():
            missing.append(count)
            needed.update(plan.earlier(count))
    for count in reversed(missing):
        night = _opened(series, periods, plan.night(count))
        write_sum(next_total(plan, night, partial(_total, series, periods)), series.total_path(periods[count - 1]))


def _write_window(series: Series, plan: Toeplitz, periods: Sequence[str], window: int) -> Path:
    """Write the sum of the last periods, where it is not there yet, and return where."""
    count = len(periods)
    target = series.window_path(periods[-1], window)
    if target.exists():
        return target
    make_public_folder(target.parent)
    earlier = _total(series, periods, count - window) if count > window else None
    night = _opened(series, periods, plan.night(count))
    write_sum(last_periods(plan, window, night, _total(series, periods, count), earlier), target)
    return target


def _total(series: Series, periods: Sequence[str], count: int) -> Release:
    return open_release(series.total_path(periods[count - 1]))


def _known_total(series: Series, plan: Tree, periods: Sequence[str]) -> Release | None:
    """Return the published total of some periods, or None if there is none or it was not made of all their releases."""
    if not periods or not (target := series.total_path(periods[-1])).exists():
        return None
    total = open_release(target)
    number = sum((2 << node.level) - 1 for node in total_of(len(periods), plan.levels))
    return total if len(total.releases) == number else None
