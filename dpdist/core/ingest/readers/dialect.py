"""Advice on text without comma separators and decimal points: the pandas call that converts it.

Nothing is converted here: only the user knows whether 1.234 is near one or above a thousand. So an error shows a pandas
call with the options that the first lines make certain.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_DECIMAL_COMMA = re.compile(r"[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_BOTH = {".": re.compile(r"[+-]?\d{1,3}(\.\d{3})+,\d+"), ",": re.compile(r"[+-]?\d{1,3}(,\d{3})+\.\d+")}
"""Numbers with both separators, by that of thousands: there is no doubt which is which."""
_NUMBER = re.compile(r"[+-]?[\d.,]*\d[\d.,]*(e[+-]?\d+)?", re.IGNORECASE)
_SIGNED = re.compile(r"[+-]?[$€£]? ?(\d+|[1-9]\d{0,2}(,\d{3})+)(\.\d+)? ?[%$€£]?|" + _DECIMAL_COMMA.pattern)


def otherwise(lines: Sequence[str]) -> str | None:
    """Return how to convert text, by its first lines: empty if unknown, None if commas separate the cells."""
    sheet = bool(lines) and lines[0].lower().startswith("sep=")
    skipped = int(sheet)  # lines before the table: a spreadsheet hint, and comments that are not column names
    for number, line in enumerate(lines[skipped:], skipped):
        following = next((other for other in lines[number + 1 :] if other.strip()), "")
        if line.startswith("#") and not _alike(line, following):
            skipped = number + 1
        elif line.strip():
            break
    skipped = _title(lines, skipped)
    rest = [line for line in lines[skipped:] if line.strip()] or [""]
    alone = len(_cells(rest[:1], ",")[0]) < 2
    mark = next((mark for mark in _SEPARATORS if _separates(mark, rest, alone=alone)), None)
    mark = lines[0][4] if sheet and lines[0][4:5] in _SEPARATORS else mark
    if mark is None and not skipped:
        return "" if alone else None
    sentences = [f"The first {skipped} line(s) are not part of the table."] if skipped else []
    options = ["FILE", *([f"skiprows={skipped}"] if skipped else [])]
    header, remark = "", ""
    if mark is not None:
        cells = _cells(rest, mark)
        numbers = [cell.strip() for row in cells for cell in row if _NUMBER.fullmatch(cell.strip())]
        sentences.append(f"The cells seem to be separated by {_SEPARATORS[mark]}.")
        options.append(r"sep=r'\s+'" if mark == " " else f"sep={mark!r}")
        options += (certain := _of_numbers(numbers, cells))
        if all(_NUMBER.fullmatch(cell.strip()) for cell in cells[0]):
            options.append("header=None")
            header = ", header=False"
        if any(option.startswith("thousands") for option in certain):
            remark = " (see that its mark of thousands, thousands=, is one in all columns)"
        else:
            remark = ", and state separators of thousands or decimals (thousands=, decimal=)"
    typed = f"pandas.read_csv({', '.join(options)}).to_csv(NEW, index=False{header})"
    if mark is not None and not certain and _may_group(cells):
        other = typed.replace(").to_csv", ", thousands='.').to_csv")
        typed = f"{typed} if 1.234 is near one there, or {other} if it is above a thousand"
    saved = f"Save it with commas between cells and points within numbers{remark}; in Python: {typed}."
    return f" {' '.join(sentences)} {saved}"


def _cells(lines: Sequence[str], mark: str) -> Sequence[Sequence[str]]:
    if mark == " ":
        lines = [re.sub(r"[ \t]+", " ", line.strip()) for line in lines]
    rows: list[list[str]] = []
    with suppress(csv.Error):  # up to a cell that is too long
        rows.extend(row for row in csv.reader(lines, delimiter=mark) if row)
    return rows or [[""]]


def _of_numbers(numbers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the options for separators of decimals and thousands that the cells leave no doubt of."""
    comma = any(_DECIMAL_COMMA.fullmatch(cell) and not _THOUSANDS.fullmatch(cell) for cell in numbers)
    columns = [[cell.strip() for cell in column] for column in zip_longest(*rows[1:], fillvalue="")]
    thousands = [mark for mark, both in _BOTH.items() if _groups_thousands(mark, both, columns)]
    return ["decimal=','"] * comma + [f"thousands={mark!r}" for mark in thousands]


def _may_group(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a column of numbers with points may have groups of thousands: nothing tells, so both are shown."""
    grouped = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
    columns = ([cell.strip() for cell in column if "." in cell] for column in zip_longest(*rows[1:], fillvalue=""))
    return any(column and all(map(grouped.fullmatch, column)) for column in columns)


def _groups_thousands(mark: str, both: re.Pattern[str], columns: Sequence[Sequence[str]]) -> bool:
    """Whether a mark groups thousands wherever it stands, in columns that leave no doubt: pandas has one for all."""
    grouped = re.compile(rf"[+-]?\d{{1,3}}({re.escape(mark)}\d{{3}})+([.,]\d+)?")
    found = [column for column in columns if any(mark in cell for cell in column)]
    return bool(found) and all(
        any(map(both.fullmatch, column)) and all(grouped.fullmatch(cell) for cell in column if mark in cell)
        for column in found
    )


def _title(lines: Sequence[str], skipped: int) -> int:
    """Return how many lines stand before a table: some of one cell, perhaps, such as the title of an export."""
    for number, line in enumerate(lines[skipped:], skipped):
        if any(sum(bool(cell.strip()) for cell in _cells([line], mark)[0]) > 1 for mark in ",;\t|"):
            rest = [other for other in lines[number:] if other.strip()]
            alike = len(rest) > 1 and all(_alike(rest[0], other) for other in rest)
            return number if alike and any(other.strip() for other in lines[skipped:number]) else skipped
    return skipped


def _alike(one: str, other: str) -> bool:
    """Whether two lines have the same number of cells, more than one."""
    return any(len(_cells([one], mark)[0]) == len(_cells([other], mark)[0]) > 1 for mark in ",;\t|")


def _separates(mark: str, lines: Sequence[str], *, alone: bool) -> bool:
    """Whether a mark separates the cells; if there are commas, only if all are inside numbers."""
    if alone:
        return len(_cells(lines[:1], mark)[0]) > 1
    cells = _cells(lines, mark)
    if mark == " " or {len(row) for row in cells} != {len(cells[0])} or len(cells[0]) < 2:
        return False
    rows = [cell for row in cells[1:] for cell in row if "," in cell]
    return bool(rows) and all(_NUMBER.fullmatch(cell.strip()) for cell in rows)


def respelled(columns: Mapping[str, Sequence[str]]) -> str | None:
    """Return the advice on numbers with commas or signs; None if there are none."""
    signed = [
        name for name, cells in columns.items() if cells and all(_SIGNED.fullmatch(cell.strip()) for cell in cells)
    ]
    if not signed:
        return None
    return f"These columns hold numbers with commas or signs: {signed}. Write them as plain numbers, such as 1234.5."
