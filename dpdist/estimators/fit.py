"""From the parameters of an estimator and its X to one private release: where a budget is spent.

The path of a rows.zarr goes the way of ``dpdist release``. It is charged to the durable ledger of the table, under an
id that follows from dataset and parameters. So the same fit again yields the same bytes at no cost.

Rows in memory have no ledger. They are bounded and summed alike, and charged to the register of this process
(:mod:`dpdist.ledger.in_memory`). The same mechanism draws the noise once.
"""

from __future__ import annotations

import io
import numbers
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.errors import BelowNoiseWarning, ClippedRowsWarning, DataError, PrivacyLeakWarning, RefusedError, UsageError
from dpdist.estimators.base import PrivateEstimator, Shared
from dpdist.estimators.in_memory import ArraySum, require_sound
from dpdist.estimators.inputs import Rows, given_names, rows_at, rows_of, tell_columns
from dpdist.ingest.registered import open_rows
from dpdist.ledger.address import LedgerAddress, address_of
from dpdist.ledger.in_memory import REGISTER, Budget, Shape
from dpdist.ledger.ledger import Ledger
from dpdist.mechanisms.info import COMPONENTS, Output
from dpdist.mechanisms.registry import mechanism_named, recommended
from dpdist.moment.histograms import ColumnCounting, grids_of_numbers
from dpdist.moment.operator import MomentMatrix
from dpdist.naming import step
from dpdist.options import ROWS_AT_MOST, Amount, Clip, RequestOptions
from dpdist.pca.bias import clipped_rows
from dpdist.pipeline.budget import ledger_place
from dpdist.pipeline.release import release_table
from dpdist.privacy import checks
from dpdist.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss, neighbours_of
from dpdist.release import archive, stages, trusted
from dpdist.release.advice import blindly_scaled_words, choice_refused
from dpdist.release.artefact import Release, open_release
from dpdist.release.parse import request_from
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.release.stages import require_seen
from dpdist.runtime.checks import forbid_core_dumps
from dpdist.runtime.cluster import chosen
from dpdist.storage.store import AnyStore, Store, store_at
from dpdist.triangle import Band, packed

_NUMBERS = {
    "centre": "centre is 'none', 'private', a file, one public number per column, or a mapping with `centre` and "
    "`scale`.",
    "scale": "scale is 'none', 'private', a file, or one public number per column.",
}


def request_of(asked: PrivateEstimator, components: int | None = None, targets: Sequence[str] = ()) -> ReleaseRequest:
    """Make the request that the parameters describe."""
    centre, scale, vectors = _about(asked)
    delta = None if asked.delta is None else str(asked.delta)
    word = asked.clip if asked.clip in {"auto", "private"} else None
    if word is None and not _is(asked.clip, numbers.Real):
        raise UsageError(
            "The clip norm must be a positive finite number (clip), chosen from what is publicly known; or 'private', "
            "and the release chooses it; or 'auto', for columns that are divided by a scale."
        )
    if asked.grid_bits is not None and not _is(asked.grid_bits, numbers.Integral):
        raise UsageError("Grid bits are None, or a whole number between 2 and 24 (grid_bits).")
    if not _is(asked.rows_at_most, numbers.Integral):
        raise UsageError("rows_at_most is a whole number of rows, at least 1.")
    if asked.missing not in {"refuse", "centre"}:
        raise UsageError("missing is 'refuse' or 'centre'.")
    if not isinstance(asked.accept_large_delta, bool):
        raise UsageError("accept_large_delta is True or False.")
    options = dict(asked.options or {})
    mechanism = asked.mechanism or recommended(PrivacyLoss.parse(str(asked.epsilon), delta or "0").delta_atto)
    if components is not None and COMPONENTS.name in {
        option.name for option in mechanism_named(mechanism).info.options
    }:
        options.setdefault(COMPONENTS.name, components)
    given = asked.get_params(deep=False)
    given = {name: given[name] for name in RequestOptions.__struct_fields__ if name in given} | {
        "epsilon": Amount(asked.epsilon),
        "delta": None if delta is None else Amount(delta),
        "clip": Clip(word or float(asked.clip)),
        "mechanism": mechanism,
        "neighbours": neighbours_of(str(asked.neighbours)),
        "centre": centre,
        "scale": scale,
        "scale_share": None if asked.scale_share is None else Amount(asked.scale_share),
        "components": components if word == "private" else None,
        "targets": tuple(targets) if scale == "private" else (),
        "grid_bits": None if asked.grid_bits is None else int(asked.grid_bits),
        "rows_at_most": int(asked.rows_at_most),
        "options": options,
    }
    return request_from(RequestOptions(**given), vectors=vectors)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _about(asked: PrivateEstimator) -> tuple[str, str, dict[str, tuple[float, ...]]]:
    """Return centre and scale as a request takes them: the word or file of each, and what is given as numbers."""
    centre: Any = asked.centre
    scale: Any = asked.scale
    given: dict[str, Any] = {}
    if not isinstance(centre, str | os.PathLike):
        given, centre = dict(centre) if isinstance(centre, Mapping) else {"centre": centre}, Centring.NONE.value
        if not given or not set(given) <= _NUMBERS.keys():
            raise UsageError(_NUMBERS["centre"])
    if not isinstance(scale, str | os.PathLike):
        if "scale" in given:
            raise UsageError("centre holds a public scale, and scale another one: pass one of them.")
        given["scale"], scale = scale, "none"
    vectors = {}
    for name, vector in given.items():
        try:
            vectors[name] = tuple(float(value) for value in np.asarray(vector).reshape(-1))
        except (TypeError, ValueError):
            raise UsageError(_NUMBERS[name]) from None
    return os.fspath(centre), os.fspath(scale), vectors


def released(
    asked: PrivateEstimator,
    given: object,
    check: Callable[[ReleaseRequest, int], None],
    components: int | None = None,
    targets: Sequence[str] = (),
    beside: Callable[[Rows], Rows] | None = None,
) -> Release:
    """Release the second moment of X, once; ``check`` refuses what no request of d columns could have, unpaid."""
    forbid_core_dumps()  # the exact total will be in this process's memory
    request = request_of(asked, components, targets)
    path = rows_at(given)
    with _unchanged_by_failure(asked):
        rows = rows_of(asked, given, fitting=True)
        rows = rows if beside is None else beside(rows)
        check(request, rows.columns)
        found = _from_memory(asked, rows, request) if path is None else _from_table(asked, path, request)
    for name in set(vars(asked)) - {"n_features_in_", "feature_names_in_"}:
        if name.endswith("_"):
            delattr(asked, name)  # what another release told
    asked.release_ = found  # from here on: what was paid for is not lost if what follows fails
    if path is None and asked.release is not None:
        save(found, asked.release)
    _warn_of_bound(found)
    return found


def _warn_of_bound(release: Release) -> None:
    """Say where nearly every row was shortened, as far as the release tells, and which columns weigh nothing."""
    if warning := clipped_rows(release).warning():
        warnings.warn(warning, ClippedRowsWarning, stacklevel=3)
    if release.blindly_scaled[1]:
        warnings.warn(blindly_scaled_words(release), BelowNoiseWarning, stacklevel=3)


@contextmanager
def _unchanged_by_failure(estimator: object) -> Iterator[None]:
    """Leave an estimator as it was if its fit fails: a refused one must not cost it the release that it has."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def release_place(asked: PrivateEstimator, rows: Store, request: ReleaseRequest) -> Store:
    """Return where the release of a rows.zarr is published: where it is asked for, else beside the rows by its id."""
    if asked.release is not None:
        return store_at(asked.release)
    name, table = str(rows).rpartition("/")[2].removesuffix(".zarr"), open_rows(rows)
    place = ledger_place(table, _ledger_given(asked))
    ledger = Ledger(place) if Ledger.stands_at(place) else None

    def of(one: ReleaseRequest) -> Store:
        return rows.parent.within(f"{name}.{one.release_id(table)}.zarr")

    today = request.of_table(table)
    charged = (trusted.charged_request(request, table, ledger, of(older)) for older in request.older())
    return of(next((each for each in charged if each != today), today))


def _ledger_given(asked: PrivateEstimator) -> LedgerAddress | None:
    return None if asked.ledger is None else address_of(str(asked.ledger), Path())


def _from_table(asked: PrivateEstimator, rows: Store, request: ReleaseRequest) -> Release:
    if asked.missing != "refuse":
        raise UsageError("missing is for rows in memory: of a rows.zarr its schema says what becomes of them.")
    if any(each is not None for each in (asked.budget_epsilon, asked.budget_delta, asked.budget)):
        raise UsageError(
            "The budget of a rows.zarr is declared once, in its ledger: leave budget, budget_epsilon and budget_delta "
            "out."
        )
    target, table = release_place(asked, rows, request), open_rows(rows)
    outcome = release_table(table, target, request, ledger=_ledger_given(asked), cluster=chosen(asked.cluster))
    if outcome.fresh:
        shape = Shape(np.dtype(table.dtype).kind, table.rows, table.columns)
        REGISTER.note(shape, proved(outcome.release), table.dataset_id)
    return outcome.release


def _from_memory(asked: PrivateEstimator, rows: Rows, request: ReleaseRequest) -> Release:
    _require_memory(asked, request)
    budget = _budget(asked, request.loss)
    request = request.on_grid(rows.columns, rows.known_rows if request.neighbours is Neighbours.REPLACE_ONE else None)
    guarantee, with_placeholders = request.proved(rows.columns), request.with_placeholders
    if guarantee is None:
        raise AssertionError("a request that is not for reproduction has a proved guarantee")
    if asked.release is not None:
        store_at(asked.release).require_new("release")
    bound = with_placeholders.bound(rows.columns)
    total = rows.total(bound, REGISTER.key)
    require_sound(total, bound, missing=asked.missing == "centre")
    _warn(total, named=not request.chooses)
    if "scale" in request.chooses:
        require_seen(request, ColumnCounting(grids_of_numbers(rows.columns)), total.rows)
    if refused := choice_refused(request, rows.columns, total.rows):
        raise RefusedError(f"{refused} Nothing was spent.")
    loss = guarantee.loss
    checks.require_small_delta(loss, request.neighbours, total.rows, accepted=request.accept_large_delta)
    checks.warn(loss, request.neighbours, total.rows)
    shape = Shape(np.dtype(rows.data.dtype).kind, total.rows, rows.columns)
    datasets = REGISTER.charge(total.fingerprints, shape, guarantee, budget, asked.budget)
    staged = None
    if request.chooses:
        request, staged = stages.draw_unrecorded(request, rows.column_names, total.rows, rows.counts)
        bound = request.bound(rows.columns)
        known, total = total.fingerprints, rows.total(bound, REGISTER.key)
        if not known.same_rows(total.fingerprints):
            raise DataError(
                "X gave other rows when it was read again: a lazy array that draws random numbers does, and one whose "
                "files changed. Its rows were counted, which is charged; nothing was released. Compute or store X "
                "first."
            )
        require_sound(total, bound, missing=asked.missing == "centre")
    moment = MomentMatrix(total.values, bound.width)
    return trusted.draw_unrecorded(
        request, moment, names=rows.column_names, rows=total.rows, datasets=datasets, staged=staged
    )


def _require_memory(asked: PrivateEstimator, request: ReleaseRequest) -> None:
    """Refuse parameters that make no sense of rows in memory."""
    if asked.ledger is not None:
        raise RefusedError(
            "Rows in memory have no identity, so no ledger can keep their budget. Ingest them "
            f"({step('ingest', 'SOURCE', 'ROWS', budget_epsilon='E', budget_delta='D')}), and fit the path of the "
            "rows.zarr. Without a ledger, only this process remembers what was charged."
        )
    if asked.cluster is not None:
        raise UsageError(
            "cluster is for the path of a rows.zarr. A Dask array is summed where its own client computes; other rows "
            "in memory are summed in this process."
        )
    if not isinstance(asked.budget, Budget | None):
        raise UsageError("budget is a dpdist.Budget, one object for all fits that are charged to it.")
    if asked.missing == "centre" and request.centre is None and "scale" not in request.chooses:
        raise UsageError(
            "missing='centre' takes rows with a NaN for the centre, and this release has none: pass scale='private', "
            "or a public centre."
        )


def _budget(asked: PrivateEstimator, loss: PrivacyLoss) -> PrivacyLoss | None:
    """Return what the rows may have cost with this release: what was declared, else no more than this release.

    None where a Budget decides.
    """
    if asked.budget_epsilon is None:
        if asked.budget_delta is not None:
            raise UsageError("budget_delta needs budget_epsilon.")
        return loss if asked.budget is None else None
    if asked.budget_delta is None:
        return replace(PrivacyLoss.parse(str(asked.budget_epsilon)), delta_atto=loss.delta_atto)
    return PrivacyLoss.parse(str(asked.budget_epsilon), str(asked.budget_delta))


def _warn(total: ArraySum, *, named: bool) -> None:
    """Say what was evidently taken from the data; whoever fits an array holds it, so this tells him nothing new."""
    if named and total.clipped_by_data:
        warnings.warn(
            "clip is the norm of the longest row of X, so it seems to be taken from the data, and it is public. Choose "
            "it from what is known without them.",
            PrivacyLeakWarning,
            stacklevel=2,
        )
    if total.centred_by_data:
        warnings.warn(
            "Every column of X has mean zero, as if a scaler had subtracted their own: then each row holds something "
            "of all others, and the guarantee, which is about one row of X, covers no person. Pass the raw rows, with "
            "a public centre or centre='private'.",
            PrivacyLeakWarning,
            stacklevel=2,
        )


def warn_of_score(estimator: object) -> None:
    """Say of every score, whatever its rows are, that it is not private: a warning for some would tell which."""
    warnings.warn(
        f"A score of {type(estimator).__name__} is computed from its rows without noise: it is as private as they are. "
        "Parameters that are chosen by scores (GridSearchCV, cross_val_score) tell of the rows by which, whatever the "
        "fits cost. Choose them from public data, or from what was released.",
        PrivacyLeakWarning,
        stacklevel=3,
    )


def save(release: Release, path: AnyStore) -> None:
    """Write a release that is held in memory as a release.zarr."""
    frame = release.subspace
    answer = [(Band.whole(release.bound.width), packed(release.lattice))] if frame is None else frame
    archive.publish(io.BytesIO(b"".join(archive.archived(release, answer))), path)


def opened(release: Release | AnyStore) -> Release:
    """Return a release, opened where a path is given; refuse one that was made for reproduction."""
    found = release if isinstance(release, Release) else open_release(release)
    require_private(found)
    return found


def require_private(release: Release) -> None:
    """Refuse a release that was made for reproduction, and warn of one that promises or tells little."""
    if release.private_as_claimed and release.guarantee is not None:
        checks.warn(release.guarantee.loss, release.neighbours, release.rows)
        _warn_of_bound(release)
    else:
        raise RefusedError(
            f"{release.release_id} is not private as claimed, and no estimator vouches for it: look at it "
            f"with {step('pca')}."
        )


def proved(release: Release) -> Guarantee:
    """Return what is proved of a release that a fit made, or :func:`require_private` let pass: neither lacks it."""
    if release.guarantee is None:
        raise AssertionError("no estimator holds a release of which nothing is proved")
    return release.guarantee


def parameters_of(release: Release) -> Shared:
    """Return the parameters of an estimator that would have made a release."""
    bound, loss = release.bound, proved(release).loss
    chosen = {} if release.stage is None else release.stage.chosen
    vectors = {"centre": bound.centre, "scale": bound.scale}
    public = {name: np.array(given) for name, given in vectors.items() if given is not None and name not in chosen}
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


def take_release(estimator: PrivateEstimator, release: Release) -> None:
    """Give an estimator a release that it was not fitted for, and its columns."""
    tell_columns(estimator, len(release.names), given_names(release.names))
    estimator.release_ = release


def releases_subspace(request: ReleaseRequest) -> bool:
    """Say whether a mechanism releases components and no matrix."""
    return request.mechanism_info.output is Output.COMPONENTS
