"""Whether what is told of messy tables holds: twenty tables as people have them, with known truth.

Seven skewed ones are there again with a transform of every column (log1p, or asinh of numbers of both signs).

    python -m benchmarks.messy benchmarks/results/messy.json --workers 2

Each table is released 200 times at epsilon .3, 1 and 4 (delta 1e-6) as an ordinary person would: a private scale and
centre, ``clip="auto"``, the mean, its last column a target; two by the public ranges of a schema, which clips no row.
Of each release these statements are compared with the truth of its clipped rows:

* **slopes** of the regression of the target, their intervals (stated: .95), and **R²** (.95);
* **covariance**, the entries of it (.95); **eigenvalues**, both ends of all at once (.90);
* **cosines** of the groups of components (.90), and **loadings** of those that stand alone (.90);
* **scores**: the variance along each component (.90), and **captured**, the share that they hold together (.90);
* **largest**, the largest loading of each of these, which is printed first (.90);
* **shares**, **cosines**, **loadings** and **largest** of the components of the correlation matrix, marked R (.90);
* the **count** of components: how often more are told than half of whose exact space is met (.90 are not);
* **clipped**: both ends of the share of rows that were (.95); or, where they are not counted, the bound (.99).

Slopes and shares of the correlation matrix are compared with the truth of the rows as they are, too (**as they are**,
**R as they are**): every answer says that it is of clipped rows, and what is known of how many, but those of ranges, so
only there it is a promise. A scale that the noise would hide is refused, as by a release. A statement fails where it
holds significantly less often than is stated, with Bonferroni over all settings: by a binomial tail below .01 over
their number, of means within a release as of one draw each, which is what they are in the worst case.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr
from scipy.stats import binom

from dpdist import Centring, PrivacyLoss, Release, ReleaseRequest
from dpdist.answers.alignment import Alignment, require_alignment
from dpdist.answers.bias import clipped_rows
from dpdist.answers.captured import captured
from dpdist.answers.components import components
from dpdist.answers.correlation import correlation
from dpdist.answers.covariance import covariance
from dpdist.answers.regression import regressions
from dpdist.answers.shrinkage import Shrinkage
from dpdist.core.errors import DpdistError
from dpdist.core.ledger.register import Register
from dpdist.core.pipeline.arrays import ArrayRows, Paying, release_array
from dpdist.core.rows.dither import DitherKey, Dithers

Floats = npt.NDArray[np.float64]
Random = np.random.Generator
RELEASES = 200
EPSILONS = ("0.3", "1", "4")
STATED = {
    "slopes": 0.95, "r2": 0.95, "covariance": 0.95, "eigenvalues": 0.9, "cosines": 0.9, "loadings": 0.9, "count": 0.9,
    "largest": 0.9, "scores": 0.9, "captured": 0.9, "shares R": 0.9, "cosines R": 0.9, "loadings R": 0.9,
    "largest R": 0.9, "clipped": 0.95, "as they are": 0.95, "R as they are": 0.9,
}  # fmt: skip
_K = 5
"""Components that are looked at."""


def _target(x: Floats, random: Random, noise: float = 1.0) -> Floats:
    """Put a target beside columns: linear in them, with skewed residuals."""
    slopes = np.linspace(1, -0.5, x.shape[1]) / np.maximum(x.std(axis=0), 1e-9)
    y = x @ slopes
    return np.column_stack([x, y + noise * y.std() * (random.exponential(size=len(x)) - 1)])


def _together(random: Random, rows: int, columns: int, correlation: float = 0.3) -> Floats:
    """Return normals with equal correlations."""
    common = np.sqrt(correlation) * random.normal(size=(rows, 1))
    found: Floats = common + np.sqrt(1 - correlation) * random.normal(size=(rows, columns))
    return found


def _customers(random: Random, rows: int) -> Floats:
    age, active = random.integers(18, 90, rows), random.normal(size=rows)
    income = np.clip(1200 + 25 * age + 400 * random.normal(size=rows), 0, 8000)
    visits = np.minimum(random.poisson(np.exp(1 + 0.5 * active)), 20)
    minutes = np.clip(40 + 25 * active + 8 * random.normal(size=rows), 0, 120)
    return np.column_stack([age, visits, minutes, income])


def _one_hot(random: Random, rows: int) -> Floats:
    place = random.choice(5, rows, p=[0.5, 0.25, 0.15, 0.07, 0.03])
    return np.column_stack([np.eye(5)[place], _together(random, rows, 3) + 0.5 * place[:, None]])


def _spectrum(random: Random, rows: int, values: Floats) -> Floats:
    turned = np.linalg.qr(random.normal(size=(len(values), len(values))))[0]
    found: Floats = random.normal(size=(rows, len(values))) * np.sqrt(values) @ turned
    return found


def _missing(random: Random, rows: Floats, share: float, *, fill: float | None) -> Floats:
    """Let numbers be missing: their row is dropped, or each is filled with one public number."""
    gone = random.random(rows.shape) < share
    if fill is not None:
        return np.where(gone, fill, rows)
    return np.where(np.any(gone, axis=1)[:, None], np.nan, rows)


def _persons(random: Random, persons: int) -> Floats:
    """Return one to five rows of each person, who is much the same in all of them."""
    who = np.repeat(np.arange(persons), random.integers(1, 6, persons))
    return _together(random, persons, 5)[who] + 0.3 * random.normal(size=(len(who), 5))


def _outliers(random: Random, rows: int) -> Floats:
    found = _together(random, rows, 6)
    found[random.random(rows) < 0.01] *= 100
    return found


def _collinear(random: Random, rows: int) -> Floats:
    height, build = random.normal(1.7, 0.1, rows), random.normal(25, 4, rows)
    weight = build * height**2
    return np.column_stack([height, weight, build + 0.1 * random.normal(size=rows), 20 + random.poisson(20, rows)])


TABLES: dict[str, tuple[int, Callable[[Random, int], Floats]]] = {
    "normal": (2_000, lambda r, n: _target(_together(r, n, 4), r)),
    "exponential": (6_000, lambda r, n: _target(-log_ndtr(-_together(r, n, 5)), r)),
    "lognormal .5": (20_000, lambda r, n: _target(np.exp(0.5 * _together(r, n, 8)), r)),
    "lognormal 1": (20_000, lambda r, n: _target(np.exp(_together(r, n, 5)), r)),
    "Student's t, 3": (20_000, lambda r, n: _target(r.standard_t(3, (n, 8)), r)),
    "thirteen skewed": (15_697, lambda r, n: _target(r.gamma(np.linspace(0.5, 3, 12), 10, (n, 12)), r)),
    "one-hot": (10_000, lambda r, n: _target(_one_hot(r, n), r)),
    "mostly zeros": (10_000, lambda r, n: _target(np.where(r.random((n, 5)) < 0.6, 0, r.gamma(2, 3, (n, 5))), r)),
    "rows of persons": (4_000, lambda r, n: _target(_persons(r, n), r)),
    "5 % missing, dropped": (10_000, lambda r, n: _missing(r, _target(_together(r, n, 4), r), 0.05, fill=None)),
    "20 % missing, filled": (10_000, lambda r, n: _missing(r, _target(_together(r, n, 4), r), 0.2, fill=0.0)),
    "a factor in 30": (4_000, lambda r, n: _target(_together(r, n, 30, 0.2), r)),
    "nearly equal": (20_000, lambda r, n: _target(_spectrum(r, n, np.linspace(1.3, 0.9, 10)), r)),
    "two equal factors": (20_000, lambda r, n: _target(_spectrum(r, n, np.array([4, 4, *[0.5] * 18])), r)),
    "power law": (100_000, lambda r, n: _target(_spectrum(r, n, 1 / np.arange(1, 31)), r)),
    "collinear": (20_000, lambda r, n: _target(_collinear(r, n), r)),
    "far from zero": (20_000, lambda r, n: _target(_together(r, n, 4) * [10, 1, 5, 300] + [2005, 37, 120, 5e3], r)),
    "1 % outliers": (20_000, lambda r, n: _target(_outliers(r, n), r)),
    "ranges": (20_000, _customers),
    "ranges of 0 and 1": (5_000, lambda r, n: (_together(r, n, 10) > np.linspace(-1, 2, 10)).astype(np.float64)),
}  # fmt: skip


def _transformed(name: str) -> tuple[int, Callable[[Random, int], Floats]]:
    """Return a table with the logarithm of every column without negative numbers, and the arcsine of the others."""
    rows, make = TABLES[name]

    def made(random: Random, count: int) -> Floats:
        table = make(random, count)
        return np.where(table.min(axis=0) >= 0, np.log1p(np.maximum(table, 0)), np.arcsinh(table))

    return rows, made


SKEWED = (
    "exponential", "lognormal .5", "lognormal 1", "Student's t, 3", "thirteen skewed", "mostly zeros", "1 % outliers",
)  # fmt: skip
TABLES |= {f"{name}, transformed": _transformed(name) for name in SKEWED}


def request_of(name: str, rows: Floats, epsilon: str) -> ReleaseRequest:
    """Return what an ordinary person asks for."""
    loss, names = PrivacyLoss.parse(epsilon, "1e-6"), _names(rows)
    if not name.startswith("ranges"):
        return ReleaseRequest(
            "gaussian", loss, "auto", scale="private", centring=Centring.PRIVATE, targets=names[-1:], grid_bits=16
        )
    low, high = (np.array([18, 0, 0, 0]), np.array([90, 20, 120, 8000])) if name == "ranges" else (0 * rows[0], 1.0)
    centre, half = (low + high) / 2, np.broadcast_to((high - low) / 2, rows[0].shape)
    clip = float(np.sqrt(rows.shape[1])) * (1 + 1e-6)
    return ReleaseRequest(
        "gaussian", loss, clip, centring=Centring.PRIVATE, scale=tuple(half.tolist()), grid_bits=16,
        centre=tuple(np.broadcast_to(centre, rows[0].shape).tolist()),
    )  # fmt: skip


def _names(rows: Floats) -> tuple[str, ...]:
    return tuple(f"c{i}" for i in range(rows.shape[1]))


def drawn(rows: Floats, request: ReleaseRequest) -> tuple[Release, Floats, float]:
    """Draw a release; return it with the exact rows that it is of, (n, w), and the share of rows that were clipped."""
    count = len(rows)
    array = ArrayRows(rows, _names(rows), "float64", missing=bool(np.isnan(rows).any()))
    made, _ = release_array(array, request, Paying(), register=Register())
    bound = made.bound
    bounded = bound.apply(rows, np.empty((count, bound.width)), Dithers(DitherKey(bytes(32)), 0))
    shifted = np.empty_like(rows)
    bound.shifted(rows, shifted)
    longer = float((np.linalg.norm(shifted, axis=1) > bound.shortened_norm * (1 + 1e-9)).mean())
    return made, bounded * bound.unit, longer


def slopes_of(x: Floats, y: Floats) -> Floats:
    """Return the slopes of the least squares regression with a constant that is not clipped."""
    return np.asarray(np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)[0][:-1], np.float64)


def statements(rows: Floats, request: ReleaseRequest) -> dict[str, float]:
    """Draw a release and return the share of each kind of statement that holds; without those that are not made."""
    release, bounded, longer = drawn(rows, request)
    d, found = rows.shape[1], dict[str, float]()
    scale = np.ones(d) if release.bound.scale is None else np.array(release.bound.scale)
    x = bounded[:, :d]
    told = clipped_rows(release)
    if told.share is not None and told.error is not None:
        low, high = told.between or (0.0, told.share + told.error)
        found["clipped"] = float(low <= longer <= high)
    centred = x - x.mean(axis=0)
    exact = centred.T @ centred / len(x)
    found |= _of_regression(release, rows, x, scale) | _of_components(release, exact)
    there = rows[np.isfinite(rows).all(axis=1)]
    found |= _of_correlation(release, exact, np.cov(there.T))
    try:
        whole = covariance(release, Shrinkage.OPTIMAL)
    except DpdistError:
        return found
    if whole.intervals is not None:
        truth = exact * np.outer(scale, scale)
        found["covariance"] = float(_inside(whole.intervals, truth).mean())
    return found


def _inside(ends: Floats, truth: Floats) -> npt.NDArray[np.bool_]:
    slack = 1e-9 * np.abs(truth)
    found: npt.NDArray[np.bool_] = (ends[..., 0] - slack <= truth) & (truth <= ends[..., 1] + slack)
    return found


def _of_regression(release: Release, rows: Floats, x: Floats, scale: Floats) -> dict[str, float]:
    d = rows.shape[1]
    try:
        (model,) = regressions(release, [d - 1], range(d - 1))
    except DpdistError:
        return {}
    ends = np.array([each.interval for each in model.coefficients])
    values = np.array([each.value for each in model.coefficients])
    centred = x - x.mean(axis=0)
    moment = centred.T @ centred
    truth = np.linalg.solve(moment[:-1, :-1] + model.ridge * np.eye(d - 1), moment[:-1, -1]) * scale[-1] / scale[:-1]
    in_rows = values * scale[:-1] / scale[-1]
    residual = np.append(-in_rows, 1)
    low, high = model.r2_interval
    r2 = 1 - residual @ moment @ residual / moment[-1, -1]
    found = {"slopes": float(_inside(ends, truth).mean()), "r2": float(low - 1e-9 <= r2 <= high + 1e-9)}
    if not model.ridge:
        there = rows[np.isfinite(rows).all(axis=1)]
        found["as they are"] = float(_inside(ends, slopes_of(there[:, :-1], there[:, -1])).mean())
    return found


def _of_components(release: Release, exact: Floats) -> dict[str, float]:
    k = min(_K, len(exact))
    try:
        taken = components(release, k)
        told = require_alignment(release, taken)
    except DpdistError:
        return {}
    values, vectors = np.linalg.eigh(exact)
    values, vectors = values[::-1], vectors[:, ::-1]
    low, high = told.intervals.T
    found = {"eigenvalues": float(np.mean([(low <= values[:k] + 1e-12).all(), (values[:k] <= high + 1e-12).all()]))}
    found |= _aligned(told, taken.components, vectors)
    held = captured(release, taken)
    if held is not None:
        along = np.einsum("ij,jk,ik->i", taken.components, exact, taken.components)
        found["scores"] = float(_inside(held.intervals, along).mean())
        found["captured"] = float(_inside(held.share_intervals[-1:], np.array([along.sum() / np.trace(exact)]))[0])
    return found


def _aligned(told: Alignment, taken: Floats, vectors: Floats, mark: str = "") -> dict[str, float]:
    """Return what holds of what is told of the groups and loadings of components."""
    overlap = (taken @ vectors) ** 2
    groups = [group for group in told.groups if group.stop <= len(taken)]
    cosines = [float(overlap[g.start : g.stop, g.start : g.stop].sum()) / len(g) for g in groups]
    found = {} if mark else {"count": float(all(cosine >= 0.5 for cosine in cosines))}
    if groups:
        ends = np.array([told.cosine_intervals[group.start] for group in groups])
        found[f"cosines{mark}"] = float(_inside(ends, np.array(cosines)).mean())
    alone = [group.start for group in groups if len(group) == 1]
    if told.loadings is not None and alone:
        signs = np.sign((taken[alone] * vectors[:, alone].T).sum(axis=1))
        truth = vectors[:, alone].T * signs[:, None]
        known = ~np.isnan(told.loadings[alone]).any(axis=2)
        if known.any():
            holds = _inside(told.loadings[alone], truth)
            found[f"loadings{mark}"] = float(holds[known].mean())
            first = np.abs(taken[alone]).argmax(axis=1)[:, None]
            seen = np.take_along_axis(known, first, 1)
            found[f"largest{mark}"] = float(np.take_along_axis(holds, first, 1)[seen].mean())
    return found


def _shares(covariance: Floats, kept: list[int]) -> tuple[Floats, Floats]:
    """Return the shares of components of the correlations of some columns in all, descending, and them as columns."""
    deviations = np.sqrt(np.diag(covariance)[kept])
    values, vectors = np.linalg.eigh(covariance[np.ix_(kept, kept)] / np.outer(deviations, deviations))
    return values[::-1] / len(covariance), vectors[:, ::-1]


def _of_correlation(release: Release, exact: Floats, original: Floats) -> dict[str, float]:
    try:
        told = correlation(release, min(_K, len(exact)))
    except DpdistError:
        return {}
    kept = [i for i, name in enumerate(release.names) if name not in told.left_out]
    (shares, vectors), (unclipped, _), found = _shares(exact, kept), _shares(original, kept), {}
    if told.intervals is not None and (made := np.isfinite(told.intervals[:, 0])).any():
        count = len(told.shares)
        found["shares R"] = float(_inside(told.intervals, shares[:count])[made].mean())
        found["R as they are"] = float(_inside(told.intervals, unclipped[:count])[made].mean())
    if told.alignment is None or told.alignment.loadings is None:
        return found
    of_kept = replace(told.alignment, loadings=told.alignment.loadings[:, kept])
    return found | _aligned(of_kept, told.components.components[:, kept], vectors, " R")


def setting(name: str, epsilon: str) -> dict[str, Any]:
    """Release a table again and again, and count what holds."""
    warnings.simplefilter("ignore")
    random = np.random.default_rng(sum(map(ord, name)))
    rows, made = TABLES[name][1](random, TABLES[name][0]), dict[str, list[float]]()
    request = request_of(name, rows, epsilon)
    refused = 0
    for _ in range(RELEASES):
        try:
            one = statements(rows, request)
        except DpdistError:
            refused += 1
            continue
        for kind, held in one.items():
            made.setdefault(kind, []).append(held)
    return {
        "table": name, "rows": len(rows), "columns": rows.shape[1], "epsilon": epsilon, "refused": refused,
        "held": {kind: [len(held), round(float(np.mean(held)), 4)] for kind, held in made.items()},
    }  # fmt: skip


def failures(found: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield what holds significantly less often than is stated: table, epsilon and kind."""
    promised = [
        (row, kind, count, share)
        for row in found
        for kind, (count, share) in row["held"].items()
        if "as they are" not in kind or row["table"].startswith("ranges")
    ]
    for row, kind, count, share in promised:
        if binom.cdf(round(share * count), count, STATED[kind]) < 0.01 / len(promised):
            yield row["table"], row["epsilon"], kind


def table(found: list[dict[str, Any]]) -> str:
    """Return the results as a table for people."""
    failed = set(failures(found))
    lines = ["# Messy tables", ""]
    lines += ["`benchmarks/messy.py` says what is what. Bold: significantly less often than is stated.", ""]
    lines += ["| table | n | d | epsilon | refused | " + " | ".join(f"{k} ({v:g})" for k, v in STATED.items()) + " |"]
    lines.append("| --- " * (5 + len(STATED)) + "|")
    for row in found:
        cells = [row["table"], row["rows"], row["columns"], row["epsilon"], row["refused"]]
        for kind in STATED:
            share = row["held"].get(kind, [0, None])[1]
            said = "" if share is None else f"{share:.3f}".removeprefix("0")
            cells.append(f"**{said}**" if (row["table"], row["epsilon"], kind) in failed else said)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    found: list[dict[str, Any]] = json.loads(given.out.read_text()) if given.out.exists() else []
    known = {(row["table"], row["epsilon"]) for row in found}
    work = [(name, epsilon) for name in TABLES for epsilon in EPSILONS if (name, epsilon) not in known]
    with ProcessPoolExecutor(given.workers) as pool:
        for row in pool.map(setting, *zip(*work, strict=True)) if work else ():
            found.append(row)
            given.out.write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")
            given.out.with_suffix(".md").write_text(table(found))


if __name__ == "__main__":
    main()
