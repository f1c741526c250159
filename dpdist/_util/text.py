"""Text: numbers and names in sentences, random identifiers, JSON and its schemas."""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import fields
from decimal import ROUND_CEILING, Decimal
from typing import Any

NEXT = "Next: "
"""How a line starts that names a command to type next."""
AMOUNTS = ("B", "kB", "MB", "GB", "TB")
"""Units of bytes, each a thousand of the one before."""
_SHOWN = 20
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # what terminals obey
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of text, so that it reads as another
    "\u2028\u2029\ud800-\udfff]"  # ends of lines, and halves of letters that no file can hold
)


def has_control(text: str) -> bool:
    """Say whether a name holds what is no letter but an order to whoever shows it."""
    return _CONTROL.search(text) is not None


def printable(text: str) -> str:
    r"""Return text for a terminal: lines stay lines, other control characters are spelled out.

    Examples
    --------
    >>> print(printable("two\nlines, \x1b[2J"))
    two
    lines, \x1b[2J
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in "\n\t" else repr(found[0])[1:-1], text)


def wrapped(text: str, first: str = "", later: str = "") -> str:
    """Return prose as wide as the terminal, or 80 columns where there is none; words, paths and all, stay whole."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=False
    )


def fitted(text: str) -> str:
    """Return text whose lines are no wider than the terminal, but those that are to be copied: a command to type next.

    What starts with a space is laid out already, and stays too.
    """
    width = shutil.get_terminal_size().columns
    lines = text.split("\n")
    return "\n".join(line if len(line) <= width or line.startswith((" ", NEXT)) else wrapped(line) for line in lines)


def labelled(lines: Iterable[tuple[str, str]]) -> str:
    """Return lines of a label and what it is about, aligned and as wide as the terminal; without a label: prose."""
    lines = list(lines)
    width = max(len(name) for name, _ in lines)
    return "\n".join(
        wrapped(text, f"{name:<{width}}  ", " " * (width + 2)) if name else wrapped(text) for name, text in lines
    )


def exactly(value: float) -> str:
    """Return a number as it is: what is read back from it is the same float, to the last bit."""
    return repr(float(value)).removesuffix(".0")


def rounded_norm(value: float) -> str:
    """Return a norm that rows were shortened to, to six digits: it follows from the clip norm and the grid."""
    return f"{Decimal(f'{value:.6g}'):f}"


def rounded_up(value: float) -> str:
    """Return a positive number with four digits that is not less.

    Examples
    --------
    >>> rounded_up(1.41421357), rounded_up(12345.0), rounded_up(2.0)
    ('1.415', '12350', '2')
    """
    found = Decimal(value)
    step = Decimal(1).scaleb(found.adjusted() - 3)
    return f"{found.quantize(step, ROUND_CEILING).normalize():f}"


def counted(number: int, thing: str) -> str:
    """Return how many there are of something."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def listed(names: Iterable[str]) -> str:
    """Return names for a message, the first twenty of many."""
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN else "")


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that stand there more than once, each once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def canonical(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def as_json(value: Any) -> Any:
    """Return JSON values: of an object its own, a path or a store as text."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, dict):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return value if value is None or isinstance(value, int | float) else str(value)


def fields_as_json(value: Any, *, optional: Container[str] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values by their names; optional ones only where they say something."""
    found = {each.name: getattr(value, each.name) for each in fields(value)}
    return {name: as_json(each) for name, each in found.items() if each or name not in optional}


def random_token() -> str:
    """Return 128 random bits as 32 hexadecimal digits: an identity that says nothing about what it names."""
    return os.urandom(16).hex()


def schema_of(kind: type, title: str, version: str) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a type of which ``format`` says the version."""
    import msgspec  # noqa: PLC0415 - help needs no library

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
