"""Categories are never shortened: their counts have the noise that the release states, whatever numbers are beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy.stats import chi2

import dpdist
from dpdist import Column, PrivacyLoss, ReleaseRequest, Schema
from dpdist.answers.bias import clipped_rows
from dpdist.core.errors import UsageError
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.rows.columns import Whole
from dpdist.core.rows.dither import DitherKey, Dithers

ROWS = 20_000
KINDS = {"region": 5, "plan": 3, "source": 8}
SCHEMA = Schema(
    [
        *(Column(name, "category", categories=[f"{name}{i}" for i in range(k)]) for name, k in KINDS.items()),
        Column("member", "boolean"),
        Column("spend", "number", missing="indicator"),
        Column("visits", "number"),
    ]
)
LOSS = PrivacyLoss.parse("1", "1e-6")


def customers(seed: int, **more: Any) -> pd.DataFrame:
    """Return a table whose spend is heavy, most of all that of the first region, and missing for some."""
    random = np.random.default_rng(seed)
    columns = {
        name: np.array([f"{name}{i}" for i in range(k)])[random.choice(k, ROWS, p=random.dirichlet(np.ones(k)))]
        for name, k in KINDS.items()
    }
    spend = random.lognormal(3, 1.5, ROWS) * np.where(columns["region"] == "region0", 5, 1)
    spend[random.random(ROWS) < 0.1] = np.nan
    return pd.DataFrame(
        {**columns, "member": random.random(ROWS) < 0.3, "spend": spend, "visits": random.poisson(3, ROWS), **more}
    )


def counted(release: Release) -> tuple[npt.NDArray[np.float64], float]:
    """Return the released sums of the columns of categories in their own units, and the deviation of their noise."""
    bound, sums = release.bound, np.asarray(release.row_sum)
    centre, scale = bound.input_units
    rows = release.rows or release.row_count
    assert rows is not None
    deviation = np.sqrt(release.noise.variance_off_diagonal or 0) * bound.unit / bound.constant
    places = [place for place, name in enumerate(release.names) if "=" in name and not name.startswith("spend")]
    return np.array([sums[place] * scale[place] + rows * centre[place] for place in places]), float(deviation)


def chi_square(release: Release, frame: pd.DataFrame) -> float:
    """Return the chance of counts as far from the exact ones, if they had the noise alone."""
    found, deviation = counted(release)
    exact = pd.get_dummies(frame[list(KINDS)], prefix_sep="=").sum()
    names = [name for name in release.names if name.split("=")[0] in KINDS]
    return float(chi2.sf((((found - exact[names].to_numpy()) / deviation) ** 2).sum(), len(names)))


ASKED = {
    "a public clip norm": {"clip_norm": 20.0, "centring": "private"},
    "a private clip norm": {"clip_norm": "private", "centring": "private"},
    "a private scale": {"clip_norm": "auto", "scale": "private", "centring": "private"},
    "both": {"clip_norm": "private", "scale": "private", "centring": "private"},
}


@pytest.mark.parametrize("name", ASKED)
def test_counts_have_no_error_but_the_noise_beside_a_heavy_number(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """False-alarm rate 1e-5 for each. The twin clips rows whole, and its counts are too low."""
    frame = customers(3)
    frame.to_parquet(tmp_path / "t.parquet")
    budget = PrivacyLoss.parse("9", "1e-5")
    dpdist.ingest_rows(tmp_path / "t.parquet", tmp_path / "t.zarr", budget=budget, schema=SCHEMA)
    request = ReleaseRequest("gaussian", LOSS, **ASKED[name])  # type: ignore[arg-type]
    found = dpdist.release_rows(tmp_path / "t.zarr", tmp_path / "r.zarr", request).release
    assert found.bound.whole == (*range(17), 18)
    assert chi_square(found, frame) > 1e-5
    if name == "a public clip norm":
        dpdist.ingest_rows(tmp_path / "t.parquet", tmp_path / "u.zarr", budget=budget, schema=SCHEMA)
        monkeypatch.setattr(Schema, "whole", lambda *_: Whole())
        twin = dpdist.release_rows(tmp_path / "u.zarr", tmp_path / "twin.zarr", request).release
        assert chi_square(twin, frame) < 1e-9


def test_neighbours_and_units_pay_for_the_norm_of_a_whole_row() -> None:
    """The sensitivity in steps is that of any row of this norm: of numbers and categories together."""
    request = ReleaseRequest("gaussian", LOSS, 3.0, centring="private")  # type: ignore[arg-type]
    for neighbours in Neighbours:
        for changed in (1, 4):
            size = Dimensions(len(SCHEMA.features), 10**6, changed, changed, SCHEMA)
            beside = planned(replace(request, neighbours=neighbours, grid_bits=12), size)
            alone = planned(replace(request, neighbours=neighbours, grid_bits=12), replace(size, schema=None))
            assert beside.moment.noise == alone.moment.noise
            assert beside.bound.norm_bound == alone.bound.norm_bound
            assert beside.bound.row_norm == pytest.approx(np.hypot(3, np.sqrt(2.84 + 1)), rel=0.005)


def test_every_row_of_complete_categories_has_the_norm_that_the_schema_states() -> None:
    frame = customers(5, spend=1.0)
    rows = SCHEMA.transform(frame).to_numpy()
    centre, scale = map(np.array, SCHEMA.contrasts())
    whole = SCHEMA.whole(*SCHEMA.contrasts())
    norms = np.linalg.norm(((rows - centre) / scale)[:, list(whole.columns)], axis=1)
    assert norms == pytest.approx(whole.norm, rel=1e-12)
    assert whole.norm**2 == pytest.approx(sum(1 - 1 / k for k in (*KINDS.values(), 2)))
    assert whole.longest**2 == pytest.approx(whole.norm**2 + 1)
    about_zero = SCHEMA.whole()
    assert about_zero.norm == pytest.approx(2)
    assert SCHEMA.norm is None
    assert SCHEMA.numbers_norm is None


@pytest.mark.parametrize("scale", ["none", "range"])
@pytest.mark.parametrize("missing", [None, "indicator", "fill"])
def test_the_norms_of_a_schema_are_attained_and_not_exceeded(scale: str, missing: str | None) -> None:
    lacking = {} if missing is None else {"missing": missing}
    fill = {"fill": "a", **lacking} if missing == "fill" else lacking
    number = {"fill": 1, **lacking} if missing == "fill" else lacking
    truth = {"fill": True, **lacking} if missing == "fill" else lacking
    schema = Schema(
        [
            Column("c", "category", categories=["a", "b", "c"], weight=1.5, **fill),
            Column("o", "category", categories=["x", "y"], other="column"),
            Column("b", "boolean", weight=2, **truth),
            Column("n", "number", range=(-2, 6), **number),
        ],
        scale=scale,
    )
    values: dict[str, list[Any]] = {"c": ["a", "b", "c"], "o": ["x", "y", "z"], "b": [True, False], "n": [-2.0, 6.0]}
    if missing:
        for name in ("c", "b", "n"):
            values[name].append(None)
    table = pd.MultiIndex.from_product(values.values(), names=values.keys()).to_frame(index=False)
    table = table.astype({"b": "boolean", "n": float})
    rows = schema.transform(table).to_numpy()
    for vectors in ((None, None), schema.contrasts()):
        whole = schema.whole(*vectors)
        centre, unit = (
            (np.zeros(rows.shape[1]), np.ones(rows.shape[1])) if vectors[0] is None else map(np.array, vectors)
        )
        shifted = (rows - centre) / unit
        assert np.linalg.norm(shifted[:, list(whole.columns)], axis=1).max() == pytest.approx(whole.longest)
    assert schema.norm is not None
    assert np.linalg.norm(rows, axis=1).max() <= schema.norm * (1 + 1e-12)


FLAGS = Schema(
    [
        *(Column(f"f{i}", "boolean", weight=3 if i == 0 else None) for i in range(4)),
        *(Column(f"n{i}", "number", missing="indicator") for i in range(3)),
        Column("y", "number"),
    ]
)


def flagged(seed: int) -> pd.DataFrame:
    """Return flags, numbers of which many are missing, and a heavy number that has to do with neither."""
    random = np.random.default_rng(seed)
    flags = {f"f{i}": random.random(ROWS) < 0.4 for i in range(4)}
    numbers = {f"n{i}": np.where(random.random(ROWS) < 0.5, np.nan, random.normal(size=ROWS)) for i in range(3)}
    return pd.DataFrame({**flags, **numbers, "y": random.lognormal(1, 1, ROWS)})


@pytest.mark.parametrize("vectors", ["contrasts", "public", "none"])
def test_every_row_has_its_numbers_clipped_to_one_norm_whatever_its_categories(vectors: str) -> None:
    """Else clipping would relate numbers to flags, and to gaps, that have nothing to do with them."""
    frame = flagged(2)
    rows, size = FLAGS.transform(frame).to_numpy(), len(FLAGS.features)
    public = {"centre": (0.1,) * size, "scale": (2.0,) * size} if vectors == "public" else {}
    centring = "private" if vectors == "contrasts" else "none"
    request = ReleaseRequest("gaussian", LOSS, 2.0, centring=centring, grid_bits=14, **public)  # type: ignore[arg-type]
    bound = planned(request, Dimensions(size, ROWS, schema=FLAGS)).bound
    z = bound.apply(rows, np.empty((ROWS, bound.width)), Dithers(DitherKey(bytes(32)), 0))[:, list(bound.numbers)]
    shifted = np.empty(rows.shape)
    bound.shifted(rows, shifted)
    lengths = np.linalg.norm(shifted[:, list(bound.numbers)], axis=1)
    clipped = np.linalg.norm(z * bound.unit, axis=1)
    assert bound.numbers_norm == pytest.approx(2, rel=1e-4)
    assert clipped == pytest.approx(np.minimum(lengths, bound.numbers_norm), abs=3 * bound.unit)
    assert (lengths > 2).mean() > 0.2


def test_where_no_number_is_to_choose_a_private_choice_is_that_of_the_schema_and_costs_nothing(tmp_path: Path) -> None:
    frame = customers(1)[list(KINDS)]
    single = [Column("one", "category", categories=["x"]), Column("two", "category", categories=["y"])]
    for name, columns in (("one", single), ("kinds", SCHEMA.columns[:3])):
        schema, source = Schema(columns, others="ignored"), frame.assign(one="x", two="y")
        source.to_parquet(tmp_path / f"{name}.parquet")
        rows = tmp_path / f"{name}.zarr"
        dpdist.ingest_rows(tmp_path / f"{name}.parquet", rows, budget=LOSS, schema=schema)
        request = ReleaseRequest("gaussian", LOSS, "schema")
        if name == "one":
            with pytest.raises(UsageError, match="no column varies"):
                dpdist.release_rows(rows, tmp_path / "no.zarr", request)
            assert dpdist.Ledger(tmp_path / f"{name}.ledger").records == []
    found = dpdist.release_rows(rows, tmp_path / "kinds.release.zarr", request).release
    for asked in ({"clip_norm": "auto", "scale": "private"}, {"clip_norm": "private"}):
        for centring in ("private", "schema", None):
            same = replace(request, **asked, centring=centring)  # type: ignore[arg-type]
            again = dpdist.release_rows(rows, tmp_path / "kinds.release.zarr", same)
            assert (again.release.release_id, again.fresh) == (found.release_id, False)
    with pytest.raises(UsageError, match="only categories and booleans"):
        dpdist.release_rows(
            rows, tmp_path / "no.zarr", replace(same, scale="private", clip_norm="auto", targets=("plan=plan0",))
        )
    assert len(dpdist.Ledger(tmp_path / "kinds.ledger").records) == 1
    lengths = clipped_rows(found)
    assert lengths.longest == pytest.approx(lengths.norm, rel=1e-4)
    assert chi_square(found, frame) > 1e-5


def test_a_target_that_is_a_boolean_weighs_more_and_a_public_centre_may_be_beside_a_private_scale(
    tmp_path: Path,
) -> None:
    customers(6).to_parquet(tmp_path / "t.parquet")
    budget = PrivacyLoss.parse("9", "1e-5")
    dpdist.ingest_rows(tmp_path / "t.parquet", tmp_path / "t.zarr", budget=budget, schema=SCHEMA)
    request = ReleaseRequest("gaussian", LOSS, 8.0, scale="private", centring="private")  # type: ignore[arg-type]
    plain = dpdist.release_rows(tmp_path / "t.zarr", tmp_path / "plain.zarr", request).release
    aimed = replace(request, targets=("member",))
    target = dpdist.release_rows(tmp_path / "t.zarr", tmp_path / "target.zarr", aimed).release
    place = plain.names.index("member")
    assert plain.bound.scale is not None
    assert target.bound.scale is not None
    assert target.bound.scale[place] == pytest.approx(plain.bound.scale[place] / 2, rel=1e-5)  # a quarter of C
    centre = (0.0,) * len(SCHEMA.features)
    given = dpdist.release_rows(tmp_path / "t.zarr", tmp_path / "given.zarr", replace(request, centre=centre)).release
    assert given.bound.centre == centre
    assert chi_square(given, customers(6)) > 1e-5


def test_a_table_in_memory_with_a_schema_is_released_as_its_file_would_be(tmp_path: Path) -> None:
    frame = customers(9)
    schema = Schema(
        [replace(column, missing="pairwise") if column.name == "spend" else column for column in SCHEMA.columns]
    )
    pca = dpdist.private_pca(
        frame, epsilon=1, delta="1e-6", schema=schema, each_row_is_a_person=True, say=lambda _: None
    )
    frame.to_parquet(tmp_path / "t.parquet")
    dpdist.ingest_rows(tmp_path / "t.parquet", tmp_path / "t.zarr", budget=LOSS, schema=schema)
    request = ReleaseRequest("gaussian", LOSS, "auto", scale="private", centring="private")  # type: ignore[arg-type]
    filed = dpdist.release_rows(tmp_path / "t.zarr", tmp_path / "r.zarr", request).release
    found = pca.release_
    assert (found.schema, found.names, found.noise) == (schema, filed.names, filed.noise)
    assert found.stage is not None
    assert filed.stage is not None
    assert found.stage.mechanism == filed.stage.mechanism
    assert (found.bound.whole, found.bound.whole_norm, found.bound.constant) == (
        filed.bound.whole, filed.bound.whole_norm, filed.bound.constant,
    )  # fmt: skip
    assert chi_square(found, frame) > 1e-5
    saved = tmp_path / "saved.zarr"
    kinds = Schema(schema.columns[:3])
    with pytest.warns(UserWarning, match="charge all fits on the same people"):
        alone = dpdist.private_pca(
            frame[list(KINDS)], epsilon=1, delta="1e-6", schema=kinds, each_row_is_a_person=True, say=lambda _: None,
            release=saved,
        )  # fmt: skip
    assert alone.release_.stage is None
    assert alone.release_.bound.constant == 2 ** (alone.release_.bound.grid_bits - 2)
    assert chi_square(dpdist.open_release(saved), frame) > 1e-5
