"""What the numbers of a release mean: units, the augmented row and column, and which number of rows is told."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.releases import archive_of, assemble

from dpdist.errors import DataError
from dpdist.mechanisms.noise_law import Noise
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.release.archive import publish
from dpdist.release.artefact import Release, open_release
from dpdist.rows.bounding import RowBound
from dpdist.triangle import packed

Lattice = npt.NDArray[np.int64]

PLAIN = RowBound(2, clip_norm=8.0, grid_bits=4)
PRIVATE = RowBound(2, clip_norm=8.0, grid_bits=4, constant=8)
ROWS = np.array([[3.0, -4.0], [0.5, 2.0], [-1.5, 6.0]])
"""Multiples of the grid step 8/16, shorter than the clip norm: nothing is rounded and every comparison is exact."""


def moment(bound: RowBound, rows: npt.NDArray[np.float64] = ROWS) -> Lattice:
    """Return the integer moment by hand: grid steps are halves, the appended constant is 8 of them."""
    integers = np.hstack([rows * 2, np.full((rows.shape[0], bound.width - 2), 8.0)]).astype(np.int64)
    product: Lattice = integers.T @ integers
    return product


def released(
    bound: RowBound, neighbours: Neighbours = Neighbours.REPLACE_ONE, *, rows: int = 3, noise: int = 0
) -> Release:
    lattice = moment(bound)
    lattice[-1, -1] += noise
    return assemble(
        release_id="week-47",
        mechanism="two-sided-wishart",
        names=("age", "height"),
        guarantee=Guarantee(neighbours, PrivacyLoss.parse("1"), None, Arithmetic.IDEAL_REAL, "by hand"),
        bound=bound,
        noise=Noise("by hand", variance_diagonal=2.0, variance_off_diagonal=1.0),
        rows=rows,
        neighbours=neighbours,
        claim=PrivacyLoss.parse("1"),
        answer=packed(lattice),
    )


def files_of(release: Release) -> dict[str, bytes]:
    with tarfile.open(fileobj=archive_of(release)) as tar:
        found = {member.name: tar.extractfile(member) for member in tar.getmembers()}
    return {name: file.read() for name, file in found.items() if file is not None}


@pytest.mark.parametrize("bound", [PLAIN, PRIVATE], ids=["not centred", "centred privately"])
def test_the_second_moment_is_the_sum_of_outer_products_in_squared_units_of_the_rows(bound: RowBound) -> None:
    assert released(bound).second_moment.tolist() == (ROWS.T @ ROWS).tolist()


def test_the_last_column_of_an_augmented_release_is_the_sum_of_the_rows_in_their_units() -> None:
    total = released(PRIVATE).row_sum
    assert total is not None
    assert total.tolist() == ROWS.sum(axis=0).tolist()


def test_the_last_column_is_data_where_nothing_was_appended() -> None:
    assert released(PLAIN).row_sum is None


@pytest.mark.parametrize("bound", [PLAIN, PRIVATE], ids=["not centred", "centred privately"])
def test_under_replace_one_the_number_of_rows_is_public_and_exact(bound: RowBound) -> None:
    assert released(bound).row_count == 3.0


def test_under_replace_one_the_noise_in_the_corner_is_dropped_because_n_is_known() -> None:
    assert released(PRIVATE, noise=999).lattice.tolist() == moment(PRIVATE).tolist()


def test_the_corner_of_a_plain_release_is_data_and_keeps_its_noise() -> None:
    assert released(PLAIN, noise=999).lattice[-1, -1] == moment(PLAIN)[-1, -1] + 999


def test_under_add_remove_the_number_of_rows_is_the_noisy_estimate_from_the_corner() -> None:
    release = released(PRIVATE, Neighbours.ADD_REMOVE, noise=160)
    assert release.rows is None
    assert release.row_count == 3 + 160 / 8**2


def test_under_add_remove_nothing_tells_the_number_of_rows_when_no_mean_is_released() -> None:
    assert released(PLAIN, Neighbours.ADD_REMOVE).row_count is None


@pytest.mark.parametrize("bound", [PLAIN, PRIVATE], ids=["not centred", "centred privately"])
def test_under_add_remove_the_released_bytes_do_not_depend_on_the_number_of_rows(bound: RowBound) -> None:
    # two tables may differ in n and agree in the noisy matrix; then nothing in the release may tell them apart
    assert files_of(released(bound, Neighbours.ADD_REMOVE, rows=3)) == files_of(
        released(bound, Neighbours.ADD_REMOVE, rows=4)
    )


def test_the_attributes_are_those_of_the_design_and_no_others() -> None:
    attributes = json.loads(files_of(released(PLAIN))["zarr.json"])["attributes"]["dpdist"]
    # a seed, a time, a hash of the data or a count of clipped rows must not slip in
    assert sorted(attributes) == [
        "bound", "claim", "columns", "extents", "format", "guarantee", "ledger_head", "library", "mechanism", "n",
        "neighbours", "noise", "release_id", "status", "unit",
    ]  # fmt: skip
    assert attributes["format"] == "dpdist-release/1"
    assert attributes["neighbours"] == "replace-one"
    assert attributes["columns"] == ["age", "height"]
    assert attributes["n"] == 3


def test_n_stands_in_the_attributes_only_where_it_is_public() -> None:
    attributes = json.loads(files_of(released(PLAIN, Neighbours.ADD_REMOVE))["zarr.json"])["attributes"]["dpdist"]
    assert attributes["n"] is None
    assert attributes["neighbours"] == "add-remove"


def test_a_plain_release_holds_no_sum_of_the_rows() -> None:
    assert not [name for name in files_of(released(PLAIN)) if name.startswith("row_sum")]


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize(
    "bound",
    [PLAIN, PRIVATE, RowBound(2, 0.1, 24, centre=(1 / 3, -2.0), scale=(0.1, 7.0), constant=2**23)],
    ids=["not centred", "centred privately", "everything"],
)
def test_a_published_release_reads_back_as_it_was(tmp_path: Path, bound: RowBound, neighbours: Neighbours) -> None:
    release = released(bound, neighbours, noise=12345)
    publish(archive_of(release), tmp_path / "release.zarr")
    found = open_release(tmp_path / "release.zarr")
    assert found.lattice.tobytes() == release.lattice.tobytes()
    assert found.second_moment.tobytes() == release.second_moment.tobytes()
    assert found.attributes() == release.attributes()
    assert found.bound == bound
    assert found.guarantee == release.guarantee
    assert found.rows == release.rows
    assert found.names == ("age", "height")


def test_a_release_that_lost_its_chunks_is_not_read_as_zeros(tmp_path: Path) -> None:
    # Zarr reads a missing chunk as zeros, and a zero matrix agrees with a zero lattice
    publish(archive_of(released(PRIVATE)), tmp_path / "release.zarr")
    for array in ("second_moment", "row_sum", "lattice"):
        shutil.rmtree(tmp_path / "release.zarr" / array / "c")
    with pytest.raises(DataError, match="damaged"):
        open_release(tmp_path / "release.zarr")


def test_a_published_sum_of_the_rows_that_contradicts_the_lattice_is_refused(tmp_path: Path) -> None:
    publish(archive_of(released(PRIVATE)), tmp_path / "release.zarr")
    shutil.rmtree(tmp_path / "release.zarr" / "row_sum")
    with pytest.raises(DataError, match="damaged"):
        open_release(tmp_path / "release.zarr")


WRONG: dict[str, dict[str, Any]] = {
    "an id that is a number": {"release_id": 7},
    "an id that cannot be written": {"release_id": "\ud800"},
    "a head that is a number": {"ledger_head": 5},
    "a sum of a word": {"releases": "ab"},
    "a condition that is no sentence": {"condition": {}},
    "a unit of which a part of a row is kept": {"unit": {"column": "a", "max_rows": 2.0}},
    "a unit of a later version": {"unit": {"column": "a", "max_rows": 2, "of": "households"}},
    "periods that are not numbered": {"extents": [{"dataset": "d", "start": "0", "stop": 1}]},
    "rows of a later version": {"extents": [{"dataset": "d", "half": 1}]},
    "a negative number of rows": {"n": -1},
    "a loss that is no number of units": {"claim": {"epsilon_micro": 1e6, "delta_atto": 0}},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_release_from_anybody_is_what_it_should_be_or_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    publish(archive_of(released(PLAIN)), tmp_path / "release.zarr")
    file = tmp_path / "release.zarr" / "zarr.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole))
    assert open_release(tmp_path / "release.zarr").names == ("age", "height")
    whole["attributes"]["dpdist"] |= change
    file.write_text(json.dumps(whole))
    with pytest.raises(DataError, match="damaged"):
        open_release(tmp_path / "release.zarr")
