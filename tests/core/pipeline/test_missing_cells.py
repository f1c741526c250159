"""Cells without a number count as the centre of their column, and the rest of their row is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from support.parts import table_of, whole_of

from dpdist.answers.fitting import fit_components
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.moment.histograms import ColumnCounting, HistogramTask, NormCounting, partition_histogram
from dpdist.core.moment.total import partition_moment
from dpdist.core.pipeline.release import release_rows
from dpdist.core.pipeline.scores import project_rows
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema

pytestmark = pytest.mark.usefixtures("state")
ROWS, CENTRE = 3000, (40.0, 170.0, -2.0)
LACKING = np.random.default_rng(3).random((ROWS, 3)) < 0.2
VALUES = np.where(LACKING, np.nan, np.random.default_rng(4).normal(size=(ROWS, 3)) * (12, 9, 3) + CENTRE)
SCHEMA = Schema([Column(name, "number", missing="centre", other="missing") for name in "abc"])
REQUEST = ReleaseRequest("gaussian", PrivacyLoss.parse("4", "1e-6"), "auto", scale="private")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    words = np.random.default_rng(5).choice(["", "NA", "?", "not known", "-"], size=VALUES.shape)
    cells = np.where(LACKING, words, np.char.mod("%.17g", np.nan_to_num(VALUES)))
    (tmp_path / "t.csv").write_text("a,b,c\n" + "".join(f"{','.join(line)}\n" for line in cells))
    ingest_rows(
        tmp_path / "t.csv", tmp_path / "t.zarr", schema=SCHEMA, header="yes", budget=PrivacyLoss.parse("99", "1e-5")
    )
    return tmp_path / "t.zarr"


def test_sums_and_histograms_are_those_of_a_table_filled_with_the_centre(rows: Path, tmp_path: Path) -> None:
    table = open_rows(rows)
    assert np.array_equal(zarr.open_array(rows, mode="r")[...], VALUES, equal_nan=True)
    filled = table_of(tmp_path / "filled.zarr", np.where(LACKING, CENTRE, VALUES))
    bound = RowBound(3, 2.0, 12, CENTRE, (12.0, 9.0, 3.0))
    found, expected = (partition_moment(whole_of(each, bound)) for each in (table, filled))
    assert np.array_equal(found.values, expected.values)
    norms = NormCounting(bound, (0.5, 1.0, 2.0, 4.0))
    counts = [partition_histogram(HistogramTask(each, norms, range(each.chunks))).values for each in (table, filled)]
    assert np.array_equal(counts[0], counts[1])
    columns = ColumnCounting.of(table.columns, table.schema)
    counted = columns.of_columns(partition_histogram(HistogramTask(table, columns, range(table.chunks))).values)
    assert [count.sum() for count in counted] == (~LACKING).sum(axis=0).tolist()


def test_a_release_needs_a_centre_and_the_rest_of_a_row_counts(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"missing value of a, b, c counts as the centre.*scale='private'"):
        release_rows(rows, tmp_path / "r.zarr", replace(REQUEST, scale=None, clip_norm=9, centring=Centring.PRIVATE))
    release = release_rows(rows, tmp_path / "r.zarr", replace(REQUEST, centring=Centring.PRIVATE)).release
    assert release.rows == ROWS
    fit_components(tmp_path / "r.zarr", tmp_path / "m.zarr", 2)
    project_rows(rows, tmp_path / "m.zarr", tmp_path / "s.zarr")
    scores = np.asarray(zarr.open_array(tmp_path / "s.zarr", mode="r")[...])
    whole = LACKING.all(axis=1)
    assert np.isfinite(scores).all()
    assert np.abs(scores[whole]).max() < 1e-9
    assert (np.abs(scores[~whole]).max(axis=1) > 0).all()


def test_text_with_a_digit_is_refused_and_not_counted_as_missing(tmp_path: Path) -> None:
    """1,234 is a number of another form, and no missing value."""
    for cell in ('"1,234"', "12%", "Q3"):
        (tmp_path / "t.csv").write_text(f"a,b\n1,2\n3,{cell}\n")
        with pytest.raises(DataError, match=r"line 3, column 'b': the cell is not a number"):
            ingest_rows(
                tmp_path / "t.csv", tmp_path / "t.zarr", header="yes",
                schema=Schema([Column(name, "number", missing="centre", other="missing") for name in "ab"]),
            )  # fmt: skip
    with pytest.raises(UsageError, match='other = "column" is for categories'):
        Schema([Column("a", "number", other="column")])
