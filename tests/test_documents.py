"""What the pages say: their links lead somewhere, their commands and options exist, their numbers are right."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dpdist.cli import cli

ROOT = Path(__file__).parents[1]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    for words in commands(page.read_text()):
        command: click.Command = cli
        rest = list(words)
        while isinstance(command, click.Group) and rest and re.fullmatch("[a-z]+", rest[0]):
            assert rest[0] in command.commands, f"dpdist {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help", "--version"}
        asked = {word.partition("=")[0].strip(",.:") for word in rest if word.startswith("--")}
        assert asked <= known, f"dpdist {' '.join(words)}"


def test_the_page_on_privacy_says_how_far_a_guess_can_become_right() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \|$", (ROOT / "PRIVACY.md").read_text(), re.MULTILINE)
    assert len(rows) == 4
    for epsilon, told in rows:
        digits = len(told.partition(".")[2])
        assert round(1 / (1 + math.exp(-float(epsilon))), digits) == float(told)
