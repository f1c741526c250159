"""Readers of what ``ingest`` takes: tables, arrays and genotypes, in files, folders of files and object stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pyarrow as pa

from dpdist._util import interruption
from dpdist._util.paths import require_plain
from dpdist.errors import DataError, DpdistError, UsageError
from dpdist.ingest.readers.anndata import AnnDataStore, H5ad
from dpdist.ingest.readers.base import Choices, NoRowsError, Places, Source, Survey, attempt
from dpdist.ingest.readers.fitted import Fitted
from dpdist.ingest.readers.hive import Keys, Partitioned, key_in
from dpdist.ingest.readers.isolated import IsolatedSource, ReaderProcess
from dpdist.ingest.readers.netcdf import NetCdf
from dpdist.ingest.readers.npy import Npy, Npz
from dpdist.ingest.readers.parquet import Parquet
from dpdist.ingest.readers.plink import Plink
from dpdist.ingest.readers.plink2 import Plink2
from dpdist.ingest.readers.text import Csv, header_asked
from dpdist.ingest.readers.vcf import Vcf
from dpdist.ingest.readers.vcf_zarr import VcfZarr, is_vcf_zarr
from dpdist.ingest.readers.zarr_store import MARKS, Store, is_anndata
from dpdist.ingest.remote import Fetched, Remote, location_of
from dpdist.naming import parameter
from dpdist.rows.columns import Column
from dpdist.rows.schema import Schema
from dpdist.storage.atomic import scratch

__all__ = [
    "KINDS",
    "Choices",
    "NoRowsError",
    "Places",
    "Remote",
    "Source",
    "SourceLocation",
    "Survey",
    "attempt",
    "columns_at",
    "files_of",
    "is_companion",
    "is_store",
    "located",
    "location_of",
    "opened_sources",
    "reader_of",
    "words_at",
]

if interruption.installed():
    pa.enable_signal_handlers(False)  # its readers would take a signal that they do not answer

SourceLocation = Path | Remote
KINDS: dict[str, type[Source]] = {
    ".npy": Npy,
    ".npz": Npz,
    ".csv": Csv,
    ".csv.gz": Csv,
    ".parquet": Parquet,
    ".h5ad": H5ad,
    ".nc": NetCdf,
    ".zarr": Store,
    ".bed": Plink,
    ".pgen": Plink2,
    ".vcf": Vcf,
    ".vcf.gz": Vcf,
}
_CURES = {
    (".feather", ".arrow", ".ipc"): "as .parquet; in Python: pyarrow.parquet.write_table(pyarrow.feather.read_table("
    "FILE), NEW)",
    (".tsv", ".tab"): r"as .csv; in Python: pandas.read_csv(FILE, sep='\t').to_csv(NEW, index=False)",
    (".xlsx", ".xls", ".ods"): "as .csv; in Python: pandas.read_excel(FILE).to_csv(NEW, index=False)",
}
"""How a file of another kind is written as one that can be read."""


def located(place: SourceLocation) -> list[tuple[SourceLocation, Keys]]:
    """List a source, or the sources of a folder in the order of their names, each with the keys of its folders.

    Names in a folder that begin with ``.`` or ``_`` are passed over, and so is what lies beside a .bed or .pgen file
    and belongs to it. Of folders in it, those named KEY=VALUE are looked into. The place itself may be a link, and
    nothing in it.

    Raises
    ------
    DataError
        If there is nothing, or something that is of no supported kind, or a link, or one file under two names.
    """
    if not attempt(place, place.is_dir) or is_store(place):
        return [(place, ())]
    found = _in_folder(place, ())
    _require_once(each for each, _ in found)
    if not found:
        raise DataError(f"The folder {place} holds no files to ingest. Put {', '.join(KINDS)} files there.")
    return found


def _in_folder(folder: SourceLocation, keys: Keys) -> list[tuple[SourceLocation, Keys]]:
    entries = attempt(folder, partial(_entries, folder))
    found: list[tuple[SourceLocation, Keys]] = []
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        if isinstance(entry, Path):
            require_plain(entry.parent, entry.name)
        if is_companion(entry):
            continue
        key = key_in(entry.name)
        if key is not None and attempt(entry, entry.is_dir):
            found += _in_folder(entry, (*keys, key))
        else:
            found.append((entry, keys))
    return found


def _require_once(places: Iterable[SourceLocation]) -> None:
    """Refuse one file or folder under two names: its rows would count twice."""
    known: dict[tuple[int, int], Path] = {}
    for place in places:
        if isinstance(place, Path):
            about = attempt(place, place.stat)
            other = known.setdefault((about.st_dev, about.st_ino), place)
            if other is not place:
                raise DataError(f"{place} and {other} are the same file, whose rows would count twice. Remove one.")


def _entries(folder: SourceLocation) -> list[SourceLocation]:
    entries: list[SourceLocation] = [*folder.iterdir()]
    return sorted(entries, key=lambda entry: entry.name)


def is_companion(place: SourceLocation) -> bool:
    """Tell whether a file lies beside a .bed or .pgen file and belongs to it."""
    owners = [place.with_suffix(suffix) for suffix, kind in KINDS.items() if place.suffix in kind.companions]
    return any(attempt(owner, owner.is_file) for owner in owners)


def is_store(place: SourceLocation) -> bool:
    """Tell whether a folder is a Zarr store, which it is by what is in it."""
    return any(attempt(place, (place / mark).is_file) for mark in MARKS)


def files_of(place: Path) -> list[Path]:
    """List the files that a local source consists of."""
    if place.is_dir():
        return sorted(path for path in place.rglob("*") if path.is_file())
    kind = KINDS.get(place.suffix)
    others = map(place.with_suffix, () if kind is None else kind.companions)
    return [place, *(other for other in others if other.is_file())]


@contextmanager
def opened_sources(place: SourceLocation, beside: Path, choices: Choices = Choices()) -> Iterator[Sequence[Source]]:  # noqa: B008 - frozen
    """Give the sources at a place, in order, and remove afterwards what had to be fetched.

    Parameters
    ----------
    place
        A file, a folder, or the address of one.
    beside
        Folder in which a file may be fetched or unpacked for a while.
    choices
        What the user chose, of what some kinds of files leave open.

    Raises
    ------
    DataError
        If there is nothing, or something that is of no supported kind.
    UsageError
        If something was chosen that no file leaves open.
    """
    with ExitStack() as stack:
        places = located(place)
        kinds = {_kind(each) for each, _ in places}
        for name in choices.made:
            if not any(name in kind.takes for kind in kinds):
                takers = ", ".join(suffix for suffix, kind in KINDS.items() if name in kind.takes)
                raise UsageError(f"{parameter(name)} is for {takers}, and {place} has none of these. Leave it out.")
        reading = ReaderProcess(beside)
        stack.callback(reading.close)
        yield [source_at(each, keys, beside, choices, reading, stack) for each, keys in places]


def columns_at(place: SourceLocation, beside: Path, header: str | None) -> tuple[tuple[str, ...], list[Any] | None]:
    """Return the names of the columns of a source that a schema is for, and their Arrow types where these are stored.

    Whether the first line of text is one of them is never guessed from the lines below it.

    Raises
    ------
    UsageError
        If it is of a kind that holds numbers only.
    AskError
        If it is text, and `header` does not say what its first line is.
    DataError
        If there is nothing, or something that is of no supported kind.
    """
    if not any("schema" in _kind(each).takes for each, _ in located(place)):
        raise UsageError(f"{place} holds no columns of different kinds, which a schema is for.", parameter="schema")
    with opened_sources(place, beside, Choices(header=header)) as sources:
        names, kinds = sources[0].names, sources[0].kinds
        if sources[0].guess is not None:
            raise header_asked(sources[0].path)
        return names, None if kinds is None else [*kinds]


def words_at(place: SourceLocation, beside: Path, header: str | None, columns: Sequence[str]) -> set[str]:
    """Return which of some columns of local text hold something that is no number; none where nobody knows that."""
    if not isinstance(place, Path):
        return set()
    with suppress(DpdistError):
        schema = Schema([Column(name, "number") for name in dict.fromkeys(columns)], others="ignored")
        with opened_sources(place, beside, Choices(header=header, schema=schema)) as sources:
            return set().union(*(each.words() for each in sources if isinstance(each, Fitted)))
    return set()


def _kind(place: SourceLocation) -> type[Source]:
    if attempt(place, place.is_dir):
        if is_store(place):
            return AnnDataStore if is_anndata(place) else VcfZarr if is_vcf_zarr(place) else Store
    elif attempt(place, place.is_file):
        for suffix, kind in KINDS.items():
            if kind is not Store and place.name.lower().endswith(suffix):
                return kind
        cures = [f" Save it {cure}." for suffixes, cure in _CURES.items() if place.name.lower().endswith(suffixes)]
        raise DataError(f"{place} is of a kind that cannot be read. Supported are {', '.join(KINDS)}.{''.join(cures)}")
    if isinstance(place, Remote):
        raise DataError(f"{place} is not there, or the store does not give it. Check the address and your credentials.")
    raise DataError(f"{place} is not a file, or does not exist. Pass a file, or a folder of nothing but files.")


def _reader(
    kind: type[Source], reading: ReaderProcess, keys: Keys, place: SourceLocation, beside: Path, choices: Choices
) -> Source:
    made = kind(place, beside, choices)
    if choices.schema is not None:
        if "schema" not in kind.takes:
            raise UsageError(f"{place} holds no columns of different kinds, which a schema is for.", parameter="schema")
        made = Fitted(place, beside, choices, made, keys)
    return IsolatedSource(place, beside, choices, made, reading) if kind.fragile else made


def source_at(
    place: SourceLocation, keys: Keys, beside: Path, choices: Choices, reading: ReaderProcess, stack: ExitStack
) -> Source:
    """Return the reader of one source.

    Parameters
    ----------
    place, keys
        As :func:`located` lists it.
    beside, choices
        As of :func:`opened_sources`.
    reading
        The process of fragile readers.
    stack
        Removes what had to be fetched, when it is closed.

    Raises
    ------
    DataError
        If it is not there, or of no supported kind.
    """
    kind = _kind(place)
    if isinstance(place, Remote) and (kind.needs_file or place.web):
        others = tuple(place.with_suffix(suffix) for suffix in kind.companions)
        folder = stack.enter_context(scratch(beside, "fetched"))
        made: Source = Fetched(place, beside, choices, partial(_reader, kind, reading, keys), folder, others)
    else:
        made = _reader(kind, reading, keys, place, beside, choices)
    return _with_keys(kind, made, place, keys)


def reader_of(place: SourceLocation, keys: Keys, choices: Choices, reading: ReaderProcess) -> Source:
    """Return the reader of one source that is read in place; nothing is fetched or unpacked for it.

    Raises
    ------
    DataError
        If it is not there any more, or is of another kind.
    """
    kind, beside = _kind(place), Path(gettempdir())
    return _with_keys(kind, _reader(kind, reading, keys, place, beside, choices), place, keys)


def _with_keys(kind: type[Source], made: Source, place: SourceLocation, keys: Keys) -> Source:
    beside, choices = made.beside, made.choices
    if not keys:
        return made
    if kind is not Parquet:
        raise DataError(f"{place}: only Parquet files may lie in folders named KEY=VALUE. Put others into one folder.")
    if choices.schema is not None:  # which knows the keys
        return made
    return Partitioned(place, beside, choices, made, keys)
