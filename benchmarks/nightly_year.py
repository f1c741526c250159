"""A year of nights that go wrong: one release per period, a constant budget per row, and an error as predicted.

Every night a folder of made-up rows arrives and the job is run, except on nights that are missed. Many runs die at a
random step; some are repeated; now and then files come late, change, or repeat another. Most nights are run in this
process, where a run that dies raises at a step of the ledger. On some, real processes are killed at a random moment, or
two are started at once. The forms: single periods, a tree, a square root, banded; and each of the last three with
persons who have rows in several periods. Rows are made up, so the exact total is known: the error of the private
one is compared with what theory predicts, night by night and over the year.

    python -m benchmarks.nightly_year --periods 365 --output benchmarks/results/nightly_year

writes NAME.json, NAME.md and NAME.png; what there is of other forms is kept. An interrupt ends a year early.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
import numpy.typing as npt
from faults.nightly import JOB
from matplotlib import pyplot as plt

from dpdist import DpdistError, Ledger, open_release
from dpdist.core.ledger.state import State
from dpdist.core.release.artefact import Release
from dpdist.core.release.series import (
    BAND,
    Node,
    Toeplitz,
    Tree,
    banded,
    levels_for,
    square_root,
    total_of,
    variance_factor,
)
from dpdist.jobs import job_file
from dpdist.jobs import run as job_runs

_COLUMNS = 16
_ROWS, _PERIODS = 2, 7
_PERSONS = f'privacy_unit = "c0"\nmax_rows = {_ROWS}\nmax_periods = {_PERIODS}'
_STEPS = ("close_period", "reserve", "begin", "commit", "published")
"""Steps of the ledger, at which a run dies in this process, before or after."""
_ENTRIES = _COLUMNS * (_COLUMNS - 1) // 2
Floats = npt.NDArray[np.float64]


class DiedError(BaseException):
    """A run died here."""


@dataclass
class Year:
    """One simulated year in a folder, and what happened in it."""

    folder: Path
    random: np.random.Generator
    form: Form
    rows: list[Floats] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    seen: dict[str, str] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    been: Counter[int] = field(default_factory=Counter)
    seconds: dict[int, float] = field(default_factory=dict)
    process_seconds: float = 5.0
    sums: list[tuple[Floats, int]] = field(default_factory=list)
    said: str = ""

    def arrive(self, number: int) -> None:
        """Let the rows of a period arrive."""
        rows = self.random.normal(size=(int(self.random.integers(50, 150)), _COLUMNS))
        if not self.form.persons:
            self.write(name_of(number), rows)
            self.rows.append(rows)
            return
        who = self.random.integers(400, size=len(rows))
        self.write(name_of(number), np.column_stack([who, rows]))
        first = [list(who[:i]).count(person) < _ROWS for i, person in enumerate(who)]
        self.rows.append(rows[first & np.array([self.been[person] < _PERIODS for person in who])])
        self.been.update(set(who.tolist()))

    def write(self, name: str, rows: npt.NDArray[np.float64]) -> None:
        """Put a period into the source, complete."""
        aside = self.folder / "incoming" / f".{name}.npy"
        np.save(aside, rows)
        aside.rename(aside.with_name(f"{name}.npy"))

    def started(self) -> subprocess.Popen[bytes]:
        """Start the job in a process of its own."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, "-m", "dpdist", "run", str(self.folder / "job.toml")], **quiet)  # type: ignore[call-overload, no-any-return]  # noqa: S603

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a process and count how it ended; its exit code, -9 if it was killed."""
        self.happened[f"processes ended with {(code := process.wait())}"] += 1
        return code

    def run(self) -> int:
        """Run the job once, in this process, to its end; return its exit code."""
        try:
            job_runs.run(job_file.read_job(self.folder / "job.toml"), say=lambda _: None)
        except DpdistError as error:
            self.said = str(error)
            code = error.exit_code
        else:
            code = 0
        self.happened[f"runs ended with {code}"] += 1
        return code

    @property
    def ledger(self) -> Ledger:
        """The ledger, opened anew."""
        return Ledger(self.folder / "visits.ledger")

    def night(self, number: int) -> None:
        """Let the rows of a period arrive and one night pass."""
        self.arrive(number)
        luck = self.random.random()
        if luck < 0.1:
            self.happened["nights missed"] += 1
            return
        if luck < 0.35:
            self.died()
        elif luck < 0.38:
            self.killed()
        elif luck < 0.40:
            self.happened["started twice at once"] += 1
            codes = [self.ended(process) for process in [self.started(), self.started()]]
            require(set(codes) == {0}, f"two at once ended with {codes}")
        elif luck < 0.50:
            self.happened["run twice"] += 1
            require(self.run() == 0, f"a run failed: {self.said}")
        elif luck < 0.6 and number > 2:
            self.wronged(number)
        if luck >= 0.2:  # else what was left is resumed on another night
            began = time.process_time()
            require(self.run() == 0, f"a run failed: {self.said}")
            self.seconds[number + 1] = round(time.process_time() - began, 3)
        self.look()

    def died(self) -> None:
        """Let a run die at a random step of the ledger, before or after it."""
        step, after = _STEPS[int(self.random.integers(len(_STEPS)))], self.random.random() < 0.5
        original = getattr(Ledger, step)

        def dies(*args: Any, **options: Any) -> None:
            if after:
                original(*args, **options)
            raise DiedError

        try:
            with mock.patch.object(Ledger, step, dies):
                self.run()
        except DiedError:
            self.happened[f"died {'after' if after else 'before'} {step}"] += 1

    def killed(self) -> None:
        """Start a process and kill it at a random moment."""
        process, began = self.started(), time.monotonic()
        last = float(self.random.uniform(0.3, 1)) * self.process_seconds
        while process.poll() is None and time.monotonic() - began < last:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        if self.ended(process) == -signal.SIGKILL:
            self.happened[f"killed, last release {self.latest()}"] += 1
        else:
            self.process_seconds = time.monotonic() - began

    def latest(self) -> str:
        """Return where the last release stands."""
        records = self.ledger.records if (self.folder / "visits.ledger").exists() else []
        return str(records[-1].state) if records else "none"

    def wronged(self, number: int) -> None:
        """Let a file come late, change, or repeat another: the run is refused and releases nothing of it."""
        require(self.run() == 0, f"a run failed: {self.said}")
        before = len(self.ledger.records)
        kind = ("late", "changed", "repeated")[int(self.random.integers(3))]
        old, incoming = int(self.random.integers(number)), self.folder / "incoming"
        path = incoming / f"{name_of(old)}.npy"
        match kind:
            case "late":
                path = incoming / f"{name_of(old)}.5.npy"  # sorts before the next day, which is closed
                if old == number - 1:
                    path = incoming / f"{name_of(-1)}.npy"
                np.save(path, self.random.normal(size=(60, _COLUMNS)))
            case "changed":
                kept = path.read_bytes()
                np.save(path, self.random.normal(size=(60, _COLUMNS)))
            case "repeated":
                shutil.copy(path, path := incoming / f"{name_of(number)}.again.npy")
        self.happened[f"files {kind}"] += 1
        require(self.run() == 3, f"files {kind} were not refused")
        require(len(self.ledger.records) == before, f"files {kind} were released")
        if kind == "changed":
            path.write_bytes(kept)
        else:
            path.unlink()

    def look(self, latest: int | None = 20) -> None:
        """Check that what was published never changes, the latest or all, and note what is left of a row's budget."""
        paths = sorted((self.folder / "published").glob("*.zarr"), key=lambda path: path.stat().st_mtime_ns)
        for path in paths[-latest:] if latest else paths:
            files = sorted(p for p in path.rglob("*") if p.is_file())
            digest = hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()
            require(self.seen.setdefault(path.name, digest) == digest, f"{path.name} was published twice")
        self.left.add(str(self.ledger.balance().left))

    def conclude(self) -> dict[str, Any]:
        """Check the whole year, and return what is to be told of it."""
        require(self.run() == 0, "the last run failed")
        self.look(latest=None)
        periods, ledger = len(self.rows), self.ledger
        ledger.verify()
        plan = self.form.plan
        nodes = {(node.start, node.stop) for count in range(1, periods + 1) for node in plan.released(count)}
        require(len(ledger.periods) == periods, "a period is missing")
        require(all(r.state is State.PUBLISHED for r in ledger.records), "a release is unfinished")
        require(len(ledger.records) == len(nodes) == len(self.seen), "a release is missing, or there are too many")
        accounts = ledger.accounts()
        require(accounts is not None and max(accounts.left([p]).share for p in ledger.periods) <= 1, "a row bears more")
        return {
            "releases": len(nodes),
            "periods": periods,
            "left": sorted(self.left),
            "budget": str(ledger.budget),
            "happened": dict(sorted(self.happened.items())),
            "seconds": self.seconds,
            "errors": [error for count in range(1, periods + 1) if (error := self.error(count))],
        }

    def error(self, count: int) -> dict[str, float]:
        """Compare the private total of so many periods with that of the rows; rounding is little beside its noise."""
        total = self.folder / "published" / "total" / f"{name_of(count - 1)}.zarr"
        if not total.exists():  # a night of a tree that was caught up later
            return {}
        release = open_release(total)
        exact, rows = self.exact(release, count)
        require(release.rows == rows, f"the total of {count} periods is of other rows than are to be kept")
        one = float(release.noise["variance_off_diagonal"]) ** 0.5 / self.form.factor(count)
        found = {"periods": count, "rms": rms(release.lattice - exact) / one}
        if isinstance(self.form.plan, Tree) and self.form.plan.levels > 1:
            nodes = total_of(count, self.form.plan.levels)
            names = [f"{node.label([name_of(t) for t in range(count)])}.zarr" for node in nodes]
            roots = sum(open_release(self.folder / "published" / name).lattice for name in names)
            found["roots"] = rms(roots - exact) / one
        return found

    def exact(self, release: Release, count: int) -> tuple[Floats, int]:
        """Return the moment of the rows so far, as a release bounds them, and their number."""
        while len(self.sums) < count:
            rows = self.rows[len(self.sums)]
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            scaled = rows / (np.maximum(1, norms / release.bound.shortened_norm) * release.bound.unit)
            before, number = self.sums[-1] if self.sums else (np.zeros((_COLUMNS, _COLUMNS)), 0)
            self.sums.append((before + scaled.T @ scaled, number + len(rows)))
        return self.sums[count - 1]


def rms(matrix: Floats) -> float:
    """Return the root mean square of the entries off the diagonal."""
    return float(np.sqrt((matrix[np.triu_indices(_COLUMNS, 1)] ** 2).mean()))


@dataclass(frozen=True)
class Form:
    """What is released, of rows that count alone or of persons."""

    plan: Tree | Toeplitz
    said: str
    persons: bool = False

    def factor(self, count: int) -> float:
        """Return the deviation of the total of so many periods over that of one release with all of the loss."""
        plan = self.plan
        return (variance_factor(count, plan.levels) if isinstance(plan, Tree) else plan.variance_factor(count)) ** 0.5

    def drawn(self, count: int, *, roots: bool = False) -> dict[Node | int, float]:
        """Return what each draw of noise weighs in a total, in deviations of one release with all of the loss."""
        plan = self.plan
        if isinstance(plan, Toeplitz):
            spread = sum(weight**2 for weight in plan.weights) ** 0.5
            return {night: spread * c for night, c in enumerate(reversed(plan.inverse(count)))}
        share, out = plan.levels**0.5, dict[Node | int, float]()
        for root in total_of(count, plan.levels):
            below = [root] if roots else root.tree()
            divisor = 1 if roots else (2 << root.level) - 1
            out |= {node: share * (1 if roots else 1 << node.level) / divisor for node in below}
        return out

    def over(self, counts: list[int], *, roots: bool = False) -> tuple[float, float]:
        """Return the root mean square over some nights, and the standard error of a measured one, relative.

        Squared errors of a night and another are as dependent as their noise: the mean of all has the variance
        ``2 |B B'|² / (entries nights²)``, where a line of B holds what each draw weighs in the total of a night.
        """
        lines = [self.drawn(count, roots=roots) for count in counts]
        numbers = {draw: column for column, draw in enumerate({draw: None for line in lines for draw in line})}
        matrix = np.zeros((len(lines), len(numbers)))
        for row, line in enumerate(lines):
            matrix[row, [numbers[draw] for draw in line]] = list(line.values())
        covariance = matrix @ matrix.T
        mean = np.trace(covariance) / len(lines)
        deviation = np.sqrt(2 * (covariance**2).sum() / _ENTRIES) / len(lines)
        return float(np.sqrt(mean)), float(deviation / mean / 2)


def forms_for(periods: int) -> dict[str, Form]:
    """Return the forms by name, for so many periods."""
    tree = Form(Tree(levels_for(periods)), f"continual = {periods}\n")
    root = Form(square_root(periods), f'factorisation = "square-root"\ncontinual = {periods}\n')
    band = Form(banded(BAND), 'factorisation = "banded"\n')
    several = {"tree": tree, "square root": root, "banded": band}
    persons = {f"{name}, persons": replace(form, persons=True) for name, form in several.items()}
    return {"single periods": Form(Tree(1), ""), **several, **persons}


def require(condition: bool, otherwise: str) -> None:
    """Stop when something is not as it must be."""
    if not condition:
        raise RuntimeError(otherwise)


def name_of(number: int) -> str:
    """Return the name of a period."""
    return str(date(2025, 1, 1) + timedelta(days=number))


def simulate(folder: Path, periods: int, form: Form, seed: int) -> dict[str, Any]:
    """Simulate so many nights in an empty folder and return what happened.

    RuntimeError tells what was not as it must be.

    Parameters
    ----------
    folder
        Where everything is kept.
    periods, form
        Nights, and what is released.
    seed
        Of the rows and of what goes wrong; the noise has none.
    """
    (folder / "incoming").mkdir(parents=True)
    job = JOB.replace("periods = true", f"periods = true\n{_PERSONS}") if form.persons else JOB
    (folder / "job.toml").write_text(f"{job}{form.said}\n")
    year = Year(folder, np.random.default_rng(seed), form)
    with suppress(KeyboardInterrupt):
        for number in range(periods):
            year.night(number)
            if number % 10 == 0:
                print(form.said.strip(), number, dict(year.happened), list(year.seconds.values())[-1:], flush=True)
    return year.conclude()


@contextmanager
def state() -> Iterator[None]:
    """Keep what this machine has seen of the ledgers in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"DPDIST_STATE_HOME": folder}):
        yield


def main() -> None:
    """Simulate a year in every form; write a table of all as JSON and Markdown, and a plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--periods", type=int, default=365)
    parser.add_argument("--output", type=Path, required=True, help="Without suffix: .json, .md and .png are written.")
    parser.add_argument("--form", action="append", help="One of them only; may be repeated.")
    parser.add_argument("--again", action="store_true", help="Write table and plot again from what is there.")
    chosen = parser.parse_args()
    path = chosen.output.with_suffix(".json")
    found = json.loads(path.read_text()) if path.exists() else {}
    forms = forms_for(chosen.periods)
    for seed, (name, form) in enumerate(forms.items()):
        if chosen.again or name not in (chosen.form or [name]):
            continue
        with state(), tempfile.TemporaryDirectory() as folder:
            found[name] = simulate(Path(folder) / "year", chosen.periods, form, seed)
        path.write_text(json.dumps(found) + "\n")
    chosen.output.with_suffix(".md").write_text(report(found, forms))
    plot(found, forms, chosen.output.with_suffix(".png"))


def report(found: dict[str, Any], forms: dict[str, Form]) -> str:
    """Return the table."""
    lines = [
        "# A year of nights that go wrong",
        "",
        "Root mean square error of an entry of the total off the diagonal (120 entries), over all nights whose total",
        "was published, in standard deviations of one release that has all of the loss. The standard error is exact:",
        "noise of one night is in the totals of those after it. A year of fewer nights was ended early.",
        "",
        "| form | nights | predicted | measured | measured / predicted | standard errors from 1 |",
        "|---" * 6 + "|",
    ]
    for name, year in found.items():
        counts = [int(error["periods"]) for error in year["errors"]]
        for key, what in (("rms", name), ("roots", f"{name}, the roots alone, as before least squares")):
            if key not in year["errors"][0]:
                continue
            measured = float(np.sqrt(np.mean([error[key] ** 2 for error in year["errors"]])))
            predicted, deviation = forms[name].over(counts, roots=key == "roots")
            ratio = measured / predicted
            lines.append(
                f"| {what} | {len(counts)} | {predicted:.2f} | {measured:.2f} | {ratio:.3f} "
                f"| {(ratio - 1) / deviation:+.1f} ({100 * deviation:.1f} %) |"
            )
    lines += ["", "Single nights, measured / predicted:", ""]
    names = list(found)
    lines += [f"| periods | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    by_count = {n: {e["periods"]: e["rms"] for e in found[n]["errors"]} for n in names}
    for count in (1, 7, 30, 64, 100, 182, 256, 300, 365):
        cells = [
            f"{by_count[n][count]:.2f} / {forms[n].factor(count):.2f}" if count in by_count[n] else "" for n in names
        ]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    lines += ["", "Processor seconds of a night in this process, medians of the nights around, on a busy machine:", ""]
    lines += [f"| periods | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for count in (10, 30, 100, 200, 360):
        cells = [_median({int(k): v for k, v in found[n]["seconds"].items()}, count) for n in names]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    for name, year in found.items():
        whose = "person" if forms[name].persons else "row"
        told = (
            f"**{name}**: {year['releases']} releases of {year['periods']} periods, each published once. Budget per "
            f"{whose}: {year['budget']}; what was left for a {whose} to come, every night: {'; '.join(year['left'])}."
        )
        lines += [
            "",
            told,
            "",
            ", ".join(f"{what}: {count}" for what, count in year["happened"].items()) + ".",
        ]
    return "\n".join(lines) + "\n"


def _median(seconds: dict[int, float], count: int) -> str:
    near = [taken for number, taken in seconds.items() if abs(number - count) <= 5]
    return f"{np.median(near):.2f}" if near else ""


def plot(found: dict[str, Any], forms: dict[str, Form], target: Path) -> None:
    """Draw the noise of the total night by night: lines as predicted, dots as measured."""
    figure, axes = plt.subplots(figsize=(9, 5.2), dpi=150)
    for name, (colour, marker) in COLOURS.items():
        key, form = ("roots", "tree") if name == ROOTS else ("rms", name)
        if form not in found:
            continue
        counts = np.arange(1, max(year["periods"] for year in found.values()) + 1)
        roots = key == "roots"
        exact = [sum(w**2 for w in forms[form].drawn(int(n), roots=roots).values()) ** 0.5 for n in counts]
        axes.plot(counts, exact, color=colour, lw=0.9 if form == "tree" else 1.8, ls=":" if roots else "-", zorder=2)
        shown = [error for error in found[form]["errors"] if error["periods"] % 7 == 0]
        axes.plot(
            [error["periods"] for error in shown], [error[key] for error in shown], ls="", marker=marker, ms=4.5,
            color=colour, mec="white", mew=0.5, zorder=3,
        )  # fmt: skip
        axes.annotate(
            name, (counts[-1], exact[-1]), xytext=(8, LIFTED.get(name, 0)), textcoords="offset points", color=colour,
            va="center", fontsize=12, fontweight="bold",
        )  # fmt: skip
    axes.set_xlim(0, 365)
    axes.set_ylim(0, None)
    axes.set_xlabel("periods in the total", fontsize=12)
    axes.set_ylabel("standard deviation of an entry,\nin those of one release with all of the loss", fontsize=12)
    axes.set_title("Noise of the total over a year: predicted (lines), measured (marks)", fontsize=13, loc="left")
    axes.tick_params(labelsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", lw=0.7, zorder=0)
    figure.subplots_adjust(left=0.1, right=0.8, top=0.92, bottom=0.12)
    figure.savefig(target)
    plt.close(figure)


ROOTS = "tree, roots alone"
COLOURS = {
    ROOTS: ("#767676", "v"), "tree": ("#D55E00", "o"), "banded": ("#0072B2", "s"), "square root": ("#117755", "D"),
}  # fmt: skip
"""Of Okabe and Ito, darkened where text in them would be hard to read; the marks tell them apart as well."""
LIFTED: dict[str, float] = {}


if __name__ == "__main__":
    main()
