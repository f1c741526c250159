"""What is said before a release is paid for: the noise of cells and means is that of the release, and refusals hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from support.cli_scene import Call
from support.releases import assemble_drawn

from dpdist.answers.alignment import components_above_noise
from dpdist.answers.crosstab import crosstab
from dpdist.answers.group_means import group_means
from dpdist.answers.prospect import prospect
from dpdist.answers.variables import variables
from dpdist.core.errors import BelowNoiseError
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions, by_schema
from dpdist.core.release.plan import Plan, planned
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from papers.common.drawn import drawn

Matrix = npt.NDArray[np.float64]
N = 3000
SCHEMA = Schema(
    [
        Column("region", "category", categories=list("nswe")), Column("plan", "category", categories=list("abcdefg")),
        Column("premium", "boolean"), Column("income", "number", range=(0, 100)),
    ],
    "range",
)  # fmt: skip


def plan_for(columns: int, rows: int, schema: Schema | None = None, **asked: Any) -> Plan:
    request = ReleaseRequest("gaussian", PrivacyLoss.parse(asked.pop("epsilon", "1"), "1e-6"), **asked)
    public = rows if request.neighbours is Neighbours.REPLACE_ONE else None
    size = Dimensions(columns, public, schema=schema)
    return planned(by_schema(request, size), size)


@pytest.mark.parametrize("neighbours", Neighbours)
def test_cells_and_means_are_as_far_off_as_was_said(neighbours: Neighbours) -> None:
    random = np.random.default_rng(1)
    asked: dict[str, Any] = {"neighbours": neighbours, "centring": Centring.SCHEMA}
    if neighbours is Neighbours.ADD_REMOVE:
        asked["rows_at_most"] = N
    frame = pd.DataFrame(
        {
            "region": random.choice(list("nswe"), N, p=[0.1, 0.3, 0.3, 0.3]), "premium": random.random(N) < 0.1,
            "plan": random.choice(list("abcdefg"), N, p=[0.1, *[0.15] * 6]), "income": random.normal(50, 5, N),
        }
    )  # fmt: skip
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), "schema", **asked)
    held = variables(next(assemble_drawn(request, SCHEMA, frame)))
    found = prospect(plan_for(len(SCHEMA.features), N, SCHEMA, clip_norm="schema", **asked))
    reaches = [crosstab(held, a, b).reach for a, b in (("region", "plan"), ("region", "premium"), ("plan", "premium"))]
    assert found.cells == (min(reaches), max(reaches))
    assert f"within {min(reaches)} to {max(reaches)} rows of the exact one" in found.describe()
    widths = [np.ptp(group_means(held, "income", by).means.intervals[0]) for by in ("region", "plan")]
    assert found.mean == pytest.approx(max(widths) / 2 / 50, rel=0.2)  # half of the range of income is 50


@pytest.mark.parametrize(("rows", "told"), [(60, 0), (380, 2), (8000, 3)])
def test_as_many_directions_show_as_was_said(rows: int, told: int) -> None:
    """Rows as assumed: three directions hold half of C², the rest is spread over thirty."""
    found = prospect(plan_for(30, rows, clip_norm=1.0))
    assert (found.directions, found.seen) == (3, told)
    variances = np.array([1 / 4, 1 / 6, 1 / 12, *[0.5 / 27] * 27])
    signs = np.random.default_rng(0).choice(np.array([-1.0, 1.0]), (rows, 30))
    known = drawn(signs * np.sqrt(variances), 1.0, centring=Centring.NONE)
    assert abs(np.mean([_seen(known.release(number)) for number in range(20)]) - told) < 0.5


def _seen(release: Release) -> int:
    try:
        return len(components_above_noise(release).components)
    except BelowNoiseError:
        return 0


def test_only_what_no_table_could_show_is_refused_and_never_what_was_released(tmp_path: Path, call: Call) -> None:
    """Where a release is refused, even a table with all of C² in one column hardly ever shows anything."""
    for epsilon in ("1", "0.1"):
        needed = next(
            n for n in range(1, 2000) if not prospect(plan_for(4, n, clip_norm=1.0, epsilon=epsilon)).impossible
        )
        for rows, most in ((needed - 1, 0.16), (3 * needed, 1.0)):  # .16: 6 of 100, falsely in 1 of 5000 runs
            table = np.zeros((rows, 4))
            table[:, 0] = 1.0
            known = drawn(table, 1.0, epsilon, centring=Centring.NONE)
            shown = [_seen(known.release(number)) > 0 for number in range(100)]
            assert np.mean(shown) <= most
    assert np.mean(shown) > 0.5  # the twin: of a table three times as large
    np.save(tmp_path / "table.npy", np.ones((needed - 1, 4)))
    place, release = str(tmp_path / "rows.zarr"), str(tmp_path / "release.zarr")
    call("ingest", str(tmp_path / "table.npy"), place, "--budget-epsilon", "1", "--budget-delta", "1e-6")
    asked = ("release", place, release, "--epsilon", "0.1", "--delta", "1e-6", "--clip", "1")
    refused = call(*asked)
    assert (refused.code, "Nothing was spent" in refused.message, "add --anyway" in refused.message) == (3, True, True)
    assert not Path(release).exists()
    assert call(*asked, "--anyway").code == 0
    assert call(*asked).code == 0  # again: the same bytes
    forecast = call("forecast", place, *asked[3:]).told
    assert "WOULD BE REFUSED, UNLESS --anyway" in forecast
