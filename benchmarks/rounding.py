"""How far rounding moves a second moment beside the noise: stated, and measured on public and synthetic rows.

Every table is rounded to grids of several bits, and the second
moment is compared with that of the same rows shortened and not rounded. The error in spectral norm stands over the edge
of the noise of `gaussian` at epsilon 1, delta 1e-6 under replace-one. All rows here are public or made up::

    python -m benchmarks.rounding DATA --output rounding

DATA is a folder with ``mnist.npz``, ``a9a.npz`` and ``covertype.npz``: public tables, each with an array ``X``. What is
not there is left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import PrivacyLoss, ReleaseRequest
from dpdist.answers.noise_edge import CONFIDENCE, law_of
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.rows.rounding import spectral_error

Rows = npt.NDArray[np.float64]
LOSS = PrivacyLoss.parse("1", "1e-6")
BITS = (8, 10, 11, 12)
MANY = 10**7
_PIECE = 50_000
KEY = DitherKey(bytes.fromhex("32868cb421ab72157afc17aa2c051f436e21efa267d6ad8a3ad9daa778c1bd08"))
"""Any key; this one is that of the results."""


@dataclass(frozen=True)
class Case:
    """A table: its name, its shape, its clip norm, and its rows piece by piece."""

    name: str
    rows: int
    columns: int
    clip: float
    pieces: Callable[[], Iterator[Rows]]


def array_case(name: str, values: npt.NDArray[Any], clip: float | None = None) -> Case:
    """Return a table that is in memory; by default the clip norm is the 0.95-quantile of its norms."""

    def pieces() -> Iterator[Rows]:
        for start in range(0, len(values), _PIECE):
            yield values[start : start + _PIECE].astype(np.float64)

    if clip is None:
        clip = float(np.quantile(np.concatenate([np.linalg.norm(piece, axis=1) for piece in pieces()]), 0.95))
    rows, columns = values.shape
    return Case(name, rows, columns, clip, pieces)


def cases(folder: Path) -> Iterator[Case]:
    """Yield every table."""
    if (mnist := folder / "mnist.npz").exists():
        yield array_case("MNIST", np.load(mnist)["X"][:60000], 2500.0)
    if (adult := folder / "a9a.npz").exists():
        yield array_case("a9a", np.load(adult)["X"], 3.8)
    if (cover := folder / "covertype.npz").exists():
        values = np.load(cover)["X"].astype(np.float64)
        yield array_case("Covertype, raw", values)
        yield array_case("Covertype, scaled", (values - values.mean(axis=0)) / np.maximum(values.std(axis=0), 1e-9))

    def synthetic() -> Iterator[Rows]:
        rng = np.random.default_rng(16)
        for _ in range(MANY // _PIECE):
            yield rng.normal(size=(_PIECE, 20)) / np.arange(1, 21)

    few = np.random.default_rng(17).normal(size=(32, 20)) / np.arange(1, 21)

    def repeated() -> Iterator[Rows]:
        for start in range(0, MANY, _PIECE):
            yield few[(start + np.arange(_PIECE)) % 32]

    def one_way() -> Iterator[Rows]:
        for _ in range(MANY // _PIECE):
            yield np.ones((_PIECE, 20))

    yield Case("normal rows", MANY, 20, 1.5, synthetic)
    yield Case("32 rows repeated", MANY, 20, 1.5, repeated)
    yield Case("one direction, on the sphere", MANY, 20, 4.0, one_way)


def shortened(rows: Rows, bound: RowBound) -> Rows:
    """Return shortened rows, in steps, and not rounded to the grid."""
    steps = rows * (2**bound.grid_bits / bound.clip_norm)
    inner: Rows = steps / np.maximum(
        1, np.linalg.norm(steps, axis=1, keepdims=True) * bound.unit / bound.shortened_norm
    )
    return inner


def measured(case: Case, bound: RowBound) -> float:
    """Return the error of the second moment in spectral norm, in squared steps, the diagonal subtracted."""
    error = np.zeros((case.columns, case.columns))
    out, first = np.empty((_PIECE, case.columns)), 0
    for piece in case.pieces():
        z = bound.apply(piece, out, Dithers(KEY, first))
        x = shortened(piece, bound)
        error += z.T @ z - x.T @ x
        first += len(piece)
    error -= np.eye(case.columns) * case.rows / 4
    return float(np.abs(np.linalg.eigvalsh(error)).max())


def compared(case: Case, bits: int) -> dict[str, float]:
    """Return the error, and what is stated, over the edge of the noise."""
    request = ReleaseRequest("gaussian", LOSS, case.clip, grid_bits=bits)
    law = law_of(planned(request, Dimensions(case.columns)).moment.noise, case.columns)
    if law is None:
        raise AssertionError("the noise of gaussian has a known edge")
    edge = law.edge_at(CONFIDENCE)
    return {
        "measured": measured(case, RowBound(case.columns, case.clip, bits)) / edge,
        "stated": spectral_error(case.rows, case.columns, bits) / edge,
    }


def main() -> None:
    """Write the errors as JSON and Markdown, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="Folder of public tables.")
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json and OUTPUT.md.")
    chosen = parser.parse_args()
    results: dict[str, Any] = {}
    lines = [
        "Error of rounding in spectral norm, over the edge of the noise of `gaussian` (epsilon 1, delta 1e-6,",
        "replace-one): measured, and in brackets what is stated.",
        "In bold the bits that are taken by default, where they are here.",
        "",
        "| table | n, d | " + " | ".join(f"b = {bits}" for bits in BITS) + " | default |",
        "|---|---|" + "---|" * (len(BITS) + 1),
    ]
    for case in cases(chosen.data):
        default = planned(
            ReleaseRequest("gaussian", LOSS, case.clip), Dimensions(case.columns, case.rows)
        ).bound.grid_bits
        found = {str(bits): compared(case, bits) for bits in BITS}
        results[case.name] = {"n": case.rows, "d": case.columns, "clip": case.clip, "default": default, "bits": found}
        cells = []
        for bits, each in found.items():
            text = f"{each['measured']:.2g} ({each['stated']:.2g})"
            cells.append(f"**{text}**" if bits == str(default) else text)
        lines.append(f"| {case.name} | {case.rows}, {case.columns} | " + " | ".join(cells) + f" | {default} |")
        print(lines[-1], flush=True)
    Path(f"{chosen.output}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    Path(f"{chosen.output}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
