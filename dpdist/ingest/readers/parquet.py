"""Reader of .parquet files, in memory that does not grow with their row groups."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.errors import DataError
from dpdist.ingest.readers.base import (
    AT_ONCE,
    CURE,
    PIECE,
    STORED,
    NoRowsError,
    Places,
    Rows,
    Runs,
    Source,
    Survey,
    attempt,
    changed,
    each,
    matrix,
    no_numbers,
)
from dpdist.ingest.readers.npy import Header
from dpdist.naming import step
from dpdist.storage.atomic import scratch

_ROW_GROUP = 64 << 20  # a larger row group is unpacked, as many columns at a time as the next line says
_COLUMNS = 16
_PAGES = 2 << 20
"""Bytes of the pages of a column that Arrow holds while it reads a row group in pieces."""
_LARGEST = 1 << 30
"""Bytes of a row group that are unpacked at once at most: it is read in pages."""


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


class Parquet(Source):
    """A .parquet file; columns of other things than numbers are allowed where they are not kept."""

    takes = ("schema",)
    fragile = True

    @cached_property
    def _metadata(self) -> Any:
        return attempt(self.path, self._read_metadata)

    @cached_property
    def _schema(self) -> Any:
        return attempt(self.path, self._metadata.schema.to_arrow_schema)

    def _read_metadata(self) -> Any:
        with self.path.open("rb") as file:
            return pq.read_metadata(file)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return attempt(self.path, lambda: tuple(self._schema.names))

    @cached_property
    def unpacked(self) -> int:
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        return min(_LARGEST, max((group.total_byte_size for group in groups), default=0))

    def survey(self, keep: Places) -> Survey:
        if not self._metadata.num_rows:
            raise NoRowsError(f"{self.path} has no rows. Remove it, or add rows.")
        kinds = {self.names[place]: self._schema.types[place] for place in keep}
        if bad := {name: str(kind) for name, kind in kinds.items() if not _is_number(kind)}:
            raise no_numbers(self.path, bad, [name for name in kinds if name not in bad])
        stored = [STORED[np.dtype(kind.to_pandas_dtype()).name] for kind in kinds.values()]
        return Survey(self._metadata.num_rows, np.result_type(*(stored or ["uint8"])))

    def kept_as(self, place: int) -> np.dtype[np.generic] | None:
        return np.dtype(np.float16) if pa.types.is_float16(self._schema.types[place]) else None

    def blocks(self, keep: Places) -> Generator[Rows]:
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        if len(keep) <= _COLUMNS or max(group.total_byte_size for group in groups) <= _ROW_GROUP:
            yield from each(self.path, self._numbers(keep))
            return
        # Arrow holds a page or two of every column it reads, about 2 MiB each: more than the table, if that is wide
        found = self.survey(keep)
        header = Header((found.rows, len(keep)), True, found.dtype, 0, 0)
        size = found.rows * len(keep) * found.dtype.itemsize
        with scratch(self.beside, "unpacked", size) as folder:
            plain = folder / "X"
            with plain.open("wb") as out:
                for first in range(0, len(keep), _COLUMNS):
                    start = 0
                    for block in each(self.path, self._numbers(keep[first : first + _COLUMNS])):
                        for place, column in enumerate(block.T, first):
                            out.seek((place * found.rows + start) * found.dtype.itemsize)
                            out.write(column.astype(found.dtype).data)
                        start += block.shape[0]
            yield from each(self.path, header.blocks(plain, tuple(range(len(keep)))))

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        """Number of the row behind each row group."""
        counts = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]
        return np.cumsum(counts, dtype=np.int64)

    def runs(self, keep: Places) -> Runs | None:
        return self.cuts(keep, len(keep) * self.survey(keep).dtype.itemsize)

    def cuts(self, keep: Places, row_bytes: int) -> Runs | None:
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        largest = max(group.total_byte_size for group in groups)
        memory = min(largest, _PAGES * len(keep))  # a row group as a whole, or in pages
        if memory > AT_ONCE:
            raise DataError(
                f"{self.path} has a row group of {largest >> 20} MiB, and reading pieces of {len(keep)} columns of it "
                f"takes {memory >> 20} MiB at once, more than the {AT_ONCE >> 20} MiB that rows in place may take. "
                f"Write it with row groups of at most {AT_ONCE >> 20} MiB, or copy its rows with "
                f"{step('ingest')}."
            )
        ends = np.unique(self._ends)
        rows = max(1, PIECE // max(1, row_bytes))  # small row groups go together
        ends = ends[np.append(ends[:-1] // rows != ends[1:] // rows, True)]
        return Runs(ends[ends > 0], 2 * memory + 2 * PIECE)

    def part(self, keep: Places, start: int, stop: int) -> Generator[Rows]:
        return each(self.path, self._numbers(keep, self._groups(start, stop), start))

    def _groups(self, start: int, stop: int) -> list[int]:
        begins = np.append(0, self._ends[:-1])
        groups: list[int] = np.flatnonzero((begins >= start) & (self._ends <= stop) & (begins < self._ends)).tolist()
        return groups

    @property
    def kinds(self) -> tuple[Any, ...]:
        return tuple(self._schema.types)

    @property
    def counted(self) -> int:
        return int(self._metadata.num_rows)

    def cells(self, keep: Places, part: tuple[int, int] | None = None) -> Generator[Any]:
        fields = [self.names[place] for place in keep]  # in this order, which Arrow does not promise
        found = self._batches(keep, None if part is None else self._groups(*part))
        return each(self.path, (batch.select(fields) for batch in found))

    def _numbers(self, keep: Places, groups: list[int] | None = None, start: int = 0) -> Iterator[Rows]:
        dtype = self.survey(keep).dtype
        fields = [self.names[place] for place in keep]
        for batch in self._batches(keep, groups):
            for field in fields:
                column = batch.column(field)
                if column.null_count:
                    row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                    where = f"{self.path}, row {row} (counting from 0), column {field!r}"
                    raise DataError(f"{where}: the value is missing, and no schema says what becomes of it. {CURE}")
            yield matrix(batch, fields, dtype)
            start += batch.num_rows

    def _batches(self, keep: Places, groups: list[int] | None = None) -> Iterator[Any]:
        fields = [self.names[place] for place in keep]
        most = max(1, PIECE // (16 * max(1, len(keep))))  # eight bytes as decoded, and as much again on the way
        # small buffers, no pre-buffering: else whole columns of a row group are in memory as they lie in the file;
        # no threads: they are hardly faster, and each keeps memory of its own
        with self.path.open("rb") as raw, pq.ParquetFile(raw, buffer_size=1 << 14, pre_buffer=False) as file:
            if file.metadata.num_rows != self._metadata.num_rows:
                raise changed(self.path)
            yield from file.iter_batches(most, row_groups=groups, columns=fields, use_threads=False)
