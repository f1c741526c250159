"""Results of :func:`dpdist.inspect_path`: a class for each kind of folder, with JSON values and a description.

The fields of a class are its JSON values, in order.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from dpdist.core._version import __version__
from dpdist.core.ledger.balance import Balance
from dpdist.core.pipeline.release import stage_words
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Unit
from dpdist.core.text import as_json, counted, exactly, fields_as_json, labelled, rounded_norm, rounded_up

_SHOWN = 6  # column names in a description
Lines = list[tuple[str, str]]


class LedgerState(enum.StrEnum):
    """State of the ledger of rows."""

    NOT_CREATED = "not created"
    NOT_NAMED = "not named"
    NOT_THERE = "not there"
    OF_OTHER_ROWS = "of other rows"
    IN_USE = "in use"


@dataclass(frozen=True)
class LedgerFacts:
    """The ledger of rows, and the state of their budget."""

    place: str | None  # None if unknown
    state: LedgerState
    budget: PrivacyLoss | None  # declared by the rows
    balance: Balance | None = None
    refused: str | None = None  # reason why new releases are refused

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return fields_as_json(self)

    def __str__(self) -> str:
        budget = "no budget declared" if self.budget is None else f"budget {self.budget}"
        if self.state is not LedgerState.IN_USE:
            return f"{self.place or 'its path'} is {self.state}; {budget}"
        refused = "" if self.refused is None else f". NOTHING NEW CAN BE RELEASED: {self.refused}"
        return f"{self.place}: {budget}; {self.balance}{refused}"


@dataclass(frozen=True, kw_only=True)
class Facts(ABC):
    """Public description of a folder of any kind.

    Attributes
    ----------
    kind : str
        ``"rows"``, ``"periods"``, ``"release"``, ``"matrix"``, ``"model"`` or ``"scores"``.
    path : str
        The folder.
    private : bool
        Whether only readers of the rows may see it.
    damaged : tuple of str or None
        Descriptions of damage; empty if there is none, None if not verified.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    path: str
    private: bool = True
    damaged: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, object]:
        """Return JSON values by name."""
        head = {"path": self.path, "kind": self.kind, "private": self.private}
        return {**head, **self._values(), "damaged": as_json(self.damaged)}

    def describe(self) -> str:
        """Return a text with a line for each fact."""
        lines = [("", f"{self.path}: {self.title}. {self._warning() if self.private else 'Public'}."), *self._lines()]
        if self.damaged is not None:
            lines += [("DAMAGED", problem) for problem in self.damaged] or [("verified", "nothing is damaged")]
        return labelled(lines)

    def _values(self) -> dict[str, object]:
        values = fields_as_json(self, optional={"schema", "correlation"})
        return {name: value for name, value in values.items() if name not in _SHARED}

    def _warning(self) -> str:
        return "PRIVATE: only for readers of the rows"

    @abstractmethod
    def _lines(self) -> Lines: ...


_SHARED = {field.name for field in fields(Facts)}


@dataclass(frozen=True, kw_only=True)
class RowsFacts(Facts):
    """Description of rows."""

    kind: ClassVar[str] = "rows"
    title: ClassVar[str] = "rows"
    n: int
    d: int
    dtype: str
    chunks: int
    chunk_rows: int
    codec: str
    checksum: str
    bytes: int  # of the existing chunks
    dataset_id: str
    columns: tuple[str, ...]
    period: str | None
    unit: Unit | None
    reproduced: bool
    ledger: LedgerFacts
    source: str | None  # if the rows are registered in place
    schema: Schema | None = None

    def _lines(self) -> Lines:
        chunks = f"{counted(self.chunks, 'chunk')} of {counted(self.chunk_rows, 'row')}"
        return [
            ("rows", _rows(self.n)),
            ("columns", columns_line(self.columns)),
            ("stored", f"{self.dtype}, {chunks}, {self.bytes} bytes"),
            ("codec", f"compression {self.codec}, checksum {self.checksum} on every chunk"),
            *([("in place", f"{self.source}: read in place, and must not be changed")] if self.source else []),
            ("data set", self.dataset_id),
            *([("period", self.period)] if self.period else []),
            *schema_lines(self.schema),
            ("unit", _unit(self.unit)),
            *([("reproduced", "released for reproduction: they can have no budget")] if self.reproduced else []),
            ("ledger", str(self.ledger)),
        ]


@dataclass(frozen=True, kw_only=True)
class PeriodsFacts(Facts):
    """Description of rows that come in periods."""

    kind: ClassVar[str] = "periods"
    title: ClassVar[str] = "rows that come in periods"
    dataset_id: str
    periods_closed: int
    first_period: str | None
    last_period: str | None
    unit: Unit | None
    ledger: LedgerFacts

    def _lines(self) -> Lines:
        span = f", {self.first_period} to {self.last_period}" if self.periods_closed else ""
        return [
            ("periods", f"{self.periods_closed} closed{span}"),
            ("unit", _unit(self.unit)),
            ("data set", self.dataset_id),
            ("ledger", str(self.ledger)),
        ]


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts(Facts):
    """Description of a release, with ``release`` itself."""

    kind: ClassVar[str] = "release"
    title: ClassVar[str] = "a release"
    release: Release

    def _values(self) -> dict[str, object]:
        return {**self.release.attributes(), "cautions": list(self.release.cautions)}

    def _warning(self) -> str:
        return f"{self.release.status.upper()}: do not publish it"

    def _lines(self) -> Lines:
        release, bound, weights = self.release, self.release.bound, self.release.weights
        chosen = {} if release.stage is None else release.stage.chosen
        lines = [
            ("release", release.release_id),
            ("mechanism", f"{release.mechanism}, {release.status}"),
            ("proved", release.guarantee_words()),
            *(("caution", caution) for caution in release.cautions),
            ("clip norm", exactly(bound.clip_norm) + (", mean released as well" if bound.constant else "")),
            ("grid", _grid(bound)),
        ]
        if release.stage is not None:
            lines.append(("stage", stage_words(release).strip()))
        if bound.centre is not None and "centre" not in chosen:
            lines.append(("shifted by", "a public centre"))
        if bound.scale is not None and "scale" not in chosen:
            lines.append(("scaled by", "a public scale"))
        lines += [
            ("rows", "not published" if release.rows is None else str(release.rows)),
            ("columns", columns_line(release.names)),
            *schema_lines(release.schema),
            ("noise", release.noise.law),
        ]
        if release.releases:
            lines.append(("sum of", counted(len(release.releases), "release")))
        if release.window:
            lines.append(("window", f"the last {counted(release.window, 'period')}"))
        if weights:
            times = f"each added {min(weights)} to {max(weights)} times"
            lines.append(("weights", f"{counted(len(weights), 'period')}, {times}: no second moment"))
        return [*lines, ("made by", f"dpdist {__version__}")]


@dataclass(frozen=True, kw_only=True)
class ScoresFacts(Facts):
    """Description of scores."""

    kind: ClassVar[str] = "scores"
    title: ClassVar[str] = "scores, private rows in fewer dimensions"
    n: int
    k: int
    dtype: str
    chunks: int
    dataset_id: str
    release_id: str

    def _lines(self) -> Lines:
        return [
            ("rows", _rows(self.n)),
            ("components", f"{self.k}, of release {self.release_id}"),
            ("stored", f"{self.dtype}, {counted(self.chunks, 'chunk')}"),
            ("data set", self.dataset_id),
        ]


def _rows(count: int) -> str:
    return f"{count} (private under add-remove, public under replace-one)"


def columns_line(names: Sequence[str]) -> str:
    """Return the first names of columns, and their number."""
    hidden = len(names) - _SHOWN
    return f"{len(names)}: {', '.join(names[:_SHOWN])}" + (f" and {hidden} more" if hidden > 0 else "")


def _unit(unit: Unit | None) -> str:
    return "one row" if unit is None else f"all rows of one {unit.column}, {unit.most}"


def _grid(bound: RowBound) -> str:
    grid = f"the clip norm is 2^{bound.grid_bits} steps; rows were"
    return f"{grid} clipped to norm {rounded_norm(bound.shortened_norm)}, and rounded without bias"


def schema_lines(schema: Schema | None) -> Lines:
    """Return the line about the schema of the columns."""
    if schema is None:
        return []
    scaled = "ranges become -1 to 1" if schema.scale == "range" else "as in the source"
    longest = "" if schema.norm is None else f", no row longer than {rounded_up(schema.norm)}"
    hidden = len(schema.columns) - _SHOWN
    shown = "; ".join(column.words for column in schema.columns[:_SHOWN]) + (
        f"; and {hidden} more" if hidden > 0 else ""
    )
    return [("schema", f"{scaled}{longest}: {shown}")]
