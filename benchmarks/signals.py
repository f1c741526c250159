"""SIGINT and SIGTERM at ten moments of `ingest`, `release`, `project` and `run` (``tests/faults/signals.py``).

::

    python -m benchmarks.signals --output benchmarks/results/signals

The rows are made up.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from faults.signals import STRUCK, Ended, again_and_again, requeued, supplied

MOMENTS = 10


def table(ended: Sequence[Ended]) -> list[str]:
    """Return a record in Markdown."""
    lines = ["| command | signal | after s | exit | ends in s | ledger | says |", "|---|---|---|---|---|---|---|"]
    for one in ended:
        said = next((line for line in one.words.splitlines() if line.startswith("dpdist: ")), "")
        said = "(it was done)" if one.finished else said
        lines.append(
            f"| {one.command} | {one.sent} | {one.moment:.2f} | {one.code} | {one.seconds:.2f} | {one.state} | {said} |"
        )
    return lines


def main() -> None:
    """Strike, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--moments", type=int, default=MOMENTS)
    chosen = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:  # by nohup or a shell; the commands would inherit it
            signal.signal(number, signal.default_int_handler)
    signals = [(signal.SIGINT, True), (signal.SIGTERM, False)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        of = supplied(folder / "undisturbed", chosen.rows)
        times = {command: of.done(command) for command in ("ingest", "release", "pca", "project")}
        times["run"] = sum(times.values())
        ended: list[Ended] = []
        ends: dict[str, bool] = {}
        for command in STRUCK:
            moments = [times[command] * share / chosen.moments for share in range(chosen.moments)]
            for number, everybody in signals:
                where = folder / f"{command}-{number.name}-{everybody}"
                found, well = again_and_again(where, of, command, number, moments, everybody=everybody)
                ended += found
                ends[f"{command}, {found[0].sent}"] = well
                print(
                    f"{command}, {found[0].sent}: {[one.faults for one in found]}, came to its end: {well}", flush=True
                )
        moments = [times["run"] * share for share in (0.15, 0.35, 0.5)]
        struck, codes, well = requeued(folder / "requeued", of, moments)
        wrong = [one for one in ended if one.faults]
        words = (
            f"{len(ended)} signals: {len(wrong)} not answered as promised, {sum(one.finished for one in ended)} came "
            f"when all was done. The longest end took {max(one.seconds for one in ended):.1f} s. "
            f"{sum(ends.values())} of {len(ends)} series came to their end by the same command, charged once. A batch "
            f"script of ingest, release, pca and project, struck {struck} times by SIGTERM to all its processes and "
            f"requeued, ended with {codes}: {'one release, and run again it changed nothing' if well else 'WRONG'}."
        )
    value = {
        "undisturbed_seconds": times, "came_to_their_end": ends, "requeued": {"codes": codes, "well": well},
        "ended": [{**asdict(one), "faults": one.faults} for one in ended],
    }  # fmt: skip
    chosen.output.with_suffix(".json").write_text(json.dumps(value, indent=1) + "\n")
    chosen.output.with_suffix(".md").write_text("\n".join([words, "", *table(ended)]) + "\n")
    print(words)
    if wrong or not all(ends.values()) or not well:
        sys.exit(1)


if __name__ == "__main__":
    main()
