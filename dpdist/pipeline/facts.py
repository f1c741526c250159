"""What :func:`dpdist.inspect_path` says of a folder, a class for each kind; all of them know their JSON values.

Reading all chunks of a table to find the damaged ones: a thread for each core, and no more memory than for few.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from dpdist._util.cores import available_cores, threaded
from dpdist._util.progress import Count, Progress
from dpdist._util.text import as_json, fields_as_json
from dpdist.errors import DataError
from dpdist.ledger.balance import Balance
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.artefact import Release
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.schema import Schema
from dpdist.rows.table import Table
from dpdist.rows.units import Unit


class LedgerState(enum.StrEnum):
    """Whether the ledger of rows is where it is looked for."""

    NOT_CREATED = "not created"
    NOT_NAMED = "not named"
    NOT_THERE = "not there"
    OF_OTHER_ROWS = "of other rows"
    IN_USE = "in use"


@dataclass(frozen=True)
class LedgerFacts:
    """Where the budget of rows is kept and how it stands.

    Attributes
    ----------
    place
        Where the ledger is looked for; None where nobody here knows.
    state
        Whether it is there.
    budget
        What the rows declare, or None.
    balance, refused
        How it stands, and why nothing new can be released; None where it is not in use, or nothing is in the way.
    """

    place: str | None
    state: LedgerState
    budget: PrivacyLoss | None
    balance: Balance | None = None
    refused: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return fields_as_json(self)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is declared about a folder of any kind.

    Attributes
    ----------
    kind : str
        ``"rows"``, ``"periods"``, ``"release"``, ``"model"`` or ``"scores"``.
    path : str
        The folder.
    private : bool
        Whether it is for whoever may read the rows only.
    damaged : tuple of str or None
        What is wrong, a sentence each; empty if nothing is, None if nobody looked.
    """

    kind: ClassVar[str]
    path: str
    private: bool = True
    damaged: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, object]:
        """Return JSON values by name."""
        head = {"path": self.path, "kind": self.kind, "private": self.private}
        return {**head, **self._own_json(), "damaged": as_json(self.damaged)}

    def _own_json(self) -> dict[str, object]:
        """Return the values that a kind has besides: its own fields."""
        shared = {each.name for each in fields(Facts)}
        found = fields_as_json(self, optional={"schema", "correlation"})
        return {name: value for name, value in found.items() if name not in shared}


@dataclass(frozen=True, kw_only=True)
class RowsFacts(Facts):
    """What is declared about rows.

    Attributes
    ----------
    n, d : int
        Numbers of rows and of columns.
    dtype, chunks, chunk_rows, codec, checksum
        How they are stored.
    bytes : int
        What the chunks take that are there.
    dataset_id : str
        Their random identity.
    columns : tuple of str
        Column names.
    period, unit, reproduced, ledger
        As of rows; ``ledger`` says how their budget stands.
    source : str or None
        Where the chunks are, if they stay there.
    schema : Schema or None
        By what they were made of the columns of their source.
    """

    kind: ClassVar[str] = "rows"
    n: int
    d: int
    dtype: str
    chunks: int
    chunk_rows: int
    codec: str
    checksum: str
    bytes: int
    dataset_id: str
    columns: tuple[str, ...]
    period: str | None
    unit: Unit | None
    reproduced: bool
    ledger: LedgerFacts
    source: str | None
    schema: Schema | None = None


@dataclass(frozen=True, kw_only=True)
class PeriodsFacts(Facts):
    """What is declared about rows that come in periods.

    Attributes
    ----------
    dataset_id : str
        The identity of all of them together.
    periods_closed : int
        How many are closed; ``first_period`` and ``last_period`` name two of them, or are None.
    unit : Unit, optional
        Whose rows these are, how many of a period and in how many periods at most; None: every row counts alone.
    ledger : LedgerFacts
        How their budget stands.
    """

    kind: ClassVar[str] = "periods"
    dataset_id: str
    periods_closed: int
    first_period: str | None
    last_period: str | None
    unit: Unit | None
    ledger: LedgerFacts


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts(Facts):
    """What is known of a release; ``release`` is it."""

    kind: ClassVar[str] = "release"
    release: Release

    def _own_json(self) -> dict[str, object]:
        return {**self.release.attributes(), "cautions": list(self.release.cautions)}


@dataclass(frozen=True, kw_only=True)
class ModelFacts(Facts):
    """What is known of components.

    Attributes
    ----------
    release_id, mechanism, status : str
        Of the release that they are of.
    k : int
        Their number.
    columns : tuple of str
        Column names.
    eigenvalues : bool
        Whether there are eigenvalues.
    schema : Schema or None
        By what rows are made of the columns of a source.
    correlation : bool
        Whether they are components of the correlation matrix.
    """

    kind: ClassVar[str] = "model"
    release_id: str
    mechanism: str
    status: str
    k: int
    columns: tuple[str, ...]
    eigenvalues: bool
    schema: Schema | None = None
    correlation: bool = False


@dataclass(frozen=True, kw_only=True)
class ScoresFacts(Facts):
    """What is declared about scores.

    Attributes
    ----------
    n, k : int
        Numbers of rows and of components.
    dtype, chunks
        How they are stored.
    dataset_id, release_id : str
        Whose scores they are, and of which release.
    """

    kind: ClassVar[str] = "scores"
    n: int
    k: int
    dtype: str
    chunks: int
    dataset_id: str
    release_id: str


AnyFacts = RowsFacts | PeriodsFacts | ReleaseFacts | ModelFacts | ScoresFacts


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
