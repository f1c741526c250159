"""A pattern in private rows that is known again in every un-noised sum of them, and the search for it.

One row of every chunk is planted: its first entry is far from 0 there and 0 in every other row, and the next ones are
the same everywhere. So the first row of the Gram matrix of any k chunks holds k times the same numbers, whatever the
other rows are. They are searched for in files and in the memory of processes.

Nobody knows by which key a release rounds rows. That moves a number of one planted row by a step and a half at most,
and one of a sum by less than 2^26 squared steps (:data:`MOVED`). So the planted numbers are such that their upper bytes
stay the same, and these are searched for. Noise is larger than that by far: :func:`law_broken` takes rows as they are
rounded to nearest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from scipy import stats

COLUMNS, CHUNKS, CHUNK_ROWS = 72, 8, 40
ROWS = CHUNKS * CHUNK_ROWS - 4
CLIP, BITS = 2048.0, 24
FAILURE = 1e-9
"""Probability with which a sound release is assumed to be a wrong sum."""
MOVED = 2**26
"""Squared steps: six deviations, or more, of what rounding moves the first row of the moment by."""
_PLANTED = 3
_PAGE = 4096
_TOGETHER = range(1, CHUNKS + 1)
"""How many chunks are summed by a worker."""

Table = npt.NDArray[np.float64]


def planted_table() -> Table:
    """Return rows of norm below the clip norm, with the sentinel in them.

    The first planted entry is 2^20 steps, and the others are m + .3 times 2^12, with whole m: so k times a product is k
    (m + .3) times 2^32, a tenth of 2^32 or more from its next multiple for every k up to 9.
    """
    generator = np.random.default_rng(20)
    table = generator.uniform(0, 256, (ROWS, COLUMNS))
    table[:, 0] = 0
    planted = (generator.integers(200, 512, COLUMNS) + 0.3) * 2**12 * CLIP / 2**BITS
    planted[0] = 2**20 * CLIP / 2**BITS
    table[_PLANTED::CHUNK_ROWS] = planted
    return table


def bounded(table: Table, clip: float = CLIP) -> npt.NDArray[np.int64]:
    """Return the integer rows as rounded to nearest, zero where there is no number; a release moves them at random."""
    rows = np.where(np.isfinite(table).all(axis=1, keepdims=True), table, 0)
    found: npt.NDArray[np.int64] = np.rint(rows * 2**BITS / clip).astype(np.int64)
    assert ((found**2).sum(axis=1) <= 4**BITS).all()  # none has to be shortened
    return found


def exact_moment(table: Table, clip: float = CLIP) -> npt.NDArray[np.int64]:
    z = bounded(table, clip)
    moment: npt.NDArray[np.int64] = z.T @ z
    return moment


def _upper(values: npt.NDArray[Any], kept: int) -> bytes:
    """Return an expression for adjacent 64-bit numbers with any lowest bytes, all but so many."""
    numbers = [value.tobytes()[8 - kept :] for value in values]
    return (b".{%d}" % (8 - kept)).join(map(re.escape, numbers))


def _patterns() -> tuple[re.Pattern[bytes], tuple[int, ...]]:
    row = planted_table()[_PLANTED]
    z = bounded(row[None])[0]
    sums = z[0] * z[1:9]
    found = [re.escape(row[1:9].tobytes()), _upper(z[1:9].astype(np.float64), 3)]
    found += [_upper(k * sums, 4) for k in _TOGETHER]
    found += [_upper((k * sums).astype(np.float64), 2) for k in (1, CHUNKS)]
    return re.compile(b"|".join(found), re.DOTALL), tuple(int(k * sums[0]) for k in _TOGETHER)


NUMBERS, DECIMALS = _patterns()
"""Eight numbers of the planted row, raw and on the grid, and of the sums over so many chunks; and one of each sum."""
_DIGITS = re.compile(rb"\d{12,15}")


def holds(content: bytes) -> bool:
    words = (int(digits) for digits in _DIGITS.findall(content))
    return bool(NUMBERS.search(content)) or any(abs(word - sum_) < MOVED for word in words for sum_ in DECIMALS)


def files_with_it(roots: Iterable[Path], private: Sequence[Path]) -> list[Path]:
    return [
        path
        for root in roots
        for path in ([root] if root.is_file() else root.rglob("*"))
        if path.is_file() and not any(path.is_relative_to(home) for home in private) and holds(_content(path))
    ]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""  # it was removed meanwhile


def _memory(pid: int) -> Iterator[bytes]:
    """Yield all that a process may have written, in pieces that overlap, without pages of zeros."""
    piece = 16 << 20
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if not rights.startswith("rw") or line.endswith("[vvar]"):
                continue
            start, stop = (int(number, 16) for number in place.split("-"))
            for at in range(start, stop, piece):
                try:
                    memory.seek(at)
                    words = np.frombuffer(memory.read(min(piece + _PAGE, stop - at)), dtype=np.uint64)
                except OSError:
                    break  # reserved and never used
                pages = words.reshape(-1, _PAGE // 8)
                yield pages[pages.any(axis=1)].tobytes()


def in_memory(pid: int) -> bool:
    """Say whether a process holds the sentinel, as numbers. Needs the right to read its memory: root, as a rule."""
    return any(NUMBERS.search(piece) for piece in _memory(pid))


def may_read_memory(pid: int) -> bool:
    try:
        next(_memory(pid), None)
    except PermissionError:
        return False
    return True


def seal(chunk: Path, rows: Table) -> None:
    payload = rows.astype("<f8").tobytes()
    chunk.write_bytes(payload + google_crc32c.value(payload).to_bytes(4, "little"))


def law_broken(lattice: npt.NDArray[np.int64], exact: npt.NDArray[np.int64], noise: Mapping[str, Any]) -> str:
    """Say how a release is not the exact moment plus one draw of symmetric Gaussian noise; nothing if it may be.

    The noise is far below what one row adds, so a row too many or too few breaks the law, and so do two draws or none.
    It is far above what rounding moves the moment by, which is no part of the law.
    """
    assert noise["sigma_off_diagonal"] > 1000 * MOVED
    difference = lattice - exact
    if not np.array_equal(difference, difference.T):
        return "it is not symmetric"
    parts = {
        "on the diagonal": np.diag(difference) / noise["sigma_diagonal"],
        "off the diagonal": difference[np.triu_indices(len(exact), 1)] / noise["sigma_off_diagonal"],
    }
    for where, normals in parts.items():
        square = float(np.sum(normals**2))
        tail = min(stats.chi2.sf(square, normals.size), stats.chi2.cdf(square, normals.size))
        if tail < FAILURE / 4:
            return f"{where}, {normals.size} normals have the sum of squares {square:.1f}"
    return ""
