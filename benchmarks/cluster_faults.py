"""What happens to a nightly job when Slurm requeues it or a cable is cut, with the timeouts nobody changed.

Needs root, for network namespaces, and Debian's packages slurm-wlm, munge and iproute2. All of it takes a quarter of an
hour or more, most of which Slurm and Dask spend waiting. Writes ``results/cluster_faults.md``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from faults import cluster_faults, hosts, slurm_site
from faults.cluster_faults import Story


def slurm(folder: Path) -> Story:
    """Kill a job of Slurm at three points, requeue it twice, and submit it again."""
    with slurm_site.running(folder / "slurm", expire=slurm_site.USUAL) as site:
        return cluster_faults.requeued(site, folder / "job", "reading", "drawn", "committed")


SCENES: dict[str, tuple[str, Callable[[Path], Story]]] = {
    "slurm": (
        "A job of Slurm, requeued while it reads rows, requeued after the noise was drawn, cancelled after the commit",
        slurm,
    ),
    "worker": (
        "The machine of a worker that reads rows is cut off",
        lambda folder: cluster_faults.worker_cut(folder, silence=hosts.USUAL),
    ),
    "trusted": (
        "The machine of the trusted node is cut off while workers read rows",
        lambda folder: cluster_faults.driver_cut(folder, silence=hosts.USUAL),
    ),
    "scheduler": (
        "The machine of the scheduler is cut off while workers read rows",
        lambda folder: cluster_faults.scheduler_cut(folder, silence=hosts.USUAL),
    ),
}


def main() -> None:
    """Run the scenes and write what was observed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--scene", action="append", choices=SCENES, help="only this one, shown and not written; repeatable"
    )
    chosen = parser.parse_args().scene
    os.environ["DPDIST_TEST_PACKAGES"] = "all"  # who starts this wants what tests leave out for its length
    dask = version("distributed")
    text = [
        "# A nightly job under faults of machines and schedulers\n\n",
        f"By `benchmarks/cluster_faults.py`, with Dask {dask} and Slurm 22.05 as they come. Every fault was seen to\n",
        "land; every story ends with the ledger verified, one release, and one charge.\n",
    ]
    for name in chosen or SCENES:
        title, scene = SCENES[name]
        print(title, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            lines = "\n".join(scene(Path(folder)).lines)
        text.append(f"\n## {title}\n\n```\n{lines}\n```\n")
    if not chosen:
        (Path(__file__).parent / "results" / "cluster_faults.md").write_text("".join(text))


if __name__ == "__main__":
    main()
