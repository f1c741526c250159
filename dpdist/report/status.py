"""What a job would do and how it stands, in words."""

from __future__ import annotations

from typing import Any

from dpdist._util.text import counted, labelled
from dpdist.ledger.balance import Balance
from dpdist.privacy.accounting import Left
from dpdist.privacy.guarantee import PrivacyLoss


def preview_words(found: dict[str, Any]) -> str:
    """Return a preview as text."""
    lines = [
        f"{each['of']}: epsilon {each['epsilon_micro'] / 1e6:g}, delta {each['delta_atto'] / 1e18:g}"
        for each in found["releases"]
    ]
    if found["new_periods"]:
        lines.insert(0, f"Periods to close: {', '.join(found['new_periods'])}.")
    budget = found["budget"]
    declared = "no budget is declared" if budget is None else f"the budget is {PrivacyLoss.from_json(budget)}"
    lines.append(
        f"{counted(len(found['releases']), 'release')} to make, and {found['charged']} charged before; {declared}"
        + (
            f". Left of the whole table afterwards: {Left.from_json(found['left'])}."
            if found["fits"]
            else ": THE RUN WOULD BE REFUSED."
        )
    )
    return "\n".join([*lines, "Nothing was read, charged or published."])


def standing_words(found: dict[str, Any]) -> str:
    """Return a standing as text."""
    budget = found["budget"]
    counts = ", ".join(f"{count} {state}" for state, count in found["releases"].items())
    nothing = "nothing is charged yet" if found["refused"] is None else "not known"
    lines = [
        ("budget", "not declared yet" if budget is None else str(PrivacyLoss.from_json(budget))),
        ("balance", nothing if found["balance"] is None else str(Balance.from_json(found["balance"]))),
        ("releases", f"{counts}; {counted(found['attempts'], 'attempt')} in all"),
    ]
    lines += [
        ("unfinished", f"{r['id']} is {r['state']}, {counted(r['attempts'], 'attempt')}") for r in found["unfinished"]
    ]
    if found["periods_closed"] or found["periods_waiting"]:
        wait = ", ".join(found["periods_waiting"]) or "none"
        last = f", the last {found['last_period']}" if found["last_period"] else ""
        lines.append(("periods", f"{found['periods_closed']} closed{last}; waiting: {wait}"))
    said = labelled(lines)
    if found["refused"] is not None:
        said = f"NOTHING NEW CAN BE RELEASED; what is said of the balance may be out of date.\n{said}"
    return said


def textfile(found: dict[str, Any]) -> str:
    """Return a standing in the text format of Prometheus, for node_exporter's textfile collector."""
    label = "{rows=" + '"' + found["rows"].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    budget = found["budget"]
    nothing = {"gaussian_epsilon_micro": 0, "pure_epsilon_micro": 0, "share_charged": 0.0}
    left = found["balance"]["left"] if found["balance"] and found["refused"] is None else nothing
    metrics: list[tuple[str, str, str, list[tuple[str, float]]]] = [
        ("budget_epsilon", "gauge", "Declared budget.", [("", budget["epsilon_micro"] / 1e6 if budget else 0.0)]),
        (
            "left_gaussian_epsilon",
            "gauge",
            "Largest Gaussian release left.",
            [("", left["gaussian_epsilon_micro"] / 1e6)],
        ),
        ("left_pure_epsilon", "gauge", "Largest pure release left.", [("", left["pure_epsilon_micro"] / 1e6)]),
        ("charged_share", "gauge", "Share of the caps that is charged.", [("", left["share_charged"])]),
        (
            "releases",
            "gauge",
            "Releases by state.",
            [(f',state="{state}"', count) for state, count in found["releases"].items()],
        ),
        ("attempts_total", "counter", "Attempts to draw noise.", [("", found["attempts"])]),
        ("periods_closed", "gauge", "Periods closed.", [("", found["periods_closed"])]),
        ("refused", "gauge", "Whether the ledger refuses every new release.", [("", found["refused"] is not None)]),
        (
            "periods_waiting",
            "gauge",
            "Periods in the source that are not closed.",
            [("", len(found["periods_waiting"]))],
        ),
    ]
    lines = []
    for name, kind, words, values in metrics:
        lines += [f"# HELP dpdist_{name} {words}", f"# TYPE dpdist_{name} {kind}"]
        lines += [f"dpdist_{name}{label}{more}}} {value:g}" for more, value in values]
    return "\n".join(lines) + "\n"
