"""The commands ledger create, show, verify, raise, export and adopt."""

from __future__ import annotations

import json

import click

from dpdist.cli import Suggesting
from dpdist.cli.options import LEDGER, STORE, json_option, options
from dpdist.cli.output import answer, show
from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import Record, State
from dpdist.core.options import BudgetOptions
from dpdist.core.pipeline.budget import create_ledger, verify_ledger
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.text import counted, listed, wrapped


@click.group(cls=Suggesting)
def ledger() -> None:
    """Create, show, verify, export or repair a ledger."""


@ledger.command("create")
@click.argument("ledger", type=LEDGER)
@click.option("--rows", required=True, type=STORE, help="The rows that the budget protects.")
@options(BudgetOptions, "budget_options")
@click.option(
    "--spent",
    metavar="EPSILON[,DELTA]",
    help="What releases about the same people cost before this ledger; it is taken off the budget.",
)
@json_option
def ledger_create(
    ledger: LedgerAddress, rows: AnyStore, budget_options: BudgetOptions, spent: str | None, as_json: bool
) -> None:
    """Declare a budget. LEDGER is a new folder or postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME.

    The guarantee of every release repeats the statement of --spent, which dpdist cannot verify.
    """
    fresh = not Ledger.stands_at(ledger)
    created = create_ledger(ledger, rows, budget_options.budget, _loss(spent))
    before = "" if fresh else ", unchanged"
    used = "" if created.spent is None else f" left, as {created.spent} was spent before"
    value = {"ledger": str(ledger), "fresh": fresh, **created.budget.to_json(), **_spent_json(created)}
    answer(as_json, value, f"{ledger}: budget {created.budget}{used}{before}.")


def _spent_json(opened: Ledger) -> dict[str, object]:
    return {} if opened.spent is None else {"spent": opened.spent.to_json()}


def _loss(text: str | None) -> PrivacyLoss | None:
    """Return a loss given as EPSILON or EPSILON,DELTA."""
    if text is None:
        return None
    epsilon, _, delta = text.partition(",")
    return PrivacyLoss.parse(epsilon, delta or 0)


@ledger.command("show")
@click.argument("ledger", type=LEDGER)
@json_option
def ledger_show(ledger: LedgerAddress, as_json: bool) -> None:
    """Show the budget, the balance and all releases."""
    opened = Ledger(ledger)
    balance, missing = opened.balance(), opened.missing()
    if as_json:
        click.echo(json.dumps(_ledger_json(opened)))
        return
    refused = _refused(opened)
    if refused is not None:
        behind = missing or opened.exhausted_elsewhere
        _show_line("", f"{'BEHIND ITS WITNESS' if behind else 'NOTHING NEW CAN BE RELEASED'}: {refused}")
    _show_line("budget", str(balance.budget))
    _show_line("balance", balance.so_far)
    _show_line("", balance.rest)
    _show_line("guarantee", balance.promise)
    for record in opened.records:
        request = f"{record.parameters['mechanism']}, {record.guarantee.loss}, {record.guarantee.neighbours}"
        part = f"; {len(record.stages)} of {record.draws} draws committed" if record.state is State.STAGED else ""
        _show_line(record.state, f"{record.release_id}  {request}{_periods(record)}{part}")
        if record.path:
            show(f"{'':<11}{record.path}")  # one word, to be copied


def _periods(record: Record) -> str:
    """Return which periods a release reads, if it is of some, as the end of a sentence."""
    if len(record.periods) < 2:
        return "".join(f"; of {period}" for period in record.periods)
    return f"; of {len(record.periods)} periods, {record.periods[0]} to {record.periods[-1]}"


def _refused(opened: Ledger) -> str | None:
    """Return why every new charge would be refused, or None."""
    try:
        opened.require_current()
    except RefusedError as error:
        return str(error)
    return None


def _show_line(label: str, text: str) -> None:
    show(wrapped(text, f"{label:<10} ", " " * 11))


@ledger.command("verify")
@click.argument("ledger", type=LEDGER)
@click.option(
    "--release", "releases", type=STORE, multiple=True, help="A release that LEDGER must contain; repeatable."
)
@json_option
def ledger_verify(ledger: LedgerAddress, releases: tuple[AnyStore, ...], as_json: bool) -> None:
    """Verify journal, balance and committed releases. With --release, check that the ledger contains it."""
    opened = verify_ledger(ledger, releases)
    count, guarantee = len(opened.records), opened.balance().promise
    value = {"ledger": str(ledger), "intact": True, "head": opened.head, "releases": count, "guarantee": guarantee}
    sums = [path for path in releases if (attributes_of(store_at(path)) or {}).get("session")]
    partly = "".join(f" Of {path}, only the share of this site was verified." for path in sums)
    message = f"{ledger}: intact, {counted(count, 'release')}, head {opened.head}. Guarantee: {guarantee}.{partly}"
    answer(as_json, value, message)


@ledger.command("raise")
@click.argument("ledger", type=LEDGER)
@options(BudgetOptions, "budget_options")
@click.option(
    "--regardless-of-answers",
    is_flag=True,
    required=True,
    help="State that no answer is the reason; the journal records it.",
)
@json_option
def ledger_raise(
    ledger: LedgerAddress, budget_options: BudgetOptions, regardless_of_answers: bool, as_json: bool,  # noqa: ARG001 - required
) -> None:  # fmt: skip
    """Raise the budget, and state that no answer is the reason. Every later release repeats this condition.

    All releases together keep the raised budget as if it had been declared at first, unless it was raised because of an
    answer: then each release keeps its own guarantee, and no total is proved.
    """
    if budget_options.budget is None:
        raise UsageError("Give the new budget: --budget-epsilon E and, if a delta is allowed, --budget-delta D.")
    balance = Ledger(ledger).raise_budget(budget_options.budget)
    value = {"ledger": str(ledger), **balance.to_json()}
    answer(as_json, value, f"{ledger}: budget {balance.budget}. {balance}.")


@ledger.command("export")
@click.argument("ledger", type=LEDGER)
def ledger_export(ledger: LedgerAddress) -> None:
    """Print the ledger as JSON."""
    click.echo(json.dumps(_ledger_json(Ledger(ledger)), indent=2))


@ledger.command("adopt")
@click.argument("ledger", type=LEDGER)
@json_option
def ledger_adopt(ledger: LedgerAddress, as_json: bool) -> None:
    """Charge LEDGER for releases of its copies. Use it after LEDGER was copied or restored from a backup.

    Noise of those releases is not drawn again. If the witness is lost, the whole budget is charged.
    """
    opened = Ledger(ledger)
    adopted = opened.adopt()
    message = f"{ledger}: no release is missing."
    if adopted:
        message = f"{ledger}: charged {counted(len(adopted), 'release')} committed elsewhere: {listed(adopted)}."
    if opened.exhausted:
        message += (
            " The whole budget is charged: the witness was lost, or a release could have been charged in two ways."
        )
    value = {"ledger": str(ledger), "adopted": adopted, "exhausted": opened.exhausted, "head": opened.head}
    answer(as_json, value, message)


def _ledger_json(opened: Ledger) -> dict[str, object]:
    return {
        "dataset_id": opened.dataset_id,
        **opened.balance().to_json(),
        **_spent_json(opened),
        "caps": [caps.to_json() for caps in opened.caps],
        "releases": [
            {
                "id": record.release_id,
                "state": record.state.value,
                "parameters": record.parameters,
                "guarantee": record.guarantee.to_json(),
                "digest": record.digest,
                **({"periods": list(record.periods)} if record.periods else {}),
                **({"path": record.path} if record.path else {}),
                **({"weights": list(record.weights)} if record.weights else {}),
                **({"stages": [draw.digest for draw in record.stages]} if record.draws > 1 else {}),
            }
            for record in opened.records
        ],
        "head": opened.head,
        "missing": opened.missing(),
        "refused": _refused(opened),
    }
