"""A file of text that is cut by bytes and read in pieces is the file that is read from its start: rows and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpdist.errors import DataError
from dpdist.ingest.readers import ranges, text
from dpdist.ingest.readers.base import Choices, Places, Source, joined
from dpdist.ingest.readers.text import Csv
from dpdist.ingest.readers.vcf import Vcf
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
        return source.survey(keep), np.concatenate(list(source.blocks(keep))).tolist()
    except DataError as error:
        return (type(error), str(error))


def in_pieces(source: Source, keep: Places, size: int) -> tuple[Any, ...] | None:
    """Return what the pieces are together, or the refusal of the first one that has one; None: it cannot be cut."""
    found = source.ranges(size)
    assert found is not None
    cuts = source.pieces([source.scan(*each) for each in found])
    if cuts is None:
        return None
    assert [start for start, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])]
    try:
        survey = joined([source.piece_survey(keep, *each) for each in cuts])
        rows = [block.tolist() for each in cuts for block in source.piece(keep, *each)]
    except DataError as error:
        return (type(error), str(error))
    return whole(source, keep) if survey is None else (survey, [row for block in rows for row in block])


def require_same(content: bytes, header: str, size: int, keep: Places, folder: Path) -> bool:
    """Hold the pieces of a file to the whole, and say whether there are several."""
    (folder / "t.csv").write_bytes(content)
    source = Csv(folder / "t.csv", folder, Choices(header=header))
    try:
        found = in_pieces(source, keep, size)
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
    st.sampled_from([1, 2, 3, 7, 20, 100]),
    st.sampled_from([(0, 1), (1, 0, 2)]),
)
@example(b'a,b,who\n1,2,z\n1,2,"x\n3,4,y"\n5,6,z\n', "yes", 1, (0, 1))
@example(b"\xef\xbb\xbfa,b,who\n1,2,x\n\xef\xbb\xbf3,4,y\n", "yes", 1, (0, 1))
@example(b"a,b,who\r\n\r\n1,2,x\r3,word,y\n", "yes", 1, (0, 1))
def test_pieces_are_the_file(folder: Path, content: bytes, header: str, size: int, keep: Places) -> None:
    require_same(content, header, size, keep, folder)


def test_pieces_that_do_not_ask_what_is_quoted_are_not_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_sound", lambda _: True)
    judged = b"a,b,who\n" + b"1,2,x\n" * 100
    for content in (b'1,2,"x\n3,4,y"\n5,6,z\n', b'"1"2,2,x\n3,word,y\n', b"1,2,\xff\n3,word,y\n"):
        with pytest.raises(AssertionError):
            require_same(judged + content, "yes", 1, (0, 1), folder)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("cell", ["Ann", '"Ann, ""x"""', '""', "Åse"])
def test_sound_text_is_cut_at_every_line(folder: Path, cell: str, end: str) -> None:
    lines = ["a,b,who", *(f"{row},2,{cell}" for row in range(9))]
    content = end.join(lines).encode()
    assert require_same(content, "yes", 1, (0, 1), folder)
    source = Csv(folder / "t.csv", folder, Choices(header="yes"))
    cuts = source.pieces([source.scan(place, place + 1) for place in range(len(content))])
    assert cuts is not None
    assert [content[start:stop].decode().strip() for start, stop in cuts[1:]] == lines[2:]


@pytest.mark.parametrize("cell", ['"x\ny"', 'x"y"', '"x"y', '"x', ' "x"', "x" * 80])
def test_text_in_doubt_is_read_from_its_start(folder: Path, cell: str) -> None:
    assert not require_same(f"a,b,who\n1,2,x\n3,4,{cell}\n5,6,z\n".encode(), "yes", 9, (0, 1), folder)


def test_a_refusal_names_the_line_of_the_file(folder: Path) -> None:
    (folder / "t.csv").write_text("a,b\n" + "1,2\r\n" * 7 + "\r\r\n" + "3,secretword\n")
    source = Csv(folder / "t.csv", folder)
    found = in_pieces(source, (0, 1), 5)
    assert found == (
        DataError,
        f"{source.path}, line 11, column 'b': the cell is not a number. Mend it in the file and ingest again.",
    )


def test_a_piece_that_is_none_any_more_is_refused(folder: Path) -> None:
    source = Csv(folder / "t.csv", folder, Choices(header="yes"))
    source.path.write_text("a,b\n1,2\n3,4\n")
    assert [block.tolist() for block in source.piece((0, 1), 8, 12)] == [[[3, 4]]]
    for content in ("a,b\n11,2\n3,4\n", "a,b\n1,2\n"):
        source.path.write_text(content)
        with pytest.raises(DataError, match=r"changed while|cannot be read"):
            list(source.piece((0, 1), 8, 12))


def test_an_object_is_asked_for_its_pieces_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"a,b\n" + b"".join(b"%d,2\n" % row for row in range(1000))
    fsspec.filesystem("memory").pipe_file("/private/t.csv", content)
    source = Csv(Remote("memory://private/t.csv"), folder)
    assert source.names == ("a", "b")  # from the start, as any reader
    asked: list[int] = []
    read = Remote.range

    def told(self: Remote, start: int, length: int) -> bytes:
        asked.append(length)
        return read(self, start, length)

    monkeypatch.setattr(Remote, "range", told)
    found = source.ranges(1000)
    assert found is not None
    cuts = source.pieces([source.scan(*each) for each in found])
    assert cuts is not None
    assert len(cuts) == len(found)
    assert sum(asked) < len(content) + len(found) * (text._LINE + 2) + 2 * text._LINE
    asked.clear()
    start, stop = cuts[3]
    rows = np.concatenate(list(source.piece((0, 1), start, stop)))
    assert asked == [1, stop - start + 1]
    assert rows[:, 0].tolist() == [int(line.split(b",")[0]) for line in content[start:stop].split()]


def test_what_is_packed_or_turned_is_not_cut(folder: Path) -> None:
    for source in (Csv(folder / "t.csv.gz", folder), Vcf(folder / "t.vcf", folder)):
        assert source.ranges(100) is None
    with pytest.raises(DataError, match="not cut by bytes"):
        source.scan(0, 1)
