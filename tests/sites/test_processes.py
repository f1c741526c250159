"""Sites as processes of their own, with homes of their own: the law of the sum, death at any moment, and clusters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from faults.crash_points import points
from faults.forks import Forks, forking
from scipy import stats
from support.ledgers import losses
from support.sites_scene import LOSS, ROWS, Hospitals, request
from support.tallies import alarms

import dpdist
from dpdist.core.ledger.state import State
from dpdist.core.noise.masks import Masks
from dpdist.core.pipeline import release as pipeline
from dpdist.core.pipeline import shares
from dpdist.core.triangle import Band, packed

SITES, COLUMNS = 5, 1413  # 999,000 entries


def python(site: Path, code: str, *arguments: object) -> str:
    """Run a program at a site: its home is its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DPDIST_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment | {"HOME": str(site)}, check=False,
        capture_output=True, text=True, cwd=site,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


BEGIN = """
import sys, numpy, dpdist
session, site, columns = sys.argv[1:]
numpy.save("rows.npy", numpy.eye(20, int(columns)))
dpdist.ingest_rows("rows.npy", "rows.zarr", budget=dpdist.PrivacyLoss.parse(1, 1e-6))
print(dpdist.add_session_key(session, "rows.zarr", site).fingerprint)
"""
SHARE = """
import sys, dpdist
session, site, fingerprint = sys.argv[1:]
print(dpdist.release_share(session, "rows.zarr", site, fingerprint).fresh)
"""


def entries_of(share: Path) -> npt.NDArray[np.uint64]:
    return np.frombuffer(share.read_bytes().partition(b"\n")[2][:-32], dtype="<u8")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder where five processes with five homes have made a session of a million entries."""
    folder = tmp_path_factory.mktemp("five")
    sites = {f"site{number}": 20 for number in range(SITES)}
    columns = [f"c{number}" for number in range(COLUMNS)]
    dpdist.create_session(folder / "study", sites, request(clip_norm=2.0), columns=columns)
    for name in sites:
        (folder / name).mkdir()
        fingerprint = python(folder / name, BEGIN, folder / "study", name, COLUMNS).strip()
    for name in sites:
        assert python(folder / name, SHARE, folder / "study", name, fingerprint) == "True\n"
    dpdist.combine_shares(folder / "study", folder / "release.zarr")
    return folder


def test_the_sum_of_five_processes_minus_the_exact_one_has_the_law_of_gaussian(study: Path) -> None:
    release = dpdist.open_release(study / "release.zarr")
    exact = np.zeros((COLUMNS, COLUMNS))
    exact[np.arange(20), np.arange(20)] = SITES / release.bound.unit**2
    noise = release.lattice - np.rint(exact).astype(np.int64)
    off = np.concatenate([noise[i, i + 1 :] for i in range(COLUMNS)])
    of_site = dpdist.open_session(study / "study").terms.share
    assert off.size > 990_000
    sigma = round((SITES * of_site.sigma_off_diagonal**2) ** 0.5)
    # rounding adds less than a step per row, to a noise of a million steps
    assert not alarms(off, sigma)
    assert not alarms(np.diagonal(noise), round((SITES * of_site.sigma_diagonal**2) ** 0.5))
    assert alarms(off, round(((SITES - 1) * of_site.sigma_off_diagonal**2) ** 0.5))  # as if one had added none
    assert alarms(off, round(1.01 * sigma))


def test_any_four_of_five_shares_are_uniform(study: Path) -> None:
    shares = [entries_of(study / "study" / f"site{number}.share") for number in range(SITES)]
    scale = 2.0**63

    def uniform(words: npt.NDArray[np.uint64]) -> bool:
        return not alarms_uniform(words.view(np.int64) / scale)

    for missing in range(SITES):
        assert uniform(np.sum([s for i, s in enumerate(shares) if i != missing], axis=0, dtype=np.uint64))
        assert uniform(shares[missing])
    assert not uniform(np.sum(shares, axis=0, dtype=np.uint64))


def alarms_uniform(numbers: npt.NDArray[np.float64]) -> bool:
    """Whether numbers are not uniform on [-1, 1): by the counts of a thousand cells."""
    counts = np.histogram(numbers, bins=1000, range=(-1, 1))[0]
    return bool(stats.chisquare(counts).pvalue < 1e-6)


def test_each_home_holds_its_own_charge_and_no_key(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(SITES):
        state = study / f"site{number}" / ".local" / "state" / "dpdist"
        (key,) = (state / "sessions").glob("*.json")
        assert json.loads(key.read_text().splitlines()[0])["secret"] is None
        monkeypatch.setenv("DPDIST_STATE_HOME", str(state))
        ledger = dpdist.Ledger(study / f"site{number}" / "rows.ledger")
        ledger.verify()
        assert [record.state for record in ledger.records] == [State.PUBLISHED]


# --- death at any moment ---

STRUCK = (
    "inside the reservation", "before the key is bound", "after the key is bound", "after the sum",
    "inside the beginning", "after the draw", "with half a draft", "after the draft", "inside the commit",
    "before the witness", "inside the note of the witness", "after the commit", "before the key is destroyed",
    "after the key is destroyed", "before the share is written", "after the share is written", "inside the record",
)  # fmt: skip


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with forking() as server:
        yield server


@pytest.mark.parametrize("point", STRUCK)
def test_a_share_killed_at_any_moment_is_finished_by_the_same_command(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    assert point in points()
    hospitals = Hospitals.at(tmp_path, monkeypatch)
    hospitals.create()
    # the process that is forked from has one state folder for all
    (tmp_path / "boston" / "state").mkdir()
    for name in ROWS:
        last = dpdist.add_session_key(hospitals.session, hospitals.rows(name), name)
    assert last.fingerprint is not None
    command = [
        "session", "share", str(hospitals.session), str(hospitals.rows("boston")), "--site", "boston",
        "--fingerprint", last.fingerprint,
    ]  # fmt: skip
    marker, words = tmp_path / "struck", tmp_path / "words"
    share = hospitals.session / "boston.share"
    assert forks.start(words, ["kill", point, str(marker), "inline", *command]).wait() == -signal.SIGKILL
    assert marker.exists(), words.read_text()
    seen = share.read_bytes() if share.exists() else None
    assert forks.start(words, ["note", "", str(marker), "inline", *command]).wait() == 0, words.read_text()
    first = share.read_bytes()
    assert seen in (None, first)
    assert forks.start(words, ["note", "", str(marker), "inline", *command]).wait() == 0
    assert share.read_bytes() == first
    ledger = hospitals.ledger("boston")
    ledger.verify()
    assert losses(ledger) == [LOSS]
    assert [record.state for record in ledger.records] == [State.PUBLISHED]
    for name in ("lyon", "oslo"):
        dpdist.release_share(hospitals.session, hospitals.rows(name), name, last.fingerprint)
    assert hospitals.combined().rows == sum(ROWS.values())


# --- clusters ---


def test_the_rows_of_a_site_are_summed_on_its_own_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    hospitals = Hospitals.at(tmp_path, monkeypatch)
    hospitals.create()
    fingerprint = hospitals.exchange()
    for name in ROWS:
        assert hospitals.share(name, fingerprint, cluster=dpdist.Cluster(scheduler)).fresh
    assert hospitals.combined().rows == sum(ROWS.values())
    with pytest.raises(dpdist.UsageError, match="key of a site is in the state folder of this process"):
        hospitals.share("boston", fingerprint, cluster=dpdist.Cluster(workers=1, trusted_worker=True))


def test_bands_are_masked_by_one_key_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment that is summed band by band is masked from the first row to the last."""
    hospitals = Hospitals.at(tmp_path, monkeypatch)
    hospitals.create()
    fingerprint = hospitals.exchange()
    layout_for, masked = pipeline.layout_for, []
    mask = Masks.mask

    def in_bands(*arguments: object, **options: object) -> object:
        layout = layout_for(*arguments, **options)  # type: ignore[arg-type]
        assert layout is not None
        return replace(layout, bands=(Band(0, 1, 3), Band(1, 3, 3)))

    def noting(self: Masks, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        masked.append(values.copy())
        return mask(self, values)

    monkeypatch.setattr(shares, "layout_for", in_bands)
    monkeypatch.setattr(Masks, "mask", noting)
    hospitals.all_shares(fingerprint)
    assert [part.size for part in masked] == [3, 3] * len(ROWS)
    together = np.sum(np.reshape(masked, (len(ROWS), 6)), axis=0)
    np.testing.assert_array_equal(packed(hospitals.combined().lattice), together)
