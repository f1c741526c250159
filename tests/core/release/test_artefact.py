"""The numbers of a release: units, the augmented row and column, and the published number of rows."""

from __future__ import annotations

import json
import math
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from support.releases import archive_of, assemble, drawn_over
from support.trusted_scene import flipped, tree

from dpdist.core.errors import DataError
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.release.archive import publish
from dpdist.core.release.artefact import Release
from dpdist.core.release.attributes import Coverage
from dpdist.core.release.combine import combined
from dpdist.core.release.opening import open_release
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.bounding import RowBound
from dpdist.core.triangle import packed

PLAIN = RowBound(2, clip_norm=8.0, grid_bits=4)
PRIVATE = RowBound(2, clip_norm=8.0, grid_bits=4, constant=8)
ROWS = np.array([[3.0, -4.0], [0.5, 2.0], [-1.5, 6.0]])
"""Multiples of the grid step 8/16, shorter than the clip norm: every comparison is exact."""
ROUNDING = 3 / 4 * (8 / 16) ** 2
"""A quarter of a step² for each row, which rounding adds to diagonal entries."""


def moment(bound: RowBound, rows: npt.NDArray[np.float64] = ROWS) -> npt.NDArray[np.int64]:
    """Return the integer moment by hand: grid steps are halves, the appended constant is 8 of them."""
    integers = np.hstack([rows * 2, np.full((rows.shape[0], bound.width - 2), 8.0)]).astype(np.int64)
    product: npt.NDArray[np.int64] = integers.T @ integers
    return product


def released(
    bound: RowBound, neighbours: Neighbours = Neighbours.REPLACE_ONE, *, rows: int = 3, noise: int = 0
) -> Release:
    lattice = moment(bound)
    lattice[-1, -1] += noise
    return assemble(
        release_id="week-47",
        mechanism="frobenius",  # of which a release says no scale that could be compared
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
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
    return {name: file.read() for name, file in files.items() if file is not None}


def test_the_second_moment_and_the_sum_of_the_rows_are_in_the_units_of_the_rows() -> None:
    for bound in (PLAIN, PRIVATE):
        assert released(bound).second_moment.tolist() == (ROWS.T @ ROWS - ROUNDING * np.eye(2)).tolist()
    unknown = released(PLAIN, Neighbours.ADD_REMOVE)  # no number of rows was released: it is left in
    assert unknown.second_moment.tolist() == (ROWS.T @ ROWS).tolist()
    total = released(PRIVATE).row_sum
    assert total is not None
    assert total.tolist() == ROWS.sum(axis=0).tolist()
    assert released(PLAIN).row_sum is None  # its last column is data
    assert not [name for name in files_of(released(PLAIN)) if name.startswith("row_sum")]


def test_the_number_of_rows_is_exact_where_it_is_public_and_otherwise_an_estimate_from_the_corner() -> None:
    assert [released(bound).row_count for bound in (PLAIN, PRIVATE)] == [3, 3]
    assert released(PRIVATE, noise=999).lattice.tolist() == moment(PRIVATE).tolist()  # n is known: without noise
    assert released(PLAIN, noise=999).lattice[-1, -1] == moment(PLAIN)[-1, -1] + 999  # data, and keeps its noise
    release = released(PRIVATE, Neighbours.ADD_REMOVE, noise=160)
    assert (release.rows, release.row_count) == (None, 3 + 160 / 8**2)
    assert released(PLAIN, Neighbours.ADD_REMOVE).row_count is None


@pytest.mark.parametrize("bound", [PLAIN, PRIVATE], ids=["not centred", "centred privately"])
def test_under_add_remove_the_released_bytes_do_not_depend_on_the_number_of_rows(bound: RowBound) -> None:
    # two tables may differ in n and agree in the noisy matrix; then nothing in the release may tell them apart
    three, four = (files_of(released(bound, Neighbours.ADD_REMOVE, rows=rows)) for rows in (3, 4))
    assert three == four


def test_the_attributes_are_those_of_the_design_and_no_others() -> None:
    for neighbours, count in ((Neighbours.REPLACE_ONE, 3), (Neighbours.ADD_REMOVE, None)):
        attributes = json.loads(files_of(released(PLAIN, neighbours))["zarr.json"])["attributes"]["dpdist"]
        # a seed, a time, a hash of the data or a count of clipped rows must not slip in
        assert sorted(attributes) == [
            "bound", "claim", "columns", "extents", "format", "guarantee", "ledger_head", "library", "mechanism", "n",
            "neighbours", "noise", "release_id", "status", "unit",
        ]  # fmt: skip
        assert attributes["format"] == "dpdist-release/1"
        assert attributes["neighbours"] == neighbours.value
        assert attributes["columns"] == ["age", "height"]
        assert attributes["n"] == count


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize(
    "bound",
    [PLAIN, PRIVATE, RowBound(2, 0.1, 24, centre=(1 / 3, -2.0), scale=(0.1, 7.0), constant=2**23)],
    ids=["not centred", "centred privately", "everything"],
)
def test_a_published_release_reads_back_as_it_was(tmp_path: Path, bound: RowBound, neighbours: Neighbours) -> None:
    release = released(bound, neighbours, noise=12345)
    publish(archive_of(release), tmp_path / "release.zarr")
    opened = open_release(tmp_path / "release.zarr")
    assert opened.lattice.tobytes() == release.lattice.tobytes()
    assert opened.second_moment.tobytes() == release.second_moment.tobytes()
    assert opened.attributes() == release.attributes()
    assert (opened.bound, opened.guarantee, opened.rows) == (bound, release.guarantee, release.rows)
    assert opened.names == ("age", "height")


CHUNKS = ("lattice/c/0/0", "second_moment/c/0/0", "row_sum/c/0")
HEADS = ("zarr.json", "lattice/zarr.json", "second_moment/zarr.json", "row_sum/zarr.json")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.filterwarnings("ignore")  # Zarr warns of some damage, which as an error would hide a missing refusal
def test_a_release_that_was_damaged_does_not_open(tmp_path: Path) -> None:
    path = tmp_path / "release.zarr"

    def refused() -> None:
        with pytest.raises(DataError, match=r"damaged|There is no release"):
            open_release(path)
        shutil.rmtree(path)

    damages: list[Callable[[Path], object]] = [halved, Path.unlink, flipped]
    for part in (*CHUNKS, *HEADS):
        for damage in damages if part in CHUNKS else damages[:2]:
            publish(archive_of(released(PRIVATE)), path)
            assert set(tree(path)) == {*CHUNKS, *HEADS}
            damage(path / part)
            refused()
    publish(archive_of(released(PRIVATE)), path)
    for array in ("second_moment", "row_sum", "lattice"):  # Zarr reads a missing chunk as zeros, which agree
        shutil.rmtree(path / array / "c")
    refused()
    publish(archive_of(released(PRIVATE)), path)
    shutil.rmtree(path / "row_sum")
    refused()


PROVED = dict(
    Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss.parse("1"), None, Arithmetic.IDEAL_REAL, "by hand").to_json()
)
WRONG: dict[str, dict[str, Any]] = {
    "an id that is a number": {"release_id": 7},
    "an id that cannot be written": {"release_id": "\ud800"},
    "a head that is a number": {"ledger_head": 5},
    "a sum of a word": {"releases": "ab"},
    "a condition that is no sentence": {"condition": {}},
    "a unit of which a part of a row is kept": {"unit": {"column": "a", "max_rows": 2.0}},
    "a unit of a later version": {"unit": {"column": "a", "max_rows": 2, "of": "households"}},
    "periods that are not numbered": {"extents": [{"dataset": "0" * 32, "start": "0", "stop": 1}]},
    "rows of a later version": {"extents": [{"dataset": "0" * 32, "half": 1}]},
    "a negative number of rows": {"n": -1},
    "a number of rows that is text": {"n": "<b>3"},
    "a number of rows that is true": {"n": True},
    "a loss that is no number of units": {"claim": {"epsilon_micro": 1e6, "delta_atto": 0}},
    "another clip norm": {"bound": PLAIN.to_json() | {"clip_norm": 4.0}},
    "another grid": {"bound": PLAIN.to_json() | {"grid_bits": 5}},
    "another number of columns": {"bound": PLAIN.to_json() | {"columns": 3}},
    "a later format": {"format": "dpdist-release/2"},
    "a guarantee under the other relation": {"guarantee": PROVED | {"neighbours": "add-remove"}},
    "a mu of nothing": {"guarantee": PROVED | {"mu_squared": ["0", "1"]}},
    "a mu that no noise has": {"guarantee": PROVED | {"mu_squared": ["-1", "4"]}},
    "an epsilon below its mu": {
        "guarantee": PROVED | {"mu_squared": ["4", "1"], "delta_atto": 10**12},
        "claim": {"epsilon_micro": 10**6, "delta_atto": 10**12},
    },
    "a mu that no float holds": {"guarantee": PROVED | {"mu_squared": ["1" + "0" * 4000, "1"]}},
    "a variance below its sigma": {"noise": {"law": "by hand", "sigma_diagonal": 9, "variance_diagonal": 80.0}},
    "one name for two columns": {"columns": ["age", "age"]},
    "names that look alike": {"columns": ["Zo\u00eb", "Zoe\u0308"]},
    "a name for a terminal": {"columns": ["age", "\x1b[2J"]},
    "rows of a table without an identity": {"extents": [{"dataset": "\x1b[2J"}]},
    "a period before the first": {"extents": [{"dataset": "0" * 32, "start": -5, "stop": 1}]},
    "a session of nobody": {"session": {"id": "0" * 64, "sites": [], "colluding": 0}},
    "a session in which all collude": {"session": {"id": "0" * 64, "sites": ["a", "b", "c"], "colluding": 2}},
    "a session of one site twice": {"session": {"id": "0" * 64, "sites": ["a", "b", "A"], "colluding": 1}},
    "a site for a terminal": {"session": {"id": "0" * 64, "sites": ["a", "b", "\x1b[2J"], "colluding": 1}},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_release_from_anybody_is_what_it_should_be_or_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    publish(archive_of(released(PLAIN)), tmp_path / "release.zarr")
    open_release(tmp_path / "release.zarr")
    file = tmp_path / "release.zarr" / "zarr.json"
    metadata = json.loads(file.read_text())
    metadata["attributes"]["dpdist"] |= change
    file.write_text(json.dumps(metadata))
    with pytest.raises(DataError, match="has format" if "format" in change else "damaged"):
        open_release(tmp_path / "release.zarr")


ALTERED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a smaller loss": lambda about: about.update(
        claim={"epsilon_micro": 10**5, "delta_atto": 10**12},
        guarantee=about["guarantee"] | {"epsilon_micro": 10**5, "mu_squared": ["1", "1600"]},
    ),
    "less noise": lambda about: about["noise"].update(sigma_diagonal=1, sigma_off_diagonal=1),
    "noise of no law": lambda about: about["noise"].update(sigma_off_diagonal="many"),
    "the noise of sites": lambda about: about["noise"].update(law="rounded-gaussian-shares", sites=3),
    "more rows of a person": lambda about: about.update(unit={"column": "patient", "max_rows": 9}),
    "another law": lambda about: about["noise"].update(law="rounded-gaussian"),
    "the noise of a sum of itself": lambda about: (
        about["noise"].update(law="sum", of="rounded-gaussian-orthogonal", terms=1),
        about.update(releases=[about["release_id"]]),
    ),
    "the other relation": lambda about: about.update(
        neighbours="add-remove", guarantee=about["guarantee"] | {"neighbours": "add-remove"}, n=None
    ),
    "another variance": lambda about: about["noise"].update(variance_diagonal=1e30, variance_off_diagonal=1e30),
    "another mechanism": lambda about: about.update(mechanism="frobenius"),
    "a stage that costs less than nothing": lambda about: about.update(
        stage={
            "mechanism": "column-histograms", "guarantee": about["guarantee"] | {"mu_squared": ["-1", "1"]},
            "chosen": {}, "answer": {},
        }
    ),
}  # fmt: skip
OF_PURE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a smaller loss": lambda about: about.update(
        claim={"epsilon_micro": 10**5, "delta_atto": 0}, guarantee=about["guarantee"] | {"epsilon_micro": 10**5}
    ),
    "less noise": lambda about: about["noise"].update(scale=1.0),
    "another law": lambda about: about["noise"].update(law="other"),
    "more rows of a person": lambda about: about.update(unit={"column": "patient", "max_rows": 9}),
}
OF_SUM: dict[str, Callable[[dict[str, Any]], object]] = {
    "no condition": lambda about: about.pop("condition"),
    "another condition": lambda about: about.update(condition="it rains"),
    "one release": lambda about: about.update(releases=about["releases"][:1]),
    "no releases": lambda about: about.update(releases=[]),
    "another id": lambda about: about.update(release_id="c-" + "0" * 32),
    "the last periods": lambda about: about.update(window=7),
}


def single(mechanism: str, name: str) -> Release:
    loss = PrivacyLoss.parse("1", "1e-6" if mechanism == "gaussian" else "0")
    drawn = drawn_over(ReleaseRequest(mechanism, loss, 2.0), np.eye(2, dtype=np.int64), 2, 3)
    return replace(drawn, release_id=name, extents=(Coverage(name * 32),))


@pytest.mark.parametrize(
    ("made", "altered"),
    [
        *((lambda: single("gaussian", "a"), each) for each in ALTERED.values()),
        *((lambda: single("two-sided-wishart", "a"), each) for each in OF_PURE.values()),
        *((lambda: single("laplace", "a"), each) for each in OF_PURE.values()),
        *((lambda: combined([single("gaussian", "a"), single("gaussian", "b")], disjoint=True), each)
          for each in OF_SUM.values()),
    ],
    ids=[*ALTERED, *(f"{name}, {of}" for of in ("pure", "laplace") for name in OF_PURE),
         *(f"{name}, of a sum" for name in OF_SUM)],
)  # fmt: skip
def test_a_release_that_promises_more_than_its_noise_gives_does_not_open(
    tmp_path: Path, made: Callable[[], Release], altered: Callable[[dict[str, Any]], object]
) -> None:
    publish(archive_of(made()), tmp_path / "release.zarr")
    open_release(tmp_path / "release.zarr")
    file = tmp_path / "release.zarr" / "zarr.json"
    metadata = json.loads(file.read_text())
    altered(metadata["attributes"]["dpdist"])
    file.write_text(json.dumps(metadata))
    with pytest.raises(DataError, match="damaged"):
        open_release(tmp_path / "release.zarr")


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "two-sided-wishart"])
def test_the_last_bit_of_a_variance_may_be_that_of_another_platform(tmp_path: Path, mechanism: str) -> None:
    publish(archive_of(single(mechanism, "a")), tmp_path / "release.zarr")
    file = tmp_path / "release.zarr" / "zarr.json"
    metadata = json.loads(file.read_text())
    noise = metadata["attributes"]["dpdist"]["noise"]
    for name in ("variance_diagonal", "variance_off_diagonal"):
        noise[name] = math.nextafter(noise[name], math.inf)
    file.write_text(json.dumps(metadata))
    open_release(tmp_path / "release.zarr")


def test_a_corner_that_is_not_the_number_of_rows_is_damage(tmp_path: Path) -> None:
    publish(archive_of(released(PRIVATE)), tmp_path / "release.zarr")
    file = tmp_path / "release.zarr" / "zarr.json"
    metadata = json.loads(file.read_text())
    metadata["attributes"]["dpdist"]["n"] += 1
    file.write_text(json.dumps(metadata))
    with pytest.raises(DataError, match="damaged"):
        open_release(tmp_path / "release.zarr")


@pytest.mark.parametrize("clip", [0.567, 1.116, 2.232])
def test_the_second_moment_is_the_integers_times_a_product_and_no_power(tmp_path: Path, clip: float) -> None:
    """Squares by ``**`` differ from products in the last bit here, and between platforms."""
    bound = RowBound(2, clip_norm=clip, grid_bits=10)
    assert bound.unit**2 != bound.unit * bound.unit
    publish(archive_of(released(bound)), tmp_path / "release.zarr")
    release = open_release(tmp_path / "release.zarr")
    stored = zarr.open_array(tmp_path / "release.zarr" / "second_moment", mode="r")
    assert np.array_equal(np.asarray(stored[...]), release.lattice * (bound.unit * bound.unit))
