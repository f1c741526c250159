"""Values of shortened rows are said to be theirs, and a release that tells that nearly all rows were says so."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.folders import ROOT
from support.norms import call

from dpdist import PrivateCovariance, PrivatePCA
from dpdist.answers.bias import ClippedRows, clipped_rows, described, trace_deviation
from dpdist.core.errors import ClippedRowsWarning
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.pipeline.release import Outcome
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.triangle import unpacked

pytestmark = pytest.mark.filterwarnings("ignore:The same number of rows was released")

STEPS = (ROOT / "docs" / "howto" / "steps.md").read_text()
Rows = npt.NDArray[np.float64]


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a table of large values, as incomes are, and be where it is."""
    monkeypatch.setattr(Cluster, "named", False)
    monkeypatch.chdir(tmp_path)
    factor, rows = np.random.default_rng(4).normal(size=(30000, 1)), np.random.default_rng(3).normal(size=(30000, 12))
    rows = (0.8 * rows + 0.6 * factor) * np.linspace(6000, 500, 12)
    names = ",".join(f"c{i}" for i in range(12))
    np.savetxt(tmp_path / "table.csv", rows, delimiter=",", header=names, comments="", fmt="%.3f")
    return tmp_path


def steps() -> list[list[str]]:
    """Return the commands of the page on the steps."""
    block = STEPS.split("```sh\n")[1].split("```")[0]
    return [shlex.split(line)[1:] for line in block.splitlines()]


def test_the_steps_choose_the_clip_norm_first(large: Path) -> None:
    commands, clip = steps(), "100"
    assert [words[0] for words in commands] == ["ingest", "bound", "release", "pca", "project", "ledger", "report"]
    for words in commands:
        found = call(*(clip if word == "100" else word for word in words))
        assert found.exit_code == 0, found.output
        if words[0] == "bound":
            clip = re.findall(r"--clip (\S+)", found.output)[0]
        assert "NEARLY EVERY ROW" not in found.output
        if words[0] == "pca":
            norm = float(re.findall(r"clipped to norm (\d+\.?\d*)", found.output)[0])
            assert 0.99 * float(clip) < norm < float(clip)  # room for rounding
    assert (large / "scores.zarr").exists()


def test_a_clip_norm_out_of_the_air_is_found_out_and_the_cure_is_named(large: Path) -> None:
    """The same commands without bound: every row has norm 100 afterwards, a hundredth of what it had."""
    for words in steps():
        if words[0] in {"ingest", "release", "pca", "report"}:
            said = call(*words)
            assert said.exit_code == 0, said.output
        if words[0] in {"release", "pca"}:
            assert "NEARLY EVERY ROW WAS CLIPPED to norm 99." in " ".join(said.output.split())
            assert "With --scale private and --clip auto few are clipped" in " ".join(said.output.split())
    told = json.loads(call("pca", "release.zarr", "again.zarr", "--components", 2, "--json").stdout)["shortened"]
    assert told["nearly_all"]
    assert 99.7 < told["norm"] < 99.9  # 1022 of 1024 steps
    page = (large / "report.html").read_text()
    assert "NEARLY EVERY ROW WAS CLIPPED" in page
    assert 'id="findings"' in page


def released(rows: Rows, clip: float, epsilon: float = 9, **more: object) -> Release:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClippedRowsWarning)
        fitted = PrivateCovariance(epsilon=epsilon, delta=1e-6, clip=clip, **more).fit(rows)  # type: ignore[arg-type]
    release: Release = fitted.release_
    return release


def normal(seed: int, rows: int = 20_000) -> Rows:
    return np.random.default_rng(seed).normal(size=(rows, 4))


def test_what_is_said_follows_the_rows() -> None:
    for number, centre in enumerate(("none", "private")):
        found = [clipped_rows(released(normal(100 * number + seed) * 100, 3, centre=centre)) for seed in range(20, 25)]
        # the error is three deviations: more than two of five fail with probability 2e-7
        assert sum(each.nearly_all is True for each in found) >= 3
        assert sum(each.share == pytest.approx(1, abs=each.error) for each in found) >= 3
    half = normal(11) * np.where(np.arange(20_000) % 2, 100, 0.1)[:, None]
    assert clipped_rows(released(half, 3, centre="none")).nearly_all is False
    assert clipped_rows(released(normal(12), 50, centre="none")).nearly_all is False
    unit = normal(13) / np.linalg.norm(normal(13), axis=1)[:, None]
    assert "like normalised rows" in clipped_rows(released(unit, 1.0000001, centre="none")).warning()
    rows = np.random.default_rng(0).lognormal(0, 1, size=(20_000, 4))
    some = clipped_rows(released(rows, 4, centre="none"))
    assert some.share is not None
    assert some.error is not None
    assert (np.linalg.norm(rows, axis=1) > 4).mean() <= some.share + some.error
    perhaps = clipped_rows(released(normal(14)[:, :3] + 2, 2.5, centre="none"))  # and none is long
    assert perhaps.nearly_all is False
    assert perhaps.warning().startswith("Most rows may have been clipped to norm 2.")
    assert perhaps.to_json()["warning"] == perhaps.warning()


def test_rows_that_fill_most_of_the_clip_norm_are_said_to_and_others_are_not(tmp_path: Path) -> None:
    """Of rows beyond it, one in ten is nearly 0: the trace is 0.9 of the largest, and its error below 0.02."""
    most = normal(22) * np.where(np.arange(20_000) % 10, 100, 1e-3)[:, None]
    release = released(most, 3, centre=[1e-9] * 4, release=tmp_path / "r.zarr")
    found = clipped_rows(release)
    assert found.share == pytest.approx(0.9, abs=found.error)
    assert found.nearly_all is False
    assert found.warning().startswith("Perhaps most of the rows, at most 9")
    assert re.search(r"norm 2\.9\d+ \(perhaps most of them, at most 9\d%\)", found.describe())
    assert found.warning() in described(Outcome(release, "r.zarr", fresh=True))
    with pytest.warns(ClippedRowsWarning, match="Perhaps most"):
        PrivatePCA.from_release(release, 1)
    fewer = normal(23) * np.where(np.arange(20_000) % 10 < 6, 100, 1e-3)[:, None]
    some = clipped_rows(released(fewer, 3, centre="none"))
    assert some.warning() == ""
    assert re.search(r"\(at most 6\d% of them\)", some.describe())  # rows about 0 may be so long by themselves
    hidden = released(normal(24, rows=100) * 100, 3, centre="none", epsilon=0.01)
    for quiet in (released(normal(25), 8, centre="none"), hidden):
        assert (clipped_rows(quiet).warning(), clipped_rows(quiet).guess) == ("", "")
    assert "nearly all were" in clipped_rows(released(normal(21) * 100, 3, centre="none")).describe()


def test_a_private_clip_norm_bounds_the_rows_beyond_it_and_hides_no_warning() -> None:
    """Rows of one norm lie in one bin, and which part of it is clipped its count does not tell."""
    asked: dict[str, Any] = {"epsilon": 4, "delta": 1e-6, "clip": "private"}
    spread = normal(31)
    told = clipped_rows(PrivatePCA(2, **asked).fit(spread).release_)
    assert told.between is not None
    assert told.between[0] <= (np.linalg.norm(spread, axis=1) > told.norm).mean() <= told.between[1] < 0.2
    unit = np.random.default_rng(32).normal(size=(20_000, 6))
    unit /= np.linalg.norm(unit, axis=1)[:, None]
    with pytest.warns(ClippedRowsWarning, match="NEARLY EVERY ROW"):
        one = PrivatePCA(2, **asked).fit(unit).release_
    assert "nearly all were" in clipped_rows(one).describe()


def test_a_bound_is_rounded_upwards_and_a_schema_s_norm_is_said() -> None:
    assert ClippedRows(1.0, 0.601, 0.0, 0.601).describe().endswith("(at most 61% of them)")
    assert ClippedRows(1.73, 0.3, 0.0, 0.3, longest=1.7321).describe().endswith("(none is longer than 1.7321)")
    counted = ClippedRows(1.0, 0.8, 0.01, 0.2, (0.1, 0.2), centred=True)
    assert (counted.warning(), counted.clipped) == ("", "10 to 20% of them")  # few were
    assert replace(counted, between=(0.0, 0.004)).clipped == "at most 0.4% of them"
    assert replace(counted, between=(0.973, 1.0)).clipped == "97 to 100% of them"
    many = replace(counted, between=(0.31, 0.4))
    assert many.warning().startswith(
        "For the rows as they are, means, slopes, correlations and components are unknown: 31"
    )


OUTSIDE = "for the rows as they are it is unknown: "


def shown(text: str) -> str:
    return " ".join(text.split())


def test_the_first_answer_says_in_its_sentence_that_it_is_of_clipped_rows_in_every_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its intervals hold for the clipped rows only, so no face may print one without that."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(8)
    common = random.normal(size=(20_000, 1))
    rows = np.exp(common + 0.5 * random.normal(size=(20_000, 4)))
    np.savetxt("table.csv", rows, delimiter=",", header="a,b,c,d", comments="", fmt="%.4f")
    asked = ("--epsilon", 1, "--delta", "1e-6")
    of_rows = re.compile(
        r"of rows clipped to norm [\d.]+ \((at most \d+%|[\d.]+ to [\d.]+%|perhaps [a-z ]+) of them[^)]*\)"
    )
    first = shown(call("release", "table.csv", "release.zarr", *asked).output)
    pca = shown(call("pca", "release.zarr", "model.zarr").output)
    plain = shown(call("pca", "release.zarr", "plain.zarr", "--no-correlation").output)
    found = PrivatePCA.from_release("release.zarr", 1, correlation=True)
    moment = PrivatePCA.from_release("release.zarr", 1)
    page = call("report", "release.zarr", "report.html")
    assert page.exit_code == 0, page.output
    assert re.search(f"These are {of_rows.pattern}", first), first
    for text in (pca, shown(found.summary())):
        assert re.search(f"Components of the correlation matrix {of_rows.pattern}", text), text
        assert "Without clipping, the values are unknown: " in text
    for text in (plain, shown(moment.summary())):
        assert re.search(f"components? {of_rows.pattern}", text), text
        assert f"A true value is that of the clipped rows; {OUTSIDE}" in text
    for text in (found._repr_html_(), moment._repr_html_()):
        assert re.search(f"Components and intervals are {of_rows.pattern}", shown(text)), text
    assert of_rows.search(shown(Path("report.html").read_text()))


def test_without_a_number_of_rows_it_is_said_that_the_share_is_unknown() -> None:
    release = PrivatePCA(1, epsilon=9, delta=1e-6, clip=8, neighbours="add-remove").fit(normal(15)).release_
    assert clipped_rows(release).describe().endswith("(how many is unknown), about zero, as no mean was released")
    assert ClippedRows(1.0, 0.99, 0.02, 1.0, centred=True).describe().endswith("(nearly all were)")
    assert ClippedRows(1.0, 0.8, 0.01, 0.81, centred=True).describe().endswith("(perhaps most of them, at most 81%)")
    assert ClippedRows(1.0, 0.9, 0.3, 1.0).describe().endswith("(up to all of them)")
    assert ClippedRows(1.73, 0.3, 0.0, 0.3, longest=1.7321).unknown == ""


def test_nothing_is_said_where_nothing_is_known() -> None:
    far = normal(14) * 100
    assert clipped_rows(released(far, 3, centre="private", neighbours="add-remove")).nearly_all  # and was released
    few = normal(15, rows=60) * 100  # their noise is larger than their trace
    found = clipped_rows(released(few, 3, epsilon=0.1, centre="none"))
    assert (found.nearly_all, found.warning()) == (None, "")


def test_the_estimators_warn_and_keep_what_was_paid_for() -> None:
    pca = PrivatePCA(1, epsilon=2, delta=1e-6, clip=3)
    with pytest.raises(
        ClippedRowsWarning, match=r"With scale=.private. and clip=.auto. few are clipped"
    ):  # warnings are errors here
        pca.fit(normal(17) * 100)
    with pytest.warns(ClippedRowsWarning):
        assert PrivatePCA.from_release(pca.release_, 2).n_components_ == 2
    PrivatePCA(1, epsilon=2, delta=1e-6, clip=8).fit(normal(18))  # and nothing is said of other rows


@pytest.mark.parametrize(("mechanism", "delta"), [("gaussian", "1e-6"), ("wishart", "1e-6"), ("frobenius", "0")])
def test_the_error_of_the_trace_is_that_of_the_noise(mechanism: str, delta: str) -> None:
    """Deviations of 300 traces are off by .047 (kurtosis up to 3.7); .3 is 6.4 of that: once in 10^9."""
    d = 4
    calibrated = planned(ReleaseRequest(mechanism, PrivacyLoss.parse("1", delta), 1.0), Dimensions(d)).moment
    nothing = np.zeros(d * (d + 1) // 2, dtype=np.int64)
    draws = (calibrated.answer(MomentMatrix(nothing.copy(), d), SYSTEM) for _ in range(300))
    traces = [float(np.trace(unpacked(each.astype(np.int64), d))) for each in draws]
    ratio = float(np.std(traces)) / trace_deviation(calibrated.noise, d)
    assert abs(ratio - 1) < 0.3
    assert abs(ratio * np.sqrt(d) - 1) > 0.3  # the twin: an error that forgot how many entries a trace has
