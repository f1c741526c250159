"""From a release to its components: the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dpdist._util.text import listed
from dpdist.answers.captured import holding
from dpdist.errors import DataError, UsageError
from dpdist.moment.operator import Matrix
from dpdist.naming import parameter
from dpdist.pca import eigen
from dpdist.pca import model as models
from dpdist.pca.alignment import counted_components
from dpdist.pca.components import Components, components
from dpdist.pca.correlation import correlation as correlation_of
from dpdist.release.artefact import Release, open_release
from dpdist.runtime.cluster import Cluster, chosen
from dpdist.runtime.local import Engine, Work
from dpdist.storage.arrays import ROOT, attributes_of
from dpdist.storage.atomic import make_once
from dpdist.storage.store import AnyStore, Store, store_at


class FittedModel(NamedTuple):
    """A model that was written, and where it is from.

    Attributes
    ----------
    model : Model
        The components, with the release's id and column names.
    release : Release
        The release they were taken from.
    fresh : bool
        Whether it was written now; False: as many components of the same release stood there already.
    """

    model: models.Model
    release: Release
    fresh: bool


def fit_components(
    release: AnyStore,
    model: AnyStore,
    components: float | None = None,
    *,
    correlation: bool = False,
    drop_first: bool = False,
    cluster: Cluster | None = None,
) -> FittedModel:
    """Write a model.zarr with the top principal components of a release: free post-processing.

    As many components of the same release that stand there already are left alone; nothing else is replaced. A release
    that is too large for memory is multiplied from the disk: on the cluster if a scheduler or a number of workers is
    named, else in this process.

    Parameters
    ----------
    release : str or path-like
        The release.zarr, or its address.
    model : str or path-like
        The folder to write, or its address.
    components : int or float, default None
        How many, from 1 to the number of columns; or below 1 the share of the variance that they shall hold, by the
        lower end of its interval. None: those that can be told from noise (:mod:`dpdist.pca.overlap`).
    correlation : bool, default False
        Whether to take the components of the correlation matrix: of columns that are standardised by what was released,
        without those that do not stand above the noise. It needs a release with its mean or of rows that were shifted
        by a centre.
    drop_first : bool, default False
        With ``correlation``, whether to leave out the first column of each categorical variable of the schema: with all
        of them a component sets one category against the others.
    cluster : Cluster, default None
        Where to multiply a release that is too large for memory. None: in this process.

    Returns
    -------
    FittedModel
        The model, the release it was taken from, and whether it was written now. ``model.components`` is a
        :class:`dpdist.Components`.

    Raises
    ------
    UsageError
        If there are not so many components, the release is drowned in noise, none can be told from it, or those that
        can hold no such share for sure.
    DataError
        If there is no release, something else stands at the target, it cannot be written, or the cluster cannot be
        used.

    See Also
    --------
    open_model : Read it again.
    project_rows : Rows in the coordinates of the components.
    PrivatePCA.from_release : The same as an estimator, without a file.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014 (components of a noisy second moment); Biane 1998 (how well each is aligned
    with the exact one: :mod:`dpdist.pca.overlap`).

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> release = f"{here.name}/release.zarr"
    >>> rows = np.random.default_rng(2).normal(size=(2000, 6))
    >>> fitted = dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=4, release=release).fit(rows)
    >>> found = dpdist.fit_components(release, f"{here.name}/model.zarr", 3)
    >>> found.model.components, found.fresh
    (Components(k=3, d=6, with eigenvalues), True)
    >>> here.cleanup()
    """
    release, target = store_at(release), store_at(model)
    opened = open_release(release)
    if drop_first and not correlation:
        raise UsageError(f"{parameter('drop_first')} is for components of the correlation matrix.")
    made = {
        "format": models.FORMAT, "release_id": opened.release_id, "correlation": correlation or None,
        "drop_first": drop_first or None,
    }  # fmt: skip
    counted = isinstance(components, int)
    if not made_from(target, "model", **made, **({"k": components} if counted else {})):
        target.require_new("model")  # before there is any work
    elif counted:
        return FittedModel(models.open_model(target), opened, fresh=False)
    standardised = correlation_of(opened, components, drop_first=drop_first) if correlation else None
    taken = standardised.components if standardised else _components_of(opened, release, components, cluster)
    found = models.Model(opened.release_id, opened.names, taken, opened.schema, correlation)
    there = partial(made_from, target, "model", **made, k=len(taken.components))
    if make_once(there, partial(models.save, found, opened, target, standardised)):
        return FittedModel(found, opened, fresh=True)
    return FittedModel(models.open_model(target), opened, fresh=False)


def components_of(
    release: AnyStore, count: float | None, *, cluster: Cluster | None = None
) -> tuple[Release, Components]:
    """Take the top components of a release.zarr, as :func:`fit_components`, and write nothing."""
    release = store_at(release)
    opened = open_release(release)
    return opened, _components_of(opened, release, count, cluster)


def _components_of(opened: Release, release: Store, count: float | None, cluster: Cluster | None) -> Components:
    if count is not None and not isinstance(count, int):
        return holding(opened, count)
    if opened.in_memory:
        return counted_components(opened) if count is None else components(opened, count)
    with chosen(cluster).connected() as engine:
        product = _release_product(release.absolute(), opened.bound.columns, engine)
        return counted_components(opened, product) if count is None else components(opened, count, product)


def _release_product(release: Store, size: int, engine: Engine) -> Callable[[Matrix], Matrix]:
    """Return the function that multiplies a released second moment."""
    resources = engine.resources()
    runs = eigen.tile_rows(size, resources.slots)
    keep = size * size * 8 <= resources.memory // 2  # any process may get any rows
    engine.require_visible(release, ROOT)

    def product(vectors: Matrix) -> Matrix:
        work = Work(
            "multiply", eigen.rows_product, eigen.ProductTask(release, range(size), vectors, keep), runs, eigen.joined
        )
        return engine.reduce(work, eigen.stacked, label=None)

    return product


def made_from(place: AnyStore, what: str, **expected: object) -> bool:
    """Say whether a model or scores in a store carry these attributes; refuse to take it for another's."""
    store = store_at(place)
    if not store.exists():
        return False
    info = attributes_of(store) or {}
    if other := [key for key, value in expected.items() if info.get(key) != value]:
        raise DataError(
            f"{store} exists already and was made from something else, or is no {what}: its {listed(other)} "
            f"{'differs' if len(other) == 1 else 'differ'}. Name another place."
        )
    return True
