"""What a folder is: rows, a folder of periods, a release, a model or scores, told from what is declared about it.

No value of a row and no statistic of the rows is computed, let alone told. Verifying reads every chunk of private rows
and says only which ones are damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dpdist._util.paths import AnyPath, local
from dpdist._util.text import counted, exactly, labelled
from dpdist.errors import DataError, RefusedError, quiet
from dpdist.ledger.address import Place, PlaceGiven, place_given
from dpdist.ledger.balance import Balance
from dpdist.ledger.ledger import Ledger
from dpdist.noise.entropy import Progress
from dpdist.pca import model as models
from dpdist.pca import projection
from dpdist.pipeline.budget import default_ledger
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release import artefact
from dpdist.release.artefact import open_release
from dpdist.rows import dataset
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.dataset import RowsTable, incomplete, open_rows
from dpdist.rows.periods import PeriodicTable, is_periodic, open_periods
from dpdist.storage.arrays import attributes_at

Facts = dict[str, Any]
_SHOWN = 6
"""Column names that are shown to people."""
_PRIVATE = "PRIVATE: for whoever may read the rows"


@quiet()
def inspected(
    path: AnyPath, *, ledger: PlaceGiven | None = None, verify: bool = False, progress: Progress | None = None
) -> Facts:
    """Return what is declared about a folder, as JSON values.

    Parameters
    ----------
    path
        The folder.
    ledger
        Where the budget of rows is kept, if not beside them.
    verify
        Whether to read every chunk of rows or scores and check it. A release and a model are always read and checked.
    progress
        Told after every chunk that was checked.

    Returns
    -------
    dict
        ``kind`` and ``private``; the rest depends on the kind. After verifying ``damaged`` lists what is wrong.

    Raises
    ------
    DataError
        If it is nothing of dpdist's, or too damaged to say what it is, or the ledger is.
    """
    path, ledger = local(path), None if ledger is None else place_given(ledger)
    kinds: dict[str, Callable[[], Facts]] = {
        dataset.FORMAT: lambda: _rows(open_rows(path, whole=False), ledger, verify=verify, progress=progress),
        artefact.FORMAT: lambda: _release(path),
        models.FORMAT: lambda: _model(path),
        projection.FORMAT: lambda: _scores(path, verify=verify, progress=progress),
    }
    if is_periodic(path):
        return {"path": str(path)} | _periods(open_periods(path), ledger, verify=verify, progress=progress)
    described = attributes_at(path)
    if described is not None and described.get("format") in kinds:
        return {"path": str(path)} | kinds[described["format"]]()
    if described is not None:
        raise DataError(
            f"{path} has format {described.get('format')!r}, which this version of dpdist does not know. Use the "
            "version that made it."
        )
    if Ledger.stands_at(path):
        raise DataError(f"{path} is a ledger. Look at it with: dpdist ledger show {path}")
    if not path.exists():
        raise DataError(f"There is nothing at {path}.")
    raise DataError(
        f"{path} is none of dpdist's rows, folders of periods, releases, models or scores. Rows are made with: "
        f"dpdist ingest {path} ROWS"
    )


def _checked(table: RowsTable, chunks: list[int], progress: Progress | None, wrong: dict[int, str]) -> Iterator[str]:
    """Read chunks and yield what is wrong, in their order; ``wrong`` tells what was found without reading."""
    reader = ChunkReader(table, table.chunk_rows)
    for index in chunks:
        try:
            if index in wrong:
                yield wrong[index]
            else:
                for _ in reader.read(index):
                    pass
        except DataError as error:
            yield str(error)
        if progress is not None:
            progress(index + 1, len(chunks))


def _rows(table: RowsTable, ledger: Place | None, *, verify: bool, progress: Progress | None) -> Facts:
    _require_plausible(table.path, table.chunks)
    missing = dict(incomplete(table))
    damaged = list(missing.values())
    if verify:
        damaged = list(_checked(table, list(range(table.chunks)), progress, missing))
    beside = table.path if table.period is None else table.path.parent
    return {
        "kind": "rows",
        "private": True,
        "n": table.rows,
        "d": table.columns,
        "dtype": table.dtype,
        "chunks": table.chunks,
        "chunk_rows": table.chunk_rows,
        "codec": "Blosc LZ4" if table.compressed else "none",
        "checksum": "CRC32C",
        "bytes": sum(table.chunk_path(i).stat().st_size for i in range(table.chunks) if i not in missing),
        "dataset_id": table.dataset_id,
        "columns": list(table.names),
        "period": table.period,
        "unit": None if table.unit is None else table.unit.to_json(),
        "reproduced": table.reproduced,
        "ledger": _ledger(ledger or default_ledger(beside), table.ledger_id, table.budget),
        "damaged": damaged if verify or damaged else None,
    }


def _require_plausible(path: Path, announced: int) -> None:
    """Refuse to list what is missing where a damaged head announces chunks without end."""
    stored = sum(1 for _ in (path / "c").glob("*"))
    if announced > 1000 * (stored + 1):
        raise DataError(f"{path} announces {announced} chunks and holds {stored}. Restore its zarr.json.")


def _periods(table: PeriodicTable, ledger: Place | None, *, verify: bool, progress: Progress | None) -> Facts:
    place = ledger or default_ledger(table.path)
    found = _ledger(place, table.ledger_id, table.budget)
    known = Ledger(place) if found["state"] == "in use" else None
    closed = list(known.periods) if known else []
    facts: Facts = {
        "kind": "periods",
        "private": True,
        "dataset_id": table.dataset_id,
        "periods_closed": len(closed),
        "first_period": closed[0] if closed else None,
        "last_period": closed[-1] if closed else None,
        "ledger": found,
        "damaged": None,
    }
    if verify:
        if known is None:
            raise RefusedError(
                f"The seals of the periods of {table.path} stand in their ledger, which is not at {place}. Name its "
                "place (--ledger)."
            )
        span = table.span(known.periods, 0) if closed else None
        facts["damaged"] = [] if span is None else list(_checked(span, list(range(span.chunks)), progress, {}))
    return facts


def _ledger(place: Place, ledger_id: str | None, declared: PrivacyLoss | None) -> Facts:
    """Return where the budget of a table is kept and how it stands."""
    facts: Facts = {
        "place": str(place),
        "state": "not created",
        "budget": None if declared is None else declared.to_json(),
        "balance": None,
        "refused": None,
    }
    if ledger_id is None:
        return facts
    if not Ledger.stands_at(place):
        return facts | {"state": "not there"}
    opened = Ledger(place)
    if opened.ledger_id != ledger_id:
        return facts | {"state": "of other rows"}
    facts |= {"state": "in use", "balance": opened.balance().to_json()}
    try:
        opened.require_current()
    except RefusedError as error:
        facts["refused"] = str(error)
    return facts


def _release(path: Path) -> Facts:
    release = open_release(path)
    return {
        "kind": "release", "private": release.status != "private", **release.attributes(),
        "cautions": list(release.cautions), "damaged": [],
    }  # fmt: skip


def _model(path: Path) -> Facts:
    found, described = models.open_model(path), attributes_at(path) or {}
    return {
        "kind": "model",
        "private": described["status"] != "private",
        "release_id": found.release_id,
        "mechanism": described["mechanism"],
        "status": described["status"],
        "k": len(found.components.components),
        "columns": list(found.names),
        "eigenvalues": found.components.eigenvalues is not None,
        "damaged": [],
    }


def _scores(path: Path, *, verify: bool, progress: Progress | None) -> Facts:
    described = attributes_at(path) or {}
    try:
        array = zarr.open_array(path, mode="r", zarr_format=3)
        (rows, k), step = array.shape, array.chunks[0]
        facts: Facts = {
            "kind": "scores",
            "private": True,
            "n": rows,
            "k": k,
            "dtype": str(array.dtype),
            "chunks": array.nchunks,
            "dataset_id": described["dataset_id"],
            "release_id": described["release_id"],
            "damaged": None,
        }
    except Exception:  # noqa: BLE001 - damaged metadata fails in as many ways as there are libraries
        facts = {}
    if not facts:
        raise DataError(f"{path} is a scores.zarr that was damaged. Write it again with dpdist project.")
    _require_plausible(path, facts["chunks"])
    if verify:
        facts["damaged"] = []
        for index in range(facts["chunks"]):
            try:
                sound = (path / "c" / str(index) / "0").is_file()  # zarr reads a missing chunk as zeros
                np.asarray(array[index * step : (index + 1) * step])
            except Exception:  # noqa: BLE001 - whatever zarr and its codecs raise
                sound = False
            if not sound:
                facts["damaged"].append(f"Chunk {index} of {path} is missing or was altered. Project the rows again.")
            if progress is not None:
                progress(index + 1, facts["chunks"])
    return facts


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
