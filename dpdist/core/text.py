"""Numbers and names in text, random identifiers, JSON and JSON schemas."""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import fields
from decimal import ROUND_CEILING, Decimal
from difflib import get_close_matches
from typing import Any
from unicodedata import normalize

NEXT = "Next: "
"""Prefix of a line with the command to type next."""
AMOUNTS = ("B", "kB", "MB", "GB", "TB")
"""Units of bytes, in steps of 1000."""
_SHOWN = 20
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters of terminals
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # changes of the direction of text
    "\u2028\u2029\ud800-\udfff]"  # line ends, and lone surrogates, which no file can hold
)
_UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
"""Characters without a shape: Default_Ignorable_Code_Point of Unicode 15.1, other format characters, and blanks."""
_JOINERS = "\u200c\u200d"
"""They have no shape either, but change that of their neighbours in some scripts."""
_IGNORED = re.compile(f"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f{_UNSEEN}{_JOINERS}]")
_UNPUBLISHABLE = re.compile(f"{_CONTROL.pattern}|[{_UNSEEN}]|(?<![\u0600-\u0dff])[{_JOINERS}]")


def has_control(text: str) -> bool:
    """Return whether a name contains control characters, or others that cannot be seen."""
    return _UNPUBLISHABLE.search(text) is not None


def visible(text: str) -> str:
    r"""Return a name as it is seen: in Unicode form C, without invisible characters, and with plain spaces only inside.

    Examples
    --------
    >>> visible("\ufeffA1\u200b "), visible("Zoe\u0308\u00a0M") == "Zo\u00eb M"
    ('A1', True)
    """
    return normalize("NFC", re.sub(r"\s", " ", _IGNORED.sub("", text)).strip())


def can_be_published(names: Sequence[str]) -> bool:
    """Return whether names differ as they are seen, and hold no character that cannot be."""
    return not repeated(map(visible, names)) and not any(map(has_control, names))


def printable(text: str) -> str:
    r"""Return text for a terminal: control characters other than newlines and tabs are escaped.

    Examples
    --------
    >>> print(printable("two\nlines, \x1b[2J"))
    two
    lines, \x1b[2J
    """
    return _CONTROL.sub(lambda match: match[0] if match[0] in "\n\t" else repr(match[0])[1:-1], text)


def wrapped(text: str, first: str = "", later: str = "") -> str:
    """Wrap prose to the width of the terminal, or 80 columns, without breaking words or paths."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=False
    )


def fitted(text: str) -> str:
    """Wrap lines to the width of the terminal, except indented ones and commands to copy."""
    width = shutil.get_terminal_size().columns
    lines = text.split("\n")
    return "\n".join(line if len(line) <= width or line.startswith((" ", NEXT)) else wrapped(line) for line in lines)


def labelled(lines: Iterable[tuple[str, str]]) -> str:
    """Return labelled lines, aligned and wrapped; an empty label marks prose."""
    lines = list(lines)
    width = max(len(name) for name, _ in lines)
    return "\n".join(
        wrapped(text, f"{name:<{width}}  ", " " * (width + 2)) if name else wrapped(text) for name, text in lines
    )


def exactly(value: float) -> str:
    """Return a number as text that reads back as the same float."""
    return repr(float(value)).removesuffix(".0")


def rounded_norm(value: float) -> str:
    """Return the norm that rows were clipped to, rounded to six digits."""
    return f"{Decimal(f'{value:.6g}'):f}"


def rounded_up(value: float, digits: int = 4) -> str:
    """Return a positive number rounded up.

    Examples
    --------
    >>> rounded_up(1.41421357), rounded_up(12345.0), rounded_up(2.0), rounded_up(1.41421357, 6)
    ('1.415', '12350', '2', '1.41422')
    """
    exact = Decimal(value)
    step = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return f"{exact.quantize(step, ROUND_CEILING).normalize():f}"


class OfRows(str):
    """A message that tells something of the rows: for those who hold them only."""

    __slots__ = ()


def counted(number: int, noun: str) -> str:
    """Return a count with its noun, in the plural if needed."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def did_you_mean(name: object, names: Sequence[str]) -> str:
    """Return a question about the name that is most like a wrong one, after a space; empty if none is.

    >>> did_you_mean("regino", ["age", "region"])
    " Did you mean 'region'?"
    """
    near = get_close_matches(str(name), names, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Return at most twenty names for a message, and how many there are."""
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN else "")


def repeated(names: Iterable[str]) -> list[str]:
    """Return the duplicate names, each once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def canonical(value: object) -> str:
    """Return the canonical JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def as_json(value: Any) -> Any:
    """Return a value as JSON values, by ``to_json`` if it has that method; paths and stores become text."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return value if value is None or isinstance(value, int | float) else str(value)


def fields_as_json(value: Any, *, optional: Container[str] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values, without optional ones that are empty."""
    values = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: as_json(item) for name, item in values.items() if item or name not in optional}


def random_token() -> str:
    """Return 128 random bits as 32 hexadecimal digits."""
    return os.urandom(16).hex()


def schema_of(kind: type, title: str, version: str) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a type whose key ``format`` is fixed to ``version``."""
    import msgspec  # noqa: PLC0415 - help needs no library

    ((reference,), types) = msgspec.json.schema_components([kind])
    for definition in types.values():  # the first line of a docstring is enough here
        if "description" in definition:
            definition["description"] = definition["description"].partition("\n")[0]
    schema = types.pop(reference["$ref"].rpartition("/")[2])
    required = [name for name in schema["required"] if name != "format"]
    schema |= {
        "title": title,
        "properties": {**schema["properties"], "format": {"const": version}},
        "required": ["format", *required],
    }
    definitions = {"$defs": types} if types else {}
    document: dict[str, Any] = _plain(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, **definitions}
    )
    return document


def _plain(value: Any) -> Any:
    """Drop the patterns against lone surrogates, which JSON documents cannot contain, and end others as JSON schema."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "pattern" or "ud800" not in str(item)}
        return {key: item.replace(r"\Z", "$") if key == "pattern" else _plain(item) for key, item in kept.items()}
    return value
