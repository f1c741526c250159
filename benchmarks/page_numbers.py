"""Every measured number that README and the pages of the documentation state, with its command and its value today.

    python -m benchmarks.page_numbers benchmarks/results/page_numbers

A paragraph, an item or a line of a table that links to a results page of ``benchmarks/`` or ``papers/`` states what was
measured there. Each of its numbers is looked up in that page and in its JSON, as rounded on the page, also in percent;
and, as a setting, in the program that measured it. What is in neither is listed as not found, and the exit code is 1:
either the number is old, or it belongs to a setting that the results should name.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "PRIVACY.md", "SECURITY.md", "docs/*.md", "docs/*/*.md")
_NUMBER = re.compile(r"(?<![\w.`/^-])(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?|\.\d+)(?![\w^]|\.\d|,\d{3}|-bit)")
_UNIT = re.compile(r"\s*(?:(?:to|and|or|..)\s+[\d.]+\s*)?(%|GB|GiB)")  # also of the first number of a range
_LINK = re.compile(r"\]\(([^)#\s]*(?:benchmarks/results|papers)/[^)#\s]*)(?:#[^)]*)?\)")
BY_DEFINITION = {
    ("docs/howto/answers.md", "91"): "1.96 times 46.3, the error of a cell under replace-one",
    ("docs/howto/answers.md", "65"): "1.96 times 32.8, the error of a cell under add-remove",
    ("docs/howto/schema.md", "0.71"): "a boolean has the norm sqrt(1/2)",
    ("docs/comparison.md", "2,126"): "rows of cardiotocography",
    ("docs/howto/wide.md", "24"): "GB of the machine",
    ("docs/tutorials/csv.md", "19"): "the stated confidence .95",
    ("docs/tutorials/csv.md", "20"): "the stated confidence .95",
}
"""Numbers that nothing measured, beside measured ones."""
_SHOWN = 90  # characters of a statement


@dataclass(frozen=True)
class Stated:
    """A number on a page, and where it was found."""

    page: str
    text: str
    number: str
    command: str
    source: str  # the results page, "setting", a definition, or empty if it was not found
    value: str  # today


def blocks(page: str) -> Iterator[str]:
    """Yield the paragraphs, items and lines of tables of a page, without listings."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=[*|-] |\|)", text):
        yield " ".join(block.split())


@cache
def numbers_of(path: Path) -> tuple[tuple[float, str], ...]:
    """Return the numbers of a results page and of its JSON, each with its text."""
    values = [
        (float(text.replace(",", "")), text) for text in _NUMBER.findall(re.sub(r"\]\([^)]*\)", "]", _read(path)))
    ]
    file = path.with_suffix(".json")
    if file.exists():
        values += [(float(value), f"{value:.6g}") for value in _leaves(json.loads(_read(file)))]
    return tuple(values)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _leaves(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def program_of(results: Path) -> Path | None:
    """Return the program that writes a results page: the longest name that its own begins with."""
    if "papers" in results.parts:
        return results.parent / "__init__.py" if (results.parent / "__init__.py").exists() else None
    programs = sorted((ROOT / "benchmarks").glob("*.py"), key=lambda path: -len(path.stem))
    return next((path for path in programs if results.stem.startswith(path.stem)), None)


def command_of(program: Path | None) -> str:
    """Return the first command in the description of a program."""
    if program is None:
        return ""
    lines = re.findall(r"^ {4}(.*python -m .*)$", _read(program), re.MULTILINE)
    return lines[0].strip() if lines else f"python -m benchmarks.{program.stem}"


def matching(number: str, unit: str, values: tuple[tuple[float, str], ...]) -> str | None:
    """Return the text of a value that is rounded to a number in a unit; the nearest one."""
    text = number.replace(",", "")
    places, stated = len(text.partition(".")[2]), float(text)
    best: tuple[float, str] | None = None
    factors = [1.0]
    if unit == "%":
        factors.append(100.0)  # of shares
    elif stated < 1 and "." in text:
        factors.append(0.01)  # a share of percent
    elif unit in {"GB", "GiB"}:
        factors.append(1 / 1024)  # of MiB
    for factor in factors:
        for value, shown in values:
            distance = abs(value * factor - stated)
            if distance <= 0.5000001 * 10.0**-places and (best is None or distance < best[0]):
                best = (distance, shown)
    return None if best is None else best[1]


def stated_in(page: Path) -> Iterator[Stated]:
    """Yield the measured numbers of a page."""
    name = str(page.relative_to(ROOT))
    for block in blocks(_read(page)):
        targets = [(page.parent / link).resolve() for link in _LINK.findall(block)]
        results = [path for path in targets if path.suffix in {".md", ".json"} and path.is_file()]
        if not results:
            continue
        plain = (
            re.sub(r"`[^`]*`", "", re.sub(r"\]\([^)]*\)", "]", block))
            .replace("*", "")
            .replace("[", "")
            .replace("]", "")
        )
        for found in _NUMBER.finditer(plain):
            unit = _UNIT.match(plain, found.end())
            yield _found(name, plain, found[1], unit[1] if unit else "", results)


def _found(page: str, text: str, number: str, unit: str, results: list[Path]) -> Stated:
    if (page, number) in BY_DEFINITION:
        return Stated(page, text, number, "", BY_DEFINITION[page, number], number)
    for path in results:
        value = matching(number, unit, numbers_of(path))
        if value is not None:
            return Stated(page, text, number, command_of(program_of(path)), path.stem, value)
    for path in results:
        program = program_of(path)
        if program is not None and matching(number, unit, numbers_of(program)) is not None:
            return Stated(page, text, number, command_of(program), "setting", number)
    return Stated(page, text, number, command_of(program_of(results[0])), "", "")


def table_of(numbers: list[Stated]) -> Iterator[str]:
    """Yield the page."""
    missing = [stated for stated in numbers if not stated.source]
    yield from ("# Measured numbers on the pages", "")
    yield (
        f"`python -m benchmarks.page_numbers`: {len(numbers)} numbers of {len({stated.page for stated in numbers})} "
        f"pages that link to results; {len(missing)} were not found there."
    )
    yield from ("", "| page | statement | number | today | results | command |", "|---|---|---|---|---|---|")
    for stated in numbers:
        text = stated.text if len(stated.text) <= _SHOWN else f"{stated.text[: _SHOWN - 3]}..."
        cells = (
            stated.page, text.replace("|", "/"), stated.number, stated.value or "not found", stated.source,
            f"`{stated.command}`" if stated.command else "",
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    """Write the table; return 1 if a number was not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    output = Path(parser.parse_args().output)
    pages = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    numbers = [stated for page in pages for stated in stated_in(page)]
    output.with_suffix(".md").write_text("\n".join(table_of(numbers)) + "\n", encoding="utf-8")
    for stated in numbers:
        if not stated.source:
            print(f"{stated.page}: {stated.number} | {stated.text[:_SHOWN]}")
    return int(any(not stated.source for stated in numbers))


if __name__ == "__main__":
    sys.exit(main())
