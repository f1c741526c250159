"""How often each sentence holds that a tutorial, or the README's first commands, lead a reader to.

    python -m benchmarks.claims benchmarks/results/claims.json

Both are typed 50 times, each time in a new folder: the commands of ``docs/tutorials/csv.md`` about its own table, and
those of the README's five minutes about a table of 12 skewed columns with one factor, where the clip norm is the one
that ``bound`` prints. What is said is compared with the exact values of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from click.testing import CliRunner
from pyarrow import csv

from dpdist.answers.model import open_model
from dpdist.cli import cli
from dpdist.core.release.opening import open_release

ROOT = Path(__file__).parents[1]
REPEATS = 50
Floats = npt.NDArray[np.float64]


def blocks(page: Path, kind: str) -> list[str]:
    """Return the blocks of a page that are of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def typed(line: str) -> str:
    """Type a command, and return what it says on standard output."""
    found = CliRunner().invoke(cli, shlex.split(line)[1:])
    if found.exit_code not in {0, 4}:
        raise SystemExit(f"{line}: {found.output}{found.exception}")
    return found.stdout


def told(line: str) -> dict[str, Any]:
    """Type a command with --json."""
    said: dict[str, Any] = json.loads(typed(f"{line} --json"))
    return said


def clipped(release: str, rows: str) -> tuple[Floats, float]:
    """Return the rows as a release clips them, in its units, and the share of those that are longer."""
    bound = open_release(release).bound
    values = np.asarray(zarr.open_array(rows, mode="r")[...], dtype=np.float64)
    shifted = np.empty_like(values)
    bound.shifted(values, shifted)
    norms = np.linalg.norm(shifted, axis=1)
    kept = np.minimum(1, bound.shortened_norm / np.maximum(norms, 1e-300))
    return shifted * kept[:, None], float((norms > bound.shortened_norm).mean())


def inside(ends: list[float], value: float) -> bool:
    """Say whether a value lies between two ends."""
    return ends[0] - 1e-9 <= value <= ends[1] + 1e-9


def components_hold(model: dict[str, Any], vectors: Floats, exact: Floats) -> Iterator[tuple[str, bool]]:
    """Yield what is said of components, and whether it holds of the exact matrix."""
    basis = np.linalg.eigh(exact)[1][:, ::-1]
    overlap = (vectors @ basis) ** 2
    groups = [range(first - 1, last) for first, last in model["groups"] if last <= len(vectors)]
    for group in groups:
        part = slice(group.start, group.stop)
        cosine = float(overlap[part, part].sum()) / len(group)
        yield "a component that is counted is there (squared cosine of half or more)", cosine >= 0.5
        yield "its squared cosine is in its interval", inside(model["squared_cosine_intervals"][group.start], cosine)


def tutorial() -> Iterator[tuple[str, bool]]:
    """Type the commands of the tutorial, and yield its sentences."""
    page = ROOT / "docs" / "tutorials" / "csv.md"
    exec(compile(blocks(page, "python")[0], str(page), "exec"), {})  # noqa: S102 - its own first step
    Path("schema.toml").write_text(blocks(page, "toml")[0])
    for line in (line for block in blocks(page, "sh") for line in block.splitlines() if "ledger show" not in line):
        typed(line)
    found = told("dpdist regress release.zarr --target income --on age,minutes")
    age, minutes = (found["coefficients"][name] for name in ("age", "minutes"))
    yield "25 for each year is within the interval", inside([age["low"], age["high"]], 25)
    yield "that of the minutes holds 0", inside([minutes["low"], minutes["high"]], 0)
    table = csv.read_csv("customers.csv")
    x = np.column_stack([table[name].to_numpy() for name in ("age", "minutes")]).astype(float)
    y = table["income"].to_numpy().astype(float)
    exact = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)[0]
    yield "the slope of the table as it is is within the interval", inside([age["low"], age["high"]], exact[0])
    r2 = 1 - np.var(y - x @ exact[:2]) / np.var(y)
    yield "so is R²", inside([found["r2"]["low"], found["r2"]["high"]], r2)
    model = told("dpdist pca release.zarr other.zarr --components 3 --no-correlation")
    rows, longer = clipped("release.zarr", "customers.zarr")
    yield "no row is clipped", longer == 0 and model["shortened"]["longer_at_most"] == 0
    yield from components_hold(model, open_model("other.zarr").components.components, np.cov(rows.T))


def five_minutes(seed: int) -> Iterator[tuple[str, bool]]:
    """Type the README's first commands about another table, and yield what they say."""
    random = np.random.default_rng(seed)
    factor = random.normal(size=(20_000, 1))
    rows = np.exp(0.6 * factor + 0.5 * random.normal(size=(20_000, 12))) * np.linspace(1, 3, 12)
    names = ",".join(f"c{i}" for i in range(12))
    np.savetxt("table.csv", rows, delimiter=",", header=names, comments="", fmt="%.4f")
    block = blocks(ROOT / "docs" / "howto" / "steps.md", "sh")
    lines = next(each for each in block if each.startswith("dpdist ingest table.csv")).splitlines()
    clip = "100"
    for line in lines:
        if line.startswith("dpdist bound"):
            clip = str(told(line)["clip"])
        elif line.startswith("dpdist release"):
            typed(line.replace("--clip 100", f"--clip {clip}"))
        else:
            typed(line)
    model = told("dpdist pca release.zarr other.zarr --components 10 --no-correlation")
    kept, longer = clipped("release.zarr", "rows.zarr")
    lengths = model["shortened"]
    known = lengths["mean_squared_norm_share"] is not None
    yield (
        "no more rows are clipped than is said",
        known and longer <= lengths["mean_squared_norm_share"] + lengths["error"],
    )
    yield from components_hold(
        model, open_model("other.zarr").components.components, np.cov(kept.T)
    )  # of a release with a mean


def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out.absolute()
    found: dict[str, dict[str, list[int]]] = {"the CSV tutorial": {}, "the README's five minutes": {}}
    for number in range(REPEATS):
        for page, held in found.items():
            with tempfile.TemporaryDirectory() as folder:
                os.environ["DPDIST_STATE_HOME"] = f"{folder}/state"
                os.chdir(folder)
                for sentence, holds in tutorial() if "CSV" in page else five_minutes(number):
                    counts = held.setdefault(sentence, [0, 0])
                    counts[0] += bool(holds)
                    counts[1] += 1
                os.chdir(ROOT)
    out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    lines = ["# How often each sentence holds", "", f"`benchmarks/claims.py` says what is what; {REPEATS} repeats.", ""]
    lines += ["| page | sentence | holds | of |", "| --- | --- | --- | --- |"]
    lines += [f"| {page} | {s} | {c[0]} | {c[1]} |" for page, held in found.items() for s, c in held.items()]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
