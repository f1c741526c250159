"""A moment in bands: the bits of the whole one, noise once for each entry, one release, one charge, less memory."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from faults import crash_driver
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ledgers import losses
from support.parts import added, parts_of, table_of, whole_of
from support.replays import Recording, Replaying

from dpdist.answers.fitting import fit_components
from dpdist.core import triangle
from dpdist.core.errors import DataError, DpdistError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.mechanisms.base import IndependentEntries
from dpdist.core.moment import layout as layouts
from dpdist.core.moment.layout import PROCESS_BYTES, Layout, layout_of
from dpdist.core.moment.operator import MomentBands, ProductTask, partition_product
from dpdist.core.moment.total import Partial, add_partials, complete, partition_moment
from dpdist.core.parallel import fan_in
from dpdist.core.pipeline import release as release_steps
from dpdist.core.pipeline.budget import create_ledger, default_ledger
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release import artefact, opening, trusted
from dpdist.core.release import transaction as drawing
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import planned
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.table import Shape
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.store import store_at
from dpdist.core.triangle import Band, packed, unpacked

Lattice = npt.NDArray[np.int64]
COLUMNS = 7
ROWS = 90
REQUEST = ReleaseRequest("laplace", PrivacyLoss.parse("1"), 20.0, grid_bits=10, name="wide")
BUDGET = PrivacyLoss.parse("3", "1e-5")
GIB = 1 << 30


def table_at(path: Path, rows: int = ROWS, columns: int = COLUMNS, **how: Any) -> RowsTable:
    values = np.random.default_rng(3).integers(0, 12, (rows, columns)).astype("uint8")
    return table_of(path, values, **{"budget": BUDGET, **how})


def described(rows: int, columns: int) -> Shape:
    """Return the shape of a table that exists nowhere."""
    return Shape(rows, columns, "float32", min(rows, 100))


@pytest.fixture
def table(tmp_path: Path) -> RowsTable:
    made = table_at(tmp_path / "rows.zarr")
    create_ledger(default_ledger(made.path), made.path)
    return open_rows(made.path)


@pytest.fixture
def in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in this process, in bands of three rows."""
    monkeypatch.setattr(Cluster, "named", False)
    crash_driver.in_bands(3, monkeypatch.setattr)


def release(table: RowsTable, request: ReleaseRequest = REQUEST, name: str = "release.zarr") -> artefact.Release:
    return release_steps.release_rows(table.path, table.path.with_name(name), request).release


def drafts(table: RowsTable) -> list[Path]:
    return list((default_ledger(table.path) / "blobs").iterdir())


@given(size=st.integers(1, 12), cuts=st.sets(st.integers(1, 11)), side=st.integers(1, 5), seed=st.integers(0, 99))
def test_bands_are_runs_of_the_packed_triangle_and_give_every_tile(
    size: int, cuts: set[int], side: int, seed: int
) -> None:
    matrix = np.random.default_rng(seed).integers(-(2**62), 2**62, (size, size))
    matrix = np.triu(matrix) + np.triu(matrix, 1).T
    whole = packed(matrix)
    ends = sorted({min(size, side * cut) for cut in cuts} | {size})
    first, found = 0, np.zeros_like(matrix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triangle, "TILE", side)
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            band = Band(start, stop, size)
            values = whole[first : first + band.entries]
            first += band.entries
            assert np.array_equal(values, packed(matrix[start:stop, start:]))
            assert np.array_equal(values[band.diagonal], np.diag(matrix)[start:stop])
            for rows, columns in band.tiles():
                tile = band.block(values, rows, columns)
                found[rows.start : rows.stop, columns.start : columns.stop] = tile
                found[columns.start : columns.stop, rows.start : rows.stop] = tile.T
    assert first == whole.size
    assert np.array_equal(found, matrix)
    assert np.array_equal(unpacked(whole, size), matrix)
    for start, stop in ((2, 2), (-1, 1), (0, size + 1)):
        with pytest.raises(ValueError, match="at least one row"):
            Band(start, stop, size)


@settings(max_examples=25)
@given(
    height=st.integers(1, 5), workers=st.integers(1, 4), bits=st.sampled_from([4, 16, 24]), constant=st.booleans(),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_bands_hold_the_bits_of_the_whole_moment(
    tmp_path_factory: pytest.TempPathFactory, height: int, workers: int, bits: int, constant: bool, seed: int
) -> None:
    # rows of every kind: short, clipped, huge and not finite; each is bounded by its norm over all columns
    data = np.random.default_rng(seed).normal(size=(40, 5)) * 10.0 ** np.random.default_rng(seed).integers(
        -2, 30, (40, 1)
    )
    data[seed % 40, 1] = np.inf
    table = table_of(tmp_path_factory.mktemp("bands") / "rows.zarr", data)
    bound = RowBound(5, 5.0, bits, constant=2 ** (bits - 1) if constant else 0)
    whole = partition_moment(whole_of(table, bound))
    found = []
    for start in range(0, bound.width, height):
        band = Band(start, min(start + height, bound.width), bound.width)
        partial = complete(table, added(map(partition_moment, parts_of(table, bound, 2 * workers, band))))
        assert (partial.band, partial.rows, partial.fingerprint) == (band, whole.rows, whole.fingerprint)
        found.append(partial.values)
        with pytest.raises(DpdistError, match="before any noise"):
            add_partials(replace(partial, covered=((99, 100),)), replace(whole, band=None))
    assert np.array_equal(np.concatenate(found), whole.values)


@given(
    columns=st.integers(2, 60_000), rows=st.integers(1, 10**6), workers=st.integers(1, 300), memory=st.integers(1, 64)
)
def test_bands_cover_the_triangle_and_keep_every_process_within_its_memory(
    columns: int, rows: int, workers: int, memory: int
) -> None:
    bound = RowBound(columns, 1.0)
    try:
        found = layout_of(described(rows, columns), bound, workers, memory * GIB, divisible=True)
    except UsageError as refusal:
        assert "a band of 1024 rows" in str(refusal).lower()  # noqa: PT017 - most examples are not refused
        return
    assert [band.start for band in found.bands] == [0, *(band.stop for band in found.bands[:-1])]
    assert found.bands[-1].stop == columns
    assert all(band.start % triangle.TILE == 0 for band in found.bands)
    assert max(found.worker_bytes, found.trusted_bytes) <= memory * GIB
    assert 1 <= found.concurrent_bands <= len(found.bands)
    if max(Layout(found.table, bound, workers, (Band.whole(columns),)).worker_bytes, 0) > memory * GIB:
        assert len(found.bands) > 1


def test_noise_that_needs_all_of_the_moment_is_refused_and_fewer_threads_take_less_memory() -> None:
    wide, bound = described(1000, 20_000), RowBound(20_000, 1.0)
    with pytest.raises(UsageError, match=r"mechanism='gaussian'.*laplace.*'route': 'products'"):
        layout_of(wide, bound, 1, 8 * GIB, divisible=False)
    assert len(layout_of(wide, bound, 1, 8 * GIB, divisible=True).bands) > 1
    for divisible in (True, False):  # what fits is not cut
        assert layout_of(wide, bound, 1, 100 * GIB, divisible=divisible).bands == (Band.whole(20_000),)
    found = layout_of(wide, bound, 1, 20 * GIB, divisible=False, threads=8, fewer_threads=True)
    assert 1 <= found.threads < 8
    assert found.process_bytes <= 20 * GIB
    with pytest.raises(UsageError, match="fewer threads"):
        layout_of(wide, bound, 1, 20 * GIB, divisible=False, threads=8)


@pytest.mark.usefixtures("in_bands", "known_key")
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("centring", [Centring.NONE, Centring.PRIVATE])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_a_release_in_bands_is_the_exact_moment_plus_one_draw_for_every_entry(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch, mechanism: str, centring: Centring, neighbours: Neighbours
) -> None:
    loss = PrivacyLoss.parse("1", "1e-6" if mechanism == "gaussian" else "0")
    request = replace(REQUEST, mechanism=mechanism, loss=loss, centring=centring, neighbours=neighbours)
    recording = Recording()
    monkeypatch.setattr(trusted, "SYSTEM", recording)
    found, bound = release(table, request), planned(request, Dimensions(COLUMNS)).bound
    calibrated, replaying = planned(request, Dimensions(COLUMNS)).moment, Replaying(recording.drawn)
    assert isinstance(calibrated, IndependentEntries)
    bands = [Band(i, min(i + 3, bound.width), bound.width) for i in range(0, bound.width, 3)]
    noise = np.concatenate([calibrated.draw_band(band, replaying) for band in bands])
    assert not replaying.left
    expected = unpacked(partition_moment(whole_of(table, bound)).values + noise, bound.width)
    if bound.constant and neighbours is Neighbours.REPLACE_ONE:
        expected[-1, -1] = ROWS * bound.constant**2
    assert np.array_equal(found.lattice, expected)
    added_by_rounding = found.rounding_diagonal * np.eye(COLUMNS)
    assert np.array_equal(found.second_moment, expected[:COLUMNS, :COLUMNS] * bound.unit**2 - added_by_rounding)
    stored = zarr.open_array(table.path.with_name("release.zarr") / "lattice", mode="r")
    assert stored.chunks == (3, 3)


@pytest.mark.usefixtures("in_bands")
def test_rows_that_change_between_two_passes_stop_the_release_and_are_refunded(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed = release_steps.partition_moment  # type: ignore[attr-defined]

    def changing(task: Any) -> Partial[np.int64]:
        found = summed(task)
        return replace(found, fingerprint=found.fingerprint + (task.band.start > 0))

    monkeypatch.setattr(release_steps, "partition_moment", changing)
    with pytest.raises(DataError, match="changed while they were summed"):
        release(table)
    ledger = Ledger(default_ledger(table.path))
    assert [record.state for record in ledger.records] == [State.ABORTED]
    assert drafts(table) == []
    monkeypatch.setattr(release_steps, "partition_moment", summed)
    release(table)


@pytest.mark.usefixtures("in_bands")
def test_a_failure_in_a_later_band_leaves_nothing_to_be_seen_and_later_runs_make_one_release_with_one_charge(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy, seen = drawing.noisy, []

    def fails(calibrated: IndependentEntries, band: Band, *arguments: Any) -> Any:
        seen.append((band, len(drafts(table))))
        if band.start:
            raise RuntimeError
        return noisy(calibrated, band, *arguments)

    monkeypatch.setattr(drawing, "noisy", fails)
    with pytest.raises(RuntimeError):
        release(table)
    assert seen[-1] == (Band(3, 6, COLUMNS), 1)  # there was a draft, in the ledger's private folder
    assert drafts(table) == []
    assert not table.path.with_name("release.zarr").exists()
    monkeypatch.setattr(drawing, "noisy", noisy)
    first = release(table)
    for name in ("release.zarr", "again.zarr"):
        assert np.array_equal(release(table, name=name).lattice, first.lattice)
    ledger = Ledger(default_ledger(table.path))
    assert [record.state for record in ledger.records] == [State.PUBLISHED]
    assert losses(ledger) == [PrivacyLoss.parse("1")]
    assert len(drafts(table)) == 1


@pytest.mark.usefixtures("in_bands")
def test_a_large_release_stays_on_the_disk_until_parts_of_it_are_asked_for(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = release(table, replace(REQUEST, centring=Centring.PRIVATE))
    monkeypatch.setattr(opening, "_IN_MEMORY", 0)
    large = open_release(table.path.with_name("release.zarr"))
    assert (small.in_memory, large.in_memory) == (True, False)
    assert large.attributes() == small.attributes()
    assert np.array_equal(large.lattice, small.lattice)
    assert np.array_equal(large.moment_rows(3, 6), small.second_moment[3:6])
    assert large.row_sum is not None
    assert np.array_equal(large.row_sum, small.row_sum)  # type: ignore[arg-type]
    assert large.row_count == small.row_count


@pytest.mark.usefixtures("in_bands")
@pytest.mark.parametrize("place", [("lattice", "c/0/1"), ("lattice", "c/1/0"), ("second_moment", "c/2/1")])
def test_a_tile_that_contradicts_the_others_is_refused(table: RowsTable, place: tuple[str, str]) -> None:
    release(table)
    path = table.path.with_name("release.zarr")
    array = zarr.open_array(path / place[0], mode="r+")
    _, row, column = place[1].split("/")
    array[3 * int(row), 3 * int(column)] = int(np.asarray(array[3 * int(row), 3 * int(column)])) + 1
    with pytest.raises(DataError, match="damaged"):
        open_release(path)


def test_components_from_products_are_those_of_the_matrix_whoever_multiplies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    crash_driver.in_bands(15, monkeypatch.setattr)
    table = table_at(tmp_path / "rows.zarr", 400, 40)
    create_ledger(default_ledger(table.path), table.path)
    loss = PrivacyLoss.parse("2", "1e-5")
    release(open_rows(table.path), replace(REQUEST, mechanism="gaussian", loss=loss, centring=Centring.PRIVATE))
    path = tmp_path / "release.zarr"
    dense = fit_components(path, tmp_path / "dense", 3, correlation=False)[0].components
    monkeypatch.setattr(opening, "_IN_MEMORY", 0)
    here = fit_components(path, tmp_path / "here", 3)[0].components
    spread = fit_components(path, tmp_path / "spread", 3, cluster=Cluster(scheduler))[0].components
    assert here.eigenvalues == pytest.approx(dense.eigenvalues, rel=1e-9)
    assert here.components == pytest.approx(dense.components, abs=1e-6)
    assert here.mean.tolist() == dense.mean.tolist()
    assert here.components.tobytes() == spread.components.tobytes()
    with pytest.raises(UsageError, match="1 to 39"):
        fit_components(path, tmp_path / "all", 40)


def peak_of(action: Callable[[], Any], *, again: bool = True) -> int:
    """Return the most bytes that Python and NumPy held for an action, when what is kept for ever is there."""
    if again:
        action()
    tracemalloc.start()
    action()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


WIDE = 1500


@pytest.mark.parametrize("compress", [False, True])
def test_a_worker_needs_what_its_layout_says(tmp_path: Path, compress: bool) -> None:
    table = table_at(tmp_path / "rows.zarr", 2000, WIDE, compress=compress)
    bound = RowBound(WIDE, 100.0)
    for band in (Band.whole(WIDE), Band(0, 200, WIDE)):
        task = whole_of(table, bound, band)
        peak = peak_of(lambda task=task: partition_moment(task))  # type: ignore[misc]
        # sums of other units, which one alone does not have
        waiting = 8 * band.entries * (fan_in(8 * band.entries) + 2)
        promised = Layout(table, bound, 1, (band,)).worker_bytes - PROCESS_BYTES - waiting
        assert 0.75 * promised < peak <= promised


def test_the_trusted_node_holds_one_band_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_at(tmp_path / "rows.zarr", budget=None)
    monkeypatch.setattr(triangle, "TILE", 100)
    monkeypatch.setattr(drawing, "BLOCK_ENTRIES", 1 << 15)  # as small beside a band as it is in large ones
    width = 1000
    wide = replace(table, columns=width, names=tuple(f"c{i}" for i in range(width)))
    bands = [Band(0, 200, width), Band(200, 500, width), Band(500, width, width)]  # about as many entries each
    request = replace(REQUEST, mechanism="none", for_reproduction=True, name=None)  # draws nothing, so it is quick
    ledger = default_ledger(table.path)
    transaction = trusted.MomentTransaction.of(request, wide, ledger, store_at(tmp_path / "release.zarr"))
    held: list[weakref.ref[npt.NDArray[np.int64]]] = []
    left: list[bool] = []

    def sums() -> Iterator[Partial[np.int64]]:
        for band in bands:
            left.extend(each() is not None for each in held)
            exact = np.ones(band.entries, dtype=np.int64)
            held[:] = [weakref.ref(exact)]
            yield Partial(exact, ROWS, ((0, 1),), band)
            del exact
        held.clear()

    peak = peak_of(lambda: trusted.conclude(transaction, MomentBands(sums)))
    promised = (
        Layout(wide, planned(REQUEST, Dimensions(width)).bound, 1, tuple(bands)).trusted_bytes
        - PROCESS_BYTES
        - layouts._DRAWING
    )
    promised += 1 << 20  # the objects of Zarr and of the archive
    assert peak <= promised
    assert left
    assert not any(left)  # nobody holds an exact band when the next one comes
    kept = replace(transaction, target=store_at(tmp_path / "kept.zarr"))
    twin = peak_of(lambda: trusted.conclude(kept, MomentBands(lambda: iter(list(sums())))), again=False)
    assert twin > promised  # the twin that must fail: of bands that are all there from the beginning


def test_products_need_no_square_of_the_columns(tmp_path: Path) -> None:
    columns = 20_000
    table, bound = table_at(tmp_path / "rows.zarr", 30, columns), RowBound(columns, 100.0)
    task = whole_of(table, bound)
    vectors = np.full((columns, 2), 2.0**-8)
    assert peak_of(lambda: partition_product(ProductTask(task, vectors))) < 8 * columns**2 / 100
