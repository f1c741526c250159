"""Runs the small version of a paper's workflow on a cluster, and reads what it wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

PNG = b"\x89PNG"


def run(workflow: Any, scheduler: str, output: Path, *options: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return the JSON and the CSV of a workflow, which draws a picture."""
    arguments = ["--quick", "--scheduler", scheduler, "--output", str(output), *options]
    workflow.main.main(arguments, standalone_mode=False)
    assert (output / f"{workflow.NAME}.png").read_bytes()[:4] == PNG
    with (output / f"{workflow.NAME}.csv").open(newline="") as lines:
        return json.loads((output / f"{workflow.NAME}.json").read_text()), list(csv.DictReader(lines))
