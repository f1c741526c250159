"""Copies of mechanisms with less noise, which claim the same: an audit must reject them, unless they keep the claim."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from fractions import Fraction

from dpdist import Neighbours, PrivacyLoss
from dpdist.core.mechanisms.base import Calibrated, Matrix
from dpdist.core.mechanisms.laplace import CalibratedLaplace
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.privacy.accounting import gaussian_delta
from dpdist.core.privacy.guarantee import MICRO
from dpdist.literature.one_sided import CalibratedWishart
from dpdist.literature.wishart_profile import add_remove_delta, replace_one_delta

FACTOR = 1.5
"""By which the noise of a copy is less."""


def weakened(calibrated: Calibrated, factor: float) -> Calibrated:
    """Return a copy whose noise is so many times smaller, by the scale its draws are made with. It claims as before.

    An audit that does not reject it, although the claim is tight, sees nothing.
    """
    smaller = {"scale", "sigma_diagonal", "sigma_off_diagonal", "ridge", "eigenvalues"}
    larger = {"concentration", "rate"}
    values: dict[str, float | Matrix] = {}
    for field in fields(calibrated):  # type: ignore[arg-type]  # all of them are dataclasses
        value = getattr(calibrated, field.name)
        if field.name in larger:
            values[field.name] = value * factor
        elif field.name in smaller:
            values[field.name] = math.ceil(value / factor) if isinstance(value, int) else value / factor
    if not values:
        raise AssertionError(f"{type(calibrated).__name__} has no scale")
    copy: Calibrated = replace(calibrated, **values)  # type: ignore[type-var]
    return copy


def kept_by_the_copy(name: str, copy: Calibrated, query: LatticeQuery, loss: PrivacyLoss) -> str:
    guarantee, epsilon = copy.guarantee, Fraction(loss.epsilon_micro, MICRO)
    if guarantee is not None and guarantee.mu_squared is not None:
        mu_squared = guarantee.mu_squared * Fraction(FACTOR) ** 2
        delta = gaussian_delta(epsilon, mu_squared)
        if delta <= loss.delta:
            return f"the copy is {math.sqrt(mu_squared):.3g}-GDP: delta {delta:.2g}"
    if isinstance(copy, CalibratedLaplace):
        shown = query.triangle_l1 / copy.scale
        return f"the copy is {shown:.3g}-private" if shown <= loss.epsilon else ""
    if name == "power-published" and not loss.delta_atto:
        shown = FACTOR * loss.epsilon * math.sqrt(query.size) / 10  # one component: Delta = S
        return f"the copy is {shown:.3g}-private" if shown <= loss.epsilon else ""
    if name == "sheffet-wishart" and isinstance(copy, CalibratedWishart):
        kappa, theta = (copy.columns - query.size + 1) / 2, 2 * copy.scale / query.bound
        profile = add_remove_delta if query.neighbours is Neighbours.ADD_REMOVE else replace_one_delta
        delta = profile(loss.epsilon, kappa, theta)
        return f"the copy has delta {delta:.2g}" if delta <= loss.delta else ""
    return ""
