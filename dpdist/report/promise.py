"""The meaning of a guarantee for a decision: how often a guess about one row can be right.

An attacker knows all rows but one, and tests which of two neighbouring tables a release comes from. The largest share
of true alarms for a given share of false alarms is one minus the trade-off function of the mechanism:

* ``max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))`` for (epsilon, delta) (Wasserman & Zhou 2010; Dong,
  Roth & Su 2022, proposition 2.5);
* ``Phi(Phi^-1(1 - a) - mu)`` for a Gaussian release (Dong, Roth & Su 2022, section 2.2).

If both are known, both hold, and the smaller share is reported.

The privacy card contains this as JSON values, with the assumptions of the guarantee and the charges of a ledger. All of
it is public. ``docs/formats/card.schema.json`` defines its types; it is part of the format and does not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

from markupsafe import Markup
from scipy.special import ndtr, ndtri

from dpdist.core._version import __version__
from dpdist.core.mechanisms.registry import mechanism_named
from dpdist.core.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.release.artefact import Heading, Release
from dpdist.core.release.statement import LedgerStatement
from dpdist.report.answers import number

_EXPONENT = 700.0
"""Largest x for which ``exp(x)`` does not overflow."""
ALARMS = (0.01, 0.05, 0.1, 0.25, 0.5)
"""The shares of false alarms in the table."""


def meaning_of(release: Heading) -> dict[str, object] | None:
    """Return the guarantee of a release as text and numbers for the page; None without a guarantee."""
    guarantee = release.guarantee
    if guarantee is None:
        return None
    loss, squared = guarantee.loss, guarantee.mu_squared
    added = number(loss.delta) if loss.delta_atto else None
    factor = Markup("e<sup>{}</sup>").format(f"{loss.epsilon:g}")
    if loss.epsilon < _EXPONENT:
        factor = number(float(f"{math.exp(loss.epsilon):.3g}"))
    arithmetic = "ideal-real: the proof assumes real numbers, which floating point approximates"
    if guarantee.arithmetic is Arithmetic.INTEGER_EXACT:
        arithmetic = "integer-exact: the proof covers the numbers as computed"
    return {
        "sentence": _sentence(release, guarantee),
        "right": share_up(accuracy(guarantee)),
        "neighbours": _neighbours(release, guarantee),
        "loss": Markup("ε = {}").format(f"{loss.epsilon:.6g}") + (Markup(", δ = {}").format(added) if added else ""),
        "factor": factor,
        "added": added,
        "mu": None if squared is None else f"{math.sqrt(squared):.6g}",
        "arithmetic": arithmetic,
        "tests": [(f"{100 * share:g} %", f"{share_up(hits(guarantee, share))} %") for share in ALARMS],
    }


def _sentence(release: Heading, guarantee: Guarantee) -> str:
    unit, same = release.unit, guarantee.neighbours is Neighbours.REPLACE_ONE
    if unit is None:
        others = "all rows of the table except one" if same else "all other rows of the table"
        doubt = "which of two rows it is" if same else "whether the table has one more row"
    else:
        others = f"all rows of the table except those of one {unit.column} ({unit.most})"
        doubt = "which of two sets of rows they are" if same else "whether they are in the table"
    text = (
        f"An attacker knows {others}, and guesses {doubt}. With this release, at most "
        f"{share_up(accuracy(guarantee))} % of such guesses are right; by chance, 50 % are"
    )
    return f"{text}." if release.condition is None else f"{text}. This holds if {release.condition}."


def _neighbours(release: Heading, guarantee: Guarantee) -> str:
    unit = release.unit
    rows = "one row" if unit is None else f"all rows of one {unit.column}, {unit.most},"
    periods = any(extent.first is not None for extent in release.extents)
    if guarantee.neighbours is Neighbours.REPLACE_ONE:
        within = " of the same period" if periods else ""
        return f"replace-one: {rows} exchanged for any other{within}; the number of rows is public"
    return f"add-remove: {rows} more or fewer; the number of rows is private too"


def share_up(share: float) -> str:
    """Return a share in percent, rounded up to a tenth so that an upper bound remains one.

    >>> share_up(0.5471), share_up(0.73106), share_up(1.0)
    ('54.8', '73.2', '100')
    """
    return f"{min(100.0, math.ceil(1000 * share - 1e-9) / 10):g}"


def accuracy(guarantee: Guarantee) -> float:
    """Return the largest probability of identifying one of two equally likely neighbouring tables."""
    # (1 + TV) / 2: (e^epsilon + delta) / (1 + e^epsilon) for (epsilon, delta) (Kairouz, Oh & Viswanath 2017, theorem
    # 2.1), and Phi(mu/2) for a Gaussian release (Dong, Roth & Su 2022, section 2.2)
    share = 1 / (1 + math.exp(-guarantee.loss.epsilon))
    general = share + guarantee.loss.delta * (1 - share)
    return general if guarantee.mu_squared is None else min(general, float(ndtr(math.sqrt(guarantee.mu_squared) / 2)))


def hits(guarantee: Guarantee, alarms: float) -> float:
    """Return the largest share of true alarms of any test of a release with a given share of false alarms."""
    loss = guarantee.loss
    grown = alarms * math.exp(min(loss.epsilon, _EXPONENT))
    bound = min(1.0, loss.delta + grown, 1 - math.exp(-loss.epsilon) * (1 - loss.delta - alarms))
    if guarantee.mu_squared is not None:
        bound = min(bound, float(ndtr(ndtri(alarms) + math.sqrt(guarantee.mu_squared))))
    return max(bound, alarms)


def card_of(release: Release, ledger: LedgerStatement | None = None) -> dict[str, object]:
    """Return the card of a release as JSON values, with charges if a ledger is given."""
    info, unit, guarantee, budget = mechanism_named(release.mechanism).info, release.unit, release.guarantee, None
    if ledger is not None:
        charged = [
            {"release_id": record.release_id, **_loss(record.loss), "state": record.state} for record in ledger.releases
        ]
        budget = {**_loss(ledger.budget), "head": ledger.head, "charged": charged}
    return {
        "format": "dpdist-card/1",
        "release_id": release.release_id,
        "status": release.status,
        "mechanism": {name: getattr(info, name) for name in ("name", "law", "sensitivity", "reference")},
        "guarantee": None if guarantee is None else _guarantee_json(release, guarantee),
        "rows": {
            "n": release.rows,
            "columns": list(release.names),
            "clip_norm": release.bound.row_norm,
            "unit": None if unit is None else unit.column,
            "max_rows": None if unit is None else unit.max_rows,
            "tables": sorted({extent.dataset for extent in release.extents}),
        },
        "assumptions": list(_assumptions(release)),
        "cautions": list(release.cautions),
        "budget": budget,
        "ledger_head": release.ledger_head,
        "releases": list(release.releases),
        "made": datetime.now(UTC).date().isoformat(),
        "library": f"dpdist {__version__}",
        "cite": f"The dpdist developers: dpdist {__version__}, release {release.release_id}.",
    }


def _loss(loss: PrivacyLoss) -> dict[str, float]:
    return {"epsilon": loss.epsilon, "delta": loss.delta}


def _guarantee_json(release: Release, guarantee: Guarantee) -> dict[str, object]:
    squared = guarantee.mu_squared
    return {
        **_loss(guarantee.loss),
        "mu": None if squared is None else math.sqrt(squared),
        "neighbours": guarantee.neighbours.value,
        "right_guesses": accuracy(guarantee),
        "sentence": _sentence(release, guarantee),
        "arithmetic": guarantee.arithmetic.value,
        "proof": guarantee.proof,
    }


def _assumptions(release: Release) -> Iterator[str]:
    rows = "is one row" if release.unit is None else f"are the rows of one {release.unit.column}"
    yield (
        "Clip norm, centre, scale, columns, schema and all other parameters were chosen without the rows, or privately."
    )
    yield f"The data of one person in the table {rows}."
    yield "The guarantee covers this release alone; other releases of the same rows add to its loss."
    if release.guarantee is not None and release.guarantee.arithmetic is not Arithmetic.INTEGER_EXACT:
        yield "The proof assumes real numbers, which floating point approximates."
    if release.condition is not None:
        yield f"It holds if {release.condition}."
