"""JOB.toml: reads a job file and checks it completely.

:mod:`dpdist.jobs.sections` defines the keys. With ``periods = true`` each run ingests and releases the new periods
(:mod:`dpdist.jobs.periodic`), and the paths of [release] and [pca] are local folders. Paths are relative to the file.
Decimal numbers are read exactly.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from dpdist.answers.alignment import require_noise_distribution
from dpdist.core.errors import DataError, DpdistError, RefusedError, UsageError
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.remote import Remote, location_of
from dpdist.core.ingest.sources import SourceLocation
from dpdist.core.ledger.address import LedgerAddress, address_of
from dpdist.core.mechanisms.registry import mechanism_named
from dpdist.core.naming import naming, step
from dpdist.core.options import ClusterOptions, ReleaseOptions, RequestOptions
from dpdist.core.paths import AnyPath, is_address, local, read_plain
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.advice import require_centre_of_dropped
from dpdist.core.release.bounds import Dimensions, by_schema
from dpdist.core.release.parse import LARGEST_FILE, clip_from, public_numbers, request_from
from dpdist.core.release.request import ReleaseRequest, share_from
from dpdist.core.release.series import BAND, Toeplitz, Tree, banded, levels_for, square_root
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Unit, unit_from
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.runtime.tls import Certificates
from dpdist.core.storage.store import Store, store_at
from dpdist.formats.genotypes import Genotypes
from dpdist.jobs.sections import JOB_FILE, Release, Rows, Sections, mistakes, sections_of, with_standard_spellings

T = TypeVar("T")
_NEEDS_PERIODS = (
    "With periods = true it needs max_periods in [rows], the largest number of periods with rows of each unit."
)


@dataclass(frozen=True)
class Job:
    """A validated job; paths are absolute."""

    rows: Path | Store
    release: Path | Store
    request: ReleaseRequest
    source: SourceLocation | None = None
    budget: PrivacyLoss | None = None
    columns: tuple[str, ...] | None = None
    ledger: LedgerAddress | None = None
    model: Path | Store | None = None
    components: float | None = None
    scores: Path | Store | None = None
    cluster: Cluster = field(default_factory=Cluster)
    unit: Unit | None = None
    exclude: Path | None = None
    periodic: bool = False
    in_place: bool = False
    plan: Tree | Toeplitz = field(default_factory=lambda: Tree(1))
    window: int | None = None
    correlation: bool | None = None
    drop_first: bool = True
    choices: Choices = field(default_factory=Choices)

    @property
    def needs_noise_distribution(self) -> bool:
        """Whether choosing the number of components needs the distribution of the noise."""
        correlation = self.request.centred if self.correlation is None else self.correlation
        return self.components is None or not (isinstance(self.components, int) or correlation)

    @property
    def known_columns(self) -> int | None:
        """The number of columns, if the file or its schema says which."""
        schema = self.choices.schema
        return len(schema.features) if schema is not None else None if self.columns is None else len(self.columns)

    def require_model(self, columns: int) -> None:
        """Refuse components that a release of so many columns cannot have, before it is charged."""
        if self.components is not None and self.components > columns:
            raise UsageError(
                f"{self.components} components are more than the {columns} columns of {self.rows}. Ask for at most "
                f"{columns}.",
                parameter="components",
            )
        if self.model is not None and self.needs_noise_distribution:
            require_noise_distribution(self.request, columns)


def read_job(
    path: AnyPath,
    *,
    scheduler: str | None = None,
    certificates: Certificates | None = None,
    insecure: bool = False,
    continual: int | None = None,
) -> Job:
    """Read and check a job file."""
    path = local(path)
    try:
        content = tomllib.loads(read_plain(path, LARGEST_FILE).decode("utf-8-sig"), parse_float=Decimal)
    except IsADirectoryError:
        raise DataError(
            f"{path} is a folder, not a job file such as job.toml. To describe rows, a release or a model, "
            "use dpdist inspect."
        ) from None
    except OSError as error:
        raise DataError(f"The job file {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}.") from None
    if continual is not None and isinstance(content.get("release"), dict):
        content["release"]["continual"] = continual
    content = with_standard_spellings(content)
    with naming(JOB_FILE):
        _require_none(path, [UsageError(f"{sentence}.") for sentence in mistakes(content)])
        sections = sections_of(content)
        errors: list[DpdistError] = [UsageError(sentence) for sentence in _contradictions(sections)]
        files = _Files(path.absolute().parent, errors)
        job = _job(sections, files, scheduler=scheduler, certificates=certificates, insecure=insecure)
        _require_none(path, errors)
        job = _with_unit(job, sections.rows, path)
        _require_centre(job)
        return _of_periods(job) if sections.rows.periods else job


def _with_unit(job: Job, rows: Rows, path: Path) -> Job:
    """Return the job with the privacy unit of its schema, if any."""
    if job.choices.schema is None:
        return job
    unit = job.choices.schema.unit
    if not rows.periods:
        return replace(job, unit=unit)
    if unit is None and (rows.max_periods, rows.exclude) != (None, None):
        raise UsageError(f"{path}: max_periods and exclude in [rows] need a privacy unit, and the schema has none.")
    if unit is not None and rows.max_periods is None:
        raise UsageError(f"{path}: the schema has a privacy unit. {_NEEDS_PERIODS}")
    return replace(job, unit=None if unit is None else replace(unit, max_periods=rows.max_periods))


def _require_centre(job: Job) -> None:
    """Refuse a job whose releases would not know the centre of missing numbers, before it closes a period."""
    schema, request = job.choices.schema, job.request
    if schema is not None and schema.numbers:
        require_centre_of_dropped(schema, centred=request.centre is not None or request.scale == "private")


def _of_periods(job: Job) -> Job:
    """Return the job with what its request takes from the schema: it is the same for all periods."""
    schema, max_rows = job.choices.schema, 1 if job.unit is None else job.unit.counted_rows
    width = 2 if schema is None else len(schema.features)
    size = Dimensions(width, unit_rows=max_rows, schema=schema)
    return replace(job, request=by_schema(job.request, size))


@dataclass(frozen=True)
class _Files:
    """Creates the parts of a job; an invalid one is None, and its error is collected."""

    folder: Path
    errors: list[DpdistError]

    def make(self, part: Callable[[], T]) -> T:
        try:
            return part()
        except (UsageError, DataError, RefusedError) as error:
            self.errors.append(error)
            return cast("T", None)  # the job is refused

    def path(self, text: str | None) -> Path | None:
        return None if text is None else self.make(lambda: self.folder / local(text))

    def store(self, text: str) -> Path | Store:
        return self.make(lambda: store_at(text) if is_address(text) else self.folder / local(text))


def _job(
    sections: Sections, files: _Files, *, scheduler: str | None, certificates: Certificates | None, insecure: bool
) -> Job:
    rows, release, pca, project = sections.rows, sections.release, sections.pca, sections.project
    settings, make = sections.cluster or ClusterOptions(), files.make
    certificate_files = [files.path(file) for file in (settings.tls_ca, settings.tls_cert, settings.tls_key)]
    return Job(
        rows=files.store(rows.path),
        source=None if rows.source is None else make(partial(_source, rows.source, files.folder)),
        budget=make(lambda: rows.budget),
        columns=rows.columns,
        release=files.store(release.path),
        request=_request(release, files, None if pca is None else pca.components.number),
        ledger=None if release.ledger is None else make(partial(address_of, release.ledger, files.folder)),
        model=None if pca is None else files.store(pca.path),
        components=None if pca is None else pca.components.number,
        scores=None if project is None else files.store(project.path),
        cluster=make(
            lambda: Cluster(
                scheduler or settings.scheduler,
                None if scheduler else settings.workers,
                trusted_worker=settings.trusted == "worker",
                certificates=certificates or Certificates.of(*certificate_files),
                insecure=insecure or settings.insecure,
            )
        ),
        unit=make(lambda: unit_from(rows.privacy_unit, rows.max_rows, rows.keep, rows.max_periods)),
        exclude=files.path(rows.exclude),
        periodic=rows.periods,
        in_place=rows.in_place,
        plan=make(lambda: _plan(release)),
        window=release.window,
        correlation=None if pca is None else pca.correlation,
        drop_first=pca is None or pca.drop_first,
        choices=make(lambda: _choices(rows, files.folder)),
    )


def _plan(release: Release) -> Tree | Toeplitz:
    """Return the plan of releases for periods."""
    if release.factorisation == "square-root":
        return square_root(release.continual or 1)
    if release.factorisation == "banded":
        return banded(release.band or BAND)
    return Tree(levels_for(release.continual or 1))


def _source(text: str, folder: Path) -> SourceLocation:
    location = location_of(text)
    return folder / location if isinstance(location, Path) else location


def _is_remote(text: str) -> bool:
    try:
        return isinstance(location_of(text), Remote)
    except UsageError:
        return False  # reported by _source


def _choices(rows: Rows, folder: Path) -> Choices:
    rules, schema = Genotypes.of(rows.genotypes, folder), None
    if rows.schema is not None:
        schema = Schema.read(rows.schema if is_address(rows.schema) else folder / rows.schema)
    return Choices(rows.variable, rows.missing, rows.header, schema, rules, rows.rows_dimension)


def _request(release: Release, files: _Files, number: float | None) -> ReleaseRequest:
    before = len(files.errors)
    shared = {name: getattr(release, name) for name in ReleaseOptions.__struct_fields__}
    components = number if release.clip == "private" and isinstance(number, int) else None
    options = RequestOptions(**shared, clip_components=components, period=release.period or "")
    request = files.make(lambda: request_from(options, files.folder))
    if len(files.errors) > before:  # this reports the first mistake only; check the other keys too
        files.make(lambda: PrivacyLoss.parse(release.epsilon))
        files.make(lambda: PrivacyLoss.parse("1", release.delta or "0"))
        files.make(lambda: mechanism_named(release.mechanism) if release.mechanism else None)
        files.make(lambda: isinstance(clip := clip_from(release.clip), str) or RowBound(1, clip, 16))
        files.make(lambda: share_from(release.scale_share or "0.1"))
        if (bits := release.grid_bits) is not None:
            files.make(lambda: RowBound(1, 1.0, bits))
        files.make(lambda: public_numbers(release.centre or "none", release.scale or "none", files.folder))
    return request


def _require_none(path: Path, errors: Sequence[DpdistError]) -> None:
    """Refuse a file with errors, and report all of them."""
    messages = list(dict.fromkeys(map(str, errors)))
    if not messages:
        return
    kinds = [kind for kind in (DataError, RefusedError) if all(isinstance(error, kind) for error in errors)]
    kind = kinds[0] if kinds else UsageError
    if len(messages) == 1:
        raise kind(f"{path}: {messages[0]}")
    listed = " ".join(f"({number}) {sentence}" for number, sentence in enumerate(messages, 1))
    raise kind(f"{path} has {len(messages)} mistakes. {listed}")


def _contradictions(sections: Sections) -> Iterator[str]:
    """Yield a sentence for each contradiction."""
    rows, release = sections.rows, sections.release
    if sections.project is not None and sections.pca is None:
        yield "[project] needs [pca]."
    if rows.schema is not None:
        yield from _unfit_for_schema(rows)
    elif rows.source is not None:
        for key in ("clip", "centre"):
            if getattr(release, key) == "schema":
                yield f'[release] {key} = "schema" needs a schema in [rows].'
    if rows.in_place:
        yield from _unfit_in_place(rows)
    yield from _unfit_persons(rows)
    if rows.periods:
        yield from _unfit_for_periods(sections)
    else:
        for key in ("continual", "factorisation", "band", "window"):
            if getattr(release, key) is not None:
                yield f"[release] {key} needs periods = true in [rows]."
    yield from _unfit_factorisation(release)


def _unfit_persons(rows: Rows) -> Iterator[str]:
    for key in ("max_periods", "exclude"):
        if getattr(rows, key) is not None and not (rows.periods and (rows.privacy_unit or rows.schema)):
            yield f"[rows] {key} needs periods = true and privacy_unit, or a schema with one."
    if rows.periods and rows.privacy_unit is not None and rows.max_periods is None:
        yield f"[rows] privacy_unit: {_NEEDS_PERIODS[0].lower()}{_NEEDS_PERIODS[1:]}"


def _unfit_factorisation(release: Release) -> Iterator[str]:
    if release.factorisation in {"tree", "square-root"} and release.continual is None:
        yield f'[release] factorisation = "{release.factorisation}" needs continual, the number of periods.'
    if release.factorisation == "banded" and release.continual is not None:
        yield (
            '[release] factorisation = "banded" is for any number of periods. Omit continual; band sets the number of '
            "periods that a release reads."
        )
    if release.band is not None and release.factorisation != "banded":
        yield '[release] band needs factorisation = "banded".'
    if release.window is not None and release.factorisation not in {"square-root", "banded"}:
        yield '[release] window needs factorisation = "square-root" or "banded".'


def _unfit_for_schema(rows: Rows) -> Iterator[str]:
    for key in ("columns", "privacy_unit", "max_rows", "keep"):
        if getattr(rows, key) is not None:
            yield f"[rows] {key} is defined by the schema. Omit it."
    if rows.source is None:
        yield "[rows] schema needs source."


def _unfit_in_place(rows: Rows) -> Iterator[str]:
    if rows.source is None:
        yield "[rows] in_place = true needs source."
    if rows.periods:
        yield "[rows] in_place = true is for one table, and periods are copied. Omit it."
    if rows.privacy_unit is not None:
        yield (
            "[rows] privacy_unit sorts rows by unit, or keeps some of each, and in_place = true uses all of them "
            "unchanged. Omit in_place."
        )
    if rows.columns is not None:
        yield "[rows] columns chooses columns, and in_place = true uses all of them. Omit columns or in_place."
    if rows.schema is not None:
        yield (
            "[rows] schema converts rows while they are copied, and in_place = true uses them unchanged. Omit in_place."
        )
    for key in ("missing", "header", "genotypes"):
        if getattr(rows, key):
            yield f"[rows] {key} is for files that cannot be used in place. Omit it or in_place."


def _unfit_for_periods(sections: Sections) -> Iterator[str]:
    rows, release = sections.rows, sections.release
    if release.clip == "private":
        yield (
            '[release] clip = "private" chooses a clip norm from the rows of one table, and with periods = true all '
            'periods need the same one. Give a public clip norm; use clip = "auto" with a scale; or release a separate '
            'table with clip = "private", and give its clip norm here.'
        )
    if rows.source is None:
        yield "[rows] periods = true needs source, a folder with one entry per period."
    elif _is_remote(rows.source):
        yield (
            "[rows] source is an address, and with periods = true it must be a local folder, as closed periods are "
            "compared with it. Copy each new entry there under a name that begins with a dot, and rename it when it is "
            "complete."
        )
    for section, path in (("rows", rows.path), ("release", release.path), ("pca", sections.pca and sections.pca.path)):
        if path and is_address(path):
            yield (
                f"[{section}] path is an address, and with periods = true it must be a local folder, as concurrent "
                "runs lock it."
            )
    for key, value in (("id", release.id), ("period", release.period)):
        if value is not None:
            yield f"[release] {key} is set by the periods. Omit it."
    if sections.project is not None:
        yield (
            "[project] is for a table without periods. To project a period, run: "
            f"{step('project', rows.path)}/PERIOD.zarr MODEL SCORES"
        )
    if sections.cluster is not None and sections.cluster.trusted == "worker":
        yield (
            '[cluster] trusted = "worker" is not possible with periods = true: this process itself ingests the rows '
            "and closes periods in the ledger. Run it on a trusted machine, and omit trusted."
        )
