"""The pages of results, made from what the JSON files hold: no number in them is typed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from papers.common.runs import Json
from papers.imtiaz_sarwate.published import LABELS

_WORDS = {True: "yes", False: "no", None: "too few runs"}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [list(head), ["---"] * len(head), *rows]
    return [*("| " + " | ".join(cells) + " |" for cells in lines), ""]


def _paragraph(*parts: str) -> list[str]:
    return [*textwrap.wrap(" ".join(parts), 118), ""]


def _error(value: float) -> str:
    return f"{value:.3g}" if value >= 0.1 else f"{value:.2f}"


def _run(one: Json) -> str:
    return f"{_error(one['median'])} ({_error(one['5%'])} to {_error(one['95%'])})"


def table_page(found: Json) -> str:
    """Return the page of table 1 and the talk's table, in Markdown."""
    counted, table = found["cells as counts"]["table 1"], found["table"]
    lines = [
        "# Table 1 and the talk's table, run by run",
        "",
        *_paragraph(
            "Errors in per cent of a linear SVM on projected rows; made by `python -m papers.imtiaz_sarwate.table`.",
            "Of single runs: the median, and in brackets the 5 and 95 % quantiles. A printed error agrees at an",
            "epsilon where it lies between these quantiles, interpolated between the epsilons of the scan; or less, or",
            "more: up to its end. Standardised: the projected columns, before the SVM.",
        ),
        "## How many runs a printed cell is",
        "",
        *_paragraph(
            f"{counted['whole']} of the {counted['cells']} cells of table 1 are whole numbers of",
            f"{counted['test rows']} test rows. Averages of {counted['runs averaged']} runs would be with probability",
            f"{counted['chance']:g}: they are single runs. Of the talk, with as many records as the paper has:",
        ),
        *_table(
            ("data", "split", "test rows", "cells that one run could give"),
            (
                (
                    one["data"],
                    one["split"],
                    str(one["test rows"]),
                    f"{one['cells that one run could give']} of {one['of']}",
                )
                for one in found["cells as counts"]["the talk"]
            ),
        ),
        "## Whether one epsilon gives all printed errors of a column",
        "",
        *_table(
            (
                "data",
                "split",
                "classifier",
                "SVD agrees",
                "agrees nowhere",
                "not compared",
                "all others at",
                "largest runs",
            ),
            map(_together, found["together"]),
        ),
        "## Random subspaces",
        "",
        *_table(
            ("data", "split", "classifier", "runs", "5 %", "median", "95 %", "largest", "SVD, median"),
            _random(table),
        ),
    ]
    for data, split, classifier in dict.fromkeys((one["data"], one["split"], one["classifier"]) for one in table):
        mine = [one for one in table if (one["data"], one["split"], one["classifier"]) == (data, split, classifier)]
        epsilons = list(dict.fromkeys(e for one in mine for e in one["scan"] if e != "any"))
        lines += [f"## {data}, {split}, {classifier}", ""]
        lines += _table(
            ("method", "printed", "agrees at epsilon", "runs", "any epsilon", *epsilons),
            (
                (
                    f"*{one['method']}*" if one["method"] in LABELS else one["method"],
                    str(one.get("printed", "")),
                    one.get("in words", _WORDS[one["agrees"]] if "agrees" in one else ""),
                    str(min(run["runs"] for run in one["scan"].values())),
                    *(_run(one["scan"][e]) if e in one["scan"] else "" for e in ("any", *epsilons)),
                )
                for one in mine
            ),
        )
    return "\n".join(lines).rstrip() + "\n"


def _together(one: Json) -> tuple[str, ...]:
    ends = one["all agree at"]
    return (
        one["data"],
        one["split"],
        one["classifier"],
        _WORDS[one["SVD agrees"]],
        ", ".join(one["agree nowhere"]),
        ", ".join(one["not compared"]),
        "none" if not ends else " to ".join(dict.fromkeys(f"{end:.2g}" for end in ends)),
        ", ".join(f"{method} {_error(error)}" for method, error in one["largest"].items()),
    )


def _random(table: Sequence[Json]) -> Iterable[tuple[str, ...]]:
    by = {(one["data"], one["split"], one["classifier"], one["method"]): one["scan"] for one in table}
    for (data, split, classifier, method), scan in by.items():
        if method == "random":
            run, best = scan["any"], by[data, split, classifier, "SVD"]["any"]
            shown = [_error(run[name]) for name in ("5%", "median", "95%", "largest")]
            yield data, split, classifier, str(run["runs"]), *shown, _error(best["median"])


def figures_page(found: Json) -> str:
    """Return the page of figures 1 and 2, in Markdown."""
    lines = [
        "# Figures 1 and 2, with their spread",
        "",
        *_paragraph(
            "Captured energy in per cent of SVD; made by `python -m papers.imtiaz_sarwate.figures`. Mean, and in",
            "brackets two standard deviations: of the noise, with the rows as they are; and of the rows, drawn anew,",
            "without the part of the noise (- where there is one answer, or one draw of the rows).",
        ),
    ]
    for data, facts in found["facts"].items():
        shares, rounds = facts["share of the best components"], facts["rounds of PPM"]
        lines += [
            f"## {data}",
            "",
            *_paragraph(
                f"Draws of the rows: {facts['draws']}; answers from each: {facts['runs']}, of slow methods",
                f"{facts['slow_runs']}. Share of the best {facts['components']} components: {min(shares):.3f} to",
                f"{max(shares):.3f}. lambda_k, where the largest norm is 1: {min(facts['lambda_k']):.3g} to",
                f"{max(facts['lambda_k']):.3g}. Rounds of PPM: {min(rounds)} to {max(rounds)}.",
            ),
        ]
        for figure, name in ((1, "epsilon"), (2, "n")):
            points = [m for m in found["means"] if (m["figure"], m["data"]) == (figure, data)]
            places = sorted({m[name] for m in points}, key=float)
            by = {(m["method"], m[name]): m for m in points}
            head = f"n = {facts['rows']}, by epsilon" if figure == 1 else f"epsilon = {facts['epsilon']}, by n"
            lines += [f"{head}:", ""]
            lines += _table(
                ("method", *map(str, places)),
                (
                    (label, *(_energy(by[label, place]) if (label, place) in by else "" for place in places))
                    for label in dict.fromkeys(m["method"] for m in points)
                    if label != "SVD"
                ),
            )
    return "\n".join(lines).rstrip() + "\n"


def _energy(point: Json) -> str:
    parts = ["-" if point[name] is None else f"{point[name]:.1f}" for name in ("of the noise", "of the data")]
    return f"{point['mean']:.1f} ({', '.join(parts)})"


def classifier_name(one: Json) -> str:
    """Return a classifier in few words: what is not the default of the paper's solver.

    Examples
    --------
    >>> classifier_name({"digits": "3 and 7", "train": 6000, "kernel": "cubic", "columns": "as they are", "C": 10.0,
    ...     "tolerance": 1e-3})
    'train 6000, cubic, columns as they are, C 10'
    """
    words = [f"train {one['train']}", one["kernel"], f"columns {one['columns']}"]
    words += [f"C {one['C']:g}"] if one["C"] != 1 else []
    words += [f"tolerance {one['tolerance']:g}"] if one["tolerance"] != 1e-3 else []
    words += ["all ten digits"] if one["digits"] != "3 and 7" else []
    return ", ".join(words)


def classifiers_page(found: Json) -> str:
    """Return the page of the classifiers that were tried on MNIST, in Markdown."""
    tried, places = found["classifiers"], ("SVD", "random", "all pixels")
    both = {name: [one for one in tried if one[f"{name}: SVD fits"] and one[f"{name}: private fit"]]
            for name in ("error", "training error")}  # fmt: skip
    lines = [
        "# MNIST in table 1: the classifiers that were tried",
        "",
        *_paragraph(
            "Errors in per cent, the smallest to the largest of the runs; made by",
            "`python -m papers.imtiaz_sarwate.classifiers`. SVD fits: the printed error of SVD lies within the runs,",
            "widened by three standard deviations of a count of 4000 rows. Private fit: all printed errors of private",
            "methods lie between those of SVD and of random subspaces, widened so. Unless it is said otherwise C is 1",
            "and the tolerance 0.001.",
        ),
        *_paragraph(
            f"Classifiers tried: {len(tried)}. Both fit in test errors: {len(both['error'])}, with both numbers of",
            f"training rows: {len(with_both(both['error']))}. In training errors: {len(both['training error'])},",
            f"{len(with_both(both['training error']))}.",
        ),
        *[f"* {name}: {classifier_name(one)}" for name, each in both.items() for one in each],
        *([""] if any(both.values()) else []),
        *_table(
            (
                "classifier",
                "SVD printed",
                *places,
                "SVD fits",
                "private printed",
                "private fit",
                "training: SVD",
                "random",
            ),
            (
                (
                    classifier_name(one),
                    str(one["printed, SVD"]),
                    *(_ends(one["error"].get(place)) for place in places),
                    "yes" if one["error: SVD fits"] else "no",
                    " to ".join(map(str, one["printed, private"])),
                    "yes" if one["error: private fit"] else "no",
                    *(_ends(one["training error"].get(place)) for place in places[:2]),
                )
                for one in tried
            ),
        ),
    ]
    return "\n".join(lines).rstrip() + "\n"


def with_both(fitting: Sequence[Json]) -> list[str]:
    """Return which classifiers fit with 4000 and with 6000 training rows."""
    names = [classifier_name(one).partition(", ")[::2] for one in fitting]
    return [rest for train, rest in names if train == "train 4000" and ("train 6000", rest) in names]


def _ends(one: Json | None) -> str:
    return "" if one is None else " to ".join(dict.fromkeys(_error(one[name]) for name in ("smallest", "largest")))
