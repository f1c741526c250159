"""The preview and the status of a job as text."""

from __future__ import annotations

from dpdist.core.privacy.guarantee import MICRO
from dpdist.core.privacy.parallel import Charge
from dpdist.core.text import counted, labelled
from dpdist.jobs.status import JobStatus, Preview
from dpdist.jobs.totals import TotalReads
from dpdist.report.text import amount


def preview_message(preview: Preview) -> str:
    """Return a preview as text."""
    lines = [f"{of}: {charge.guarantee.loss}{_reads(charge)}" for of, charge in preview.releases]
    if preview.new_periods:
        lines.insert(0, f"Periods to close: {', '.join(preview.new_periods)}.")
    if preview.unit is not None:
        lines.append(f"Each protects all rows of one {preview.unit.column}, {preview.unit.most}.")
    if preview.person is not None:
        least, most = preview.person.rows
        changed = f"{f'{least} to ' if least < most else ''}{counted(most, 'row')}"
        text = f"The noise is calibrated to a change of {changed} of one period"
        if preview.person.deviation is not None:
            text += f": in each release, an off-diagonal entry has standard deviation {preview.person.deviation:.3g}"
        lines.append(f"{text}.")
    if preview.choosing is not None:
        lines.append(f"The private choice at the start of the release uses {preview.choosing.share_message}.")
    if preview.totals:
        total, largest = preview.totals
        text = f"The total of {counted(total.periods, 'period')} opens {_opens(total)}"
        if largest.releases > total.releases:
            text += f"; the largest planned total, of {largest.periods} periods, opens {_opens(largest)}"
        lines.append(f"{text}.")
    declared = "no budget is declared" if preview.budget is None else f"the budget is {preview.budget}"
    lines.append(
        f"{counted(len(preview.releases), 'release')} to make, {preview.charged} already charged; {declared}"
        + (f". Balance of the table afterwards: {preview.left}." if preview.fits else ": THE RUN WOULD BE REFUSED.")
    )
    if preview.refused is not None:
        lines.append(f"THE RUN WOULD BE REFUSED. {preview.refused}")
    if preview.entries_refused:
        lines.append(f"THE RUN WOULD END WITH AN ERROR, after what it can do. {' '.join(preview.entries_refused)}")
    return "\n".join([*lines, "Nothing was charged or published."])


def _reads(charge: Charge) -> str:
    """Return how many periods a release reads, unless it is one."""
    if len(charge.periods) < 2:
        return ""
    less = f", less of those before {charge.periods[-1]}" if charge.weights else ""
    return f"{less}; it reads {len(charge.periods)} periods"


def _opens(total: TotalReads) -> str:
    size = "" if total.size is None else f" ({amount(total.size)})"
    return f"{counted(total.releases, 'published release')}{size}"


def status_message(status: JobStatus) -> str:
    """Return the status of a job as text."""
    counts = ", ".join(f"{count} {state}" for state, count in status.releases.items() if count) or "none"
    nothing = "nothing is charged yet" if status.refused is None else "unknown"
    lines = [
        ("budget", "not declared yet" if status.budget is None else str(status.budget)),
        ("balance", nothing if status.balance is None else str(status.balance)),
        ("releases", f"{counts}; {counted(status.attempts, 'attempt')} in all"),
    ]
    lines += [
        ("unfinished", f"{record.release_id} is {record.state}, {counted(record.fence, 'attempt')}")
        for record in status.unfinished
    ]
    if status.periods_closed or status.periods_waiting:
        waiting = ", ".join(status.periods_waiting) or "none"
        last = f", the last {status.last_period}" if status.last_period else ""
        of = "" if status.periods_at_most is None else f" of {status.periods_at_most}"
        lines.append(("periods", f"{status.periods_closed} closed{of}{last}; waiting: {waiting}"))
    lines += [("refused", reason) for reason in status.entries_refused]
    if status.last_run is not None:
        lines.append(("last run", status.last_run.described()))
    if status.noise is not None:
        noise = status.noise
        following = "the series has ended" if noise.following is None else f"{noise.following:.3g} of the next"
        of = f"of the total of {counted(noise.periods, 'period')}"
        lines.append(("noise", f"standard deviation of an entry {of}: {noise.now:.3g}; {following}"))
    text = labelled(lines)
    if status.refused is not None:
        text = f"NOTHING NEW CAN BE RELEASED; the balance may be out of date.\n{text}"
    return text


def textfile(status: JobStatus) -> str:
    """Return the status of a job in the text format of Prometheus, for node_exporter's textfile collector."""
    path = str(status.rows).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    left = None if status.balance is None or status.refused is not None else status.balance.left
    gaussian, pure, share = (0, 0, 0.0) if left is None else (left.gaussian_micro, left.pure_micro, left.share)
    metrics: list[tuple[str, str, str, list[tuple[str, float]]]] = [
        ("budget_epsilon", "gauge", "Declared budget.", [("", status.budget.epsilon if status.budget else 0.0)]),
        ("left_gaussian_epsilon", "gauge", "Largest Gaussian release left.", [("", gaussian / MICRO)]),
        ("left_pure_epsilon", "gauge", "Largest pure release left.", [("", pure / MICRO)]),
        ("charged_share", "gauge", "Share of the caps that is charged.", [("", share)]),
        ("releases", "gauge", "Releases by state.", [(f',state="{s}"', n) for s, n in status.releases.items()]),
        ("attempts_total", "counter", "Attempts to draw noise.", [("", status.attempts)]),
        ("periods_closed", "gauge", "Periods closed.", [("", status.periods_closed)]),
        ("refused", "gauge", "Whether the ledger refuses every new release.", [("", status.refused is not None)]),
        ("periods_waiting", "gauge", "Periods in the source that are not closed.", [("", len(status.periods_waiting))]),
        ("entries_refused", "gauge", "Entries of the source that are refused.", [("", len(status.entries_refused))]),
    ]
    if (last := status.last_run) is not None:
        metrics += [
            ("last_exit_code", "gauge", "Exit code of the last run.", [("", last.exit_code)]),
            ("last_exit_timestamp_seconds", "gauge", "End of the last run.", [("", last.ended)]),
            ("last_success_timestamp_seconds", "gauge", "End of the last success, or 0.", [("", last.succeeded or 0)]),
        ]
    lines = []
    for name, kind, description, values in metrics:
        lines += [f"# HELP dpdist_{name} {description}", f"# TYPE dpdist_{name} {kind}"]
        lines += [f'dpdist_{name}{{rows="{path}"{labels}}} {value:.15g}' for labels, value in values]
    return "\n".join(lines) + "\n"
