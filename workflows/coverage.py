"""Whether what is said of components holds as often as it is said to: simulation with known truth.

    python -m workflows.coverage workflows/results/coverage.json

**edge**: shares of draws of pure noise whose largest eigenvalue is beyond the edge that is said to hold with confidence
.95, .99 and .999. ``before`` is what version 0.1.0 said: quantiles of Tracy and Widom for any number of columns.

**cosine**: one component of known strength in noise, from none to six times the threshold. How often its squared cosine
with the truth lies in the interval that is told, how often the component is beyond the edge, and then the mean of what
is told and of what is true; over all draws, too. ``before`` is what version 0.1.0 told: wherever the eigenvalue was
beyond the limit of the edge, the squared cosine of the limit. The component lies along an axis and, for entries that
are not rotationally invariant, along the diagonal as well. Given a draw of the noise, with eigenvalues mu and squared
entries w of the component in its eigenvectors, the eigenvalue that is seen solves ``sum w / (lambda - mu) = 1 /
strength``: one eigendecomposition serves all strengths.

**releases**: releases as the mechanisms draw them, of rows of which some are longer than the clip norm, their sums and
private centring included: how often all exact eigenvalues (of the shortened rows) lie in their intervals, at both ends
together, which is stated with 0.9, and how often the squared cosine of the first component does.

The file keeps what was measured: run it again to go on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import Centring, Neighbours, PrivacyLoss, Release, ReleaseRequest
from dpdist.mechanisms.attack import KnownMoment
from dpdist.noise.entropy import SYSTEM
from dpdist.pca.components import about_mean
from dpdist.pca.eigen import top_eigenpairs
from dpdist.pca.noise_edge import QUANTILES, NoiseLaw, law_of
from dpdist.pca.scree import require_scree
from dpdist.release.combine import combined
from dpdist.release.coverage import Coverage
from dpdist.rows.bounding import TRUNCATED
from dpdist.triangle import unpacked
from workflows.edge_table import draws, noise_named

Floats = npt.NDArray[np.float64]
LAWS = (
    "normal", "normal-equal", "laplace", "laplace-4", "frobenius", "frobenius-2", "wishart-1", "wishart-4",
    "two-sided-1", "two-sided-4", "sum", "nuclear",
)  # fmt: skip
SIZES = {1: 50_000, 2: 50_000, 5: 50_000, 8: 50_000, 20: 20_000, 50: 5_000, 100: 2_000}
"""Draws of pure noise for each number of columns."""
COSINE_SIZES = {1: 4_000, 2: 4_000, 4: 4_000, 8: 3_000, 20: 1_500, 50: 500, 100: 250}
NUCLEAR = {2: 1_000, 5: 1_000}
FACTORS = (0.0, 0.3, 0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 6.0)
"""Strengths over the threshold of the noise."""
_TOLD = (0.0, 0.8, 1.0, 1.25, 2.0, 6.0)
"""Those that the table has; the JSON file has all."""
RELEASES = 200
MECHANISMS = {
    "gaussian": "1e-6", "laplace": "0", "frobenius": "0", "wishart": "1e-6",
    "two-sided-wishart": "0",
}  # fmt: skip
_D, _N, _C = 8, 4000, 2.0


def law_named(name: str, size: int) -> NoiseLaw:
    """Return the law of a noise of :mod:`workflows.edge_table`."""
    found = law_of(noise_named(name, size), size)
    if found is None:
        raise AssertionError("every noise here has an edge")
    return found


def edges(name: str, size: int, count: int) -> dict[str, Any]:
    """Return the shares of draws of pure noise beyond the edge, before and now."""
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
        "before": {str(c): _share(top > law.edge + QUANTILES[c] * law.width) for c in stated},
        "now": {str(c): _share(top > law.edge_at(c)) for c in stated},
    }  # fmt: skip


def cosines(name: str, size: int, count: int, *, diagonal: bool) -> Iterator[dict[str, Any]]:
    """Yield, for each strength, how often the squared cosine is where it is told to be."""
    law, random = law_named(name, size), np.random.default_rng([2, size])
    direction = np.full(size, size**-0.5) if diagonal else np.eye(size)[0]
    mu, vectors = np.linalg.eigh(draws(name, size, count, random))
    weights = np.einsum("i,nij->nj", direction, vectors) ** 2
    near = np.linspace(min(mu[:, -1].min(), law.edge - 8 * law.width), 3 * law.edge, 1000)
    grid = np.concatenate([near, np.linspace(3 * law.edge, 14 * law.edge, 200)[1:]])
    told = np.array([law.cosine_of(value) for value in grid])
    for factor in FACTORS:
        strength = factor * law.threshold
        seen, truth = spiked(mu, weights, strength)
        value, low, high = (np.interp(seen, grid, told[:, i]) for i in range(3))
        above, once = seen > law.edge_at(0.95), seen > law.edge
        before = np.array([law.squared_cosine(law.strength(at)) for at in seen[once]])
        value = np.where(above, value, 0.0)
        yield {
            "part": "cosine", "law": name, "along": "diagonal" if diagonal else "axis", "d": size, "draws": count,
            "factor": factor,
            "covered": _share((low <= truth + 1e-9) & (truth <= high + 1e-9)),
            "above": _share(above), "told_above": _mean(value[above]), "true_above": _mean(truth[above]),
            "told": _mean(value), "true": _mean(truth), "low": _mean(low), "high": _mean(high),
            "above_before": _share(once), "told_above_before": _mean(before), "true_above_before": _mean(truth[once]),
        }  # fmt: skip


def spiked(mu: Floats, weights: Floats, strength: float) -> tuple[Floats, Floats]:
    """Return the largest eigenvalue of noise plus a component, (n,), and the squared cosine of its vector with it.

    Parameters
    ----------
    mu, weights
        (n, d): eigenvalues of the noise, ascending, and the squared entries of the component in its eigenvectors.
    strength
        Of the component; 0: none.
    """
    if not strength:
        return mu[:, -1], weights[:, -1]
    low, high = mu[:, -1].copy(), mu[:, -1] + strength * (1 + 1e-12)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = (weights / np.maximum(middle[:, None] - mu, 1e-300)).sum(axis=1) < 1 / strength
        high, low = np.where(beyond, middle, high), np.where(beyond, low, middle)
    gaps = np.maximum(high[:, None] - mu, 1e-300)
    return high, 1 / (strength**2 * (weights / gaps**2).sum(axis=1))


def releases(mechanism: str, epsilon: str, *, terms: int, centring: Centring) -> dict[str, Any]:
    """Release rows of known components, some longer than the clip norm, and see what is told of them."""
    whole = both = inside = above = 0
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
        at, seen = top_eigenpairs(about_mean(total).matrix(total.second_moment), _D)
        found = require_scree(total, at)
        low, high = found.intervals.T
        lower, upper = np.all(low <= values[::-1] + 1e-12), np.all(values[::-1] <= high + 1e-12)
        whole, both = whole + bool(lower and upper), both + int(lower) + int(upper)
        cosine = float(seen[0] @ vectors[:, -1]) ** 2
        inside += bool(found.cosine_intervals[0, 0] <= cosine <= found.cosine_intervals[0, 1])
        above += found.above > 0
    return {
        "part": "release", "mechanism": mechanism, "epsilon": epsilon, "terms": terms, "centring": centring.value,
        "releases": RELEASES, "both_ends": whole / RELEASES, "each_end": both / RELEASES / 2,
        "cosine": inside / RELEASES, "above": above / RELEASES,
    }  # fmt: skip


def _release(
    mechanism: str, epsilon: str, number: int, centring: Centring, random: np.random.Generator
) -> tuple[Release, Floats]:
    """Return a release of rows and their exact integer moment.

    Rows are truncated to 16 bits, by the older rule: so noise is all that is left between the two. What rounding
    without bias adds is compared with what is stated in ``workflows/rounding.py``.
    """
    loss = PrivacyLoss.parse(epsilon, MECHANISMS[mechanism])
    request = ReleaseRequest(mechanism, loss, _C, centring=centring, rule=TRUNCATED)
    bound, calibrated = request.bound(_D), request.calibrated(_D)
    rows = random.normal(size=(_N, _D)) * np.array([2.0, 0.5, *[0.1] * (_D - 2)])  # a third of them is shortened
    bounded = bound.apply(rows, np.empty((_N, bound.width))).astype(np.int64)
    moment = bounded.T @ bounded
    answer = unpacked(np.asarray(calibrated.answer(KnownMoment(moment), SYSTEM), dtype=np.int64), bound.width)
    release = Release(
        release_id=f"r-{number}", mechanism=mechanism, names=tuple(map(str, range(_D))),
        neighbours=Neighbours.REPLACE_ONE,
        claim=calibrated.claim, guarantee=calibrated.guarantee, bound=bound, noise=calibrated.noise,
        rows=_N, answer=answer, extents=(Coverage("d", number, number + 1, f"{number}", f"{number}"),),
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
    lines = ["# Coverage of what is said of components", "", "`workflows/coverage.py` says what is what.", ""]
    lines += ["## Pure noise beyond the edge", ""]
    lines += ["| law | d | draws | before .05 | .01 | .001 | now .05 | .01 | .001 |"]
    lines += ["| --- " * 9 + "|"]
    for row in (r for r in rows if r["part"] == "edge"):
        told = " | ".join(f"{row[when][c]:.4f}" for when in ("before", "now") for c in row["now"])
        lines.append(f"| {row['law']} | {row['d']} | {row['draws']} | {told} |")
    heads = ("law", "along", "d", "strength", "covered", "above", "told", "true", "above before", "told", "true")
    lines += ["", "## Squared cosines", ""]
    lines += ["Strength in thresholds; told and true: means where the component is above the edge.", ""]
    lines += ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for row in (r for r in rows if r["part"] == "cosine" and r["factor"] in _TOLD):
        cells = [row["law"], row["along"], row["d"], row["factor"], f"{row['covered']:.4f}"]
        for suffix in ("", "_before"):
            cells += [row["above" + suffix], row["told_above" + suffix], row["true_above" + suffix]]
        lines.append("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")
    lines += ["", "## Releases of shortened rows, 8 columns", ""]
    lines += ["| mechanism | epsilon | terms | centring | all intervals | each end | squared cosine | above |"]
    lines += ["| --- " * 8 + "|"]
    for row in (r for r in rows if r["part"] == "release"):
        told = " | ".join(f"{row[key]:.3f}" for key in ("both_ends", "each_end", "cosine", "above"))
        lines.append(f"| {row['mechanism']} | {row['epsilon']} | {row['terms']} | {row['centring']} | {told} |")
    return "\n".join(lines) + "\n"


_KEYS = ("part", "law", "along", "d", "mechanism", "epsilon", "terms", "centring")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in _KEYS)


def _work() -> Iterator[tuple[tuple[Any, ...], Callable[[], list[dict[str, Any]]]]]:
    """Yield what there is to measure: what its rows are told apart by, and what makes them."""
    for name in LAWS:
        for size, count in (NUCLEAR if name == "nuclear" else SIZES).items():
            yield _key({"part": "edge", "law": name, "d": size}), partial(_edges, name, size, count)
        for along in ("axis", *(["diagonal"] if name == "laplace" else [])):
            for size, count in (NUCLEAR if name == "nuclear" else COSINE_SIZES).items():
                key = _key({"part": "cosine", "law": name, "along": along, "d": size})
                yield key, partial(_cosines, name, size, count, along)
    for mechanism in MECHANISMS:
        for epsilon in ("0.02", "0.1", "4"):
            for terms, centring in ((1, Centring.NONE), (3, Centring.NONE), (1, Centring.PRIVATE)):
                told = {"mechanism": mechanism, "epsilon": epsilon, "terms": terms, "centring": centring.value}
                yield _key({"part": "release"} | told), partial(_releases, mechanism, epsilon, terms, centring)


def _edges(name: str, size: int, count: int) -> list[dict[str, Any]]:
    return [edges(name, size, count)]


def _cosines(name: str, size: int, count: int, along: str) -> list[dict[str, Any]]:
    return list(cosines(name, size, count, diagonal=along == "diagonal"))


def _releases(mechanism: str, epsilon: str, terms: int, centring: Centring) -> list[dict[str, Any]]:
    return [releases(mechanism, epsilon, terms=terms, centring=centring)]


def main() -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []

    def keep(found: list[dict[str, Any]]) -> None:
        rows.extend(found)
        out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
        out.with_suffix(".md").write_text(table(rows))

    known = {_key(row) for row in rows}
    for key, work in _work():
        if key not in known:
            keep(work())


if __name__ == "__main__":
    main()
