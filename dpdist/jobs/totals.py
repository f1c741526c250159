"""Totals and windows of a series of periods, and their components: written anew each night from what is published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dpdist._util.text import counted
from dpdist.errors import DrownedError
from dpdist.jobs.job_file import Job
from dpdist.jobs.series import Series
from dpdist.pipeline.components import fit_components
from dpdist.privacy import caution
from dpdist.release.artefact import Release, open_release
from dpdist.release.combine import combined, estimated, last_periods, next_total, write_sum
from dpdist.release.series import Night, Node, Toeplitz, Tree, total_of
from dpdist.storage.arrays import attributes_of
from dpdist.storage.atomic import make_public_folder
from dpdist.storage.store import store_at


def conclude(series: Series, periods: Sequence[str], say: Callable[[str], None]) -> tuple[Path | None, Path | None]:
    """Write the total of the periods, and the components of it; return where they are."""
    job = series.job
    if not periods:
        return None, None
    total = series.total_path(periods[-1])
    _write_total(series, periods, total)
    together = " for all releases that it is made of, together" if series.plan.shares > 1 else ""
    released = open_release(total)
    words = f"{released.guarantee_words()}{together}"
    if series.first_scale is not None:
        both = series.first_scale.request.parts(series.first_scale.table).guarantee.loss
        words += f"; with the choice of the scale, which rows of {periods[0]} bear as well, {both}"
    say(
        f"{total}: the total of {counted(len(periods), 'period')}, {words}. This file is public."
        f"{caution.in_words(released.cautions)}"
    )
    parts = [(total, series.models)]
    if job.window is not None and isinstance(series.plan, Toeplitz):
        window = _write_window(series, series.plan, periods, job.window)
        last = counted(min(job.window, len(periods)), "period")
        say(f"{window}: that of the last {last}, from the same releases. This file is public.")
        parts.append((window, series.models and series.models / window.parent.name))
    made = [_fit(job, of, folder / of.name, say) for of, folder in parts if folder is not None]
    return total, made[0] if made else None


def _fit(job: Job, of: Path, model: Path, say: Callable[[str], None]) -> Path | None:
    """Write the components of a total or a window; None where all of them drown in the noise."""
    make_public_folder(model.parent)
    try:
        found, _, _ = fit_components(of, model, job.components, correlation=job.correlation, cluster=job.cluster)
    except DrownedError as error:  # more periods may lift some above it: the release of this one is no failure
        say(f"No model of {of} was written. {error}")
        return None
    say(f"{model}: {counted(len(found.components.components), 'component')}.")
    return model


def _opened(series: Series, periods: Sequence[str], node: Node | Night) -> Release:
    return open_release(series.path_of(periods, node))


def _write_total(series: Series, periods: Sequence[str], target: Path) -> None:
    """Write the total of some periods: of a tree, the sum of the best estimates of its trees; else that of all nights.

    The total of the periods before the last tree, if it is still there, spares reading the releases of these again. A
    total that an older version made, which took the roots only, stays as it was published, and is not built upon.
    """
    plan, parts = series.plan, list[Release]()
    if isinstance(plan, Toeplitz):
        _write_totals(series, plan, periods)
        return
    for node in reversed(total_of(len(periods), plan.levels)):
        parts.append(estimated(node, partial(_opened, series, periods)))
        known = _known_total(series, plan, periods[: node.start])
        if known is not None:
            parts.append(known)
            break
    total = combined(parts)
    stands = set((attributes_of(store_at(target)) or {}).get("releases", ()))
    if not (stands and stands < set(total.releases)):
        write_sum(total, target)


def _write_totals(series: Series, plan: Toeplitz, periods: Sequence[str]) -> None:
    """Write the total of all nights, and before it those that it follows from and that are not there.

    These are of nights that were caught up, or whose run died, and of those that somebody removed.
    """
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
    known = open_release(target)
    number = sum((2 << node.level) - 1 for node in total_of(len(periods), plan.levels))
    return known if len(known.releases) == number else None
