"""JOB.toml: a whole job as a file, checked completely before anything starts.

::

    [rows]                       # ingested only when the rows do not exist yet
    path = "rows.zarr"
    source = "data.csv"          # optional: file or folder, or its address, such as s3://bucket/folder
    budget_epsilon = 2           # optional, with source: declared at ingest
    budget_delta = 1e-6
    budget_pure = 0.5            # optional: part of epsilon for releases that are not Gaussian, beside Gaussian ones
    budget_delta_reserve = 1e-7  # optional: part of delta for them
    columns = ["age", "height"]  # optional
    variable = "counts"          # optional: the array of rows, of a file that holds several
    missing = 0                  # optional: the alleles to put where a genotype is missing
    header = "yes"               # optional: the first line of text names the columns; or "no", it is a row
    privacy_unit = "person"      # optional: a column of whole numbers; of each only the first max_rows rows are kept
    max_rows = 3
    periods = false              # true: path is a folder of periods, source one of an entry per period

    [release]
    path = "release.zarr"
    epsilon = 1
    clip = 100.0
    delta = 1e-6                 # the rest is optional
    mechanism = "gaussian"
    neighbours = "replace-one"
    centre = "none"              # none, private, or a file
    grid_bits = 16
    options = {components = 10}  # of mechanisms that have some
    period = "2026-W47"
    id = "week-47"
    accept_large_delta = false   # true: also a delta of 1/n or more
    continual = 365              # with periods: so many keep the noise of their total logarithmic in their number
    ledger = "rows.ledger"       # or "postgresql+psycopg://user@host/database?ledger=NAME", without a password

    [pca]                        # optional
    path = "model.zarr"
    components = 10

    [project]                    # optional, needs [pca]
    path = "scores.zarr"

    [cluster]                    # optional
    scheduler = "tls://10.0.0.1:8786"  # or workers = 4, on this machine
    tls_ca = "certificates/ca.pem"     # these three for tls://
    tls_cert = "certificates/client.pem"
    tls_key = "certificates/client.key"
    insecure = false                   # true: tcp:// over the network
    trusted = "driver"                 # or "worker", not with periods

With ``periods = true`` every run takes in and releases the periods that are new (:mod:`dpdist.jobs.periodic`);
[release] and [pca] then name folders. Paths are relative to the file. Decimal numbers are read exactly.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from dpdist._util.paths import AnyPath, local, read_plain
from dpdist._util.text import has_control
from dpdist.errors import DataError, UsageError
from dpdist.ingest.sources import Choices, Remote, location_of
from dpdist.ingest.sources import Place as SourcePlace
from dpdist.ledger.address import Place, place_of
from dpdist.naming import step
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.parse import LARGEST_FILE, request_from
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.rows.units import Unit, unit_from
from dpdist.runtime.cluster import Cluster
from dpdist.runtime.tls import Certificates


@dataclass(frozen=True)
class Job:
    """A validated job; paths are absolute."""

    rows: Path
    source: SourcePlace | None
    budget: PrivacyLoss | None
    columns: tuple[str, ...] | None
    release: Path
    request: ReleaseRequest
    ledger: Place | None
    model: Path | None
    components: int | None
    scores: Path | None
    cluster: Cluster
    unit: Unit | None = None
    periodic: bool = False
    continual: int = 1
    choices: Choices = field(default_factory=Choices)


_KEYS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "rows": {
        "path": str, "source": str, "budget_epsilon": (int, Decimal, str), "budget_delta": (int, Decimal, str),
        "budget_pure": (int, Decimal, str), "budget_delta_reserve": (int, Decimal, str),
        "columns": list, "periods": bool, "privacy_unit": str, "max_rows": int,
        "variable": str, "missing": int, "header": str,
    },
    "release": {
        "path": str, "epsilon": (int, Decimal, str), "delta": (int, Decimal, str), "clip": (int, Decimal),
        "mechanism": str, "neighbours": str, "centre": str, "grid_bits": int, "options": dict,
        "period": str, "id": str, "ledger": str, "continual": int, "accept_large_delta": bool,
    },
    "pca": {"path": str, "components": (int, str)},
    "project": {"path": str},
    "cluster": {
        "scheduler": str, "workers": int, "trusted": str, "tls_ca": str, "tls_cert": str, "tls_key": str,
        "insecure": bool,
    },
}  # fmt: skip
_REQUIRED = {
    "rows": ("path",),
    "release": ("path", "epsilon", "clip"),
    "pca": ("path", "components"),
    "project": ("path",),
    "cluster": (),
}


def read_job(
    path: AnyPath,
    *,
    scheduler: str | None = None,
    certificates: Certificates | None = None,
    insecure: bool = False,
    continual: int | None = None,
) -> Job:
    """Read and check a job file.

    Parameters
    ----------
    path
        The file.
    scheduler
        Address taken instead of the scheduler or the local workers that the file names.
    certificates
        Taken instead of those the file names.
    insecure
        Allow a scheduler on the network that is not encrypted, whatever the file says.
    continual
        Taken instead of what the file says.

    Raises
    ------
    UsageError
        If it is not TOML, or a key is missing, unknown, or has a value of the wrong kind.
    RefusedError
        If its scheduler is on the network and not encrypted.
    DataError
        If the file cannot be read.
    """
    path = local(path)
    try:
        content = tomllib.loads(read_plain(path, LARGEST_FILE).decode(), parse_float=Decimal)
    except OSError as error:
        raise DataError(f"The job file {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}.") from None
    _check(path, content)
    folder = path.absolute().parent
    rows, release = content["rows"], content["release"]
    pca, project, cluster = content.get("pca"), content.get("project"), content.get("cluster", {})
    if project is not None and pca is None:
        raise UsageError(f"{path}: [project] needs [pca].")
    if cluster.get("trusted", "driver") not in {"driver", "worker"}:
        raise UsageError(f"{path}: [cluster] trusted must be driver or worker.")
    for key in ("budget_delta", "budget_pure", "budget_delta_reserve"):
        if key in rows and "budget_epsilon" not in rows:
            raise UsageError(f"{path}: [rows] {key} needs budget_epsilon.")
    if continual is not None:
        release["continual"] = continual
    _check_periods(path, rows, release, project)
    if rows.get("periods", False) and cluster.get("trusted") == "worker":
        raise UsageError(
            f'{path}: [cluster] trusted = "worker" cannot be kept with periods = true: the process that is started '
            "takes in the rows and closes periods in the ledger itself. Start it where it may, and leave trusted out."
        )
    files = [folder / local(cluster[key]) if key in cluster else None for key in ("tls_ca", "tls_cert", "tls_key")]
    budget = None
    if "budget_epsilon" in rows:
        parts = (str(rows.get(key, 0)) for key in ("budget_delta", "budget_pure", "budget_delta_reserve"))
        budget = PrivacyLoss.declared(str(rows["budget_epsilon"]), *parts)
    return Job(
        rows=folder / local(rows["path"]),
        source=_source(rows["source"], folder) if "source" in rows else None,
        budget=budget,
        columns=tuple(rows["columns"]) if "columns" in rows else None,
        release=folder / local(release["path"]),
        request=request_from(
            epsilon=str(release["epsilon"]),
            delta=str(release["delta"]) if "delta" in release else None,
            clip=float(Decimal(release["clip"])),
            mechanism=release.get("mechanism"),
            neighbours=release.get("neighbours", Neighbours.REPLACE_ONE.value),
            centre=release.get("centre", Centring.NONE.value),
            grid_bits=release.get("grid_bits", 16),
            period=release.get("period", ""),
            name=release.get("id"),
            folder=folder,
            options=release.get("options"),
            accept_large_delta=release.get("accept_large_delta", False),
        ),
        ledger=place_of(release["ledger"], folder) if "ledger" in release else None,
        model=folder / local(pca["path"]) if pca else None,
        components=None if not pca or pca["components"] == "auto" else pca["components"],
        scores=folder / local(project["path"]) if project else None,
        cluster=Cluster(
            scheduler or cluster.get("scheduler"),
            None if scheduler else cluster.get("workers"),
            trusted_worker=cluster.get("trusted") == "worker",
            certificates=certificates or Certificates.of(*files),
            insecure=insecure or cluster.get("insecure", False),
        ),
        unit=unit_from(rows.get("privacy_unit"), rows.get("max_rows")),
        periodic=rows.get("periods", False),
        continual=release.get("continual", 1),
        choices=Choices(rows.get("variable"), rows.get("missing"), rows.get("header")),
    )


def _source(text: str, folder: Path) -> SourcePlace:
    place = location_of(text)
    return folder / place if isinstance(place, Path) else place


def _check_periods(path: Path, rows: dict[str, Any], release: dict[str, Any], project: dict[str, Any] | None) -> None:
    """Refuse what makes no sense with periods, or without."""
    if not rows.get("periods", False):
        if "continual" in release:
            raise UsageError(f"{path}: [release] continual needs periods = true in [rows].")
        return
    if "source" not in rows:
        raise UsageError(f"{path}: [rows] periods = true needs source, a folder of one entry per period.")
    if isinstance(location_of(rows["source"]), Remote):
        raise UsageError(
            f"{path}: [rows] source is an address, and with periods = true it is a folder on this machine: what was "
            "taken in is compared with it. Copy new entries there, each under a name that begins with a dot, and "
            "rename it when it is complete."
        )
    if "privacy_unit" in rows:
        raise UsageError(
            f"{path}: [rows] privacy_unit bounds the rows of one table, and cannot yet bound those of all periods "
            "together. Keep at most one row per person in each period, and leave it out."
        )
    for key in ("id", "period"):
        if key in release:
            raise UsageError(f"{path}: [release] {key} is told by the periods; leave it out.")
    if project is not None:
        raise UsageError(
            f"{path}: [project] is for a table without periods. Project a period with: "
            f"{step('project', rows['path'])}/PERIOD.zarr MODEL SCORES"
        )
    if not 1 <= release.get("continual", 1) <= 2**20:
        raise UsageError(f"{path}: [release] continual is a number of periods, from 1 to {2**20}.")


def _check(path: Path, content: dict[str, Any]) -> None:
    for section in ("rows", "release"):
        if section not in content:
            raise UsageError(f"{path} has no section [{section}].")
    for section, values in content.items():
        if section not in _KEYS or not isinstance(values, dict):
            raise UsageError(f"{path} has an unknown section or key {section!r}; known are {', '.join(_KEYS)}.")
        for key, value in values.items():
            _check_value(f"{path}: [{section}]", _KEYS[section], key, value)
        for key in _REQUIRED[section]:
            if key not in values:
                raise UsageError(f"{path}: [{section}] needs {key!r}.")


def _check_value(where: str, known: dict[str, type | tuple[type, ...]], key: str, value: Any) -> None:
    kind = known.get(key)
    if kind is None:
        raise UsageError(f"{where} knows no {key!r}; it knows {', '.join(known)}.")
    if isinstance(value, bool) is not (kind is bool) or not isinstance(value, kind):
        raise UsageError(f"{where} {key} has a value of the wrong kind.")
    if any(has_control(text) for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)):
        raise UsageError(f"{where} {key} holds a control character. Take it out.")
    if isinstance(value, list) and not (value and all(isinstance(name, str) for name in value)):
        raise UsageError(f"{where} {key} must be a list of at least one column name.")
    if key == "components" and value != "auto" and not (isinstance(value, int) and value >= 1):
        raise UsageError(f'{where} {key} must be at least 1, or "auto": those that stand above the noise.')
