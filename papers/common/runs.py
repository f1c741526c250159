"""Experiments as cells that run anywhere, are stored as they end, and are not run again.

A cell is a flat JSON object: everything its result depends on besides the settings of the experiment. The store is a
file of lines, one finished cell each, flushed to the disk before the next is written. A run that was killed loses what
was still being computed; the same command skips what is stored. A line that was cut short is dropped. The first line
holds the settings (data, their seeds and fingerprints): a store made under others is refused, not mixed.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import DataError, UsageError
from dpdist.core.errors import BelowNoiseError
from dpdist.core.runtime.local import Executor
from dpdist.core.storage.atomic import replace_file

Json = dict[str, Any]
Function = Callable[[Json, Any], Json]


@dataclass
class Store:
    """The finished cells of one experiment; made by :func:`opened`."""

    handle: io.FileIO
    finished: dict[str, Json] = field(default_factory=dict)

    def add(self, cell: Json, result: Json) -> None:
        """Keep a result for good."""
        self._write({"cell": cell, "result": result})
        self.finished[_key(cell)] = result

    def _write(self, line: Json) -> None:
        self.handle.write(json.dumps(line).encode() + b"\n")
        os.fsync(self.handle.fileno())


def _key(cell: Json) -> str:
    return json.dumps(cell, sort_keys=True)


@contextmanager
def opened(path: Path, settings: Json) -> Iterator[Store]:
    """Open a store, or begin one, and hold it against every other process.

    Raises
    ------
    DataError
        If it belongs to other settings, is held by another process, or cannot be read or written.
    """
    try:
        handle = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+")
    except OSError as error:
        raise DataError(f"The results {path} cannot be written: {error.strerror} (--output).") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"Another process is adding to {path}. Wait for it, or choose another --output.") from None
        content = handle.readall()
        whole = content[: content.rfind(b"\n") + 1]
        handle.seek(len(whole))
        handle.truncate()
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            store = Store(handle, {_key(line["cell"]): line["result"] for line in lines[1:]})
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{path} holds something else than results. Remove it, or choose another --output."
            ) from None
        if not lines:
            store._write({"settings": settings})  # noqa: SLF001 - its own module
        elif lines[0] != {"settings": json.loads(json.dumps(settings))}:
            raise DataError(f"{path} was made from other data or settings. Remove it, or choose another --output.")
        yield store


def _attempted(function: Function, cell: Json, shared: Any) -> Json:
    """Run one cell on a worker; a mechanism that cannot be used there says why in its result."""
    try:
        return function(cell, shared)
    except (UsageError, BelowNoiseError) as error:
        return {"refused": str(error)}


def run(
    found: Executor,
    store: Store,
    function: Function,
    cells: Sequence[Json],
    *,
    shared: Any = None,
    label: str = "Cells",
) -> list[Json]:
    """Run the cells that are not stored yet and return all of them, each with its result, in the order asked for.

    Parameters
    ----------
    found
        The cluster.
    store
        Where results are kept.
    function
        Takes a cell and what is shared; returns its result as JSON values. Dask may run it twice.
    cells
        What to run.
    shared
        Public data that all cells need; sent once.
    label
        Names the progress bar.
    """
    todo = [cell for cell in cells if _key(cell) not in store.finished]
    if todo:
        for index, result in found.results(partial(_attempted, function), todo, shared, label):
            store.add(todo[index], result)
    return [cell | store.finished[_key(cell)] for cell in cells]


def averaged(rows: Sequence[Json], by: Sequence[str], value: str) -> list[Json]:
    """Return mean and standard deviation of a value over rows that agree in the names ``by``, refusals left out."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if value in row:
            groups.setdefault(tuple(row[name] for name in by), []).append(row[value])
    return [
        dict(zip(by, key, strict=True))
        | {"mean": float(np.mean(found)), "standard_deviation": float(np.std(found)), "runs": len(found)}
        for key, found in groups.items()
    ]


def write(stem: Path, rows: Sequence[Json], facts: Json | Sequence[Json]) -> None:
    """Write the rows as CSV, a column for each name in the order of first occurrence, and the facts as JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(stem.with_name(f"{stem.name}.csv"), text.getvalue().encode(), "results")
    replace_file(stem.with_name(f"{stem.name}.json"), (json.dumps(facts, indent=1) + "\n").encode(), "results")
