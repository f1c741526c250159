"""The list of chunks of registered rows: a million are opened in seconds, and stored lists stay readable."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.folders import STORED, unpack
from support.parts import added, integers_of, parts_of

from dpdist.core.ingest.registered import FORMAT, RegisteredAttributes, RegisterRequest, head_of, open_rows
from dpdist.core.moment.total import complete, partition_moment
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.manifest import RECORD, SourceEntry, part_key, part_lengths, write_index, write_sources
from dpdist.core.storage.arrays import ROOT
from dpdist.core.storage.store import store_at


def manifest_of(place: Path, lengths: np.ndarray, tasks: int) -> RowsTable:
    """Write the manifest of a table with chunks of given lengths, without the chunks."""
    place.mkdir()
    store, chunks, parts = store_at(place), len(lengths), []
    starts = np.cumsum(lengths) - lengths
    for number, run in enumerate(part_lengths(chunks, tasks)):
        part = np.zeros(len(run), dtype=RECORD)
        part["rows"], part["first"] = lengths[run.start : run.stop], starts[run.start : run.stop]
        parts.append(part.tobytes())
        store.put(part_key(number), parts[-1])
    sources, index = write_sources(store, [SourceEntry("/nowhere/table.npy")]), write_index(store, parts)
    said = RegisteredAttributes(
        format=FORMAT, dataset_id="0" * 32, columns=("a", "b"), budget=None, ledger_id=None, rows=int(lengths.sum()),
        dtype="float32", chunk_rows=int(lengths.max()), chunks=chunks, stored_bytes=int(lengths.sum()) * 8,
        buffer_bytes=1, asked=RegisterRequest(source="/nowhere", columns=None, variable=None), index=index,
        sources=sources,
    )  # fmt: skip
    store.put(ROOT, json.dumps(head_of(said)).encode())
    return open_rows(place)


def test_a_million_chunks_are_opened_in_seconds_and_in_few_bytes(tmp_path: Path) -> None:
    """4 TB have half a million chunks of 8 MiB. The limit is ten times the time on a busy machine."""
    chunks = 1_000_000
    lengths = np.random.default_rng(1).integers(1, 1000, chunks)
    manifest_of(tmp_path / "rows.zarr", lengths, 256)
    began = time.process_time()
    table = open_rows(tmp_path / "rows.zarr")
    assert (table.chunks, table.rows) == (chunks, lengths.sum())
    for index in (0, 77_777, chunks - 1):
        assert table.first_row(index) == lengths[:index].sum()
        assert table.rows_in(index) == lengths[index]
        assert table.chunk_of(table.first_row(index)) == index
    assert time.process_time() - began < 2
    size = sum(path.stat().st_size for path in (tmp_path / "rows.zarr").rglob("*") if path.is_file())
    assert size < 100 * chunks


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 12))
def test_each_row_is_in_the_chunk_that_is_said(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], tasks: int
) -> None:
    lengths = np.array(rows)
    table = manifest_of(tmp_path_factory.mktemp("rows") / "rows.zarr", lengths, tasks)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    assert [table.chunk_of(row) for row in range(table.rows)] == owners.tolist()
    assert [table.rows_in(index) for index in range(table.chunks)] == lengths.tolist()
    assert table.first_row(table.chunks) == table.rows == lengths.sum()


def test_a_stored_table_that_was_registered_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refers to array.npy next to it by its absolute path, which is patched after unpacking."""
    unpack(STORED / "golden-1.tar.gz", tmp_path)
    table = open_rows(tmp_path / "registered.zarr")
    assert (table.rows, table.columns, table.dtype) == (40, 3, "int16")
    monkeypatch.setattr("dpdist.core.ingest.registered.location_of", lambda text: tmp_path / Path(text).name)
    bound = RowBound(3, 300.0)
    total = complete(table, added(map(partition_moment, parts_of(table, bound, 8))))
    z = integers_of(np.load(tmp_path / "array.npy"), bound)
    assert np.array_equal(total.values, (z.T @ z)[np.triu_indices(3)])
