"""Twenty tables that packages bring along, each from its file to private components, as a newcomer would do it.

::

    pip install --no-deps --target /tmp/tables statsmodels vega_datasets palmerpenguins
    python -m benchmarks.real_tables --tables /tmp/tables --output benchmarks/results/real_tables

For each: ``dpdist schema``, the blanks filled in from what :data:`TABLES` says, ``release`` of the file (gaussian,
epsilon 1, ``--clip schema``, as all ranges are known), ``pca``. The files are not edited; those of scikit-learn have no
line of names, and are written by pandas.
Ranges are round numbers from what is known of such measurements, and are not fitted to the rows. That ``physlm`` of
randhie is no boolean was learned from a refusal.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sklearn import datasets

DELTA = "1e-6"
_MISSING = "missing = 'indicator'"
_VEGA, _STATS, _PENGUINS = "vega_datasets/_data", "statsmodels/datasets", "palmerpenguins/data"
_DAY = "kind = 'date'\nrange = [2012-01-01, 2015-12-31]\nformat = '%Y/%m/%d'"


def number(low: float, high: float, more: str = "") -> str:
    """Return what a schema says of a number."""
    return f"kind = 'number'\nrange = [{low}, {high}]\n{more}"


def of(*names: str, more: str = "other = 'column'") -> str:
    """Return what a schema says of a category."""
    return f"kind = 'category'\ncategories = {list(names)}\n{more}"


IGNORED = "kind = 'ignored'"
FLAG = "kind = 'boolean'"
ISLANDS = of("Biscoe", "Dream", "Torgersen")
SEXES = of("female", "male", more=_MISSING)


@dataclass(frozen=True)
class Table:
    """A table, and what is publicly known of its columns.

    Attributes
    ----------
    place
        The file, below the folder of the packages; or the name of a loader of scikit-learn.
    known
        What the schema says of columns whose names match a pattern; the first that matches counts.
    header
        Whether the first line names the columns.
    """

    place: str
    known: dict[str, str] = field(default_factory=dict)
    header: str = "yes"

    @property
    def name(self) -> str:
        """How it is called."""
        return Path(self.place).stem.removeprefix("load_")


TABLES = [
    Table("load_iris", {"target": of("0", "1", "2"), "petal*": number(0, 10), "sepal*": number(0, 10)}),
    Table(
        "load_wine",
        {
            "target": of("0", "1", "2"), "alcohol": number(8, 16), "alcalinity*": number(0, 40), "ash": number(0, 5),
            "magnesium": number(50, 200), "proline": number(0, 2000), "malic*": number(0, 10), "*": number(0, 20),
        },
    ),
    Table(
        "load_breast_cancer",
        {
            "target": FLAG, "*radius": number(0, 40), "*texture": number(0, 50), "*perimeter": number(0, 300),
            "*area": number(0, 5000), "radius error": number(0, 5), "perimeter error": number(0, 30),
            "area error": number(0, 500), "texture error": number(0, 5), "*": number(0, 1),
        },
    ),
    Table(
        "load_diabetes",
        {
            "age": number(0, 120), "sex": of("1", "2"), "bmi": number(10, 60), "bp": number(40, 180),
            "s[123]": number(0, 400), "s4": number(0, 12), "s5": number(2, 8), "s6": number(40, 200),
            "target": number(0, 400),
        },
    ),
    Table("load_digits", {"target": IGNORED, "*": number(0, 16)}),
    Table(
        "load_linnerud",
        {
            "Chins": number(0, 50), "Situps": number(0, 400), "Jumps": number(0, 400), "Weight": number(90, 350),
            "Waist": number(20, 60), "Pulse": number(40, 120),
        },
    ),
    Table(
        f"{_PENGUINS}/penguins.csv",
        {
            "species": of("Adelie", "Chinstrap", "Gentoo"), "island": ISLANDS,
            "bill_length_mm": number(20, 80, _MISSING), "bill_depth_mm": number(10, 30, _MISSING),
            "flipper*": number(100, 300, _MISSING),
            "body_mass_g": number(2000, 7000, _MISSING), "sex": SEXES, "year": number(2000, 2020),
        },
    ),
    Table(
        f"{_PENGUINS}/penguins-raw.csv",
        {
            "Island": ISLANDS, "Date Egg": f"kind = 'date'\nrange = [2000-01-01, 2019-12-31]\n{_MISSING}",
            "Culmen Length*": number(20, 80, _MISSING), "Culmen Depth*": number(10, 30, _MISSING),
            "Flipper*": number(100, 300, _MISSING), "Body Mass*": number(2000, 7000, _MISSING),
            "Sex": of("FEMALE", "MALE", more=_MISSING), "Clutch*": of("Yes", "No"),
            "Delta 15 N*": number(0, 20, _MISSING), "Delta 13 C*": number(-40, 0, _MISSING), "*": IGNORED,
        },
    ),
    Table(f"{_VEGA}/airports.csv", {"latitude": number(-90, 90), "longitude": number(-180, 180), "*": IGNORED}),
    Table(
        f"{_VEGA}/iowa-electricity.csv",
        {
            "year": "kind = 'date'\nrange = [2000-01-01, 2020-12-31]", "net_generation": number(0, 60000),
            "source": of("Fossil Fuels", "Nuclear Energy", "Renewables"),
        },
    ),
    Table(
        f"{_VEGA}/la-riots.csv",
        {
            "age": number(0, 100, _MISSING), "gender": of("Male", "Female"),
            "race": of("Asian", "Black", "Latino", "White"),
            "death_date": "kind = 'date'\nrange = [1992-04-29, 1992-12-31]", "longitude": number(-119, -117),
            "latitude": number(33, 35), "*": IGNORED,
        },
    ),
    Table(
        f"{_VEGA}/seattle-temps.csv",
        {
            "date": "kind = 'date'\nrange = [2010-01-01, 2010-12-31]\nformat = '%Y/%m/%d %H:%M'",
            "temp": number(0, 110),
        },
    ),
    Table(
        f"{_VEGA}/seattle-weather.csv",
        {
            "date": _DAY, "precipitation": number(0, 100), "temp_*": number(-20, 45), "wind": number(0, 30),
            "weather": of("drizzle", "fog", "rain", "snow", "sun"),
        },
    ),
    Table(
        f"{_VEGA}/stocks.csv",
        {
            "symbol": of("AAPL", "AMZN", "GOOG", "IBM", "MSFT"), "price": number(0, 1000),
            "date": "kind = 'date'\nrange = [2000-01-01, 2010-12-31]\nformat = '%b %d %Y'",
        },
    ),
    Table(
        f"{_VEGA}/us-employment.csv",
        {
            "month": "kind = 'date'\nrange = [2006-01-01, 2015-12-31]", "*": number(-1000, 160000),
        },
    ),
    Table(
        f"{_STATS}/fair/fair.csv",
        {
            "rate_marriage": number(1, 5), "age": number(15, 70), "yrs_married": number(0, 50),
            "children": number(0, 10), "religious": number(1, 4), "educ": number(9, 20), "occ*": number(1, 6),
            "affairs": number(0, 60),
        },
    ),
    Table(
        f"{_STATS}/randhie/randhie.csv",
        {
            "mdvis": number(0, 80), "lncoins": number(0, 5), "lpi": number(0, 8), "fmde": number(0, 9),
            "disea": number(0, 60), "physlm": number(0, 1), "*": FLAG,
        },
    ),
    Table(
        f"{_STATS}/statecrime/statecrime.csv",
        {"state": IGNORED, "violent": number(0, 2000), "murder": number(0, 50), "*": number(0, 100)},
    ),
    Table(f"{_STATS}/sunspots/sunspots.csv", {"YEAR": number(1700, 2020), "*": number(0, 300)}),
    Table(
        f"{_STATS}/grunfeld/grunfeld.csv",
        {
            "invest": number(0, 2000), "value": number(0, 8000), "capital": number(0, 3000),
            "firm": of("General Motors", "US Steel", "General Electric", "Chrysler"), "year": number(1935, 1954),
        },
    ),
    Table(f"{_STATS}/co2/co2.csv", {"co2": number(300, 400, _MISSING), "date": "kind = 'date'\nrange = [1958-01-01, "
          "2001-12-31]\nformat = '%Y%m%d'"}),
    Table(f"{_STATS}/elnino/elnino.csv", {"YEAR": number(1950, 2010), "*": number(15, 35)}),
    Table(f"{_STATS}/modechoice/modechoice.csv"),
    Table(f"{_STATS}/anes96/anes96.csv"),
]  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """A command as it was typed, and what came of it."""

    command: str
    code: int
    said: str


def typed(folder: Path, *words: str) -> Typed:
    """Run a command in a folder, with places of its own for what dpdist remembers."""
    environment = {**os.environ, "DPDIST_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "dpdist", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    shown = " ".join(f"'{word}'" if " " in word else word for word in words)
    said = (done.stdout + done.stderr).strip()
    return Typed(f"dpdist {shown}", done.returncode, said.replace(f"{folder}/", ""))


def filled(draft: str, known: dict[str, str]) -> str:
    """Return a draft with its blanks filled in: the lines below each name are those that are known of it."""
    head, *columns = draft.split("\n[[column]]\n")
    parts = [head]
    for column in columns:
        name = tomllib.loads(column)["name"]
        said = next((said for pattern, said in known.items() if fnmatch.fnmatchcase(name, pattern)), None)
        parts.append(column if said is None else f"{column.splitlines()[0]}\n{said}\n")
    return "\n[[column]]\n".join(parts)


def source_of(table: Table, packages: Path, folder: Path) -> str | None:
    """Put the file of a table in a folder, as it is; None: its package is not there."""
    if table.place.startswith("load_"):
        more: dict[str, Any] = {"scaled": False} if table.name == "diabetes" else {}
        found = getattr(datasets, table.place)(as_frame=True, **more)
        found.frame.to_csv(folder / f"{table.name}.csv", index=False)
        return f"{table.name}.csv"
    if not (packages / table.place).exists():
        return None
    (folder / Path(table.place).name).write_bytes((packages / table.place).read_bytes())
    return Path(table.place).name


def tried(table: Table, packages: Path) -> list[Typed] | None:
    """Take a table as far as it goes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = source_of(table, packages, folder)
        if source is None:
            return None
        done = [typed(folder, "schema", source, "s.toml", "--header", table.header)]
        if done[-1].code:
            return done
        draft = (folder / "s.toml").read_text()
        answers = {"confirmed": "true", "missing": '"fill"', "each_row_is_a_person": "true"}
        for key, answer in answers.items():
            draft = re.sub(f"^{key} =.*", f"{key} = {answer}", draft, flags=re.MULTILINE)
        (folder / "s.toml").write_text(filled(draft, table.known))
        done.append(
            typed(folder, "release", source, "release.zarr", "--epsilon", "1", "--delta", DELTA, "--schema", "s.toml",
                  "--header", table.header, "--clip", "schema")
        )  # fmt: skip
        if not done[-1].code:
            done.append(typed(folder, "pca", "release.zarr", "model.zarr", "--components", "2"))
        return done


def main() -> None:
    """Try the tables, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tables", type=Path, required=True, help="Where the packages are.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", help="A name.")
    chosen = parser.parse_args()
    summary, parts, whole = ["| table | commands | exit codes | rows |", "|---|---|---|---|"], list[str](), 0
    for table in TABLES:
        if chosen.only not in {None, table.name}:
            continue
        start = time.monotonic()
        done = tried(table, chosen.tables)
        if done is None:
            summary.append(f"| {table.name} | not installed | | |")
            continue
        whole += len(done) == 3 and not any(each.code for each in done)
        rows = next((found[1] for each in done if (found := re.search(r": (\d+ rows? of \d+ columns)", each.said))), "")
        summary.append(f"| {table.name} | {len(done)} | {', '.join(str(each.code) for each in done)} | {rows} |")
        parts += [f"## {table.name}", "", "```"]
        parts += [line for each in done for line in (f"$ {each.command}", *each.said.splitlines())] + ["```", ""]
        print(f"{summary[-1]} {time.monotonic() - start:.0f} s", flush=True)
    words = (
        f"{whole} of {len(summary) - 2} tables came from their file to private components in three commands, "
        "with one schema whose blanks were filled in. "
        "Of the others the commands below say why not: too few rows for the noise of epsilon 1, or semicolons."
    )
    chosen.output.with_suffix(".md").write_text("\n".join(["# Real tables", "", words, "", *summary, "", *parts]))
    print(words)


if __name__ == "__main__":
    main()
