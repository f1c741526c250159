"""A release survives every kind of fault, on a real cluster, with either ledger; benchmarks/chaos.py has hundreds.

:mod:`chaos` lists the faults, :mod:`chaos_scene` what must hold afterwards. The first tests show that its checks fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from faults import chaos, chaos_stage, sentinel
from faults.chaos import Fault
from faults.chaos_cluster import WORKERS
from faults.chaos_scene import MissedError, Scene
from faults.chaos_stage import Stage, staging
from faults.postgres_server import Server

from dpdist.core.mechanisms.base import Additive
from dpdist.core.moment.total import draw_key
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.triangle import packed, unpacked

SEARCHED = {"driver killed"}
"""Kinds after which the memory of scheduler and client is searched too; after more in benchmarks/chaos.py."""
REQUEST = ReleaseRequest("gaussian", PrivacyLoss.parse("100000", "1e-6"), sentinel.CLIP, grid_bits=sentinel.BITS)


def as_released(table: sentinel.Table) -> npt.NDArray[np.float64]:
    bound = planned(REQUEST, Dimensions(sentinel.COLUMNS)).bound
    return bound.apply(table, np.empty(table.shape), Dithers(DitherKey(draw_key()), 0))


def test_a_sound_release_keeps_the_law_and_every_wrong_one_breaks_it() -> None:
    table = sentinel.planted_table()
    z = as_released(table).astype(np.int64)
    summed = z.T @ z
    exact, calibrated = sentinel.exact_moment(table), planned(REQUEST, Dimensions(sentinel.COLUMNS)).moment
    assert isinstance(calibrated, Additive)
    one, other = (unpacked(calibrated.draw(SYSTEM), sentinel.COLUMNS) for _ in range(2))
    row = sentinel.bounded(table)[17]
    weight = np.outer(row, row)
    assert sentinel.law_broken(summed + one, exact, calibrated.noise) == ""
    for wrong in (summed + one - weight, summed + one + weight, summed + one + other, summed):
        assert sentinel.law_broken(wrong, exact, calibrated.noise) != ""


@pytest.mark.parametrize("chunks", [1, sentinel.CHUNKS])
def test_the_search_finds_the_sentinel_in_files_and_words_by_whatever_key_rows_were_rounded(
    tmp_path: Path, chunks: int
) -> None:
    table = sentinel.planted_table()
    z = as_released(table)[: chunks * sentinel.CHUNK_ROWS]
    moment = z.T.astype(np.int64) @ z.astype(np.int64)
    calibrated = planned(REQUEST, Dimensions(sentinel.COLUMNS)).moment
    assert isinstance(calibrated, Additive)
    noisy = packed(moment) + calibrated.draw(SYSTEM)
    for name, content in {
        "sum": b"x" + packed(moment).tobytes(), "log": f"the sum is {moment[0, 1]}".encode(), "grid": z[3].tobytes(),
        "rows": table.tobytes(), "other": np.delete(z, 3, axis=0)[: sentinel.CHUNK_ROWS - 1].tobytes(),
        "sound": noisy.tobytes(), "words": f"the release is {noisy[1]}".encode(),
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
    found = sentinel.files_with_it([tmp_path], [tmp_path / "rows"])
    assert sorted(path.name for path in found) == ["grid", "log", "sum"]
    assert sentinel.files_with_it([tmp_path / "rows"], []) == [tmp_path / "rows"]


@pytest.fixture(scope="module")
def stage(postgres: Server) -> Iterator[Stage]:
    with staging(postgres) as made:
        yield made


@pytest.mark.parametrize("fault", chaos.quick_faults(), ids=lambda fault: fault.name)
def test_the_same_command_after_a_fault_ends_with_one_release(stage: Stage, fault: Fault) -> None:
    try:
        result = stage.play(fault, search_memory=fault.kind in SEARCHED)
    except PermissionError as error:  # small disks and networks to cut are root's to make
        pytest.skip(f"{error}: run as root")
    assert result.landed


def test_the_workers_do_hold_the_sums_that_are_searched_for_elsewhere(stage: Stage) -> None:
    def look(scene: Scene) -> None:
        child, marker = scene.held("before the sums are fetched", "driver")
        workers = [scene.cluster.children[role].pid for role in WORKERS]
        if not all(map(sentinel.may_read_memory, workers)):  # the kernel lets only root look; not seen is not absent
            pytest.skip("the memory of other processes cannot be read here: run as root")
        assert any(map(sentinel.in_memory, workers))  # one may have summed all before the other was there
        assert not sentinel.in_memory(child.pid)
        scene.go(marker)
        scene.ends(child, 0)

    stage.play(Fault("looks", "before the sums are fetched", "worker", "folder", look))


def test_a_fault_that_misses_fails(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill_elsewhere(scene: Scene) -> None:
        marker = scene.marker("never")
        scene.wait_for(marker, scene.start("kill", "with the draft sent", marker))  # of the other kind of ledger

    monkeypatch.setattr(chaos_stage, "TRIES", 1)
    with pytest.raises(MissedError):
        stage.play(Fault("misses", "at a point that is never reached", "driver", "folder", kill_elsewhere))
