"""Private copies of a data matrix: the identity query of Chanyaswad et al. (2018), as published and exactly calibrated.

The package releases second moments; this query is the matrix itself, columns of entries in [-1, 1] by rows, each row
of the table hidden in noise of its own. What calibrates the noise is the package's: the published condition, the
division of precision among directions and the analytic Gaussian profile.

**Sensitivity.** Replacing a row changes m entries by at most 2 each: 2 sqrt(m) in Frobenius norm, 2 m in l1, and
``|X|_F <= sqrt(m n)``; all three are attained at corners of the box.

**True guarantee.** Gaussian noise of variance v_i on column i is exactly mu-GDP with ``mu² = 4 sum_i 1/v_i`` (the loss
between two rows that differ by e is that of a Gaussian with ``mu² = sum_i e_i²/v_i``, largest at a corner). So, unlike
for rows in a ball, precision can be moved between columns here, and directional noise is a real choice: the total
precision is what privacy costs. The published condition asks for a thousand times that noise or more.

**Arithmetic.** Float64: `ideal-real`. It is an experiment, not a release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpdist import PrivacyLoss, UsageError
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.floats import exponentials, gammas, normals
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.literature.mvg import precisions
from papers.common.data import Floats

INFORMATIVE = 2
"""The first columns: they get less noise where noise is directional."""
SHARE = 0.95
"""Of the precision (theorem 2: of its squares), what the informative columns get together."""
METHODS = (
    "MVG, theorem 2",
    "MVG, theorem 2, directional",
    "Gaussian, classical",
    "Laplace",
    "exponential",
    "Gaussian, exact",
    "Gaussian, exact, directional",
)


@dataclass(frozen=True)
class IdentityQuery:
    """A table of n rows and m columns with entries in [-1, 1], released as it is, but for noise."""

    rows: int
    columns: int

    @property
    def frobenius(self) -> float:
        """Sensitivity under replace-one, Frobenius norm."""
        return 2 * math.sqrt(self.columns)

    @property
    def l1(self) -> float:
        """Sensitivity under replace-one, sum of magnitudes."""
        return 2.0 * self.columns

    @property
    def largest(self) -> float:
        """The largest Frobenius norm of a table, the paper's gamma."""
        return math.sqrt(self.rows * self.columns)

    def variances(self, method: str, loss: PrivacyLoss) -> Floats:
        """Return the variance of the noise on an entry of every column, (m,).

        Raises
        ------
        UsageError
            If there is no such method.
        """
        m, n = self.columns, self.rows
        directional = method.endswith("directional")
        allocation = ("binary", INFORMATIVE, SHARE) if directional else ("uniform", 1, 1.0)
        if method.startswith("MVG"):
            # row covariance Sigma, column covariance I: |1/v|_2 sqrt(n) = phi², v the spectrum of Sigma
            squared = theorem_2((m, n), self.largest, self.frobenius, loss)
            found: Floats = 1 / precisions(squared**2 / n, 2, m, *allocation)
            return found
        if method.startswith("Gaussian, exact"):
            mu = 1 / gaussian_sigma(loss)
            return np.asarray(1 / precisions(mu**2 / 4, 1, m, *allocation))
        if method == "Gaussian, classical":
            return np.full(m, 2 * math.log(1.25 / loss.delta) * (self.frobenius / loss.epsilon) ** 2)
        if method == "Laplace":
            return np.full(m, 2 * (self.l1 / loss.epsilon) ** 2)
        if method == "exponential":
            # the radius is a gamma variable of shape mn, the direction uniform
            return np.full(m, (m * n + 1) * (2 * self.frobenius / loss.epsilon) ** 2)
        raise UsageError(f"The identity query has no method {method!r}; it has {', '.join(METHODS)}.")

    def noisy(self, table: Floats, method: str, loss: PrivacyLoss) -> Floats:
        """Return the table plus noise, (n, m); draws anew at every call."""
        m, n = self.columns, self.rows
        variances = self.variances(method, loss)
        if method == "Laplace":
            noise = exponentials(m * n, SYSTEM) - exponentials(m * n, SYSTEM)
            return np.asarray(table + self.l1 / loss.epsilon * noise.reshape(n, m))
        direction = normals(m * n, SYSTEM).reshape(n, m)
        if method == "exponential":
            # density exp(-epsilon |X - R|_F / (2 s)): the quality is minus the distance, of sensitivity s
            radius = gammas(m * n, 1, SYSTEM)[0] * 2 * self.frobenius / loss.epsilon
            return np.asarray(table + radius / np.linalg.norm(direction) * direction)
        return np.asarray(table + direction * np.sqrt(variances))

    def mu_squared(self, variances: Floats) -> float:
        """Return the exact GDP parameter of Gaussian noise, squared."""
        return float(np.sum(4 / variances))


def theorem_2(
    shape: tuple[int, int], largest: float, sensitivity: float, loss: PrivacyLoss, *, printed: bool = False
) -> float:
    """Return what theorem 2 allows for the product of the norms of the spectra of both inverse covariances, phi².

    For queries of any shape; :func:`dpdist.literature.mvg.published_norm` is the square case, and there the condition
    is derived. zeta is taken with its root, as in the proof and in the authors' code: less noise than as printed.

    Parameters
    ----------
    shape
        m and n.
    largest, sensitivity
        gamma and s, Frobenius norm.
    loss
        Epsilon and delta.
    printed
        Take zeta as it is printed, without its root.
    """
    m, n = shape
    log = -math.log(loss.delta)
    zeta = m * n + 2 * math.sqrt(m * n * log) + 2 * log
    zeta = zeta if printed else math.sqrt(zeta)
    harmonic: float = math.fsum(1 / i for i in range(1, min(m, n) + 1))
    roots: float = math.fsum(i**-0.5 for i in range(1, min(m, n) + 1))
    a = (harmonic + roots) * largest**2 + 2 * harmonic * largest * sensitivity
    b = 2 * math.sqrt(math.sqrt(m * n)) * zeta * harmonic * sensitivity
    phi = 4 * loss.epsilon / (b + math.sqrt(b * b + 8 * a * loss.epsilon))
    return phi * phi
