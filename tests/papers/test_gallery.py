"""The numbers on the page of figures are those of the results that the figures show."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from support.folders import ROOT

RESULTS = ROOT / "papers" / "results"
PAGE = " ".join((ROOT / "papers" / "gallery.md").read_text().split())
WORDS = {"none": "0", "six": "6"}


def facts(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def ends(values: Iterable[float]) -> tuple[float, float]:
    every = list(values)
    return min(every), max(every)


def differences() -> dict[tuple[str, ...], float]:
    table = facts("imtiaz_sarwate_differences")["table"]
    return {(r["data"], r["measure"], r["epsilon"], r["method"]): r["mean"] for r in table}


def nearer() -> tuple[float, float]:
    found = differences()
    return ends(mean / found[*key[:3], "gaussian"] for key, mean in found.items() if key[3] == "SN")


def off_at_one() -> tuple[float, float]:
    return ends(100 * v for k, v in differences().items() if k[1].startswith("|A_k") and k[2:] == ("1", "SN"))


def rate() -> tuple[float]:
    table = facts("sn_theorem_2")["table"]
    (row,) = (r for r in table if (r["method"], r["epsilon"], r["measure"]) == ("sn", "10", "norm of the noise"))
    return (row["mean"] / row["published rate"],)


def classifiers() -> tuple[int, int, int]:
    every = facts("imtiaz_sarwate_classifiers")["classifiers"]
    both = [c["train"] for c in every if c["error: SVD fits"] and c["error: private fit"]]
    return len(every), both.count(4000), both.count(6000)


def fewer() -> tuple[float, float]:
    needed = facts("jiang_xie_zhang_samples")["rows needed"]
    return ends(bound / needed["jiang-wishart"][d] for d, bound in needed["theorem 7"].items())


CLAIMS: dict[str, Callable[[], tuple[float, ...]]] = {
    r"([\d.]+) times the rate at epsilon 10": rate,
    r"at 1 by (\d+) to (\d+) % of the largest eigenvalue": off_at_one,
    r"`gaussian` is ([\d.]+) to ([\d.]+) times nearer": nearer,
    r"(\d+) classifiers; (\w+) give both with 4000 rows, (\w+) with 6000": classifiers,
    r"([\d.]+) to ([\d.]+) times fewer rows suffice": fewer,
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_number_of_the_gallery_is_that_of_the_results(claim: str) -> None:
    (found,) = re.findall(claim, PAGE)
    said = [found] if isinstance(found, str) else found
    for words, value in zip(said, CLAIMS[claim](), strict=True):
        number = WORDS.get(words, words)
        assert round(value, len(number.partition(".")[2])) == float(number), words


def test_what_the_gallery_says_in_words_is_so() -> None:
    assert "at epsilon .1 it is as far off as zero is" in PAGE
    assert differences()["synthetic", "|A_k - A-hat_k| / lambda_1", "0.1", "SN"] > 1
