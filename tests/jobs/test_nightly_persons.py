"""Periods with a privacy unit: the rows kept, the charges, and that no unit counts twice."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from faults.nightly import JOB
from support.ledgers import DiedError, dies
from support.nightly_scene import Place

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest import periods as ingest_periods
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.pipeline.inspect import inspect_path
from dpdist.core.pipeline.release import release_rows
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release import plan as plans
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.opening import open_release
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import open_ingested
from dpdist.core.rows.persons import Watch
from dpdist.core.rows.units import KeptRows, Numbers, Unit, named_units
from dpdist.jobs import job_file
from dpdist.jobs.series import open_series
from dpdist.jobs.text import preview_message

PERSONS = JOB.replace("periods = true", 'periods = true\nprivacy_unit = "who"\nmax_rows = 2\nmax_periods = 3')
ALWAYS, STRANGER = 7, 1000


@pytest.fixture
def people(place: Place) -> Place:
    place.job.write_text(PERSONS)
    return place


SCHEMA = """
max_rows = 2
[[column]]
name = "first"
kind = "privacy unit"
[[column]]
name = "last"
kind = "privacy unit"
""" + "".join(f'[[column]]\nname = "{name}"\nkind = "number"\n' for name in "abc")
NAMED = JOB.replace("periods = true", 'periods = true\nschema = "schema.toml"\nmax_periods = 3')


def arrive(place: Place, number: int, who: Sequence[int]) -> None:
    """Let a row of each of these persons arrive; its first column identifies the person."""
    lines = [f"{person},{person / 1024},{number / 1024},0.25" for person in who]
    (place.incoming / f"d{number}.csv").write_text("\n".join(["who,a,b,c", *lines, ""]))


def kept(place: Place, number: int) -> list[int]:
    table = replace(open_ingested(place.folder / "visits" / f"d{number}.zarr"), seal=None)
    if not table.rows:
        return []
    reader = ChunkReader(table, 64)
    return [round(1024 * row[0]) for index in range(table.chunks) for row in np.vstack(list(reader.read(index)))]


def registers(place: Place) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in (place.folder / "visits").glob("*/persons")}


NIGHTS: list[list[int]] = [
    [ALWAYS, 1, ALWAYS, ALWAYS, 2],
    [2, ALWAYS, 11],
    [ALWAYS, 2, 12],
    [ALWAYS, 2, 13, 1],
    [ALWAYS, ALWAYS],
    [14, ALWAYS, 1, 1],
]
KEPT: list[list[int]] = [[ALWAYS, 1, ALWAYS, 2], [2, ALWAYS, 11], [ALWAYS, 2, 12], [13, 1], [], [14, 1, 1]]


def test_rows_are_kept_in_so_many_periods_and_everybody_is_counted_once(people: Place) -> None:
    for number, who in enumerate(NIGHTS, 1):
        arrive(people, number, who)
    people.run()
    assert [kept(people, number) for number in range(1, 7)] == KEPT
    assert sorted(registers(people)) == ["d5.zarr", "d6.zarr"]  # the last, and that it was made from
    assert b"7" * 8 not in b"".join(registers(people).values())
    for path in (people.folder / "visits").glob("*/persons"):
        assert path.stat().st_mode & 0o077 == 0
    total = open_release(people.published / "total" / "d6.zarr")
    assert total.unit == Unit("who", 2, max_periods=3)
    assert total.rows == sum(map(len, KEPT))
    assert total.guarantee_words() == (
        "epsilon 1, delta 1e-06 under replace-one of the rows of one who, 2 a period in 3 periods at most"
    )
    # 2 rows a period, and the square root of 3 rounded up: what 4 rows would cost
    night = open_release(people.published / "d1.zarr")
    alone = plans.planned(open_series(job_file.read_job(people.job)).request, Dimensions(3, changed_rows=4)).moment
    assert night.noise == alone.noise
    assert "who, 2 a period in 3 periods at most" in inspect_path(people.folder / "visits").describe()


@pytest.fixture
def named(place: Place) -> Place:
    place.job.write_text(NAMED)
    (place.folder / "schema.toml").write_text(SCHEMA)
    return place


def arrive_by_name(place: Place, number: int, who: Sequence[tuple[str, int]]) -> None:
    lines = [f"{name},{person / 1024},{number / 1024},.25" for name, person in who]
    (place.incoming / f"d{number}.csv").write_text("\n".join(["first,last,a,b,c", *lines, ""]), encoding="utf-8")


def test_a_night_that_writes_names_otherwise_counts_nobody_anew(named: Place) -> None:
    """As files come: a column of numbers that became floats, leading zeros, two forms of one letter."""
    for number, name in enumerate(("7,Jos\u00e9", "7.0,Jose\u0301", "007,Jos\u00e9 ", " 7,Jos\u00e9"), 1):
        arrive_by_name(named, number, [(name, 7), (f"8{number},Lee", 8)])
    named.run()
    assert [kept(named, number) for number in range(1, 5)] == [[7, 8], [7, 8], [7, 8], [8]]
    total = open_release(named.published / "total" / "d4.zarr")
    assert total.unit == Unit("first and last", 2, max_periods=3)
    assert "the rows of one first and last, 2 a period in 3 periods at most" in total.guarantee_words()
    assert not any(b"Jos" in content for content in named.files().values())


def test_whoever_was_known_by_a_number_is_not_counted_anew_by_a_name() -> None:
    unit, key, row = Unit("who", 2, max_periods=1), b"k" * 32, np.array([7])
    name = np.ascontiguousarray(named_units([["7"]], key)).view("S16")[:, 0]
    for first, names, second in ((row, 0, name), (name, 1, row)):
        watch = Watch(unit, key, np.empty(0, dtype=[("person", "S16"), ("periods", "<u2")]))
        assert len(list(watch.watched([first], 1, names))) == 1
        later = Watch(unit, key, watch.register(), watch.named)
        with pytest.raises(DataError, match="would be counted again"):
            list(later.watched([second], 1, 1 - names))


@pytest.mark.parametrize(
    ("form", "counted"), [("continual = 4\n", "4 to 6 rows"), ('factorisation = "banded"\nband = 2\n', "6 rows")]
)
def test_all_that_is_published_keeps_the_loss_for_every_pattern(people: Place, form: str, counted: str) -> None:
    people.job.write_text(PERSONS + form)
    for number in range(1, 5):
        arrive(people, number, range(number, 30))
    planned = people.preview()
    assert planned.fits
    said = preview_message(planned)
    assert "Each protects all rows of one who, 2 a period in 3 periods at most." in said
    assert f"The noise is calibrated to a change of {counted} of one period" in said
    people.run()
    releases = [open_release(path) for path in sorted(people.published.glob("d*.zarr"))]
    assert len({release.bound for release in releases}) == 1
    deviations = [release.noise["variance_off_diagonal"] ** 0.5 for release in releases]
    assert max(deviations) / min(deviations) - 1 < 2e-5  # but for the rounding of epsilon
    if "banded" in form:
        arrive(people, 5, [1])
        ahead = people.preview().person
        assert ahead is not None
        assert ahead.deviation == pytest.approx(max(deviations) * releases[0].bound.unit ** 2, rel=2e-5)
    foretold = [charge.guarantee.loss for _, charge in planned.releases]
    assert [record.guarantee.loss for record in people.ledger.records] == foretold
    query = LatticeQuery(3, releases[0].bound.norm_bound, Neighbours.REPLACE_ONE, 2)  # of two rows of one period
    lost = []
    for pattern in combinations(["d1", "d2", "d3", "d4"], 3):
        mu = 0.0
        for release in releases:
            (extent,) = release.extents
            names = [f"d{n}" for n in range(int(str(extent.first)[1:]), int(str(extent.last)[1:]) + 1)]
            weights = dict(zip(names, release.weights or (1,) * len(names), strict=True))
            rows = sum(weights.get(period, 0) for period in pattern)
            mu += rows**2 * query.frobenius_squared / release.noise["variance_diagonal"]
        lost.append(mu)
    asked = plans.planned(
        replace(job_file.read_job(people.job).request, grid_bits=12), Dimensions(3, changed_rows=1)
    ).moment.guarantee
    assert asked is not None
    assert asked.mu_squared is not None
    assert 0.5 < max(lost) / float(asked.mu_squared) <= 1 + 1e-5  # the noise is not merely large


def test_a_night_that_dies_counts_nobody_twice(people: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    close, write = Ledger.close_period, Watch.write

    def closed(self: Ledger, *period: str) -> None:
        close(self, *period)
        raise DiedError

    def written(self: Watch, *about: Any) -> None:
        write(self, *about)
        raise DiedError

    deaths: list[tuple[object, str, Callable[..., None]]] = [
        (ingest_periods, "seal_rows", dies),
        (Watch, "write", dies),
        (Watch, "write", written),
        (Ledger, "close_period", closed),
        (Ledger, "reserve", dies),
    ]
    for number, (who, death) in enumerate(zip(NIGHTS, deaths, strict=False), 1):
        arrive(people, number, who)
        with monkeypatch.context() as patch:
            patch.setattr(*death)
            with pytest.raises(DiedError):
                people.run()
            if death[1] == "write":
                with pytest.raises(DiedError):
                    people.run()
        people.run()
        assert kept(people, number) == KEPT[number - 1]


def test_a_register_that_is_gone_or_another_ends_the_series_and_is_not_begun_anew(people: Place) -> None:
    for number, who in enumerate(NIGHTS[:3], 1):
        arrive(people, number, who)
    people.run()
    visits = people.folder / "visits"
    register, older = visits / "d3.zarr" / "persons", visits / "d2.zarr" / "persons"
    whole = register.read_bytes()
    arrive(people, 4, NIGHTS[3])
    for wrong in (None, whole[:-18], older.read_bytes()):
        register.unlink()
        if wrong is not None:
            register.write_bytes(wrong)
        said = people.refused("missing or differs from the file written", DataError)
        assert "restore it from a backup" in said
        assert list(people.ledger.periods) == ["d1", "d2", "d3"]
        register.write_bytes(whole)
    content = json.loads((visits / "periods.json").read_text()) | {"unit": {"column": "who", "max_rows": 2}}
    (visits / "periods.json").write_text(json.dumps(content))
    people.refused("protects who, 2 at most, but the job file")


def test_whose_rows_differ_changes_nobody_else_s() -> None:
    """The theorem, on random sources: the rows of one person are taken away, or exchanged."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        nights = [rng.integers(6, size=rng.integers(12)) for _ in range(8)]
        most = int(rng.integers(1, 4))
        here = kept_of(nights, most)
        there = kept_of([night[night != 0] for night in nights], most)
        assert sum(0 in night for night in here) <= most
        assert [[row for row in night if row] for night in here] == there
    # what must fail: a register that is begun anew
    assert kept_of([np.array([0]), np.array([0])], 1, forget=True)[1] == [0]


def kept_of(nights: list[Numbers], most: int, *, forget: bool = False) -> list[list[int]]:
    """Return the persons whose rows are kept, by a register carried over periods, at most two rows per period."""
    known = np.empty(0, dtype=[("person", "S16"), ("periods", "<u2")])
    out: list[list[int]] = []
    for night in nights:
        watch = Watch(Unit("who", 2, max_periods=most), b"k" * 32, known[:0] if forget else known)
        rows = KeptRows(night.size)
        ids = np.concatenate(list(watch.watched([night], night.size)))
        earlier = np.array([np.sum(ids[:row] == person) for row, person in enumerate(ids)])
        rows.add(np.flatnonzero(earlier < watch.unit.max_rows))
        watch.leave_out(rows)
        out.append([int(person) for person in night[rows.among(0, night.size)]])
        known = watch.register()
    return out


def test_those_on_the_list_are_left_out_by_their_names(named: Place) -> None:
    named.job.write_text(NAMED.replace("max_periods = 3", 'max_periods = 3\nexclude = "left.txt"'))
    arrive_by_name(named, 1, [(f"Ann,Lee {person}", person) for person in (41, 42, 43)])
    (named.folder / "left.txt").write_text('Ann,"Lee 42\n')
    said = named.refused("2 comma-separated names on each line", DataError)
    assert "42" not in said
    (named.folder / "left.txt").write_text('\n Ann,"Lee\u00a042\u200b"\nBob,Lee 43\n')
    named.run()
    assert kept(named, 1) == [41, 43]


def test_those_on_the_list_are_left_out_from_then_on_and_nobody_is_told(
    people: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    listed = people.folder / "left.txt"
    people.job.write_text(PERSONS.replace("max_periods = 3", 'max_periods = 3\nexclude = "left.txt"'))
    arrive(people, 1, [41, 42, 43])
    listed.write_text("42\nforty-three\n")
    said = people.refused("one whole number on each line", DataError)
    assert "forty" not in said
    assert not people.ledger.periods
    listed.write_text("\n42\ufeff\n99\n")
    people.run()
    assert kept(people, 1) == [41, 43]
    listed.write_text("42\n41\n")
    arrive(people, 2, [41, 42, 43])
    people.run()
    assert kept(people, 2) == [43]
    assert not re.search(r"\b4[123]\b", capfd.readouterr().out.replace(str(people.folder), ""))
    assert not any(b"left.txt" in content for content in people.files().values())


def test_rows_of_persons_are_released_in_no_other_way(people: Place) -> None:
    arrive(people, 1, [1, 2, 3, 4])
    people.run()
    people.refused(
        "in 3 periods at most, but the job file asks for who, 2 a period in 2",
        job=PERSONS.replace("max_periods = 3", "max_periods = 2"),
    )
    people.refused("but the job file asks for one row", job=JOB)
    pure = PERSONS.replace("delta = 1e-6\nclip", 'mechanism = "two-sided-wishart"\nclip')
    people.refused("cannot protect a privacy unit with rows in several periods", UsageError, job=pure)
    request = job_file.read_job(people.job).request
    with pytest.raises((RefusedError, UsageError, DataError)):
        release_rows(people.folder / "visits" / "d1.zarr", people.folder / "alone.zarr", request)
    assert not (people.folder / "alone.zarr").exists()
