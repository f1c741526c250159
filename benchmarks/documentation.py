"""Whether the site builds, loads nothing from elsewhere, and whether its pages do what they say.

    pip install -e '.[docs,test]'
    python -m benchmarks.documentation --output benchmarks/results/documentation [--site build/site] [--npm /tmp/axe]
    python -m benchmarks.documentation --page tutorials/nightly
    python -m benchmarks.documentation --pictures benchmarks/results/site

The site is built with warnings as errors, and every link in its pages is followed. Then the blocks of each tutorial and
of each page on how to do something are run as they are printed, in order, in a folder of its own: shell, Python (in one
interpreter, as in a notebook), and files whose first line is their name. A block after the comment ``runs against:
...`` finds moto's S3 in its environment, and one after ``syntax only: ...`` is parsed by the shell and not run. What
somebody has when he comes to a page, the comment ``presupposes: ...`` names: files that are written here, and what the
first commands of the README make of them. Other folders are empty. With ``--npm``, where axe-core is installed
(:mod:`benchmarks.report_accessibility`), every page is judged on a desk and on a phone, light and dark. ``--pictures``
builds the site and takes pictures of what is seen first of its main pages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
from PIL import Image

from benchmarks.browser import browser
from benchmarks.report_accessibility import SCREENS, judged
from benchmarks.stores import moto

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MAIN_PAGES = (
    ("docs/index", "desk"), ("docs/index", "phone, dark"), ("docs/tutorials/csv", "desk"),
    ("docs/howto/answers", "desk, dark"), ("docs/notebooks/first_release", "phone"), ("docs/reference/python", "desk"),
    ("docs/explanation/epsilon", "desk"), ("docs/limits", "phone"),
)  # fmt: skip
_BLOCK = re.compile(
    r"^(?:<!-- (runs against|syntax only): (.*?) -->\n)?```(sh|python|toml|text)\n(.*?)^```", re.MULTILINE | re.DOTALL
)
_PRESUPPOSED = re.compile(r"^<!-- presupposes: (.*?) -->$", re.MULTILINE)
_COMMANDS = {
    "rows.zarr": "dpdist ingest table.csv rows.zarr --budget-epsilon 2 --budget-delta 1e-6",
    "release.zarr": "dpdist release rows.zarr release.zarr --epsilon 1 --delta 1e-6 --clip 100",
}
"""Of the README."""
_RUNNER = """
import json, os, subprocess, sys
here = {"__name__": "__main__"}
if __name__ == "__main__":
    for number, (kind, code, more) in enumerate(json.load(open(sys.argv[1])), 1):
        print(f"== block {number}", flush=True)
        if kind == "python":
            exec(compile(code, f"block {number}", "exec"), here)
        else:
            flags = ["-n"] if kind == "syntax" else []
            subprocess.run(["bash", "-euo", "pipefail", *flags, "-c", code], check=True, env={**os.environ, **more})
"""


class _Links(HTMLParser):
    """What a page loads, where it leads, and where it can be led to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.ids |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given.get("href", ""))
        elif "src" in given:
            self.loaded.append(given["src"])


def built(site: Path) -> None:
    """Build the site with warnings as errors."""
    command = ["-m", "sphinx", "-q", "-E", "-W", "-n", "--keep-going", "-c", str(ROOT / "docs"), str(ROOT), str(site)]
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT)  # noqa: S603 - ours


def followed(site: Path) -> dict[str, Any]:
    """Return how many pages and links there are, the links that lead nowhere, and what is loaded from elsewhere."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = _Links()
        pages[path].feed(path.read_text())
    broken, links = [], 0
    foreign = {each for page in pages.values() for each in page.loaded if re.match(r"(?:\w+:)?//", each)}
    for sheet in site.rglob("*.css"):
        foreign |= set(re.findall(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s]+)""", sheet.read_text()))
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:|//", link) or link == "#":
                continue
            links += 1
            place, _, anchor = link.partition("#")
            target = (path.parent / unquote(place)).resolve() if place else path.resolve()
            if not target.is_file() or (anchor and target in pages and unquote(anchor) not in pages[target].ids):
                broken.append(f"{path.relative_to(site)}: {link}")
    return {"pages": len(pages), "links": links, "broken": broken, "loaded from elsewhere": sorted(foreign)}


def blocks(page: str, store: dict[str, str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the kind, the code and the environment of each block that runs; a file is a block that writes it."""
    for marked, about, kind, code in _BLOCK.findall(page):
        name = re.match(r"# ([\w.]+)\n", code)
        if kind == "toml" and name:
            yield "python", f"open({name[1]!r}, 'w').write({code!r})", {}
        elif kind == "python":
            yield kind, code, {}
        elif kind == "sh":
            yield ("syntax" if marked == "syntax only" else "sh"), code, (store if "S3" in about else {})


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    """Return a table of numbers."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(rows, 12)).round(3), columns=[f"answer_{i}" for i in range(12)])
    table.insert(0, "age", rng.integers(18, 90, rows))
    table.insert(1, "height", rng.normal(170, 9, rows).round(1))
    table.insert(2, "income", (0.5 * table["age"] + rng.normal(0, 5, rows)).round(1))
    return table


def penguins(rows: int) -> pd.DataFrame:
    """Return a table with words, dates and empty cells."""
    rng = np.random.default_rng(0)
    mass = pd.Series(rng.integers(2500, 6500, rows)).astype("object")
    mass[::50] = ""
    days = pd.to_datetime("2000-01-01") + pd.to_timedelta(rng.integers(0, 4000, rows), "D")
    kinds = rng.choice(["Adelie", "Chinstrap", "Gentoo", "King"], rows)
    tags = [f"p{i}" for i in range(rows)]
    return pd.DataFrame({"species": kinds, "body_mass_g": mass, "hatched": days.strftime("%Y-%m-%d"), "tag": tags})


_CUSTOMERS = """\
scale = "range"
column = [
    {name = "region", kind = "category", categories = ["north", "south", "east", "west"]},
    {name = "churned", kind = "boolean"},
    {name = "age", kind = "integer", range = [18, 98]},
    {name = "income", kind = "number", range = [0, 150000]},
]
"""


def customers(rows: int) -> pd.DataFrame:
    """Return a table with categories, of which some are related."""
    rng = np.random.default_rng(0)
    region = rng.choice(["north", "south", "east", "west"], rows, p=[0.4, 0.3, 0.2, 0.1])
    churned = rng.random(rows) < np.where(region == "north", 0.1, 0.3)
    age = rng.integers(18, 91, rows)
    income = np.clip(20_000 + 500 * age - 6000 * churned + rng.normal(0, 9000, rows), 0, 150_000).round()
    return pd.DataFrame({"region": region, "churned": churned, "age": age, "income": income})


def furnish(folder: Path, name: str) -> list[str]:
    """Write a file that a page presupposes into a folder, and return the commands that make it, if it is no file."""
    if name in _COMMANDS:
        before = "table.csv" if name == "rows.zarr" else "rows.zarr"
        return [*furnish(folder, before), _COMMANDS[name]]
    if name == "incoming":
        for day in (5, 6):
            night = folder / "incoming" / f"2026-01-{day:02d}.csv"
            night.parent.mkdir(exist_ok=True)
            people(200, seed=day).to_csv(night, index=False)
    elif name == "customers.release.zarr":
        customers(20_000).to_parquet(folder / "customers.parquet")
        (folder / "customers.toml").write_text(_CUSTOMERS)
        return [
            f"dpdist release customers.parquet {name} --schema customers.toml --epsilon 1 --delta 1e-6 --clip schema"
        ]
    elif name == "penguins.csv":
        penguins(2000).to_csv(folder / name, index=False)
    elif name == "table.parquet":
        people(2000).to_parquet(folder / name)
    elif name == "table.csv":
        people(40000).to_csv(folder / name, index=False)
    else:
        raise SystemExit(f"nobody knows how to make {name}")
    return []


def played(page: Path, store: dict[str, str]) -> dict[str, Any]:
    """Run a page in a folder of its own, and return how many blocks ran."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "empty").mkdir()
        (folder / "runner.py").write_text(_RUNNER)
        text = page.read_text()
        found = list(blocks(text, store))
        named = [name for each in _PRESUPPOSED.findall(text) for name in each.split(", ")]
        before: list[tuple[str, str, dict[str, str]]]
        before = [("sh", line, {}) for name in named for line in furnish(folder / "empty", name)]
        (folder / "blocks.json").write_text(json.dumps([*before, *found]))
        environment = {
            **os.environ, "DPDIST_STATE_HOME": str(folder / "state"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        run = subprocess.run(  # noqa: S603 - ours
            [sys.executable, folder / "runner.py", folder / "blocks.json"], cwd=folder / "empty", env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
    if run.returncode:
        print(run.stdout, file=sys.stderr)
        raise SystemExit(f"{page.relative_to(ROOT)} does not run as printed")
    kinds = [kind for kind, _, _ in found]
    return {
        "blocks": len(found), "parsed only": kinds.count("syntax"),
        "against S3 here": sum(bool(more) for _, _, more in found),
    }  # fmt: skip


def looked_at(site: Path, npm: Path) -> dict[str, Any]:
    """Return what axe-core says against pages, and by how many pixels each is too wide; and how often it was asked."""
    axe = (npm / "node_modules" / "axe-core" / "axe.min.js").read_text()
    against: dict[str, Any] = {}
    asked = passed = 0
    with tempfile.TemporaryDirectory() as made, browser(Path(made)) as page:
        for path in sorted(path for path in site.rglob("*.html") if "_static" not in path.parts):
            if 'http-equiv="refresh"' in path.read_text(encoding="utf-8"):
                continue  # it is gone before it is judged
            for screen, (width, dark) in SCREENS.items():
                page.open(path, width=width, dark=dark)
                said = judged(page, axe)
                sideways = page.value("document.documentElement.scrollWidth") - width
                asked, passed = asked + 1, passed + said["passed"]
                if said["violations"] or sideways > 0:
                    against[f"{path.relative_to(site)}, {screen}"] = {**said, "sideways": sideways}
    return {"asked": asked, "rules passed": passed, "against": against}


def pictured(site: Path, folder: Path) -> None:
    """Take pictures of the main pages, in few colours, named by page and screen."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made, browser(Path(made)) as page:
        for name, screen in MAIN_PAGES:
            width, dark = SCREENS[screen]
            page.open(site / f"{name}.html", width=width, dark=dark)
            place = folder / f"{name.replace('/', '-')}-{screen.replace(', ', '-')}.png"
            page.picture(place, whole=False)
            with Image.open(place) as picture:
                small = picture.quantize(32)
            small.save(place, optimize=True)


def main() -> None:
    """Do all of it, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--site", type=Path, help="Folder for the site; default: one that is removed.")
    parser.add_argument("--npm", type=Path, help="Where npm installed axe-core.")
    parser.add_argument("--pictures", type=Path, help="Folder for pictures of the main pages; nothing else is done.")
    parser.add_argument("--page", help="Run this one alone, such as tutorials/csv, and build nothing.")
    asked = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    found: dict[str, Any] = {}
    if asked.pictures:
        with tempfile.TemporaryDirectory() as folder:
            built(Path(folder))
            pictured(Path(folder), asked.pictures)
        return
    with contextlib.ExitStack() as stack:
        _, store = stack.enter_context(moto())
        if asked.page:
            print(played(DOCS / f"{asked.page}.md", store))
            return
        site = asked.site or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        built(site)
        found |= followed(site)
        for kind in ("tutorials", "howto"):
            pages = [path for path in sorted((DOCS / kind).glob("*.md")) if _BLOCK.search(path.read_text())]
            found[kind] = {path.stem: played(path, store) for path in pages}
        if asked.npm:
            found["looks"] = looked_at(site, asked.npm)
    print(json.dumps(found, indent=1))
    if asked.output:
        asked.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    if found["broken"] or found["loaded from elsewhere"]:
        raise SystemExit("links lead nowhere, or a page loads something from elsewhere")


if __name__ == "__main__":
    main()
