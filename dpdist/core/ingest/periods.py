"""New periods from a folder of sources: one complete entry, a file or a folder of files, per period.

The name, size, time and keyed digest of every source file are stored with the rows. They reveal files that come late,
change or repeat another, without reading old rows: an old file is read again only if its size or time differs. The
digests need the key of the private folder, and appear in no release, log or message.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dpdist.core.errors import DataError, DpdistError, RefusedError
from dpdist.core.ingest.readers.base import Choices, NoRowsError
from dpdist.core.ingest.sources import KINDS, files_of, is_store, located, opened_sources
from dpdist.core.ingest.write import ingest
from dpdist.core.privacy.parallel import PERIOD_PATTERN
from dpdist.core.progress import Steps
from dpdist.core.rows.chunks import key_of
from dpdist.core.rows.dataset import RowsTable, created, open_ingested
from dpdist.core.rows.periods import PeriodicTable, Span, seal_rows
from dpdist.core.rows.persons import Watch
from dpdist.core.text import listed

_SOURCES = "sources.json"
_PIECE = 1 << 20


@dataclass(frozen=True)
class SourceFile:
    """A source file when it was read; ``digest`` is the HMAC-SHA256 of its bytes, keyed by the folder of periods."""

    name: str
    size: int
    mtime_ns: int
    digest: str


def waiting(source: Path, closed: Sequence[str] = ()) -> tuple[dict[str, Path], list[DpdistError]]:
    """Return the usable entries of a folder of sources by period, in order, and the errors of the others."""
    # All names have the shape of the first closed period. Otherwise a misnamed file, test.csv, would be closed, and
    # every later date would precede it.
    if not source.is_dir():
        raise DataError(
            f"{source} is not a folder. With periods = true, the source is a folder with one entry per period."
        )
    entries: dict[str, Path] = {}
    wrong: list[DpdistError] = []
    twice: list[str] = []
    for entry in sorted(source.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith((".", "_")):
            continue
        suffix = next((kind for kind in KINDS if entry.name.lower().endswith(kind)), "")
        period = entry.name[: len(entry.name) - len(suffix)]
        try:
            _require_plain(entry)
            _require_name(entry, period, suffix, closed)
        except RefusedError as error:
            wrong.append(error)
            continue
        if period in entries:
            both = f"{entries[period]} and {entry} both belong to the period {period}"
            wrong.append(DataError(f"{both}. Put them into one folder."))
            twice.append(period)
        entries[period] = entry
    if not closed and len({_shape(period) for period in entries}) > 1:
        first, other = next((entries[a], entries[b]) for a, b in pairwise(entries) if _shape(a) != _shape(b))
        wrong.append(
            DataError(
                f"{first.name} and {other.name} in {source} have names of different shapes: letters, digits and marks "
                "at different positions. Give all entries names of one shape."
            )
        )
        return {}, wrong
    # a new period with two entries blocks those after it: once merged into one folder, it is closed before them
    new = [period for period in twice if period not in closed]
    sound = [p for p in sorted(entries) if p not in twice and (p in closed or not new or p < min(new))]
    return {period: entries[period] for period in sound}, wrong


def _shape(period: str) -> str:
    """Replace every digit by 0 and every letter by a."""
    return re.sub("[0-9]", "0", re.sub("[A-Za-z]", "a", period))


def _require_name(entry: Path, period: str, suffix: str, closed: Sequence[str]) -> None:
    if not re.fullmatch(PERIOD_PATTERN, period) or not (suffix or entry.is_dir()):
        raise RefusedError(
            f"{entry} does not name a period. An entry is a folder, or a file of a supported kind "
            f"({', '.join(KINDS)}). Its name has letters and digits, separated by single dots, hyphens or underscores, "
            "and names sort in time, such as 2026-01-05.csv. Rename it, or remove it."
        )
    if closed and _shape(period) != _shape(closed[0]):
        raise RefusedError(
            f"{entry} is not named like the closed periods, such as {closed[0]}: its letters, digits and marks are at "
            "other positions. Rename it, or remove it."
        )


def _require_plain(entry: Path) -> None:
    """Refuse links, pipes and devices: they may leave the source, or never end."""
    below = [Path(folder, name) for folder, *names in os.walk(entry) for name in (*names[0], *names[1])]
    for path in (entry, *below):
        if path.parent == entry and path.name.startswith((".", "_")):
            continue
        try:
            mode = path.lstat().st_mode
        except OSError as error:
            raise RefusedError(f"{path} cannot be accessed: {error.strerror}. Repair it, or remove it.") from None
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise RefusedError(f"{path} is a link, pipe or device. Replace it by a file or folder.")


def has_rows(path: Path, scratch_dir: Path, choices: Choices = Choices()) -> bool:  # noqa: B008 - frozen
    """Whether a file holds rows; True if unknown."""
    try:
        with opened_sources(path, scratch_dir, choices) as sources:
            for source in sources:
                source.survey((0,))
    except NoRowsError:
        return False
    except DataError:
        return True
    return True


def discard(table: PeriodicTable, period: str) -> None:
    """Remove the rows of a period that is not closed; hold ``table.store.locked()``."""
    table.rows_of(period).delete()


def ingest_period(
    table: PeriodicTable,
    period: str,
    entry: Path,
    closed: Mapping[str, str],
    *,
    columns: Sequence[str] | None = None,
    excluded: Sequence[str] = (),
    choices: Choices = Choices(),  # noqa: B008 - frozen
    progress: Steps | None = None,
    say: Callable[[str], None] | None = None,
) -> str:
    """Ingest and seal the rows of a period that is not closed yet; hold ``table.store.locked()``."""
    # Leftovers of an earlier call are replaced. An empty folder is a period without rows: under add-remove it is
    # released like any other, because whether it had rows is private.
    target = table.rows_of(period)
    before = None
    if closed:
        last = list(closed)[-1]
        before = table.span({last: closed[last]}, len(closed) - 1)
    read = [_source_file(name, files, key_of(table.store)) for name, files in _sources(entry).items()]
    _require_fresh(table, period, entry, read, closed, choices)
    if not read and before is None:
        raise DataError(f"{entry} holds no files. The first period needs rows, which name the columns: add some.")
    target.delete()
    watch = Watch.of(table, closed, excluded)
    common: dict[str, Any] = {"ledger_id": table.ledger_id, "period": period, "unit": table.unit}
    try:
        if read or before is None:
            ingested = ingest(
                entry, target, columns=columns, choices=choices, progress=progress, say=say, watch=watch, **common
            )
        else:
            with created(
                target, rows=0, dtype="uint8", names=before.names, budget=None, schema=before.schema, **common
            ):
                pass
            ingested = open_ingested(target)
        _require_same(entry, read, ingested, before)
        target.replace(_SOURCES, json.dumps([asdict(file) for file in read]).encode(), "rows", private=True)
        seal = seal_rows(ingested)
        if watch is not None:
            watch.write(table, period, seal)
    except (DataError, KeyboardInterrupt):
        target.delete()
        raise
    return seal


def _require_same(entry: Path, read: Sequence[SourceFile], ingested: RowsTable, before: Span | None) -> None:
    """Refuse columns that differ from earlier periods, and files that changed since they were read."""
    if before is not None:
        if ingested.schema != before.schema:
            raise DataError(
                f"{entry} was read with another schema than earlier periods, whose rows are summed with these. "
                "Use their schema, or begin another folder of periods."
            )
        if ingested.names != before.names:
            raise DataError(
                f"{entry} has other columns than earlier periods, which have {listed(before.names)}. Give it the same "
                "columns, under a header that names them."
            )
    _require_plain(entry)
    now = [_stat(name, files) for name, files in _sources(entry).items()]
    if now != [(file.name, file.size, file.mtime_ns) for file in read]:
        raise DataError(f"{entry} changed while it was read. Rename it into the source when it is complete.")


def _sources(entry: Path) -> dict[str, list[Path]]:
    """Return the files of every source of an entry by name; none for an empty folder."""
    if entry.is_dir() and all(path.name.startswith((".", "_")) for path in entry.iterdir()) and not is_store(entry):
        return {}
    paths = [path for path, _ in located(entry) if isinstance(path, Path)]
    return {entry.name if path == entry else path.relative_to(entry).as_posix(): files_of(path) for path in paths}


def _path_of(entry: Path, name: str) -> Path:
    return entry if name == entry.name else entry / name


def _stat(name: str, files: Sequence[Path]) -> tuple[str, int, int]:
    with _readable(files[0]):
        stats = [path.stat() for path in files]
    return name, sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Repair it, or remove it.") from None


def _source_file(name: str, files: Sequence[Path], key: bytes) -> SourceFile:
    _, size, mtime_ns = _stat(name, files)
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for path in files:
        with _readable(path):
            if len(files) > 1:  # marks the boundaries
                digest.update(f"{path.stat().st_size}:".encode())
            with path.open("rb") as file:
                while block := file.read(_PIECE):
                    digest.update(block)
    return SourceFile(name, size, mtime_ns, digest.hexdigest())


def _sources_of(table: PeriodicTable, period: str) -> list[SourceFile]:
    stored = table.rows_of(period)
    try:
        return [SourceFile(**fields) for fields in json.loads(stored.get(_SOURCES))]
    except (OSError, ValueError, TypeError, RecursionError):
        raise DataError(
            f"{stored.address(_SOURCES)} is missing or damaged. Restore it: it lists the ingested files."
        ) from None


def _require_fresh(
    table: PeriodicTable, period: str, entry: Path, read: Iterable[SourceFile], closed: Iterable[str], choices: Choices
) -> None:
    known_files = {
        file.digest: f"{file.name} of the period {other}" for other in closed for file in _sources_of(table, other)
    }
    for file in read:
        if file.digest in known_files and has_rows(_path_of(entry, file.name), table.store.scratch_folder, choices):
            raise RefusedError(
                f"{file.name} of the period {period} ({entry}) is identical to {known_files[file.digest]}: its rows "
                "would be charged and counted twice. Remove one."
            )
        known_files[file.digest] = f"{file.name} of the same period"


def changes(table: PeriodicTable, period: str, entry: Path) -> str | None:
    """Describe how the source of a closed period changed, or None; removed files do not matter."""
    stored_files = {file.name: file for file in _sources_of(table, period)}
    for path, files in _sources(entry).items():
        name, size, mtime_ns = _stat(path, files)
        before = stored_files.get(name)
        where = _path_of(entry, path)
        if before is None:
            return f"{where} came late: the period {period} is closed. Move its rows to a later period."
        if (size, mtime_ns) == (before.size, before.mtime_ns):
            continue
        if _source_file(path, files, key_of(table.store)).digest != before.digest:
            return f"{where} changed after the period {period} was closed: no release includes the change. Undo it."
    return None
