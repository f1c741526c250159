"""The key by which a release dithers rows: secret, new for each attempt, and one for all units, bands and rounds."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import permutations
from pathlib import Path
from typing import Any

import cloudpickle
import dask.array as da
import numpy as np
import numpy.typing as npt
import pytest
from distributed import Client
from support.near_workers import listening, trusted_worker, workers

from dpdist.errors import DpdistError
from dpdist.estimators.inputs import Rows
from dpdist.ingest.opening import open_rows
from dpdist.mechanisms.gaussian import CalibratedGaussian
from dpdist.moment import keys
from dpdist.moment.keys import secret_of_attempt
from dpdist.moment.operator import MomentBands, ProductTask
from dpdist.moment.total import Partial, moment_task, partition_moment
from dpdist.pca.rounding import rounding
from dpdist.pipeline import release as release_steps
from dpdist.pipeline.budget import create_ledger, default_ledger
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release import trusted
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.rows import dataset, dither
from dpdist.rows.bounding import DITHERED, RowBound
from dpdist.rows.dataset import RowsTable, created
from dpdist.rows.dither import DitherKey, Dithers
from dpdist.rows.units import Unit
from dpdist.runtime import connection
from dpdist.runtime.cluster import Cluster
from dpdist.triangle import Band, packed
from faults import crash_driver

Lattice = npt.NDArray[np.int64]
ROWS, COLUMNS = 90, 5
LOSS = PrivacyLoss.parse("2", "1e-6")
VALUES = np.random.default_rng(8).normal(size=(ROWS, COLUMNS)) * 2
ADDED = Neighbours.ADD_REMOVE
BOUND = RowBound(COLUMNS, 5.0, 12, rule=DITHERED)


def request(neighbours: Neighbours, **options: Any) -> ReleaseRequest:
    return ReleaseRequest("gaussian", LOSS, 5.0, neighbours=neighbours, grid_bits=12, rule=DITHERED, **options)


def moment_under(key: DitherKey, values: npt.NDArray[np.float64] = VALUES) -> Lattice:
    """Return the exact moment of rows that are dithered in their order."""
    z = BOUND.apply(values, np.empty(values.shape), Dithers(key, 0)).astype(np.int64)
    found: Lattice = z.T @ z
    return found


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RowsTable:
    return table_at(tmp_path / "rows.zarr", monkeypatch)


def table_at(path: Path, monkeypatch: pytest.MonkeyPatch, unit: Unit | None = None) -> RowsTable:
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 8 * COLUMNS * 10)
    names, budget = tuple("abcde"), PrivacyLoss.parse("20", "1e-4")
    with created(path, rows=ROWS, dtype="float64", names=names, budget=budget, unit=unit) as writer:
        writer.append(VALUES)
    create_ledger(default_ledger(path), path)
    return open_rows(path)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[DitherKey]:
    """Every secret key that is drawn in this process, where the workers are, too."""
    DRAWN.clear()
    monkeypatch.setattr(keys, "drawn", noting)
    return DRAWN


DRAWN: list[DitherKey] = []
_draw = keys.drawn


def noting() -> bytes:
    DRAWN.append(DitherKey(_draw()))
    return DRAWN[-1].key


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> list[Lattice]:
    """Take the noise away; what it would be added to is the release."""
    monkeypatch.setattr(CalibratedGaussian, "draw_band", lambda _self, band, _: np.zeros(band.entries, np.int64))
    return []


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with workers(1) as (made, _), trusted_worker(made):
        yield made.scheduler_address


def lattice(table: RowsTable, asked: ReleaseRequest, name: str, where: Cluster | None = None) -> Lattice:
    found: Any = release_steps.release_table(table, table.path.with_name(name), asked, cluster=where).release
    return np.asarray(found.lattice)


@pytest.mark.usefixtures("summed")
@pytest.mark.parametrize("unit", [None, Unit("who", 3)])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_each_attempt_has_a_new_secret_key_wherever_it_is_summed_and_whatever_a_neighbour_is(
    tmp_path: Path, neighbours: Neighbours, unit: Unit | None, drawn: list[DitherKey], cluster: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table = table_at(tmp_path / "rows.zarr", monkeypatch, unit)
    places = {"here": None, "workers": Cluster(cluster), "trusted": Cluster(cluster, trusted_worker=True)}
    found = [lattice(table, request(neighbours, name=name), f"{name}.zarr", where) for name, where in places.items()]
    with monkeypatch.context() as patch:
        patch.setattr(connection, "connected", crash_driver.inline)
        crash_driver.in_bands(2, patch.setattr)
        found.append(lattice(table, request(neighbours, name="bands"), "bands.zarr"))
    assert len({key.key for key in drawn}) == len(drawn) == 4
    for key, moment in zip(drawn, found, strict=True):
        assert np.array_equal(moment, moment_under(key))


@pytest.mark.usefixtures("summed")
def test_an_attempt_that_is_resumed_has_another_key(
    table: RowsTable, drawn: list[DitherKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    class DiedError(Exception):
        pass

    def dying(*_: Any, **__: Any) -> None:
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(trusted, "conclude", dying)
        with pytest.raises(DiedError):
            lattice(table, request(ADDED), "release.zarr")
    moment = lattice(table, request(ADDED), "release.zarr")
    assert len(drawn) == 2
    assert np.array_equal(moment, moment_under(drawn[1]))


def test_all_rounds_of_products_have_one_key(table: RowsTable, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    complete: Any = release_steps.complete  # type: ignore[attr-defined]

    def noting(table: RowsTable, total: Partial[Any]) -> Any:
        found.append(total.key)
        return complete(table, total)

    monkeypatch.setattr(release_steps, "complete", noting)
    options = {"components": 2, "iterations": 3, "route": "products"}
    asked = ReleaseRequest("power", LOSS, 5.0, neighbours=ADDED, rule=DITHERED, options=options)
    release_steps.release_table(table, table.path.with_name("release.zarr"), asked, cluster=Cluster(cluster))
    assert len(found) >= 3
    assert len(set(found)) == 1
    assert found[0] != ""


@pytest.mark.parametrize("more", [-20, 0, 7])
def test_the_diagonal_that_is_subtracted_follows_from_the_released_count(
    table: RowsTable, drawn: list[DitherKey], monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """All noise is taken away but that of the count, which is private: the exact n would be told otherwise."""
    constant = 2**11

    def draw_band(_self: Any, band: Band, _: Any) -> npt.NDArray[np.int64]:
        noise = np.zeros(band.entries, np.int64)
        noise[-1] = more * constant**2
        return noise

    monkeypatch.setattr(CalibratedGaussian, "draw_band", draw_band)
    asked = request(ADDED, centring=Centring.PRIVATE)
    found = release_steps.release_table(table, table.path.with_name("release.zarr"), asked).release
    assert (found.rows, found.row_count) == (None, ROWS + more)
    steps = moment_under(drawn[0]) - (ROWS + more) / 4 * np.eye(COLUMNS)
    assert np.allclose(found.second_moment, steps * found.bound.unit**2, rtol=1e-12, atol=0)
    assert np.allclose(found.moment_diagonal, np.diag(found.second_moment), rtol=1e-12, atol=0)


@pytest.mark.usefixtures("summed")
@pytest.mark.parametrize("neighbours", Neighbours)
def test_it_is_left_in_where_no_count_is_public_or_released(
    table: RowsTable, drawn: list[DitherKey], neighbours: Neighbours
) -> None:
    found = release_steps.release_table(table, table.path.with_name("release.zarr"), request(neighbours)).release
    left = 0 if neighbours is Neighbours.ADD_REMOVE else ROWS / 4
    steps = moment_under(drawn[0]) - left * np.eye(COLUMNS)
    assert np.allclose(found.second_moment, steps * found.bound.unit**2, rtol=1e-12, atol=0)
    told = rounding(found)
    assert told is not None
    assert (told.shift > 0) is (left == 0)


def test_bands_of_two_keys_are_no_moment(table: RowsTable) -> None:
    def sums() -> Iterator[Partial[np.int64]]:
        for start, key in ((0, b"1" * 32), (2, b"2" * 32)):
            yield partition_moment(moment_task(table, BOUND, Band(start, start + 2, COLUMNS)).keyed(key))

    with pytest.raises(DpdistError, match="different keys"):
        list(MomentBands(sums).bands())


def test_nothing_that_holds_a_secret_key_can_be_part_of_a_task(
    table: RowsTable, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = secret_of_attempt(BOUND, trusted_worker=False)
    assert secret is not None
    key = DitherKey(secret())
    task = moment_task(table, BOUND)
    holders: list[Any] = [key, secret, task.keyed(key.key), ProductTask(task, VALUES).keyed(key.key), Dithers(key, 0)]
    cloudpickle.register_pickle_by_value(dither)
    try:
        for each in holders:
            with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
                pickle.dumps(each)
            with pytest.raises(TypeError, match="no part of a task"):
                cloudpickle.dumps(each)
            assert repr(key.key)[2:-1] not in repr(each)
    finally:
        cloudpickle.unregister_pickle_by_value(dither)
    assert pickle.loads(pickle.dumps(task)) == task  # noqa: S301 - our own
    # nor by mistake: a driver that knows the key does not tell it to a trusted worker by way of the scheduler
    monkeypatch.setattr(release_steps, "secret_of_attempt", lambda *_, **__: secret)
    with pytest.raises(TypeError, match="Could not serialize"):
        lattice(table, request(ADDED), "release.zarr", Cluster(cluster, trusted_worker=True))


@pytest.mark.parametrize("trusted", [False, True])
def test_neither_key_nor_fingerprint_is_in_a_file_a_log_or_what_the_scheduler_reads(
    table: RowsTable, drawn: list[DitherKey], trusted: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    said: list[bytes] = []

    class Noting(logging.Handler):  # Dask silences handlers that write to a stream while somebody is connected
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage().encode())

    monkeypatch.setattr(logging.getLogger("distributed"), "handlers", [Noting()])
    caplog.set_level(logging.DEBUG, "distributed")
    with workers(2) as (made, _), trusted_worker(made), listening(made.scheduler, monkeypatch) as (there, elsewhere):
        where = Cluster(made.scheduler_address, trusted_worker=trusted)
        lattice(table, request(ADDED), "release.zarr", where)
    (key,) = drawn
    fingerprint = key.fingerprint.encode()
    written = [path.read_bytes() for path in table.path.parent.rglob("*") if path.is_file()]
    assert len(written) > 10
    assert any(b"dpdist" in message for message in said)
    said.append("".join(capfd.readouterr()).encode())
    for form in (key.key, key.key.hex().encode(), repr(key.key).encode()[2:-1], fingerprint):
        assert not any(form in content for content in (*there, *written, *said))
    assert any(key.key in content for content in elsewhere)  # so would they be seen
    assert any(fingerprint in content for content in elsewhere)
    assert key.fingerprint not in repr(partition_moment(moment_task(table, BOUND).keyed(key.key)))


def test_the_driver_never_has_the_key_of_a_trusted_worker() -> None:
    assert secret_of_attempt(BOUND, trusted_worker=True) is keys.drawn


# --- rows in memory


def total(rows: Any) -> Lattice:
    return Rows(rows).total(BOUND, b"register" * 4).values


def test_rows_in_memory_are_dithered_in_their_order_whatever_they_come_in(drawn: list[DitherKey]) -> None:
    added = [total(VALUES)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpdist.estimators.inputs._PIECE_BYTES", 8 * COLUMNS * 7)
        added += [total(VALUES) for _ in range(2)]
    assert len({key.key for key in drawn}) == 3
    assert [each.tolist() for each in added] == [packed(moment_under(key)).tolist() for key in drawn]


@pytest.mark.parametrize("client", [False, True])
def test_each_block_of_a_dask_array_has_a_key_that_stays_where_it_is_summed(
    drawn: list[DitherKey], cluster: str, client: bool
) -> None:
    array = da.from_array(VALUES, chunks=(40, COLUMNS))
    blocks = [VALUES[start : start + 40] for start in range(0, ROWS, 40)]

    def sum_of(*each: DitherKey) -> list[int]:
        moments = [moment_under(key, rows) for key, rows in zip(each, blocks, strict=True)]
        found: list[int] = packed(np.sum(moments, axis=0)).tolist()
        return found

    with Client(cluster) if client else nullcontext():
        summed = total(array).tolist()
    assert len({key.key for key in drawn}) == 3
    assert [sum_of(*order) for order in permutations(drawn)].count(summed) == 1
