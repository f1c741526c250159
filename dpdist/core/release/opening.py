"""Reads a release.zarr, and verifies that its numbers, its bounds, its noise and its guarantee fit together.

A release may come from anyone, and its author can write another that fits as well. That it is the one that
was paid for, only its ledger tells (:mod:`dpdist.core.pipeline.charged`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from msgspec import convert

from dpdist.core.errors import DataError, ResumableError, quiet
from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.gaussian import CalibratedGaussian, mu_squared_of
from dpdist.core.mechanisms.info import Output
from dpdist.core.mechanisms.noise_law import SUM, Noise
from dpdist.core.mechanisms.noise_share import NoiseShare
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.naming import step
from dpdist.core.privacy.accounting import contradicts_itself
from dpdist.core.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.core.release.artefact import FORMAT, Release, release_of
from dpdist.core.release.attributes import Attributes
from dpdist.core.rows.bounding import RowBound, require_unbiased
from dpdist.core.rows.periods import counted_rows
from dpdist.core.storage.arrays import Array, attributes_of, complete_arrays, require_format
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.text import can_be_published
from dpdist.core.triangle import Band

_PURE = {"two-sided-wishart", "laplace", "laplace-published"}
"""Mechanisms of the core whose noise follows from epsilon alone."""
_IN_MEMORY = 256 << 20
"""Larger matrices, in bytes, stay on the disk until they are read in parts."""


@quiet()
def open_release(path: AnyStore) -> Release:
    """Read and verify a release.zarr.

    Parameters
    ----------
    path : str or path-like
        A folder, or an address (``s3://``, ``gs://``, ``az://``).

    Returns
    -------
    Release
        The release. A matrix of more than 256 MiB stays on the disk and is read in parts.

    Raises
    ------
    UsageError
        If the address has an unknown scheme, or contains a password.
    DataError
        If there is no release, or it is damaged or inconsistent.

    See Also
    --------
    release_rows : Makes a release.
    inspect_path : Describes the file at a path in plain values.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> path = f"{here.name}/release.zarr"
    >>> rows = np.random.default_rng(5).normal(size=(500, 3))
    >>> fitted = dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=4, release=path).fit(rows)
    >>> dpdist.open_release(path).guarantee
    Guarantee(epsilon=1, delta=1e-06, replace-one)
    >>> here.cleanup()
    """
    store = store_at(path)
    if str((attributes_of(store) or {}).get("format", "")).startswith("dpdist-matrix/"):
        raise DataError(
            f"{store} is a released matrix, not a second moment of rows. In Python, dpdist.open_matrix reads it, and "
            "numpy.linalg.eigh its matrix."
        )
    info = require_format(
        store,
        FORMAT,
        f"There is no release at {store}. Make one with: {step('release', 'ROWS', store, epsilon='E', delta='D')}",
    )
    require_unbiased(info.get("bound"), store)
    try:
        attributes = convert(info, Attributes)
        bound = RowBound.from_json(attributes.bound)
        moment = registry.mechanism_named(attributes.mechanism).info.output is Output.SECOND_MOMENT
        names = {"lattice"} if moment else {"components"}
        if moment and not attributes.weights:
            names |= {"second_moment", "row_sum"} if bound.constant else {"second_moment"}
        arrays = complete_arrays(store, names)
        stored = arrays["lattice" if moment else "components"]
        if stored.dtype != (np.int64 if moment else np.float64):
            raise TypeError  # noqa: TRY301 - one message for all faults
        release = release_of(attributes, stored if stored.nbytes > _IN_MEMORY else np.asarray(stored[...]))
        sound = _is_sound(release, arrays) and attributes.status == release.status
    except ResumableError:  # the store did not answer
        raise
    except Exception:  # noqa: BLE001 - every library fails differently on a damaged folder
        sound = False
    if not sound:
        raise DataError(
            f"{store} is not a release.zarr, or it is damaged. Move it away and publish it again: the same "
            f"{step('release')} command yields the same bytes at no cost."
        )
    return release


def _is_sound(release: Release, arrays: dict[str, Array]) -> bool:
    """Whether the arrays of a release have the right shapes and agree with each other; reads all of them."""
    answer, d, width = release.answer, release.bound.columns, release.bound.width
    if len(release.names) != d or not (_follows(release) and _agrees(release)):
        return False
    if (frame := release.subspace) is not None:
        k = frame.shape[0]
        return frame.shape == (k, d) and 1 <= k <= d and bool(np.allclose(frame @ frame.T, np.eye(k)))
    moment = arrays.get("second_moment")
    if moment is None:  # a weighted sum of periods
        periods = [extent.stop - extent.start for extent in release.extents if extent.start is not None and extent.stop]
        consistent = periods == [len(release.weights)]
    else:
        consistent = moment.shape == (d, d) and moment.dtype == np.float64
        if consistent and (total := release.row_sum) is not None:
            consistent = np.array_equal(np.asarray(arrays["row_sum"][:]), total)
    if answer.shape != (width, width) or not consistent:
        return False
    if release.corner is not None and int(np.asarray(answer[width - 1 :, width - 1 :])[0, 0]) != release.corner:
        return False
    tiles = ((slice(r.start, r.stop), slice(c.start, c.stop)) for r, c in Band.whole(width).tiles())
    return all(_tile_is_sound(answer, moment, tile, release.bound.unit) for tile in tiles)


def _tile_is_sound(
    answer: Array | npt.NDArray[np.generic], moment: Array | None, index: tuple[slice, slice], unit: float
) -> bool:
    """Whether a tile of the integers mirrors the opposite one, and the second moment follows from them."""
    mirrored = index[::-1]
    tile = np.asarray(answer[index])
    if not np.array_equal(tile, np.asarray(answer[mirrored]).T):
        return False
    if moment is None:
        return True
    expected = tile[: moment.shape[0] - index[0].start, : moment.shape[1] - index[1].start] * (unit * unit)
    return np.array_equal(np.asarray(moment[index]), expected) and np.array_equal(
        np.asarray(moment[mirrored]), expected.T
    )


def _agrees(release: Release) -> bool:
    """Whether names, guarantee and noise say one thing: whatever a program reads of them, it reads the same."""
    guarantee, session, noise = release.guarantee, release.session, release.noise
    if guarantee is not None and (guarantee.neighbours is not release.neighbours or contradicts_itself(guarantee)):
        return False
    for entry, variance in (("diagonal", noise.variance_diagonal), ("off_diagonal", noise.variance_off_diagonal)):
        sigma = noise.details.get(f"sigma_{entry}")  # rounding adds to its square
        if isinstance(sigma, int | float) and variance is not None and variance < (1 - 1e-12) * float(sigma) ** 2:
            return False
    if session is not None and not (release.condition or "").startswith(session.condition(release.unit)):
        return False
    if release.releases and session is None:  # a sum, whose noise is that of its terms
        made_of = sum_id(release.releases, release.condition, release.window)
        return made_of == release.release_id and can_be_published(release.names)
    return noise.law != SUM and _has_the_noise(release) and can_be_published(release.names)


def sum_id(releases: Iterable[str], condition: str | None, window: int | None) -> str:
    """Return the id of a sum of releases: of all, or of its last periods."""
    identity = " ".join(releases) + ("" if window is None else f" last {window}")
    identity += "" if condition is None else f" if {condition}"  # it decides the guarantee
    return f"c-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def _has_the_noise(release: Release) -> bool:
    """Whether the noise of a mechanism of the core is what its guarantee needs, of one draw or of several sites."""
    guarantee, noise = release.guarantee, release.noise
    if (release.session is None) == (noise.law == NoiseShare.law):
        return False
    if (noise.law in {CalibratedGaussian.law, NoiseShare.law}) != (release.mechanism == "gaussian"):
        return False
    if release.mechanism != "gaussian" and release.mechanism not in _PURE:
        return True
    if guarantee is None:
        return False
    bound = release.bound
    query = LatticeQuery(
        bound.width, bound.norm_bound, release.neighbours, _changed_rows(release), bool(bound.unit_norm)
    )  # fmt: skip
    stage = None if release.stage is None else Guarantee.from_json(release.stage.guarantee)
    if release.mechanism == "gaussian":
        return _is_gaussian(release, guarantee, stage, query)
    micro = guarantee.loss.epsilon_micro - (0 if stage is None else stage.loss.epsilon_micro)
    return micro > 0 and _same(registry.calibrated(release.mechanism, query, PrivacyLoss(micro), {}).noise, noise)


def _is_gaussian(release: Release, guarantee: Guarantee, stage: Guarantee | None, query: LatticeQuery) -> bool:
    """Whether the noise has the scales of its mu, after that of a stage; those of sites are rounded up for honest ones.

    So it tells how many of the sites may collude.
    """
    on, off = (release.noise.details.get(f"sigma_{entry}") for entry in ("diagonal", "off_diagonal"))
    squared = guarantee.mu_squared
    if not (isinstance(on, int) and isinstance(off, int) and on > 0 < off) or squared is None:
        return False
    if stage is not None:
        if stage.mu_squared is None or stage.mu_squared <= 0:
            return False
        squared -= stage.mu_squared
    session = release.session
    if session is None:
        expected = CalibratedGaussian(query.size, on, off, guarantee=guarantee).noise
        return squared == mu_squared_of(query, on, off) and _same(expected, release.noise)
    sites = len(session.sites)
    honest = sites - session.colluding
    expected = NoiseShare(query.size, on, off, sites=sites, guarantee=guarantee).noise
    least = mu_squared_of(query, on, off) / honest
    return min(on, off) > 1 and least <= squared < mu_squared_of(query, on - 1, off - 1) / honest and (
        _same(expected, release.noise)
    )  # fmt: skip


def _same(expected: Noise, noise: Noise) -> bool:
    """Whether two noises have one law; the last bits of a variance depend on the platform."""
    return expected.keys() == noise.keys() and all(
        math.isclose(value, noise[name], rel_tol=1e-9) if isinstance(value, float) else value == noise[name]
        for name, value in expected.items()
    )


def _changed_rows(release: Release) -> int:
    """Return the rows by which neighbours differ, each times its weight."""
    unit, extent = release.unit, release.extents[0] if release.extents else None
    if unit is None:
        rows = 1
    elif extent is None or extent.start is None or extent.stop is None:
        rows = unit.counted_rows
    else:
        rows = counted_rows(unit, extent.stop - extent.start, weighted=bool(release.weights))
    return rows * max(release.weights, default=1)


def _follows(release: Release) -> bool:
    """Whether rows were bounded by their schema and as chosen, with a value for each column."""
    bound, schema = release.bound, release.schema
    if (schema is None and bound.whole) or (schema is not None and schema.clipped(bound, bound.clip_norm) != bound):
        return False
    applied = {"clip_norm": bound.clip_norm, "centre": bound.centre, "scale": bound.scale}
    return release.stage is None or all(
        value == applied.get(name, value)
        and (len(value) == bound.columns if isinstance(value, tuple) else name in {"clip_norm", "quantile"})
        for name, value in release.stage.chosen.items()
    )
