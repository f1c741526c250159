"""A source -> a table in place: surveyed here, read once on the workers, and described by its manifest.

Each worker reads some chunks, validates every value as an ingest does, and writes its part of the manifest. The table
appears when all chunks are read, or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from dpdist.core.errors import DataError
from dpdist.core.ingest import copies
from dpdist.core.ingest.readers.base import (
    ChoiceRequiredError,
    Choices,
    Places,
    Rows,
    changed,
    require_exact,
    require_runs,
)
from dpdist.core.ingest.readers.source import Entry, Source
from dpdist.core.ingest.registered import FORMAT, RegisteredAttributes, RegisterRequest, checked, head_of, opener_of
from dpdist.core.ingest.remote import location_of
from dpdist.core.ingest.sources import Opener, SourceLocation, Sources, opened_sources
from dpdist.core.ingest.survey import SourceSurvey, require_unique_samples, size_of, survey_source
from dpdist.core.naming import step
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.rows.manifest import RECORD, Records, SourceEntry, part_key, part_lengths, write_index, write_sources
from dpdist.core.storage.arrays import ROOT
from dpdist.core.storage.store import Store
from dpdist.core.text import random_token

Identify = Callable[[str], str]  # maps a digest of the content to the identity of the table


def asked_of(source: SourceLocation, variable: str | None) -> RegisterRequest:
    """Return the request, which identifies a repeated command."""
    return RegisterRequest(source=_text_of(source), variable=variable)


def _text_of(location: SourceLocation) -> str:
    """Return a location as text; the target, if it is a link."""
    text = str(location.resolve() if isinstance(location, Path) else location.address)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"The name of {location} is not valid text, and rows in place are found by name. Rename it."
        ) from None
    return text


@dataclass(frozen=True)
class ChunkPlan:
    """A source that can be read in place, cut into chunks."""

    names: tuple[str, ...]
    dtype: str
    entries: list[SourceEntry]
    records: Records  # of each chunk; not read yet
    buffer_bytes: int  # memory for reading
    named: bool  # whether the rows have names, which are distinct
    asked: tuple[str, ...]  # names that may be of persons

    @property
    def located(self) -> list[Entry]:
        """The files."""
        return [Entry(location_of(entry.place), entry.place, entry.keys) for entry in self.entries]

    @property
    def lengths(self) -> dict[int, tuple[object, int]]:
        """The files that may be copies of others."""
        if self.named:
            return {}
        counts = np.bincount(self.records["source"], self.records["rows"]).astype(np.int64)
        return copies.of_equal_length(dict(enumerate(counts.tolist())), self.located)


def survey(source: SourceLocation, target: Store, request: RegisterRequest) -> ChunkPlan:
    """Survey a source as an ingest does, and cut it into chunks."""
    try:
        with opened_sources(source, target.scratch_folder, Choices(request.variable)) as sources:
            result = survey_source(
                source, sources, None, lambda job, units: [job(sources.opener, unit, bool) for unit in units],
                sizes=[size_of(entry) for entry in sources.entries],
            )  # fmt: skip
            return _cut(sources, result, named=require_unique_samples(sources, result.filled))
    except ChoiceRequiredError as error:
        question = f"{error.asked(source, target)} Rows in place have all columns of their source."
    raise DataError(question)


def _cut(sources: Sources, result: SourceSurvey, *, named: bool) -> ChunkPlan:
    parts, memory, count = [], 0, 0
    rows = dict.fromkeys(result.filled, 0)
    for fragment in result.parts:
        rows[fragment.source] += fragment.rows
    for number, source in enumerate(rows):
        with sources.named(source) as opened:
            cut = opened.fragments(result.keep)
        if not cut.memory:
            shown = sources.entries[source].shown
            raise DataError(
                f"{shown} cannot be read in place: files of its kind cannot be read in parts. Only .npy, .parquet and "
                f".zarr can. Copy its rows with {step('ingest', shown, 'ROWS')}."
            )
        count += len(cut.ends)
        require_runs(opened.path, count)
        part = np.zeros(len(cut.ends), dtype=RECORD)
        part["source"], part["first"][1:] = number, cut.ends[:-1]
        part["rows"] = lengths = np.diff(cut.ends, prepend=0)
        if cut.ends[-1] != rows[source] or lengths.min() < 1 or lengths.max() >= 1 << 32:
            raise changed(opened.path)
        parts.append(part)
        memory = max(memory, cut.memory)
    files = [sources.entries[source] for source in rows]
    entries = [SourceEntry(_text_of(file.location), file.keys) for file in files]
    return ChunkPlan(result.names, result.dtype.name, entries, np.concatenate(parts), memory, named, result.head.asked)


@dataclass(frozen=True)
class RegisterTask:
    """The chunks of one part of a manifest."""

    number: int
    aside: Store
    entries: dict[int, SourceEntry]
    records: bytes
    names: tuple[str, ...]
    dtype: str
    variable: str | None
    alike: frozenset[int]  # files that may be copies, by their numbers of rows
    key: bytes = field(repr=False)  # of their marks; Dask logs the arguments of a task that fails


def register_chunks(task: RegisterTask, _: None = None) -> dict[int, int]:
    """Read and validate chunks, write their part of the manifest, and return the marks of rows by file."""
    opener, dtype = opener_of(task.variable), np.dtype(task.dtype)
    weights, marks = copies.weights_of(task.key, len(task.names)), Counter[int]()
    records = np.frombuffer(task.records, dtype=RECORD).copy()
    for record in records:
        number = int(record["source"])
        entry = task.entries[number]
        source = opener.opened(Entry(location_of(entry.place), entry.place, entry.keys))
        for block in _read(source, tuple(range(len(task.names))), dtype, record):
            if number in task.alike:
                marks[number] += copies.mark_of(block, dtype, weights)
    task.aside.put(part_key(task.number), records.tobytes())
    return marks


def _blocks(opener: Opener, plan: ChunkPlan, number: int) -> Generator[Rows]:
    return opener.opened(plan.located[number]).rows(tuple(range(len(plan.names))))


def _read(source: Source, keep: Places, dtype: np.dtype[Any], record: Any) -> Iterator[Rows]:
    """Yield the rows of a chunk, and complete its record."""
    first, rows = int(record["first"]), int(record["rows"])
    before = source.state(first, first + rows)
    row_count = checksum = 0
    with closing(source.rows(keep, (first, first + rows))) as blocks:
        for rows_of_block in blocks:
            require_exact(source.path, first + row_count, rows_of_block, dtype, source.head.names)
            (block,) = checked(iter([rows_of_block]), dtype)
            checksum = google_crc32c.extend(checksum, block.reshape(-1).view(np.uint8))
            row_count += block.shape[0]
            yield block
    if row_count != rows or source.state(first, first + rows) != before:
        raise changed(source.path)
    record["checksum"], record["objects"], record["bytes"] = checksum, before.objects, before.size
    record["version"] = before.version


@contextmanager
def register_tasks(
    plan: ChunkPlan, target: Store, request: RegisterRequest, budget: PrivacyLoss | None, identify: Identify, tasks: int
) -> Iterator[tuple[list[RegisterTask], list[dict[int, int]]]]:
    """Yield about ``tasks`` tasks that read a source, and a list for their results.

    The table appears at target unless the block fails.
    """
    with target.staged("rows", private=True) as staging:
        sources, work = write_sources(staging, plan.entries), list[RegisterTask]()
        lengths, key, marks = plan.lengths, random_token().encode(), list[dict[int, int]]()
        for number, run in enumerate(part_lengths(len(plan.records), tasks)):
            records = plan.records[run.start : run.stop]
            entries = {int(source): plan.entries[source] for source in np.unique(records["source"])}
            work.append(
                RegisterTask(
                    number, staging.absolute(), entries, records.tobytes(), plan.names, plan.dtype,
                    request.variable, frozenset(lengths), key,
                )
            )  # fmt: skip
        yield work, marks
        weights = copies.weights_of(key, len(plan.names))
        with closing(opener_of(request.variable)) as opener:
            read = partial(_blocks, opener, plan)
            copies.require_none(lengths, marks, plan.located, read, np.dtype(plan.dtype), weights)
        parts = [staging.get(part_key(number)) for number in range(len(work))]
        records = np.frombuffer(b"".join(parts), dtype=RECORD)
        rows = int(records["rows"].sum(dtype=np.int64))
        attributes = RegisteredAttributes(
            format=FORMAT, dataset_id=identify(_content_of(plan, records)), columns=plan.names,
            budget=None if budget is None else budget.to_json(), ledger_id=None, rows=rows, dtype=plan.dtype,
            chunk_rows=int(records["rows"].max()), chunks=len(records),
            stored_bytes=rows * len(plan.names) * np.dtype(plan.dtype).itemsize, buffer_bytes=plan.buffer_bytes,
            asked=request, index=write_index(staging, parts), sources=sources,
        )  # fmt: skip
        staging.put(ROOT, json.dumps(head_of(attributes)).encode())  # the last object


def _content_of(plan: ChunkPlan, records: Records) -> str:
    """Return a digest of header and rows: equal for copies of the same files in the same chunks."""
    head = json.dumps([plan.names, plan.dtype, len(records)])
    content = [head.encode(), records["rows"].tobytes(), records["checksum"].tobytes()]
    return hashlib.sha256(b"\n".join(content)).hexdigest()
