"""`mvg`, `mvg-psd`, `mvg-exact`: matrix-variate Gaussian noise (Chanyaswad, Dytso, Poor & Mittal 2018).

**Distribution.** ``N = Sigma^{1/2} G Psi^{1/2}``, G a d x d matrix of independent standard normals, and the release is
the symmetric part of M + N. `mvg`: Psi = I (unimodal directional noise, theorem 2). `mvg-psd`: Sigma = Psi (equimodal,
theorem 3). `mvg-exact`: Sigma = Psi, of any public shape, scaled to the guarantee below.

**Published conditions.** With s the Frobenius sensitivity, ``gamma = sup |M|_F <= rows C²``, H and H' the sums of 1/i
and 1/sqrt(i) for i <= d, ``zeta² = d² + 2 sqrt(d² L) + 2 L`` with ``L = ln(1/delta)`` (so that ``|G|_F <= zeta`` except
with probability delta; Laurent & Massart 2000, lemma 1), the release is claimed to be (epsilon, delta) if
``phi <= 4 epsilon / (b + sqrt(b² + 8 a epsilon))``, ``b = 2 sqrt(d) zeta H s``, where

    theorem 2:  a = (H + H') gamma² + 2 H gamma s,   phi² = |spectrum of Sigma^{-1}|_2 |spectrum of Psi^{-1}|_2,
    theorem 3:  a = 4 H gamma s,                     phi  = |spectrum of Sigma^{-1}|_2.

The paper prints zeta without the root; its proof needs only the root, which gives less noise.

**Guarantee.** gamma, and so `rows`, plays no role in the true privacy. The loss between moments that differ by D
is that of a Gaussian with ``mu = |Sigma^{-1/2} D Psi^{-1/2}|_F``. Let ``p1 >= p2`` be the largest eigenvalues of
``P = Sigma^{-1}`` (p2 = 0 if d = 1) and ``D = v v^T - w w^T``, ``|v|², |w|² <= S``. D has a positive and a negative
eigenvalue, x and -y, with x, y in [0, S] (Weyl) and orthonormal eigenvectors U = (u1, u2); ``Q = U^T P U``.

* Psi = I: ``mu² = tr(P D²) = x² Q11 + y² Q22 <= S² tr Q <= S² (p1 + p2)`` (Ky Fan).
* Sigma = Psi: ``mu² = tr(P D P D) = x² Q11² + y² Q22² - 2 x y Q12² <= S² |Q|_F² <= S² (p1² + p2²)``, because the
  eigenvalues of Q are below p1 and p2 (Cauchy interlacing).

Add-remove has y = 0: ``S² p1`` and ``S² p1²``. ∎ All four are attained by rows of full norm along the eigenvectors of
p1 and p2, also by the symmetric part alone: v v^T - w w^T is then diagonal in the eigenbasis of Sigma, and symmetrising
does not change the diagonal. So the release is exactly mu-GDP, and only the two directions of least noise matter: more
noise in other directions does not improve privacy, and for rows in a ball isotropic noise is best (`mvg-exact` then has
the distribution of `gaussian`). The published conditions require 10² to 10⁶ times the noise.

**Directions.** A condition bounds a norm of the precisions; an allocation (section 5 of the paper) divides that bound
among public directions: :func:`precisions`. Directions, spectra and covariances are public parameters: if computed from
the rows, they would leak at any noise level.

**Arithmetic.** Normals of 40 fractional bits, float64 products, rounded to the lattice before they are added:
`ideal-real`. mu² is that of the scales in use, raised by 2^-30 for the rounding of the directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.base import Additive, Matrix, Mechanism, proved_at_delta, require_on_lattice
from dpdist.core.mechanisms.info import DeltaUse, Kind, MechanismInfo, Option
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.naming import parameter
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import normals
from dpdist.core.privacy.accounting import gaussian_delta, gaussian_sigma
from dpdist.core.privacy.guarantee import MICRO, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.triangle import Triangle, rounded
from dpdist.literature import ratios
from dpdist.literature.ratios import LogRatio

_MAX_DEVIATION = 2.0**56
"""Largest standard deviation of an entry: sixteen of them stay below the limit of 2^60 units."""
_MARGIN = 1 + Fraction(1, 2**30)  # covers float64 rounding of directions and square roots
_UNIT = 2**160  # mu² is rounded up to a multiple of its inverse
OptionMatrix = tuple[tuple[float, ...], ...]  # the value of a matrix option; empty if omitted

_ALLOCATION_OPTIONS = (
    Option(
        "allocation",
        Kind.WORD,
        "allocation of the noise: uniform, less on some directions, or by water-filling",
        "uniform",
        ("uniform", "binary", "optimal"),
    ),
    Option("informative", Kind.INTEGER, "for binary: number of the first directions with less noise", 1),
    Option("share", Kind.NUMBER, "for binary: their share of the precision, between 0 and 1", 0.75),
    Option(
        "directions",
        Kind.MATRIX,
        "d x d, a public orthonormal direction per row, or a release.zarr: its eigenvectors; default: the columns",
        (),
    ),
    Option("spectrum", Kind.NUMBERS, "for optimal: d public variances of the moment along them, in units of C⁴", ()),
)


_TOLERANCE = 1e-6  # of the orthonormality of directions and the symmetry of a covariance, which are then corrected
_CONDITION = 1e9
"""Largest condition number of a covariance, well below singularity in float64."""
_FLOOR = 2.0**-20
"""Least precision under water-filling, relative to the greatest, because noise must be finite."""


def orthonormal(rows: OptionMatrix, size: int) -> Matrix | None:
    """Return the nearest orthogonal matrix of directions as columns, (d, d), or None for the coordinate axes."""
    if not rows:
        return None
    matrix = np.array(rows)
    if matrix.shape != (size, size) or np.abs(matrix @ matrix.T - np.eye(size)).max() > _TOLERANCE:
        raise UsageError(
            f"The directions must be {size} orthonormal rows of {size} numbers (the constant of "
            f"{parameter('centre', 'private')} counts as a column). Orthonormalise them, or omit the option to use "
            "the columns.",
            parameter="options.directions",
        )
    left, _, right = np.linalg.svd(matrix)
    orthogonal: Matrix = (left @ right).T
    return orthogonal


def _covariance_spectrum(rows: OptionMatrix, size: int) -> tuple[Matrix, Matrix | None]:
    """Return eigenvalues (d,), ascending, and eigenvectors (d, d) of a public covariance, or of the identity."""
    if not rows:
        return np.ones(size), None
    matrix = np.array(rows)
    hint = f"({parameter('options.sigma')})"
    if matrix.shape != (size, size):
        raise UsageError(
            f"The covariance must be {size} x {size}, including the constant of {parameter('centre', 'private')} "
            f"{hint}."
        )
    if np.abs(matrix - matrix.T).max() > _TOLERANCE * np.abs(matrix).max():
        raise UsageError(f"The covariance must be symmetric: pass (Sigma + Sigma^T) / 2 {hint}.")
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if not values[0] * _CONDITION > values[-1]:
        raise UsageError(
            f"The covariance must be positive definite, its largest eigenvalue at most 1e9 times its smallest: add a "
            f"multiple of the identity {hint}."
        )
    return values, vectors


def precisions(
    total: float,
    power: int,
    size: int,
    allocation: str = "uniform",
    informative: int = 1,
    share: float = 0.75,
    spectrum: tuple[float, ...] = (),
) -> Matrix:
    """Divide precision among the directions: ``x_i > 0`` with ``sum x_i^power = total``.

    * uniform: all equal.
    * binary: the first k share tau of the total equally, the others the remainder.
    * optimal: ``x_i = max(level - 1/v_i, 0)``, v the spectrum. Among all positive definite noise precisions K^{-1} of
      equal trace it maximises ``det(I + V K^{-1})``, the power-to-noise ratio of the paper (KKT conditions; with every
      x_i positive the level is ``(trace + sum 1/v_i) / d``). An x_i of 0 (infinite noise) becomes 2^-20 of the
      greatest.
    """
    if allocation == "optimal":
        if len(spectrum) != size or not min(spectrum) > 0:
            raise UsageError(
                f"allocation=optimal needs {size} positive public variances.", parameter="options.spectrum"
            )
        return _water_filling(total, power, np.array(spectrum))
    if spectrum:
        raise UsageError("Only allocation=optimal uses a spectrum: omit it.", parameter="options.spectrum")
    shares = np.full(size, 1 / size)
    if allocation == "binary":
        if not 1 <= informative < size:
            raise UsageError(
                f"Choose 1 to {size - 1} informative directions of {size}.", parameter="options.informative"
            )
        if not 0 < share < 1:
            raise UsageError(
                "The share of the informative directions must be above 0 and below 1.", parameter="options.share"
            )
        shares[:informative] = share / informative
        shares[informative:] = (1 - share) / (size - informative)
    divided: Matrix = (total * shares) ** (1 / power)
    return divided


def _water_filling(total: float, power: int, spectrum: Matrix) -> Matrix:
    gap = 1 / spectrum - 1 / spectrum.max()  # height of the bed above its deepest point

    def filled(depth: float) -> Matrix:
        return np.asarray(np.maximum(depth - gap, _FLOOR * depth))

    low, high = 0.0, total ** (1 / power)  # at this depth the deepest point alone uses the total
    while True:
        depth = (low + high) / 2
        if not low < depth < high:
            return filled(low)  # spends at most the total
        low, high = (low, depth) if np.sum(filled(depth) ** power) > total else (depth, high)


@dataclass(frozen=True, eq=False)
class CalibratedMatrixGaussian(Additive):
    """The symmetric part of matrix-variate Gaussian noise with fixed covariances."""

    eigenvalues: Matrix
    directions: Matrix | None
    two_sided: bool
    guarantee: Guarantee | None
    claim: PrivacyLoss

    @property
    def noise(self) -> Noise:
        values, size = self.eigenvalues, self.eigenvalues.size
        if self.two_sided:
            # Var of the symmetric part: Sigma_ii² on, (Sigma_ii Sigma_jj + Sigma_ij²) / 2 off the diagonal
            squares = values @ values if self.directions is None else np.sum((self.directions**2 @ values) ** 2)
            on = float(squares) / size
            off = (float(values.sum() ** 2 + values @ values) / 2 - float(squares)) / max(1, size * (size - 1))
        else:
            # Sigma_ii on, (Sigma_ii + Sigma_jj) / 4 off the diagonal
            on = float(values.mean())
            off = on / 2
        column = "the same" if self.two_sided else "identity"
        details = {"row_covariance_spectrum": values.tolist(), "column_covariance": column}
        return Noise("matrix-variate-gaussian", variance_diagonal=on, variance_off_diagonal=off, details=details)

    def draw(self, entropy: Entropy) -> Triangle:
        size = self.eigenvalues.size
        root = np.sqrt(self.eigenvalues)
        draws = normals(size * size, entropy).reshape(size, size) * root[:, None]
        if self.two_sided:
            draws *= root
        if self.directions is not None:
            draws = self.directions @ draws
            draws = draws @ self.directions.T if self.two_sided else draws
        return rounded(draws)

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio:
        # of the normals before rounding: in the eigenbasis of Sigma the symmetric part has independent entries, of
        # variance s_i s_j / 2 (two-sided) or (s_i + s_j) / 4 off the diagonal, and twice that on it
        values = self.eigenvalues
        variance = np.outer(values, values) / 2 if self.two_sided else np.add.outer(values, values) / 4
        np.fill_diagonal(variance, 2 * np.diag(variance))
        return ratios.gaussian(moment, neighbour, variance, self.directions)


def _mu_squared(query: LatticeQuery, eigenvalues: Matrix, *, two_sided: bool) -> Fraction:
    """Return mu² by the theorem of the module, rounded up."""
    count = 2 if query.neighbours is Neighbours.REPLACE_ONE else 1
    least = [Fraction(float(value)) for value in np.sort(eigenvalues)[:count]]
    exact = query.bound**2 * sum((1 / value ** (2 if two_sided else 1) for value in least), Fraction(0))
    return Fraction(math.ceil(exact * _MARGIN * _UNIT), _UNIT)


def _calibrated(
    query: LatticeQuery, loss: PrivacyLoss, eigenvalues: Matrix, directions: Matrix | None, *, two_sided: bool
) -> CalibratedMatrixGaussian:
    largest = float(eigenvalues.max())
    deviation = largest if two_sided else math.sqrt(largest)
    require_on_lattice(
        query, loss, deviation, _MAX_DEVIATION, or_else="a larger epsilon, or distribute the noise more evenly"
    )
    mu_squared = _mu_squared(query, eigenvalues, two_sided=two_sided)
    true_delta = gaussian_delta(Fraction(loss.epsilon_micro, MICRO), mu_squared)
    guarantee = proved_at_delta(query, loss, true_delta, __name__, mu_squared=mu_squared)
    return CalibratedMatrixGaussian(eigenvalues, directions, two_sided, guarantee, loss)


def published_norm(query: LatticeQuery, loss: PrivacyLoss, rows: int, *, two_sided: bool) -> float:
    """Return the largest phi the published theorems allow, in units where C = 1 (see the module)."""
    d, epsilon, log = query.size, loss.epsilon, -math.log(loss.delta)
    sensitivity = math.sqrt(query.frobenius_squared) / query.bound
    zeta = math.sqrt(d * d + 2 * d * math.sqrt(log) + 2 * log)
    harmonic = math.fsum(1 / i for i in range(1, d + 1))
    roots = math.fsum(i**-0.5 for i in range(1, d + 1))
    b = 2 * math.sqrt(d) * zeta * harmonic * sensitivity
    if two_sided:
        a = 4 * harmonic * rows * sensitivity
    else:
        a = (harmonic + roots) * float(rows) ** 2 + 2 * harmonic * rows * sensitivity
    return 4 * epsilon / (b + math.sqrt(b * b + 8 * a * epsilon))


class Published:
    """Matrix-variate noise by the paper's condition: theorem 3 if two-sided, else theorem 2."""

    def __init__(self, *, two_sided: bool) -> None:
        self._two_sided = two_sided
        self.info = MechanismInfo(
            name="mvg-psd" if two_sided else "mvg",
            law=f"symmetric part of Sigma^{{1/2}} G{' Sigma^{1/2}' if two_sided else ''}, G normal; directional",
            sensitivity="Frobenius: sqrt(2) C² replace-one (C² if d = 1), C² add-remove (tight); |M|_F <= rows C²",
            claimed="(epsilon, delta)",
            proved="(epsilon, delta), exactly mu-GDP with far smaller mu: gaussian needs a hundredth of the noise or "
            "less; rows does not affect the true privacy",
            cost="d² normals" + (", two d x d products with directions" if two_sided else ", one d x d product"),
            reference="Chanyaswad, Dytso, Poor & Mittal 2018, theorem " + ("3" if two_sided else "2"),
            delta=DeltaUse.REQUIRED,
            options=(
                Option("rows", Kind.INTEGER, "a public upper bound on the number of rows, for |M|_F <= rows C²"),
                *_ALLOCATION_OPTIONS,
            ),
        )

    def calibrate(
        self,
        query: LatticeQuery,
        loss: PrivacyLoss,
        *,
        rows: int,
        allocation: str,
        informative: int,
        share: float,
        directions: OptionMatrix,
        spectrum: tuple[float, ...],
    ) -> CalibratedMatrixGaussian:
        """Return noise that meets the published condition with equality, allocated by the options."""
        if not 1 <= rows <= 1 << 62:
            raise UsageError("The bound on the number of rows must be between 1 and 2^62.", parameter="options.rows")
        phi = published_norm(query, loss, rows, two_sided=self._two_sided)
        basis = orthonormal(directions, query.size)
        spread = (allocation, informative, share, spectrum)
        if self._two_sided:
            # noise of variance sigma² between equal directions: x = 1 / sigma², sum x = phi²
            eigenvalues = query.bound / np.sqrt(precisions(phi**2, 1, query.size, *spread))
        else:
            # noise of variance sigma along a direction: x = 1 / sigma, sqrt(sum x²) sqrt(d) = phi²
            eigenvalues = float(query.bound) ** 2 / precisions(phi**4 / query.size, 2, query.size, *spread)
        return _calibrated(query, loss, eigenvalues, basis, two_sided=self._two_sided)


class Exact:
    """Matrix-variate noise of a public shape, scaled to meet (epsilon, delta) exactly."""

    info = MechanismInfo(
        name="mvg-exact",
        law="symmetric part of c Sigma^{1/2} G Sigma^{1/2}, G normal, Sigma public",
        sensitivity="|Sigma^{-1/2} D Sigma^{-1/2}|_F: C² sqrt(p1² + p2²) replace-one, C² p1 add-remove (tight), "
        "p the largest eigenvalues of Sigma^{-1}",
        claimed="(epsilon, delta)",
        proved="(epsilon, delta), exactly mu-GDP; only the two smallest eigenvalues of Sigma count, so for rows in a "
        "ball Sigma = I, which is gaussian, dominates every other",
        cost="d² normals, two d x d products",
        reference="theorem in dpdist.literature.mvg; distribution of Chanyaswad, Dytso, Poor & Mittal 2018",
        delta=DeltaUse.REQUIRED,
        options=(Option("sigma", Kind.MATRIX, "d x d, public, symmetric, positive definite; default: identity", ()),),
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss, *, sigma: OptionMatrix) -> CalibratedMatrixGaussian:
        """Return the least multiple of Sigma that keeps (epsilon, delta)."""
        shape, directions = _covariance_spectrum(sigma, query.size)
        shape = shape / shape[0]
        sensitivity = math.sqrt(_mu_squared(query, shape, two_sided=True))
        scale = sensitivity * gaussian_sigma(loss) * (1 + 2.0**-29)  # the margin of mu² and the rounding of the scales
        calibrated = _calibrated(query, loss, scale * shape, directions, two_sided=True)
        if calibrated.guarantee is None or calibrated.guarantee.loss != loss:
            raise AssertionError("the rounding of the scales exceeds the margin")
        return calibrated


MECHANISMS: tuple[Mechanism, ...] = (Published(two_sided=False), Published(two_sided=True), Exact())
