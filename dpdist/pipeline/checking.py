"""Reading all chunks of a table to find the damaged ones: a thread for each core, and no more memory than for few."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from dpdist._util.cores import available_cores, threaded
from dpdist._util.progress import Count, Progress
from dpdist.errors import DataError
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.table import Table

_PIECE_BYTES = 512 << 10
"""Rows that are read and checked at once: half of a core's second-level cache."""
_BUFFERS = 512 << 20
"""Bytes of the buffers of all threads, at most, unless one thread needs more."""


def damaged_chunks(
    table: Table, chunks: Sequence[int], progress: Progress | None, known: dict[int, str]
) -> tuple[str, ...]:
    """Read chunks and return what is wrong, in their order."""
    piece = max(1, _PIECE_BYTES // (8 * table.columns))
    own = threading.local()  # a reader has buffers

    def check(index: int) -> str | None:
        if index in known:
            return known[index]
        if not hasattr(own, "reader"):
            own.reader = ChunkReader(table, piece)
        try:
            for _ in own.reader.read(index):
                pass
        except DataError as error:
            return str(error)
        return None

    return found_wrong(check, chunks, table.buffer_bytes(piece), progress)


def found_wrong(
    check: Callable[[int], str | None], chunks: Sequence[int], buffer_bytes: int, progress: Progress | None
) -> tuple[str, ...]:
    """Check chunks on all cores, and return what is said of them, in their order."""
    count = Count(progress, "Checking chunks", len(chunks))
    wrong = []
    with threaded(max(1, min(available_cores(), _BUFFERS // max(1, buffer_bytes)))) as each:
        for sentence in each(check, chunks):
            if sentence is not None:
                wrong.append(sentence)
            count.one()
    return tuple(wrong)
