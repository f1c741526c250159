"""Components of a release, written as a model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dpdist.answers import model as models
from dpdist.answers.alignment import components_above_noise
from dpdist.answers.captured import components_with_share
from dpdist.answers.components import Components, components
from dpdist.answers.correlation import correlation as correlation_of
from dpdist.answers.correlation import has_correlations, references_of
from dpdist.answers.feasible import nearest
from dpdist.core.pipeline.products import multiplied
from dpdist.core.progress import Progress
from dpdist.core.release.artefact import Release
from dpdist.core.release.opening import open_release
from dpdist.core.storage.arrays import made_from
from dpdist.core.storage.atomic import make_once
from dpdist.core.storage.store import AnyStore, Store, store_at

if TYPE_CHECKING:
    from dpdist.core.runtime.cluster import AnyCluster


class FittedModel(NamedTuple):
    """A model and its release."""

    model: models.Model
    release: Release
    fresh: bool
    """Whether it was written now; False if it already existed."""
    basis: Release
    """The release, or, if asked for, the nearest moment that rows can have, in its place."""
    remark: str = ""
    """What was done to the moment; usually nothing."""


def fit_components(
    release: AnyStore,
    model: AnyStore,
    components: float | None = None,
    *,
    correlation: bool | None = None,
    drop_first: bool = True,
    feasible: bool = False,
    cluster: AnyCluster | None = None,
    progress: Progress | None = None,
) -> FittedModel:
    """Write a model.zarr with the top principal components of a release: free post-processing.

    An existing model with as many components of the same release is kept; nothing else is replaced. A release that does
    not fit in memory is multiplied from the disk.

    Parameters
    ----------
    release : str or path-like
        The release.zarr, or its address.
    model : str or path-like
        The folder to write, or its address.
    components : int or float, default None
        Their number, from 1 to the number of columns; or, below 1, the share of the variance that they capture, by the
        lower end of its interval. None: those that can be distinguished from noise (:mod:`dpdist.answers.overlap`).
    correlation : bool, default None
        Whether to use the correlation matrix: columns are standardised by the release, without those below the noise.
        It needs a release with the mean, or with a centre. None: whether the release has one, and fits in memory.
    drop_first : bool, default True
        Whether to omit the first column of each categorical variable from the correlation matrix: the other columns
        determine it.
    feasible : bool, default False
        Whether to start from the nearest moment that rows of the schema can have (:mod:`dpdist.answers.feasible`): no
        table of two categories has a negative cell.
    cluster : Cluster, dask.distributed.Client or cluster object, default None
        Where to multiply a release that does not fit in memory. None: this process.
    progress : callable, default None
        Called with the current step (str), the number of its parts (int) and their total (int).

    Returns
    -------
    FittedModel
        The model, the release, and whether the model was written now. ``model.components`` is a
        :class:`dpdist.Components`.

    Raises
    ------
    UsageError
        If there are fewer components, none can be distinguished from the noise, or the share cannot be reached.
    DataError
        If there is no release, the target contains something else, or target or cluster cannot be used.

    See Also
    --------
    open_model : Read a model.
    project_rows : Project rows on the components.
    PrivatePCA.from_release : The same as an estimator, without a file.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014 (components of a noisy second moment); Biane 1998 (their alignment with
    the exact ones: :mod:`dpdist.answers.overlap`).

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> release = f"{here.name}/release.zarr"
    >>> rows = np.random.default_rng(2).normal(size=(2000, 6))
    >>> _ = dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=4, release=release).fit(rows)
    >>> fitted = dpdist.fit_components(release, f"{here.name}/model.zarr", 3)
    >>> fitted.model.components, fitted.fresh
    (Components(k=3, d=6, with eigenvalues), True)
    >>> here.cleanup()
    """
    release, target = store_at(release), store_at(model)
    opened = open_release(release)
    correlation = has_correlations(opened) if correlation is None else correlation
    attributes = {
        "format": models.FORMAT, "release_id": opened.release_id, "correlation": correlation or None,
        "references": (list(references_of(opened, drop_first=drop_first)) or None) if correlation else None,
        "feasible": feasible or None,
    }  # fmt: skip
    counted: dict[str, object] = {"k": components} if isinstance(components, int) else {}
    is_new = not made_from(target, "model", **attributes, **counted)
    if is_new:
        target.require_new("model")  # before any computation
    basis, remark = nearest(opened, progress) if feasible else (opened, "")
    if not is_new and counted:
        return FittedModel(models.open_model(target), opened, False, basis, remark)
    standardised = correlation_of(basis, components, drop_first=drop_first) if correlation else None
    fitted_components = standardised.components if standardised else _components_of(basis, release, components, cluster)
    fitted = models.Model(opened.release_id, opened.names, fitted_components, opened.schema, correlation, feasible)
    exists = partial(made_from, target, "model", **attributes, k=len(fitted_components.components))
    fresh = make_once(exists, partial(models.save, fitted, basis, target, standardised))
    return FittedModel(fitted if fresh else models.open_model(target), opened, fresh, basis, remark)


def components_of(
    release: AnyStore, count: float | None, *, cluster: AnyCluster | None = None
) -> tuple[Release, Components]:
    """Return the top components of a release.zarr without writing them: see :func:`fit_components`."""
    release = store_at(release)
    opened = open_release(release)
    return opened, _components_of(opened, release, count, cluster)


def _components_of(opened: Release, release: Store, count: float | None, cluster: AnyCluster | None) -> Components:
    if count is not None and not isinstance(count, int):
        return components_with_share(opened, count)
    if opened.in_memory:
        return components_above_noise(opened) if count is None else components(opened, count)
    with multiplied(release.absolute(), opened.bound.columns, cluster) as product:
        return components_above_noise(opened, product) if count is None else components(opened, count, product)
