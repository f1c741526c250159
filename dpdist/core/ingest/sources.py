"""Sources: files, Zarr stores, folders of files and object stores."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa

from dpdist.core import interruption
from dpdist.core.errors import DataError, DpdistError, UsageError
from dpdist.core.ingest.other_kinds import START, refusal
from dpdist.core.ingest.readers import isolated
from dpdist.core.ingest.readers.base import Choices, attempt, counts_rows
from dpdist.core.ingest.readers.columnar import Columnar, key_in
from dpdist.core.ingest.readers.isolated import IsolatedSource, ReaderProcess
from dpdist.core.ingest.readers.source import Entry, Head, Keys, Source
from dpdist.core.ingest.readers.text import header_asked
from dpdist.core.ingest.readers.zarr_store import MARKS, Store, is_anndata, is_vcf_zarr
from dpdist.core.ingest.remote import Remote
from dpdist.core.naming import parameter
from dpdist.core.paths import require_plain
from dpdist.core.rows.draft import SUFFIX, Looks
from dpdist.core.rows.schema import PANDAS_INDEX
from dpdist.core.rows.units import Unit
from dpdist.core.storage.atomic import scratch

if interruption.installed():
    pa.enable_signal_handlers(False)  # its readers would swallow signals

SourceLocation = Path | Remote
_READERS = {
    ".npy": "core.ingest.readers.npy:Npy",
    ".npz": "core.ingest.readers.npy:Npz",
    ".csv": "core.ingest.readers.text:Csv",
    ".csv.gz": "core.ingest.readers.text:Csv",
    ".parquet": "core.ingest.readers.columnar:Parquet",
    ".arrow": "core.ingest.readers.columnar:Arrow",
    ".feather": "core.ingest.readers.columnar:Arrow",
    ".h5ad": "formats.anndata:H5ad",
    ".nc": "formats.netcdf:NetCdf",
    ".zarr": "core.ingest.readers.zarr_store:Store",
}
"""Modules of dpdist and their readers by the suffix of a file; a module is imported when such a file is met."""
_ANNDATA, _VCF_ZARR = "formats.anndata:AnnDataStore", "formats.vcf:VcfZarr"


def _reader(place: str) -> type[Source]:
    module, _, name = place.partition(":")
    kind: type[Source] = getattr(import_module(f"dpdist.{module}"), name)
    return kind


class _Kinds(Mapping[str, type[Source]]):
    def __getitem__(self, suffix: str) -> type[Source]:
        return _reader(_READERS[suffix])

    def __iter__(self) -> Iterator[str]:
        return iter(_READERS)

    def __len__(self) -> int:
        return len(_READERS)


KINDS: Mapping[str, type[Source]] = _Kinds()
_ICEBERG = "metadata"
_LAKES = {
    "Delta Lake": (
        "_delta_log", "pyarrow.parquet.write_table(deltalake.DeltaTable(FOLDER).to_pyarrow_table(), 'NEW.parquet')"
    ),
    "Apache Hudi": (".hoodie", "spark.read.format('hudi').load(FOLDER).toPandas().to_parquet('NEW.parquet')"),
    "Apache Iceberg": (
        _ICEBERG, "pyiceberg.table.StaticTable.from_metadata(METADATA).scan().to_pandas().to_parquet('NEW.parquet')"
    ),
}  # fmt: skip
"""Markers of table formats whose folders hold old versions of rows, and how to export their current rows."""
_HIVE = re.compile(r"base_\d{7,}(_v\d+)?|(delete_)?delta_\d{7,}_\d{7,}(_\d+)?(_v\d+)?")
"""Folders of a transactional table of Hive."""


def located(location: SourceLocation) -> list[tuple[SourceLocation, Keys]]:
    """List a source, or the sources of a folder by name, each with the keys of its KEY=VALUE folders."""
    resolved = (location.resolve(),) if isinstance(location, Path) else ()
    for folder in (*resolved, *(parent for path in resolved for parent in path.parents)):  # it may be part of a table
        marks = [mark for mark, _ in _LAKES.values() if (folder / mark).is_dir()]
        if any(marker != _ICEBERG or any((folder / marker).glob("*.metadata.json")) for marker in marks):
            _require_no_lake(folder, marks)
        _require_no_lake(folder, ())
    if not attempt(location, location.is_dir) or is_store(location):
        return [(location, ())]
    sources = _in_folder(location, ())
    _require_once([path for path, _ in sources])
    if not sources:
        raise DataError(f"The folder {location} holds no files to ingest. Put {', '.join(KINDS)} files there.")
    return sources


def _in_folder(folder: SourceLocation, keys: Keys) -> list[tuple[SourceLocation, Keys]]:
    entries: list[SourceLocation] = attempt(folder, lambda: sorted(folder.iterdir(), key=lambda entry: entry.name))
    _require_no_lake(folder, [entry.name for entry in entries])
    sources: list[tuple[SourceLocation, Keys]] = []
    for entry in entries:
        if entry.name.startswith((".", "_")) or entry.name.endswith(SUFFIX):
            continue
        if isinstance(entry, Path):
            require_plain(entry.parent, entry.name)
        key = key_in(entry.name)
        if key is not None and attempt(entry, entry.is_dir):
            sources += _in_folder(entry, (*keys, key))
        else:
            sources.append((entry, keys))
    return sources


def _require_no_lake(folder: SourceLocation, names: Collection[str]) -> None:
    """Refuse the folder of a versioned table, whose removed rows would return."""
    if any(_HIVE.fullmatch(name) for name in (folder.name, *names)):
        raise DataError(
            f"{folder} is a transactional table of Hive, or part of one: its folders hold changes, and deleted rows "
            "would return. Export its current rows to a file: "
            "spark.table(NAME).toPandas().to_parquet('NEW.parquet')."
        )
    for kind, (mark, cure) in _LAKES.items():
        if mark in names:
            raise DataError(
                f"{folder} is a {kind} table: it also holds files of older versions, and deleted rows would return. "
                f"Export its current rows to a file: {cure}."
            )


def _require_once(locations: Sequence[SourceLocation]) -> None:
    by_inode: dict[tuple[int, int], Path] = {}
    for location in locations:
        if isinstance(location, Path):
            status = attempt(location, location.stat)
            other = by_inode.setdefault((status.st_dev, status.st_ino), location)
            if other is not location:
                raise DataError(f"{location} and {other} are the same file: its rows would count twice. Leave one out.")
    stems: dict[str, SourceLocation] = {}
    for location in locations:
        name = str(location).lower()
        stem = name.removesuffix(max((suffix for suffix in KINDS if name.endswith(suffix)), key=len, default=""))
        first = stems.setdefault(stem, location)
        if first is not location:
            raise DataError(
                f"{first} and {location} have the same name and may be copies, whose rows would count twice. Leave one "
                "out; if they are rows of different people, rename one."
            )


def is_store(location: SourceLocation) -> bool:
    """Whether a folder is a Zarr store, by its content."""
    return any(attempt(location, (location / mark).is_file) for mark in MARKS)


def files_of(source: Path) -> list[Path]:
    """List the files of a local source."""
    if source.is_dir():
        return sorted(path for path in source.rglob("*") if path.is_file())
    return [source]


def state_of(location: SourceLocation) -> str:
    """Return a digest of sizes and times, or of the version in a store, which any write changes."""

    def look() -> object:
        if not isinstance(location, Path):
            return location.version()
        stats = [path.stat() for path in files_of(location)]
        return [(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats]

    return digest_of(attempt(location, look))


def digest_of(values: object) -> str:
    """Return the SHA-256 of JSON values, hexadecimal."""
    return sha256(json.dumps(values).encode()).hexdigest()


def origin_of(
    source: SourceLocation, *, columns: Sequence[str] | None, compress: bool, unit: Unit | None, choices: Choices
) -> dict[str, object]:
    """Return names, sizes and times of the files, and the options, as JSON values: they identify a repeated ingest."""
    return {
        "files": [
            state for location, keys in located(source) for state in attempt(location, partial(_states, location, keys))
        ],
        "columns": None if columns is None else list(columns),
        "compress": compress,
        "unit": None if unit is None else unit.to_json(),
        "choices": choices.to_json(),
    }


def _states(location: SourceLocation, keys: Keys) -> list[list[object]]:
    folders: list[object] = [list(key) for key in keys]
    if not isinstance(location, Path):
        return [[*folders, str(location), location.version()]]
    stats = [(path.name, path.stat()) for path in files_of(location)]
    return [[*folders, name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


class Opener:
    """Opens sources, one at a time."""

    def __init__(self, scratch_dir: Path, choices: Choices) -> None:
        self._scratch_dir, self._choices = scratch_dir, choices
        self.process = ReaderProcess(scratch_dir)
        self._stack = ExitStack()
        self._entry: Entry | None = None

    def opened(self, entry: Entry) -> Source:
        """Return the reader of a source; files fetched for the previous one are removed."""
        if entry != self._entry:
            self._stack.close()
            self._entry = None
            self._source, self._read_at = self._open(entry)
            self._entry = entry
        return self._source

    def _open(self, entry: Entry) -> tuple[Source, str]:
        location = entry.location
        kind = _kind(location)
        if entry.keys and not issubclass(kind, Columnar):
            raise DataError(
                f"{entry.shown}: only Parquet and Arrow files may be in folders named KEY=VALUE. Put other files into "
                "one folder."
            )
        if self._choices.schema is not None and "schema" not in kind.takes:
            raise _no_columns(entry.shown)
        if not isinstance(location, Path) and (kind.needs_file or location.web):
            folder = self._stack.enter_context(scratch(self._scratch_dir, "fetched"))
            attempt(location, partial(location.fetch, folder))
            location = folder / location.name
        if kind in KINDS.values() and kind is not Store and (reason := _refusal(location)):
            raise DataError(f"{location} is {reason}")
        source = kind(location, self._scratch_dir, self._choices, entry.keys)
        if kind.fragile and isolated.ISOLATED:
            source = IsolatedSource(location, self._scratch_dir, self._choices, entry.keys, source, self.process)
        return source, str(location)

    @contextmanager
    def named(self, entry: Entry) -> Iterator[Source]:
        """Open the reader of a source; errors use its displayed name."""
        try:
            yield self.opened(entry)
        except DpdistError as error:
            error.args = (self.with_shown_name(str(error), entry), *error.args[1:])
            raise

    def with_shown_name(self, text: str, entry: Entry) -> str:
        """Replace the path that was read by the displayed name of the source."""
        path = self._read_at if self._entry == entry else str(entry.location)
        return text.replace(path, entry.shown)

    def close(self) -> None:
        """Remove fetched files, and end the process of fragile readers."""
        self._stack.close()
        self.process.close()


class Sources(Sequence[Source]):
    """The files of a source, opened on access."""

    def __init__(self, entries: Sequence[Entry], opener: Opener) -> None:
        self.entries, self.opener = entries, opener

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, number: Any) -> Any:
        return self.opener.opened(self.entries[number])

    def named(self, number: int) -> AbstractContextManager[Source]:
        """Open a source by number; see :meth:`Opener.named`."""
        return self.opener.named(self.entries[number])


@contextmanager
def opened_sources(source: SourceLocation, scratch_dir: Path, choices: Choices = Choices()) -> Iterator[Sources]:  # noqa: B008 - frozen
    """Open the sources at a location, in order; fetched files are removed at the end."""
    locations = located(source)
    kinds = {_kind(location) for location, _ in locations}
    for name in choices.made:
        if not any(name in kind.takes for kind in kinds):
            takers = ", ".join(suffix for suffix, kind in KINDS.items() if name in kind.takes) or "VCF Zarr"
            raise UsageError(f"{parameter(name)} is for {takers}. {source} has none of these: leave it out.")
    with closing(Opener(scratch_dir, choices)) as opener:
        yield Sources(
            [
                Entry(location.absolute() if isinstance(location, Path) else location, str(location), keys)
                for location, keys in locations
            ],
            opener,
        )


def _no_columns(source: object) -> UsageError:
    return UsageError(
        f"{source} cannot take a schema: only tables with typed columns can. Leave it out.", parameter="schema"
    )


def columns_at(location: SourceLocation, scratch_dir: Path, header: str | None) -> tuple[str, ...]:
    """Return column names of a tabular source without an index of pandas; never guesses the header of text."""
    if not any("schema" in _kind(path).takes for path, _ in located(location)):
        raise _no_columns(location)
    with opened_sources(location, scratch_dir, Choices(header=header)) as sources, sources.named(0) as source:
        head = source.head
        if head.guess is not None:
            raise header_asked(sources.entries[0].shown)
        index = {head.names[place] for place in head.indexes if not counts_rows(head.names[place])}
        return tuple(name for name in head.names if name not in index and not PANDAS_INDEX.fullmatch(name))


def head_at(location: SourceLocation, scratch_dir: Path, choices: Choices) -> Head:
    """Return the metadata of a file."""
    with opened_sources(location, scratch_dir, choices) as sources, sources.named(0) as source:
        return source.head


def table_at(location: SourceLocation, scratch_dir: Path, header: str | None) -> tuple[Head, dict[str, Looks] | None]:
    """Return head and unclear columns of a table; None for those of a file of numbers only. Reads all cells of text."""
    with opened_sources(location, scratch_dir, Choices(header=header)) as sources, sources.named(0) as source:
        if not any("schema" in _kind(path).takes for path, _ in located(location)):
            return source.head, None
        return source.head, source.unclear_columns


def _suffix(location: SourceLocation) -> str:
    """Return the suffix of a file that is read, or an empty string."""
    name = location.name.lower()
    return next((suffix for suffix in KINDS if suffix != ".zarr" and name.endswith(suffix)), "")


def _refusal(location: SourceLocation) -> str | None:
    def start() -> bytes:
        with location.open("rb") as file:
            return file.read(START)

    return refusal(PurePath(location.name), attempt(location, start), _suffix(location), KINDS)


def _kind(location: SourceLocation) -> type[Source]:
    if attempt(location, location.is_dir):
        if is_store(location):
            if is_anndata(location) or is_vcf_zarr(location):
                return _reader(_ANNDATA if is_anndata(location) else _VCF_ZARR)
            return Store
    elif attempt(location, location.is_file):
        suffix = _suffix(location)
        if suffix:
            return KINDS[suffix]
        raise DataError(f"{location} is {_refusal(location)}")
    if isinstance(location, Remote):
        raise DataError(
            f"{location} does not exist, or the store denies access. Check the address and your credentials."
        )
    if location.is_dir():
        raise DataError(
            f"{location} is a folder within a folder. Only folders named KEY=VALUE are read: move its files up, or "
            "ingest it by itself."
        )
    if location.is_symlink():
        raise DataError(
            f"{location} is a link to a file that does not exist. Restore it; if git-annex manages it: git annex "
            "get FILE."
        )
    raise DataError(f"{location} is not a file, or does not exist. Pass a file or a folder of files.")
