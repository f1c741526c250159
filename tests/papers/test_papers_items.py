"""The page of items: each has a verdict and a command that is run as printed and gives the output that is printed."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from support.folders import ROOT

from dpdist.cli import cli
from papers import quoted

PAPERS = ROOT / "papers"
RESULTS = PAPERS / "results"
PAGE = (PAPERS / "items.md").read_text()
SECTION = r"^### (\S+)\n\n```sh\n(.*?)\n```\n\n```text\n(.*?)```$"
COMMANDS = {
    key: (command, told.splitlines()) for key, command, told in re.findall(SECTION, PAGE, re.MULTILINE | re.DOTALL)
}
PROGRAMS = {
    "imtiaz_sarwate.figures", "imtiaz_sarwate.differences", "imtiaz_sarwate.table", "imtiaz_sarwate.classifiers",
    "imtiaz_sarwate.erratum", "imtiaz_sarwate.ppm", "imtiaz_sarwate.theorem_2", "jiang_xie_zhang.noise",
    "jiang_xie_zhang.theorems", "jiang_xie_zhang.sample_complexity", "jiang_xie_zhang.rank_k", "chanyaswad.tasks",
    "mangoubi.orbits", "mangoubi.real", "mangoubi.packing", "repair.samplers", "repair.facts", "genomes", "quoted",
}  # fmt: skip
OPTIONS = {"--data", "--workers", "--quick", "--runs", "--output"}


def rows() -> list[list[str]]:
    """Return the numbered rows of the tables: number, item, claim, verdict, command."""
    found = (re.split(r"(?<!\\) \| ", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| "))
    return [cells for cells in found if re.match(r"[\d-]", cells[0]) and len(cells) == 5]


def test_every_item_has_a_verdict_and_a_command_with_its_output() -> None:
    numbers: list[int] = []
    for number, *words, shown in rows():
        assert all(words)
        for key in [] if shown == "by reading" else re.findall(r"\(#(\S+)\)$", shown) or [shown]:
            assert COMMANDS[key][1], key
        for part in number.split(", "):
            first, _, last = part.partition(" to ")
            numbers += range(int(first), int(last or first) + 1) if first != "-" else ()
    assert sorted(numbers) == list(range(1, 139))
    assert set(COMMANDS) <= set(re.findall(r"\(#(\S+)\)", PAGE))


def program(command: str) -> str | None:
    match = re.search(r"python -m papers\.([\w.]+)", command)
    return match[1] if match else None


@pytest.mark.parametrize("key", [key for key, (command, _) in COMMANDS.items() if program(command)])
def test_the_output_of_a_program_is_that_of_the_committed_run(key: str) -> None:
    command, told = COMMANDS[key]
    name = str(program(command))
    if name == "repair.build":
        assert told == ["Wrote paper-results/repair.pdf"]
        return
    kept = [line.rstrip() for line in results(name, "txt").read_text().splitlines()]
    assert [line for line in told if line not in kept] == []


@pytest.mark.parametrize("key", [key for key, (command, _) in COMMANDS.items() if command.startswith(
    ("dpdist mechanisms", "dpdist forecast"))])  # fmt: skip
def test_the_output_of_a_command_is_what_it_prints(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    command, told = COMMANDS[key]
    done = CliRunner().invoke(cli, shlex.split(command)[1:])
    assert done.exit_code == 0
    assert [line for line in told if line not in [each.rstrip() for each in done.stdout.splitlines()]] == []


def main(name: str) -> click.Command:
    found = import_module(f"papers.{name}").main
    assert isinstance(found, click.Command)
    return found


def test_all_programs_take_the_same_options_and_say_how_long_they_take() -> None:
    for name in PROGRAMS:
        command = main(name)
        assert {option for parameter in command.params for option in parameter.opts} >= OPTIONS, name
        shown = CliRunner().invoke(command, ["--help"])
        assert shown.exit_code == 0
        assert re.search(r"A full run takes about (\d+ \w+|a \w+)", " ".join(shown.stdout.split())), name
        assert "[default: paper-results; with --quick paper-results/quick]" in " ".join(shown.stdout.split())


@pytest.mark.parametrize("page", sorted([*PAPERS.rglob("*.md"), *PAPERS.rglob("*.py")]), ids=lambda page: page.name)
def test_a_command_that_a_page_prints_is_a_program_with_its_defaults(page: Path) -> None:
    for name, options in re.findall(r"python -m papers\.([\w.]+)((?: --?[\w-]+(?: [\w/.:]+)?)*)", page.read_text()):
        if name in {"common.fetch", "repair.build"}:
            continue
        assert name.rstrip(".") in PROGRAMS
        # what would make another table than that of the page is not printed
        assert not {"--runs", "--quick", "--batches", "--output"} & set(options.split()), f"{page}: {name}{options}"


def test_without_output_the_committed_results_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (RESULTS / "mangoubi_packing.json").stat().st_mtime_ns
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main("mangoubi.packing"), [])
    assert done.exit_code == 0
    assert (tmp_path / "paper-results" / "mangoubi_packing.txt").read_text() == done.stdout
    assert "Wrote paper-results/mangoubi_packing.json" in done.stderr
    assert (RESULTS / "mangoubi_packing.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("name", quoted.FACTS)
def test_a_quoted_fact_holds_and_is_not_vacuous(name: str) -> None:
    found = max(quoted.FACTS[name](np.random.default_rng([7, i])) for i in range(300))
    assert found <= 1 + 1e-9
    assert found > (0.001 if name == "singular values" else 0.02)


def results(name: str, suffix: str) -> Path:
    stem = str(import_module(f"papers.{name}").NAME)
    return RESULTS / ("genomes" if name == "genomes" else ".") / f"{stem}.{suffix}"


def table(name: str) -> list[dict[str, str]]:
    with results(name, "csv").open(newline="") as file:
        return list(csv.DictReader(file))


def facts(name: str) -> Any:
    return json.loads(results(name, "json").read_text())


def distinct(column: str) -> Callable[[str], int]:
    return lambda name: len({row[column] for row in table(name)})


def repeated(*columns: str) -> Callable[[str], int]:
    """Return the largest number of rows that agree in these columns."""

    def count(name: str) -> int:
        keys = [tuple(row[column] for column in columns) for row in table(name)]
        return max(map(keys.count, set(keys)))

    return count


def largest(column: str) -> Callable[[str], int]:
    return lambda name: max(int(row[column]) for row in table(name))


RUNS: dict[str, Callable[[str], int]] = {
    "imtiaz_sarwate.figures": distinct("draw"),
    "imtiaz_sarwate.differences": distinct("draw"),
    "imtiaz_sarwate.table": distinct("run"),
    "imtiaz_sarwate.classifiers": distinct("run"),
    "imtiaz_sarwate.erratum": distinct("batch"),
    "imtiaz_sarwate.ppm": distinct("batch"),
    "imtiaz_sarwate.theorem_2": distinct("draw"),
    "jiang_xie_zhang.noise": distinct("draw"),
    "jiang_xie_zhang.theorems": distinct("draw"),
    "jiang_xie_zhang.sample_complexity": repeated("mechanism", "d"),
    "jiang_xie_zhang.rank_k": repeated("method", "k", "d", "gap"),
    "chanyaswad.tasks": largest("runs"),
    "mangoubi.orbits": largest("draws"),
    "mangoubi.real": lambda name: max(one["draws"] for one in facts(name)),
    "genomes": distinct("draw"),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_committed_results_are_those_of_the_printed_command(name: str) -> None:
    (option,) = (parameter for parameter in main(name).params if "--runs" in parameter.opts)
    (default,) = re.findall(r"\[default: (\d+)", str(getattr(option, "help", "")))
    assert RUNS[name](name) == int(default)
    found = facts(name)
    assert isinstance(found, list) or not found["quick"]
