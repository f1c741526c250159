"""Let a process of a release stop at a point, as long as the tests want, and change nothing else.

With this folder in PYTHONPATH, every ``dpdist`` command, and every Dask worker that takes this file as its preload,
looks at DPDIST_TEST_LINGER, a list ``POINT=MARKER,POINT=MARKER``. Who comes first to a point makes MARKER, a link that
names its network namespace and proves that the point was reached, and stays there until ``MARKER.go`` exists; who
comes later goes on.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE = 1800.0


def linger(marker: Path) -> None:
    try:
        marker.symlink_to(Path("/proc/self/ns/net").readlink())
    except FileExistsError:
        return
    deadline = time.monotonic() + PATIENCE
    while not marker.with_name(f"{marker.name}.go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def patch(owner: Any, name: str, marker: Path, *, after: bool) -> None:
    """Linger before or after every call of a function."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        if not after:
            linger(marker)
        result = original(*arguments, **options)
        if after:
            linger(marker)
        return result

    setattr(owner, name, wrapper)


def dask_setup(*_: Any) -> None:
    """Arm the points that are asked for; Dask calls this in a worker that starts."""
    from dpdist.core.ledger.ledger import Ledger
    from dpdist.core.release import trusted
    from dpdist.core.rows.chunks import ChunkReader

    places = {
        "reading": functools.partial(patch, ChunkReader, "read", after=False),
        "drawn": functools.partial(patch, trusted, "_drawn", after=True),
        "committed": functools.partial(patch, Ledger, "commit", after=True),
    }
    for armed in filter(None, os.environ.get("DPDIST_TEST_LINGER", "").split(",")):
        point, marker = armed.split("=", 1)
        places[point](marker=Path(marker))


if Path(next(iter(sys.orig_argv[1:]), "")).name == "dpdist":
    dask_setup()
