"""Result of :func:`dpdist.inspect_path`: the public facts about a folder, as JSON values and as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpdist.core.release.artefact import Release
from dpdist.core.rows.schema import Schema
from dpdist.core.text import as_json, labelled, rounded_up

_SHOWN = 6  # column names in a description
Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class Facts:
    """Public description of a folder.

    Attributes
    ----------
    kind : str
        ``"rows"``, ``"periods"``, ``"release"``, ``"matrix"``, ``"session"``, ``"model"`` or
        ``"scores"``.
    title : str
        What it is, in words.
    path : str
        The folder.
    values : mapping of str
        What is known of such a folder, by name.
    lines : list of (str, str)
        The same as text, by label; an empty text is not shown.
    private : bool
        Whether only readers of the rows may see it.
    status : str or None
        Of a release or model that is not private as claimed.
    damaged : tuple of str or None
        Descriptions of damage; empty if there is none, None if not verified.
    release : Release or None
        The release itself.
    """

    kind: str
    title: str
    path: str
    values: Mapping[str, Any]
    lines: Lines
    private: bool = True
    status: str | None = None
    damaged: tuple[str, ...] | None = None
    release: Release | None = None

    def to_json(self) -> dict[str, object]:
        """Return JSON values by name."""
        head = {"path": self.path, "kind": self.kind, "private": self.private}
        return {
            **head,
            **{name: as_json(value) for name, value in self.values.items()},
            "damaged": as_json(self.damaged),
        }

    def describe(self) -> str:
        """Return a text with a line for each fact."""
        lines = [("", f"{self.path}: {self.title}. {self._warning()}."), *(line for line in self.lines if line[1])]
        if self.damaged is not None:
            lines += [("DAMAGED", problem) for problem in self.damaged] or [("verified", "nothing is damaged")]
        return labelled(lines)

    def _warning(self) -> str:
        if not self.private:
            return "Public"
        if self.status is None:
            return "PRIVATE: only for readers of the rows"
        return f"{self.status.upper()}: do not publish it"


def columns_line(names: Sequence[str]) -> str:
    """Return the first names of columns, and their number."""
    hidden = len(names) - _SHOWN
    return f"{len(names)}: {', '.join(names[:_SHOWN])}" + (f" and {hidden} more" if hidden > 0 else "")


def schema_line(schema: Schema | None) -> str:
    """Return the line about the schema of the columns; empty without one."""
    if schema is None:
        return ""
    scaled = "ranges become -1 to 1" if schema.scale == "range" else "as in the source"
    longest = "" if schema.norm is None else f", no row longer than {rounded_up(schema.norm)}"
    hidden = len(schema.columns) - _SHOWN
    shown = "; ".join(column.words for column in schema.columns[:_SHOWN])
    return f"{scaled}{longest}: {shown}" + (f"; and {hidden} more" if hidden > 0 else "")
