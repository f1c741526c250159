"""Nights whose scale the first period chooses, privately: once, for all periods, and paid for by its rows alone."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from faults.nightly import JOB
from support.ledgers import DiedError, dies
from support.nightly_scene import Place

from dpdist.answers.model import open_model
from dpdist.core.ledger.state import Record
from dpdist.core.mechanisms import columns
from dpdist.core.mechanisms.columns import NAME
from dpdist.core.pipeline import release
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release import histograms
from dpdist.core.release.opening import open_release
from dpdist.jobs import job_file
from dpdist.jobs.series import open_series

SCALED = JOB.replace("clip = 8.0", 'clip = "auto"\nscale = "private"\ncentre = "private"')
WHOLE = PrivacyLoss.parse("1", "1e-6")
MEANS = np.array([0.0, 3.0, -1.0])
UNITS = np.array([1.0, 1000.0, 0.05])
COUNT = 20_000


@pytest.fixture
def nights(place: Place) -> Place:
    place.job.write_text(SCALED)
    return place


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    original = histograms.finalise

    def noted(transaction: Any, *rest: Any) -> None:
        seen.append(transaction.release_id)
        original(transaction, *rest)

    monkeypatch.setattr(histograms, "finalise", noted)
    return seen


def arrive(place: Place, *names: str, count: int = COUNT) -> None:
    """Let rows arrive whose columns have three units and means; the first two columns are one signal."""
    for name in names:
        generator = np.random.default_rng(int.from_bytes(name.encode(), "big"))
        rows = generator.normal(size=(count, 3)) + MEANS
        rows[:, 1] += 2 * rows[:, 0]
        np.save(place.incoming / f"{name}.npy", rows * UNITS)


def of_scale(place: Place) -> list[Record]:
    return [record for record in place.ledger.records if record.parameters["mechanism"] == NAME]


def squares(place: Place) -> dict[str, Fraction]:
    borne: dict[str, Fraction] = {}
    for record in place.ledger.records:
        for period, guarantee in record.charge.borne():
            assert guarantee.mu_squared is not None
            borne[period] = borne.get(period, Fraction(0)) + guarantee.mu_squared
    return borne


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("more", ["", 'factorisation = "banded"\nband = 2'])
def test_the_first_period_chooses_the_scale_of_all_and_pays_for_it(nights: Place, drawn: list[str], more: str) -> None:
    nights.job.write_text(f"{SCALED}{more}\n[pca]\npath = 'models'\ncomponents = 1\ncorrelation = true\n")
    for name in ("d1", "d2", "d3"):
        arrive(nights, name)
        nights.run()
    (chosen,) = of_scale(nights)
    assert drawn == [chosen.release_id]
    assert (chosen.periods, chosen.state.value) == (("d1",), "published")
    bounds = {str(open_release(path).bound) for path in nights.published.glob("*.zarr")}
    assert len(bounds) == 1
    total = open_release(nights.published / "total" / "d3.zarr")
    assert total.bound.scale == pytest.approx((1, 1000 * 5**0.5, 0.05), rel=0.3)
    assert total.bound.centre is not None
    assert np.abs(np.array(total.bound.centre) / UNITS - MEANS).max() < 1
    components = open_model(nights.folder / "models" / "d3.zarr").components.components
    assert abs(components[0] @ [0.5**0.5, 0.5**0.5, 0]) > 0.98  # for any units
    whole, borne = 1 / Fraction(gaussian_sigma(WHOLE)) ** 2, squares(nights)
    assert all(square <= whole for square in borne.values())
    share = chosen.charge.guarantee.mu_squared
    assert share is not None
    assert 0.09 < share / whole < 0.1001
    if not more:  # a period has one release, of nine tenths
        assert borne["d2"] == borne["d3"] == borne["d1"] - share
        assert 0.89 < borne["d3"] / whole <= 0.91
    nights.ledger.verify()
    before = nights.files()
    nights.run()
    assert (nights.files(), len(drawn)) == (before, 1)


def test_a_run_that_dies_after_the_choice_is_resumed_by_what_it_drew(
    nights: Place, drawn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(nights, "d1")
    with monkeypatch.context() as patched:
        patched.setattr(release, "release_table", dies)
        with pytest.raises(DiedError):
            nights.run()
    assert len(nights.ledger.records) == len(drawn) == 1
    assert [of for of, _ in nights.preview().releases] == ["d1"]
    nights.run()
    assert len(drawn) == 1
    assert [record.state.value for record in nights.ledger.records] == ["published"] * 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epsilon = 1\ndelta = 1e-6\nclip", "epsilon = 0.5\ndelta = 1e-6\nclip"),
        ("clip =", 'scale_share = "0.2"\nclip ='),
        ('clip = "auto"\nscale = "private"', "clip = 4.0"),
    ],
)
def test_a_job_that_changed_draws_no_other_scale(nights: Place, drawn: list[str], old: str, new: str) -> None:
    text = SCALED.replace("budget_epsilon = 1\n", "budget_epsilon = 4\n")
    nights.job.write_text(text)
    arrive(nights, "d1")
    nights.run()
    charged = len(nights.ledger.records)
    assert old in text
    nights.job.write_text(text.replace(old, new))
    arrive(nights, "d2")
    nights.refused("other parameters than those of the job now")
    assert (len(nights.ledger.records), len(drawn)) == (charged, 1)


def test_no_scale_is_drawn_that_the_releases_after_it_could_not_use(nights: Place, drawn: list[str]) -> None:
    nights.job.write_text(SCALED.replace("budget_epsilon = 1\n", "budget_epsilon = 0.9\n"))
    arrive(nights, "d1")
    assert not nights.preview().fits
    nights.refused("together cost each row epsilon 1")
    assert (nights.ledger.records, drawn) == ([], [])


def test_a_first_period_of_too_few_rows_chooses_nothing(
    nights: Place, drawn: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arrive(nights, "d1", count=60)
    nights.job.write_text(SCALED.replace("clip =", "rows_at_most = 1000000\nclip ="))  # of all periods together
    nights.refused(r"requires at least \d+ rows; the table has 60.*Nothing was spent")
    assert (nights.ledger.records, drawn) == ([], [])
    nights.job.write_text(SCALED.replace("clip =", 'neighbours = "add-remove"\nclip ='))
    nights.run()  # n is private, so nothing may depend on it
    assert len(drawn) == 1
    assert "The spread of 3 columns is lost in the noise" in capsys.readouterr().out


def test_what_a_run_would_spend_tells_the_choice(nights: Place) -> None:
    arrive(nights, "d1", "d2")
    preview = nights.preview()
    assert preview.fits
    assert [of for of, _ in preview.releases] == ["the scale, of d1", "d1", "d2"]
    foretold = [charge.guarantee.loss.epsilon for _, charge in preview.releases]
    nights.run()
    made = [record.charge.guarantee.loss.epsilon for record in nights.ledger.records]
    assert foretold == pytest.approx(made, rel=1e-3)  # the number of columns, unknown then, sets the rounding
    arrive(nights, "d3")
    ((of, charge),) = nights.preview().releases
    nights.run()
    assert (of, charge.guarantee) == ("d3", nights.ledger.records[-1].charge.guarantee)


def test_a_person_is_counted_by_the_choice_as_by_a_release_of_one_period(nights: Place, drawn: list[str]) -> None:
    persons = SCALED.replace("periods = true", 'periods = true\nprivacy_unit = "who"\nmax_rows = 2\nmax_periods = 3')
    nights.job.write_text(persons)
    for number in (1, 2):
        rows = np.random.default_rng(number).normal(size=(COUNT, 3)) * UNITS
        lines = [f"{who},{a},{b},{c}" for who, (a, b, c) in enumerate(rows.tolist())]
        (nights.incoming / f"d{number}.csv").write_text("\n".join(["who,a,b,c", *lines, ""]))
    nights.run()
    (chosen,) = of_scale(nights)
    assert drawn == [chosen.release_id]
    job = job_file.read_job(nights.job)
    first, loss = open_series(job).first_scale, chosen.charge.guarantee.loss
    assert first is not None
    counted = columns.calibrated(loss, Neighbours.REPLACE_ONE, 3, 4)  # 2 rows, by 2: the root of 3 periods, rounded up
    assert first.read().noise == counted.noise
    assert chosen.charge.guarantee == counted.guarantee
