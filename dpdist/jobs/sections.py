"""The sections of a job file as types, from which its checks, messages and JSON schema derive.

``python -m dpdist.jobs.sections`` writes the schema, ``job.schema.json`` in this folder; a test compares them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from dpdist.core.naming import COMMAND_LINE, SPELLINGS
from dpdist.core.options import (
    FILE,
    FLAG,
    WHOLE,
    WORD,
    Amount,
    Clip,
    ClusterOptions,
    Components,
    ComponentsOptions,
    IngestOptions,
    Options,
    ReleaseOptions,
    Word,
    fields_of,
    kinds_of,
    meta_of,
    option,
)
from dpdist.core.release.series import BAND, LONGEST
from dpdist.core.text import has_control

SCHEMA = Path(__file__).with_name("job.schema.json")


class Rows(IngestOptions, frozen=True, kw_only=True):
    """The rows, and their source."""

    path: Annotated[
        str,
        option("Folder of the rows, or s3://bucket/rows.zarr; rows are ingested if it does not exist.", FILE),
    ]
    source: Annotated[
        str | None,
        option("The source of the rows: a file, a folder, or an address such as s3://bucket/folder.", FILE),
    ] = None
    in_place: Annotated[bool, option("Whether rows are registered in place instead of copied.", FLAG)] = False
    max_periods: Annotated[
        int | None, option("Largest number of periods with rows of each privacy unit; the first ones are kept.", WHOLE)
    ] = None
    exclude: Annotated[
        str | None,
        option("A private list of privacy units, one per line, to leave out of new periods.", FILE),
    ] = None
    periods: Annotated[
        bool, option("Whether path is a folder of periods, and source a folder with one entry per period.", FLAG)
    ] = False


class Release(ReleaseOptions, frozen=True, kw_only=True):
    """The release of the rows."""

    path: Annotated[str, option("Folder or address of the release; with periods, folder of the releases.", FILE)]
    period: Annotated[str | None, option("Names one of several releases with the same parameters.", WORD)] = None
    continual: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None,
        option(
            "With periods: how many to plan for. The noise of their total grows with the logarithm.",
            f"a number of periods, from 1 to {2**20}",
        ),
    ] = None
    factorisation: Annotated[
        Literal["tree", "square-root", "banded"] | None,
        option(
            "With periods: tree (the default) releases sums of consecutive periods. square-root, for at most continual "
            "periods, and banded, for any number, release weighted sums: less noise, but each run reads all or the "
            "last periods again.",
            '"tree", "square-root" or "banded"',
        ),
    ] = None
    band: Annotated[
        Annotated[int, Meta(ge=1, le=LONGEST)] | None,
        option(
            f"For a banded factorisation: largest number of periods that a release reads [default: {BAND}].",
            f"a number of periods, from 1 to {LONGEST}",
        ),
    ] = None
    window: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None,
        option(
            "For a square-root or banded factorisation: also write the sum of this many last periods, from the same "
            "releases.",
            "a number of periods, at least 1",
        ),
    ] = None


class Pca(ComponentsOptions, frozen=True, kw_only=True):
    """The principal components of the release."""

    path: Annotated[str, option("Folder or address of the model; with periods, folder of the models.", FILE)]


class Project(Options, frozen=True, kw_only=True):
    """The scores of the rows; they are as private as the rows."""

    path: Annotated[str, option("Folder or address of the scores.", FILE)]


class Sections(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job: rows, their release and, optionally, components and scores."""

    rows: Rows
    release: Release
    pca: Pca | None = None
    project: Project | None = None
    cluster: ClusterOptions | None = None


_MODELS: dict[str, type[Options]] = {
    "rows": Rows,
    "release": Release,
    "pca": Pca,
    "project": Project,
    "cluster": ClusterOptions,
}
KEYS = {section: fields_of(model) for section, model in _MODELS.items()}


def with_standard_spellings(content: Mapping[str, object]) -> dict[str, object]:
    """Return a parsed file with its keys in their standard spelling; a key given in both keeps both."""
    return {
        section: {_standard(name, section, values): value for name, value in values.items()}
        if isinstance(values, dict)
        else values
        for section, values in content.items()
    }


def _standard(name: str, section: str, values: Mapping[str, object]) -> str:
    standard = SPELLINGS.get(name, name)
    return standard if standard in KEYS.get(section, ()) and standard not in values else name


def mistakes(content: Mapping[str, object]) -> Iterator[str]:
    """Yield a sentence for each mistake in a parsed file."""
    for section, values in content.items():
        if section not in KEYS:
            yield f"There is no section or key {section!r}; the sections are {', '.join(KEYS)}"
        elif not isinstance(values, dict):
            yield f"[{section}] must be a section: a line [{section}], and its keys below"
        else:
            yield from _mistakes_in(section, values)
    for section in ("rows", "release"):
        if section not in content:
            yield f"The section [{section}] is missing"


def _mistakes_in(section: str, values: Mapping[str, object]) -> Iterator[str]:
    keys = KEYS[section]
    for name in values:
        if SPELLINGS.get(name) in values:
            yield f"[{section}] {SPELLINGS[name]} and {name} are the same key; use one of them"
        elif name not in keys:
            yield f"[{section}] has no key {name!r}; its keys are {', '.join(keys)}"
    for name, key in keys.items():
        if name in values:
            yield from _mistakes(f"[{section}] {name}", key.type, values[name])
        elif key.required:
            yield f"[{section}] needs {name!r}, {_expected(key.type)}"


def _mistakes(key: str, kind: Any, value: object) -> Iterator[str]:
    try:
        msgspec.convert(value, kind, builtin_types=(Decimal,), dec_hook=_typed)
    except msgspec.ValidationError:
        yield f"{key} must be {_expected(kind)}"
    else:
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and has_control(text) for text in texts):
            yield f"{key} contains a control or invisible character; remove it"


def _expected(kind: Any) -> str:
    return str(meta_of(kind).extra["expected"])


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
    """Return the sections of a parsed file without :func:`mistakes`."""
    return msgspec.convert(content, Sections, builtin_types=(Decimal,), dec_hook=_typed)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a job file."""
    _, types = msgspec.json.schema_components([Sections], schema_hook=_schema_of)
    for kind in types.values():  # editors show the first line
        kind["description"] = kind["description"].partition("\n")[0]
        keys = kind.get("properties", {})
        keys |= {spelling: keys[name] for spelling, name in SPELLINGS.items() if name in keys}
    sections = types.pop("Sections") | {"title": "dpdist job file", "$defs": types}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_without_null(sections)}


def _schema_of(kind: type) -> dict[str, Any]:
    if kind is Clip:
        return {"anyOf": [{"type": "number"}, {"enum": list(get_args(Word))}]}
    if kind is Components:
        share = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
        return {"anyOf": [{"type": "integer", "minimum": 1}, share, {"enum": ["auto"]}]}
    return {"type": ["number", "string"]}


def _without_null(value: Any) -> Any:
    """Omit null, which TOML lacks."""
    if isinstance(value, list):
        return [_without_null(member) for member in value if member != {"type": "null"}]
    if not isinstance(value, dict):
        return value
    entries = {name: _without_null(member) for name, member in value.items() if name != "default" or member is not None}
    choices = entries.get("anyOf", ())
    return {**choices[0], **{n: v for n, v in entries.items() if n != "anyOf"}} if len(choices) == 1 else entries


class JobFile:
    """Names parameters as keys of a job file, and steps as commands."""

    def parameter(self, name: str, value: str | None) -> str:
        """Write ``clip in [release]`` or ``mechanism = "gaussian" in [release]``."""
        name, dot, option = ("components" if name == "clip_components" else name).partition(".")
        section = next((section for section, keys in KEYS.items() if name in keys and name != "path"), None)
        if section is None:
            return COMMAND_LINE.parameter(name + dot + option, value)
        if option:
            number = value is None or value.replace(".", "", 1).isdigit()
            shown = "..." if value is None else value if number else json.dumps(value)
            return f"{name} = {{{option} = {shown}}} in [{section}]"
        kind = get_args(KEYS[section][name].type)[0]
        if bool in kinds_of(kind):
            return f"{name} = {value or 'true'} in [{section}]"
        if value is None:
            return f"{name} in [{section}]"
        if any(get_origin(each) is tuple for each in kinds_of(kind)):
            return f"{name} = {json.dumps(next(csv.reader([value])), ensure_ascii=False)} in [{section}]"
        bare = not {int, Amount, Clip, Components}.isdisjoint(kinds_of(kind))
        return f"{name} = {value if bare else json.dumps(value)} in [{section}]"

    def step(self, name: str, operands: list[str], parameters: dict[str, str]) -> str:
        """Write the command; of the ingest of a source, which is the job's, the keys."""
        if name == "ingest" and parameters and operands[0] != "SOURCE":
            return ", ".join(self.parameter(key, value) for key, value in parameters.items())
        return COMMAND_LINE.step(name, operands, parameters)


JOB_FILE = JobFile()


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")
