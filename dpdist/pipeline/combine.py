"""From releases of disjoint rows to their sum."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dpdist.errors import UsageError
from dpdist.pipeline.release import Outcome
from dpdist.release.artefact import Release, open_release
from dpdist.release.combine import combined, write_sum
from dpdist.storage.store import AnyStore, store_at


def combine_releases(releases: Sequence[AnyStore | Release], total: AnyStore, *, disjoint: bool = False) -> Outcome:
    """Write a release.zarr that is the sum of releases of disjoint rows, with their joint guarantee. Free.

    Releases of periods of one table are disjoint, and their sum is as private as the weakest of them. Those of
    different tables are composed, unless their owners say that no row is in two of them. The same sum that stands there
    already is left alone.

    Parameters
    ----------
    releases : sequence of str, path-like or Release
        Second moments of one mechanism, with the same columns, bound and neighbouring relation; some may be sums.
    total : str or path-like
        The folder to write, or its address. The sum is held in memory meanwhile: (d, d) int64.
    disjoint : bool, default False
        Whether the owners of different tables say that no row stands in two of them; of releases with a privacy unit,
        that no unit does.

    Returns
    -------
    Outcome
        The sum, where it stands, and whether it was written now.

    Raises
    ------
    UsageError
        If there are none, or their matrices cannot be added up.
    RefusedError
        If two are of the same rows, or one is not private as claimed.
    DataError
        If one is damaged, the sum leaves 64-bit integers, something else stands at its place, or it cannot be written.

    See Also
    --------
    release_rows : Makes releases.
    fit_components : Components of the sum.

    References
    ----------
    McSherry 2009, Privacy integrated queries (parallel composition); the theorem for periods of one table is in
    :mod:`dpdist.privacy.parallel`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> ask = {"epsilon": 1, "delta": 1e-6, "clip": 4}
    >>> tables = [np.random.default_rng(n).normal(size=(n, 4)) for n in (600, 700)]
    >>> sites = [dpdist.PrivateCovariance(**ask).fit(table).release_ for table in tables]
    >>> found = dpdist.combine_releases(sites, f"{here.name}/sum.zarr", disjoint=True)
    >>> found, found.release.rows, found.release.guarantee
    (Outcome('sum.zarr', released now), 1300, Guarantee(epsilon=1, delta=1e-06, replace-one))
    >>> here.cleanup()
    """
    if isinstance(releases, str | os.PathLike | Release):
        raise UsageError("Releases to combine are given as a list, also a single one.")
    made = combined([each if isinstance(each, Release) else open_release(each) for each in releases], disjoint=disjoint)
    fresh = write_sum(made, total)
    return Outcome(made, store_at(total).address(), fresh)
