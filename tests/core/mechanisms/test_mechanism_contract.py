"""The contract of all mechanisms of the registry; a new one is complete when it passes.

Distributions and published constants are tested in a file for each family.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.registered import NAMES, calibrated, least_options, loss_for
from support.scripted import Scripted
from support.tallies import FALSE_ALARM, mean_passes

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.base import Additive, Calibrated, IndependentEntries, is_private_as_claimed
from dpdist.core.mechanisms.info import DeltaUse, Kind, Output
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.mechanisms.registry import MECHANISMS
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.accounting import gaussian_delta
from dpdist.core.privacy.guarantee import MICRO, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.release import transaction
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.triangle import Band, diagonal_positions, unpacked
from dpdist.literature.attack import KnownMoment

SIZE = 3
MOMENT = KnownMoment(np.array([[9, 2, -1], [2, 7, 0], [-1, 0, 5]], dtype=np.int64) * 4**16)

PROOFS = {
    "dpdist.literature.analyze_gauss": "analyze-gauss sulq mod-sulq",
    "dpdist.literature.eigenpairs": "kapralov-talwar amin",
    "dpdist.literature.exponential": "ppca bingham",
    "dpdist.core.mechanisms.gaussian": "gaussian",
    "dpdist.literature.knorm": "nuclear frobenius",
    "dpdist.core.mechanisms.laplace": "laplace laplace-published",
    "dpdist.literature.mvg": "mvg mvg-psd mvg-exact",
    "dpdist.literature.orbit": "orbit orbit-lowrank",
    "dpdist.literature.power": "power power-published",
    "dpdist.core.mechanisms.wishart": "two-sided-wishart",
    "dpdist.literature.jl_profile": "jl",
    "dpdist.literature.wishart_profile": "wishart sn jiang-wishart sheffet-wishart",
}
"""The module with the proof of each, as stored in releases and ledgers. A format: entries never change."""

DETAILS = {
    "deflated-bingham-laplace": "components concentration scale",
    "discrete-laplace": "scale",
    "frobenius-norm": "scale",
    "matrix-bingham": "components concentration",
    "matrix-variate-gaussian": "row_covariance_spectrum column_covariance",
    "none": "",
    "nuclear-norm": "scale",
    "power-k-norm": "components iterations scale relative_to_largest_entry vector_bits",
    "power-laplace": "components iterations scale relative_to_largest_entry vector_bits",
    "rounded-gaussian": "sigma_diagonal sigma_off_diagonal",
    "rounded-gaussian-orthogonal": "sigma_diagonal sigma_off_diagonal",
    "successive-bingham": "components concentration",
    "successive-bingham-laplace": "components concentration scale",
    "two-sided-wishart": "columns scale",
    "unitary-orbit": "spectrum alpha",
    "unitary-orbit-lowrank": "components laplace_scale rate",
    "wishart": "degrees scale",
    "wishart-of-the-moment": "sketch ridge",
}
"""The stored fields of each noise. A format: entries never change."""

every = pytest.mark.parametrize("name", NAMES)
additive = pytest.mark.parametrize("name", [name for name in NAMES if MECHANISMS[name].info.additive])


@every
def test_it_states_its_distribution_its_sensitivity_and_its_source(name: str) -> None:
    info = MECHANISMS[name].info
    for text in (info.law, info.sensitivity, info.claimed, info.proved, info.cost, info.reference):
        assert text.strip() == text != ""
    assert not info.additive or info.output is Output.SECOND_MOMENT
    assert isinstance(calibrated(name, SIZE), Additive) is info.additive
    assert info.replacement == "" or info.replacement.split()[0] in MECHANISMS


@every
@pytest.mark.parametrize("neighbours", Neighbours)
def test_the_guarantee_has_the_relation_and_names_an_existing_proof(name: str, neighbours: Neighbours) -> None:
    fixed = calibrated(name, SIZE, neighbours=neighbours)
    guarantee = fixed.guarantee
    assert (guarantee is None) is (name == "none")
    if guarantee is None:
        return
    assert name in PROOFS[guarantee.proof].split()
    assert importlib.import_module(guarantee.proof).__doc__
    assert guarantee.neighbours is neighbours
    assert guarantee.arithmetic is MECHANISMS[name].info.arithmetic
    assert fixed.claim == loss_for(name)
    if guarantee.mu_squared is not None:
        epsilon = Fraction(guarantee.loss.epsilon_micro, MICRO)
        assert gaussian_delta(epsilon, guarantee.mu_squared) <= guarantee.loss.delta * (1 + 1e-12)
    assert Guarantee.from_json(json.loads(json.dumps(guarantee.to_json()))) == guarantee


@every
@pytest.mark.parametrize("neighbours", Neighbours)
def test_private_mechanisms_are_charged_and_others_are_for_reproduction(name: str, neighbours: Neighbours) -> None:
    info = MECHANISMS[name].info
    request = ReleaseRequest(name, loss_for(name), 1.0, neighbours=neighbours, options=least_options(name))
    again = replace(request, for_reproduction=True)
    if is_private_as_claimed(calibrated(name, SIZE, neighbours=neighbours)):
        assert planned(request, Dimensions(SIZE)).moment.guarantee is not None
        with pytest.raises(UsageError, match="leave for_reproduction out"):
            planned(again, Dimensions(SIZE))
    else:
        assert info.replacement
        with pytest.raises(RefusedError, match=f"Use mechanism='{info.replacement}' instead"):
            planned(request, Dimensions(SIZE))
        assert planned(again, Dimensions(SIZE)).moment.noise.law


# --- its options ------------------------------------------------------------------------------------------------------


@every
def test_a_superfluous_or_missing_delta_is_refused(name: str) -> None:
    use = MECHANISMS[name].info.delta
    for delta, kind, message in (("1e-6", DeltaUse.NONE, "takes no delta"), ("0", DeltaUse.REQUIRED, "positive delta")):
        loss = PrivacyLoss.parse("1", delta)
        if use is kind:
            with pytest.raises(UsageError, match=rf"{message}.*mechanism="):
                calibrated(name, SIZE, loss=loss)
        elif name != "none":
            assert calibrated(name, SIZE, loss=loss).claim == loss


@every
def test_its_options_are_typed_explained_and_the_keywords_of_its_calibration(name: str) -> None:
    mechanism = MECHANISMS[name]
    keywords = list(inspect.signature(mechanism.calibrate).parameters.values())[2:]
    assert {p.name for p in keywords} == {option.name for option in mechanism.info.options}
    assert all(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in keywords)
    query, loss = LatticeQuery(SIZE, 4**16, Neighbours.REPLACE_ONE), loss_for(name)
    for option in mechanism.info.options:
        assert option.meaning
        assert bool(option.choices) is (option.kind is Kind.WORD)
        assert option.default is None or option.checked(option.default) == option.default
        wrong: Any
        for wrong in (True, "nonsense", object()):
            with pytest.raises(UsageError, match=f"The option {option.name} must be"):
                calibrated(name, SIZE, **{option.name: wrong})
        if option.default is None:
            incomplete = {key: value for key, value in least_options(name).items() if key != option.name}
            with pytest.raises(UsageError, match=f"{name} needs the option {option.name}: "):
                registry.calibrated(name, query, loss, incomplete)
        if option.default is None and option.kind is Kind.INTEGER:
            for value in (0, -1, *((SIZE + 1,) if option.name == "components" else ())):
                with pytest.raises(UsageError, match=r"(?i)between|must be from|at least one|spectrum|variances"):
                    calibrated(name, SIZE, **{option.name: value})
    with pytest.raises(UsageError, match=f"{name} has no option 'nonsense'"):
        calibrated(name, SIZE, nonsense=1)


@every
def test_several_rows_of_one_unit_are_protected_or_refused(name: str) -> None:
    query = LatticeQuery(SIZE, 4**16, Neighbours.REPLACE_ONE, 3)
    if MECHANISMS[name].info.units:
        three = registry.calibrated(name, query, loss_for(name), least_options(name))
        assert size_of(three) == pytest.approx(3 * size_of(calibrated(name, SIZE)), rel=1e-4)
    else:
        with pytest.raises(RefusedError, match=r"for units of several rows\. Use gaussian or two-sided-wishart \("):
            registry.calibrated(name, query, loss_for(name), least_options(name))


# --- its noise --------------------------------------------------------------------------------------------------------


def size_of(fixed: Calibrated) -> float:
    """Return the scale of the noise in lattice units: a deviation, a ridge, or the inverse of a concentration."""
    noise = fixed.noise
    if noise.variance_off_diagonal is not None:
        return math.sqrt(noise.variance_off_diagonal)
    scales = [noise[key] for key in ("scale", "ridge", "laplace_scale") if key in noise]
    inverses = [noise[key] for key in ("concentration", "alpha", "rate") if key in noise]
    if scales:
        return float(scales[0])
    return 1 / inverses[0] if inverses[0] else math.inf


@every
def test_noise_follows_the_sensitivity_of_the_query(name: str) -> None:
    if name == "none":
        return
    for size in (1, SIZE):
        replaced, removed = (size_of(calibrated(name, size, neighbours=n)) for n in Neighbours)
        assert replaced >= removed * (1 - 1e-12)
    # rows of twice the norm change the moment four times as much
    assert size_of(calibrated(name, SIZE, 4**17)) == pytest.approx(4 * size_of(calibrated(name, SIZE)), rel=1e-6)
    assert size_of(calibrated(name, SIZE, loss="0.5")) >= size_of(calibrated(name, SIZE))


@every
def test_its_stored_noise_is_read_back(name: str) -> None:
    noise = calibrated(name, SIZE).noise
    again = Noise.from_json(json.loads(json.dumps(noise.to_json())))
    assert again == noise
    assert " ".join(noise.details) == DETAILS[noise.law]
    assert (again.edge, again.summands, again.mean_diagonal) == (noise.edge, noise.summands, noise.mean_diagonal)


@every
def test_accepted_noise_stays_on_the_lattice(name: str) -> None:
    for bits in (8, 12, 16, 20, 24, 28):
        try:
            noise = calibrated(name, SIZE, 4**bits).noise
        except UsageError as error:
            assert "grid_bits" in str(error)  # noqa: PT017 - or else it is granted
        else:
            assert abs(noise.mean_diagonal) + 16 * math.sqrt(noise.variance_diagonal or 0) < 2**63
    if name != "none" and MECHANISMS[name].info.output is Output.SECOND_MOMENT:
        with pytest.raises(UsageError, match="grid_bits"):
            calibrated(name, SIZE, 4**31, loss="0.000001")


# --- its draws --------------------------------------------------------------------------------------------------------


@every
def test_released_matrices_are_semidefinite_if_and_only_if_stated(name: str) -> None:
    info, fixed = MECHANISMS[name].info, calibrated(name, SIZE)
    if info.output is Output.COMPONENTS:
        assert not info.semidefinite
        return
    moments = [KnownMoment(np.diag([one, 0, 0]).astype(np.int64)) for one in (0, 4**16)]
    drawn = (fixed.answer(moments[i % 2], Scripted(i)) for i in range(12))
    answers = [unpacked(np.asarray(matrix, dtype=np.int64), SIZE).astype(float) for matrix in drawn]
    least = min(float(np.linalg.eigvalsh(matrix)[0]) for matrix in answers)
    # rounding to the lattice moves an eigenvalue by at most d/2 units, and these draws have thousands of units
    assert (least >= -SIZE) is info.semidefinite


@every
def test_an_answer_is_a_triangle_of_integers_or_an_orthonormal_frame_and_fresh(name: str) -> None:
    fixed, before = calibrated(name, SIZE), MOMENT.values.copy()
    first, second = (fixed.answer(MOMENT, SYSTEM) for _ in range(2))
    if MECHANISMS[name].info.output is Output.SECOND_MOMENT:
        assert first.dtype == np.int64
        assert first.shape == (SIZE * (SIZE + 1) // 2,)
    else:
        assert first.shape == (1, SIZE)
        assert np.abs(first @ first.T - 1).max() < 1e-12
    assert np.array_equal(first, second) is (name == "none")  # equal with a probability below 2^-30
    assert np.array_equal(MOMENT.values, before)
    # the entropy determines the answer
    assert np.array_equal(fixed.answer(MOMENT, Scripted(1)), fixed.answer(MOMENT, Scripted(1)))


@additive
def test_the_answer_of_an_additive_mechanism_is_the_moment_plus_one_draw(name: str) -> None:
    fixed = calibrated(name, SIZE)
    assert np.array_equal(fixed.answer(MOMENT, Scripted(2)), MOMENT.triangle() + fixed.draw(Scripted(2)))


@additive
def test_bands_are_drawn_separately_if_and_only_if_entries_are_independent(name: str) -> None:
    # a mechanism wrongly drawn by bands would release independent entries that must be dependent
    fixed = calibrated(name, SIZE)
    independent = fixed.noise.edge in {EdgeKind.NORMAL, EdgeKind.LAPLACE} or name == "none"
    assert isinstance(fixed, IndependentEntries) is independent
    if isinstance(fixed, IndependentEntries):
        exact = np.arange(5, dtype=np.int64)
        noisy = transaction.noisy(fixed, Band(0, 2, SIZE), exact, Scripted(3))
        assert np.array_equal(noisy, exact + fixed.draw_band(Band(0, 2, SIZE), Scripted(3)))


DRAWS = 1000


@additive
def test_draws_have_the_stated_mean_variances_and_independence_and_a_twin_has_not(name: str) -> None:
    if name == "none":
        return
    # exact draws are slow; tests/core/noise/test_products.py replays them
    options: dict[str, Any] = {"arithmetic": "ideal-real"} if name in {"wishart", "two-sided-wishart"} else {}
    fixed = calibrated(name, SIZE, **options)
    noise = fixed.noise
    sample = np.array(list(islice(fixed.draws(DRAWS, SYSTEM), DRAWS)), dtype=np.float64)
    on = np.zeros(sample.shape[1], dtype=bool)
    on[diagonal_positions(SIZE)] = True
    sample[:, on] -= noise.mean_diagonal
    for entries, variance in ((sample[:, on], noise.variance_diagonal), (sample[:, ~on], noise.variance_off_diagonal)):
        assert variance is not None
        # entries of one draw may be dependent, draws are not: one mean square per draw
        squares = np.mean(entries**2, axis=1)
        assert mean_passes(np.mean(entries, axis=1), 0)
        # skewed draws are farther off than normal ones: the limit of 100 tests has a false alarm in 10^8 runs
        assert mean_passes(squares, variance, 100)
        # the twin has half the variance; for the heaviest tails, of wishart noise, that is ten standard errors or more
        assert not mean_passes(squares / 2, variance, 100)
    if isinstance(fixed, IndependentEntries):  # the largest correlation is within chance; 1.1 for the tails of laplace
        correlation = np.abs(np.asarray(np.corrcoef(sample.T))[np.triu_indices(sample.shape[1], 1)]) * math.sqrt(DRAWS)
        assert correlation.max() < 1.1 * stats.norm.isf(FALSE_ALARM / correlation.size)
