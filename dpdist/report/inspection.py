"""What a path holds, in words."""

from __future__ import annotations

from dpdist._util.text import counted, exactly, labelled
from dpdist.ledger.balance import Balance
from dpdist.pipeline.inspect import Facts, _moved
from dpdist.privacy.guarantee import PrivacyLoss

_SHOWN = 6
"""Column names that are shown to people."""
_PRIVATE = "PRIVATE: for whoever may read the rows"


def words(facts: Facts) -> str:
    """Return what was found as text: a line for each fact."""
    lines = [("", f"{facts['path']}: {_TITLES[facts['kind']]}. {_warning(facts)}.")]
    lines += _LINES[facts["kind"]](facts)
    if facts["damaged"] is not None:
        lines += [("DAMAGED", wrong) for wrong in facts["damaged"]] or [("verified", "nothing is damaged")]
    return labelled(lines)


def _warning(facts: Facts) -> str:
    if not facts["private"]:
        return "Public"
    return _PRIVATE if "status" not in facts else f"{facts['status'].upper()}: do not publish it"


_TITLES = {
    "rows": "rows",
    "periods": "rows that come in periods",
    "release": "a release",
    "model": "principal components of a release",
    "scores": "scores, private rows in fewer dimensions",
}


def _names(columns: list[str]) -> str:
    rest = len(columns) - _SHOWN
    return ", ".join(columns[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _rows_lines(facts: Facts) -> list[tuple[str, str]]:
    unit = facts["unit"]
    chunks = f"{counted(facts['chunks'], 'chunk')} of {counted(facts['chunk_rows'], 'row')}"
    return [
        ("rows", f"{facts['n']} (private under add-remove, public under replace-one)"),
        ("columns", f"{facts['d']}: {_names(facts['columns'])}"),
        ("stored", f"{facts['dtype']}, {chunks}, {facts['bytes']} bytes"),
        ("codec", f"compression {facts['codec']}, checksum {facts['checksum']} on every chunk"),
        ("data set", facts["dataset_id"]),
        *([("period", facts["period"])] if facts["period"] else []),
        ("unit", "one row" if unit is None else f"all rows of one {unit['column']}, {unit['max_rows']} at most"),
        *([("reproduced", "released for reproduction: they get no budget any more")] if facts["reproduced"] else []),
        ("ledger", _ledger_words(facts["ledger"])),
    ]


def _periods_lines(facts: Facts) -> list[tuple[str, str]]:
    span = f", {facts['first_period']} to {facts['last_period']}" if facts["periods_closed"] else ""
    return [
        ("periods", f"{facts['periods_closed']} closed{span}"),
        ("data set", facts["dataset_id"]),
        ("ledger", _ledger_words(facts["ledger"])),
    ]


def _ledger_words(found: Facts) -> str:
    budget = "no budget declared" if found["budget"] is None else f"budget {PrivacyLoss.from_json(found['budget'])}"
    if found["state"] != "in use":
        return f"{found['place']} is {found['state']}; {budget}"
    refused = "" if found["refused"] is None else f". NOTHING NEW CAN BE RELEASED: {found['refused']}"
    return f"{found['place']}: {budget}; {Balance.from_json(found['balance'])}{refused}"


def _release_lines(facts: Facts) -> list[tuple[str, str]]:
    loss = "nothing" if facts["guarantee"] is None else str(PrivacyLoss.from_json(facts["guarantee"]))
    unit, bound = facts["unit"], facts["bound"]
    of = "" if unit is None else f" of the rows of one {unit['column']}, {unit['max_rows']} at most"
    return [
        ("release", facts["release_id"]),
        ("mechanism", f"{facts['mechanism']}, {facts['status']}"),
        ("proved", f"{loss} under {facts['neighbours']}{of}"),
        *(("caution", said) for said in facts["cautions"]),
        ("clip norm", exactly(bound["clip_norm"]) + (", mean released as well" if bound["constant"] else "")),
        *([("shifted by", "a public centre, scaled by a public scale, or one of the two")] if _moved(bound) else []),
        ("rows", "not published" if facts["n"] is None else str(facts["n"])),
        ("columns", f"{len(facts['columns'])}: {_names(facts['columns'])}"),
        ("noise", str(facts["noise"]["law"])),
        *([("sum of", counted(len(facts["releases"]), "release"))] if "releases" in facts else []),
        ("made by", facts["library"]),
    ]


def _model_lines(facts: Facts) -> list[tuple[str, str]]:
    return [
        ("release", f"{facts['release_id']}, {facts['mechanism']}, {facts['status']}"),
        ("components", f"{facts['k']}, {'with' if facts['eigenvalues'] else 'without'} eigenvalues"),
        ("columns", f"{len(facts['columns'])}: {_names(facts['columns'])}"),
    ]


def _scores_lines(facts: Facts) -> list[tuple[str, str]]:
    return [
        ("rows", f"{facts['n']} (private under add-remove, public under replace-one)"),
        ("components", f"{facts['k']}, of release {facts['release_id']}"),
        ("stored", f"{facts['dtype']}, {counted(facts['chunks'], 'chunk')}"),
        ("data set", facts["dataset_id"]),
    ]


_LINES = {
    "rows": _rows_lines,
    "periods": _periods_lines,
    "release": _release_lines,
    "model": _model_lines,
    "scores": _scores_lines,
}
