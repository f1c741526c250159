"""A file of text that is read in fragments of its bytes is the file that is read from its start: rows and refusals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.ingest_scene import Others, stored

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest import survey
from dpdist.core.ingest.readers import text
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.remote import Remote
from dpdist.core.ingest.write import ingest

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
    text = head + "".join(draw(ends) + ",".join(line) for line in cells) + draw(st.sampled_from(["", end, end * 3]))
    return text.encode(errors="surrogateescape")


def ingested(path: Path, header: str, elsewhere: Any = None) -> tuple[object, ...]:
    """Return the rows of a file, or that it is refused."""
    target, columns = path.with_name("rows.zarr"), ["a", "b"] if header == "yes" else ["c0", "c1"]
    shutil.rmtree(target, ignore_errors=True)
    try:
        table = ingest(path, target, columns=columns, choices=Choices(header=header), elsewhere=elsewhere)
    except (DataError, UsageError):  # the first of several faults is reported
        return ("refused",)
    return table.names, table.dtype, stored(table.path).tolist()


def in_fragments(patch: pytest.MonkeyPatch, size: int) -> None:
    for module, name in ((survey, "PIECE"), (survey, "FRAGMENT"), (text, "FRAGMENT")):
        patch.setattr(module, name, size)


def require_same(content: bytes, header: str, size: int, folder: Path) -> None:
    (folder / "t.csv").write_bytes(content)
    expected = ingested(folder / "t.csv", header)
    with pytest.MonkeyPatch.context() as patch:
        in_fragments(patch, size)
        assert ingested(folder / "t.csv", header, Others()) == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pieces")


@pytest.fixture(scope="module", autouse=True)
def _short_lines() -> Any:
    """Let Arrow parse blocks of 80 bytes, which no line may exceed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_LINE", 80)
        yield


@given(contents(), st.sampled_from(["yes", "no"]), st.sampled_from([24, 25, 31, 47, 100]))
@example(b'a,b,who\n1,2,z\n1,2,"x\n3,4,y"\n5,6,z\n', "yes", 24)
@example(b"\xef\xbb\xbfa,b,who\n1,2,x\n\xef\xbb\xbf3,4,y\n", "yes", 24)
@example(b"a,b,who\r\n\r\n1,2,x\r3,word,y\n", "yes", 24)
def test_fragments_are_the_file(folder: Path, content: bytes, header: str, size: int) -> None:
    require_same(content, header, size, folder)


def test_a_twin_that_ignores_quotes_reads_other_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"a,b,who\n" + b"1,2,x\n" * 20 + b'1,2,"x\n3,4,y"\n5,6,z\n' * 9

    def require_same_everywhere() -> None:
        for size in range(24, 60, 5):
            require_same(content, "yes", size, folder)

    require_same_everywhere()
    monkeypatch.setattr(text._Quotes, "_scan", lambda *_: None)
    with pytest.raises(AssertionError):
        require_same_everywhere()


def test_an_object_is_asked_for_its_pieces_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"a,b\n" + b"".join(b"%d,2\n" % row for row in range(1000))
    fsspec.filesystem("memory").pipe_file("/private/t.csv", content)
    in_fragments(monkeypatch, 400)
    lengths: list[int] = []
    read = Remote.range

    def told(self: Remote, start: int, length: int) -> bytes:
        lengths.append(length)
        return read(self, start, length)

    monkeypatch.setattr(Remote, "range", told)
    ingest(Remote("memory://private/t.csv"), tmp_path / "rows.zarr", choices=Choices(header="yes"), elsewhere=Others())
    assert np.array_equal(stored(tmp_path / "rows.zarr")[:, 0], np.arange(1000))
    assert 0 < sum(lengths) < 8 * len(content)
