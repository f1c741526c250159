"""A file of text that is read in fragments of its bytes is the file that is read from its start: rows and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpdist.errors import DataError
from dpdist.ingest.readers import text
from dpdist.ingest.readers.base import Choices, Places, UncutError
from dpdist.ingest.readers.source import Source
from dpdist.ingest.readers.text import Csv
from dpdist.ingest.remote import Remote

NUMBERS = st.sampled_from(["0", "1", "-7", "2.5", "1e3", '"4"', "300", "9007199254740993"])
WORDS = st.sampled_from(
    ["", "Ann", '"Ann, ""x"""', '""', '"""', '"a\nb"', '"a\r\n1,2"', 'x"y"', '"x"y', ' "x"', "Åse", "\ufeffq"]
)
ODD = st.sampled_from(["word", "", "nan", '"1', '1"', '"1\n"', '"1"2', "\ufeff1", "1,2", "x" * 90, "\udcff"])


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Return a table of a, b and words, most often a sound one, as some program may write it."""
    lines = draw(st.lists(st.tuples(NUMBERS, NUMBERS, st.just("Ann")), max_size=12))
    cells = [list(line) for line in lines]
    for _ in range(draw(st.integers(0, 3)) if cells else 0):  # most lines stay plain: else no file is sound
        draw(st.sampled_from(cells))[2] = draw(WORDS)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2])) if cells else 0):
        draw(st.sampled_from(cells))[draw(st.integers(0, 2))] = draw(ODD)
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    ends = st.sampled_from([end, end, end, end, end + end, "\n", "\r"])
    head = draw(st.sampled_from(["", "", "\ufeff", end])) + draw(st.sampled_from(["a,b,who", '"a","b","who, else"']))
    told = head + "".join(draw(ends) + ",".join(line) for line in cells) + draw(st.sampled_from(["", end, end * 3]))
    return told.encode(errors="surrogateescape")


def whole(source: Source, keep: Places) -> tuple[Any, ...]:
    """Return what the file is as it is read from its start, or the message of its refusal."""
    try:
        return source.survey(keep), np.concatenate(list(source.rows(keep))).tolist()
    except DataError as error:
        return (type(error), str(error))


def fragments_of(source: Source, size: int) -> list[tuple[int, int]]:
    length = source.path.stat().st_size
    return [(start, min(start + size, length)) for start in range(0, length, size)]


def in_fragments(source: Source, keep: Places, size: int) -> tuple[Any, ...] | None:
    """Return rows, types and spans of the fragments together; None: the file cannot be cut."""
    found = fragments_of(source, size)
    try:
        surveys = [source.survey(keep, fragment) for fragment in found]
        rows = [block.tolist() for fragment in found for block in source.rows(keep, fragment)]
    except UncutError:
        return None
    filled = [survey for survey in surveys if survey.rows]
    if not filled:
        return whole(source, keep)
    spans = [survey.span for survey in filled if survey.span is not None]
    span = None
    if len(spans) == len(filled):
        span = min(low for low, _ in spans), max(high for _, high in spans)
    total = filled[0]._replace(rows=sum(survey.rows for survey in filled), span=span)
    return total, [row for block in rows for row in block]


def require_same(content: bytes, header: str, size: int, keep: Places, folder: Path) -> bool:
    """Hold the fragments of a file to the whole, and say whether it can be cut."""
    (folder / "t.csv").write_bytes(content)
    source = Csv(folder / "t.csv", folder, Choices(header=header))
    try:
        found = in_fragments(source, keep, size)
    except DataError as error:  # of its first line, which is read from the start in any case
        found = (type(error), str(error))
    assert found is None or found == whole(source, keep)
    return found is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pieces")


@pytest.fixture(scope="module", autouse=True)
def _short_lines() -> Any:
    """Let Arrow parse blocks of 80 bytes, which no line may exceed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_LINE", 80)
        yield


@given(
    contents(),
    st.sampled_from(["yes", "no"]),
    st.sampled_from([24, 25, 31, 47, 100]),
    st.sampled_from([(0, 1), (1, 0, 2)]),
)
@example(b'a,b,who\n1,2,z\n1,2,"x\n3,4,y"\n5,6,z\n', "yes", 24, (0, 1))
@example(b"\xef\xbb\xbfa,b,who\n1,2,x\n\xef\xbb\xbf3,4,y\n", "yes", 24, (0, 1))
@example(b"a,b,who\r\n\r\n1,2,x\r3,word,y\n", "yes", 24, (0, 1))
def test_fragments_are_the_file(folder: Path, content: bytes, header: str, size: int, keep: Places) -> None:
    require_same(content, header, size, keep, folder)


def test_fragments_that_do_not_ask_what_is_quoted_are_not_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"a,b,who\n" + b"1,2,x\n" * 20 + b'1,2,"x\n3,4,y"\n5,6,z\n' * 9
    assert not any(require_same(content, "yes", size, (0, 1), folder) for size in range(24, 60))
    monkeypatch.setattr(text._Quotes, "_look", lambda *_: None)
    with pytest.raises(AssertionError):
        any(require_same(content, "yes", size, (0, 1), folder) for size in range(24, 60))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("cell", ["Ann", '"Ann, ""x"""', '""', "Åse"])
def test_sound_text_is_cut_at_every_line(folder: Path, cell: str, end: str) -> None:
    lines = ["a,b,who", *(f"{row},2,{cell}" for row in range(9))]
    content = end.join(lines).encode()
    assert all(require_same(content, "yes", size, (0, 1), folder) for size in (24, 25, 26, 27, 40))


@pytest.mark.parametrize("cell", ['"x\ny"', 'x"y"', '"x"y', '"x', ' "x"', "x" * 80])
def test_text_in_doubt_is_read_from_its_start(folder: Path, cell: str) -> None:
    assert not require_same(f"a,b,who\n1,2,x\n3,4,{cell}\n5,6,z\n".encode(), "yes", 9, (0, 1), folder)


def test_a_fragment_that_holds_no_numbers_is_left_to_the_whole_file(folder: Path) -> None:
    (folder / "t.csv").write_text("a,b\n" + "1,2\r\n" * 7 + "\r\r\n" + "3,secretword\n")
    source = Csv(folder / "t.csv", folder)
    assert in_fragments(source, (0, 1), 5) is None
    kind, said = whole(source, (0, 1))
    assert kind is DataError
    assert said.startswith(f"{source.path}, line 11, column 'b': the cell is not a number. ")


def test_an_object_is_asked_for_its_pieces_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"a,b\n" + b"".join(b"%d,2\n" % row for row in range(1000))
    fsspec.filesystem("memory").pipe_file("/private/t.csv", content)
    source = Csv(Remote("memory://private/t.csv"), folder)
    assert source.head.names == ("a", "b")  # from the start, as any reader
    asked: list[int] = []
    read = Remote.range

    def told(self: Remote, start: int, length: int) -> bytes:
        asked.append(length)
        return read(self, start, length)

    monkeypatch.setattr(Remote, "range", told)
    start, stop = fragments_of(source, 1000)[3]
    rows = np.concatenate(list(source.rows((0, 1), (start, stop))))
    assert sum(asked) < 3 * (stop - start)
    lines = content[:stop].split(b"\n")
    assert rows[-1, 0] == int(lines[-1].split(b",")[0] or lines[-2].split(b",")[0]) or rows[-1, 0] + 1 == rows[
        0, 0
    ] + len(rows)
    assert np.array_equal(rows[:, 0], np.arange(rows[0, 0], rows[0, 0] + len(rows)))
