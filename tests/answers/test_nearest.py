"""The nearest moment that rows can have, on request: in pca, regress, relate, the report and the estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call
from support.releases import assemble_drawn

from dpdist import Column, Neighbours, PrivacyLoss, PrivatePCA, PrivateRidge, Release, ReleaseRequest, Schema
from dpdist.answers.block import block_of
from dpdist.answers.feasible import nearest
from dpdist.answers.regression import regressions
from dpdist.answers.variables import variables
from dpdist.core.errors import UsageError
from dpdist.estimators.fit import save
from dpdist.report.html import write

N = 6000
KINDS = {"a": 6, "b": 12, "c": 4}
SCHEMA = Schema(
    [*(Column(name, "category", categories=[str(i) for i in range(k)]) for name, k in KINDS.items()),
     Column("d", "boolean"), *(Column(name, "number", range=(-3, 3)) for name in "xyz")],
    "range",
)  # fmt: skip


def table(seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    g, h = random.normal(size=(2, N))
    columns: dict[str, Any] = {
        name: np.clip((g + random.normal(0, 0.8, N) + 2) / 4 * k, 0, k - 1).astype(int).astype(str)
        for name, k in KINDS.items()
    }
    columns["d"] = g + random.normal(size=N) > 0.5
    for weights, name in zip(((1, 0), (0.5, 1), (0, -1)), "xyz", strict=True):
        columns[name] = np.clip(weights[0] * g + weights[1] * h + random.normal(0, 0.7, N), -3, 3)
    return pd.DataFrame(columns)


FRAME = table()


def draws(epsilon: str = "1", neighbours: Neighbours = Neighbours.REPLACE_ONE) -> Any:
    asked = ReleaseRequest("gaussian", PrivacyLoss.parse(epsilon, "1e-6"), "schema", neighbours, rows_at_most=2 * N)
    return assemble_drawn(asked, SCHEMA, FRAME)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save(next(draws("0.3")), tmp_path / "r.zarr")
    return tmp_path / "r.zarr"


@pytest.mark.parametrize("neighbours", Neighbours)
def test_the_nearest_moment_is_one_of_rows_and_nearer(neighbours: Neighbours) -> None:
    release, exact = next(draws("1", neighbours)), variables(next(draws("1000000", neighbours)))
    near, remark = nearest(release)
    assert "From the nearest moment that rows can have" in remark
    held = variables(near)
    assert np.linalg.eigvalsh(held.moment)[0] > -0.02 * np.sqrt(2 * held.precision.noise * len(held.moment))
    assert held.rows == pytest.approx(variables(release).rows)  # the count is that of the closed form
    scale = (held.precision.constant / exact.precision.constant) ** 2  # grids differ
    before, after = (np.linalg.norm(each.moment - exact.moment * scale) for each in (variables(release), held))
    assert after < 0.9 * before
    again, _ = nearest(near)
    assert np.abs(variables(again).moment - held.moment).max() < 0.01 * np.sqrt(held.precision.noise)


def test_slopes_of_the_nearest_moment_are_within_their_intervals() -> None:
    """60 releases: .97 hold on average, and .83 of one slope, as of the released moment; half as wide ones do not."""
    exact, inside, halves = next(draws("1000000")), [], []
    names = exact.names
    target = names.index("y")
    for _, release in zip(range(60), draws("1"), strict=False):
        near, _ = nearest(release)
        on = [place for place in range(len(names)) if place != target]
        (fit,) = regressions(near, [target], on, None)
        used = [names.index(name) for name in fit.names]
        moment = block_of(exact, [*used, target]).moment
        centred = moment - np.outer(moment[-1], moment[-1]) / moment[-1, -1]
        p = len(used)
        truth = np.linalg.solve(centred[:p, :p] + fit.ridge * np.eye(p), centred[:p, p])
        ends = np.array([each.interval for each in fit.coefficients])
        middle, reach = ends.mean(axis=1), np.ptp(ends, axis=1) / 2
        inside.append(np.abs(truth - middle) <= reach)
        halves.append(np.abs(truth - middle) <= reach / 2)
    assert np.mean(inside) > 0.93
    assert np.mean(inside, axis=0).min() > 0.65
    assert np.mean(halves) < 0.85


def test_commands_start_from_it_when_asked_and_say_so(place: Path, call: Call, tmp_path: Path) -> None:
    said = call("pca", place, tmp_path / "m.zarr", "--components", "2", "--feasible")
    assert said.code == 0
    assert "From the nearest moment that rows can have" in " ".join(said.out.split())
    assert call("pca", place, tmp_path / "m.zarr", "--components", "2", "--feasible").code == 0  # kept
    refused = call("pca", place, tmp_path / "m.zarr", "--components", "2")
    assert (refused.code, "m.zarr" in refused.message) == (4, True)  # another model
    assert call("pca", place, tmp_path / "n.zarr", "--components", "2", "--feasible", "--correlation").code == 0
    said = call("regress", place, "--target", "y", "--feasible", "--json")
    assert said.json["feasible"].startswith("From the nearest moment")
    plain = call("regress", place, "--target", "y", "--json").json
    assert said.json["coefficients"] != plain["coefficients"]
    found = call("relate", place, "a", "b", "--feasible", "--json").json
    assert min(cell["rows"] for cell in found["table"]) >= 0
    raw = call("relate", place, "a", "b", "--json").json
    assert min(cell["rows"] for cell in raw["table"]) < 0
    assert [cell["low"] for cell in found["table"]] == [cell["low"] for cell in raw["table"]]
    assert found["association"] == raw["association"]  # tests are of what was released
    shares = [cell["of_all"] for cell in found["table"]]
    assert sum(shares) == pytest.approx(1)
    assert "negative count" in call("relate", place, "a", "b", "--feasible", "--percent", "rows").told
    for words in (
        ("relate", place, "a", "x", "--feasible"),
        ("regress", place, "--target", "d", "--logistic", "--feasible"),
    ):
        assert call(*words).code == 2


def test_estimators_start_from_it_when_asked(place: Path) -> None:
    plain, found = (PrivatePCA.from_release(place, 2, feasible=asked) for asked in (False, True))
    assert not np.allclose(plain.components_, found.components_, atol=1e-6)
    assert np.array_equal(found.release_.lattice, plain.release_.lattice)  # the release is the release
    slopes = [PrivateRidge.from_release(place, "y", feasible=asked).coef_ for asked in (False, True)]
    assert not np.allclose(slopes[0], slopes[1], atol=1e-9)


def test_the_report_shows_tables_that_rows_can_have(place: Path, tmp_path: Path) -> None:
    from dpdist.core.release.opening import open_release

    write(open_release(place), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Counts are those of the nearest tables that rows can have" in page


def test_a_release_without_categories_about_their_middles_has_none() -> None:
    asked = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), "schema", centring="none")  # type: ignore[arg-type]
    release: Release = next(assemble_drawn(asked, SCHEMA, FRAME))
    with pytest.raises(UsageError, match="has a nearest moment"):
        nearest(release)
