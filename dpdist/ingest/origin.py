"""What a table was ingested from: names, sizes and times of the files, and what was chosen, kept beside its rows.

Of a table that Python code held it is the name by which Dask knows its graph. By that the same ``dpdist ingest`` again
is known, and leaves the rows alone, without reading anything a second time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from dpdist.errors import DataError
from dpdist.ingest.collection import Collection
from dpdist.ingest.readers.base import Choices, Keys, attempt
from dpdist.ingest.sources import SourceLocation, files_of, located
from dpdist.rows.schema import Schema
from dpdist.rows.units import Unit
from dpdist.storage.arrays import attributes_of
from dpdist.storage.store import Store


def origin_of(
    source: SourceLocation, *, columns: Sequence[str] | None, compress: bool, unit: Unit | None, choices: Choices
) -> dict[str, object]:
    """Return what a table is ingested from, as JSON values."""
    return {
        "files": [state for place, keys in located(source) for state in attempt(place, partial(_states, place, keys))],
        "columns": None if columns is None else list(columns),
        "compress": compress,
        "unit": None if unit is None else unit.to_json(),
        "choices": choices.to_json(),
    }


def digest_of(values: object) -> str:
    """Return SHA-256 of JSON values, hexadecimal."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _states(place: SourceLocation, keys: Keys) -> list[list[object]]:
    said: list[object] = [list(key) for key in keys]
    if not isinstance(place, Path):
        return [[*said, str(place), place.version()]]
    stats = [(path.name, path.stat()) for path in files_of(place)]
    return [[*said, name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def collection_origin(
    found: Collection, *, columns: Sequence[str] | None, compress: bool, schema: Schema | None = None
) -> dict[str, object]:
    """Return what a table that Python code held is ingested from, as JSON values."""
    said: dict[str, object] = {
        "collection": [found.kind, found.token],
        "columns": None if columns is None else list(columns),
        "compress": compress,
    }
    return said if schema is None else {**said, "schema": schema.to_json()}


def require_same_origin(rows: Store, origin: Mapping[str, object]) -> None:
    """Refuse to take what stands at a place for the table that would be ingested."""
    found = attributes_of(rows)
    if found is not None and found.get("origin") == origin:
        return
    if found is None:
        raise DataError(f"{rows} exists already, and was not made by dpdist. Choose another place for the rows.")
    if "collection" in origin:
        raise DataError(
            f"{rows} exists already, and was not ingested from this collection with these options, as far as Dask can "
            "tell: a graph that it cannot compare has another name each time that it is made. Open the rows that are "
            "there with dpdist.open_rows, or choose another place."
        )
    raise DataError(
        f"{rows} exists already, and was not ingested from these files, as they are now, with these options. "
        "Choose another place for the rows."
    )
