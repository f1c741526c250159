"""Symmetric matrices of declared sensitivity: bounds, privacy, one draw, one ledger, and bad input."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.folders import ROOT, unpack
from support.samples import SAMPLES

import dpdist
from dpdist.core.errors import DataError, RefusedError, UsageError, WeakGuaranteeWarning
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.mechanisms.base import Additive
from dpdist.core.mechanisms.sensitivity import NORMS, DeclaredQuery, implied_squares
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.pipeline.budget import verify_ledger
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release import archive
from dpdist.core.triangle import unpacked
from dpdist.literature.loss_bounds import examine
from dpdist.literature.matrix import MatrixRequest, lattice_of

Floats = npt.NDArray[np.float64]
RNG = np.random.default_rng(39)
PURE, ONE = PrivacyLoss.parse(1), Fraction(1)
MATRIX = np.diag([5.0, 3, 1]) + 0.25


def norms(change: npt.NDArray[Any]) -> dict[str, float]:
    return {
        "frobenius": float(np.linalg.norm(change)),
        "nuclear": float(np.linalg.norm(change, "nuc")),
        "l1": float(np.abs(np.triu(change)).sum()),
    }


def symmetric(size: int) -> Floats:
    made: Floats = RNG.normal(size=(size, size)) * RNG.choice([0.01, 1], size=(size, size))
    return made + made.T


def request(loss: PrivacyLoss = PURE, size: int = 3, **declared: Any) -> MatrixRequest:
    return MatrixRequest.of(loss, declared, size, Neighbours.REPLACE_ONE)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_norm_bounds_the_others_and_the_bounds_are_attained(size: int) -> None:
    unit, pair = np.eye(size)[0], np.zeros((size, size))
    pair[0, -1] = pair[-1, 0] = 1
    weights = np.where(np.eye(size, dtype=bool), 2.0, 1)
    extreme = [np.outer(unit, unit), np.ones((size, size)), np.eye(size), weights, pair]
    reached = set()
    for change in (*extreme, *(symmetric(size) for _ in range(200))):
        found = norms(change)
        for name, norm in itertools.product(NORMS, NORMS):
            bound = math.sqrt(implied_squares({name: Fraction(1)}, size)[norm]) * found[name]
            assert found[norm] <= bound * (1 + 1e-12)
            if found[norm] > bound * (1 - 1e-12):
                reached.add((name, norm))
    assert size == 1 or reached == set(itertools.product(NORMS, NORMS))


@pytest.mark.parametrize("size", [2, 6])
def test_rounded_neighbours_stay_within_the_calibrated_sensitivity_and_not_within_the_declared_one(size: int) -> None:
    exceeded = set()
    for scale in (1.0, 3.0, 1000.0):
        for _ in range(200):
            matrix, change = 100 * symmetric(size), scale * symmetric(size)
            moved = np.rint(matrix + change) - np.rint(matrix)
            declared = {norm: Fraction(value) for norm, value in norms(change).items()}
            query = DeclaredQuery.of(declared, size, ONE, Neighbours.REPLACE_ONE)
            found = norms(moved)
            assert found["frobenius"] ** 2 <= query.frobenius_squared
            assert found["l1"] <= query.triangle_l1
            # D = P - Q of semidefinite integer matrices, as the proof of two-sided-wishart takes them
            values, vectors = np.linalg.eigh(moved)
            positive = np.rint((vectors * np.maximum(values, 0)) @ vectors.T) + math.ceil(size / 2) * np.eye(size)
            negative = positive - moved
            assert min(np.linalg.eigvalsh(positive)[0], np.linalg.eigvalsh(negative)[0]) > -1e-9
            assert np.trace(positive) + np.trace(negative) <= query.nuclear
            exceeded |= {norm for norm in NORMS if found[norm] > float(declared[norm]) * (1 + 1e-12)}
    assert exceeded == set(NORMS)  # the rounding is needed


def test_the_mechanism_is_the_one_with_less_noise() -> None:
    assert request(PrivacyLoss.parse(1, 1e-6), l1=1).mechanism == "gaussian"
    size, chosen = 64, []
    for ratio in (0.75, 0.9, 1.1, 1.3):
        l1 = ratio * 0.589 * math.sqrt(size)
        asked = request(size=size, nuclear=1, l1=f"{l1:.6f}")
        mean = {}
        both: dict[str, dict[str, Any]] = {"two-sided-wishart": {"nuclear": 1}, "laplace": {"l1": f"{l1:.6f}"}}
        for name, declared in both.items():
            # the other sensitivity is so large that the mechanism is taken
            other: dict[str, Any] = {"l1": 10**6} if name == "two-sided-wishart" else {"nuclear": 10**6}
            made = request(size=size, **declared, **other)
            assert made.mechanism == name
            noise = made.calibrated
            assert isinstance(noise, Additive)
            drawn = [np.linalg.norm(unpacked(noise.draw(SYSTEM), size).astype(float), 2) for _ in range(10)]
            mean[name] = float(np.mean(drawn)) * 2.0**made.exponent
        assert asked.mechanism == min(mean, key=lambda name: mean[name])
        chosen.append(asked.mechanism)
    assert chosen == ["laplace", "laplace", "two-sided-wishart", "two-sided-wishart"]


ATTACKED: dict[str, tuple[PrivacyLoss, dict[str, float], Floats]] = {
    "gaussian": (PrivacyLoss.parse(1, 1e-6), {"frobenius": 2}, np.array([[1.0, 1], [1, -1]])),
    "two-sided-wishart": (PURE, {"nuclear": 2}, np.array([[0.0, 1], [1, 0]])),
    "laplace": (PURE, {"l1": 1}, np.array([[0.0, 1], [1, 0]])),
}


@pytest.mark.parametrize("mechanism", ATTACKED)
def test_an_attack_shows_no_more_than_epsilon_and_more_where_the_declaration_is_too_small(mechanism: str) -> None:
    """Each verdict is wrong with probability at most 1e-6."""
    loss, declared, change = ATTACKED[mechanism]
    count = 1000 if loss.delta_atto else 400  # pure losses are seen in fewer

    def shown(factor: int) -> float:
        asked = request(loss, 2, **{norm: value / factor for norm, value in declared.items()})
        assert asked.mechanism == mechanism
        noise = asked.calibrated
        assert isinstance(noise, Additive)
        draws = np.array([unpacked(drawn, 2) for drawn in noise.draws(count, SYSTEM)], dtype=float)
        move = unpacked(lattice_of(change, asked.exponent), 2).astype(float)
        scores = np.einsum("nij,ij->n", draws, move)
        found = examine(scores, scores[::-1] + float((move**2).sum()), 1e-6, delta=loss.delta)
        return found.epsilon(loss.delta)

    assert shown(1) <= 1 < shown(8)


Make = Callable[..., dpdist.MatrixRelease]


@pytest.fixture
def make(tmp_path: Path, state: Path) -> Make:  # noqa: ARG001 - a state folder of its own
    def made(name: str = "out", matrix: Any = MATRIX, **changed: Any) -> dpdist.MatrixRelease:
        asked: dict[str, Any] = {"epsilon": 1, "frobenius": 2, "ledger": tmp_path / "people.ledger"} | changed
        return dpdist.release_matrix(matrix, tmp_path / name, **asked)

    return made


@pytest.mark.parametrize("delta", [0, 1e-6])
def test_the_noise_has_the_deviation_stated_and_the_matrix_is_in_its_own_units(make: Make, delta: float) -> None:
    matrix = 1e6 * symmetric(120)
    found = make(matrix=matrix, delta=delta)
    noise = (found.matrix - matrix)[np.triu_indices(120, 1)]
    # 7140 entries: 6 standard errors of a standard deviation, also of Laplace noise, are 12 %
    assert noise.std() == pytest.approx(found.deviation, rel=0.12)
    assert noise.std() != pytest.approx(found.deviation * math.sqrt(2), rel=0.12)
    assert abs(noise.mean()) < 6 * found.deviation / math.sqrt(noise.size)


def test_it_is_drawn_once_and_charged_once(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, ledger = tmp_path / "M.npy", tmp_path / "M.ledger"
    np.save(file, MATRIX)

    def died(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(archive, "publish", died)
        with pytest.raises(KeyboardInterrupt):
            make("first", file, ledger=None)
    first = make("first", file, ledger=None)
    copy = tmp_path / "elsewhere" / "copy.npy"
    copy.parent.mkdir()
    np.save(copy, MATRIX.astype(np.float32))  # exact here
    again = make("again", copy, ledger=None)
    third = make("third", MATRIX, ledger=ledger)
    apart = tmp_path / "zeros.ledger"
    zero = make("zero", np.diag([1.0, 0]), ledger=apart)
    assert np.array_equal(make("minus zero", np.diag([1.0, -0.0]), ledger=apart).matrix, zero.matrix)
    assert np.array_equal(first.matrix, again.matrix)
    assert np.array_equal(first.matrix, third.matrix)
    assert [record.state for record in Ledger(ledger).records] == [State.PUBLISHED]
    assert not copy.with_suffix(".ledger").exists()
    assert not np.array_equal(first.matrix, MATRIX)
    with pytest.raises(RefusedError, match="a second one would spend the budget twice"):
        make("other", copy, ledger=tmp_path / "other.ledger")
    with pytest.raises(RefusedError, match="left: nothing"):
        make("other", file, ledger=None, frobenius=3)
    with pytest.raises(UsageError, match=r"budget of .* is epsilon 1"):
        make("other", file, ledger=None, budget=PrivacyLoss.parse(5))


def test_it_is_charged_to_the_ledger_of_the_rows_of_the_same_people(make: Make, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", RNG.normal(size=(2000, 3)))
    dpdist.ingest_rows(tmp_path / "rows.npy", tmp_path / "rows.zarr", budget=PrivacyLoss.parse(2))
    ledger = tmp_path / "rows.ledger"
    make(ledger=ledger)
    asked = dpdist.ReleaseRequest("two-sided-wishart", PURE, 4.0)
    dpdist.release_rows(tmp_path / "rows.zarr", tmp_path / "release.zarr", asked)
    assert len(Ledger(ledger).records) == 2
    with pytest.raises(RefusedError, match="left: nothing"):
        make("second", ledger=ledger, frobenius=5)
    with pytest.raises(RefusedError, match="neighbouring relation"):
        make("second", ledger=ledger, epsilon=0.1, neighbours="add-remove")
    # another ledger than the one that was charged for this matrix
    dpdist.ingest_rows(tmp_path / "rows.npy", tmp_path / "other.zarr", budget=PrivacyLoss.parse(2))
    with pytest.raises(RefusedError, match="another ledger"):
        make("third", ledger=tmp_path / "other.ledger")


def test_after_a_raised_budget_the_release_repeats_the_condition(make: Make, tmp_path: Path) -> None:
    ledger, said = tmp_path / "M.ledger", list[str]()
    first = make("first", ledger=ledger, say=said.append)
    assert first.condition is None
    Ledger(ledger).raise_budget(PrivacyLoss.parse(3))
    second = make("second", np.diag([1.0, 2, 3]), ledger=ledger, say=said.append)
    assert second.condition == Ledger(ledger).condition
    assert str(second.condition) in second.describe()
    assert dpdist.open_matrix(tmp_path / "second").condition == second.condition
    assert all(f"charged to the ledger {ledger}: " in message for message in said)
    assert ("charged 1 release;" in said[0], "charged 2 releases;" in said[1]) == (True, True)


@pytest.mark.parametrize("neighbours", Neighbours)
def test_a_large_delta_is_a_caution_as_the_number_of_people_is_unknown(make: Make, neighbours: Neighbours) -> None:
    with pytest.warns(WeakGuaranteeWarning, match=r"Delta 0.4 is large"):
        make(delta=0.4, neighbours=neighbours)


def test_a_refused_charge_binds_the_matrix_to_no_ledger(make: Make, tmp_path: Path) -> None:
    wrong, right = tmp_path / "others.ledger", tmp_path / "people.ledger"
    make("others", np.eye(3), ledger=wrong)
    with pytest.raises(RefusedError, match="left: nothing"):
        make(ledger=wrong)
    make(ledger=right)
    # bound to its ledger now: the reservation elsewhere is refunded
    rich = tmp_path / "rich.ledger"
    make("third", 3 * np.eye(3), ledger=rich, budget=PrivacyLoss.parse(5))
    with pytest.raises(RefusedError, match="another ledger"):
        make("second", ledger=rich)
    assert [record.state for record in Ledger(rich).records] == [State.PUBLISHED, State.ABORTED]
    assert Ledger(rich).balance().charged == 1


def test_after_a_rollback_a_published_release_is_not_drawn_again(make: Make, tmp_path: Path, state: Path) -> None:
    ledger, budget = tmp_path / "people.ledger", PrivacyLoss.parse(5)
    make("first", budget=budget)
    for folder in (state, ledger):
        shutil.copytree(folder, tmp_path / f"{folder.name}.backup")
    found = make("second", budget=budget, frobenius=3)
    for folder in (state, ledger):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / f"{folder.name}.backup", folder)
    with pytest.raises(RefusedError, match="no record of"):
        make("second", budget=budget, frobenius=3)
    assert [record.release_id for record in Ledger(ledger).records] != [found.release_id]
    assert len(Ledger(ledger).records) == 1


def test_the_ledger_says_that_its_promise_rests_on_a_declaration_and_verifies_the_release(
    make: Make, tmp_path: Path
) -> None:
    found, ledger = make(), tmp_path / "people.ledger"
    balance = Ledger(ledger).balance()
    assert f"if the sensitivity declared for {found.release_id} is right" in balance.promise
    assert found.release_id in str(balance)
    assert "declared" in repr(found)
    verify_ledger(ledger, [tmp_path / "out"])
    other = make("other", np.eye(3), ledger=tmp_path / "other.ledger")
    assert other.release_id != found.release_id
    with pytest.raises(RefusedError, match="no record of"):
        verify_ledger(ledger, [tmp_path / "other"])


def test_a_file_that_is_no_matrix_is_refused(make: Make, tmp_path: Path) -> None:
    np.savez(tmp_path / "archive.npz", M=MATRIX)
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04x")
    np.save(tmp_path / "whole.npy", MATRIX)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:40])
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    os.mkfifo(tmp_path / "pipe.npy")
    for name in ("archive.npz", "zip.npy", "cut.npy", "objects.npy", "pipe.npy", "."):
        with pytest.raises(DataError, match="cannot be read as a matrix"):
            make(matrix=tmp_path / name)


@pytest.mark.parametrize(
    "changed",
    [
        {"mechanism": "foo"}, {"mechanism": "laplace"}, {"declared_sensitivity": {}}, {"unit_exponent": 4000},
        {"declared_sensitivity": {"nuclear": "1e400"}}, {"declared_sensitivity": {"frobenius": "-2"}},
        {"declared_sensitivity": {"trace": "2"}}, {"noise": {}}, {"guarantee": None},
        {"declared_sensitivity": {"frobenius": "1e300000000"}}, {"release_id": 5}, {"condition": ["\x1b[2J", {}]},
        {"guarantee": {"epsilon_micro": 10_000}}, {"guarantee": {"mu_squared": ["-1", "1"]}},
        {"noise": {"variance_off_diagonal": 1e-3}},
    ],
)  # fmt: skip
def test_metadata_that_contradict_each_other_are_damage(changed: dict[str, Any], make: Make, tmp_path: Path) -> None:
    make(delta=1e-6)
    file = tmp_path / "out" / "zarr.json"
    content = json.loads(file.read_text())
    stored = content["attributes"]["dpdist"]
    for name, value in changed.items():  # some have one key of several changed
        stored[name] = (
            stored[name] | value if value and isinstance(value, dict) and name != "declared_sensitivity" else value
        )
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="damaged"):
        dpdist.open_matrix(tmp_path / "out")


def test_one_column_has_the_deviation_of_its_entry_and_no_sensitivity_is_told_as_implied_that_was_declared(
    make: Make,
) -> None:
    found = make(matrix=[[5.0]], delta=1e-6, frobenius=0.07)
    assert "implies" not in found.sensitivity_message
    assert found.deviation == pytest.approx(0.07 * gaussian_sigma(PrivacyLoss.parse(1, 1e-6)), rel=1e-3)
    other = request(PrivacyLoss.parse(1, 1e-6), 1, l1=1)
    assert other.calibrated.noise.variance_diagonal == pytest.approx(
        request(PrivacyLoss.parse(1, 1e-6), 1, frobenius=1).calibrated.noise.variance_diagonal, rel=1e-3
    )


def test_rows_in_periods_pay_for_no_matrix(make: Make, tmp_path: Path) -> None:
    place = tmp_path / "nights.ledger"
    ledger = Ledger.create(place, dataset_id="0" * 32, budget=PrivacyLoss.parse(2), periodic=True)
    ledger.close_period("2026-01-01", "a" * 64)
    with pytest.raises(RefusedError, match="come in periods"):
        make(ledger=place)
    assert ledger.records == []


@pytest.mark.parametrize("stored", [np.triu, np.tril])
def test_a_matrix_stored_once_is_completed_by_what_is_typed(make: Make, stored: Any) -> None:
    whole = np.array([[2.0, 0.5, 1.0], [0.5, 3.0, 0.25], [1.0, 0.25, 4.0]])
    with pytest.raises(DataError, match="one triangle of it is zero") as refused:
        make(matrix=stored(whole))
    code = re.search(r"Pass (M \+ .*\.T), which has it twice", str(refused.value))
    assert code
    assert np.array_equal(eval(code[1], {"M": stored(whole), "numpy": np}), whole)  # noqa: S307 - the product's own


BAD: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "asymmetric": (np.array([[1.0, 2], [3, 4]]), {}, DataError, "not symmetric"),
    "nan": (np.diag([1.0, np.nan]), {}, DataError, "not finite"),
    "infinite": (np.diag([1.0, np.inf]), {}, DataError, "not finite"),
    "vector": (np.ones(3), {}, DataError, "shape"),
    "empty": (np.ones((0, 0)), {}, DataError, "shape"),
    "masked": (np.ma.masked_equal(np.eye(2), 0), {}, DataError, "masked"),
    "rows that are masked": ([np.ma.masked_equal([1, 0], 0), [0, 1]], {}, DataError, "masked"),
    "ragged": ([[1.0, 2], [3]], {}, DataError, "different lengths"),
    "complex": (np.eye(2) * 1j, {}, DataError, "real numbers"),
    "wide floats": (np.eye(2, dtype=np.longdouble), {}, DataError, "real numbers"),
    "words": (np.array([["a"]]), {}, DataError, "real numbers"),
    "wide integers": (np.eye(2, dtype=np.int64) * (2**53 + 1), {}, DataError, "2\\^53"),
    "beyond the lattice": (np.diag([1e30, 1]), {}, DataError, "exceeds the 64-bit lattice"),
    "the largest float": (np.diag([1.7e308, 1]), {}, DataError, "exceeds the 64-bit lattice"),
    "no sensitivity": (MATRIX, {"frobenius": None}, UsageError, "Declare how far"),
    "no change": (MATRIX, {"frobenius": 0}, UsageError, "positive number"),
    "negative": (MATRIX, {"frobenius": -1}, UsageError, "positive number"),
    "not a number": (MATRIX, {"frobenius": "nan"}, UsageError, "positive number"),
    "word": (MATRIX, {"frobenius": "two"}, UsageError, "positive number"),
    "5000 digits": (MATRIX, {"frobenius": "1." + "1" * 5000}, UsageError, "at most 30 digits"),
    "too large": (MATRIX, {"frobenius": 1e300}, UsageError, "positive number"),
    "no ledger": (MATRIX, {"ledger": None}, UsageError, "needs a ledger"),
    "too small a budget": (MATRIX, {"budget": PrivacyLoss.parse("0.5")}, UsageError, "exceeds the budget"),
    "missing file": ("nowhere.npy", {}, DataError, "does not exist"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_anything_is_declared_or_spent(case: str, make: Make, tmp_path: Path) -> None:
    matrix, changed, error, words = BAD[case]
    with pytest.raises(error, match=words) as raised:
        make(matrix=matrix, **changed)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "people.ledger").exists()
    assert "e+" not in str(raised.value).partition("ends at")[0]  # the message quotes no entry of the matrix


def test_the_lattice_ends_where_the_message_says() -> None:
    asked = request(frobenius=2)
    end = math.ldexp(1, 62 + asked.exponent)
    assert lattice_of(np.diag([math.nextafter(end, 0), -1, 0]), asked.exponent).max() < 2**62
    with pytest.raises(DataError, match=re.escape(f"ends at {end:.3g}")):
        lattice_of(np.diag([1, -end, 0]), asked.exponent)


def test_other_contents_are_not_replaced_and_damage_is_found(make: Make, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="exists already"):
        make("mine")
    assert not (tmp_path / "people.ledger").exists()
    found = make()
    with pytest.raises(DataError, match="contains another release"):
        make(matrix=2 * MATRIX)
    chunk = tmp_path / "out" / "lattice" / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[0] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        dpdist.open_matrix(tmp_path / "out")
    assert np.array_equal(make("again").matrix, found.matrix)
    with pytest.raises(DataError, match="is a ledger, a budget with its charges; a matrix is needed"):
        dpdist.open_matrix(tmp_path / "people.ledger")


def test_a_stored_release_is_read(tmp_path: Path) -> None:
    unpack(SAMPLES, tmp_path)
    found = dpdist.open_matrix(tmp_path / "matrix.zarr")
    assert (found.mechanism, str(found.guarantee.loss)) == ("two-sided-wishart", "epsilon 1, delta 0")
    assert found.declared == (("nuclear", Fraction(2)), ("l1", Fraction(3)))
    assert np.array_equal(found.matrix, found.lattice * 2.0**found.exponent)
    assert np.abs(found.matrix - np.load(tmp_path / "matrix.npy")).max() < 100  # times the deviation of the noise
    facts = dpdist.inspect_path(tmp_path / "matrix.zarr")
    assert facts.kind == "matrix"
    assert "DECLARED, not verified: nuclear norm 2" in facts.describe()


@pytest.mark.parametrize("shape", [(3, 5), (1, 4)])
def test_the_block_of_a_table_has_the_sensitivity_that_the_page_declares(shape: tuple[int, int]) -> None:
    m, n = shape
    change = RNG.normal(size=shape)
    whole = norms(np.block([[np.zeros((m, m)), change], [change.T, np.zeros((n, n))]]))
    assert whole["frobenius"] == pytest.approx(math.sqrt(2) * np.linalg.norm(change))
    assert whole["nuclear"] == pytest.approx(2 * np.linalg.norm(change, "nuc"))
    assert whole["l1"] == pytest.approx(np.abs(change).sum())


def test_the_example_of_the_page_runs_and_an_entry_of_its_table_has_the_noise_of_the_table_alone(
    tmp_path: Path,
    state: Path,  # noqa: ARG001 - a state folder of its own
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "howto" / "matrix.md").read_text().partition("## A matrix that is not symmetric")[2]
    held: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], held)  # noqa: S102 - a page of ours
    assert (held["private"].shape, held["release"].mechanism) == ((3, 5), "laplace")
    assert held["release"].deviation == pytest.approx(math.sqrt(2), rel=1e-3)
    loss = PrivacyLoss.parse(1, 1e-6)
    found = dpdist.release_matrix(
        np.load("counts.npy") + 1, "g", neighbours="add-remove", frobenius="1.41422", epsilon=1, delta=1e-6,
        ledger=tmp_path / "g.ledger",
    )  # fmt: skip
    assert found.deviation == pytest.approx(gaussian_sigma(loss), rel=1e-3)
