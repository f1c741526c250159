"""Releases whose workers are lost, come or are too many: one release, one charge, and always the same sum.

Of rows in a folder and of rows in an S3 server on this machine. Each release has a scheduler and workers of its own, a
process each, and an id of its own; after each the same call is made again. Workers sleep a little in every unit: there
is time for something to happen, also while others use the machine. Seconds are therefore no measurement::

    python -m workflows.lost_workers --output workflows/results/lost_workers
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import boto3
import numpy as np
import numpy.typing as npt
from moto.server import ThreadedMotoServer

import dpdist
from dpdist.ledger.ledger import Ledger
from dpdist.moment import layout
from dpdist.moment.total import complete
from dpdist.release import trusted
from dpdist.rows import dataset
from dpdist.runtime.sums import OnDask
from workflows.passes import Event, Told, cluster, happening, join, kill, replace

CHUNKS, CHUNK_ROWS, COLUMNS = 100, 200, 200
UNITS = 100
SLEEPING = """
import time
from dpdist.moment import keys
if not hasattr(keys, "dpdist_slept"):  # Dask runs this twice
    keys.dpdist_slept = original = keys.partition_moment
    def partition_moment(task):
        time.sleep(0.5)
        return original(task)
    keys.partition_moment = partition_moment
"""
"""A worker looks the function up by its name, and finds this one."""
BUDGET = dpdist.PrivacyLoss.parse(100, "1e-6")


def nothing(*_: Any) -> bool:
    """Let nothing happen."""
    return True


EVENTS: dict[str, tuple[int, float, Callable[[Callable[[], None]], Event]]] = {
    "nothing": (4, 0.1, lambda _: nothing),
    "one of 4 killed at 10 %": (4, 0.1, lambda _: kill),
    "one of 4 killed at 50 %": (4, 0.5, lambda _: kill),
    "one of 4 killed at 90 %": (4, 0.9, lambda _: kill),
    "7 workers join 1": (1, 0.05, lambda one_more: partial(join, one_more)),
    "each of 4 replaced": (4, 0.1, lambda one_more: partial(replace, one_more, set())),
    "24 workers on all cores": (24, 0.5, lambda _: kill),
}
"""Workers at first, the share of units after which it happens, and what."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 server with a bucket, told to all processes by their environment; give the bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "me", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }  # fmt: skip
    boto3.client("s3").create_bucket(Bucket="bucket")
    try:
        yield "s3://bucket"
    finally:
        server.stop()


def released(engine: OnDask, rows: str, target: str, ledger: Path, name: str, told: Told) -> npt.NDArray[np.int64]:
    """Publish a release; return the exact sum, as the trusted node, which is this process, was given it."""
    sums: list[npt.NDArray[np.int64]] = []
    finalise = trusted.finalise

    def seen(transaction: Any, total: Any = None, **more: Any) -> None:
        sums.append(complete(transaction.table, total).values.copy())
        finalise(transaction, total, **more)

    loss = dpdist.PrivacyLoss.parse(1, "1e-9")
    request = dpdist.ReleaseRequest("gaussian", loss, clip_norm=5.0 * COLUMNS, name=name)
    trusted.finalise = seen  # type: ignore[assignment]
    try:
        where = dpdist.Cluster(client=engine._client, progress=told)  # noqa: SLF001
        assert dpdist.release_rows(rows, target, request, ledger=ledger, cluster=where).fresh  # noqa: S101
        assert not dpdist.release_rows(rows, target, request, ledger=ledger, cluster=where).fresh  # noqa: S101
    finally:
        trusted.finalise = finalise
    (total,) = sums
    return total


def played(folder: Path, place: str, kind: str, only: str) -> Iterator[dict[str, Any]]:
    """Play all events on rows at a place; yield what became of each."""
    source = folder / f"{kind}.npy"
    values = np.random.default_rng(0).integers(0, 255, (CHUNKS * CHUNK_ROWS, COLUMNS), dtype=np.uint8)
    np.save(source, values)
    rows, ledger = f"{place}/rows.zarr", folder / f"{kind}.ledger"
    dpdist.ingest_rows(source, rows, budget=BUDGET, ledger=ledger)
    for number, (name, (workers, share, event_of)) in enumerate(EVENTS.items()):
        if only not in name:
            continue
        before, target = len(Ledger(ledger).records), f"{place}/release-{number}.zarr"
        with cluster(folder / f"{kind}-{number}", workers, SLEEPING) as (engine, one_more):
            run = partial(released, engine, rows, target, ledger, f"r{number}")
            told = happening(engine._client, UNITS, share, event_of(one_more), run)  # noqa: SLF001
        dpdist.open_release(target)
        records = Ledger(ledger).records
        told |= {
            "releases": len(records) - before,
            "state": str(records[-1].state),
            "balance": Ledger(ledger).balance().charged,
        }
        yield {"store": kind, "event": name, **told}


def main() -> None:
    """Write NAME.json and NAME.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Play only events with this in their name.")
    parser.add_argument("--output", required=True)
    chosen = parser.parse_args()
    dataset._TARGET_CHUNK = CHUNK_ROWS * COLUMNS  # noqa: SLF001 - chunks of this length
    layout.unit_count = lambda *_, **__: UNITS  # type: ignore[attr-defined]
    found: list[dict[str, Any]] = []
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        os.environ["DPDIST_STATE_HOME"] = str(folder / "state")
        (folder / "places").mkdir()
        for kind, place in (("folder", str(folder / "places")), ("S3", stack.enter_context(s3_server()))):
            for each in played(folder, place, kind, chosen.only):
                found.append(each)
                print(each, flush=True)
                Path(f"{chosen.output}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                Path(f"{chosen.output}.md").write_text(table(found), encoding="utf-8")


def table(found: list[dict[str, Any]]) -> str:
    """Return the summary in Markdown."""
    lines = [
        f"{len({each['fingerprint'] for each in found})} different sums in {len(found)} releases.",
        "",
        "| rows in | event | happened | units summed twice | releases | charges so far |",
        "|---|---|---|---|---|---|",
    ]
    for each in found:
        cells = (
            each["store"], each["event"], "yes" if each["happened"] else "NO",
            f"{100 * each['share_summed_twice']:.0f} %", each["releases"], each["balance"],
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
