"""The exact privacy profile of the caps of a budget, for adaptive analysts, with outward rounding.

**Theorem.** Fix a cap set (E, M, D) before the first answer: E for pure epsilons, M for squared Gaussian parameters
mu², D for probabilities of failure. Let every later request be chosen from all earlier answers, and let the sums of the
charges never exceed the caps. Then for every epsilon, and both ways between neighbours, ::

    delta(epsilon) <= D + H(epsilon),    H(epsilon) = p d_M(epsilon - E) + (1 - p) d_M(epsilon + E),
    p = e^E / (1 + e^E),                 d_M(x) = Phi(mu/2 - x/mu) - e^x Phi(-mu/2 - x/mu),   mu = sqrt(M),

and ``d_0(x) = max(0, 1 - e^x)``. H is the profile of randomised response with E and one Gaussian with M together, so
nothing is lost.

*Proof.* Let L be the likelihood ratio dP/dQ of the answers so far, and ``V(e, m, l) = E_Q[(l R_e G_m - e^epsilon)_+]``
where R_e and G_m are independent likelihood ratios, under Q, of randomised response with e and of a Gaussian with
mu² = m. V is convex and increasing in l.

1. A pure step with e' <= e has a ratio R' in [e^-e', e^e'] of mean 1. The distribution on the two ends is the largest
   of these in convex order, so ``E_Q V(e - e', m, l R') <= E_Q V(e - e', m, l R_e') <= V(e, m, l)``: randomised
   response with e dominates that with e' followed by that with e - e'.
2. A Gaussian step with mu² = m' <= m has a ratio below G_m' in convex order (equal for the worst neighbour), and
   ``G_m' G_(m-m')`` has the distribution of G_m.
3. V grows in e and m. By induction from the last step, for any choices, ``E_Q[(L - e^epsilon)_+] <= V(E, M, 1)``,
   which is H(epsilon).
4. For an (e', delta') step write ``P' = delta' A + (1 - delta') P''``, ``Q' = delta' B + (1 - delta') Q''`` with P''
   and Q'' e'-close (Kairouz, Oh & Viswanath 2015). With ``W = l D + V`` one step gives
   ``l delta' + (1 - delta') (l (D - delta') + V) <= l D + V``.

P against Q and Q against P are the same argument. For infinite transcripts take the supremum over prefixes. ∎

**Several cap sets.** If the charges of an interaction always fit at least one of the sets i = 1..K, all fixed before
the first answer, ``delta(epsilon) <= sum_i (D_i + H_i(epsilon))``. *Proof.* Split the complete transcripts by the first
set that holds all their charges. On part i they are transcripts of the strategy that halts before it leaves set i, and
``(L - e^epsilon)_+`` is not negative, so that part is at most ``D_i + H_i``. ∎ The set (epsilon, 0, 0) has H = 0: it
allows pure releases up to epsilon next to any other set, at no cost.

**A pure or a bounded-range step charged to M.** The proof only uses domination in convex order, so each step may be
charged as any step that dominates it, chosen at the time of the charge.

* A pure epsilon costs ``mu(epsilon)²``, :func:`mu_of_pure`: ``mu(epsilon) = -2 Phi^-1(1 / (1 + e^epsilon))``. The
  trade-off curve of G_mu is convex and passes through the ends and the corner of that of randomised response, so it
  is below it.
* A step of bounded range r (the exponential mechanism; Dong, Durfee & Rogers 2020) has two-point ratios e^-t and
  e^(r-t) at worst, t in [0, r], and costs ``mu(r/2)²``. *Proof that t = r/2 is the worst.* The upper atom has masses
  ``p = (1 - e^-t)/(1 - e^-r)`` under P and ``q = (e^t - 1)/(e^r - 1)`` under Q, and mu(t) is ``Phi^-1(p) -
  Phi^-1(q)``; p(r-t) = 1 - q(t), so mu is symmetric about r/2. With I = phi o Phi^-1: mu' >= 0 if and only if
  ``I(p)/I(q) <= p'/q' = e^(r-2t) = p(1-p)/(q(1-q))``, that is J(p) <= J(q) with ``J(x) = I(x)/(x(1-x))``. For t <=
  r/2, q <= min(p, 1-p), and J is symmetric, so it suffices that J falls on (0, 1/2]. With x = Phi(-s), (log J)' in s
  has the sign of ``g(s) = phi (2 Phi - 1) - s Phi(s) Phi(-s)``. g(0) = g(inf) = 0; ``g' = 2 phi² - Phi(s) Phi(-s)``,
  g'(0) = 1/pi - 1/4 > 0; ``g'' = phi (2 Phi - 1 - 4 s phi)``, whose bracket is 0 at 0, falls for s < 1/sqrt 2, then
  rises to 1: one change of sign. So g' falls from above 0 to below and then rises to 0; g rises, then falls to 0: g
  >= 0. ∎

**Reserve.** H is taken 1e-50 larger where a Gaussian part is allowed, so every budget with a delta leaves as much of it
free. It pays for steps that are Gaussian up to a total variation far below it: shares of noise of several sites
(:mod:`dpdist.core.mechanisms.noise_share`).

**Rounding.** M is rounded down, mu(epsilon)² up, H up. The search uses 60 digits; its result is certified by interval
arithmetic with :func:`_tail`, whose brackets are proved, and compared as exact fractions.

References
----------
Rogers, Roth, Ullman & Vadhan 2016 (privacy filters); Kairouz, Oh & Viswanath 2015; Dong, Roth & Su 2022; Balle & Wang
2018, theorem 8; Dong, Durfee & Rogers 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mpmath.ctx_iv import MPIntervalContext
from mpmath.ctx_mp import MPContext

_Number = Any  # A number or an interval of mpmath, which has no types
_Function = Callable[[_Number], _Number]
_DIGITS = MPContext()  # a private context: mpmath's global precision belongs to the caller
_DIGITS.dps = 60
_INTERVALS = MPIntervalContext()
_INTERVALS.prec = 320
_MANTISSA = 112  # bits of M and of mu²: far finer than the 48 to which Gaussian noise is calibrated
_SERIES = 6  # largest x for the series of Phi; the continued fraction is used beyond
_TERMS = 200
RESERVE = Fraction(1, 10**50)
"""Delta that every profile with a Gaussian part adds, for steps that are Gaussian up to a total variation below it."""


def _exact(value: _Number) -> Fraction:
    """Return a binary floating-point number of mpmath as an exact fraction."""
    sign, mantissa, exponent, _ = value._mpf_
    return Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** int(exponent)


def _interval(value: Fraction) -> _Number:
    return _INTERVALS.mpf(value.numerator) / value.denominator


def _ends(interval: _Number) -> tuple[Fraction, Fraction]:
    return _exact(_DIGITS.make_mpf(interval._mpi_[0])), _exact(_DIGITS.make_mpf(interval._mpi_[1]))


def _tail(x: _Number) -> _Number:
    """Return an interval around ``1 - Phi(x)`` for an interval x >= 0.

    Up to 6, ``Phi(x) - 1/2 = phi(x) (x + x³/3 + x^5/(3 5) + ...)``, whose terms are positive; once their ratio is below
    1/2, the rest is at most the last one. Beyond, ``1 - Phi(x) = phi(x) / (x + 1/(x + 2/(x + 3/...)))``, whose tails
    ``t_n = x + (n+1)/t_(n+1)`` are in ``[x, x + (n+1)/x]`` (Laplace; Abramowitz & Stegun 26.2.14).
    """
    iv = _INTERVALS
    density = iv.exp(-(x * x) / 2) / iv.sqrt(2 * iv.pi)
    if x.b <= _SERIES:
        term = total = x
        for n in range(1, _TERMS):
            term = term * (x * x) / (2 * n + 1)
            total += term
        # here 2 n + 3 > 2 x², so the ratio of the remaining terms is below 1/2
        return iv.mpf(1) / 2 - density * (total + term * iv.mpf([0, 1]))
    low = iv.mpf([x.a, x.a])
    tail = iv.mpf([x.a, (x + (_TERMS + 1) / low).b])
    for n in range(_TERMS, 0, -1):
        tail = x + n / tail
    return density / tail


def _phi(x: _Number) -> _Number:
    """Return an interval around Phi(x) for an interval x."""
    if x.a >= 0:
        return 1 - _tail(x)
    if x.b <= 0:
        return _tail(-x)
    return _INTERVALS.mpf([_tail(_INTERVALS.mpf([0, (-x).b])).a, (1 - _tail(_INTERVALS.mpf([0, x.b]))).b])


def _gaussian(phi: _Function, exp: _Function, mu: _Number, x: _Number) -> _Number:
    return phi(mu / 2 - x / mu) - exp(x) * phi(-mu / 2 - x / mu)


def _joint(phi: _Function, exp: _Function, mu: _Number, pure: _Number, epsilon: _Number) -> _Number:
    """Return H(epsilon), for numbers or intervals; mu is positive."""
    odds = exp(pure)
    near, far = _gaussian(phi, exp, mu, epsilon - pure), _gaussian(phi, exp, mu, epsilon + pure)
    return (odds * near + far) / (1 + odds)


@lru_cache(maxsize=4096)
def profile(pure: Fraction, mu_squared: Fraction, epsilon: Fraction) -> Fraction:
    """Return H(epsilon) of the caps E = ``pure`` and M = ``mu_squared``, rounded up; never negative."""
    if epsilon < pure:
        raise AssertionError("the pure cap exceeds the budget's epsilon")
    if mu_squared == 0:
        return Fraction(0)
    iv = _INTERVALS
    value = _joint(_phi, iv.exp, iv.sqrt(_interval(mu_squared)), _interval(pure), _interval(epsilon))
    return max(Fraction(0), _ends(value)[1]) + RESERVE


def near_profile(pure: Fraction, mu_squared: Fraction, epsilon: Fraction) -> Fraction:
    """Return H(epsilon) to about 50 digits, 50 times faster: for searches, not for decisions."""
    if mu_squared == 0:
        return Fraction(0)
    digits = _DIGITS
    square, e, x = (digits.mpf(v.numerator) / v.denominator for v in (mu_squared, pure, epsilon))
    return _exact(_joint(digits.ncdf, digits.exp, digits.sqrt(square), e, x))


def _kept(value: _Number, *, up: bool) -> Fraction:
    """Return a positive number to :data:`_MANTISSA` bits, rounded in one direction."""
    exact = _exact(value)
    shift = _MANTISSA - (exact.numerator.bit_length() - exact.denominator.bit_length())
    scaled = exact * Fraction(2) ** shift
    return (math.ceil(scaled) if up else math.floor(scaled)) / Fraction(2) ** shift


@lru_cache(maxsize=256)
def largest_mu_squared(pure: Fraction, delta: Fraction, epsilon: Fraction) -> Fraction:
    """Return the largest M for which ``H(epsilon) <= delta``, rounded down; 0 if there is none."""
    if delta <= 0:
        return Fraction(0)
    digits = _DIGITS
    e, x, goal = (digits.mpf(v.numerator) / v.denominator for v in (pure, epsilon, delta))

    def within(mu: _Number) -> bool:
        return bool(_joint(digits.ncdf, digits.exp, mu, e, x) <= goal)

    low = high = digits.mpf(1)
    while within(high):
        low, high = high, 2 * high
    while not within(low):
        low, high = low / 2, low
    while high - low > low * digits.mpf(2) ** -(_MANTISSA + 8):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) else (low, middle)
    largest = _kept(low * low, up=False)
    for _ in range(8):
        if profile(pure, largest, epsilon) <= delta:
            return largest
        largest *= 1 - Fraction(1, 1 << (_MANTISSA - 12))
    raise AssertionError("60 digits and the intervals agree")


@lru_cache(maxsize=4096)
def mu_of_pure(epsilon: Fraction) -> Fraction:
    """Return ``mu(epsilon)²``, rounded up: the charge of a pure epsilon to M (see the module)."""
    if epsilon == 0:
        return Fraction(0)
    digits, iv = _DIGITS, _INTERVALS
    odds = 1 / (1 + digits.exp(digits.mpf(epsilon.numerator) / epsilon.denominator))
    low, high = digits.mpf(0), digits.mpf(1)
    while digits.ncdf(-high) > odds:
        high *= 2
    while high - low > high * digits.mpf(2) ** -(_MANTISSA + 8):
        middle = (low + high) / 2
        low, high = (low, middle) if digits.ncdf(-middle) <= odds else (middle, high)
    goal = _ends(1 / (1 + iv.exp(_interval(epsilon))))[0]
    half = _kept(high, up=True)
    for _ in range(8):
        if _ends(_tail(_interval(half)))[1] <= goal:
            return (2 * half) ** 2
        half *= 1 + Fraction(1, 1 << (_MANTISSA - 12))
    raise AssertionError("60 digits and the intervals agree")
