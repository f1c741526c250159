"""Ancestry from real genomes under differential privacy: 1092 people, a public reference panel, and what survives.

The people of 1000 Genomes, phase 1, play the private cohort. Those of HapMap 3 who are not among them are the public
panel: its allele frequencies standardise the genotypes, and its principal components, or the variants they load on,
say in which few dimensions to look. One command; killed and started again it goes on with what is missing::

    python -m papers.genomes --data FOLDER --workers 2

It writes ``genomes`` as ``.json`` (settings, means, forecasts), ``.csv`` (every draw) and two pictures.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import NearestNeighbors

from dpdist import DataError, Neighbours, RowBound, cli, forecast_release
from dpdist.answers.eigen import top_eigenpairs
from dpdist.answers.noise_edge import law_of
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from papers.common import data as sets
from papers.common import pictures, runs
from papers.common.answers import NOTICE, PublicMoment, moment_of, private_moment, request_for
from papers.common.command import Asked, experiment
from papers.common.runs import Json

Floats = npt.NDArray[np.float64]
NAME = "genomes"
DELTA = "1e-5"
COMPONENTS = 4
NEAREST = 5
SEED = 2010
LEAST_FREQUENCY = 0.05
CLIP_QUANTILE = 0.95
FOLDS = 5
MISSING = 3
EPSILONS = ("0.1", "0.3", "1", "3", "10")
MECHANISMS = ("gaussian", "two-sided-wishart")
RELATIONS = (Neighbours.REPLACE_ONE.value, Neighbours.ADD_REMOVE.value)
FORECAST_ROWS = 100_000


@dataclass(frozen=True)
class Plan:
    """How much of it to run.

    Attributes
    ----------
    panel
        Numbers of panel components to look in, each with its number of draws.
    selected
        Numbers of variants to look at, each with its number of draws.
    epsilons
        What to spend.
    shown
        The route whose mechanisms and relations are compared, and whose scores are drawn.
    """

    panel: tuple[tuple[int, int], ...]
    selected: tuple[tuple[int, int], ...]
    epsilons: tuple[str, ...]
    shown: str

    @property
    def draws(self) -> dict[str, int]:
        """Return the number of draws by route, in the order of the pictures."""
        return {f"panel {m}": n for m, n in self.panel} | {f"variants {s}": n for s, n in self.selected}


WHOLE = Plan(((5, 20), (10, 20), (20, 20), (50, 20)), ((100, 20), (300, 20), (1000, 5)), EPSILONS, "panel 10")
QUICK = Plan(((5, 2),), ((30, 2),), ("1", "10"), "panel 5")


@dataclass(frozen=True)
class Cohorts:
    """Standardised genotypes of a private cohort and of a public panel, of the same variants in one order.

    Attributes
    ----------
    private
        (n, d): alleles less twice the panel's frequency, over the standard deviation that this frequency implies.
    panel
        (p, d), the same; what is missing is 0, the panel's mean.
    populations
        (n,), the label of every private row, '' where none is known.
    facts
        What was checked and left out.
    """

    private: Floats
    panel: Floats
    populations: npt.NDArray[np.str_]
    facts: Json

    @cached_property
    def panel_axes(self) -> tuple[Floats, Floats]:
        """Variance along the principal components of the panel, and the components, (p, d)."""
        return _axes(self.panel)

    @cached_property
    def _apart(self) -> list[tuple[Floats, Floats]]:
        """Folds of the panel: people, and the principal components of all others."""
        parts = [np.arange(len(self.panel)) % FOLDS == fold for fold in range(FOLDS)]
        return [(self.panel[part], _axes(self.panel[~part])[1]) for part in parts]

    def clip_norm(self, route: str) -> float:
        """Return the norm that 95 per cent of the panel keep below, seen from components they had no part in.

        Components follow the people they are taken of: seen from its own, the panel is longer than anybody else.
        """
        kind, count = route.split()
        if kind == "panel":
            norms = [np.linalg.norm(people @ axes[: int(count)].T, axis=1) for people, axes in self._apart]
        else:
            norms = [np.linalg.norm(self.panel @ self.basis(route).T, axis=1)]
        return float(f"{np.quantile(np.concatenate(norms), CLIP_QUANTILE):.3g}")

    @cached_property
    def best(self) -> Floats:
        """The principal components of the private cohort without privacy, (COMPONENTS, d)."""
        return np.linalg.svd(self.private, full_matrices=False)[2][:COMPONENTS]

    def basis(self, route: str) -> Floats:
        """Return the orthonormal directions a route looks in, (m, d), from the panel alone."""
        kind, count = route.split()
        values, axes = self.panel_axes
        if kind == "panel":
            return axes[: int(count)]
        # how much of a variant's variance lies in the panel's first components: it tells ancestry
        told = values[:COMPONENTS] @ axes[:COMPONENTS] ** 2
        chosen = np.sort(np.argsort(told)[::-1][: int(count)])
        directions = np.zeros((len(chosen), len(told)))
        directions[np.arange(len(chosen)), chosen] = 1
        return directions


def _axes(rows: Floats) -> tuple[Floats, Floats]:
    _, strengths, axes = np.linalg.svd(rows, full_matrices=False)
    return strengths**2 / len(rows), axes


def read(folder: Path | None, variants: int | None = None) -> Cohorts:
    """Read both cohorts, align their variants by name, check the coding, and take the people of both out of the panel.

    Parameters
    ----------
    folder
        Where ``thousand_genomes.npz`` and ``hapmap3.npz`` are.
    variants
        Keep the first so many only.

    Raises
    ------
    DataError
        If a file is missing, alleles are coded otherwise, or a private genotype is missing.
    """
    held, other = sets.required(folder, "thousand_genomes"), sets.required(folder, "hapmap3")
    names, here, there = np.intersect1d(held["snp_id"], other["snp_id"], return_indices=True)
    here, there = here[:variants], there[:variants]
    if any((held[allele][here] != other[allele][there]).any() for allele in ("allele1", "allele2")):
        raise DataError("The two cohorts do not count the same alleles. Code them alike.")
    genotypes = held["X"][:, here]
    if (genotypes == MISSING).any():
        raise DataError("A genotype of the private cohort is missing. Leave out its variant, by the panel's list.")
    apart = ~np.isin(other["sample_id"], held["sample_id"])
    panel = other["X"][apart][:, there].astype(np.float64)
    panel[panel == MISSING] = np.nan
    frequency = np.nanmean(panel, axis=0) / 2
    common = (frequency >= LEAST_FREQUENCY) & (frequency <= 1 - LEAST_FREQUENCY)
    shift, scale = 2 * frequency[common], np.sqrt(2 * frequency * (1 - frequency))[common]
    facts = {
        "variants in both": len(names),
        "variants kept": int(common.sum()),
        "people of the panel": int(apart.sum()),
        "people left out of the panel, because they are in the private cohort": int((~apart).sum()),
        "correlation of the allele frequencies of the two": float(np.corrcoef(frequency, genotypes.mean(axis=0))[0, 1]),
        "populations of the panel": dict(sorted(Counter(other["y"][apart].tolist()).items())),
        "sha256": {"thousand_genomes": sets.digest(held["X"]), "hapmap3": sets.digest(other["X"])},
    }
    return Cohorts(
        (genotypes[:, common] - shift) / scale, np.nan_to_num((panel[:, common] - shift) / scale), held["y"], facts
    )


@dataclass(frozen=True)
class Route:
    """One way to look in few dimensions, with all that its scores need.

    Attributes
    ----------
    moment
        The exact second moment of the private rows there, clipped.
    rows
        (n, m): the private rows there, not clipped.
    best
        (COMPONENTS, m): what of the best components lies there.
    most
        Sum of squares along the best components, of all variants.
    """

    moment: PublicMoment
    rows: Floats
    best: Floats
    most: float

    def scores_of(self, components: Floats, populations: npt.NDArray[np.str_]) -> Json:
        """Say how well some components of the route, (k, m), do: none of it is private."""
        scores = self.rows @ components.T
        return {
            "captured": round(100 * float((scores**2).sum()) / self.most, 3),
            "overlap": round(float(((components @ self.best.T) ** 2).sum()) / COMPONENTS, 5),
            "accuracy": round(100 * neighbours_agree(scores, populations), 3),
        }


def route_of(cohorts: Cohorts, name: str) -> Route:
    """Return a route; its directions and clip norm come from the panel."""
    basis = cohorts.basis(name)
    rows = cohorts.private @ basis.T
    most = float(((cohorts.private @ cohorts.best.T) ** 2).sum())
    return Route(moment_of(rows, cohorts.clip_norm(name)), rows, cohorts.best @ basis.T, most)


def neighbours_agree(scores: Floats, populations: npt.NDArray[np.str_]) -> float:
    """Return the share of labelled people whose population most of their nearest labelled neighbours have."""
    known = populations != ""
    labels = populations[known]
    near = NearestNeighbors(n_neighbors=NEAREST).fit(scores[known]).kneighbors(return_distance=False)
    told = [Counter(labels[places].tolist()).most_common(1)[0][0] for places in near]
    return float(np.mean(np.array(told) == labels))


def draw(cell: Json, shared: Any) -> Json:
    """Draw one private second moment and score its components."""
    route, populations = shared["routes"][cell["route"]], shared["populations"]
    bound: RowBound = route.moment.bound
    request = request_for(cell["mechanism"], (cell["epsilon"], DELTA), bound, {}, Neighbours(cell["neighbours"]))
    if request.for_reproduction:
        raise DataError(f"{cell['mechanism']} is not private as claimed here.")
    noisy = private_moment(request, route.moment)
    law = law_of(planned(request, Dimensions(bound.columns)).moment.noise, bound.columns, bound.unit**2)
    components = top_eigenpairs(noisy, COMPONENTS)[1]
    seen = 0 if law is None else int((np.linalg.eigvalsh(noisy) > law.edge_at(0.95)).sum())
    true = top_eigenpairs(route.moment.matrix, 1)[1][0]
    found: Json = {"seen": seen, "first": round(float((components[0] @ true) ** 2), 5)}
    found |= route.scores_of(components, populations)
    return found


def cells_of(plan: Plan, most: int) -> list[Json]:
    """Return every draw, up to a number for each setting."""
    return [
        {"route": route, "mechanism": mechanism, "neighbours": relation, "epsilon": epsilon, "draw": number}
        for route, draws in plan.draws.items()
        for mechanism in MECHANISMS
        for relation in RELATIONS
        for epsilon in plan.epsilons
        for number in range(min(draws, most))
    ]


def summary(found: list[Json]) -> list[Json]:
    """Return mean, 5 and 95 per cent quantile of everything that was measured, over the draws of each setting."""
    by = ("route", "mechanism", "neighbours", "epsilon")
    groups: dict[tuple[str, ...], list[Json]] = {}
    for row in found:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    made = []
    for key, rows in groups.items():
        line: Json = dict(zip(by, key, strict=True)) | {"draws": len(rows)}
        for name in ("captured", "overlap", "accuracy", "seen", "first"):
            low, high = np.quantile([row[name] for row in rows], [0.05, 0.95])
            line[name] = {
                "mean": round(float(np.mean([row[name] for row in rows])), 4),
                "from": round(float(low), 4),
                "to": round(float(high), 4),
            }
        made.append(line)
    return made


def forecasts(cohorts: Cohorts, routes: dict[str, Route], epsilons: tuple[str, ...], rows: int) -> list[Json]:
    """Say by the formulas what so many people with this spectrum would see, and where all variants together stand."""
    spectra = {
        name: (route.moment.bound, np.linalg.eigvalsh(route.moment.matrix)[::-1] / route.moment.rows)
        for name, route in routes.items()
    }
    norms = np.linalg.norm(cohorts.panel, axis=1)
    every = RowBound(cohorts.private.shape[1], float(f"{np.quantile(norms, CLIP_QUANTILE):.3g}"), 16)
    spectra["all variants"] = every, np.linalg.svd(cohorts.private, compute_uv=False) ** 2 / len(cohorts.private)
    made = []
    for name, (bound, values) in spectra.items():
        top = [float(value) for value in values[: 2 * COMPONENTS] if value > 0]
        for epsilon in epsilons:
            told = forecast_release(request_for("gaussian", (epsilon, DELTA), bound, {}), bound.columns, rows, top)
            here = forecast_release(told.request, bound.columns, len(cohorts.private), top)
            made.append(
                {
                    "route": name,
                    "columns": bound.columns,
                    "clip norm": bound.clip_norm,
                    "epsilon": epsilon,
                    "threshold in people": [each.rows_to_see for each in told.expected[:COMPONENTS]],
                    "squared cosines here": [round(each.squared_cosine, 4) for each in here.expected[:COMPONENTS]],
                    "seen": told.seen,
                    "squared cosines": [round(each.squared_cosine, 4) for each in told.expected[:COMPONENTS]],
                }
            )
    return made


def without_noise(cohorts: Cohorts, routes: dict[str, Route]) -> Json:
    """Return what no noise is added to: PCA without privacy, the panel's own components, each route without noise."""
    whole = Route(routes[next(iter(routes))].moment, cohorts.private, cohorts.best, next(iter(routes.values())).most)
    lines = {
        "PCA without privacy": whole.scores_of(cohorts.best, cohorts.populations),
        "components of the panel, no private data": whole.scores_of(
            cohorts.panel_axes[1][:COMPONENTS], cohorts.populations
        ),
    }
    for name, route in routes.items():
        lines[f"{name}, without noise"] = route.scores_of(
            top_eigenpairs(route.moment.matrix, COMPONENTS)[1], cohorts.populations
        )
    lines["PCA without privacy of one half, for the other"] = {
        "captured": round(100 * of_other_half(cohorts.private), 3)
    }
    labels = cohorts.populations[cohorts.populations != ""].tolist()
    lines["the most frequent population"] = {
        "accuracy": round(100 * Counter(labels).most_common(1)[0][1] / len(labels), 3)
    }
    return lines


def of_other_half(rows: Floats) -> float:
    """Return how much of the best captured variance of one half the components of the other half capture.

    What is missing to 1 are directions that components only have because they follow the people they are taken of.
    """
    order = np.random.default_rng(SEED).permutation(len(rows))
    one, other = rows[order[::2]], rows[order[1::2]]
    captured = [float(((other @ _axes(half)[1][:COMPONENTS].T) ** 2).sum()) for half in (one, other)]
    return captured[0] / captured[1]


@experiment(
    __doc__,
    "2 minutes",
    runs=20,
    quick=2,
    of="draws of each setting, at most",
    needs="thousand_genomes.npz and hapmap3.npz, which you make",
)
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    plan = QUICK if asked.quick else WHOLE
    cohorts = read(asked.data, 600 if asked.quick else None)
    routes = {name: route_of(cohorts, name) for name in plan.draws}
    settings: Json = {
        "notice": NOTICE,
        "quick": asked.quick,
        "delta": DELTA,
        "components": COMPONENTS,
        "least allele frequency in the panel": LEAST_FREQUENCY,
        "clip norm": f"quantile {CLIP_QUANTILE} of the panel's norms, in {FOLDS} folds",
        "clip norms": {name: route.moment.bound.clip_norm for name, route in routes.items()},
        "draws": plan.draws,
        "seed of the halves": SEED,
        "people": len(cohorts.private),
        "data": cohorts.facts,
    }
    shared = {"routes": routes, "populations": cohorts.populations}
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        found = runs.run(executor, store, draw, cells_of(plan, asked.runs), shared=shared, label="Private ancestry")
    means = summary(found)
    base = without_noise(cohorts, routes)
    told = forecasts(cohorts, routes, plan.epsilons, FORECAST_ROWS)
    facts = settings | {"without noise": base, "means": means, f"forecast for {FORECAST_ROWS} people": told}
    runs.write(asked.output / NAME, found, facts)
    picture(asked.output / f"{NAME}.png", plan, means, base)
    scatter(asked.output / f"{NAME}_scores.png", cohorts, routes[plan.shown], plan)
    asked.finish(NAME, ".json .csv .png _scores.png", results_of(means))


def results_of(means: list[Json]) -> Iterator[str]:
    """Yield the recognised populations of the first mechanism and relation as lines of text."""
    for m in means:
        if (m["mechanism"], m["neighbours"]) == (MECHANISMS[0], RELATIONS[0]):
            accuracy = m["accuracy"]
            yield (
                f"{m['route']}, epsilon {m['epsilon']}: {accuracy['mean']:.1f} % recognised ({accuracy['from']:.1f} to "
                f"{accuracy['to']:.1f}), {m['seen']['mean']:.1f} components above the noise"
            )


def picture(path: Path, plan: Plan, means: list[Json], base: Json) -> None:
    """Draw what survives against epsilon: routes above, mechanisms and relations of one route below."""
    figure, axes = pictures.panels(3, 2)
    labels = {
        "captured": "captured variance, % of non-private",
        "accuracy": f"population told by {NEAREST} neighbours, %",
        "seen": "components above the noise (up to 9)",
    }
    looks = list(zip(itertools.product(("-", "--"), pictures.PALETTE), plan.draws, strict=False))
    ticks = [float(epsilon) for epsilon in plan.epsilons]
    for place, (name, label) in enumerate(labels.items()):
        upper, lower = axes[place], axes[place + len(labels)]
        for (style, colour), route in looks:
            _line(
                upper, means, name, colour, style, route, route=route, mechanism=MECHANISMS[0], neighbours=RELATIONS[0]
            )
        for mechanism in MECHANISMS:
            colour = pictures.style(mechanism)["color"]
            for relation, style in zip(RELATIONS, ("-", "--"), strict=True):
                _line(
                    lower, means, name, colour, style, f"{mechanism}, {relation}",
                    route=plan.shown, mechanism=mechanism, neighbours=relation,
                )  # fmt: skip
        for ax in (upper, lower):
            if name == "seen":
                ax.set_ylim(0, 9)  # many more directions of few variants stand out at large epsilon
            else:
                ax.set_ylim(0, 103)
                ax.axhline(base["PCA without privacy"][name], color="black", lw=1, label="without privacy")
                alone = base["components of the panel, no private data"][name]
                ax.axhline(alone, color="grey", ls=":", lw=1.5, label="the panel alone")
            pictures.mark(ax, ticks)
            ax.set(xlabel="epsilon", ylabel=label)
            ax.grid(alpha=0.3)
    axes[0].set_title("gaussian, replace-one: where to look", fontsize=9)
    axes[3].set_title(f"{plan.shown}: mechanisms and relations", fontsize=9)
    axes[1].legend(fontsize=7)
    axes[4].legend(fontsize=7)
    figure.suptitle(f"Four components of private genomes, delta {DELTA}. {NOTICE.capitalize()}.")
    pictures.save(figure, path)


def _line(ax: Any, means: list[Json], name: str, colour: str, style: str, label: str, **where: str) -> None:
    """Draw one mean with its 5 to 95 per cent range."""
    rows = [line for line in means if all(line[key] == value for key, value in where.items())]
    x = [float(line["epsilon"]) for line in rows]
    ax.plot(x, [line[name]["mean"] for line in rows], style, color=colour, marker=".", label=label, lw=1.3)
    ax.fill_between(
        x, [line[name]["from"] for line in rows], [line[name]["to"] for line in rows], color=colour, alpha=0.15, lw=0
    )


def scatter(path: Path, cohorts: Cohorts, route: Route, plan: Plan) -> None:
    """Draw everybody along the first two components, without privacy and from one fresh draw at some epsilons."""
    shown: list[tuple[str | None, Floats]] = [(None, cohorts.private @ cohorts.best[:2].T)]
    for epsilon in [e for e in ("0.1", "1", "10") if e in plan.epsilons]:
        request = request_for(MECHANISMS[0], (epsilon, DELTA), route.moment.bound, {})
        components = top_eigenpairs(private_moment(request, route.moment), 2)[1]
        # signs and order of components mean nothing: turned to where they resemble the ones without privacy
        u, _, v = np.linalg.svd(components @ route.best[:2].T)
        shown.append((epsilon, route.rows @ components.T @ u @ v))
    figure, axes = pictures.panels(len(shown), 1, width=3.6, height=3.8)
    names = sorted(set(cohorts.populations.tolist()) - {""})
    for ax, (title, scores) in zip(axes, shown, strict=True):
        for (marker, colour), name in zip(itertools.product("o^", pictures.PALETTE), names, strict=False):
            of = cohorts.populations == name
            ax.scatter(scores[of, 0], scores[of, 1], s=7, color=colour, marker=marker, label=name, lw=0)
        ax.set_title("without privacy" if title is None else f"{plan.shown}, epsilon {title}", fontsize=9)
        ax.set(xlabel="component 1", ylabel="component 2")
        ax.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    figure.suptitle(f"Scores are private rows: drawn here because these people are public. {NOTICE.capitalize()}.")
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
