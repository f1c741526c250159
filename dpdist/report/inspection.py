"""What a path holds, in words."""

from __future__ import annotations

from collections.abc import Sequence

from dpdist._util.text import counted, exactly, labelled, rounded_norm, rounded_up
from dpdist._version import __version__
from dpdist.pipeline.facts import (
    AnyFacts,
    LedgerFacts,
    LedgerState,
    ModelFacts,
    PeriodsFacts,
    ReleaseFacts,
    RowsFacts,
    ScoresFacts,
)
from dpdist.pipeline.release import stage_words
from dpdist.rows.bounding import TRUNCATED, RowBound
from dpdist.rows.schema import Schema
from dpdist.rows.units import Unit

_SHOWN = 6
"""Column names that are shown to people."""
_PRIVATE = "PRIVATE: for whoever may read the rows"
_Lines = list[tuple[str, str]]


def words(facts: AnyFacts) -> str:
    """Return what was found as text: a line for each fact."""
    title, lines = _said(facts)
    lines = [("", f"{facts.path}: {title}. {_warning(facts)}."), *lines]
    if facts.damaged is not None:
        lines += [("DAMAGED", wrong) for wrong in facts.damaged] or [("verified", "nothing is damaged")]
    return labelled(lines)


def _said(facts: AnyFacts) -> tuple[str, _Lines]:
    """Return what it is, and what is known of it."""
    match facts:
        case RowsFacts():
            return "rows", _rows_lines(facts)
        case PeriodsFacts():
            return "rows that come in periods", _periods_lines(facts)
        case ReleaseFacts():
            return "a release", _release_lines(facts)
        case ModelFacts():
            return "principal components of a release", _model_lines(facts)
        case ScoresFacts():
            return "scores, private rows in fewer dimensions", _scores_lines(facts)


def _warning(facts: AnyFacts) -> str:
    if not facts.private:
        return "Public"
    match facts:
        case ReleaseFacts():
            return f"{facts.release.status.upper()}: do not publish it"
        case ModelFacts():
            return f"{facts.status.upper()}: do not publish it"
        case _:
            return _PRIVATE


def _names(columns: Sequence[str]) -> str:
    rest = len(columns) - _SHOWN
    return ", ".join(columns[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _unit_words(unit: Unit | None) -> str:
    return "one row" if unit is None else f"all rows of one {unit.column}, {unit.most}"


def _rows_lines(facts: RowsFacts) -> _Lines:
    chunks = f"{counted(facts.chunks, 'chunk')} of {counted(facts.chunk_rows, 'row')}"
    return [
        ("rows", f"{facts.n} (private under add-remove, public under replace-one)"),
        ("columns", f"{facts.d}: {_names(facts.columns)}"),
        ("stored", f"{facts.dtype}, {chunks}, {facts.bytes} bytes"),
        ("codec", f"compression {facts.codec}, checksum {facts.checksum} on every chunk"),
        *([("in place", f"{facts.source}: read where it is, and not to be changed")] if facts.source else []),
        ("data set", facts.dataset_id),
        *([("period", facts.period)] if facts.period else []),
        *_schema_lines(facts.schema),
        ("unit", _unit_words(facts.unit)),
        *([("reproduced", "released for reproduction: they get no budget any more")] if facts.reproduced else []),
        ("ledger", _ledger_words(facts.ledger)),
    ]


def _periods_lines(facts: PeriodsFacts) -> _Lines:
    span = f", {facts.first_period} to {facts.last_period}" if facts.periods_closed else ""
    return [
        ("periods", f"{facts.periods_closed} closed{span}"),
        ("unit", _unit_words(facts.unit)),
        ("data set", facts.dataset_id),
        ("ledger", _ledger_words(facts.ledger)),
    ]


def _ledger_words(ledger: LedgerFacts) -> str:
    budget = "no budget declared" if ledger.budget is None else f"budget {ledger.budget}"
    if ledger.state is not LedgerState.IN_USE:
        return f"{ledger.place or 'its place'} is {ledger.state}; {budget}"
    refused = "" if ledger.refused is None else f". NOTHING NEW CAN BE RELEASED: {ledger.refused}"
    return f"{ledger.place}: {budget}; {ledger.balance}{refused}"


def _release_lines(facts: ReleaseFacts) -> _Lines:
    release, bound = facts.release, facts.release.bound
    loss = "nothing" if release.guarantee is None else str(release.guarantee.loss)
    of = "" if release.unit is None else f" of the rows of one {release.unit.column}, {release.unit.most}"
    chosen = {} if release.stage is None else release.stage.chosen
    given = (("shifted by", "centre"), ("scaled by", "scale"))
    moved = [(what, name) for what, name in given if getattr(bound, name) is not None and name not in chosen]
    return [
        ("release", release.release_id),
        ("mechanism", f"{release.mechanism}, {release.status}"),
        ("proved", f"{loss} under {release.neighbours}{of}"),
        *(("caution", said) for said in release.cautions),
        ("clip norm", exactly(bound.clip_norm) + (", mean released as well" if bound.constant else "")),
        ("grid", _grid_words(bound)),
        *([("stage", stage_words(release).strip())] if release.stage is not None else []),
        *((what, f"a public {name}") for what, name in moved),
        ("rows", "not published" if release.rows is None else str(release.rows)),
        ("columns", f"{len(release.names)}: {_names(release.names)}"),
        *_schema_lines(release.schema),
        ("noise", release.noise.law),
        *([("sum of", counted(len(release.releases), "release"))] if release.releases else []),
        *([("window", f"the last {counted(release.window, 'period')}")] if release.window else []),
        *([("weights", _weights_words(release.weights))] if release.weights else []),
        ("made by", f"dpdist {__version__}"),
    ]


def _weights_words(weights: tuple[int, ...]) -> str:
    return f"{counted(len(weights), 'period')}, each added {min(weights)} to {max(weights)} times: no second moment"


def _grid_words(bound: RowBound) -> str:
    if bound.rule == TRUNCATED:
        return f"the clip norm is 2^{bound.grid_bits} steps; rows were truncated to it"
    norm = rounded_norm(bound.shortened_norm)
    return f"the clip norm is 2^{bound.grid_bits} steps; rows were shortened to norm {norm}, and rounded without bias"


def _model_lines(facts: ModelFacts) -> _Lines:
    of = ", of the correlation matrix" if facts.correlation else ""
    return [
        ("release", f"{facts.release_id}, {facts.mechanism}, {facts.status}"),
        ("components", f"{facts.k}, {'with' if facts.eigenvalues else 'without'} eigenvalues{of}"),
        ("columns", f"{len(facts.columns)}: {_names(facts.columns)}"),
        *_schema_lines(facts.schema),
    ]


def _schema_lines(schema: Schema | None) -> _Lines:
    """Say by what rows were made of the columns of a source, which is public."""
    if schema is None:
        return []
    scaled = "ranges become -1 to 1" if schema.scale == "range" else "as the source has them"
    longest = "" if schema.norm is None else f", no row longer than {rounded_up(schema.norm)}"
    shown = [column.words for column in schema.columns[:_SHOWN]]
    rest = len(schema.columns) - len(shown)
    said = "; ".join(shown) + (f"; and {rest} more" if rest > 0 else "")
    return [("schema", f"{scaled}{longest}: {said}")]


def _scores_lines(facts: ScoresFacts) -> _Lines:
    return [
        ("rows", f"{facts.n} (private under add-remove, public under replace-one)"),
        ("components", f"{facts.k}, of release {facts.release_id}"),
        ("stored", f"{facts.dtype}, {counted(facts.chunks, 'chunk')}"),
        ("data set", facts.dataset_id),
    ]
