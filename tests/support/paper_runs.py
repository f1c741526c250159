"""Runs the small version of a paper's workflow on a cluster, and reads what it wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import click

PNG = b"\x89PNG"


def run(workflow: click.Command, scheduler: str, output: Path, *options: str) -> None:
    workflow.main(["--quick", "--scheduler", scheduler, "--output", str(output), *options], standalone_mode=False)


def results(output: Path, name: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return the JSON and the CSV of a workflow, which drew a picture."""
    assert (output / f"{name}.png").read_bytes()[:4] == PNG
    with (output / f"{name}.csv").open(newline="") as lines:
        return json.loads((output / f"{name}.json").read_text()), list(csv.DictReader(lines))
