"""The methods that Imtiaz & Sarwate (2016) compare, as published, and what the package offers in their place.

The papers print neither delta nor the number of sweeps of PPCA. For their methods delta is 0.01 here, as in their later
experiments. That allows 600 of 60000 rows to be published as they are, so a release of the package refuses it:
for its own mechanisms delta is 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.answers.eigen import top_eigenpairs
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.floats import haar
from papers.common.answers import PublicMoment, private_components, request_for

Floats = npt.NDArray[np.float64]
PUBLISHED, PROVED = "0.01", "1e-6"
DELTAS = {"published methods": PUBLISHED, "proved methods": PROVED}
ROUNDS = 4
"""Rounds of our power method: public, chosen without looking at the data."""


@dataclass(frozen=True)
class Method:
    """One curve of a figure, one row of a table.

    Attributes
    ----------
    label
        Its name in pictures and tables.
    mechanism
        Its name in the package; empty for what is no mechanism.
    delta
        "0" where it is asked for without one.
    published
        Whether it is one of the paper's.
    truth
        What is true of it, in words.
    """

    label: str
    mechanism: str
    delta: str
    published: bool
    truth: str


METHODS = {
    method.label: method
    for method in (
        Method("SVD", "", "0", True, "not private"),
        Method("AG", "analyze-gauss", PUBLISHED, True, "replace-one: delta 0.01 up to epsilon 1, larger from 2 on"),
        Method("PPM", "power-published", PUBLISHED, True, "for rows a larger delta than claimed from epsilon 0.3 on"),
        Method("PPM, delta 0", "power-published", "0", True, "private for rows where d < 50 k"),
        Method("PPCA", "ppca", "0", True, "nothing proved: Gibbs sampler stopped after some sweeps"),
        Method("SN", "sn", "0", True, "not epsilon-private: delta = 1 - exp(-epsilon)"),
        Method("Jiang et al.", "jiang-wishart", "0", True, "not epsilon-private: delta = 1 - exp(-epsilon / 3)"),
        Method(
            "Sheffet",
            "sheffet-wishart",
            PUBLISHED,
            True,
            "a far smaller delta than claimed up to epsilon 1; false above about 5",
        ),
        Method("gaussian", "gaussian", PROVED, False, "(epsilon, delta), proved"),
        Method("wishart", "wishart", PROVED, False, "(epsilon, delta), proved; dominates the moment"),
        Method("power", "power", PROVED, False, "(epsilon, delta), proved"),
        Method("two-sided-wishart", "two-sided-wishart", "0", False, "epsilon (pure), proved"),
        Method("random", "", "0", False, "perfectly private: ignores the data"),
    )
}
FREE_OF_EPSILON = ("SVD", "random")


ROUNDS_LEAK = (
    "The number of rounds of PPM, which follows from the gap of the eigenvalues",
    "Give a public number of rounds: dpdist's power takes no other.",
)
"""What the published number of rounds gives away, and what to take instead."""


def rounds_as_published(moment: PublicMoment, components: int) -> int:
    """Return ``L = s_k / (s_k - s_(k+1)) ln d`` for the singular values s of the rows; a leak, as in the paper."""
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(moment.matrix)[::-1], 0))
    last, following = float(values[components - 1]), float(values[components])
    return max(1, math.ceil(last / (last - following) * math.log(len(values))))


def subspace(label: str, epsilon: str, moment: PublicMoment, count: int, published: dict[str, int]) -> Floats:
    """Return the components of one method, (count, d) orthonormal rows.

    Parameters
    ----------
    label
        Names the method.
    epsilon
        Decimal text.
    moment
        The exact moment.
    count
        k.
    published
        ``rounds`` of PPM and ``sweeps`` of PPCA.
    """
    method = METHODS[label]
    if label == "SVD":
        return top_eigenpairs(moment.matrix, count)[1]
    if label == "random":
        return haar(moment.bound.width, count, SYSTEM).T
    rounds = published["rounds"] if method.published else ROUNDS
    options: dict[str, Any] = {"components": count, "iterations": rounds, "sweeps": published["sweeps"]}
    request = request_for(method.mechanism, (epsilon, method.delta), moment.bound, options)
    return private_components(request, moment, count)
