"""Text of other dialects than commas and points, and the line of Python that writes it as these.

Nothing is converted here: whether 1.234 is a number near one or above a thousand is for whoever knows the file to say.
So a refusal shows the call of pandas that says it, with all that the first lines make certain: the separator, the
decimal mark, a first line of numbers, and columns that pandas would take for numbers and that are none, such as dates.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_WITH_COMMA = re.compile(r"[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+")
_WITH_POINT = re.compile(r"[+-]?(\d*|\d{1,3}(,\d{3})+)\.\d+")
_THOUSANDS = {
    ".": re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?"),
    ",": re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"),
}
_NUMBER = re.compile(r"[+-]?[\d.,]*\d[\d.,]*(e[+-]?\d+)?", re.IGNORECASE)
_SIGNED = re.compile(r"[+-]?[$€£]? ?(\d+|[1-9]\d{0,2}(,\d{3})+)(\.\d+)? ?[%$€£]?")

Lines = Sequence[Sequence[str]]


def otherwise(lines: Sequence[str]) -> str | None:
    """Return how text is written with commas and points, a sentence after a space, by its first lines."""
    aside = _aside(lines)
    rest = [line for line in lines[aside:] if line.strip()] or [""]
    named = lines[0].strip()[4:5] if lines and lines[0].lower().startswith("sep=") else None
    alone = len(_cells(rest[:1], ",")[0]) < 2
    mark = next((mark for mark in _SEPARATORS if _separates(mark, rest, alone=alone)), None)
    if named is not None:
        mark = named if named in _SEPARATORS else ","
    said, before = "", f"skiprows={aside}" if aside else ""
    if named is not None:
        said = "Line 1 is for a spreadsheet. Write the file without it"
    elif aside:
        said = f"{'Line 1 is' if aside == 1 else f'The first {aside} lines are'} no part of the table. Write it without"
    if mark is not None:
        said = said or (
            f"Its cells seem to be separated by {_SEPARATORS[mark]}. Save it with commas between cells and points "
            "within numbers"
        )
        return _written(said, before, *_options(_cells(rest, mark), mark))
    if said:
        return _written(said, before)
    return "" if alone else None


def _aside(lines: Sequence[str]) -> int:
    """Return how many lines stand before the table: for a spreadsheet, comments, and titles above names of columns."""
    aside = 0
    for at, line in enumerate(lines):
        if not line.strip():
            continue
        following = next((each for each in lines[at + 1 :] if each.strip()), "")
        widths = [[len(_cells([each], mark)[0]) for each in (line, following)] for mark in ",;\t|"]
        alike = any(one == other > 1 for one, other in widths)
        title = all(one == 1 for one, _ in widths) and any(other > 1 for _, other in widths)
        if title:  # not above numbers: it would be the name of a column of decimal commas
            title = not any(_NUMBER.fullmatch(cell.strip()) for cell in re.split(r"[,;\t|]", following))
        if (at == 0 and line.lower().startswith("sep=")) or (line.startswith("#") and not alike) or title:
            aside = at + 1
        else:
            break
    return aside


def _cells(lines: Sequence[str], mark: str) -> Lines:
    if mark == " ":
        lines = [re.sub(r"[ \t]+", " ", line.strip()) for line in lines]
    found: list[list[str]] = []
    with suppress(csv.Error):  # up to a cell that is too long
        found.extend(row for row in csv.reader(lines, delimiter=mark) if row)
    return found or [[""]]


def _separates(mark: str, lines: Sequence[str], *, alone: bool) -> bool:
    """Say whether cells are separated by a mark: beside commas, only if all of these stand within numbers."""
    if alone:
        return len(_cells(lines[:1], mark)[0]) > 1
    cells = _cells(lines, mark)
    if mark == " " or {len(row) for row in cells} != {len(cells[0])} or len(cells[0]) < 2:
        return False
    rows = [cell for row in cells[1:] for cell in row if "," in cell]
    return bool(rows) and all(_NUMBER.fullmatch(cell.strip()) for cell in rows)


def _options(cells: Lines, mark: str) -> tuple[str, str, str]:
    """Return what is passed to ``read_csv``, what is done then, and a remark."""
    read, then, remark = r"sep=r'\s+'" if mark == " " else f"sep={mark!r}", "", ""
    numbers = [bool(_NUMBER.fullmatch(cell.strip())) for cell in cells[0]]
    headless = all(each or not cell.strip() for each, cell in zip(numbers, cells[0], strict=True)) and any(numbers)
    columns = [*zip(*(row for row in cells[not headless :] if len(row) == len(cells[0])), strict=True)]
    told = [cell.strip() for column in columns for cell in column]
    point = any(_WITH_POINT.fullmatch(cell) and not _THOUSANDS["."].fullmatch(cell) for cell in told)
    comma = any(_WITH_COMMA.fullmatch(cell) and not _THOUSANDS[","].fullmatch(cell) for cell in told)
    grouped = {each: any(_THOUSANDS[each].fullmatch(cell) for cell in told) for each in ".,"}
    thousands = None
    if comma or (grouped[","] and mark == ";" and not point):
        read += ", decimal=','"
        thousands = "." if grouped["."] else None
    elif grouped[","]:
        thousands = ","
        if not point:
            remark = " If the comma is a decimal mark, pass decimal=',' in place of thousands=','."
    elif grouped["."] and not point:
        remark = " If the point separates thousands, pass thousands='.', too."
    if thousands is not None:
        read += f", thousands={thousands!r}"
        kept = [place for place, column in enumerate(columns) if _is_text(column, thousands)]
        if kept:  # pandas would read a date as one number
            read += ", converters={" + ", ".join(f"{place}: str" for place in kept) + "}"
    if headless:
        read += ", header=None"
    elif any(numbers):
        remark += " If the first line of the table is a row, pass header=None, and header=False to to_csv."
    if mark != " " and not any(row[-1].strip() for row in cells):
        then = ".iloc[:, :-1]"  # every line ends with the mark
    return read, f"{then}.to_csv(NEW, index=False{', header=False' if headless else ''})", remark


def _is_text(column: Sequence[str], thousands: str) -> bool:
    return any(thousands in cell and not _THOUSANDS[thousands].fullmatch(cell.strip()) for cell in column)


def _written(said: str, first: str, read: str = "", then: str = "", remark: str = "") -> str:
    options = ", ".join(each for each in ("FILE", first, read) if each)
    return f" {said}; in Python: pandas.read_csv({options}){then or '.to_csv(NEW, index=False)'}.{remark}"


def respelled(columns: Mapping[str, Sequence[str]]) -> str | None:
    """Return how columns of numbers with commas or signs in them are written without; None: there are none."""
    found = {name: [cell.strip() for cell in cells if cell.strip()] for name, cells in columns.items()}
    decimals = [
        name for name, cells in found.items()
        if cells and all(_WITH_COMMA.fullmatch(cell) for cell in cells)
        and not all(_THOUSANDS[","].fullmatch(cell) for cell in cells)
    ]  # fmt: skip
    if decimals:
        return _written(f"Columns hold numbers with a decimal comma: {decimals}. Write them with points", "decimal=','")
    signed = [
        name for name, cells in found.items()
        if any(not cell.isascii() or not cell.isalnum() for cell in cells) and all(map(_SIGNED.fullmatch, cells))
    ]  # fmt: skip
    if not signed:
        return None
    marks = ", ".join(f"{name!r}: '[,%$€£ ]'" for name in signed)
    grouped = any(all(map(_THOUSANDS[","].fullmatch, found[name])) for name in signed)
    remark = " If the comma is a decimal mark, pass decimal=',' to read_csv and nothing else." if grouped else ""
    return _written(
        "Columns hold numbers with commas or signs in them. Write them without",
        "dtype=str",
        "",
        f".replace({{{marks}}}, '', regex=True).to_csv(NEW, index=False)",
        remark,
    )
