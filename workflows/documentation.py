"""Whether the site builds, loads nothing from elsewhere, and whether its tutorials do what they say.

    pip install -e '.[docs,test]'
    python -m workflows.documentation --output workflows/results/documentation [--site build/site] [--npm /tmp/axe]
    python -m workflows.documentation --tutorial nightly

The site is built with warnings as errors, and every link in its pages is followed. Then the blocks of each tutorial are
run as they are printed, in order, in an empty folder: shell, Python (in one interpreter, as in a notebook), and files
whose first line is their name. A block after the comment ``runs against: ...`` finds moto's S3 in its environment, and
one after ``syntax only: ...`` is parsed by the shell and not run. With ``--npm``, where axe-core is installed
(:mod:`workflows.report_accessibility`), the main pages are judged on a desk and on a phone, light and dark.
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
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from faults.browser import browser
from workflows.report_accessibility import SCREENS, judged
from workflows.stores import moto

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
_BLOCK = re.compile(
    r"^(?:<!-- (runs against|syntax only): (.*?) -->\n)?```(sh|python|toml|text)\n(.*?)^```", re.MULTILINE | re.DOTALL
)
_MAIN = (
    "docs/index", "README", "docs/tutorials/csv", "docs/explanation/epsilon", "docs/reference/python",
    "docs/reference/command_line", "docs/howto/index", "docs/comparison", "docs/glossary",
)  # fmt: skip
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


def built(site: Path) -> float:
    """Build the site with warnings as errors, and return how many seconds that took."""
    started = time.monotonic()
    command = ["-m", "sphinx", "-q", "-E", "-W", "-n", "--keep-going", "-c", str(ROOT / "docs"), str(ROOT), str(site)]
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT)  # noqa: S603 - ours
    return time.monotonic() - started


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


def played(tutorial: Path, store: dict[str, str]) -> dict[str, Any]:
    """Run a tutorial in an empty folder, and return how many blocks ran."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "empty").mkdir()
        (folder / "runner.py").write_text(_RUNNER)
        found = list(blocks(tutorial.read_text(), store))
        (folder / "blocks.json").write_text(json.dumps(found))
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
        raise SystemExit(f"{tutorial.name} does not run as printed")
    kinds = [kind for kind, _, _ in found]
    return {
        "blocks": len(found), "parsed only": kinds.count("syntax"),
        "against S3 here": sum(bool(more) for _, _, more in found),
    }  # fmt: skip


def looked_at(site: Path, npm: Path) -> dict[str, Any]:
    """Return what axe-core says of the main pages, and by how many pixels each is too wide."""
    axe = (npm / "node_modules" / "axe-core" / "axe.min.js").read_text()
    said = {}
    with tempfile.TemporaryDirectory() as made, browser(Path(made)) as page:
        for name in _MAIN:
            for screen, (width, dark) in SCREENS.items():
                page.open(site / f"{name}.html", width=width, dark=dark)
                sideways = page.value("document.documentElement.scrollWidth") - width
                said[f"{name}, {screen}"] = {**judged(page, axe), "sideways": sideways}
    return said


def main() -> None:
    """Do all of it, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--site", type=Path, help="Folder for the site; default: one that is removed.")
    parser.add_argument("--npm", type=Path, help="Where npm installed axe-core.")
    parser.add_argument("--tutorial", help="Run this one alone, and build nothing.")
    asked = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        _, store = stack.enter_context(moto())
        if asked.tutorial:
            print(played(TUTORIALS / f"{asked.tutorial}.md", store))
            return
        site = asked.site or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found["seconds to build"] = round(built(site), 1)
        found |= followed(site)
        found["tutorials"] = {
            path.stem: played(path, store) for path in sorted(TUTORIALS.glob("*.md")) if path.stem != "index"
        }
        if asked.npm:
            found["main pages"] = looked_at(site, asked.npm)
    print(json.dumps(found, indent=1))
    if asked.output:
        asked.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    if found["broken"] or found["loaded from elsewhere"]:
        raise SystemExit("links lead nowhere, or a page loads something from elsewhere")


if __name__ == "__main__":
    main()
