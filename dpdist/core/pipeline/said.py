"""What was said of a file whose rows are released: apart, as commands that read no file need no reader of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpdist.core.errors import UsageError
from dpdist.core.naming import parameter
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Owner
from dpdist.core.text import listed


@dataclass(frozen=True)
class Reading:
    """What was said of a file."""

    schema: Schema | Any = None  # or its path
    header: str | None = None
    owner: Owner = Owner()  # noqa: RUF009 - frozen
    columns: tuple[str, ...] = ()  # to keep, in this order; () for all
    ignore: tuple[str, ...] = ()  # to leave out

    def __post_init__(self) -> None:
        if self.columns and self.ignore:
            raise UsageError(f"{parameter('columns')} and {parameter('ignore')} exclude each other. Give one of them.")

    @property
    def given(self) -> bool:
        """Whether anything was said."""
        return self != Reading()

    def kept(self, source: object, names: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to keep, of those of a source; the privacy unit is not among them."""
        option, chosen = ("columns", self.columns) if self.columns else ("ignore", self.ignore)
        if unknown := [name for name in chosen if name not in names]:
            raise UsageError(
                f"{source} has no column {listed(map(repr, unknown))}. It has: {listed(map(repr, names))}.",
                parameter=option,
            )
        if len(set(chosen)) < len(chosen):
            raise UsageError("A column is named twice. Name each column once.", parameter=option)
        if self.columns:
            return self.columns
        return tuple(name for name in names if name not in self.ignore)
