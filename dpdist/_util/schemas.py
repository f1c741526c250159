"""JSON schemas of what is published, made of the types by which it is read."""

from __future__ import annotations

from typing import Any

import msgspec


def schema_of(kind: type, title: str, version: str) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a type of which ``format`` says the version."""
    ((reference,), types) = msgspec.json.schema_components([kind])
    for each in types.values():  # of a docstring people need the first line here
        if "description" in each:
            each["description"] = each["description"].partition("\n")[0]
    whole = types.pop(reference["$ref"].rpartition("/")[2])
    required = [name for name in whole["required"] if name != "format"]
    whole |= {
        "title": title,
        "properties": {**whole["properties"], "format": {"const": version}},
        "required": ["format", *required],
    }
    said = {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole, **({"$defs": types} if types else {})}
    found: dict[str, Any] = _plain(said)
    return found


def _plain(value: Any) -> Any:
    """Leave out patterns against halves of characters: they are Python's, and no JSON has such halves."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if not (key == "pattern" and isinstance(each, str))}
    return value
