"""Tables with typed columns: numbers, or mapped to numbers by a schema.

Each batch is mapped separately on its reader, so the bits of a row do not depend on other rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import CURE, NoRowsError, Places, Rows
from dpdist.core.ingest.readers.source import Fragment, Head, Source, Survey
from dpdist.core.rows.automatic import TextColumns
from dpdist.core.rows.draft import Looks
from dpdist.core.rows.encoding import Fault, UnfitError, encoded, is_text, require_types, units_of


class Tabular(Source):
    """A table; columns that are not kept, or mapped by a schema, need not be numbers."""

    takes: ClassVar[tuple[str, ...]] = ("schema",)

    @property
    @abstractmethod
    def stored(self) -> Head:
        """The stored columns, followed by the keys of the folders."""

    @abstractmethod
    def cells(self, columns: Places, fragment: Fragment = None) -> Generator[Any]:
        """Yield stored columns, in this order, as Arrow batches."""

    @abstractmethod
    def numbers(self, keep: Places, fragment: Fragment) -> Generator[Rows]:
        """Yield columns of numbers."""

    @abstractmethod
    def number_survey(self, keep: Places, fragment: Fragment) -> Survey:
        """Return rows and type of columns of numbers."""

    def row_in(self, fragment: Fragment, row: int) -> str:
        """Return the name of a row in messages, by its index in a fragment."""
        return f"row {row + (0 if fragment is None else fragment[0])} (counting from 0)"

    @cached_property
    def head(self) -> Head:
        schema = self.choices.schema
        if schema is None:
            return self.stored
        self._mapped  # noqa: B018 - validates
        return self.stored._replace(names=schema.features, indexes=(), stored=self.stored.names)

    @cached_property
    def _mapped(self) -> dict[str, int]:
        """Indices of the columns of the schema by name; UsageError if some are missing."""
        schema, stored = self.choices.schema, self.stored
        if schema is None:
            return {}
        indexes = {stored.names[index]: index for index in schema.places(stored.names)}
        if stored.kinds is not None:
            require_types(schema, dict(zip(stored.names, stored.kinds, strict=True)))
        return indexes

    def survey(self, keep: Places, fragment: Fragment = None) -> Survey:
        if self.choices.schema is None:
            return self.number_survey(keep, fragment)
        rows = self.stored.rows
        if rows is None:
            with closing(self.blocks((), fragment)) as blocks:
                rows = sum(map(len, blocks))
        if not rows and fragment is None:
            raise NoRowsError(f"{self.path} has no rows. Add some.")
        return Survey(rows, "float64")

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        schema = self.choices.schema
        if schema is None:
            yield from self.numbers(keep, fragment)
            return
        all_columns = keep == tuple(range(len(schema.features)))
        for block in self._encode_batches(fragment, partial(encoded, schema)):
            yield block if all_columns else block[:, list(keep)]

    def rows(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        # a schema marks dropped rows by NaN, and refuses other non-finite values
        return super().rows(keep, fragment) if self.choices.schema is None else self.blocks(keep, fragment)

    @property
    def unclear_columns(self) -> dict[str, Looks]:
        stored, found = self.stored, TextColumns()
        text = {name: i for i, name in enumerate(stored.names) if stored.kinds is None or is_text(stored.kinds[i])}
        with closing(self.cells(tuple(text.values()))) as batches:
            for batch in batches:
                for name, cells in zip(text, batch.columns, strict=True):
                    found.add(name, cells)
        return found.unclear

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        schema = self.choices.schema
        if schema is None:
            return super().units(key, labels)
        return self._encode_batches(None, lambda columns, _: iter([units_of(schema, columns, key)]))

    def _encode_batches(
        self, fragment: Fragment, make: Callable[[Mapping[str, Any], int], Iterator[Rows]]
    ) -> Generator[Rows]:
        """Map each batch; the error names all columns with invalid values."""
        faults, row, failed = dict[str, Fault](), 0, ""
        with closing(self.cells(tuple(self._mapped.values()), fragment)) as batches:
            for batch in batches:
                columns = dict(zip(self._mapped, batch.columns, strict=True))
                try:
                    for block in make(columns, batch.num_rows):
                        if not faults:
                            yield block
                except UnfitError as error:
                    for fault in error.after(row).faults:
                        faults.setdefault(fault.column, fault)
                except pa.ArrowException as error:  # may quote a cell
                    failed = type(error).__name__
                if failed:
                    raise DataError(
                        f"{self.path} cannot be read: Arrow does not support the type of a column ({failed}). Write it "
                        "with plain types; in Python: pyarrow.parquet.write_table(TABLE, NEW)."
                    )
                row += batch.num_rows
        if faults:
            raise UnfitError(*faults.values()).refusal(str(self.path), partial(self.row_in, fragment), CURE)


def matrix(columns: Sequence[Any], rows: int, dtype: npt.DTypeLike) -> Rows:
    """Stack Arrow columns, (rows, columns)."""
    out = np.empty((len(columns), rows), dtype=dtype)
    for index, column in enumerate(columns):
        out[index] = as_numpy(column)
    return out.T


def as_numpy(column: Any) -> Rows:
    """Convert an Arrow column to NumPy."""
    if (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) and not column.null_count:
        values: Any = np.from_dlpack(column)  # to_numpy would import pandas
    else:
        values = column.to_numpy(zero_copy_only=False)
    numbers: Rows = values
    return numbers
