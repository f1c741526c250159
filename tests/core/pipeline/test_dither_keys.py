"""The keys by which a release dithers rows: secret, new for each attempt, of a unit or of all bands and rounds."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import pytest
from distributed import Client, LocalCluster
from faults import crash_driver
from support.ledgers import DiedError, dies
from support.norms import table_of

from dpdist.answers.bias import rounding
from dpdist.core.errors import DpdistError
from dpdist.core.ledger.register import Register
from dpdist.core.mechanisms.gaussian import CalibratedGaussian
from dpdist.core.moment import arrays, total
from dpdist.core.moment.operator import MomentBands, ProductTask
from dpdist.core.moment.total import MomentTask, Partial, common_key, moment_task, partition_moment
from dpdist.core.pipeline import release as release_steps
from dpdist.core.pipeline.arrays import ArrayRows, Paying, release_array
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release import trusted
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows import dataset
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.rows.units import Unit
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.runtime.local import Computation
from dpdist.core.triangle import Band

Lattice = npt.NDArray[np.int64]
ROWS, COLUMNS, CHUNK = 90, 5, 10
LOSS = PrivacyLoss.parse("2", "1e-6")
VALUES = np.random.default_rng(8).normal(size=(ROWS, COLUMNS)) * 2
ADDED = Neighbours.ADD_REMOVE
BOUND = RowBound(COLUMNS, 5.0, 12)


def request(neighbours: Neighbours, **options: Any) -> ReleaseRequest:
    return ReleaseRequest("gaussian", LOSS, 5.0, neighbours=neighbours, grid_bits=12, **options)


def moment_under(key: DitherKey, values: npt.NDArray[np.float64] = VALUES, first: int = 0) -> Lattice:
    """Return the exact moment of rows that are dithered by their numbers."""
    z = BOUND.apply(values, np.empty(values.shape), Dithers(key, first)).astype(np.int64)
    return np.asarray(z.T @ z)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RowsTable:
    return table_at(tmp_path / "rows.zarr", monkeypatch)


def table_at(path: Path, monkeypatch: pytest.MonkeyPatch, unit: Unit | None = None) -> RowsTable:
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 8 * COLUMNS * CHUNK)
    return table_of(path, VALUES, PrivacyLoss.parse("20", "1e-4"), unit=unit)


SUMMED: list[Lattice] = []  # of each unit, the exact moment of its rows by the key they were dithered by
DRAWN: list[DitherKey] = []
_draw = total.draw_key


def noting() -> bytes:
    DRAWN.append(DitherKey(_draw()))
    return DRAWN[-1].key


def noting_rows(task: MomentTask) -> Partial[np.int64]:
    assert task.key is not None
    assert task.key.key in {each.key for each in DRAWN}
    start, stop = CHUNK * task.chunks.start, CHUNK * task.chunks.stop
    SUMMED.append(moment_under(task.key, VALUES[start:stop], start))
    return partition_moment(task)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[DitherKey]:
    """Every secret key that is drawn in this process, where the workers are, too."""
    DRAWN.clear()
    SUMMED.clear()
    monkeypatch.setattr(total, "draw_key", noting)
    monkeypatch.setattr(total, "partition_moment", noting_rows)
    return DRAWN


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Start a worker that is a thread of this process, so that a test sees into it; it may be the trusted one."""
    settings = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
    with dask.config.set(settings), threads(1) as made:
        yield made.scheduler_address


def threads(count: int, **options: Any) -> LocalCluster:
    return LocalCluster(
        n_workers=count, threads_per_worker=1, processes=False, protocol="tcp://", host="127.0.0.1",
        dashboard_address="127.0.0.1:0", resources={"trusted": 1}, **options,
    )  # fmt: skip


def lattice(table: RowsTable, asked: ReleaseRequest, name: str, where: Cluster | None = None) -> Lattice:
    found: Any = release_steps.release_table(table, table.path.with_name(name), asked, cluster=where).release
    return np.asarray(found.lattice)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("neighbours", "unit"), [(Neighbours.REPLACE_ONE, None), (ADDED, Unit("who", 3))])
def test_each_unit_has_a_new_secret_key_wherever_it_is_summed_and_whatever_a_neighbour_is(
    tmp_path: Path, neighbours: Neighbours, unit: Unit | None, drawn: list[DitherKey], cluster: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table = table_at(tmp_path / "rows.zarr", monkeypatch, unit)
    places = {"here": None, "workers": Cluster(cluster), "trusted": Cluster(cluster, trusted_worker=True)}
    for name, where in places.items():
        before = len(SUMMED)
        found = lattice(table, request(neighbours, name=name), f"{name}.zarr", where)
        assert len(SUMMED) > before + 1
        assert np.array_equal(found, sum(SUMMED[before:]))
    assert len({key.key for key in drawn}) == len(drawn) == len(SUMMED)


@pytest.mark.usefixtures("silent")
def test_all_bands_have_one_key(table: RowsTable, drawn: list[DitherKey], monkeypatch: pytest.MonkeyPatch) -> None:
    crash_driver.in_bands(2, monkeypatch.setattr)
    found = lattice(table, request(ADDED, name="bands"), "bands.zarr")
    (key,) = drawn
    assert np.array_equal(found, moment_under(key))


@pytest.mark.usefixtures("silent")
def test_an_attempt_that_is_resumed_has_other_keys(
    table: RowsTable, drawn: list[DitherKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(trusted, "conclude", dies)
        with pytest.raises(DiedError):
            lattice(table, request(ADDED), "release.zarr")
    before = len(SUMMED)
    moment = lattice(table, request(ADDED), "release.zarr")
    assert np.array_equal(moment, sum(SUMMED[before:]))
    assert len({key.key for key in drawn}) == len(drawn) == 2 * before


def test_all_rounds_of_products_have_one_key(table: RowsTable, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    complete: Any = release_steps.complete  # type: ignore[attr-defined]

    def noting(table: RowsTable, total: Partial[Any]) -> Any:
        found.append(total.key)
        return complete(table, total)

    monkeypatch.setattr(release_steps, "complete", noting)
    options = {"components": 2, "iterations": 3, "route": "products"}
    asked = ReleaseRequest("power", LOSS, 5.0, neighbours=ADDED, options=options)
    release_steps.release_table(table, table.path.with_name("release.zarr"), asked, cluster=Cluster(cluster))
    assert len(found) >= 3
    assert len({"", *found}) == 2


@pytest.mark.usefixtures("drawn")
def test_the_diagonal_that_is_subtracted_follows_from_the_released_count(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All noise is taken away but that of the count, which is private: the exact n would be told otherwise."""
    constant, more = 2**11, 7

    def draw_band(_self: Any, band: Band, _: Any) -> Lattice:
        return np.append(np.zeros(band.entries - 1, np.int64), more * constant**2)

    monkeypatch.setattr(CalibratedGaussian, "draw_band", draw_band)
    asked = request(ADDED, centring=Centring.PRIVATE)
    found = release_steps.release_table(table, table.path.with_name("release.zarr"), asked).release
    assert (found.rows, found.row_count) == (None, ROWS + more)
    steps = sum(SUMMED) - (ROWS + more) / 4 * np.eye(COLUMNS)
    assert np.allclose(found.second_moment, steps * found.bound.unit**2, rtol=1e-12, atol=0)
    assert np.allclose(found.moment_diagonal, np.diag(found.second_moment), rtol=1e-12, atol=0)


@pytest.mark.usefixtures("silent", "drawn")
@pytest.mark.parametrize("neighbours", Neighbours)
def test_it_is_left_in_where_no_count_is_public_or_released(table: RowsTable, neighbours: Neighbours) -> None:
    found = release_steps.release_table(table, table.path.with_name("release.zarr"), request(neighbours)).release
    left = 0 if neighbours is Neighbours.ADD_REMOVE else ROWS / 4
    steps = sum(SUMMED) - left * np.eye(COLUMNS)
    assert np.allclose(found.second_moment, steps * found.bound.unit**2, rtol=1e-12, atol=0)
    told = rounding(found)
    assert told is not None
    assert (told.shift > 0) is (left == 0)


def test_bands_of_two_keys_are_no_moment(table: RowsTable) -> None:
    def sums() -> Iterator[Partial[np.int64]]:
        for start, key in ((0, b"1" * 32), (2, b"2" * 32)):
            yield partition_moment(moment_task(table, BOUND, Band(start, start + 2, COLUMNS)).with_key(key))

    with pytest.raises(DpdistError, match="different keys"):
        list(MomentBands(sums).bands())


def test_a_key_is_shown_nowhere_and_only_a_common_one_can_be_part_of_a_task(table: RowsTable) -> None:
    common = common_key()
    key = DitherKey(common.content)
    task = moment_task(table, BOUND)
    holders: list[Any] = [key, task.with_key(key.key), ProductTask(task, VALUES).with_key(key.key), Dithers(key, 0)]
    for each in holders:
        with pytest.raises(TypeError, match="must not be pickled"):
            cloudpickle.dumps(each)
    work = Computation("sum", partition_moment, task, (), key=common)
    for each in (*holders, common, work):
        assert repr(key.key)[2:-1] not in repr(each) + str(each)
        assert key.key.hex() not in repr(each)
    assert pickle.loads(pickle.dumps(common)).content == key.key  # noqa: S301 - our own


@pytest.mark.parametrize(("trusted", "bands"), [(True, False), (False, True)])  # never both
def test_neither_key_nor_fingerprint_is_in_a_file_or_a_log(
    table: RowsTable, drawn: list[DitherKey], trusted: bool, bands: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    if bands:
        crash_driver.in_bands(2, monkeypatch.setattr)
    logger = logging.getLogger("distributed")
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.DEBUG, "distributed")
    spill = {"temporary-directory": str(tmp_path), "distributed.worker.memory.spill": 1e-6}
    try:
        with dask.config.set(spill), threads(2, silence_logs=False) as made:
            lattice(table, request(ADDED), "release.zarr", Cluster(made.scheduler_address, trusted_worker=trusted))
    finally:
        logger.removeHandler(caplog.handler)
    seen = [path.read_bytes() for path in table.path.parent.rglob("*") if path.is_file()]
    assert len(seen) > 10
    assert caplog.text
    seen += [text.encode() for text in (caplog.text, *capfd.readouterr())]
    assert drawn
    for key in drawn:
        for form in (key.key, key.key.hex().encode(), repr(key.key).encode()[2:-1], key.fingerprint.encode()):
            assert not any(form in content for content in seen)


# --- rows in memory


def assert_summed(rows: Any, least: int, drawn: list[DitherKey], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that each part was summed by a key of its own, whichever came first."""
    monkeypatch.setattr(CalibratedGaussian, "draw_band", lambda _self, band, _: np.zeros(band.entries, np.int64))
    asked, names = request(ADDED), tuple(f"c{i}" for i in range(COLUMNS))
    found, _ = release_array(ArrayRows(rows, names, "float64", missing=False), asked, Paying(), register=Register())
    assert np.array_equal(found.lattice, sum(SUMMED))
    assert len({key.key for key in drawn}) == len(drawn) == len(SUMMED) >= least


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_in_memory_are_dithered_in_their_order_whatever_they_come_in(
    drawn: list[DitherKey], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_PIECE_BYTES", 8 * COLUMNS * CHUNK)
    monkeypatch.setattr("dpdist.core.pipeline.arrays._WORTH_A_THREAD", 1)
    monkeypatch.setattr("dpdist.core.pipeline.arrays.available_cores", lambda: threads)
    monkeypatch.setattr("dpdist.core.runtime.local.available_cores", lambda: threads)
    assert_summed(VALUES, threads, drawn, monkeypatch)


@pytest.mark.parametrize("client", [False, True])
def test_each_block_of_a_dask_array_has_a_key_that_stays_where_it_is_summed(
    drawn: list[DitherKey], cluster: str, client: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(cluster) if client else nullcontext():
        assert_summed(da.from_array(VALUES, chunks=(CHUNK, COLUMNS)), ROWS // CHUNK, drawn, monkeypatch)
