"""The numbers on the page of figures are those of the results that the figures show."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image
from support.folders import ROOT

RESULTS = ROOT / "papers" / "results"
PAGE = " ".join((ROOT / "papers" / "gallery.md").read_text().split())
WORDS = {"five": "5", "nine": "9"}


def facts(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def ends(values: Iterable[float]) -> tuple[float, float]:
    every = list(values)
    return min(every), max(every)


def differences() -> dict[tuple[str, ...], float]:
    table = facts("imtiaz_sarwate_differences")["table"]
    return {(r["data"], r["measure"], r["epsilon"], r["method"]): r["mean"] for r in table}


def tasks() -> tuple[float, float, float]:
    """Return how much worse the best noise of the paper is than Gaussian and Laplace noise as it is used there."""
    found: dict[str, dict[str, float]] = {}
    for row in rows("chanyaswad_tasks"):
        found.setdefault(row["task"], {})[row["method"]] = float(row["mean"])

    def worse(task: str) -> list[float]:
        best = min(mean for method, mean in found[task].items() if method.startswith("MVG, theorem"))
        return [best / found[task][plain] for plain in ("Gaussian, classical", "Laplace")]

    least, most = ends(math.log10(x) for task in found if task != "regression" for x in worse(task))
    return max(worse("regression")), least, most


def claims() -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield what the page says with numbers, and these numbers as the results have them."""
    off = differences()
    whole = {key: mean for key, mean in off.items() if key[1].startswith("|A - ")}
    against = (mean / off[*key[:3], "gaussian"] for key, mean in whole.items() if key[3] == "SN")
    yield r"`gaussian` with delta 1e-6 is ([\d.]+) to ([\d.]+) times nearer", ends(against)
    energy = {(m["data"], m["epsilon"], m["method"]): m["mean"] for m in facts("imtiaz_sarwate_figures")["means"]
              if m["figure"] == 1 and m["data"] != "mnist"}  # fmt: skip
    below = max(energy[*key[:2], "AG"] - mean for key, mean in energy.items() if key[2] == "gaussian")
    yield r"`gaussian` with delta 1e-6 is up to (\d+) points below AG", (below,)
    yield r"`gaussian` captures (\d+) % of the synthetic rows", (energy["synthetic", "0.01", "gaussian"],)
    ranked = {(e["method"], e["k"]): e["mean"] for e in facts("jiang_xie_zhang_rank_k")["errors"]}
    others = (mean / ranked["two-sided-wishart", k] for (method, k), mean in ranked.items() if "&" in method)
    yield r"by factors of (\d+) to (\d+) against the repair", ends(others)
    at_one = ends(100 * v for k, v in off.items() if k[1].startswith("|A_k") and k[2:] == ("1", "SN"))
    yield r"at 1 by (\d+) to (\d+) % of the largest eigenvalue", at_one
    table = facts("sn_theorem_2")["table"]
    (row,) = (r for r in table if (r["method"], r["epsilon"], r["measure"]) == ("sn", "10", "norm of the noise"))
    yield r"([\d.]+) times the rate at epsilon 10", (row["mean"] / row["published rate"],)
    every = facts("imtiaz_sarwate_classifiers")["classifiers"]
    both = [c["train"] for c in every if c["error: SVD fits"] and c["error: private fit"]]
    fits = (len(every), both.count(4000), both.count(6000))
    yield r"(\d+) classifiers; (\w+) give both with 4000 rows, (\w+) with 6000", fits
    needed = facts("jiang_xie_zhang_samples")["rows needed"]
    fewer = (bound / needed["jiang-wishart"][d] for d, bound in needed["theorem 7"].items())
    yield r"([\d.]+) to ([\d.]+) times fewer rows suffice", ends(fewer)
    yield r"by a factor of ([\d.]+) in the regression", tasks()[:1]
    names, orbits = ("family", "d", "k", "epsilon"), rows("mangoubi_orbits")
    bounds = {tuple(str(bound[name]) for name in names): bound for bound in facts("mangoubi_orbits")["bounds"]}
    below = (
        bounds[tuple(row[name] for name in names)][f"upper bound, {row['method']}"] / float(row["error of H"])
        for row in orbits
        if row["method"].startswith("algorithm")
    )
    yield r"errors lie between the bounds, ([\d.]+) to ([\d.]+) times below the upper", ends(below)
    errors = {(*(row[name] for name in names), row["method"]): float(row["error"]) for row in orbits}
    for family, claim in (
        ("projector", "a factor of {} on projectors"),
        ("condition 10", "and {} at condition"),
    ):
        gained = (
            v / errors[*k[:4], "algorithm 2"] for k, v in errors.items() if k[0] == family and k[4] == "Amin et al."
        )
        yield claim.format(r"([\d.]+) to ([\d.]+)"), ends(gained)
    as_accurate = (
        v / errors[*k[:4], "two-sided Wishart"]
        for k, v in errors.items()
        if k[:2] == ("projector", "32") and k[3] in {"1", "10"} and k[4] == "algorithm 2"
    )
    yield r"is ([\d.]+) to ([\d.]+) times as accurate on projectors of d = 32 at epsilon 1 and 10", ends(as_accurate)


@pytest.mark.parametrize(("claim", "values"), list(claims()))
def test_a_number_of_the_gallery_is_that_of_the_results(claim: str, values: tuple[float, ...]) -> None:
    (found,) = re.findall(claim, PAGE)
    said = [found] if isinstance(found, str) else found
    for words, value in zip(said, values, strict=True):
        number = WORDS.get(words, words)
        assert round(value, len(number.partition(".")[2])) == float(number), words


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.png")), ids=lambda path: path.stem)
def test_nothing_is_cut_off_at_the_border_of_a_picture(path: Path) -> None:
    pixels = image.imread(path)[:, :, :3]
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert border.min() > 0.9


def test_what_the_gallery_says_in_words_is_so() -> None:
    _, least, most = tasks()
    assert "by three to five orders of magnitude in the other two" in PAGE
    assert (round(least), round(most)) == (3, 5)
    assert "at epsilon .1 it is as far off as zero is" in PAGE
    assert differences()["synthetic", "|A_k - A-hat_k| / lambda_1", "0.1", "SN"] > 1
