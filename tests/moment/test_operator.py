"""Products of the moment with a few vectors: exact sums of integers, the same bits however rows are shared out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parts import added, parts_of, table_of
from support.scripted import Scripted

from dpdist.mechanisms.power import GRID_BITS, on_grid
from dpdist.moment.operator import Digits, ProductTask, partition_product
from dpdist.moment.total import block_rows, complete, moment_task, partition_moment
from dpdist.pipeline import release as release_steps
from dpdist.pipeline.budget import create_ledger, default_ledger
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release import trusted
from dpdist.release.request import ReleaseRequest
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import RowsTable
from dpdist.rows.table import Shape
from dpdist.runtime import local
from dpdist.triangle import unpacked

Matrix = npt.NDArray[np.float64]
BUDGET = PrivacyLoss.parse("3", "1e-5")


def sums_over(table: RowsTable, bound: RowBound, vectors: Matrix, count: int) -> npt.NDArray[Any]:
    tasks = parts_of(table, bound, count)
    total = added(partition_product(ProductTask(task, vectors)) for task in tasks)
    found: npt.NDArray[Any] = complete(table, total).values
    return found


@settings(max_examples=25)
@given(
    bits=st.integers(2, 24), count=st.integers(1, 3), parts=st.integers(1, 15),
    chunk=st.integers(3, 40), constant=st.booleans(), largest=st.booleans(), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_products_are_exact_however_the_rows_are_shared_out(
    tmp_path_factory: pytest.TempPathFactory, bits: int, count: int, parts: int, chunk: int, constant: bool,
    largest: bool, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    # rows of full norm, alike: the largest sums there are; or any
    data = np.ones((40, 5)) * 9 if largest else rng.normal(size=(40, 5)) * 10.0 ** rng.integers(-2, 3, (40, 1))
    table = table_of(tmp_path_factory.mktemp("rows") / "rows.zarr", data, chunk)
    bound = RowBound(5, 5.0, bits, constant=2**bits if constant else 0)
    frame = np.ones((bound.width, 1)) if largest else rng.normal(size=(bound.width, count))
    vectors = on_grid(np.linalg.qr(frame)[0])
    found = sums_over(table, bound, vectors, parts)
    assert found.dtype == np.int64
    assert np.array_equal(found, sums_over(table, bound, vectors, 1))
    digits = Digits.of(table, bound)
    exact = sum(each.astype(object) << (place * digits.bits) for place, each in enumerate(found))
    task = moment_task(table, bound)
    moment = unpacked(partition_moment(task).values, bound.width).astype(object)
    integers = np.ldexp(vectors, GRID_BITS).astype(np.int64).astype(object)
    assert (exact == moment @ integers).all()
    shifted = (moment @ integers).astype(np.float64) * 2.0**-GRID_BITS
    assert digits.joined(found) == pytest.approx(shifted, rel=1e-13, abs=abs(shifted).max() * 1e-15)


@given(columns=st.integers(1, 50_000), bits=st.integers(2, 24), constant=st.booleans(), data=st.data())
def test_no_sum_of_a_digit_leaves_its_integers(columns: int, bits: int, constant: bool, data: Any) -> None:
    columns = min(columns, (2**63 - 1) // 4 ** (bits + 1))
    bound = RowBound(columns, 1.0, bits, constant=2**bits if constant else 0)
    rows = data.draw(st.one_of(st.integers(1, bound.total_rows), st.just(bound.total_rows)))
    table = Shape(rows, columns, "float32", 1)
    digits = Digits.of(table, bound)
    entry, largest = 2**bits, 2**digits.bits
    assert rows * entry * largest < 2**63
    assert block_rows(rows, bound) * entry * largest <= 2**53
    # |z| |V_j| is what a product may come to, and all digits together hold it; float64 does, before it is cut
    assert bound.norm_bound * 4**GRID_BITS < 4 ** min(digits.bits * digits.count, 53)


def test_vectors_off_the_grid_or_too_long_are_a_defect(tmp_path: Path) -> None:
    table = table_of(tmp_path / "rows.zarr", np.ones((4, 3)), 4)
    task = moment_task(table, RowBound(3, 1.0))
    for vectors in (np.full((3, 1), 0.1), np.full((3, 1), 0.75)):
        with pytest.raises(AssertionError, match="on their grid"):
            partition_product(ProductTask(task, vectors))


@given(rows=st.integers(1, 400), count=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_what_the_moment_is_multiplied_with_is_no_longer_than_an_orthonormal_frame(
    rows: int, count: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    frame = np.linalg.qr(rng.normal(size=(rows, min(rows, count))))[0]
    for each in (frame, np.eye(rows, min(rows, count)), np.full((rows, 1), rows**-0.5)):
        found = on_grid(each)
        steps = np.ldexp(found, GRID_BITS)
        assert np.array_equal(steps, np.rint(steps))
        assert np.linalg.norm(found, 2) <= 1
        assert np.linalg.norm(found - each) < 2 * np.sqrt(each.size) * 2.0**-GRID_BITS * np.linalg.norm(each)


def test_rounding_alone_would_exceed_the_sensitivity() -> None:
    # the twin: equal entries, all of them rounded up
    entries = np.full((11, 1), 11**-0.5)
    rounded = np.ldexp(np.rint(np.ldexp(entries, 20)), -20)
    assert np.linalg.norm(rounded) > 1


# --- the release ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("known_key")
@pytest.mark.parametrize("delta", ["1e-6", "0"])
def test_the_same_random_bits_give_the_same_release_on_any_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delta: str
) -> None:
    values = np.random.default_rng(3).normal(size=(600, 6))
    options = {"components": 2, "iterations": 3, "route": "products"}
    request = ReleaseRequest("power", PrivacyLoss.parse("2", delta), 3.0, options=options, name="same")
    answers = set()
    for chunk, threads in ((600, 1), (50, 3), (17, 7)):
        place = tmp_path / f"{chunk}"
        place.mkdir()
        table_of(rows := place / "rows.zarr", values, chunk, budget=BUDGET)
        create_ledger(default_ledger(rows), rows)
        monkeypatch.setattr(local, "available_cores", lambda threads=threads: threads)
        monkeypatch.setattr(trusted, "SYSTEM", Scripted(5))
        found = release_steps.release_rows(rows, place / "release.zarr", request).release
        assert found.noise["vector_bits"] == GRID_BITS
        answers.add(np.asarray(found.answer).tobytes())
    assert len(answers) == 1
