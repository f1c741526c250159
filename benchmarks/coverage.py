"""Whether what is said of components holds as often as it is said to: simulation with known truth.

    python -m benchmarks.coverage benchmarks/results/coverage.json

**edge**: shares of draws of pure noise whose largest eigenvalue is beyond the edge that is said to hold with confidence
.95, .99 and .999.

**components**: exact spectra in units of ``s sqrt(d)``, s the deviation of an entry of the noise: nothing, a background
that is no component, components alone, beside others and over a background. How often something is counted, and how
many components; how many groups are told, the mean of what is told of them and of what is true, and the share of groups
whose interval holds (stated: 0.9); and the mean share of the loadings of a draw that lie outside of their ends, of all
and of the five largest of each component (stated: 0.1). A draw in which nothing is told has none outside. ``axis``: the
exact components are columns; ``turned``: they are not. Where two components are equal, or there is nothing, and all the
same something is told, it is wrong; that is part of these shares.

**release**: releases as the mechanisms draw them, of rows of which some are longer than the clip norm, their sums and
private centring included: how often all exact eigenvalues (of the clipped rows) lie in their intervals, at both ends
together, which is stated with 0.9, and the share of groups whose squared cosine is where it is told to be.

The file keeps what was measured: run it again to go on.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.edge_table import draws, noise_named
from dpdist import Centring, Neighbours, PrivacyLoss, Release, ReleaseRequest
from dpdist.answers.alignment import require_alignment
from dpdist.answers.components import components
from dpdist.answers.noise_edge import QUANTILES, NoiseLaw, law_of
from dpdist.answers.overlap import Spectrum
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.release.attributes import Coverage
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.combine import combined
from dpdist.core.release.plan import planned
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.triangle import unpacked
from dpdist.literature.attack import KnownMoment

Floats = npt.NDArray[np.float64]
LAWS = (
    "normal", "normal-equal", "laplace", "laplace-4", "frobenius", "frobenius-2", "wishart-1", "wishart-4",
    "two-sided-1", "two-sided-4", "sum", "nuclear",
)  # fmt: skip
SIZES = {1: 50_000, 2: 50_000, 5: 50_000, 8: 50_000, 20: 20_000, 50: 5_000, 100: 2_000}
"""Draws of pure noise for each number of columns."""
NUCLEAR = {2: 1_000, 5: 1_000}
SPECTRA: dict[str, Callable[[int], Floats]] = {
    "nothing": np.zeros,
    "background 0 to 1": lambda d: np.linspace(1, 0, d),
    "one of 3": lambda d: _over(d, 3),
    "one of 1.5": lambda d: _over(d, 1.5),
    "4 and 3.8": lambda d: _over(d, 4, 3.8),
    "4 and 4": lambda d: _over(d, 4, 4),
    "5, and 5 s less": lambda d: _over(d, 5, 5 - 5 / math.sqrt(d)),
    "8/k": lambda d: 8 / np.arange(1, d + 1),
    "one of 4 over 0 to 1": lambda d: np.concatenate([[4], np.linspace(1, 0, d - 1)]),
    "10, 7, 5, 3.5, 2.5, 1.8 over .5": lambda d: np.array([10, 7, 5, 3.5, 2.5, 1.8, *[0.5] * (d - 6)]),
}
COMPONENT_LAWS = ("normal", "laplace", "two-sided-1", "frobenius")
COMPONENT_SIZES = {2: 1000, 5: 1000, 20: 400, 60: 200, 200: 60}
RELEASES = 200
MECHANISMS = {
    "gaussian": "1e-6", "laplace": "0", "frobenius": "0", "wishart": "1e-6",
    "two-sided-wishart": "0",
}  # fmt: skip
_D, _N, _C = 8, 4000, 2.0


def _over(size: int, *spikes: float) -> Floats:
    return np.array([*spikes, *[0.0] * (size - len(spikes))])


def law_named(name: str, size: int) -> NoiseLaw:
    """Return the law of a noise of :mod:`benchmarks.edge_table`."""
    law = law_of(noise_named(name, size), size)
    if law is None:
        raise AssertionError("every noise here has an edge")
    return law


def edges(name: str, size: int, count: int) -> dict[str, Any]:
    """Return the shares of draws of pure noise beyond the edge, at three confidences."""
    law, random = law_named(name, size), np.random.default_rng([1, size])
    block = max(1, 2**20 // size**2)
    tops = [
        np.linalg.eigvalsh(draws(name, size, min(block, count - start), random))[:, -1]
        for start in range(0, count, block)
    ]
    top = np.concatenate(tops)
    stated = [c for c in QUANTILES if c > 0.9]
    return {
        "part": "edge", "law": name, "d": size, "draws": count,
        "beyond": {str(c): _share(top > law.edge_at(c)) for c in stated},
    }  # fmt: skip


def of_components(name: str, spectrum: str, size: int, count: int, *, turned: bool) -> dict[str, Any]:
    """Return how often what is told of the components of a spectrum is true."""
    law, random = law_named(name, size), np.random.default_rng([2, size])
    off = noise_named(name, size).variance_off_diagonal or 0.0
    exact = np.sort(SPECTRA[spectrum](size))[::-1] * math.sqrt(size * off)
    basis = np.linalg.qr(random.normal(size=(size, size)))[0] if turned else np.eye(size)
    counts: list[int] = []
    told: list[float] = []
    true: list[float] = []
    held, outside, far = 0, 0.0, 0.0
    for noise in draws(name, size, count, random):
        values, vectors = np.linalg.eigh((basis * exact) @ basis.T + noise)
        values, vectors = values[::-1].copy(), vectors[:, ::-1]
        released = Spectrum(values, np.full((size, size), off), law)
        counts.append(released.counted())
        overlap = basis.T @ vectors
        every: list[float] = []
        largest: list[float] = []
        for group in released.groups(counts[-1]):
            value, low, high = released.squared_cosine(group)
            part = slice(group.start, group.stop)
            truth = float((overlap[part, part] ** 2).sum()) / len(group)
            held += low - 1e-12 <= truth <= high + 1e-12
            told, true = [*told, value], [*true, truth]
            i = group.start
            ends = released.loadings(i, vectors) if len(group) == 1 else None
            if ends is not None:
                loading = basis[:, i] * np.sign(overlap[i, i])
                missed = (loading < ends[:, 0]) | (ends[:, 1] < loading)
                every.append(float(missed.mean()))
                largest.append(float(missed[np.argsort(-np.abs(vectors[:, i]))[:5]].mean()))
        outside += float(np.mean(every)) if every else 0.0
        far += float(np.mean(largest)) if largest else 0.0
    return {
        "part": "components", "law": name, "spectrum": spectrum, "along": "turned" if turned else "axis", "d": size,
        "draws": count, "something": _share(np.array(counts) > 0), "counted": _mean(np.array(counts, float)),
        "groups": len(told), "told": _mean(np.array(told)), "true": _mean(np.array(true)),
        "held": round(held / len(told), 4) if told else None, "outside": round(outside / count, 4),
        "largest": round(far / count, 4),
    }  # fmt: skip


def releases(mechanism: str, epsilon: str, *, terms: int, centring: Centring) -> dict[str, Any]:
    """Release rows of known components, some longer than the clip norm, and see what is told of them."""
    whole = both = held = groups = something = 0
    random = np.random.default_rng(3)
    for _ in range(RELEASES):
        made = [_release(mechanism, epsilon, i, centring, random) for i in range(terms)]
        total = combined([release for release, _ in made]) if terms > 1 else made[0][0]
        exact = sum((moment for _, moment in made), np.zeros(made[0][1].shape))
        width, count = total.bound.width, terms * _N
        truth = exact[:_D, :_D] * total.bound.unit**2 / count
        if width > _D:
            mean = exact[:_D, -1] * total.bound.unit / (total.bound.constant * count)
            truth -= np.outer(mean, mean)
        values, vectors = np.linalg.eigh(truth)
        found = components(total, _D)
        told = require_alignment(total, found)
        low, high = told.intervals.T
        lower, upper = np.all(low <= values[::-1] + 1e-12), np.all(values[::-1] <= high + 1e-12)
        whole, both = whole + bool(lower and upper), both + int(lower) + int(upper)
        overlap = (found.components @ vectors[:, ::-1]) ** 2
        for group in told.groups:
            part = slice(group.start, group.stop)
            cosine = float(overlap[part, part].sum()) / len(group)
            ends = told.cosine_intervals[group.start]
            held, groups = held + bool(ends[0] - 1e-12 <= cosine <= ends[1] + 1e-12), groups + 1
        something += told.counted > 0
    return {
        "part": "release", "mechanism": mechanism, "epsilon": epsilon, "terms": terms, "centring": centring.value,
        "releases": RELEASES, "both_ends": whole / RELEASES, "each_end": both / RELEASES / 2,
        "groups": groups, "held": round(held / groups, 4) if groups else None, "something": something / RELEASES,
    }  # fmt: skip


def _release(
    mechanism: str, epsilon: str, number: int, centring: Centring, random: np.random.Generator
) -> tuple[Release, Floats]:
    """Return a release of rows and their exact integer moment.

    Rows are rounded to 16 bits: so noise is all that is left between the two. What rounding to fewer adds is compared
    with what is stated in ``benchmarks/rounding.py``.
    """
    loss = PrivacyLoss.parse(epsilon, MECHANISMS[mechanism])
    request = ReleaseRequest(mechanism, loss, _C, centring=centring, grid_bits=16)
    bound, calibrated = planned(request, Dimensions(_D)).bound, planned(request, Dimensions(_D)).moment
    rows = random.normal(size=(_N, _D)) * np.array([2.0, 0.5, *[0.1] * (_D - 2)])  # a third of them is shortened
    bounded = bound.apply(rows, np.empty((_N, bound.width)), Dithers(DitherKey(bytes(32)), 0)).astype(np.int64)
    moment = bounded.T @ bounded
    answer = unpacked(np.asarray(calibrated.answer(KnownMoment(moment), SYSTEM), dtype=np.int64), bound.width)
    release = Release(
        release_id=f"r-{number}", mechanism=mechanism, names=tuple(map(str, range(_D))),
        neighbours=Neighbours.REPLACE_ONE,
        claim=calibrated.claim, guarantee=calibrated.guarantee, bound=bound, noise=calibrated.noise,
        rows=_N, answer=answer, extents=(Coverage("d" * 32, number, number + 1, f"{number}", f"{number}"),),
    )  # fmt: skip
    if release.corner is not None:
        answer[-1, -1] = release.corner
    return release, moment.astype(np.float64)


def _share(found: npt.NDArray[np.bool_]) -> float:
    return round(float(found.mean()), 5)


def _mean(found: Floats) -> float | None:
    return round(float(found.mean()), 4) if found.size else None


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as tables for people."""
    lines = ["# Coverage of what is said of components", "", "`benchmarks/coverage.py` says what is what.", ""]
    lines += ["## Pure noise beyond the edge", ""]
    lines += ["| law | d | draws | .05 | .01 | .001 |", "| --- " * 6 + "|"]
    for row in (r for r in rows if r["part"] == "edge"):
        told = " | ".join(f"{share:.4f}" for share in row["beyond"].values())
        lines.append(f"| {row['law']} | {row['d']} | {row['draws']} | {told} |")
    heads = (
        "law", "spectrum", "along", "d", "draws", "something", "counted", "groups", "told", "true", "held", "outside",
        "largest",
    )  # fmt: skip
    lines += ["", "## Components", ""]
    lines += ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for row in (r for r in rows if r["part"] == "components"):
        lines.append("| " + " | ".join("" if row[head] is None else str(row[head]) for head in heads) + " |")
    lines += ["", "## Releases of clipped rows, 8 columns", ""]
    lines += ["| mechanism | epsilon | terms | centring | all intervals | each end | something | groups | held |"]
    lines += ["| --- " * 9 + "|"]
    for row in (r for r in rows if r["part"] == "release"):
        told = " | ".join(str(row[key] or "") for key in ("both_ends", "each_end", "something", "groups", "held"))
        lines.append(f"| {row['mechanism']} | {row['epsilon']} | {row['terms']} | {row['centring']} | {told} |")
    return "\n".join(lines) + "\n"


_KEYS = ("part", "law", "spectrum", "along", "d", "mechanism", "epsilon", "terms", "centring")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in _KEYS)


def _work() -> Iterator[tuple[tuple[Any, ...], Callable[[], dict[str, Any]]]]:
    """Yield what there is to measure: what its rows are told apart by, and what makes them."""
    for name in COMPONENT_LAWS:
        for size, count in COMPONENT_SIZES.items():
            for spectrum in (each for each in SPECTRA if size > 6 or "2.5" not in each):
                for turned in (False, True):
                    key = {"law": name, "spectrum": spectrum, "along": "turned" if turned else "axis", "d": size}
                    work = partial(of_components, name, spectrum, size, count, turned=turned)
                    yield _key({"part": "components"} | key), work
    for mechanism in MECHANISMS:
        for epsilon in ("0.02", "0.1", "4"):
            for terms, centring in ((1, Centring.NONE), (3, Centring.NONE), (1, Centring.PRIVATE)):
                key = {"mechanism": mechanism, "epsilon": epsilon, "terms": terms, "centring": centring.value}
                yield (
                    _key({"part": "release"} | key),
                    partial(releases, mechanism, epsilon, terms=terms, centring=centring),
                )
    for name in LAWS:
        for size, count in (NUCLEAR if name == "nuclear" else SIZES).items():
            yield _key({"part": "edge", "law": name, "d": size}), partial(edges, name, size, count)


def main() -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    known = {_key(row) for row in rows}
    for key, work in _work():
        if key not in known:
            rows.append(work())
            out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
            out.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
