"""What a row becomes depends on that row and the schema alone, as the theorem of schemas says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from dpdist import Column, Schema
from dpdist.core.errors import DataError
from dpdist.core.rows.columns import Column as AnyColumn

CELLS = [
    "New York", "New\tYork", " New York", "New York ", "New\u00a0York", "New\x0bYork", "New\x00York", "New\x7fYork",
    "Z\u00fcrich", "Zu\u0308rich", "\u200bZ\u00fcrich", "Paris", "", "NA", "1", "1.0", "01", None,
    "New\u2028York", "\ufeff1", "ja", "yes", "true", "2020-01-31", "2020-01-31 12:00:00+02:00", "31.01.2020",
]  # fmt: skip
COLUMNS = [
    Column("x", "category", categories=["New York", "Z\u00fcrich", "1"], other="column", missing="indicator"),
    Column("x", "category", categories=["New York", "Z\u00fcrich"], other="missing", encoding="ordinal",
           missing="centre"),
    Column("x", "number", other="missing", missing="pairwise"), Column("x", "boolean", missing="indicator"),
    Column("x", "date", missing="pairwise"),
    Column("x", "number", range=(0, 9), bins=[1, 2], other="missing", missing="indicator"),
]  # fmt: skip


def alone(schema: Schema, cells: Sequence[Any]) -> np.ndarray | None:
    frame = pd.DataFrame({"x": pd.Series(list(cells), dtype=object), "y": np.arange(len(cells)) * 1.0})
    try:
        return schema.transform(frame).to_numpy()  # type: ignore[no-any-return]
    except DataError:
        return None


OBJECTS = [
    np.float16(0.5), 1, True, np.True_, 1.5, np.float32(0.1), 2**60 + 1, Decimal("1.5"), Decimal("1e30"), UUID(int=1),
    None, np.nan, "1", "true", date(2020, 1, 2), datetime(2020, 1, 2, 3, 4, tzinfo=UTC), np.int8(3), float("inf"),
]  # fmt: skip
KINDS = [
    Column("x", "number", range=(0, 9), missing="pairwise"),
    Column("x", "category", categories=["true", "1"], other="column", missing="indicator"),
    Column("x", "boolean", missing="indicator"), Column("x", "date", missing="pairwise"),
]  # fmt: skip


@pytest.mark.parametrize("column", KINDS, ids=lambda column: column.kind)
def test_an_object_is_read_alike_beside_any_other_or_both_are_refused(column: AnyColumn) -> None:
    schema = Schema([column, Column("y", "number")])
    seen = 0
    for cell in OBJECTS:
        own = alone(schema, [cell])
        for other in OBJECTS:
            both = alone(schema, [cell, other])
            if both is not None:
                assert own is not None, (cell, other)
                np.testing.assert_array_equal(both[:1], own, err_msg=f"{cell!r} beside {other!r}")
                seen += 1
    assert seen > len(OBJECTS)


def test_a_large_whole_number_beside_a_gap_keeps_all_its_digits() -> None:
    large = 2**60 + 1
    schema = Schema([Column("x", "category", categories=[str(large), str(large - 1)], missing="indicator")])
    for gap in (None, np.nan, pd.NA):
        rows = schema.transform(pd.DataFrame({"x": pd.Series([large, gap, large - 1], dtype=object)}))
        np.testing.assert_array_equal(rows, [[1, 0, 0], [0, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: f"{column.kind} {column.encoding or ''}")
def test_a_cell_is_read_alike_beside_any_other(column: AnyColumn) -> None:
    schema = Schema([column, Column("y", "number")])
    for cell in CELLS:
        own = alone(schema, [cell])
        for other in CELLS:
            both = alone(schema, [cell, other])
            if own is None or alone(schema, [other]) is None:
                assert both is None, (cell, other)
            else:
                assert both is not None, (cell, other)
                np.testing.assert_array_equal(both[:1], own, err_msg=f"{cell!r} beside {other!r}")
