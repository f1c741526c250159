"""Public tables for other tools: .csv and .parquet files.

Numbers are written with all digits. CSV has no metadata, so a table from a release that is not private as claimed has a
column ``status``; Parquet has it in its metadata too.

Column names come from the author of the data, and a spreadsheet evaluates a cell that begins with ``=``, ``+``, ``-``
or ``@`` as a formula. So in CSV an apostrophe precedes such a name, as OWASP advises.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from dpdist.core.errors import UsageError
from dpdist.core.release.artefact import Release
from dpdist.core.storage.store import AnyStore, replace_own, store_at

KINDS = (".csv", ".parquet")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def kind_of(out: AnyStore, kinds: Sequence[str]) -> str:
    """Return the suffix of a file, one of ``kinds``."""
    name = str(store_at(out)).rpartition("/")[2]
    kind = next((suffix for suffix in kinds if name.endswith(suffix)), None)
    if kind is None:
        suffixes = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
        raise UsageError(f"The name {name} must end in {suffixes}.")
    return kind


def in_csv(name: str) -> str:
    """Escape a name that a spreadsheet would evaluate as a formula."""
    return f"'{name}" if name.startswith(_FORMULA) else name


def csv_of(names: Sequence[str], rows: Sequence[Sequence[object]]) -> bytes:
    """Return a CSV file: numbers with all digits, None as an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([in_csv(name) for name in names])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _cell(value: object) -> str:
    if value is None:
        return ""
    return in_csv(value) if isinstance(value, str) else repr(value)


def parquet_of(columns: Mapping[str, Sequence[object]], release: Release) -> bytes:
    """Return a Parquet file, with the release id in its metadata."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import
    from pyarrow import parquet  # noqa: PLC0415

    metadata = {"dpdist.status": release.status, "dpdist.release_id": release.release_id}
    buffer = io.BytesIO()
    parquet.write_table(pa.table(dict(columns)).replace_schema_metadata(metadata), buffer)
    return buffer.getvalue()


def write_table(out: AnyStore, columns: Mapping[str, Sequence[object]], release: Release, noun: str) -> None:
    """Write a .csv or .parquet file, replacing an earlier one of the same table."""
    kind, store = kind_of(out, KINDS), store_at(out)
    if not release.private_as_claimed:
        columns = {**columns, "status": [release.status] * len(next(iter(columns.values())))}
    rows = list(zip(*columns.values(), strict=True))
    content = csv_of(list(columns), rows) if kind == ".csv" else parquet_of(columns, release)
    head = content.partition(b"\n")[0]

    def own(previous: bytes) -> bool:
        return b"dpdist.release_id" in previous if kind == ".parquet" else previous.startswith(head)

    replace_own(store, content, noun, private=not release.private_as_claimed, own=own)
