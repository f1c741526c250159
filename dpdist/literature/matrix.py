"""Private releases of any symmetric matrix, such as a kernel, a Laplacian or a Hessian, with a declared sensitivity.

The user computes the matrix M and declares how far two neighbouring matrices can be apart: in Frobenius norm, in
nuclear norm, or in the l1 norm of the upper triangle with the diagonal. **The declaration is not verified**: if it is
too small, the guarantee is void, so every output names it as declared. From there on, everything is as for a second
moment: integers, one charge before one draw, and the committed bytes again for each repetition.

**Lattice.** M is rounded to multiples of the unit ``u = 2^e``, which follows from public numbers: the sensitivity S in
the norm of the mechanism is at least ``2^12`` times the rounding of that norm, so rounding adds at most 0.05 % to the
noise (proof of the bound: :mod:`dpdist.core.mechanisms.sensitivity`). ``M/u`` is exact in float64, as u is a power of
two, and an entry below ``2^62 u`` is an integer of 63 bits.

**Mechanism.** `gaussian` with a delta. Without one, the smaller of two noises in spectral norm, by the rule of theorem
5 of Jiang, Xie & Zhang (2016) with its constant. For sensitivities N (nuclear) and L (l1 of the triangle) the norm of
`two-sided-wishart` is near ``1.665 d N / epsilon`` (the edge of the difference of two Marchenko-Pastur laws of ratio 1,
``3.330 d k`` with ``k = N / (2 epsilon)``), and that of `laplace` near ``2.828 sqrt(d) L / epsilon`` (semicircle). So
`two-sided-wishart` is taken from ``L / N = 0.589 sqrt(d)`` on.

**Identity.** The id follows from a random token, which the state folder keeps for the contents of the matrix
(:func:`dpdist.core.ledger.state_folder.identity_of`), and from the parameters: it contains nothing of the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, cast

import numpy as np
import numpy.typing as npt
import zarr
from msgspec import Meta, Struct, convert
from zarr.storage import MemoryStore

from dpdist.core._version import __version__
from dpdist.core.errors import DataError, ResumableError, UsageError
from dpdist.core.frames import converted, is_a, require_table
from dpdist.core.html import table
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.mechanisms.base import Calibrated
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.mechanisms.registry import calibrated
from dpdist.core.mechanisms.sensitivity import NORMS, DeclaredQuery, ceil_sqrt, implied_squares
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.naming import parameter
from dpdist.core.privacy.guarantee import Guarantee, GuaranteeJson, Neighbours, PrivacyLoss
from dpdist.core.release import archive
from dpdist.core.release.request import exact_fraction
from dpdist.core.release.trusted import noisy_answer, require_remembered
from dpdist.core.storage.arrays import Text, complete_arrays, put_array, require_format
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.text import exactly
from dpdist.core.triangle import Triangle, packed, unpacked

FORMAT = "dpdist-matrix/1"
Floats = npt.NDArray[np.float64]
_ROUNDING = 2**12
_BITS = 62
_DIGITS = 30  # of a sensitivity as typed
_RATIO = Fraction(3466, 10000)  # (1.665 / 2.828)²
_OF_MECHANISM = {"gaussian": "frobenius", "two-sided-wishart": "nuclear", "laplace": "l1"}
_WORDS = {"frobenius": "Frobenius norm", "nuclear": "nuclear norm", "l1": "l1 norm of the upper triangle"}


def _to_json(declared: tuple[tuple[str, Fraction], ...]) -> dict[str, str]:
    return {norm: str(value) for norm, value in declared}


@dataclass(frozen=True, eq=False)
class MatrixRelease:
    """A released symmetric matrix: the matrix plus noise, for a sensitivity that its user declared. Public.

    Attributes
    ----------
    release_id : str
        Its id.
    mechanism : str
        The mechanism that was chosen.
    guarantee : Guarantee
        Proved if the declared sensitivity is right.
    declared : tuple of (str, Fraction)
        Norm and declared sensitivity.
    noise : Noise
        Distribution of the noise, in multiples of the unit.
    exponent : int
        The unit is 2 to this power.
    ledger_head : str
        Head of the ledger's journal before the draw.
    lattice : ndarray of int64, (d, d)
        The released integers, in multiples of the unit.
    condition : str or None
        A person's statement about the ledger's past on which the guarantee depends; None: it is unconditional.

    See Also
    --------
    release_matrix : Makes one.
    open_matrix : Reads one.

    Examples
    --------
    Not run here:

    >>> import numpy as np
    >>> import dpdist
    >>> release = dpdist.open_matrix("out.zarr")  # doctest: +SKIP
    >>> values, vectors = np.linalg.eigh(release.matrix)  # doctest: +SKIP
    """

    release_id: str
    mechanism: str
    guarantee: Guarantee
    declared: tuple[tuple[str, Fraction], ...]
    noise: Noise
    exponent: int
    ledger_head: str
    lattice: npt.NDArray[np.int64]
    condition: str | None = None

    @property
    def matrix(self) -> Floats:
        """The released matrix in the units of the input, (d, d) float64."""
        return np.ldexp(self.lattice.astype(np.float64), self.exponent)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise off the diagonal (on it, if d is 1), in the units of the input."""
        off, on = self.noise.variance_off_diagonal, self.noise.variance_diagonal
        return math.ldexp(math.sqrt((off if len(self.lattice) > 1 else on) or 0.0), self.exponent)

    def __repr__(self) -> str:
        return f"MatrixRelease({self.mechanism}, d={len(self.lattice)}, {self.guarantee.loss}, declared sensitivity)"

    def _repr_html_(self) -> str:
        return table("MatrixRelease", {"mechanism": self.mechanism, "guarantee": str(self.guarantee.loss),
                                       "condition": self.condition or "none",
                                       "sensitivity": self.sensitivity_message})  # fmt: skip

    @property
    def sensitivity_message(self) -> str:
        """The declared sensitivity, and the one that the noise is calibrated for if it is implied by it."""
        stated = ", ".join(f"{_WORDS[norm]} {exactly(float(value))}" for norm, value in self.declared)
        used = _OF_MECHANISM[self.mechanism]
        square = implied_squares(dict(self.declared), len(self.lattice))[used]
        implied = f"; it implies {_WORDS[used]} {math.sqrt(square):.4g}"
        if square in [value**2 for norm, value in self.declared if norm == used]:
            implied = ""
        return f"DECLARED, not verified: {stated}{implied}"

    @property
    def guarantee_message(self) -> str:
        """The guarantee, as part of a sentence."""
        guarantee = self.guarantee
        text = f"{guarantee.loss}, {guarantee.neighbours}, {guarantee.arithmetic}"
        return text if self.condition is None else f"{text}, if {self.condition}"

    def describe(self) -> str:
        """Return a description in sentences."""
        return (
            f"{self.release_id}: {len(self.lattice)} x {len(self.lattice)}, {self.mechanism}, "
            f"{self.guarantee_message}. Sensitivity: {self.sensitivity_message}. Noise off the diagonal: standard "
            f"deviation {self.deviation:.3g}."
        )

    def attributes(self) -> dict[str, object]:
        """Return the public metadata as JSON values."""
        return {
            "format": FORMAT,
            "library": f"dpdist {__version__}",
            "release_id": self.release_id,
            "mechanism": self.mechanism,
            "guarantee": self.guarantee.to_json(),
            "declared_sensitivity": _to_json(self.declared),
            "noise": self.noise.to_json(),
            "unit_exponent": self.exponent,
            "ledger_head": self.ledger_head,
            **({} if self.condition is None else {"condition": self.condition}),
        }


class Attributes(Struct, frozen=True):
    """The stored attributes of a matrix, which may come from anyone."""

    release_id: Text
    mechanism: Text
    guarantee: GuaranteeJson
    # a fraction by norm; not the text of any number, such as 1e999999999
    declared_sensitivity: dict[str, Annotated[str, Meta(pattern=r"^[0-9]{1,99}(/[0-9]{1,99})?\Z")]]
    noise: dict[str, Any]
    unit_exponent: int
    ledger_head: Text
    condition: Text | None = None
    library: Text = ""  # that wrote it


def open_matrix(path: AnyStore) -> MatrixRelease:
    """Read a released matrix.

    Parameters
    ----------
    path : str or path-like
        What :func:`dpdist.release_matrix` wrote, or its address.

    Returns
    -------
    MatrixRelease
        The release, verified against the checksums of its chunks.

    Raises
    ------
    DataError
        If it is something else, or damaged.

    See Also
    --------
    release_matrix : Makes one.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> made = dpdist.release_matrix(
    ...     np.eye(4), f"{here.name}/out.zarr", epsilon=1, delta=1e-6, frobenius=1, ledger=f"{here.name}/people.ledger"
    ... )
    >>> release = dpdist.open_matrix(f"{here.name}/out.zarr")
    >>> release, bool(np.array_equal(release.matrix, made.matrix)), round(release.deviation, 1)
    (MatrixRelease(gaussian, d=4, epsilon 1, delta 1e-06, declared sensitivity), True, 3.0)
    >>> here.cleanup()
    """
    store = store_at(path)
    info = require_format(store, FORMAT, f"{store} is not a released matrix: it does not exist.")
    try:
        arrays, stored = complete_arrays(store, {"lattice", "matrix"}), convert(info, Attributes)
        lattice, guarantee = np.asarray(arrays["lattice"][...]), Guarantee.from_json(stored.guarantee)
        release = MatrixRelease(
            stored.release_id, stored.mechanism, guarantee,
            tuple((norm, Fraction(value)) for norm, value in stored.declared_sensitivity.items()),
            Noise.from_json(stored.noise), stored.unit_exponent, stored.ledger_head, lattice, stored.condition,
        )  # fmt: skip
        asked = MatrixRequest.of(guarantee.loss, dict(release.declared), len(lattice), guarantee.neighbours)
        sound = (
            lattice.dtype == np.int64
            and {norm for norm, _ in release.declared} <= set(NORMS)
            and (asked.mechanism, asked.exponent) == (release.mechanism, release.exponent)
            and (asked.calibrated.guarantee, asked.calibrated.noise.to_json()) == (guarantee, release.noise.to_json())
            and np.array_equal(np.asarray(arrays["matrix"][...]), release.matrix)
        )
    except ResumableError:  # the store did not answer
        raise
    except Exception:  # noqa: BLE001 - every library fails differently on a damaged folder
        sound = False
    if not sound:
        raise DataError(f"{store} is a damaged release. Move it away, and repeat its command, which is free.")
    return release


def require_recorded(ledger: Ledger, target: AnyStore) -> MatrixRelease:
    """Open a released matrix; refuse a ledger without its record, as for other releases."""
    release = open_matrix(target)
    require_remembered(ledger, target, release.release_id, release.ledger_head)
    return release


def lattice_of(matrix: npt.ArrayLike, exponent: int) -> Triangle:
    """Return a checked matrix in multiples of ``2**exponent``, packed."""
    with np.errstate(over="ignore"):
        values = np.ldexp(checked(matrix), -exponent)
    if np.abs(values).max(initial=0) >= 2.0**_BITS:
        raise DataError(
            "An entry of the matrix exceeds the 64-bit lattice, which at this sensitivity ends at "
            f"{math.ldexp(1, _BITS + exponent):.3g}. Nothing was spent. Declare the sensitivity in units of the matrix."
        )
    return packed(np.rint(values).astype(np.int64))


def checked(matrix: Any) -> Floats:
    """Return a symmetric matrix of finite numbers as float64, (d, d), or refuse it."""
    rows = matrix if isinstance(matrix, list | tuple) else ()
    if any(isinstance(each, np.ma.MaskedArray) for each in (matrix, *rows)):
        raise DataError("The matrix is a masked array. Fill the masked entries: M.filled(0).")
    require_table(matrix, "matrix")
    labels = [[*matrix.index], [*matrix.columns]] if is_a(matrix, "pandas", "DataFrame") else [[], []]
    if labels[0] != labels[1] and set(labels[0]) == set(labels[1]):
        raise DataError("The matrix has its rows in another order than its columns. Pass M.loc[M.columns].")
    given = converted(matrix, "matrix", np.asarray)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or not given.size:
        raise DataError(f"A symmetric matrix has shape (d, d), not {given.shape}.")
    exact = given.dtype.kind in "iu" or (given.dtype.kind == "f" and given.dtype.itemsize <= 8)
    if not exact:
        raise DataError(f"The matrix has the type {given.dtype}. It must consist of real numbers of at most 64 bits.")
    values = given.astype(np.float64) + 0.0  # minus zero becomes zero: equal matrices have one identity
    if given.dtype.kind in "iu" and np.any((given > 2**53) | (given < -(2**53) if given.dtype.kind == "i" else False)):
        raise DataError("An integer of the matrix exceeds 2^53, which float64 cannot hold. Divide the matrix.")
    if not np.isfinite(values).all():
        raise DataError("An entry of the matrix is not finite. Replace it: NaN and infinity have no noisy value.")
    if not np.array_equal(values, values.T):
        for stored, other, shift in (("triu", "tril", 1), ("tril", "triu", -1)):
            if not getattr(np, other)(values, -shift).any():
                raise DataError(
                    "The matrix is not symmetric: one triangle of it is zero, as if each entry was stored once. Pass "
                    f"M + numpy.{stored}(M, {shift}).T, which has it twice, and declare the sensitivity of that matrix."
                )
        raise DataError("The matrix is not symmetric. Pass (M + M.T) / 2, which changes no bound on its sensitivity.")
    return values


def _sensitivity(value: object) -> Fraction:
    """Return a declared sensitivity exactly; 0 if it is none."""
    text = str(value)
    return value if isinstance(value, Fraction) else exact_fraction(text) if len(text) <= _DIGITS else Fraction(0)


@dataclass(frozen=True)
class MatrixRequest:
    """A release of a symmetric (d, d) matrix, described by public parameters."""

    loss: PrivacyLoss
    declared: tuple[tuple[str, Fraction], ...]  # norm and sensitivity
    size: int
    neighbours: Neighbours

    @classmethod
    def of(
        cls, loss: PrivacyLoss, declared: Mapping[str, object], size: int, neighbours: Neighbours
    ) -> MatrixRequest:  # fmt: skip
        """Return the request for sensitivities as typed; at least one is not None."""
        known = {norm: _sensitivity(value) for norm, value in declared.items() if value is not None}
        if not known:
            raise UsageError(
                f"Declare how far two neighbouring matrices can be apart: {parameter('frobenius')}, "
                f"{parameter('nuclear')} or {parameter('l1')}. Derive it on paper, never from the matrix."
            )
        if wrong := [norm for norm, value in known.items() if value <= 0]:
            raise UsageError(
                "A sensitivity must be a positive number of at most 30 digits, from 1e-9 to below 1e10. Otherwise "
                "scale the matrix and its sensitivity.",
                parameter=wrong[0],
            )
        return cls(loss, tuple(known.items()), size, neighbours)

    @cached_property
    def _squares(self) -> dict[str, Fraction]:
        return implied_squares(dict(self.declared), self.size)

    @property
    def mechanism(self) -> str:
        """The mechanism, by the rule of the module."""
        if self.loss.delta_atto:
            return "gaussian"
        l1, nuclear = self._squares["l1"], self._squares["nuclear"]
        return "two-sided-wishart" if l1 >= _RATIO * self.size * nuclear else "laplace"

    @property
    def norm(self) -> str:
        """The norm that its noise is calibrated in."""
        return _OF_MECHANISM[self.mechanism]

    @property
    def exponent(self) -> int:
        """The unit is 2 to this power."""
        d = self.size
        rounding = {"frobenius": d, "nuclear": d * (d + 2) + ceil_sqrt(Fraction(d) ** 3), "l1": d * (d + 1) // 2}
        square = self._squares[self.norm] / (_ROUNDING * rounding[self.norm]) ** 2
        return (square.numerator.bit_length() - square.denominator.bit_length() - 1) // 2

    @cached_property
    def calibrated(self) -> Calibrated:
        """The mechanism, calibrated for the declared sensitivity and the rounding."""
        query = DeclaredQuery.of(dict(self.declared), self.size, Fraction(2) ** self.exponent, self.neighbours)
        try:
            return calibrated(self.mechanism, query, self.loss)
        except UsageError:
            raise UsageError(
                f"At {self.loss} and {self.size} columns the noise exceeds the 64-bit lattice. Use a larger epsilon."
            ) from None

    def parameters(self, identity: str, unit: object) -> dict[str, object]:
        """Return what the ledger records: the token of the matrix, the request, and the ledger's privacy unit."""
        return {
            "matrix": identity,
            "columns": self.size,
            "mechanism": self.mechanism,
            "epsilon_micro": self.loss.epsilon_micro,
            "delta_atto": self.loss.delta_atto,
            "neighbours": self.neighbours.value,
            "declared_sensitivity": _to_json(self.declared),
            **({} if unit is None else {"unit": unit}),
        }

    def drawn(
        self, release_id: str, lattice: Triangle, ledger_head: str, condition: str | None
    ) -> Iterator[bytes]:  # fmt: skip
        """Draw the noise once and yield the archive, without the exact matrix."""
        ((_, noisy),) = noisy_answer(self.calibrated, self.size, MomentMatrix(lattice, self.size), None)
        guarantee = cast("Guarantee", self.calibrated.guarantee)
        release = MatrixRelease(
            release_id, self.mechanism, guarantee, self.declared, self.calibrated.noise, self.exponent, ledger_head,
            unpacked(cast("Triangle", noisy), self.size), condition,
        )  # fmt: skip
        store = MemoryStore()
        group = zarr.create_group(store=store, zarr_format=3, attributes={"dpdist": release.attributes()})
        put_array(group, "lattice", release.lattice)
        put_array(group, "matrix", release.matrix)
        return archive.tarred(store)
