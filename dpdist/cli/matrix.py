"""The command release-matrix."""

from __future__ import annotations

from pathlib import Path

import click

from dpdist.cli.options import LEDGER, LOCAL, STORE, grouped, json_option, options
from dpdist.cli.output import answer, say
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.options import BudgetOptions, ReleaseOptions
from dpdist.core.privacy.checks import cautions, cautions_message
from dpdist.core.storage.store import AnyStore
from dpdist.literature.declared import release_matrix

_NORM = "Largest {} between the matrices of neighbouring data sets, derived on paper; it is not verified."
_BUDGET = {
    "budget_epsilon": {"help": "Epsilon of the budget of a new ledger [default: the loss of this release]."},
    "budget_delta": {"help": "Delta of the budget of a new ledger."},
}


@grouped("release-matrix")
@click.argument("matrix", type=LOCAL)
@click.argument("release", type=STORE)
@options(ReleaseOptions, "release_options", names={"epsilon", "delta", "neighbours"}, clip="")
@click.option("--frobenius", metavar="S", help=_NORM.format("Frobenius distance"))
@click.option("--nuclear", metavar="S", help=_NORM.format("distance in nuclear norm"))
@click.option("--l1", metavar="S", help=_NORM.format("l1 distance of the upper triangles"))
@options(BudgetOptions, "budget_options", changed=_BUDGET)
@click.option("--ledger", type=LEDGER, help="The ledger to charge, or to create [default: next to MATRIX].")
@json_option
def release_matrix_command(
    matrix: Path, release: AnyStore, release_options: ReleaseOptions, frobenius: str | None, nuclear: str | None,
    l1: str | None, budget_options: BudgetOptions, ledger: LedgerAddress | None, as_json: bool,
) -> None:  # fmt: skip
    """Publish RELEASE: the symmetric matrix of MATRIX, a .npy file, plus noise for the sensitivity that you declare.

    At least one of --frobenius, --nuclear and --l1 is required. The mechanism is gaussian with --delta; without, it is
    two-sided-wishart or laplace, whichever has less noise. The ledger is next to MATRIX, or --ledger: name one ledger
    for everything about the same people. Repeating the command publishes the same bytes for free.
    """
    made = release_matrix(
        matrix, release, epsilon=release_options.epsilon, delta=release_options.delta or "0", frobenius=frobenius,
        nuclear=nuclear, l1=l1, neighbours=release_options.neighbours, ledger=ledger, budget=budget_options.budget,
        say=say,
    )  # fmt: skip
    warned = cautions(made.guarantee.loss, made.guarantee.neighbours, None)
    value = {"release": str(release), **made.attributes(), "noise_deviation": made.deviation, "cautions": list(warned)}
    answer(as_json, value, f"{release}: {made.describe()} This file is public.{cautions_message(warned)}")
