"""Joint guarantee of a stage and the release that follows from it, under one id, and the division of a loss.

**Mechanism.** First a stage S of the rows, such as a histogram, is drawn and published: its answer is a. Then a release
R_a of the same rows is drawn. Its function of the rows, such as the moment of rows that are shifted, scaled and clipped
to a norm, may depend on a; its price may not. The parameters of both are fixed before the first draw.

**Theorem (adaptive composition).** Let neighbours be the same for both. (a) If S is mu_1-GDP, and R_a is mu_2-GDP for
every a, then (S, R_S) is mu-GDP with ``mu² = mu_1² + mu_2²``, and nothing is lost. (b) If S is
(epsilon_1, delta_1)-private, and R_a is (epsilon_2, delta_2)-private for every a, then (S, R_S) is
(epsilon_1 + epsilon_2, delta_1 + delta_2)-private.

*Proof.* Both are steps of the interaction of :mod:`dpdist.core.privacy.profile`. The second is chosen from the first
answer, by the analyst there, by a fixed rule here. Its caps are (0, mu_1² + mu_2², 0) in (a), where H is the profile of
one Gaussian release with that mu (Dong, Roth & Su 2022, corollary 3.3), and
(epsilon_1 + epsilon_2, 0, delta_1 + delta_2) in (b). ∎

The bound mu_2 holds for every a because a mechanism is calibrated in grid steps. Given a, centre, scale and clip norm
are fixed, and each row is mapped separately. The clip norm determines the length of a step, and the integers of a row
have the same largest norm for any centre, scale and clip norm (:mod:`dpdist.core.rows.bounding`).

**Two stages**, such as histograms of columns and then of the norms of rows that were scaled by the first answer, are
(S_1, S_2 of S_1's answer): by the theorem one stage S with mu² ``mu_1² + mu_2²``, or the sum of both epsilons, which is
published in parts. The release follows from S. So the theorem is applied to S_1 and S_2, and then to S and the release;
the charge is the sum of all three.

**For pure parts** the likelihood ratio of each is within ``e^-epsilon_i .. e^epsilon_i``: a range of 2 epsilon_i. So
next to Gaussian releases both together cost ``mu(epsilon_1)² + mu(epsilon_2)²`` and not the larger
``mu(epsilon_1 + epsilon_2)²``: the guarantee lists these ranges.

**Drawn once.** The theorem is about one draw of S and one of R_S. A second draw of either would be a third, unpaid
step. So the ledger commits each stage before it is read, even by this process, returns the committed bytes permanently,
and allows no later draw before that. ``ledger/ledger.py`` proves which bytes count.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from dpdist.core.errors import UsageError
from dpdist.core.privacy.accounting import gaussian_delta, gaussian_sigma, largest_gaussian
from dpdist.core.privacy.guarantee import MICRO, Arithmetic, Guarantee, PrivacyLoss


def divided(
    loss: PrivacyLoss, share: Fraction, stage: Callable[[PrivacyLoss], Guarantee], *, gaussian: bool
) -> tuple[PrivacyLoss, PrivacyLoss]:
    """Return the losses of a stage and of the release after it, which together keep a loss."""
    if gaussian:
        mu_squared = 1 / Fraction(gaussian_sigma(loss)) ** 2
        first = largest_gaussian(share * mu_squared, loss)
        spent = None if first is None else stage(first).mu_squared
        rest = None if spent is None else largest_gaussian(mu_squared - spent, loss)
        if first is None or rest is None:
            raise _too_small(loss)
        return first, rest
    micro = int(share * loss.epsilon_micro)
    if not 0 < micro < loss.epsilon_micro:
        raise _too_small(loss)
    return PrivacyLoss(micro), PrivacyLoss(loss.epsilon_micro - micro, loss.delta_atto)


def _too_small(loss: PrivacyLoss) -> UsageError:
    return UsageError(f"{loss} cannot be divided between a stage and the release after it: use a larger loss.")


def together(stage: Guarantee, release: Guarantee, loss: PrivacyLoss) -> Guarantee:
    """Return the joint guarantee of a stage and the release that follows from it (theorem: see the module)."""
    parts = (stage, release)
    squares = [part.mu_squared for part in parts if part.mu_squared is not None]
    square: Fraction | None = None
    ranges: tuple[Fraction, ...] = ()
    if len(squares) == len(parts):
        square = sum(squares, Fraction(0))
        holds = gaussian_delta(Fraction(loss.epsilon_micro, MICRO), square) <= loss.delta
    else:
        holds = PrivacyLoss(
            sum(part.loss.epsilon_micro for part in parts), sum(part.loss.delta_atto for part in parts)
        ).within(loss)
        if not loss.delta_atto:
            ranges = _ranges(stage) + _ranges(release)
    if not holds or stage.neighbours is not release.neighbours:
        raise AssertionError("the parts of a loss exceed it")
    return Guarantee(
        neighbours=release.neighbours,
        loss=loss,
        mu_squared=square,
        arithmetic=Arithmetic.of_all(parts),
        proof=__name__,
        bounded_ranges=ranges,
    )


def _ranges(guarantee: Guarantee) -> tuple[Fraction, ...]:
    """Return the ranges of the privacy loss of a pure part: its own, or from -epsilon to epsilon."""
    return guarantee.bounded_ranges or (Fraction(2 * guarantee.loss.epsilon_micro, MICRO),)
