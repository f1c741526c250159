"""Sums of releases of disjoint rows: free post-processing, with their joint guarantee.

Releases of different periods of one table are disjoint by construction, because the ledger closed each period once.
Their joint guarantee is the weakest one (:mod:`dpdist.core.privacy.parallel`), under the relation that changes one row,
and under replace-one for one row *within its period*.

For different tables, only their owners know whether a record is in several. Unless they state that none is, the
guarantees are composed as if every row were in each table. If releases protect a privacy unit
(:mod:`dpdist.core.rows.units`), the unit with all its rows must be in one table only; disjoint *rows* or the periods of
one table do not ensure this.

Among the nodes of a tree of periods, each row is in one release per level, so the best estimate
(:mod:`dpdist.core.release.series`) is as private as the composition of the levels. The total of a weighted series is as
private as all its releases together.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.naming import parameter
from dpdist.core.privacy.accounting import composed_epsilon_micro
from dpdist.core.privacy.guarantee import ATTO, Arithmetic, Guarantee, PrivacyLoss
from dpdist.core.release.archive import archived, publish
from dpdist.core.release.artefact import Release
from dpdist.core.release.attributes import merged
from dpdist.core.release.opening import open_release, sum_id
from dpdist.core.release.series import Node, Toeplitz
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.triangle import Band, packed

_PROOF = "dpdist.core.privacy.parallel"
_LIMIT = 2**62


def combined(releases: Sequence[Release], *, disjoint: bool = False) -> Release:
    """Return the sum of second moments of disjoint rows."""
    if not releases:
        raise UsageError("There is nothing to combine: pass at least one release.")
    first = releases[0]
    for release in releases:
        _require_alike(first, release)
        if release.session is not None and len(releases) > 1:
            raise UsageError(
                f"{release.release_id} has the rows of several sites, which trusted each other with less than one "
                "owner is trusted with; a sum with other releases would not tell. Leave it out."
            )
    ids = tuple(sorted(i for r in releases for i in r.releases or (r.release_id,)))
    if len(set(ids)) < len(ids):
        raise RefusedError("A release is named twice: its rows would count twice in the sum. Name it once.")
    extents = merged(extent for release in releases for extent in release.extents)
    guarantees = [r.guarantee for r in releases if r.guarantee is not None]
    stated = None
    if _are_disjoint(releases, disjoint=disjoint):
        joint = parallel(guarantees)
        if len({extent.dataset for extent in extents}) != 1 or not all(r.extents for r in releases):
            stated = f"no {first.unit.column if first.unit else 'row'} is in two of the tables, as their owners state"
    else:
        joint = sequential(guarantees)
    if sum(_largest(r.lattice) for r in releases) >= _LIMIT:
        raise _too_large()
    total = first.lattice.copy()
    for release in releases[1:]:
        total += release.lattice
    rows = [release.rows for release in releases if release.rows is not None]
    conditions = {r.condition for r in releases if r.condition}
    if stated is not None and not any(stated in condition for condition in conditions):
        conditions.add(stated)
    derived = _derived(first, ids, joint, conditions, first.window)
    return replace(
        derived,
        noise=reduce(add, (release.noise for release in releases)),
        rows=sum(rows) if len(rows) == len(releases) else None,
        rows_at_most=_rows_at_most(releases),
        answer=total,
        extents=extents,
    )


def estimated(node: Node, released: Callable[[Node], Release]) -> Release:
    """Return the best estimate of the moment of a node, from its release and those of all nodes below it."""
    root = released(node)
    if node.level == 0:
        return root
    divisor = (2 << node.level) - 1
    ids: list[str] = []
    conditions: set[str | None] = set()
    guarantees: dict[int, list[Guarantee]] = {}
    noises: list[Noise] = []

    def terms() -> Iterator[tuple[int, Release]]:
        for subnode in node.tree():
            release, weight = released(subnode), 1 << subnode.level
            _require_alike(root, release)
            _require_periods(root, node, release, subnode)
            noises.append(release.noise.weighted(weight / divisor))
            ids.append(release.release_id)
            conditions.add(release.condition)
            if release.guarantee is not None:
                guarantees.setdefault(subnode.level, []).append(release.guarantee)
            yield weight, release

    answer = _weighted_sum(terms(), divisor)
    joint = nested([parallel(of_level) for of_level in guarantees.values()])
    derived = _derived(root, tuple(sorted(ids)), joint, conditions, None)
    return replace(derived, noise=reduce(add, noises), answer=answer)


def _weighted_sum(terms: Iterable[tuple[int, Release]], divisor: int) -> npt.NDArray[np.int64]:
    """Return the sum of releases times integer weights over a divisor, rounded to the nearest integer."""
    quotients: Any = 0
    remainders: Any = 0
    size = 0.0
    for weight, release in terms:
        lattice = release.lattice
        size += weight / divisor * _largest(lattice)
        if size >= _LIMIT:
            raise _too_large()
        quotient, remainder = np.divmod(lattice, divisor)
        quotients += weight * quotient
        remainders += weight * remainder  # small: the sum of all remainders is below the square of the divisor
    rounded: npt.NDArray[np.int64] = quotients + (2 * remainders + divisor) // (2 * divisor)
    return rounded


def _largest(lattice: npt.NDArray[np.int64]) -> float:
    """Return the largest absolute value; numpy has none of the least integer."""
    return float(max(int(lattice.max()), -int(lattice.min())))


def next_total(plan: Toeplitz, latest: Release, total: Callable[[int], Release]) -> Release:
    """Return the total of all periods so far, from the latest release and earlier totals."""
    count = (latest.extents[0].stop if latest.extents else None) or 0
    _require_latest(plan, latest, count)
    earlier: dict[int, Release] = {}

    def terms() -> Iterator[tuple[int, Release]]:
        yield 1, latest
        for number, weight in plan.earlier(count).items():
            earlier_total = total(number)
            _require_total(plan, latest, earlier_total, number)
            if number in {count - 1, latest.extents[0].start}:
                earlier[number] = earlier_total
            yield weight, earlier_total

    answer = _weighted_sum(terms(), plan.weights[0])
    last, rows = earlier.get(count - 1, latest), latest.rows
    if (before := earlier.get(latest.extents[0].start or 0)) is not None:
        rows = None if rows is None or before.rows is None else rows + before.rows
    ids = {latest.release_id, *last.releases}
    joint = _joint_guarantee(latest, plan.shares_of(count))
    return replace(
        _derived(latest, tuple(sorted(ids)), joint, {latest.condition, last.condition}, None),
        noise=_noise_of(plan, latest, count),
        rows=rows,
        answer=answer,
        extents=(msgspec.structs.replace(latest.extents[0], start=0, first=last.extents[0].first),),
        weights=(),
    )


def last_periods(plan: Toeplitz, window: int, latest: Release, total: Release, earlier: Release | None) -> Release:
    """Return the sum of the last periods: a total less an earlier one. It reveals as much as all releases."""
    count = latest.extents[0].stop or 0
    _require_total(plan, latest, total, count)
    if earlier is None:
        return total
    _require_total(plan, latest, earlier, count - window)
    rows = None if total.rows is None or earlier.rows is None else total.rows - earlier.rows
    assert total.guarantee is not None  # noqa: S101 - the total is private as claimed
    derived = _derived(total, total.releases, total.guarantee, {total.condition}, window)
    noise = _noise_of(plan, latest, count, window)
    return replace(derived, noise=noise, rows=rows, answer=total.lattice - earlier.lattice)


def _noise_of(plan: Toeplitz, latest: Release, count: int, window: int | None = None) -> Noise:
    """Return the noise of a total or a window; all releases of the series have the same noise."""
    return reduce(add, (latest.noise.weighted(abs(weight)) for weight in plan.inverse(count, window)))


def _joint_guarantee(latest: Release, shares: Fraction) -> Guarantee:
    """Return the guarantee of all releases of a series, from one of them and the factor of mu² for a row."""
    guarantee = latest.guarantee
    if guarantee is None or guarantee.mu_squared is None:
        raise DataError(f"{latest.release_id}, a release of a series, is not Gaussian. Restore it from a copy.")
    together = replace(guarantee, mu_squared=guarantee.mu_squared * shares)
    loss = PrivacyLoss(composed_epsilon_micro([together], guarantee.loss.delta_atto), guarantee.loss.delta_atto)
    return _joint([guarantee], loss, together.mu_squared)


def _require_latest(plan: Toeplitz, latest: Release, count: int) -> None:
    """Refuse a release of other periods or weights than the series expects."""
    expected = plan.sum_at(count) if count else None
    extents = [(e.start, e.stop) for e in latest.extents]
    if expected is None or extents != [(expected.start, expected.stop)] or latest.weights != expected.weights:
        raise DataError(
            f"{latest.release_id} does not contain the periods that its name states. Restore it from a copy."
        )
    _require_alike(latest, latest, weighted=True)


def _require_total(plan: Toeplitz, latest: Release, total: Release, count: int) -> None:
    """Refuse a release that is not the total of ``count`` periods with guarantee and noise like those of the latest."""
    _require_alike(latest, total, weighted=True)
    extents = [(e.dataset, e.start, e.stop) for e in total.extents]
    squares = [None if release.guarantee is None else release.guarantee.mu_squared for release in (latest, total)]
    variance = sum(weight**2 for weight in plan.inverse(count)) * (latest.noise.variance_off_diagonal or 0)
    if (
        extents != [(latest.extents[0].dataset, 0, count)]
        or (total.weights, total.window, len(total.releases)) != ((), None, count)
        or squares[0] is None
        or squares[1] != squares[0] * plan.shares_of(count)
        or not math.isclose(variance, total.noise.variance_off_diagonal or 0, rel_tol=1e-9)
    ):
        raise DataError(
            f"{total.release_id} is not the total of {count} periods of this series. Restore it from a copy, or delete "
            "it: the next run computes it from the releases of the series."
        )


def _derived(
    first: Release, ids: tuple[str, ...], joint: Guarantee, conditions: Iterable[str | None], window: int | None
) -> Release:
    """Return the first of several releases with the identity and guarantee of all, of all periods or the last ones."""
    condition = "; ".join(sorted(filter(None, conditions))) or None
    return replace(
        first,
        release_id=sum_id(ids, condition, window),
        claim=joint.loss,
        guarantee=joint,
        ledger_head=None,
        releases=ids,
        condition=condition,
        window=window,
        stage=None,
    )


def _require_periods(root: Release, node: Node, release: Release, subnode: Node) -> None:
    """Refuse a release of other periods than those of a node of the tree."""
    start, of_root = root.extents[0].start, root.extents[0].dataset
    extents = [(e.dataset, e.start, e.stop) for e in release.extents]
    if start is None or extents != [(of_root, start + subnode.start - node.start, start + subnode.stop - node.start)]:
        raise DataError(
            f"{release.release_id} does not contain the periods that its name states. Restore it from a copy."
        )


def _too_large() -> DataError:
    return DataError(
        "The sum of these releases exceeds 64-bit integers. Release with fewer grid bits.", parameter="grid_bits"
    )


def _rows_at_most(releases: Sequence[Release]) -> int | None:
    """Return an upper bound on n of the sum, from those of the tables; None if one has none."""
    by_table: dict[object, int] = {}
    for release in releases:
        if release.rows_at_most is None:
            return None
        table = frozenset(extent.dataset for extent in release.extents) or release.release_id
        by_table[table] = max(by_table.get(table, 0), release.rows_at_most)
    return min(sum(by_table.values()), 2**63 - 1)


def _are_disjoint(releases: Sequence[Release], *, disjoint: bool) -> bool:
    """Whether the rows that neighbours differ in, one row or all rows of a unit, are in one of the releases only."""
    tables = [{extent.dataset for extent in release.extents} for release in releases]
    unit = releases[0].unit
    if (
        unit is None or unit.max_periods is not None
    ):  # then periods are accounted for (:mod:`dpdist.core.privacy.persons`)
        one_table = all(tables) and len(set().union(*tables)) == 1
        return one_table or disjoint
    # a unit may have rows in every period of a table, even if its owner states that other tables are disjoint
    return disjoint and all(tables) and len(set().union(*tables)) == sum(map(len, tables))


def write_sum(total: Release, target: AnyStore) -> bool:
    """Publish a sum of releases; return whether it was written now. An identical sum is left alone."""
    target = store_at(target)
    if (attributes_of(target) or {}).get("release_id") == total.release_id:
        stored = open_release(target)
        if np.array_equal(stored.lattice, total.lattice) and stored.guarantee == total.guarantee:
            return False
    band = Band.whole(total.bound.width)
    publish(io.BytesIO(b"".join(archived(total, [(band, packed(total.lattice))]))), target)
    return True


def _require_alike(first: Release, other: Release, *, weighted: bool = False) -> None:
    if other.subspace is not None:
        raise UsageError(f"{other.release_id} contains components; only second moments can be added. Leave it out.")
    if not weighted:
        other.require_moment()
    if not other.private_as_claimed:
        raise RefusedError(
            f"{other.release_id} is not private as claimed: it was made for reproduction only. Leave it out."
        )
    for aspect, same in (
        ("columns", first.names == other.names),
        ("bound (clip norm, grid bits, centre or scale)", first.bound == other.bound),
        ("neighbouring relation", first.neighbours is other.neighbours),
        ("privacy unit", first.unit == other.unit),
        ("window", first.window == other.window),
        ("schema", first.schema == other.schema),
        ("mechanism", first.mechanism == other.mechanism),
    ):
        if not same:
            bits = first.bound.grid_bits, other.bound.grid_bits
            if bits[0] != bits[1]:
                give = parameter("grid_bits", str(max(bits)))
                raise UsageError(
                    f"{first.release_id} and {other.release_id} differ in their grid bits ({bits[0]} and {bits[1]}), "
                    f"which follow from the numbers of rows, so they cannot be added. Make releases that are to be "
                    f"added with {give}."
                )
            raise UsageError(
                f"{first.release_id} and {other.release_id} differ in their {aspect}, so they cannot be added. Combine "
                "releases with the same parameters."
            )


def parallel(guarantees: Sequence[Guarantee]) -> Guarantee:
    """Return the guarantee for releases of disjoint rows: only one of them changes, so the weakest one holds."""
    ranges = {guarantee.bounded_ranges for guarantee in guarantees}
    squares = [g.mu_squared for g in guarantees if g.mu_squared is not None]
    loss = PrivacyLoss(max(g.loss.epsilon_micro for g in guarantees), max(g.loss.delta_atto for g in guarantees))
    square = max(squares) if len(squares) == len(guarantees) else None
    return _joint(guarantees, loss, square, ranges.pop() if len(ranges) == 1 else ())


def sequential(guarantees: Sequence[Guarantee]) -> Guarantee:
    """Return the composition, for rows that may be in all releases, if all requests were fixed beforehand."""
    if len(guarantees) == 1:
        return guarantees[0]
    delta = sum(g.loss.delta_atto for g in guarantees)
    if delta >= ATTO:
        raise RefusedError(
            "The deltas of these releases add up to 1, so their sum has no guarantee. Combine fewer releases."
        )
    return _composed(guarantees, delta)


def nested(guarantees: Sequence[Guarantee]) -> Guarantee:
    """Return the composition of the levels, for rows that are in one release per level."""
    if any(guarantee.mu_squared is None for guarantee in guarantees):
        return sequential(guarantees)
    # Gaussian levels share the loss of the whole tree, and so its delta (:func:`dpdist.core.privacy.accounting.share`)
    return _composed(guarantees, max(g.loss.delta_atto for g in guarantees))


def _composed(guarantees: Sequence[Guarantee], delta_atto: int) -> Guarantee:
    squares = [g.mu_squared for g in guarantees if g.mu_squared is not None]
    square = sum(squares, Fraction(0)) if len(squares) == len(guarantees) else None
    return _joint(guarantees, PrivacyLoss(composed_epsilon_micro(guarantees, delta_atto), delta_atto), square)


def _joint(
    guarantees: Sequence[Guarantee], loss: PrivacyLoss, square: Fraction | None, ranges: tuple[Fraction, ...] = ()
) -> Guarantee:
    return Guarantee(guarantees[0].neighbours, loss, square, Arithmetic.of_all(guarantees), _PROOF, ranges)
