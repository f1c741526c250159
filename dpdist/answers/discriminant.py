"""Linear discriminant analysis of a category from one released moment: post-processing, free of charge.

With the shares p_g of the categories of the target, the means m_g of the other columns in each, and their covariance S,
the covariance within categories is ``W = S - sum_g p_g (m_g - m)(m_g - m)'``. The discriminant of category g is

    x' W^-1 m_g - m_g' W^-1 m_g / 2 + log p_g,

the logarithm of its probability, but for a constant, where the columns are normal with the covariance W in each
category (Fisher 1936). The moment is that of :mod:`dpdist.answers.feasible`, and the ridge on W that of
:mod:`dpdist.answers.logistic`, which also refuses a target about which nothing is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.answers.categories import Matrix
from dpdist.answers.logistic import Model, model_of
from dpdist.answers.variables import Variables
from dpdist.core.errors import BelowNoiseError, UsageError


@dataclass(frozen=True)
class Discriminant:
    """The discriminants of a target: linear in the columns of the rows."""

    names: tuple[str, ...]  # of the p columns
    slopes: Matrix  # (k, p), per unit of the source
    intercepts: Matrix  # (k,)


def discriminant(held: Variables, target: str, on: Sequence[str] | None = None) -> Discriminant:
    """Return the linear discriminants of a variable with categories."""
    model = model_of(held, target, on)
    _require_seen(model)
    shares = model.shares(model.target, model.mean[model.of_target])
    shares = shares / shares.sum()
    toward = model.with_target @ model.target.basis.T / model.target.weight  # (p, k): shares times m_g - m
    centred = toward / shares
    within = model.s - toward @ centred.T
    values, vectors = np.linalg.eigh(within)
    within = (vectors * np.maximum(values, 0)) @ vectors.T + model.ridge * np.eye(len(within))
    b = np.linalg.solve(within, centred).T
    constants = np.log(shares) - np.einsum("kp,pk->k", b, centred) / 2
    onto, zero = model.units
    return Discriminant(tuple(model.labels), b @ onto.T, constants + b @ (zero - model.mean[model.places]))


def _require_seen(model: Model) -> None:
    """Refuse a target about which nothing is seen above the noise; a category that others determine is."""
    refused = list[BelowNoiseError]()
    for category in [1] if model.target.size == 2 else range(model.target.size):
        try:
            model.fitted(category)
        except BelowNoiseError as error:
            refused.append(error)
        except UsageError:
            return
        else:
            return
    raise refused[0]
