"""Damage every kind of file that dpdist reads, and see that it says so (``tests/faults/fuzzing.py``).

::

    python -m benchmarks.fuzz --cases 200 --out benchmarks/results/fuzz     # of each kind
    python -m benchmarks.fuzz --kind t.nc --only 17 --keep /tmp/case       # one, to look at

Results: fuzz.json and fuzz.md beside --out.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from faults.fuzzing import KINDS, LARGEST, MEMORY, SECONDS, Tally, fuzz, make, preload

from dpdist.core.runtime import cluster


def main() -> None:
    """Run the cases and write what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="Of each kind.")
    parser.add_argument("--first", type=int, default=0, help="Number of the first case.")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="Only these kinds.")
    parser.add_argument("--only", type=int, help="Only the case of this number.")
    parser.add_argument("--seeds", type=Path, help="A file of cases that failed once: they are run too.")
    parser.add_argument("--keep", type=Path, help="Leave the last case there, to look at.")
    parser.add_argument("--out", type=Path, help="Where results go, without suffix.")
    given = parser.parse_args()
    cluster.CONNECT_SECONDS = 1  # for a scheduler that is not there
    with tempfile.TemporaryDirectory() as name:
        scratch = given.keep or Path(name)
        made = scratch / "made"
        made.mkdir(parents=True)
        os.environ["DPDIST_STATE_HOME"] = str(scratch / "state")  # keys of sessions
        pid = os.fork()  # in a process of its own: what it starts must not be forked along
        if pid == 0:
            make(made)
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("The good files could not be made.")
        preload()
        tallies = {kind: Tally() for kind in given.kind or KINDS}
        numbers = [given.only] if given.only is not None else range(given.first, given.first + given.cases)
        for kind, tally in tallies.items():
            for number in numbers:
                fuzz(kind, number, made, scratch, tally)
        for known in json.loads(given.seeds.read_text()) if given.seeds else ():
            fuzz(known["kind"], known["number"], made, scratch, tallies[known["kind"]])
    report(tallies, given.out)


def report(tallies: dict[str, Tally], out: Path | None) -> None:
    """Print a table, and write it where it was asked for; failures are an exit code of 1."""
    lines = [
        "| damaged | cases | done | usage | refused | unusable data | peak, MiB | longest, s | failures |",
        "|---|" + "---:|" * 8,
    ]
    for kind, tally in tallies.items():
        numbers = [tally.codes.total(), *(tally.codes[code] for code in (0, 2, 3, 4)), tally.peak >> 20]
        told = " | ".join([kind, *map(str, numbers), f"{tally.seconds:.1f}", str(len(tally.failures))])
        lines.append(f"| {told} |")
    whole = sum(tally.codes.total() for tally in tallies.values())
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    peak, longest = (max(values) for values in zip(*((t.peak, t.seconds) for t in tallies.values()), strict=True))
    lines.append(f"\n{whole} cases, {len(failures)} failures, peak {peak >> 20} MiB, longest {longest:.1f} s.")
    print("\n".join(lines))
    if out is not None:
        words = (
            "# Damaged files\n\n`python -m benchmarks.fuzz`: one good file of each kind, damaged anew in every case. A "
            "peak is what a process took beyond what it had when it was forked; it may take "
            f"{MEMORY >> 20} MiB more, {SECONDS} s of processor time and files of {LARGEST >> 20} MiB. HDF5, Zarr and "
            "Parquet are read in a process of their own, under the same limits, whose peak is not in the table.\n\n"
        )
        out.with_suffix(".md").write_text(words + "\n".join(lines) + "\n")
        facts = {
            kind: {"codes": dict(tally.codes), "peak_bytes": tally.peak, "seconds": round(tally.seconds, 2)}
            for kind, tally in tallies.items()
        }
        out.with_suffix(".json").write_text(json.dumps({"kinds": facts, "failures": failures}, indent=1) + "\n")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
