"""Tables of what is public, for other tools: .csv and .parquet files.

Numbers are written so that they are read back to the bit. A CSV file has no place for a mark, so a table of what is not
private as claimed has a column ``status`` that says so in every row; a Parquet file says it in its metadata too.

A spreadsheet takes a cell that begins with ``=``, ``+``, ``-`` or ``@`` for a formula, and names of columns come from
whoever made the files. So in a CSV file such a name has an apostrophe before it, as OWASP advises; Parquet has it as it
is.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from dpdist.errors import UsageError
from dpdist.release.artefact import Release
from dpdist.storage.store import AnyStore, replace_own, store_at

KINDS = (".csv", ".parquet")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def kind_of(out: AnyStore, kinds: Sequence[str]) -> str:
    """Return how a file ends."""
    name = str(store_at(out)).rpartition("/")[2]
    kind = next((suffix for suffix in kinds if name.endswith(suffix)), None)
    if kind is None:
        suffixes = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
        raise UsageError(f"A file that ends in {suffixes} is written, and {name} does not.")
    return kind


def in_csv(name: str) -> str:
    """Return a name as it stands in a CSV file.

    Examples
    --------
    >>> in_csv("=HYPERLINK(1)"), in_csv("mass")
    ("'=HYPERLINK(1)", 'mass')
    """
    return f"'{name}" if name.startswith(_FORMULA) else name


def csv_of(names: Sequence[str], rows: Sequence[Sequence[object]]) -> bytes:
    """Return a CSV file: names of columns as text, numbers to the bit, None as nothing."""
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
    """Return a Parquet file, which says of what release it is."""
    import pyarrow as pa  # noqa: PLC0415 - it takes its time, and other kinds do without
    from pyarrow import parquet  # noqa: PLC0415

    metadata = {"dpdist.status": release.status, "dpdist.release_id": release.release_id}
    buffer = io.BytesIO()
    parquet.write_table(pa.table(dict(columns)).replace_schema_metadata(metadata), buffer)
    return buffer.getvalue()


def write_table(out: AnyStore, columns: Mapping[str, Sequence[object]], release: Release, noun: str) -> None:
    """Write a .csv or .parquet file about a release; such a file that is there is replaced."""
    kind, store = kind_of(out, KINDS), store_at(out)
    if not release.private_as_claimed:
        columns = {**columns, "status": [release.status] * len(next(iter(columns.values())))}
    rows = list(zip(*columns.values(), strict=True))
    content = csv_of(list(columns), rows) if kind == ".csv" else parquet_of(columns, release)
    head = content.partition(b"\n")[0]

    def own(previous: bytes) -> bool:
        return b"dpdist.release_id" in previous if kind == ".parquet" else previous.startswith(head)

    replace_own(store, content, noun, private=not release.private_as_claimed, own=own)
