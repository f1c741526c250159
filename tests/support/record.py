"""What some fifty requests answer at fixed random numbers: ids, charges, packed bits, JSON and text of each.

Each kind of random number has a stream of its own, so that a token more here, or a key less there, changes nothing
else. Such noise is no noise: it exists in tests only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import dpdist
from dpdist import open_release
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.runtime import local
from support.cli_scene import Call

Record = dict[str, Any]
TRULY = os.urandom
BUDGET = ("--budget-epsilon", "10000", "--budget-delta", "1e-3")
D = ("--delta", "1e-6")
CLIPPED = ("--clip", "200")
SCALED = ("--epsilon", "40", *D, "--scale", "private")
TWO = ("--option", "components=2")
COMMANDS: dict[str, tuple[str, ...]] = {
    "gaussian": ("--epsilon", "10", *D, *CLIPPED),
    "two-sided-wishart": ("--epsilon", "10", *CLIPPED),
    "private mean": ("--epsilon", "10", *D, *CLIPPED, "--centre", "private"),
    "public centre and scale": ("--epsilon", "10", *D, "--clip", "3", "--centre", "centre.json"),
    "grid bits": ("--epsilon", "10", *D, *CLIPPED, "--grid-bits", "14"),
    "chosen id": ("--epsilon", "10", *D, *CLIPPED, "--id", "autumn"),
    "private clip": ("--epsilon", "20", *D, "--clip", "private"),
    "private clip for components": ("--epsilon", "20", *D, "--clip", "private", "--clip-components", "2"),
    "private scale": (*SCALED, "--clip", "auto"),
    "private scale for targets": (*SCALED, "--targets", "d"),
    "private scale, a share": (*SCALED, "--clip", "auto", "--scale-share", "0.2"),
    "both private": (*SCALED, "--clip", "private"),
    "both private, pure": ("--epsilon", "80", "--scale", "private", "--clip", "private"),
    "both private, laplace": ("--epsilon", "80", "--scale", "private", "--clip", "private", "--mechanism", "laplace"),
}
MECHANISMS: dict[str, tuple[str, ...]] = {
    "wishart": D,
    "power": (*D, *TWO, "--option", "iterations=3"),
    "laplace": (),
    "laplace-published": (),
    "sulq": D,
    "mod-sulq": D,
    "mvg-exact": D,
    "mvg": (*D, "--option", "rows=300"),
    "mvg-psd": (*D, "--option", "rows=300"),
    "jl": (*D, "--option", "sketch=4"),
    "bingham": TWO,
    "kapralov-talwar": TWO,
    "amin": TWO,
    "orbit": ("--option", "spectrum=9,4,1"),
    "orbit-lowrank": TWO,
    "nuclear": (),
    "frobenius": (),
}
REPRODUCTIONS: dict[str, tuple[str, ...]] = {
    "none": (),
    "sn": (),
    "jiang-wishart": (),
    "sheffet-wishart": D,
    "power-published": (*D, *TWO, "--option", "iterations=3"),
    "analyze-gauss": D,
    "ppca": TWO,
}
KINDS = """
[[column]]
name = "region"
kind = "category"
categories = ["north", "south", "east"]

[[column]]
name = "member"
kind = "boolean"
missing = "indicator"
"""
SPENT = """
[[column]]
name = "spend"
kind = "number"
transform = "log"
"""
KIND = ("north", "south", "east")
OF_KINDS: dict[str, tuple[str, ...]] = {
    "kinds": ("--epsilon", "10", *D, "--clip", "3"),
    "kinds about zero": ("--epsilon", "10", *D, "--clip", "3", "--centre", "none"),
    "kinds scaled": (*SCALED, "--neighbours", "replace-one"),
    "kinds clipped": ("--epsilon", "20", *D, "--clip", "private"),
    "kinds alone": ("--epsilon", "10", *D),
}
JOB = """
[rows]
path = "job-rows.zarr"
source = "table.csv"
budget_epsilon = 30
budget_delta = 1e-5

[release]
path = "job-release.zarr"
epsilon = 20
delta = 1e-6
scale = "private"

[pca]
path = "job-model.zarr"
components = 2

[project]
path = "job-scores.zarr"
"""
NIGHTS = """
[rows]
path = "visits"
source = "incoming"
header = "yes"
periods = true
{unit}
budget_epsilon = 40
budget_delta = 1e-4

[release]
path = "published"
epsilon = 8
delta = 1e-6
{bound}

[pca]
path = "models"
components = 1
"""
PERSONS = 'privacy_unit = "person"\nmax_rows = 2\nmax_periods = 3'


def fix_random_numbers(patch: pytest.MonkeyPatch, seed: str) -> None:
    """Let tokens and noise be streams of the seed and of the function that asks; other bytes stay random."""
    asked: Counter[str] = Counter()

    def urandom(size: int) -> bytes:
        drawing = sys._getframe(1)
        if drawing.f_code.co_name not in {"random_token", "words"} or drawing.f_back is None:
            return TRULY(size)
        purpose = drawing.f_back.f_code.co_name
        purpose = purpose if drawing.f_code.co_name == "random_token" or purpose == "draw_key" else "noise"
        asked[purpose] += 1
        return hashlib.shake_256(f"{seed}/{purpose}/{asked[purpose]}".encode()).digest(size)

    patch.setattr(os, "urandom", urandom)
    patch.setattr(local, "available_cores", lambda: 1)  # threads would draw the keys of their tasks in any order


def rounded(value: Any) -> Any:
    """Round numbers to six digits: floats differ in the last ones between machines."""
    if isinstance(value, dict):
        deltas = {"delta_atto": _without_last_digits(value["delta_atto"])} if "delta_atto" in value else {}
        return {name: rounded(each) for name, each in value.items()} | deltas
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value if not isinstance(value, float) or not math.isfinite(value) else float(f"{value:.6g}")


def _without_last_digits(delta: int) -> int:
    """Round a delta that an integral gives: to 10^-12 from 10^-6 on, where floats differ."""
    return delta if delta < 10**12 else round(delta, -6)


def answer_of(release: dpdist.Release) -> Any:
    """Return the packed integers as a hash, and anything else to six digits."""
    answer = np.asarray(release.answer)
    if answer.dtype.kind != "i":
        return rounded(np.where(np.abs(answer) < 1e-9 * np.abs(answer).max(), 0, answer).tolist())
    upper = answer[np.triu_indices(len(answer))]
    return hashlib.sha256(np.ascontiguousarray(upper, "<i8").tobytes()).hexdigest()


@dataclass
class Recorder:
    """Runs requests one after the other in a folder, each with its own random numbers, and notes what they answer."""

    folder: Path
    call: Call
    patch: pytest.MonkeyPatch
    found: dict[str, Record] = field(default_factory=dict)

    def said(self, text: str) -> str:
        """Return a text without what is of this run: folders and times."""
        text = text.replace(str(self.folder), "FOLDER")
        text = re.sub(r"\d+(\.\d+)? (s|seconds)\b", "SECONDS", text)
        text = re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", text)
        text = re.sub(r"\b[0-9a-f]{64}\b", "HEAD", text)  # of a ledger
        return text.replace(datetime.now(tz=UTC).date().isoformat(), "TODAY")

    def command(self, name: str, *arguments: str, code: int = 0) -> None:
        """Note what a command prints."""
        fix_random_numbers(self.patch, name)
        done = self.call(*arguments)
        assert done.code == code, (done.code, done.told)
        self.found.setdefault(name, {})[" ".join(arguments)] = self.said(done.told).splitlines()

    def release(self, name: str, target: str) -> None:
        """Note a release: its bits, and what `inspect` says of it."""
        release = open_release(self.folder / target)
        described = self.call("inspect", target, "--json").json
        self.found[name] |= {
            "id": release.release_id,
            "answer": answer_of(release),
            "inspect --json": json.loads(self.said(json.dumps(rounded(described)))),
            "inspect": self.said(self.call("inspect", target).told).splitlines(),
        }

    def charges(self, name: str, ledger: str) -> None:
        """Note what a ledger was charged with, in order."""
        self.found[name]["charges"] = [
            [record.release_id, record.state.value, rounded(json.loads(json.dumps(record.guarantee.to_json())))]
            for record in Ledger(self.folder / ledger).records
        ]

    def python(self, name: str, release: Callable[[], dpdist.Release]) -> None:
        """Note a release of rows in memory."""
        fix_random_numbers(self.patch, name)
        made = release()
        self.found[name] = {"id": made.release_id, "answer": answer_of(made), "json": rounded(to_json(made))}


def to_json(release: dpdist.Release) -> Any:
    """Return the public description of a release in memory."""
    assert release.guarantee is not None
    return json.loads(json.dumps({"guarantee": release.guarantee.to_json(), "names": release.names, "n": release.rows}))


def write_sources(folder: Path) -> None:
    """Write the table, also with persons, a public centre, and matrices."""
    draws = np.random.default_rng(3)
    rows = np.rint(draws.normal(size=(300, 4)) * [60, 40, 20, 10] + [30, 0, 10, -5])
    rows[:, 3] += np.rint(rows[:, 0] / 4)
    np.savetxt(folder / "table.csv", rows, fmt="%d", delimiter=",", header="a,b,c,d", comments="")
    persons = np.column_stack([draws.integers(0, 150, 300), rows])
    places, money = draws.choice(3, 300, p=[0.6, 0.3, 0.1]), np.exp(draws.normal(3, 1, 300))
    members = draws.choice(["yes", "no", ""], 300)
    lines = [f"{KIND[p]},{m},{s:.2f}" for p, m, s in zip(places, members, money, strict=True)]
    (folder / "kinds.csv").write_text("\n".join(["region,member,spend", *lines]) + "\n")
    (folder / "kinds.toml").write_text(KINDS + SPENT)
    (folder / "alone.toml").write_text('others = "ignored"\n' + KINDS)
    np.savetxt(folder / "persons.csv", persons, fmt="%d", delimiter=",", header="person,a,b,c,d", comments="")
    (folder / "centre.json").write_text('{"centre": [30, 0, 10, -5], "scale": [60, 40, 20, 10]}')
    for number, mechanism in enumerate(("gaussian", "two-sided-wishart", "laplace")):
        np.save(folder / f"{mechanism}.npy", rows.T @ rows + number)


def night(incoming: Path, day: int, *, persons: bool) -> None:
    """Let the rows of one night arrive."""
    draws = np.random.default_rng(day)
    visits = np.column_stack([draws.integers(0, 450, 600), np.rint(draws.normal(size=(600, 2)) * [3, 1])])
    path = incoming / f"2026-01-0{day}.csv"
    names, visits = ("person,a,b", visits) if persons else ("a,b", visits[:, 1:])
    np.savetxt(path, visits, fmt="%d", delimiter=",", header=names, comments="")


def record(folder: Path, call: Call, patch: pytest.MonkeyPatch) -> dict[str, Record]:
    """Run all requests in a folder, and return what they answered."""
    write_sources(folder)
    to = Recorder(folder, call, patch)
    to.command("rows", "ingest", "table.csv", "rows.zarr", *BUDGET)
    to.command("rows without a budget", "ingest", "table.csv", "open.zarr")
    to.command(
        "rows of persons", "ingest", "persons.csv", "persons.zarr", "--person", "person", "--max-rows", "2", *BUDGET
    )
    _releases(to)
    _afterwards(to)
    _jobs(to)
    _in_python(to)
    return to.found


def _releases(to: Recorder) -> None:
    for name, options in COMMANDS.items():
        to.command(name, "release", "rows.zarr", f"{name}.zarr", *options)
        to.release(name, f"{name}.zarr")
    to.command("again", "release", "rows.zarr", "gaussian.zarr", *COMMANDS["gaussian"])
    to.charges("rows", "rows.ledger")
    shared = ("--budget-pure", "5000", "--budget-delta-reserve", "1e-4")
    to.command("rows for all mechanisms", "ingest", "table.csv", "all.zarr", *BUDGET, *shared)
    for name, options in MECHANISMS.items():
        asked = ("--mechanism", name, "--epsilon", "10", *CLIPPED, *options)
        to.command(name, "release", "all.zarr", f"{name}.zarr", *asked)
        to.release(name, f"{name}.zarr")
    to.charges("rows for all mechanisms", "all.ledger")
    for name, options in REPRODUCTIONS.items():
        asked = ("--mechanism", name, "--epsilon", "10", *CLIPPED, *options, "--for-reproduction")
        to.command(name, "release", "open.zarr", f"{name}.zarr", *asked)
        to.release(name, f"{name}.zarr")
    to.command("persons", "release", "persons.zarr", "persons-release.zarr", *COMMANDS["gaussian"])
    to.release("persons", "persons-release.zarr")
    to.charges("persons", "persons.ledger")
    add_remove = (*COMMANDS["gaussian"], "--neighbours", "add-remove")
    to.command("add-remove", "ingest", "table.csv", "many.zarr", *BUDGET)
    to.command("add-remove", "release", "many.zarr", "add-remove.zarr", *add_remove)
    to.release("add-remove", "add-remove.zarr")
    header = ("--header", "yes", *BUDGET)
    to.command("rows of kinds", "ingest", "kinds.csv", "kinds-rows.zarr", "--schema", "kinds.toml", *header)
    to.command("rows of kinds alone", "ingest", "kinds.csv", "alone-rows.zarr", "--schema", "alone.toml", *header)
    for name, options in OF_KINDS.items():
        rows = "alone-rows.zarr" if name == "kinds alone" else "kinds-rows.zarr"
        to.command(name, "release", rows, f"{name}.zarr", *options)
        to.release(name, f"{name}.zarr")
    table: Any = np.loadtxt(to.folder / "table.csv", delimiter=",", skiprows=1)
    zarr.save_array(to.folder / "array.zarr", table)
    to.command("in place", "register", "array.zarr", "placed.zarr", *BUDGET)
    to.command("in place", "release", "placed.zarr", "placed-release.zarr", *COMMANDS["gaussian"])
    to.release("in place", "placed-release.zarr")
    to.command("one command", "release", "table.csv", "one.zarr", "--epsilon", "20", *D, "--each-row-is-a-person")
    to.release("one command", "one.zarr")
    to.command("sum", "ingest", "persons.csv", "other.zarr", "--columns", "a,b,c,d", *BUDGET)
    to.command("sum", "release", "other.zarr", "other-release.zarr", *COMMANDS["gaussian"])
    to.command("sum", "combine", "sum.zarr", "gaussian.zarr", "other-release.zarr")
    to.release("sum", "sum.zarr")
    for mechanism, declared in (
        ("gaussian", ("--frobenius", "20000", *D)),
        ("two-sided-wishart", ("--nuclear", "20000")),
        ("laplace", ("--l1", "60000")),
    ):
        name, ledger = f"matrix, {mechanism}", ("--ledger", f"{mechanism}.ledger")
        to.command(name, "release-matrix", f"{mechanism}.npy", f"{name}.zarr", "--epsilon", "2", *declared, *ledger)
        to.found[name]["inspect --json"] = rounded(to.call("inspect", f"{name}.zarr", "--json").json)


def _afterwards(to: Recorder) -> None:
    """Read releases in every way that the command line has."""
    mean, both = "private mean.zarr", "both private.zarr"
    to.command("pca", "pca", mean, "model.zarr", "--components", "2", "--no-correlation")
    to.command("pca", "pca", both, "correlation.zarr", "--components", "2")
    to.command("project", "project", "rows.zarr", "model.zarr", "scores.zarr")
    to.command("regress", "regress", mean, "--target", "d", "--on", "a,b,c")
    to.command("covariance", "covariance", mean, "covariance.csv")
    to.command("synthesise", "synthesise", mean, "drawn.csv", "--rows", "50", "--seed", "1")
    to.command("forecast", "forecast", "rows.zarr", *COMMANDS["gaussian"])
    to.command("forecast", "forecast", "rows.zarr", *COMMANDS["both private"])
    to.command("bound", "bound", "rows.zarr", "--epsilon", "15", "--quantile", "0.8")
    to.command("ledger", "ledger", "show", "rows.ledger")
    to.command("ledger", "ledger", "verify", "rows.ledger")
    to.command("inspect", "inspect", "rows.zarr")
    to.command("inspect", "inspect", "model.zarr")
    to.command("inspect", "inspect", "persons.zarr", "--json")


def _jobs(to: Recorder) -> None:
    """Run a job, and two jobs with periods, each in a folder of its own."""
    (to.folder / "job.toml").write_text(JOB)
    to.command("job", "run", "job.toml")
    to.release("job", "job-release.zarr")
    to.charges("job", "job-rows.ledger")
    to.command("job", "status", "job.toml")
    for name, unit, bound in (
        ("periods", "", 'scale = "private"'),
        ("periods of persons", PERSONS, "clip = 4.0\ncontinual = 4"),
    ):
        place = to.folder / name
        (place / "incoming").mkdir(parents=True)
        (place / "nightly.toml").write_text(NIGHTS.format(unit=unit, bound=bound))
        for day in (1, 2, 3):
            night(place / "incoming", day, persons=bool(unit))
            to.command(name, "run", f"{name}/nightly.toml")
            to.found[name][f"night {day}"] = to.found[name].pop(f"run {name}/nightly.toml")
        published = sorted(path.relative_to(to.folder) for path in (place / "published").rglob("*.zarr"))
        to.found[name]["published"] = {str(path): answer_of(open_release(to.folder / path)) for path in published}
        to.charges(name, f"{name}/visits.ledger")


def _in_python(to: Recorder) -> None:
    """Release rows in memory, and a table in place."""
    rows = np.loadtxt(to.folder / "table.csv", delimiter=",", skiprows=1)
    asked = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(7, "1e-6"), "private", scale="private")
    rows_path, target = to.folder / "rows.zarr", to.folder / "python.zarr"
    to.python("release_rows", lambda: dpdist.release_rows(rows_path, target, asked).release)
    loss: dict[str, Any] = {"epsilon": 10, "delta": 1e-6, "budget": dpdist.Budget(100, 1e-4)}
    whose: dict[str, Any] = {"each_row_is_a_person": True, "say": lambda _: None}
    to.python("private_pca", lambda: dpdist.private_pca(rows, **loss | {"epsilon": 30}, **whose).release_)
    to.python("PrivatePCA", lambda: dpdist.PrivatePCA(2, clip=200, **loss).fit(rows + 1).release_)
    to.python("PrivateCovariance", lambda: dpdist.PrivateCovariance(clip=200, **loss).fit(rows + 2).release_)
    to.python("PrivateRidge", lambda: dpdist.PrivateRidge(**loss).fit(rows[:, :3], rows[:, 3]).release_)
