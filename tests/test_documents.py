"""What the pages say: links lead somewhere, files, commands and options exist, numbers and floors are right."""

from __future__ import annotations

import importlib.util
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from statistics import NormalDist

import click
import pytest
import yaml
from support.folders import ROOT

import dpdist
from dpdist.cli import cli
from dpdist.jobs.sections import mistakes

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = sorted(
    page
    for page in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in {"build", "dpdist-demo"} for part in page.relative_to(ROOT).parts)
)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every command of ours in code, without the program's name."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += [span.replace("\n", " ") for span in re.findall(r"(?<!`)`(dpdist [^`]+)`", text)]
    for line in lines:
        for found in re.finditer(r"(?:^|&& |\s|bin/)dpdist ([a-z]+(?![\w/])(?: [^|&#;]*)?)", line):
            yield found[1].split()


def anchors(page: Path) -> set[str]:
    """Return what links to the headings of a page end in, as GitHub and Forgejo make it of their words."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_files_commands_options_and_programs_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if "://" not in target:
            file = page.parent / target if target else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), f"{target}#{anchor}"
    ours = ("cluster/", "dpdist/", "papers/", "tests/", "benchmarks/")
    files = [name for name in re.findall(r"`([\w./-]+)`", text) if name.endswith(".py") or name.startswith(ours)]
    places = (ROOT, ROOT / "dpdist", ROOT / "benchmarks", page.parent)
    lost = [file for file in files if not any((place / file).exists() for place in places)]
    # NAME is yet to be written, and secrets are an operator's
    assert [file for file in lost if "NAME" not in file and "/secrets/" not in file] == []
    for words in commands(text):
        command: click.Command = cli
        rest = list(words)
        while isinstance(command, click.Group) and rest and re.fullmatch("[a-z]+", rest[0]):
            found = command.get_command(click.Context(command), rest[0])
            assert found is not None, f"dpdist {' '.join(words)}"
            command, rest = found, rest[1:]
        options = [option for each in command.params for option in (*each.opts, *each.secondary_opts)]
        known = {*options, "--help", "--help-all", "--version"}
        asked = {word.partition("=")[0].strip(",.:") for word in rest if word.startswith("--")}
        assert asked <= known, f"dpdist {' '.join(words)}"
    for name in re.findall(r"python -m ((?:dpdist|papers|benchmarks)[\w.]*)", text):
        assert importlib.util.find_spec(name.rstrip(".")) is not None, name


def test_measured_numbers_on_the_pages_stand_in_the_results_they_link_to(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.page_numbers", str(tmp_path / "numbers")]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "numbers.md").read_text().count("\n| ") > 150


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 700


def test_the_floors_that_are_drawn_are_those_of_the_contracts() -> None:
    blocks = re.findall(r"^```text\n(.*?)^```", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE | re.DOTALL)
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    floors = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    for block, layers in zip(blocks, floors, strict=True):
        drawn: list[set[str]] = []
        numbers = []
        for line in block.splitlines():
            number, room = re.fullmatch(r"([ \d]+)  (\w+) .*", line).groups()  # type: ignore[union-attr]
            if number.strip():
                numbers.append(int(number))
                drawn.append(set())
            drawn[-1].add(room)
        assert numbers == list(range(len(numbers), 0, -1))
        rooms = [set(re.split(r" [|:] ", layer)) for layer in layers if layer != "__main__"]
        # many small modules stand on one floor, named by one of them
        assert all(
            shown == held or (shown < held and len(shown) == 1) for shown, held in zip(drawn, rooms, strict=True)
        )


def test_the_page_names_all_who_take_randomness_for_noise() -> None:
    about = (ROOT / "ARCHITECTURE.md").read_text()
    takers = {
        str(path.relative_to(ROOT / "dpdist"))
        for path in (ROOT / "dpdist").rglob("*.py")
        if path.parent.name != "noise" and re.search(r"\bSYSTEM\b|\bSystemEntropy\b", path.read_text())
    }
    assert takers == {
        "core/release/trusted.py", "core/release/histograms.py", "core/moment/total.py", "literature/attack.py",
    }  # fmt: skip
    assert all(f"`{taker}`" in about for taker in takers)


def test_the_citation_has_what_its_format_requires() -> None:
    """The required keys of CFF 1.2.0."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"message", "title"} <= set(cited)
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert [cited[name] for name in ("authors", "license")] == [
        PROJECT["project"][name] for name in ("authors", "license")
    ]


def test_the_conda_recipe_asks_for_what_the_package_does() -> None:
    recipe = yaml.safe_load((ROOT / "docs" / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == dpdist.__version__
    project = PROJECT["project"]
    asked = [f"python {project['requires-python']}", *(each.replace(">=", " >=") for each in project["dependencies"])]
    renamed = {each.replace("dask >=", "dask-core >=") for each in asked}  # conda-forge's dask brings distributed too
    assert {*recipe["requirements"]["run"]} == renamed | {"__linux"}
    (command,) = recipe["build"]["python"]["entry_points"]
    assert dict([command.split(" = ")]) == project["scripts"]


def test_the_page_on_privacy_says_how_far_a_guess_can_become_right() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", (ROOT / "PRIVACY.md").read_text(), re.MULTILINE)
    assert len(rows) == 4
    normal = NormalDist()
    for epsilon, told, gaussian in rows:
        digits, loss = len(told.partition(".")[2]), float(epsilon)
        assert round(1 / (1 + math.exp(-loss)), digits) == float(told)
        mu = 2 * normal.inv_cdf(float(gaussian))  # rounded up, so delta is reached or a little more
        delta = normal.cdf(-loss / mu + mu / 2) - math.exp(loss) * normal.cdf(-loss / mu - mu / 2)
        lower = 2 * normal.inv_cdf(float(gaussian) - 1e-4)
        less = normal.cdf(-loss / lower + lower / 2) - math.exp(loss) * normal.cdf(-loss / lower - lower / 2)
        assert less < 1e-6 <= delta


def in_contents(page: Path) -> Iterator[Path]:
    """Yield the pages that the contents of a page of the site list, as Sphinx reads them."""
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            entry = re.sub(r"^.*<(.*)>$", r"\1", line)
            if entry and not entry.startswith(":") and entry != "commands/*":  # which Sphinx writes
                found = [*page.parent.glob(f"{entry}.md"), *page.parent.glob(f"{entry}.ipynb")]
                assert found, f"{page.name} lists {entry}"
                yield from (each.resolve() for each in found if each != page)


def test_every_page_is_reached_from_the_front_of_the_site() -> None:
    reached, waiting = set[Path](), [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += in_contents(page) if page.suffix == ".md" else ()
    written = [ROOT / "docs" / "reference" / folder for folder in ("api", "commands")]
    pages = [page for page in PAGES if page.parent not in written] + [*(ROOT / "docs" / "notebooks").glob("*.ipynb")]
    hidden = {page for page in pages if page.is_relative_to(ROOT / "docs") or page.parent == ROOT} - reached
    assert hidden == set()


def test_people_are_told_of_every_extra() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "howto" / "install.md").read_text()
    assert {extra for extra in extras if f"[{extra}]" not in page} == {"mutation"}  # those who need it read pyproject


def test_the_reference_lists_all_public_names_and_no_other() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    named = re.findall(r"^   (\w+)$", page, re.MULTILINE)
    earlier = re.findall(r"^\* `(\w+)` is `(\w+)`$", page, re.MULTILINE)
    assert all(getattr(dpdist, alias) is getattr(dpdist, name) for alias, name in earlier)
    assert sorted([*named, *dict(earlier), "__version__"]) == sorted(dpdist.__all__)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_what_a_tutorial_says_in_python_and_toml_can_be_read(page: Path, tmp_path: Path) -> None:
    """``python -m benchmarks.documentation`` runs it; this is what fits a second."""
    for kind, code in re.findall(r"^```(python|toml)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        if kind == "python":
            compile(code, page.name, "exec")
        elif "[[column]]" in code:
            (file := tmp_path / "schema.toml").write_text(code)
            assert dpdist.Schema.read(file).columns
        else:
            assert list(mistakes(tomllib.loads(code, parse_float=Decimal))) == []


def test_no_word_stands_twice_in_a_row() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "cluster").rglob("*.md")]
    doubled = re.compile(r"(?<![\w.`-])([a-z]+)\s+\1(?![\w-])")
    assert [(page.name, found[0]) for page in pages for found in doubled.finditer(page.read_text())] == []
