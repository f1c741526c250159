"""The sections of a job file as types: from them come the checks, the messages and the schema that editors read.

The schema is ``job.schema.json`` beside this file. A test compares the two, and ``python -m dpdist.jobs.sections``
writes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from dpdist._util.text import has_control
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.naming import COMMAND_LINE
from dpdist.privacy.guarantee import Neighbours
from dpdist.release.request import ROWS_AT_MOST, Centring, Word
from dpdist.release.series import BAND, LONGEST
from dpdist.rows.units import Keep

SCHEMA = Path(__file__).with_name("job.schema.json")


class Amount(str):
    """A number as it is written in the file, with every digit; it may stand in quotes."""

    __slots__ = ()


class Clip(str):
    """A number as it is written in the file, ``private`` or ``auto``."""

    __slots__ = ()


class Components(str):
    """A whole number, a share below 1, or ``auto``."""

    __slots__ = ()

    @property
    def number(self) -> float | None:
        """A number, an int, or a share, a float; None for ``auto``."""
        if self == "auto":
            return None
        return int(self) if self.isdecimal() else float(self)


def _key(description: str, expected: str, **more: Any) -> Meta:
    """Say what a key is for, which editors show, and what it takes, which messages say."""
    return Meta(description=description, extra={"expected": expected}, **more)


_FILE = "a path in quotes"
_WORD = "text in quotes"
_FLAG = "true or false"
_WHOLE = "a whole number"
_AMOUNT = "a number, such as 2, 0.5 or 1e-6"


class Rows(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rows, and what they are made from where they do not exist yet."""

    path: Annotated[
        str,
        _key(
            "Folder of the rows, or s3://bucket/rows.zarr; they are ingested only when it does not exist yet.",
            _FILE,
        ),
    ]
    source: Annotated[
        str | None,
        _key("What rows are made from: a file or folder, or its address, such as s3://bucket/folder.", _FILE),
    ] = None
    in_place: Annotated[bool, _key("Whether rows are registered where they are in source, and not copied.", _FLAG)] = (
        False
    )
    budget_epsilon: Annotated[
        Amount | None, _key("Largest total epsilon of all releases; declared when rows are ingested.", _AMOUNT)
    ] = None
    budget_delta: Annotated[Amount | None, _key("Largest total delta of all releases.", _AMOUNT)] = None
    budget_pure: Annotated[
        Amount | None, _key("Part of epsilon for releases that are not Gaussian, beside Gaussian ones.", _AMOUNT)
    ] = None
    budget_delta_reserve: Annotated[
        Amount | None, _key("Part of delta for releases with a delta that are not Gaussian.", _AMOUNT)
    ] = None
    columns: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1)] | None,
        _key("Names of the columns to keep, in this order.", "a list of at least one column name"),
    ] = None
    variable: Annotated[str | None, _key("The array of rows, of a file that holds several.", _WORD)] = None
    rows_dimension: Annotated[str | None, _key("The dimension of an array along which the rows are.", _WORD)] = None
    missing: Annotated[int | None, _key("The alleles to put where a genotype is missing: 0, 1 or 2.", _WHOLE)] = None
    genotypes: Annotated[
        dict[str, str],
        _key(
            "Rules for genotypes: multiallelic, haploid, field, frequencies, standardise.",
            'a table, such as {multiallelic = "skip"}',
        ),
    ] = {}
    header: Annotated[
        Literal["yes", "no"] | None,
        _key("Whether the first line of text names the columns, or is a row.", '"yes" or "no"'),
    ] = None
    schema: Annotated[
        str | None,
        _key("What the columns mean: a TOML file, or rows, a release or a model that were made with it.", _FILE),
    ] = None
    privacy_unit: Annotated[
        str | None,
        _key(
            "What says whose row it is: a column of whole numbers, obs/NAME of AnnData, or FID or FID,IID of a .fam.",
            "a column's name in quotes",
        ),
    ] = None
    max_rows: Annotated[
        int | None, _key("Rows kept of each privacy unit at most; with periods, of each period.", _WHOLE)
    ] = None
    keep: Annotated[Keep | None, _key("Which of them [default: first].", '"first" or "random"')] = None
    max_periods: Annotated[
        int | None, _key("Periods in which rows of each privacy unit are kept at most, the first ones.", _WHOLE)
    ] = None
    exclude: Annotated[
        str | None,
        _key("A private list of privacy units, one a line, whose rows of periods to come are left out.", _FILE),
    ] = None
    periods: Annotated[
        bool, _key("Whether path is a folder of periods, and source one of an entry per period.", _FLAG)
    ] = False


class Release(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is released of the rows."""

    path: Annotated[str, _key("Folder or address of the release; with periods, folder of the releases.", _FILE)]
    epsilon: Annotated[Amount, _key("Privacy loss epsilon, in steps of a millionth.", _AMOUNT)]
    clip: Annotated[
        Clip,
        _key(
            "Public clip norm C. Take it from what is known without the data, or from a private choice of clip norm. "
            "private: the release chooses it first, after a private scale, for the components of [pca]. auto: "
            "1.75 sqrt(d), with a scale.",
            'a number, such as 8.5, "private" or "auto"',
        ),
    ]
    delta: Annotated[
        Amount | None, _key("Its delta; leave it out for pure differential privacy.", "a number, such as 1e-6")
    ] = None
    mechanism: Annotated[
        str | None, _key("Name of a mechanism [default: follows from delta].", _WORD, examples=list(MECHANISMS))
    ] = None
    neighbours: Annotated[
        Neighbours,
        _key("Which two tables cannot be told apart.", " or ".join(f'"{relation}"' for relation in Neighbours)),
    ] = Neighbours.REPLACE_ONE
    centre: Annotated[
        str,
        _key(
            "none, private, or a file with a public centre and scale per column, or a release.zarr that has them.",
            '"none", "private" or a path',
        ),
    ] = Centring.NONE.value
    scale: Annotated[
        str,
        _key(
            "private: the release chooses a scale of each column first, and a centre unless a public one is named; "
            "with periods, that of the first does so for all. Or a file with a public scale per column.",
            '"none", "private" or a path',
        ),
    ] = "none"
    scale_share: Annotated[
        Amount | None,
        _key(
            "Share of the release's mu² (or epsilon) for a private choice of the scale [default: by n, epsilon, d].",
            "a number, such as 0.1",
        ),
    ] = None
    grid_bits: Annotated[
        int | None,
        _key("The clip norm is 2^B grid steps [default: so many that rounding is below 5 % of the noise].", _WHOLE),
    ] = None
    rows_at_most: Annotated[
        Annotated[int, Meta(ge=1, le=2**63 - 1)],
        _key(
            "Public: rows of the table at most, where their number is private or they come in periods. Grid bits "
            "follow from it.",
            "a number of rows, at least 1",
        ),
    ] = ROWS_AT_MOST
    options: Annotated[
        dict[str, Any] | None,
        _key("Parameters of the mechanism, by their names.", "a table, such as {components = 10}"),
    ] = None
    period: Annotated[str | None, _key("Names one of several releases with the same parameters.", _WORD)] = None
    id: Annotated[str | None, _key("Release id [default: follows from data set and parameters].", _WORD)] = None
    accept_large_delta: Annotated[bool, _key("Whether a delta of 1/n or more is meant.", _FLAG)] = False
    continual: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None,
        _key(
            "With periods: for so many, the noise of their total grows with the logarithm of their number only.",
            f"a number of periods, from 1 to {2**20}",
        ),
    ] = None
    factorisation: Annotated[
        Literal["tree", "square-root", "banded"] | None,
        _key(
            "With periods: tree (the default) adds runs of periods. square-root, for as many as continual says, and "
            "banded, for any number, add all or the last ones by weights: less noise, and they are read every night.",
            '"tree", "square-root" or "banded"',
        ),
    ] = None
    band: Annotated[
        Annotated[int, Meta(ge=1, le=LONGEST)] | None,
        _key(
            f"Of a banded factorisation: how many periods a night reads at most [default: {BAND}].",
            f"a number of periods, from 1 to {LONGEST}",
        ),
    ] = None
    window: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None,
        _key(
            "Of a square root or a banded factorisation: the last periods of which the sum is written too, from the "
            "same releases.",
            "a number of periods, at least 1",
        ),
    ] = None
    ledger: Annotated[
        str | None,
        _key(
            "The budget's folder, or postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME without a password "
            "[default: that of the rows with the suffix .ledger].",
            "a path or an address in quotes",
        ),
    ] = None


class Pca(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The principal components of the release."""

    path: Annotated[str, _key("Folder or address of the model; with periods, folder of the models.", _FILE)]
    components: Annotated[
        Components,
        _key(
            "Number of components; or below 1 the share of the variance that they hold for sure; or auto: those that "
            "can be told from noise.",
            'a whole number of at least 1, a share of the variance such as 0.9, or "auto": those that can be told from '
            "noise",
        ),
    ]
    correlation: Annotated[
        bool, _key("Whether they are those of the correlation matrix, of columns standardised by the release.", _FLAG)
    ] = False


class Project(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scores of the rows, as private as the rows."""

    path: Annotated[str, _key("Folder or address of the scores.", _FILE)]


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to compute."""

    scheduler: Annotated[
        str | None, _key("Address of an existing Dask scheduler, such as tls://10.0.0.1:8786.", "an address in quotes")
    ] = None
    workers: Annotated[
        int | None, _key("Local worker processes [default: none, but threads of this process].", _WHOLE)
    ] = None
    trusted: Annotated[
        Literal["driver", "worker"],
        _key(
            "Where ledger and noise live: in this process, or on the worker that offers Dask's resource trusted.",
            "driver or worker, in quotes",
        ),
    ] = "driver"
    tls_ca: Annotated[str | None, _key("Certificate of the cluster's CA, for a tls:// scheduler.", _FILE)] = None
    tls_cert: Annotated[str | None, _key("Your certificate, of that CA.", _FILE)] = None
    tls_key: Annotated[str | None, _key("The certificate's key.", _FILE)] = None
    insecure: Annotated[bool, _key("Whether an unencrypted scheduler on the network is allowed.", _FLAG)] = False


class Sections(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole job: rows, their release and, where wanted, its components and the scores of the rows."""

    rows: Rows
    release: Release
    pca: Pca | None = None
    project: Project | None = None
    cluster: Cluster | None = None


_MODELS: dict[str, type[Struct]] = {
    "rows": Rows,
    "release": Release,
    "pca": Pca,
    "project": Project,
    "cluster": Cluster,
}
_KEYS = {section: {key.name: key for key in msgspec.structs.fields(model)} for section, model in _MODELS.items()}


def mistakes(content: Mapping[str, object]) -> Iterator[str]:
    """Yield a sentence for everything in a parsed file that is not as the types say; none: it can be read."""
    for section, values in content.items():
        if section not in _KEYS:
            yield f"There is no section or key {section!r}; the sections are {', '.join(_KEYS)}"
        elif not isinstance(values, dict):
            yield f"[{section}] must be a section: a line [{section}], and its keys below"
        else:
            yield from _mistakes_in(section, values)
    for section in ("rows", "release"):
        if section not in content:
            yield f"The section [{section}] is missing"


def _mistakes_in(section: str, values: Mapping[str, object]) -> Iterator[str]:
    keys = _KEYS[section]
    for name in values:
        if name not in keys:
            yield f"[{section}] has no key {name!r}; its keys are {', '.join(keys)}"
    for name, key in keys.items():
        if name in values:
            yield from _mistakes(f"[{section}] {name}", key.type, values[name])
        elif key.required:
            yield f"[{section}] needs {name!r}, {_expected(key.type)}"


def _mistakes(where: str, kind: Any, value: object) -> Iterator[str]:
    try:
        msgspec.convert(value, kind, builtin_types=(Decimal,), dec_hook=_typed)
    except msgspec.ValidationError:
        yield f"{where} must be {_expected(kind)}"
    else:
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and has_control(text) for text in texts):
            yield f"{where} holds a control character; take it out"


def _expected(kind: Any) -> str:
    return next(str(meta.extra["expected"]) for meta in kind.__metadata__ if meta.extra)


def _kinds(kind: Any) -> Iterator[Any]:
    """Yield what a type is a union of."""
    if get_origin(kind) is Annotated:
        yield from _kinds(get_args(kind)[0])
    elif get_origin(kind) in {Union, UnionType}:
        for each in get_args(kind):
            yield from _kinds(each)
    else:
        yield kind


def _typed(kind: type, value: object) -> Amount | Clip | Components:
    if kind is Clip and (
        value in get_args(Word) or (isinstance(value, (int, Decimal)) and not isinstance(value, bool))
    ):
        return Clip(value)
    if (
        kind is Components
        and not isinstance(value, bool)
        and (
            value == "auto"
            or (isinstance(value, int) and value >= 1)
            or (isinstance(value, Decimal) and value.is_finite() and 0 < value < 1)
        )
    ):
        return Components(f"{value:f}" if isinstance(value, Decimal) else value)
    if kind is Amount and isinstance(value, (int, Decimal, str)) and not isinstance(value, bool):
        return Amount(value)
    raise ValueError(kind)


def sections_of(content: Mapping[str, object]) -> Sections:
    """Return the sections of a parsed file in which there are no :func:`mistakes`."""
    return msgspec.convert(content, Sections, builtin_types=(Decimal,), dec_hook=_typed)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a job file."""
    _, types = msgspec.json.schema_components([Sections], schema_hook=_schema_of)
    for kind in types.values():  # of a docstring editors show its first line
        kind["description"] = kind["description"].partition("\n")[0]
    whole = types.pop("Sections") | {"title": "dpdist job file", "$defs": types}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_without_null(whole)}


def _schema_of(kind: type) -> dict[str, Any]:
    if kind is Clip:
        return {"anyOf": [{"type": "number"}, {"enum": list(get_args(Word))}]}
    if kind is Components:
        share = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
        return {"anyOf": [{"type": "integer", "minimum": 1}, share, {"enum": ["auto"]}]}
    return {"type": ["number", "string"]}


def _without_null(value: Any) -> Any:
    """Leave out that a key may be null, which no TOML file can say."""
    if isinstance(value, list):
        return [_without_null(each) for each in value if each != {"type": "null"}]
    if not isinstance(value, dict):
        return value
    kept = {name: _without_null(each) for name, each in value.items() if name != "default" or each is not None}
    choices = kept.get("anyOf", ())
    return {**choices[0], **{n: v for n, v in kept.items() if n != "anyOf"}} if len(choices) == 1 else kept


class JobFile:
    """Parameters as keys of a job file; those that have none, and steps, as they are typed."""

    def parameter(self, name: str, value: str | None) -> str:
        """Write ``clip in [release]`` or ``mechanism = "gaussian" in [release]``."""
        name, dot, option = name.partition(".")
        section = next((section for section, keys in _KEYS.items() if name in keys and name != "path"), None)
        if section is None:
            return COMMAND_LINE.parameter(name + dot + option, value)
        if option:
            return f"options = {{{option} = {'...' if value is None else value}}} in [{section}]"
        kind = get_args(_KEYS[section][name].type)[0]
        if kind is bool:
            return f"{name} = {value or 'true'} in [{section}]"
        if value is None:
            return f"{name} in [{section}]"
        bare = not {int, Amount, Clip, Components}.isdisjoint(_kinds(kind))
        return f"{name} = {value if bare else json.dumps(value)} in [{section}]"

    def step(self, name: str, operands: list[str], parameters: dict[str, str]) -> str:
        """Write the command."""
        return COMMAND_LINE.step(name, operands, parameters)


JOB_FILE = JobFile()


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")
