"""From a release to its components: the model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from dpdist._util.text import listed
from dpdist.errors import DataError
from dpdist.moment.operator import Matrix
from dpdist.pca import eigen
from dpdist.pca import model as models
from dpdist.pca.components import Components, components
from dpdist.pca.scree import above_noise
from dpdist.release.artefact import Release, open_release
from dpdist.runtime import engine
from dpdist.runtime.cluster import Cluster
from dpdist.storage.arrays import ROOT, attributes_of
from dpdist.storage.atomic import make_once
from dpdist.storage.store import AnyStore, Store, store_at


def fit_components(
    release: AnyStore, target: AnyStore, count: int | None, *, cluster: Cluster | None = None
) -> tuple[models.Model, Release, bool]:
    """Write model.zarr with the top components of a release; None takes those that stand above its noise.

    Return the model, the release it was taken from, and whether it was written now: as many components of the same
    release that stand there already are left alone.

    A release that is too large for memory is multiplied from the disk: on the cluster if a scheduler or a number of
    workers is named, else in this process.

    Raises
    ------
    DataError
        If there is no release, something else stands at the target, or it cannot be written, or the cluster cannot be
        used.
    UsageError
        If there are not so many components, the release is drowned in noise, or none stands above it.
    """
    release, target = store_at(release), store_at(target)
    opened = open_release(release)
    made = {"format": models.FORMAT, "release_id": opened.release_id}
    if not made_from(target, "model", **made, **({} if count is None else {"k": count})):
        target.require_new("model")  # before there is any work
    elif count is not None:
        return models.open_model(target), opened, False
    taken = _components_of(opened, release, count, cluster)
    found = models.Model(opened.release_id, opened.names, taken)
    there = partial(made_from, target, "model", **made, k=len(taken.components))
    if make_once(there, partial(models.save, found, opened, target)):
        return found, opened, True
    return models.open_model(target), opened, False


def components_of(
    release: AnyStore, count: int | None, *, cluster: Cluster | None = None
) -> tuple[Release, Components]:
    """Take the top components of a release.zarr, as :func:`fit_components`, and write nothing."""
    release = store_at(release)
    opened = open_release(release)
    return opened, _components_of(opened, release, count, cluster)


def _components_of(opened: Release, release: Store, count: int | None, cluster: Cluster | None) -> Components:
    with ExitStack() as stack:
        product = None
        if not opened.in_memory:
            nodes = stack.enter_context(cluster.connected()) if cluster is not None and cluster.named else None
            product = _release_product(release.absolute(), opened.bound.columns, nodes)
        return above_noise(opened, product) if count is None else components(opened, count, product)


def _release_product(release: Store, size: int, nodes: engine.Engine | None) -> Callable[[Matrix], Matrix]:
    """Return the function that multiplies a released second moment, here or on the workers."""
    memory, workers = (engine.memory_here(), 1) if nodes is None else (nodes.memory, len(nodes.workers))
    runs = eigen.tile_rows(size, workers)
    keep = max(len(run) for run in runs) * size * 8 <= memory // 2
    if nodes is not None:
        nodes.require_visible(release, ROOT)

    def product(vectors: Matrix) -> Matrix:
        tasks = [eigen.ProductTask(release, run, vectors, keep) for run in runs]
        if nodes is None:
            return eigen.stacked(eigen.joined([eigen.rows_product(task) for task in tasks]))
        parts = nodes.reduce(eigen.rows_product, eigen.joined, [[task] for task in tasks], None)
        return nodes.trusted(lambda *found: eigen.stacked(eigen.joined(found)), sums=parts)

    return product


def made_from(place: AnyStore, what: str, **expected: Any) -> bool:
    """Say whether a model or scores in a store carry these attributes; refuse to take it for another's.

    Raises
    ------
    DataError
        If something exists there that is something else, or was made from something else.
    """
    store = store_at(place)
    if not store.exists():
        return False
    info = attributes_of(store) or {}
    if other := [key for key, value in expected.items() if info.get(key) != value]:
        raise DataError(
            f"{store} exists already and was made from something else, or is no {what}: its {listed(other)} "
            f"{'differs' if len(other) == 1 else 'differ'}. Remove it or name another place."
        )
    return True
