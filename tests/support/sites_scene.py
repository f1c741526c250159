"""Three hospitals with rows and ledgers of their own, and the folder of a session that they share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import dpdist
from dpdist.core.noise.masks import Masks, new_key, public_key
from dpdist.core.pipeline import budget
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.dataset import created

ROWS = {"boston": 300, "lyon": 200, "oslo": 250}
COLUMNS = ("age", "weight", "height")
LOSS, BUDGET = PrivacyLoss.parse(1, 1e-6), PrivacyLoss.parse(2, 1e-5)
CLIP = 4.0


def request(loss: PrivacyLoss = LOSS, **more: Any) -> ReleaseRequest:
    return ReleaseRequest("gaussian", loss, more.pop("clip_norm", CLIP), **more)


def write_rows(
    folder: Path, values: npt.NDArray[np.float64], names: Sequence[str] = COLUMNS,
    allowed: PrivacyLoss | None = BUDGET, **head: Any,
) -> Path:  # fmt: skip
    """Write rows.zarr and its ledger into a new folder, and return the rows."""
    folder.mkdir(parents=True)
    rows = folder / "rows.zarr"
    with created(rows, rows=len(values), dtype="float64", names=tuple(names), budget=allowed, **head) as writer:
        writer.append(values)
    if allowed is not None:
        budget.create_ledger(budget.default_ledger(rows), rows)
    return rows


@dataclass
class Hospitals:
    """Sites whose folders and state folders are their own; only the session is shared."""

    folder: Path
    patch: pytest.MonkeyPatch
    values: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def at(cls, folder: Path, patch: pytest.MonkeyPatch, rows: dict[str, int] = ROWS) -> Hospitals:
        hospitals, generator = cls(folder, patch), np.random.default_rng(5)
        for name, count in rows.items():
            hospitals.values[name] = generator.normal(size=(count, len(COLUMNS))) @ np.diag([1.0, 0.7, 0.3])
            write_rows(folder / name, hospitals.values[name])
        return hospitals

    @property
    def session(self) -> Path:
        return self.folder / "shared" / "study"

    def rows(self, name: str) -> Path:
        return self.folder / name / "rows.zarr"

    def ledger(self, name: str) -> dpdist.Ledger:
        return dpdist.Ledger(budget.default_ledger(self.rows(name)))

    def state(self, name: str) -> Path:
        return self.folder / name / "state"

    def key_file(self, name: str) -> Path:
        (file,) = (self.state(name) / "sessions").glob("*.json")
        return file

    @contextmanager
    def at_site(self, name: str) -> Iterator[None]:
        """Be at a site: its state folder is in use, and no other."""
        with self.patch.context() as patch:
            patch.setenv("DPDIST_STATE_HOME", str(self.state(name)))
            yield

    def create(self, **more: Any) -> dpdist.Session:
        self.session.parent.mkdir(exist_ok=True)
        sites: Any = {name: len(values) for name, values in self.values.items()}
        asked = more.pop("asked", None) or request()
        if asked.neighbours is dpdist.Neighbours.ADD_REMOVE:
            sites = list(sites)
        return dpdist.create_session(self.session, sites, asked, **{"columns": COLUMNS, **more})

    def exchange(self) -> str:
        """Let each site add its key; return the fingerprint."""
        for name in self.values:
            with self.at_site(name):
                last = dpdist.add_session_key(self.session, self.rows(name), name)
        assert last.fingerprint is not None
        return last.fingerprint

    def exchange_key(self, name: str) -> str:
        """Exchange the key of a site, as anybody who controls the folder can; return the fingerprint."""
        file = self.session / f"{name}.key.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"x25519": public_key(new_key()).hex()}))
        return str(dpdist.open_session(self.session).fingerprint)

    def share(self, name: str, fingerprint: str, **more: Any) -> dpdist.Share:
        with self.at_site(name):
            return dpdist.release_share(self.session, self.rows(name), name, fingerprint, **more)

    def all_shares(self, fingerprint: str) -> None:
        for name in self.values:
            self.share(name, fingerprint)

    def combined(self) -> dpdist.Release:
        return dpdist.combine_shares(self.session, self.folder / "release.zarr").release

    def copy_of_session(self) -> Path:
        copy = self.folder / "copy"
        shutil.copytree(self.session, copy)
        return copy


@contextmanager
def unmasked(patch: pytest.MonkeyPatch) -> Iterator[list[npt.NDArray[np.int64]]]:
    """Keep the noisy sums that are masked meanwhile."""
    seen: list[npt.NDArray[np.int64]] = []
    mask = Masks.mask

    def keeping(self: Masks, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        seen.append(values.copy())
        return mask(self, values)

    with patch.context() as inner:
        inner.setattr(Masks, "mask", keeping)
        yield seen
