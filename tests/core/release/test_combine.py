"""Sums of releases: conditions, rows, and the joint guarantee."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.releases import archive_of, of_two_columns

from dpdist.answers.bias import rounding
from dpdist.cli import cli
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.pipeline.inspect import inspect_path
from dpdist.core.privacy import accounting
from dpdist.core.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.attributes import Coverage, SessionFacts
from dpdist.core.release.combine import combined, estimated, parallel, sequential, write_sum
from dpdist.core.release.opening import open_release
from dpdist.core.release.series import Node
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.units import Unit

BOUND = RowBound(2, clip_norm=8.0, grid_bits=4)
MU_SQUARED = 1 / Fraction(accounting.gaussian_sigma(PrivacyLoss.parse("1", "1e-6"))) ** 2


def guarantee(epsilon: str = "1", delta: str = "1e-6", *, gaussian: bool = True) -> Guarantee:
    loss = PrivacyLoss.parse(epsilon, delta)
    square = 1 / Fraction(accounting.gaussian_sigma(loss)) ** 2 if gaussian else None
    return Guarantee(Neighbours.REPLACE_ONE, loss, square, Arithmetic.INTEGER_EXACT, "by hand")


def part(start: int, stop: int | None = None, dataset: str = "d" * 32) -> Coverage:
    stop = start + 1 if stop is None else stop
    return Coverage(dataset, start, stop, f"day {start}", f"day {stop - 1}")


def release(number: int, extent: Coverage | None = None, **changes: Any) -> Release:
    promised = changes.pop("guarantee", guarantee())
    assert isinstance(promised, Guarantee)
    lattice = np.array([[number, 2], [2, 3]], dtype=np.int64)
    noise = Noise("by hand", variance_diagonal=2.0, variance_off_diagonal=1.0)
    extents = (extent or part(number),)
    return replace(
        of_two_columns(number, promised, noise, rows=10 * number, answer=lattice, extents=extents), **changes
    )


def test_periods_of_one_table_add_up_and_promise_what_the_weakest_promises() -> None:
    weak = guarantee("2", "1e-7")
    total = combined([release(1), release(2, guarantee=weak), release(3)])
    np.testing.assert_array_equal(total.lattice, [[6, 6], [6, 9]])
    assert total.rows == 60
    assert total.noise == {
        "law": "sum", "of": "by hand", "terms": 3, "variance_diagonal": 6.0, "variance_off_diagonal": 3.0
    }  # fmt: skip
    assert total.guarantee is not None
    assert total.guarantee.loss == PrivacyLoss.parse("2", "1e-6")
    assert total.guarantee.mu_squared == weak.mu_squared
    assert total.private_as_claimed
    assert total.extents == (part(1, 4),)


def test_what_n_is_at_most_is_said_of_each_table_once() -> None:
    """So the rounding error of a sum is stated if n is private, and that it includes its diagonal."""
    private: dict[str, Any] = {
        "rows": None, "neighbours": Neighbours.ADD_REMOVE,
        "guarantee": replace(guarantee(), neighbours=Neighbours.ADD_REMOVE),
    }  # fmt: skip
    one, two = release(1, rows_at_most=400, **private), release(2, rows_at_most=500, **private)
    other = release(3, part(0, dataset="e"), rows_at_most=70, **private)
    assert combined([one, two]).rows_at_most == 500
    assert combined([combined([two, one]), other], disjoint=True).rows_at_most == 570
    assert combined([one, release(2, rows_at_most=None, **private)]).rows_at_most is None
    alone, total = rounding(one), rounding(combined([one, two, other], disjoint=True))
    assert alone is not None
    assert total is not None
    assert total.error > alone.error > 0
    assert total.shift == 570 / 4 * BOUND.unit**2


def test_the_id_does_not_depend_on_order_or_grouping() -> None:
    one, two, three = release(1), release(2), release(3)
    total = combined([three, one, two])
    again = combined([combined([one, two]), three])
    assert archive_of(total).getvalue() == archive_of(again).getvalue()
    assert total.release_id != combined([one, two]).release_id
    a, b, c = (release(i, part(0, dataset=name)) for i, name in enumerate("def", 1))
    total = combined([c, a, b], disjoint=True)
    again = combined([combined([a, b], disjoint=True), c], disjoint=True)
    assert archive_of(total).getvalue() == archive_of(again).getvalue()


def test_the_same_rows_are_not_added_up_twice() -> None:
    for other in (part(1), part(0, 5), part(0, 2), Coverage("d" * 32)):
        with pytest.raises(RefusedError, match="contain the same rows"):
            combined([release(1), release(2, other)])
    with pytest.raises(RefusedError, match="contain the same rows"):
        combined([release(1, Coverage("d" * 32)), release(2, Coverage("d" * 32))])
    with pytest.raises(RefusedError, match="named twice"):
        combined([release(1), release(1, part(7))])


def test_tables_compose_as_if_a_row_were_in_each_unless_their_owners_say_otherwise() -> None:
    sites = [release(1, part(0, dataset="d")), release(2, part(0, dataset="e"))]
    stated, composed = combined(sites, disjoint=True), combined(sites)
    disjoint, unsaid = stated.guarantee, composed.guarantee
    assert disjoint is not None
    assert unsaid is not None
    assert stated.condition == "no row is in two of the tables, as their owners state"
    assert composed.condition is combined([release(1), release(2)], disjoint=True).condition is None
    assert stated.release_id != composed.release_id
    mixed = combined([stated, release(3, part(0, dataset="f"))])  # holds if the owners were right, too
    assert mixed.condition == stated.condition
    assert mixed.release_id != combined([*sites, release(3, part(0, dataset="f"))]).release_id
    assert disjoint.loss == PrivacyLoss.parse("1", "1e-6")
    assert unsaid.mu_squared == 2 * MU_SQUARED
    assert unsaid.loss.delta_atto == 2 * guarantee().loss.delta_atto
    epsilon = Fraction(unsaid.loss.epsilon_micro, 10**6)
    assert accounting.gaussian_delta(epsilon, 2 * MU_SQUARED) <= 2e-6
    assert accounting.gaussian_delta(epsilon - Fraction(1, 10**6), 2 * MU_SQUARED) > 2e-6


def test_a_release_of_unknown_rows_is_not_taken_to_be_of_the_same_table() -> None:
    for parts in ([release(1), release(2, extents=())], [release(3, extents=()), release(1)]):
        joint = combined(parts).guarantee
        assert joint is not None
        assert joint.mu_squared == 2 * MU_SQUARED


def test_of_units_their_owners_must_say_that_no_unit_is_in_two_tables() -> None:
    """A unit with rows in each table changes each release: tables, periods or rows do not isolate it."""
    unit = Unit("person", 3)

    def joint(*parts: Release, disjoint: bool = False) -> Fraction:
        guarantee = combined(parts, disjoint=disjoint).guarantee
        assert guarantee is not None
        assert guarantee.mu_squared is not None
        return guarantee.mu_squared / MU_SQUARED

    d, e = (release(i, Coverage(name * 32), unit=unit) for i, name in enumerate("de", 1))
    assert joint(d, e) == 2
    assert joint(d, e, disjoint=True) == 1
    assert joint(release(1, unit=unit), release(2, unit=unit)) == 2  # periods of one table
    assert joint(release(1, unit=unit), release(2, unit=unit), disjoint=True) == 2
    assert joint(d, release(3, unit=unit, extents=()), disjoint=True) == 2


@pytest.mark.parametrize(("unit", "word"), [(None, "row"), (Unit("person", 3), "person")])
def test_the_command_writes_a_release_that_opens_and_says_what_was_taken_on_trust(
    tmp_path: Path, unit: Unit | None, word: str
) -> None:
    for number, dataset in ((1, "d"), (2, "e")):
        write_sum(release(number, Coverage(dataset * 32), unit=unit), tmp_path / f"{number}.zarr")
    command = ["combine", str(tmp_path / "sum.zarr"), str(tmp_path / "1.zarr"), str(tmp_path / "2.zarr"), "--json"]
    for _ in range(2):  # again: the same bytes are there
        result = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert result.exit_code == 0
    assert "state" not in result.output
    opened = open_release(tmp_path / "sum.zarr")
    assert json.loads(result.stdout)["release_id"] == opened.release_id
    assert (opened.releases, opened.rows) == (("r-1", "r-2"), 30)
    np.testing.assert_array_equal(opened.lattice, [[3, 4], [4, 6]])
    command = ["combine", str(tmp_path / "disjoint.zarr"), *command[2:4], "--disjoint"]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    stated = f"no {word} is in two of the tables, as their owners state"
    assert f"if {stated}" in " ".join(result.output.split())
    assert open_release(tmp_path / "disjoint.zarr").condition == stated


def test_inspect_says_what_a_guarantee_depends_on(tmp_path: Path) -> None:
    write_sum(release(1, condition="no request followed from an answer"), tmp_path / "1.zarr")
    said = " ".join(inspect_path(tmp_path / "1.zarr").describe().split())
    assert "proved epsilon 1, delta 1e-06 under replace-one, if no request followed from an answer" in said


def test_guarantees_join_and_claim_only_what_all_have() -> None:
    one, two = guarantee("1", "0", gaussian=False), guarantee("2", "0", gaussian=False)
    assert parallel([one, two]).loss == PrivacyLoss.parse("2")
    assert sequential([one, two]).loss == PrivacyLoss.parse("3")
    assert sequential([one, two]).mu_squared is None
    assert sequential([one]) == one
    mixed = parallel([one, guarantee()])
    assert (mixed.loss, mixed.mu_squared) == (PrivacyLoss.parse("1", "1e-6"), None)
    ideal = replace(guarantee(), arithmetic=Arithmetic.IDEAL_REAL)
    assert parallel([guarantee(), ideal]).arithmetic is Arithmetic.IDEAL_REAL
    ranged = replace(one, bounded_ranges=(Fraction(1),))
    assert parallel([ranged, ranged]).bounded_ranges == (Fraction(1),)
    assert not parallel([ranged, one]).bounded_ranges
    assert not sequential([ranged, ranged]).bounded_ranges


def test_what_cannot_be_added_up_is_refused() -> None:
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"names": ("a", "c")}, UsageError, "columns"),
        ({"bound": RowBound(2, clip_norm=9.0, grid_bits=4)}, UsageError, "bound"),
        ({"bound": replace(BOUND, grid_bits=5)}, UsageError, "grid"),
        ({"neighbours": Neighbours.ADD_REMOVE}, UsageError, "neighbouring relation"),
        ({"mechanism": "two-sided-wishart"}, UsageError, "mechanism"),
        ({"unit": Unit("person", 3)}, UsageError, "privacy unit"),
        ({"answer": np.array([[1.0, 0.0]])}, UsageError, "components"),
        ({"claim": PrivacyLoss.parse("0.5")}, RefusedError, "not private as claimed"),
        ({"answer": np.full((2, 2), 2**62, dtype=np.int64)}, DataError, "exceeds 64-bit integers"),
        ({"answer": np.full((2, 2), -(2**63), dtype=np.int64)}, DataError, "exceeds 64-bit integers"),
        ({"session": SessionFacts("0" * 64, ("a", "b"), 0)}, UsageError, "rows of several sites"),
    ]
    for changes, error, message in refused:
        with pytest.raises(error, match=message):
            combined([release(1), release(2, **changes)])
    with pytest.raises(UsageError, match="nothing to combine"):
        combined([])


def tree(**changes: Release) -> dict[Node, Release]:
    """Return releases of four periods, of their halves, and of all: each is its number, from 1, times 100."""
    share = guarantee("0.5")
    nodes = list(Node(4, 8).tree())
    releases = {
        node: release(
            100 * number, part(node.start, node.stop), guarantee=share, rows=10 * (node.stop - node.start),
            noise=Noise("drawn", EdgeKind.NORMAL, variance_diagonal=2.0, variance_off_diagonal=1.0),
        )
        for number, node in enumerate(nodes, 1)
    }  # fmt: skip
    return {node: changes.get(f"n{node.start}_{node.stop}", default) for node, default in releases.items()}


def test_sites_whose_grids_follow_from_their_rows_learn_the_option_to_give() -> None:
    with pytest.raises(UsageError, match=r"grid bits \(4 and 5\), .*Make releases .* with grid_bits=5"):
        combined([release(1), release(2, bound=replace(BOUND, grid_bits=5))])


def test_the_best_estimate_of_a_node_weighs_each_level_by_its_periods() -> None:
    releases = tree()
    total = estimated(Node(4, 8), releases.__getitem__)
    exact = Fraction(4 * 100 + 2 * (200 + 300) + 400 + 500 + 600 + 700, 7)
    assert total.lattice[0, 0] == round(exact)
    np.testing.assert_array_equal(total.lattice, total.lattice.T)
    assert total.lattice[1, 1] == round(Fraction(3 * (4 + 2 + 2 + 4), 7))
    assert total.noise["variance_off_diagonal"] == pytest.approx(4 / 7)
    assert total.noise["variance_diagonal"] == pytest.approx(8 / 7)
    assert total.noise.edge is EdgeKind.NORMAL
    assert (total.rows, total.extents) == (40, (part(4, 8),))
    assert total.releases == tuple(sorted(item.release_id for item in releases.values()))
    assert estimated(Node(6, 7), releases.__getitem__) is releases[Node(6, 7)]


def test_a_best_estimate_tells_as_much_as_one_release_of_each_level() -> None:
    """The levels compose: three of mu² make three times mu², at their common delta."""
    total = estimated(Node(4, 8), tree().__getitem__)
    assert total.guarantee is not None
    assert total.guarantee.mu_squared == 3 * (guarantee("0.5").mu_squared or 0)
    assert total.guarantee.loss.delta_atto == guarantee("0.5").loss.delta_atto
    assert total.guarantee.loss.epsilon_micro > 500_000
    pure = {node: replace(item, guarantee=guarantee("0.5", "0", gaussian=False)) for node, item in tree().items()}
    joint = estimated(Node(4, 8), pure.__getitem__).guarantee
    assert joint is not None
    assert joint.loss == PrivacyLoss.parse("1.5")


def test_noise_of_two_sides_keeps_its_law_when_it_is_weighed() -> None:
    details: dict[str, Any] = {"columns": 5, "scale": 4.0}
    weighed = Noise("two-sided-wishart", EdgeKind.TWO_SIDED_WISHART, 16.0, 8.0, details=details).weighted(0.5)
    part = weighed.summands[0]
    assert (part.kind, part.degrees, part.scale, part.variance) == (EdgeKind.TWO_SIDED_WISHART, 5, 2.0, 2.0)
    assert Noise.from_json(weighed.to_json()) == weighed


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n6_7": release(3, part(5))}, DataError, "does not contain the periods that its name states"),
        ({"n6_7": release(3, part(6, dataset="e"))}, DataError, "does not contain the periods that its name states"),
        ({"n6_7": release(3, part(6), bound=RowBound(2, clip_norm=9.0, grid_bits=4))}, UsageError, "differ in their"),
        ({"n6_7": release(3, part(6), claim=PrivacyLoss.parse("0.1"))}, RefusedError, "not private as claimed"),
        ({f"n{i}_{i + 1}": release(i, part(i), answer=np.full((2, 2), 2**63 - 1)) for i in range(4, 8)}, DataError,
         "exceeds 64-bit integers"),
    ],
)  # fmt: skip
def test_what_makes_no_tree_is_refused(changes: dict[str, Release], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        estimated(Node(4, 8), tree(**changes).__getitem__)
    large = tree(n6_7=release(3, part(6), answer=np.full((2, 2), 2**62 - 1)))  # what it weighs counts
    assert estimated(Node(4, 8), large.__getitem__).lattice[0, 0] > 2**59
