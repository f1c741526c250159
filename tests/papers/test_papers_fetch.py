"""Files of the UCI repository, in its formats, become the data sets that the results are about; others are refused."""

from __future__ import annotations

import io
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.folders import PUBLIC_DATA

from dpdist.core.errors import DataError
from papers.common import fetch

Floats = npt.NDArray[np.float64]
RNG = np.random.default_rng(5)


def as_csv(names: tuple[str, ...], rows: Floats, after: str) -> bytes:
    """Return a file with one more column, in another order and case, as the repository has them."""
    order = [*range(len(names))][::-1]
    lines = [",".join([*(names[i].upper() for i in order), after])]
    lines += [",".join([*(repr(float(row[i])) for i in order), "1"]) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def as_archive(rows: Floats, lengths: list[int]) -> bytes:
    """Return an archive of sequences in alphabetical order, with the other files that it has."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        starts = np.cumsum([0, *lengths])
        for i in sorted(range(1, len(lengths) + 1), key=str):
            text = io.StringIO()
            np.savetxt(text, rows[starts[i - 1] : starts[i]], delimiter=",", header="RSS_anchor1, RSS_anchor2")
            archive.writestr(f"dataset/MovementAAL_RSS_{i}.csv", text.getvalue())
        archive.writestr("dataset/MovementAAL_target.csv", "#sequence_ID, class_label\n1,1\n")
    return content.getvalue()


@pytest.mark.parametrize("name", ["liver_disorders", "cardiotocography", "movement_rss"])
def test_a_file_in_the_format_of_the_repository_is_read_checked_and_kept(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"liver_disorders": fetch.LIVER, "cardiotocography": fetch.HEART}.get(name, ("a",) * 4)
    rows = np.round(RNG.normal(size=(40, len(names))), 4)
    content = as_archive(rows, [13, 12, *[1] * 15]) if name == "movement_rss" else as_csv(names, rows, "NSP")
    asked: list[str] = []

    def answered(address: str, timeout: float) -> io.BytesIO:
        assert timeout > 0
        asked.append(address)
        return io.BytesIO(content)

    monkeypatch.setattr(urllib.request, "urlopen", answered)
    with pytest.raises(DataError, match="other rows"):
        fetch.fetch(name, tmp_path)
    assert not (tmp_path / f"{name}.npz").exists()
    known = fetch.SETS[name]
    assert isinstance(known, fetch.Uci)
    monkeypatch.setitem(
        fetch.SETS, name, fetch.Uci(known.address, known.file, known.read, fetch.fingerprint(rows + 1e-6))
    )
    for _ in range(2):  # then it is there
        assert np.array_equal(np.load(fetch.fetch(name, tmp_path))["X"], rows)
    assert asked == [f"https://archive.ics.uci.edu/static/public/{known.address}"]


def test_what_cannot_be_had_says_where_to_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    with pytest.raises(DataError, match=r"put it into .* as cardiotocography\.csv"):
        fetch.fetch("cardiotocography", tmp_path)
    (tmp_path / "movement_rss.zip").write_text("<html>")
    with pytest.raises(DataError, match=r"movement_rss\.zip"):
        fetch.fetch("movement_rss", tmp_path)


@pytest.mark.skipif(not (PUBLIC_DATA / "liver_disorders.npz").exists(), reason="the data sets are not here")
@pytest.mark.parametrize("name", ["liver_disorders", "cardiotocography", "movement_rss"])
def test_the_known_rows_are_those_of_the_results(name: str) -> None:
    assert fetch.fetch(name, PUBLIC_DATA).name == f"{name}.npz"
