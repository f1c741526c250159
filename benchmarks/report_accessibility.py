"""Whether everybody can read the page of `dpdist report`: axe-core and the keyboard, in a browser.

    npm install --prefix /tmp/axe axe-core
    python -m benchmarks.report_accessibility results/report_accessibility.json --npm /tmp/axe [--pictures FOLDER]

Needs Debian's package chromium. Pages of ten kinds of releases are shown on a desk (1280 pixels) and on a phone (390),
light and dark, with everything unfolded, and as they are printed. All rules of axe-core run on each, those of best
practice too. What axe cannot decide is counted, and said. Then Tab is pressed until it comes round: everything that can
be opened must be reached, and be seen to be. Last, the page may not scroll sideways, nor load or log anything.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.datasets import load_digits

import dpdist
from benchmarks.browser import Page, browser
from dpdist import Centring, Neighbours, PrivacyLoss, ReleaseRequest
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.release.artefact import Release
from dpdist.report.html import write
from papers.common.drawn import drawn

SCREENS = {"desk": (1280, False), "desk, dark": (1280, True), "phone": (390, False), "phone, dark": (390, True)}
NAMES = (
    "<script>alert('$x$')</script>&\"'", "</title></svg><img src=x onerror=alert(1)>", "x" * 200, "normal",
    "a name of two hundred letters, in words that go on, " * 4, "\u05de\u05e9\u05db\u05d5\u05e8\u05ea", "{{ 7 * 7 }}",
)  # fmt: skip
_BUDGET = PrivacyLoss.parse(20, "1e-5")
_JOB = """
[rows]
path = "visits"
source = "incoming"
periods = true
budget_epsilon = 1
budget_delta = 1e-6
[release]
path = "published"
epsilon = 1
delta = 1e-6
clip = 5.0
"""


def pages(folder: Path) -> Iterator[tuple[str, Path]]:
    """Make releases, and yield a page of each."""
    rng = np.random.default_rng(1)
    digits = load_digits().data
    mixed = rng.normal(size=(20_000, 3)) @ rng.normal(size=(3, len(NAMES))) + 0.3 * rng.normal(
        size=(20_000, len(NAMES))
    )
    wide = rng.normal(size=(4000, 6)) * [9, 7, 5, 4, 3, 2] @ rng.normal(size=(6, 2000)) / 45
    wide += 0.05 * rng.normal(size=wide.shape)
    good = PrivacyLoss.parse(1, "1e-6")

    def made(name: str, rows: Any, request: ReleaseRequest, *, budget: bool = True) -> Release:
        dpdist.ingest_rows(rows, folder / f"{name}.zarr", budget=_BUDGET if budget else None)
        return dpdist.release_rows(folder / f"{name}.zarr", folder / f"{name}.rel", request).release

    def page(name: str, release: Release, **more: Any) -> tuple[str, Path]:
        write(release, folder / f"{name}.html", **more)
        return name, folder / f"{name}.html"

    plain = made("digits", digits, ReleaseRequest("gaussian", good, 64.0))
    yield page("digits, with a budget", plain, ledger=Ledger(folder / "digits.ledger"))
    yield page("digits, as images", plain, image=(8, 8))
    table = pa.table({name: mixed[:, i] for i, name in enumerate(NAMES)}).to_pandas()
    scaled = ReleaseRequest(
        "gaussian", PrivacyLoss.parse(12, "1e-6"), "auto", Neighbours.ADD_REMOVE, centring=Centring.PRIVATE,
        scale="private",
    )  # fmt: skip
    yield page("hostile names, private scale, epsilon 12", made("names", table, scaled), targets=["normal"])
    yield page("drowned", drawn(digits, 64.0, "0.001").release(), targets=["c20"], on=["c21"])
    yield page("pure", drawn(digits, 64.0, "2", mechanism="two-sided-wishart", centring=Centring.NONE).release())
    sn = ReleaseRequest("sn", PrivacyLoss.parse(1), 64.0, for_reproduction=True)
    yield page("not private", made("sn", digits[:, ::-1], sn, budget=False))
    frame = ReleaseRequest("bingham", PrivacyLoss.parse(2), 64.0, options={"components": 3})
    yield page("components only", made("frame", digits * 0.5, frame))
    yield page("one column", drawn(rng.normal(size=(5000, 1)), 4.0).release())
    yield page("2000 columns", drawn(wide, 12.0, "8").release())
    yield page("a total of periods", _total(folder, rng), ledger=Ledger(folder / "visits.ledger"))


def _total(folder: Path, rng: np.random.Generator) -> Release:
    (folder / "incoming").mkdir()
    for day in (1, 2, 3):
        rows = rng.normal(size=(4000, 3)) @ rng.normal(size=(3, 3))
        np.savetxt(
            folder / "incoming" / f"2026-01-0{day}.csv", rows, delimiter=",", header="visits,cost,age", comments=""
        )
    (folder / "job.toml").write_text(_JOB)
    subprocess.run([sys.executable, "-m", "dpdist", "run", "job.toml"], cwd=folder, check=True, capture_output=True)
    return dpdist.open_release(folder / "published" / "total" / "2026-01-03.zarr")


def judged(page: Page, axe: str) -> dict[str, Any]:
    """Return what axe-core says of the page as it is shown: rules broken, rules passed, what it cannot decide."""
    page.value(axe)
    found = page.value("axe.run(document).then(r => JSON.stringify([r.violations, r.incomplete, r.passes]))")
    broken, open_questions, passed = json.loads(found)
    return {
        "violations": [f"{rule['id']} ({len(rule['nodes'])})" for rule in broken],
        "undecided": [f"{rule['id']} ({len(rule['nodes'])})" for rule in open_questions],
        "passed": len(passed),
    }


def by_keyboard(page: Page) -> dict[str, int]:
    """Return how many stops Tab makes on an unfolded page, how many are not seen, and how many it does not reach."""
    wanted = page.value("(window.stops = [...document.querySelectorAll('a[href], summary, [tabindex]')]).length")
    reached, unseen = set[int](), 0
    for _ in range(wanted + 1):
        page.press("Tab")
        place, outline = page.value(
            "(e => [stops.indexOf(e), getComputedStyle(e).outlineStyle])(document.activeElement)"
        )
        if place >= 0 and place not in reached:
            reached.add(place)
            unseen += outline == "none"
    return {"stops": len(reached), "unseen": unseen, "missed": wanted - len(reached)}


def noticed(page: Page) -> list[str]:
    """Return what axe-core says of faults that are put into the page that is open."""
    page.value(
        "document.querySelector('main').insertAdjacentHTML('beforeend', "
        '\'<img src="data:,"><p style="color: #ccc; background: #fff">pale</p><h6>deep</h6>\')'
    )
    return [rule["id"] for rule in json.loads(page.value("axe.run(document).then(r => JSON.stringify(r.violations))"))]


def shown(page: Page, name: str, path: Path, axe: str, pictures: Path | None) -> dict[str, Any]:
    """Return what there is to say of one page."""
    said: dict[str, Any] = {"bytes": path.stat().st_size, "screens": {}}
    stem = name.replace(", ", "-").replace(" ", "-")
    for screen, (width, dark) in SCREENS.items():
        page.open(path, width=width, dark=dark)
        if pictures is not None:
            page.picture(pictures / f"{stem}-{screen.replace(', ', '-')}.png")
        page.value("document.querySelectorAll('details').forEach(one => one.open = true)")
        said["screens"][screen] = {
            **judged(page, axe),
            "sideways": page.value("document.documentElement.scrollWidth") - width,
            "loaded": page.value("performance.getEntriesByType('resource').filter(e => !/^data:/.test(e.name)).length"),
        }
        said["keyboard"] = by_keyboard(page)
    page.open(path, dark=True)
    page.colours(dark=True, media="print")
    hidden = "[...document.querySelectorAll('details *')].filter(e => !e.closest('svg') && !e.checkVisibility()).length"
    said["paper"] = {**judged(page, axe), "hidden": page.value(hidden)}
    return said


def main() -> None:
    """Show every page, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--npm", type=Path, required=True, help="Where npm installed axe-core.")
    parser.add_argument("--pictures", type=Path, help="Folder for pictures of every page on every screen.")
    asked = parser.parse_args()
    package = asked.npm / "node_modules" / "axe-core"
    axe = (package / "axe.min.js").read_text()
    version = json.loads((package / "package.json").read_text())["version"]
    found = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = Path(made)
        os.environ["DPDIST_STATE_HOME"] = str(folder / "state")
        with browser(folder) as page:
            product = page.tell("Browser.getVersion")["product"]
            for name, path in pages(folder):
                found[name] = shown(page, name, path, axe, asked.pictures)
                print(name, *({*each["violations"]} for each in found[name]["screens"].values()), flush=True)
            faults = noticed(page)
    value = {"axe-core": version, "browser": product, "pages": found, "noticed": faults}
    asked.output.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    asked.output.with_suffix(".md").write_text(_table(value))


def _table(value: dict[str, Any]) -> str:
    about = (
        f"axe-core {value['axe-core']}, all rules, in {value['browser']}, by `benchmarks/report_accessibility.py`. "
        "Each page is shown on a desk and on a phone, light and dark, unfolded, and on paper: five times."
    )
    head = (
        "page", "kB", "rules broken", "fewest passed", "undecided", "stops", "not seen", "missed", "sideways", "loaded",
    )  # fmt: skip
    lines = ["# Whether everybody can read a report", "", about, "", _line(head), _line(["---"] * len(head))]
    for name, each in value["pages"].items():
        screens = [*each["screens"].values(), each["paper"]]
        broken = sum(len(one["violations"]) for one in screens)
        open_questions = {rule.partition(" ")[0] for one in screens for rule in one["undecided"]}
        keyboard, shown = each["keyboard"], each["screens"].values()
        cells = (
            name, round(each["bytes"] / 1000), broken, min(one["passed"] for one in screens),
            ", ".join(sorted(open_questions)) or "none", keyboard["stops"], keyboard["unseen"], keyboard["missed"],
            max(one["sideways"] for one in shown), max(one["loaded"] for one in shown),
        )  # fmt: skip
        lines.append(_line(cells))
    notes = (
        "kB: size of the file. Stops: links, folds and tables that scroll, reached by Tab; not seen: with no outline.",
        "Sideways: pixels beyond the width of the screen. Loaded: requests.",
        "axe cannot decide on the contrast of text in a drawing: `tests/report/test_report.py` does.",
        f"Three faults that were put into a page were noticed as: {', '.join(value['noticed'])}.",
    )
    for note in notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
