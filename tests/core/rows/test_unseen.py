"""Characters that cannot be seen do not make two persons, categories or columns of one name."""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import xarray
from support.ingest_scene import stored

from dpdist import Column, PrivatePCA, Schema, ingest_rows
from dpdist.core.errors import DataError, UsageError
from dpdist.core.rows.units import spelled
from dpdist.core.text import has_control, visible

UNSEEN = {
    "zero width space": "\u200b", "zero width joiner": "\u200d", "word joiner": "\u2060", "soft hyphen": "\u00ad",
    "byte order mark": "\ufeff", "right-to-left mark": "\u200f", "isolate": "\u2068", "variation selector": "\ufe0f",
    "ideographic variation": "\U000e0100", "tag": "\U000e0041", "grapheme joiner": "\u034f", "Hangul filler": "\u3164",
    "Mongolian separator": "\u180e", "annotation": "\ufff9", "blank": "\u2800",
}  # fmt: skip
PLACES = ("{}A 1", "A{} 1", "A 1{}")


def test_every_format_character_of_unicode_is_removed_unless_it_has_a_shape() -> None:
    shaped = {
        *range(0x0600, 0x0606),
        0x06DD,
        0x070F,
        0x0890,
        0x0891,
        0x08E2,
        0x110BD,
        0x110CD,
    }  # Arabic, Syriac, Kaithi
    unseen = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Cf"} - shaped
    assert [hex(code) for code in unseen if visible(f"a{chr(code)}b") not in {"ab", "a b"}] == []
    assert [hex(code) for code in unseen if not has_control(f"a{chr(code)}b")] == []


def test_a_name_with_a_character_that_cannot_be_seen_is_the_same_person(tmp_path: Path) -> None:
    names = ["A 1", *(place.format(unseen) for unseen in UNSEEN.values() for place in PLACES)]
    assert {*map(spelled, names), spelled("A\u00a01\0")} == {"A 1"}
    schema = Schema([Column("id", "privacy unit"), Column("a", "number"), Column("b", "number")], max_rows=1)
    frame = pd.DataFrame({"id": names, "a": range(len(names)), "b": 1})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    for number, source in enumerate((tmp_path / "t.csv", tmp_path / "t.parquet", frame)):
        assert ingest_rows(source, tmp_path / f"{number}.zarr", schema=schema).rows == 1


@pytest.mark.parametrize("kind", ["zero width space", "ideographic variation"])
def test_labels_of_rows_with_a_character_that_cannot_be_seen_are_the_same_person(tmp_path: Path, kind: str) -> None:
    names = ["A 1", *(place.format(UNSEEN[kind]) for place in PLACES)]
    rows = np.arange(2.0 * len(names)).reshape(-1, 2)
    with pytest.raises(DataError, match="Two rows have the same 'who'"):
        PrivatePCA(epsilon=1).fit(xarray.DataArray(rows, dims=("who", "item"), coords={"who": names}))
    cells = anndata.AnnData(rows.astype("f4"), obs=pd.DataFrame(index=names))
    with pytest.raises(DataError, match="duplicate observation names"):
        PrivatePCA(epsilon=1).fit(cells)
    cells.write_h5ad(tmp_path / "t.h5ad")
    with pytest.raises(DataError, match="names a sample twice"):
        ingest_rows(tmp_path / "t.h5ad", tmp_path / "no.zarr")


def test_a_category_is_read_as_it_is_seen(tmp_path: Path) -> None:
    schema = Schema([Column("a", "number"), Column("c", "category", categories=["red", "\u00e9"], other="column")])
    spellings = [*(f"re{unseen}d" for unseen in UNSEEN.values()), "e\u0301", "blue"]
    ingest_rows(pd.DataFrame({"a": range(len(spellings)), "c": spellings}), tmp_path / "rows.zarr", schema=schema)
    expected = [*([[1, 0, 0]] * len(UNSEEN)), [0, 1, 0], [0, 0, 1]]
    assert stored(tmp_path / "rows.zarr")[:, 1:].tolist() == expected


@pytest.mark.parametrize("kind", UNSEEN)
def test_a_schema_or_column_with_a_character_that_cannot_be_seen_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UsageError, match="control or invisible characters"):
        Schema([Column("a", "number"), Column("c", "category", categories=["red", f"red{UNSEEN[kind]}"])])
    with pytest.raises(DataError, match="holds a control or invisible character"):
        ingest_rows(pd.DataFrame({"a": [1], f"b{UNSEEN[kind]}": [2]}), tmp_path / "no.zarr")


def test_names_that_look_the_same_are_one_column_or_category(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="several columns with the same name: \u00e9"):
        ingest_rows(pd.DataFrame({"e\u0301": [1], "\u00e9": [2]}), tmp_path / "no.zarr")
    with pytest.raises(UsageError, match="duplicate categories"):
        Schema([Column("a", "number"), Column("c", "category", categories=["e\u0301", "\u00e9"])])


def test_a_cell_of_nothing_that_can_be_seen_is_a_missing_person(tmp_path: Path) -> None:
    schema = Schema([Column("id", "privacy unit"), Column("a", "number"), Column("b", "number")], max_rows=1)
    frame = pd.DataFrame({"id": ["A1", "\u200b\u00a0"], "a": [1, 2], "b": [1, 2]})
    with pytest.raises(DataError, match="the privacy unit is missing"):
        ingest_rows(frame, tmp_path / "no.zarr", schema=schema)


@pytest.mark.parametrize(
    "name", ["\u0645\u06cc\u200c\u0634\u0648\u062f", "\u0915\u094d\u200d\u0937", "caf\u00e9", "\u5e74\u9f62"]
)
def test_joiners_that_a_script_needs_are_part_of_a_column_name(name: str) -> None:
    assert not has_control(name)
