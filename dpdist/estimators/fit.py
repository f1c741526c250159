"""Fit an estimator: one private release from its parameters and X. This module spends the budget.

The path of a rows.zarr is released as by ``dpdist release`` and charged to the durable ledger of the table, under an id
determined by the dataset and the parameters. Repeating the same fit returns the same bytes at no cost.

Rows in memory are released in the same way (:mod:`dpdist.core.pipeline.arrays`), with a ledger in memory, and charged
to the register of this process (:mod:`dpdist.core.ledger.register`).
"""

from __future__ import annotations

import io
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from dpdist.answers.bias import clipped_rows
from dpdist.answers.block import require_noise_distribution
from dpdist.core.errors import (
    BelowNoiseWarning,
    ClippedRowsWarning,
    DataError,
    PrivacyLeakWarning,
    RefusedError,
    UsageError,
    WeakGuaranteeWarning,
    warn_caller,
)
from dpdist.core.frames import converted, is_a
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.address import LedgerAddress, address_of
from dpdist.core.ledger.register import REGISTER, Budget
from dpdist.core.mechanisms.info import COMPONENTS, Output
from dpdist.core.mechanisms.registry import mechanism_named, recommended
from dpdist.core.moment.arrays import Survey
from dpdist.core.naming import step
from dpdist.core.options import ROWS_AT_MOST, Amount, Clip, RequestOptions, Word
from dpdist.core.paths import text_of
from dpdist.core.pipeline.arrays import Groups, Paying, release_array
from dpdist.core.pipeline.release import release_table
from dpdist.core.privacy import checks
from dpdist.core.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss, neighbours_of
from dpdist.core.progress import LOGGER
from dpdist.core.release import archive
from dpdist.core.release.advice import blindly_scaled_message
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions, by_schema, without_choices
from dpdist.core.release.opening import open_release
from dpdist.core.release.parse import request_from
from dpdist.core.release.plan import plan_of, planned
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.automatic import row_is_unit
from dpdist.core.rows.columns import Column
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.schema import Schema
from dpdist.core.runtime.checks import forbid_core_dumps
from dpdist.core.runtime.cluster import AnyCluster, chosen, client_of, computing_on
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.triangle import Band, packed
from dpdist.estimators.base import PrivateEstimator, Shared
from dpdist.estimators.groups import grouped
from dpdist.estimators.inputs import Rows, rows_at, rows_of, set_columns, user_names
from dpdist.estimators.labels import require_same_columns
from dpdist.estimators.pipelines import require_nothing_learnt

DESCRIBED = "_described_by"
"""Attribute of an estimator with the schema of the rows of the next fit, which :func:`dpdist.private_pca` sets."""
_NUMBERS = {
    "centre": "centre must be None, 'none', 'private', 'schema', a file, one public number per column, or a "
    "mapping with `centre` and `scale`.",
    "scale": "scale must be 'none', 'private', a file, or one public number per column.",
}


def request_of(
    estimator: PrivateEstimator, components: int | None = None, targets: Sequence[str] = ()
) -> ReleaseRequest:
    """Return the release request with the estimator's parameters."""
    centre, scale, vectors = _centre_and_scale(estimator)
    delta = None if estimator.delta is None else str(estimator.delta)
    choice = estimator.clip if isinstance(estimator.clip, str) and estimator.clip in get_args(Word) else None
    if choice is None and not (estimator.clip is None or _is_instance(estimator.clip, numbers.Real)):
        raise UsageError(
            "clip must be a positive finite number chosen from public knowledge, or 'private' (chosen by the release), "
            "'auto' (for columns divided by a scale), or 'schema' (for rows that were ingested with one)."
        )
    if estimator.grid_bits is not None and not _is_instance(estimator.grid_bits, numbers.Integral):
        raise UsageError("grid_bits must be None or an integer between 2 and 24.")
    if not _is_instance(estimator.rows_at_most, numbers.Integral):
        raise UsageError("rows_at_most must be an integer of at least 1.")
    if not (isinstance(estimator.missing, str) and estimator.missing in {"refuse", "centre"}):
        raise UsageError("missing must be 'refuse' or 'centre'.")
    if not isinstance(estimator.accept_large_delta, bool):
        raise UsageError("accept_large_delta must be True or False.")
    if not isinstance(estimator.name, str | None):
        raise UsageError("name must be None or a text, which becomes the id of the release.")
    if not isinstance(estimator.options, Mapping | None):
        raise UsageError("options must be a mapping of the mechanism's parameters by name.")
    options = dict(estimator.options or {})
    mechanism = estimator.mechanism
    if mechanism is None:
        mechanism = recommended(PrivacyLoss.parse(str(estimator.epsilon), delta or "0").delta_atto)
    if components is not None and COMPONENTS.name in {
        option.name for option in mechanism_named(mechanism).info.options
    }:
        options.setdefault(COMPONENTS.name, components)
    scaled_by_default = estimator.clip is None and scale == "none" and "scale" not in vectors
    parameters = estimator.get_params(deep=False)
    parameters = {name: parameters[name] for name in RequestOptions.__struct_fields__ if name in parameters} | {
        "epsilon": Amount(estimator.epsilon),
        "delta": None if delta is None else Amount(delta),
        "clip": None if estimator.clip is None else Clip(choice or float(estimator.clip)),
        "mechanism": mechanism,
        "neighbours": neighbours_of(str(estimator.neighbours)),
        "centre": centre,
        "scale": None if scale == "none" else scale,
        "scale_share": None if estimator.scale_share is None else Amount(estimator.scale_share),
        "clip_components": components if choice == "private" else None,
        "targets": tuple(targets) if scale == "private" or scaled_by_default else (),
        "grid_bits": None if estimator.grid_bits is None else int(estimator.grid_bits),
        "rows_at_most": int(estimator.rows_at_most),
        "id": estimator.name,
        "options": options,
    }
    return request_from(RequestOptions(**parameters), vectors=vectors)


def _is_instance(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _centre_and_scale(estimator: PrivateEstimator) -> tuple[str | None, str, dict[str, tuple[float, ...]]]:
    """Return centre and scale for a request: the keyword or file of each, and the public vectors."""
    centre: Any = estimator._centre if estimator.centre is None else estimator.centre  # noqa: SLF001 - of this package
    scale: Any = estimator.scale
    arrays: dict[str, Any] = {}
    if not isinstance(centre, str | os.PathLike | None):
        arrays, centre = dict(centre) if isinstance(centre, Mapping) else {"centre": centre}, Centring.NONE.value
        if not arrays or not set(arrays) <= _NUMBERS.keys():
            raise UsageError(_NUMBERS["centre"])
    if not isinstance(scale, str | os.PathLike):
        if "scale" in arrays:
            raise UsageError("The public scale is given twice, in centre and in scale: pass it once.")
        arrays["scale"], scale = scale, "none"
    vectors = {}
    for name, vector in arrays.items():
        try:
            vectors[name] = converted(vector, name, lambda each: tuple(map(float, np.asarray(each).reshape(-1))))
        except DataError:
            raise UsageError(_NUMBERS[name]) from None
    return None if centre is None else text_of(centre), text_of(scale), vectors


def released(
    estimator: PrivateEstimator,
    data: object,
    check: Callable[[ReleaseRequest, Dimensions], None],
    components: int | None = None,
    targets: Sequence[str] = (),
    join: Callable[[Rows], Rows] | None = None,
    groups: object = None,
    describe: Callable[[Sequence[str]], Schema] | None = None,
) -> Release:
    """Release the second moment of X once; ``check`` refuses impossible requests before anything is charged.

    ``join`` adds targets to the rows of X, and ``describe`` returns the schema of rows in memory by their names.
    """
    forbid_core_dumps()  # this process will hold the exact total in memory
    require_nothing_learnt(estimator)
    with computing_on(estimator.cluster):
        return _released(estimator, data, check, components, targets, join, groups, describe)


def _released(
    estimator: PrivateEstimator,
    data: object,
    check: Callable[[ReleaseRequest, Dimensions], None],
    components: int | None,
    targets: Sequence[str],
    join: Callable[[Rows], Rows] | None,
    groups: object,
    describe: Callable[[Sequence[str]], Schema] | None,
) -> Release:
    request = request_of(estimator, components, targets)
    data, units = grouped(data, groups)
    path = rows_at(data)
    before = dict(vars(estimator))
    schema = estimator.__dict__.pop(DESCRIBED, None)
    try:
        rows = rows_of(estimator, data, fitting=True)
        rows = rows if join is None else join(rows)
        schema = schema if path is not None or describe is None else describe(rows.column_names)
        require_same_columns(estimator, data, rows)
        stored = None if path is None else open_rows(path)
        described = schema if stored is None else stored.schema
        together = units is not None if stored is None else stored.together
        size = Dimensions(rows.columns, schema=described, together=together)
        check(by_schema(request, size), size)
        if stored is None:
            if units is None and not is_a(data, "anndata", "AnnData"):  # whose columns may be genes: ID1
                _warn_of_persons(rows)
            made = _from_memory(estimator, rows, request, schema, units)
        else:
            made = _from_table(estimator, stored, request)
        release, fresh = made
    except BaseException:  # a refused fit does not discard the release of an earlier one
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise
    for name in set(vars(estimator)) - {"n_features_in_", "feature_names_in_"}:
        if name.endswith("_"):
            delattr(estimator, name)  # results of an earlier release
    estimator.fresh_ = fresh
    estimator.release_ = release  # set first: a later failure does not lose a release that was charged
    if path is None and estimator.release is not None:
        save(release, estimator.release)
    _warn_of_bound(release)
    return release


def _warn_of_persons(rows: Rows) -> None:
    """Warn of columns named like persons, if each row is protected as one."""
    message = row_is_unit("X", rows.names or (), lambda name: f"pass groups={name!r}, which keeps it out of X")
    if message is not None:
        warn_caller(f"{message} If no person has two, leave it out.", WeakGuaranteeWarning)


def _warn_of_bound(release: Release) -> None:
    """Warn if the release shows that nearly every row was clipped, or that columns have weight zero."""
    lengths = clipped_rows(release)
    if (warning := lengths.warning()) and lengths.unit is None:
        warn_caller(warning, ClippedRowsWarning)
    if any(release.blindly_scaled):
        warn_caller(blindly_scaled_message(release), BelowNoiseWarning)


def release_target(estimator: PrivateEstimator, table: RowsTable, request: ReleaseRequest) -> Store:
    """Return the path of a rows.zarr's release: ``release`` if given, else next to the rows under the release id."""
    if estimator.release is not None:
        return store_at(estimator.release)
    rows = table.store
    name = str(rows).rpartition("/")[2].removesuffix(".zarr")
    return rows.parent.within(f"{name}.{plan_of(request, table).release_id(table)}.zarr")


def _ledger_address(estimator: PrivateEstimator) -> LedgerAddress | None:
    return None if estimator.ledger is None else address_of(str(estimator.ledger), Path())


def _from_table(estimator: PrivateEstimator, table: RowsTable, request: ReleaseRequest) -> tuple[Release, bool]:
    if estimator.missing != "refuse":
        raise UsageError("missing is for rows in memory: for a rows.zarr, leave it out; the schema decides.")
    if any(limit is not None for limit in (estimator.budget_epsilon, estimator.budget_delta, estimator.budget)):
        raise UsageError(
            "The budget of a rows.zarr is declared once, in its ledger: leave out budget, budget_epsilon and "
            "budget_delta."
        )
    target = release_target(estimator, table, request)
    outcome = release_table(
        table, target, request, ledger=_ledger_address(estimator), cluster=chosen(estimator.cluster)
    )
    if outcome.fresh:
        unit = None if table.unit is None else table.unit.column
        REGISTER.note(table.rows, guarantee_of(outcome.release), table.dataset_id, unit)
    return outcome.release, outcome.fresh


def _from_memory(
    estimator: PrivateEstimator, rows: Rows, request: ReleaseRequest, schema: Schema | None, units: Groups | None
) -> tuple[Release, bool]:
    _require_memory(estimator, request, described=schema is not None)
    _require_client(estimator.cluster, rows)
    if schema is None and estimator.missing == "centre":
        schema = _of_gaps(rows.column_names)
    paying = Paying(_budget(estimator, request.loss), estimator.budget)
    release, fresh = release_array(
        rows.to_release(missing=estimator.missing == "centre", schema=schema, groups=units), request, paying,
        target=None if estimator.release is None else store_at(estimator.release),
        on_survey=partial(_judge, named=not request.chooses), register=REGISTER,
    )  # fmt: skip
    drawn = "drawn and charged" if fresh else "made before, nothing was charged"
    LOGGER.info(f"X was released as {release.release_id}, {release.guarantee_words()}: {drawn}.")
    return release, fresh


def _require_client(cluster: AnyCluster | None, rows: Rows) -> None:
    """Refuse a cluster that cannot compute these rows: it is for Dask collections, which a client computes."""
    if cluster is None:
        return
    if not rows.lazy:
        raise UsageError(
            "cluster is for the path of a rows.zarr and for Dask collections, and X is in the memory of this process, "
            "which sums it. Leave cluster out; or pass X as a collection, such as dask.array.from_array(X)."
        )
    chosen(cluster)  # refuses another type
    if not is_a(client_of(cluster), "distributed", "Client"):
        raise UsageError(
            "The blocks of a Dask collection are computed by a client. Pass cluster=dask.distributed.Client(...)."
        )


def _of_gaps(names: Sequence[str]) -> Schema | None:
    """Return what missing='centre' says of columns of numbers, for all answers; None if no schema can name them."""
    try:
        return Schema([Column(name, "number", missing="centre") for name in names])
    except UsageError:
        return None


def _require_memory(estimator: PrivateEstimator, request: ReleaseRequest, *, described: bool) -> None:
    """Refuse parameters that do not apply to rows in memory; of described ones the schema says what needs a centre."""
    if estimator.ledger is not None:
        raise RefusedError(
            "Rows in memory have no identity, so no ledger can record their budget. Ingest them "
            f"({step('ingest', 'SOURCE', 'ROWS', budget_epsilon='E', budget_delta='D')}), and fit the path of the "
            "rows.zarr. Without a ledger, only this process remembers the charges."
        )
    if not isinstance(estimator.budget, Budget | None):
        raise UsageError("budget must be a dpdist.Budget: one object, shared by all fits charged to it.")
    centred = request.centre is not None or "scale" in request.chooses or described
    if estimator.missing == "centre" and not centred:
        raise UsageError(
            "missing='centre' replaces cells with NaN by the centre, but this release has no centre: pass "
            "scale='private' or a public centre."
        )


def _budget(estimator: PrivateEstimator, loss: PrivacyLoss) -> PrivacyLoss | None:
    """Return the declared limit on the joint cost of the rows, or None."""
    if estimator.budget_epsilon is None:
        if estimator.budget_delta is not None:
            raise UsageError("budget_delta needs budget_epsilon.")
        return None
    if estimator.budget_delta is None:
        return replace(PrivacyLoss.parse(str(estimator.budget_epsilon)), delta_atto=loss.delta_atto)
    return PrivacyLoss.parse(str(estimator.budget_epsilon), str(estimator.budget_delta))


def _judge(total: Survey, *, named: bool) -> None:
    """Warn of a parameter evidently taken from the data, and refuse standardised rows. The caller holds them."""
    if named and total.clipped_by_data:
        warn_caller(
            "clip equals the norm of the longest row of X, so it seems to be computed from the data, and clip is "
            "public. Choose it from public knowledge, or pass clip='private'.",
            PrivacyLeakWarning,
        )
    if total.standardised_by_data:
        raise RefusedError(
            "Every column of X has mean zero and variance one, as after a StandardScaler. Each row then depends on all "
            "others, and the guarantee, which is about one row of X, would protect no person. Pass the raw rows, with "
            "a public centre and scale, or with scale='private', which chooses both. Nothing was charged."
        )
    if total.centred_by_data:
        warn_caller(
            "Every column of X has mean zero, as if the column means had been subtracted. Each row then depends on all "
            "others, and the guarantee, which is about one row of X, protects no person. Pass the raw rows, with a "
            "public centre or centre='private'.",
            PrivacyLeakWarning,
        )


def warn_of_score(estimator: object) -> None:
    """Warn with every score that it is private; warning of some only would reveal which."""
    warn_caller(
        f"A score of {type(estimator).__name__} is computed from its rows without noise, so it is as private as the "
        "rows. Parameters chosen by scores (GridSearchCV, cross_val_score) leak information about these rows, whatever "
        "the fits cost. Choose them from public data or from a release.",
        PrivacyLeakWarning,
    )


def save(release: Release, path: AnyStore) -> None:
    """Write a release in memory as a release.zarr."""
    frame = release.subspace
    answer = [(Band.whole(release.bound.width), packed(release.lattice))] if frame is None else frame
    archive.publish(io.BytesIO(b"".join(archive.archived(release, answer))), path)


def opened(release: Release | AnyStore) -> Release:
    """Open a release given as a path; refuse one made for reproduction."""
    loaded = release if isinstance(release, Release) else open_release(release)
    require_private(loaded)
    return loaded


def require_private(release: Release) -> None:
    """Refuse a release made for reproduction; warn of a weak guarantee and of clipped rows."""
    if release.private_as_claimed and release.guarantee is not None:
        checks.warn(release.guarantee.loss, release.neighbours, release.rows)
        _warn_of_bound(release)
    else:
        raise RefusedError(
            f"{release.release_id} is not private as claimed, so estimators refuse it. Use {step('pca')} for its "
            "components."
        )


def says_rows(neighbours: Neighbours) -> bool:
    """Whether a message may say how many rows there are: no release in this process was under another relation."""
    return neighbours is Neighbours.REPLACE_ONE and REGISTER.all_under(neighbours)


def guarantee_of(release: Release) -> Guarantee:
    """Return the proved guarantee of a release that :func:`require_private` accepts."""
    if release.guarantee is None:
        raise AssertionError("an estimator's release has a proved guarantee")
    return release.guarantee


def parameters_of(release: Release) -> Shared:
    """Return the estimator parameters that describe a release."""
    bound, loss = release.bound, guarantee_of(release).loss
    chosen = {} if release.stage is None else release.stage.chosen
    vectors = {"centre": bound.centre, "scale": bound.scale}
    if release.schema is not None and release.schema.centres(bound):
        vectors = {}  # which follow from the schema
    public = {name: np.array(vector) for name, vector in vectors.items() if vector is not None and name not in chosen}
    clip: float | str = bound.clip_norm
    if "clip_norm" in chosen:
        clip = "auto" if "scale" in chosen and "quantile" not in chosen else "private"
    large = release.rows is not None and checks.reaches_one(loss, release.neighbours, release.rows)
    return {
        "epsilon": loss.epsilon,
        "delta": loss.delta if loss.delta_atto else None,
        "clip": clip,
        "mechanism": release.mechanism,
        "neighbours": release.neighbours.value,
        "centre": Centring.PRIVATE.value if bound.constant else public.get("centre", Centring.NONE.value),
        "scale": "private" if "scale" in chosen else public.get("scale", "none"),
        "grid_bits": bound.grid_bits,
        "rows_at_most": release.rows_at_most or ROWS_AT_MOST,
        "accept_large_delta": large,
    }


def set_release(estimator: PrivateEstimator, release: Release) -> None:
    """Set the release of an estimator, and its columns."""
    set_columns(estimator, len(release.names), user_names(release.names))
    estimator.release_ = release


def require_matrix(request: ReleaseRequest, size: Dimensions) -> None:
    """Refuse a request whose release would give no matrix with a known noise distribution, before it is charged."""
    plan = None if releases_subspace(request) else planned(without_choices(request), Dimensions(size.columns))
    require_noise_distribution(request.mechanism, None if plan is None else plan.moment.noise)


def releases_subspace(request: ReleaseRequest) -> bool:
    """Whether the mechanism releases components and no matrix."""
    return request.mechanism_info.output is Output.COMPONENTS
