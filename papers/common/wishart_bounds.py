"""How large Wishart noise is, and what that does to a subspace and to a matrix of rank k.

W = s Z Z^T with Z of shape d x m, entries independent standard normals: the Wishart law W_d(m, s I). Its largest
eigenvalue is, but with probability beta,

    lambda_1(W) <= s (sqrt d + sqrt m + sqrt(2 log(1/beta)))²

(Davidson & Szarek 2001, theorem 2.13: the largest singular value of Z has at most the mean sqrt d + sqrt m and is a
1-Lipschitz function of Gaussians). For SN, s = 1/(2 epsilon) and m = d + 1, this is near 2 d / epsilon, and it is
attained: the largest eigenvalue over s tends to (sqrt d + sqrt m)². For the difference of two such matrices
``-W2 <= W1 - W2 <= W1``, so the same holds of its spectral norm with beta/2 for each. No logarithm of d enters.

What noise E does to the top k of A (A + E is released; A positive semidefinite, lambda its eigenvalues, P and P' the
projectors on the top k eigenvectors of A and A + E, ``w = lambda_1(E) - lambda_d(E)`` the width of E):

* ``0 <= tr(P A) - tr(P' A) <= min(k, d-k) w``. *Proof.* The left is Ky Fan's principle. It also gives
  ``tr(P'(A + E)) >= tr(P (A + E))``, so the difference is at most ``tr((P' - P) E) = tr((P' - P)(E - c I))``. P' - P
  has at most min(k, d-k) positive and as many negative eigenvalues, in [-1, 1]; with c in the middle of the spectrum
  of E each gives at most w/2. ∎
* ``|P - P'|_2 <= min(1, w / (lambda_k - lambda_(k+1)))``. *Proof.* Adding a multiple of I moves no eigenvector, so E is
  F = E - c I of norm w/2. Davis & Kahan with Weyl: ``|P - P'|_2 <= |F| / (gap - |F|) <= 2 |F| / gap`` if
  ``gap >= 2 |F|``; otherwise 2 |F| / gap is above 1, which no difference of projectors exceeds. ∎
* ``|A - (A + E)_k|_2 <= lambda_(k+1) + 2 |E|_2``, and ``lambda_(k+1) + |E|_2`` if E is positive semidefinite. *Proof.*
  ``A - (A + E)_k = R - E``, R what A + E has beyond its k largest eigenvalues. Those of R are between ``-|E|_2`` and
  ``lambda_(k+1) + |E|_2`` (Weyl). If E >= 0, then ``R >= 0`` and ``-|E|_2 <= R - E <= R``. ∎

For a Wishart matrix w <= |E|_2; for a difference of two, w <= |W1|_2 + |W2|_2.
"""

from __future__ import annotations

import math


def wishart_norm(size: int, columns: int, scale: float, failure: float) -> float:
    """Bound the largest eigenvalue of a Wishart matrix, but with a probability.

    Parameters
    ----------
    size, columns
        d and m.
    scale
        s, the eigenvalue of the scale matrix.
    failure
        beta.

    Examples
    --------
    The noise of SN at d = 100, epsilon 1, is 184 as measured; d / (4 epsilon²) is 25:

    >>> round(wishart_norm(100, 101, 0.5, 0.05))
    253
    """
    return scale * (math.sqrt(size) + math.sqrt(columns) + math.sqrt(-2 * math.log(failure))) ** 2


def two_sided_norm(size: int, scale: float, failure: float, rounding: float = 0.0) -> float:
    """Bound the spectral norm of the difference of two Wishart matrices of d + 1 columns, but with a probability.

    The same number bounds either matrix, so their sum, which bounds the width of the noise, is below twice this.

    Parameters
    ----------
    size, scale
        d, and k of :mod:`dpdist.core.mechanisms.wishart` in any unit.
    failure
        beta.
    rounding
        The lattice unit, in the unit of the scale: each of d x d entries of each matrix moves by at most half of it.
    """
    return wishart_norm(size, size + 1, scale, failure / 2) + size * rounding


def lemma_1(size: int, columns: int, scale: float, failure: float) -> float:
    """Return the bound of Jiang, Xie & Zhang on the largest eigenvalue (their lemma 1, after Zhu 2012).

    ``(m + sqrt(2 m theta (d + 2)) + 2 theta d) s`` is exceeded with a probability of at most ``d exp(-theta)``.
    """
    theta = math.log(size / failure)
    return scale * (columns + math.sqrt(2 * columns * theta * (size + 2)) + 2 * theta * size)


def subspace_distance(width: float, gap: float) -> float:
    """Bound ``|P - P'|_2`` by the width of the noise and the gap of the eigenvalues (see the module)."""
    return min(1.0, width / gap) if gap > 0 else 1.0


def captured_loss(width: float, size: int, components: int) -> float:
    """Bound what the private subspace captures less than the best one (see the module)."""
    return min(components, size - components) * width


def low_rank_error(norm: float, next_eigenvalue: float, *, semidefinite: bool) -> float:
    """Bound ``|A - (A + E)_k|_2`` by the norm of the noise and lambda_(k+1) (see the module)."""
    return next_eigenvalue + (1 if semidefinite else 2) * norm
