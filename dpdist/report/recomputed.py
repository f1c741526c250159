"""The guarantee of a Gaussian release as a statistician recomputes it by hand, from numbers that the release holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from scipy.special import ndtr

from dpdist.core.privacy.accounting import gaussian_delta
from dpdist.core.privacy.guarantee import MICRO, Guarantee, Neighbours
from dpdist.core.release.artefact import Release

_LAW = "rounded-gaussian-orthogonal"
_CLOSE = 1e-6  # relative: sigma is a whole number of steps, rounded up


def lines(release: Release) -> Iterator[str]:
    """Yield formulas with their numbers; none without a guarantee by mu."""
    guarantee = release.guarantee
    if guarantee is None or guarantee.mu_squared is None:
        return
    squared, loss = float(guarantee.mu_squared), guarantee.loss
    stage = None if release.stage is None else Guarantee.from_json(release.stage.guarantee).mu_squared
    before = float(stage or 0)
    yield from _of_moment(release, squared - before)
    mu = math.sqrt(squared)
    if before:
        yield (
            f"mu² = mu₁² + mu₂² = {squared - before:.6g} + {before:.6g} = {squared:.6g}, so mu = {mu:.6g}; mu₂ is that "
            "of the private choice of scale and clip norm before it."
        )
    else:
        yield f"mu = {mu:.6g}."
    epsilon = loss.epsilon
    delta = gaussian_delta(Fraction(loss.epsilon_micro, MICRO), guarantee.mu_squared)
    yield f"δ(ε) = Φ(-ε/mu + mu/2) - exp(ε) Φ(-ε/mu - mu/2) = {delta:.4e} at ε = {epsilon:g}; declared: {loss.delta:g}."
    yield f"At most a share Φ(mu/2) = {float(ndtr(mu / 2)):.4f} of guesses between two neighbouring tables is right."
    yield (
        f"That ε = {epsilon:g} alone bounds it by 1/(1 + exp(-ε)) = {1 / (1 + math.exp(-epsilon)):.4f}; Gaussian noise "
        "with a small δ keeps it below."
    )


def _of_moment(release: Release, squared: float) -> Iterator[str]:
    """Yield mu of the moment, if a single row is protected, and the noise has the law of ``gaussian``."""
    bound, noise = release.bound, release.noise
    if noise.get("law") != _LAW or release.unit is not None:
        return
    one = release.neighbours is Neighbours.ADD_REMOVE
    norm = 4**bound.grid_bits + (bound.constant or 0) ** 2
    sigma = noise["sigma_off_diagonal"]
    mu = norm / sigma / (math.sqrt(2) if one else 1)
    if not math.isclose(mu**2, squared, rel_tol=_CLOSE):
        return
    constant = f" + {bound.constant}² = {norm}, with the constant entry that carries the mean" if bound.constant else ""
    yield f"S = 2^(2·{bound.grid_bits}){constant}: the largest squared norm of a row, in steps of the grid."
    change, formula = ("S", "S / (√2 sigma)") if one else ("√2 S", "S / sigma")
    yield (
        f"mu₁ = {formula} = {mu:.6g}: neighbouring moments differ by at most {change} (Frobenius), and the noise of an "
        f"entry off the diagonal has the standard deviation sigma = {sigma} steps, on it √2 sigma."
    )
