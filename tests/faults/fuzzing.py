"""Damaged files of every kind that dpdist reads, and what must hold of the command that is given one.

Each case damages one good file (flipped bits, cut ends, sizes beyond all measure, parts that are gone) and runs one
command on it, in a process whose memory, time and files are limited. A case fails if the command ends as a defect (exit
1) or by a signal, prints more than its one sentence, leaves anything behind, or charges the ledger. Kind and number
give the same bytes again.
"""

from __future__ import annotations

import gzip
import importlib
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray
import zarr
from pyarrow import feather
from scipy import sparse

import dpdist
from dpdist import cli
from faults import imported

MEMORY = 1536 << 20
"""Bytes that a case may take beyond what the process has when it starts."""
SECONDS = 60
LARGEST = 256 << 20
"""Bytes of the largest file it may write."""
EXTREMES = (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)
NUMBERS = ("-5", "0", "1000000000000", str(2**62), "1e308", "NaN", '"x"', "null", "[" * 2000 + "]" * 2000, "{}")
FOLDERS = (
    "rows.zarr", "rows.ledger", "release.zarr", "model.zarr", "scores.zarr", "job.toml", "schema.toml", "t.csv",
    "certificates", "centre.npz", "session",
)  # fmt: skip
LABELS = {"Ingesting in this process", "Checking chunks"}
_DIMENSIONS = ": rows are along "
LOSS = ("--epsilon", "1", "--delta", "1e-6", "--clip", "8")
GENES = ["g0", "g1", "g2", "g3"]


@dataclass(frozen=True)
class Kind:
    """A damaged file, and the commands that read it."""

    damaged: str
    commands: tuple[tuple[str, ...], ...]


@dataclass
class Tally:
    """What became of the cases of one kind."""

    codes: Counter[int] = field(default_factory=Counter)
    peak: int = 0
    seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)


_JOB = (("run", "job.toml", "--dry-run"), ("status", "job.toml"))
KINDS: dict[str, Kind] = {
    **{
        name: Kind(name, (("ingest", name, "new"),))
        for name in (
            "t.npy", "t.npz", "t.csv", "t.csv.gz", "t.parquet", "t.arrow", "t.feather", "dense.h5ad", "csr.h5ad",
            "csc.h5ad", "t.nc", "c.nc", "two.zarr", "three.zarr", "data.zarr", "calls.zarr", "parts",
        )
    },
    "rows": Kind("rows.zarr", (("inspect", "rows.zarr", "--verify"), *_JOB)),
    "release": Kind(
        "release.zarr",
        (
            ("inspect", "release.zarr"), ("pca", "release.zarr", "new", "--components", "auto"),
            ("report", "release.zarr", "new"), ("combine", "new", "release.zarr"),
            ("ledger", "verify", "rows.ledger", "--release", "release.zarr"),
        ),
    ),
    "model": Kind("model.zarr", (("inspect", "model.zarr"),)),
    "scores": Kind("scores.zarr", (("inspect", "scores.zarr"),)),
    "schema": Kind("schema.toml", (("ingest", "t.csv", "new", "--schema", "schema.toml"),)),
    "session": Kind(
        "session",
        (
            ("inspect", "session"), ("session", "combine", "session", "new"),
            ("session", "key", "session", "rows.zarr", "--site", "boston"),
        ),
    ),
    "ledger": Kind(
        "rows.ledger",
        (
            ("ledger", "show", "rows.ledger"), ("ledger", "verify", "rows.ledger"), ("ledger", "export", "rows.ledger"),
            ("inspect", "rows.zarr"), ("release", "rows.zarr", "new", *LOSS, "--scheduler", "tcp://127.0.0.1:9"),
        ),
    ),
    "job": Kind("job.toml", _JOB),
    "centre": Kind(
        "centre.npz", (("release", "rows.zarr", "new", *LOSS, "--centre", "centre.npz", "--scheduler", "tcp://127.0.0.1:9"),)
    ),
    "certificates": Kind(
        "certificates",
        (
            (
                "release", "rows.zarr", "new", *LOSS, "--id", "other", "--scheduler", "tls://127.0.0.1:9",
                "--tls-ca", "certificates/ca.pem", "--tls-cert", "certificates/client.pem",
                "--tls-key", "certificates/client.key",
            ),
        ),
    ),
}  # fmt: skip


def make(folder: Path) -> None:
    warnings.simplefilter("ignore")
    os.chdir(folder)
    rows = np.random.default_rng(0).poisson(1.5, (40, 4)).astype(np.float32)
    np.save("t.npy", np.asfortranarray(rows))
    np.savez_compressed("t.npz", X=rows, feature_names=np.array(GENES))
    text = "\n".join([",".join(GENES), *(",".join(map(str, row)) for row in rows.tolist())]) + "\n"
    Path("t.csv").write_text(text)
    Path("t.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    table = pa.table({name: rows[:, place] for place, name in enumerate(GENES)})
    pq.write_table(table, "t.parquet", row_group_size=15)
    for name in ("t.arrow", "t.feather"):
        feather.write_feather(table, name, chunksize=15)
    for year in ("2025", "2026"):
        Path("parts", f"year={year}").mkdir(parents=True)
        pq.write_table(table, f"parts/year={year}/0.parquet")
    matrices: dict[str, Callable[[Any], Any]] = {
        "dense": np.asarray, "csr": sparse.csr_matrix, "csc": sparse.csc_matrix,
    }  # fmt: skip
    for name, layout in matrices.items():
        made = anndata.AnnData(layout(rows))
        made.var_names = GENES
        made.write_h5ad(f"{name}.h5ad")
    made = anndata.AnnData(sparse.csr_matrix(rows), obsm={"X_pca": rows[:, :2]})
    made.var_names = GENES
    made.write_zarr("data.zarr")
    data = xarray.Dataset({"a": (("t", "x"), rows)}, {"x": GENES})
    data.to_netcdf("t.nc", engine="h5netcdf")
    data.to_netcdf("c.nc", engine="scipy")
    for version, name in ((2, "two.zarr"), (3, "three.zarr")):
        zarr.create_array(name, data=rows, chunks=(15, 3), zarr_format=version)  # type: ignore[arg-type]
    calls = {
        "call_genotype": np.stack([rows.T % 3 > 1, rows.T % 3 > 0], axis=2).astype(np.int8),
        "contig_id": np.array(["7"]), "sample_id": np.array([f"s{i}" for i in range(40)]),
        "variant_contig": np.zeros(4, np.int8), "variant_position": np.arange(100, 104, dtype=np.int32),
        "variant_allele": np.array([["A", "G"]] * 4),
    }  # fmt: skip
    store = zarr.create_group("calls.zarr", zarr_format=2, attributes={"vcf_zarr_version": "0.4"})
    for name, values in calls.items():
        store.create_array(name, data=values)
    np.savez("centre.npz", centre=np.ones(4), scale=np.ones(4))
    Path("job.toml").write_text(
        '[rows]\npath = "rows.zarr"\nsource = "t.csv"\nbudget_epsilon = 3\nbudget_delta = 1e-5\n'
        'columns = ["g0", "g1"]\n'
        '[release]\npath = "release.zarr"\nepsilon = 1\ndelta = 1e-6\nclip = 8.0\nmechanism = "gaussian"\n'
        'centre = "private"\ngrid_bits = 16\n[pca]\npath = "model.zarr"\ncomponents = 2\n[cluster]\nworkers = 1\n'
    )
    maker = Path(__file__).parents[2] / "cluster" / "make-certificates"
    _must(str(maker), "certificates", "30")
    _must("-m", "dpdist", "ingest", "t.npy", "rows.zarr", "--budget-epsilon", "3", "--budget-delta", "1e-5")
    _must("-m", "dpdist", "release", "rows.zarr", "release.zarr", *LOSS)
    _must("-m", "dpdist", "pca", "release.zarr", "model.zarr", "--components", "2")
    _must("-m", "dpdist", "project", "rows.zarr", "model.zarr", "scores.zarr")
    Path("schema.toml").write_text(
        'scale = "range"\nmissing_values = ["NA", "-9"]\neach_row_is_a_person = true\n'
        + "".join(f'[[column]]\nname = "{name}"\nkind = "number"\nrange = [0, 20]\n' for name in GENES[:3])
        + f'missing = "indicator"\n[[column]]\nname = "{GENES[3]}"\nkind = "category"\n'
        + f"categories = {[str(float(each)) for each in range(12)]}\n"
    )
    request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, 1e-6), 8.0)
    dpdist.create_session("session", {"boston": 40, "lyon": 40, "oslo": 40}, request, columns=["c0", "c1", "c2", "c3"])
    own = {"boston": "rows.zarr", "lyon": "lyon.zarr", "oslo": "oslo.zarr"}
    for site, path in own.items():
        if site != "boston":
            np.save("other.npy", rows[::-1] + (site == "oslo"))
            _must("-m", "dpdist", "ingest", "other.npy", path, "--budget-epsilon", "3", "--budget-delta", "1e-5")
        dpdist.add_session_key("session", path, site)
    fingerprint = dpdist.open_session("session").fingerprint or ""
    for site, path in own.items():
        dpdist.release_share("session", path, site, fingerprint)


def _must(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True, capture_output=True)


def damage(root: Path, rng: np.random.Generator) -> str:
    """Damage one file of a tree, or take it away; say how."""
    files = sorted(path for path in ([root] if root.is_file() else root.rglob("*")) if path.is_file())
    path = files[rng.integers(len(files))]
    if len(files) > 1 and rng.random() < 0.05:
        path.unlink()
        return f"{path.name} is gone"
    content = bytearray(path.read_bytes())
    text = all(byte < 127 for byte in content[:200])
    ways = [_flip, _flip, _cut, _extreme, _extreme, _blank, _repeat] + ([_number] * 5 if text else [])
    way = ways[rng.integers(len(ways))]
    path.write_bytes(way(content, rng))
    return f"{path.name}: {way.__name__.strip('_')}"


def _flip(content: bytearray, rng: np.random.Generator) -> bytes:
    for _ in range(rng.integers(1, 9)):
        if content:
            content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    return bytes(content)


def _cut(content: bytearray, rng: np.random.Generator) -> bytes:
    return bytes(content[: rng.integers(len(content) + 1)])


def _extreme(content: bytearray, rng: np.random.Generator) -> bytes:
    """Write a very large number, as lengths and counts are written."""
    width = (1, 2, 4, 8)[rng.integers(4)]
    value: int = EXTREMES[rng.integers(len(EXTREMES))] % 256**width
    place = int(rng.integers(max(1, len(content) - width)))
    content[place : place + width] = value.to_bytes(width, "little" if rng.random() < 0.7 else "big")
    return bytes(content)


def _blank(content: bytearray, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(content) + 1))
    size = min(int(rng.integers(1, 200)), len(content) - start)
    content[start : start + size] = bytes([(0, 255, 27, 10)[rng.integers(4)]]) * size
    return bytes(content)


def _repeat(content: bytearray, rng: np.random.Generator) -> bytes:
    start, times = int(rng.integers(len(content) + 1)), int(rng.integers(1, 50))
    return bytes(content[:start] + content[max(0, start - 60) : start] * times + content[start:])


def _number(content: bytearray, rng: np.random.Generator) -> bytes:
    found = list(re.finditer(rb"-?\d+(\.\d+)?", content))
    if not found:
        return _flip(content, rng)
    place = found[rng.integers(len(found))]
    return bytes(content[: place.start()] + NUMBERS[rng.integers(len(NUMBERS))].encode() + content[place.end() :])


def names_in(folder: Path) -> set[str]:
    inner = folder / "rows.ledger"
    return {path.name for path in folder.iterdir()} | {f"ledger/{path.name}" for path in inner.rglob("*")}


def charged(folder: Path) -> int | None:
    """Return how many entries the ledger has; None if it cannot be read."""
    place = f"file:{folder}/rows.ledger/ledger.sqlite?immutable=1"
    with suppress(sqlite3.Error), closing(sqlite3.connect(place, uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM journal").fetchone()[0])
    return None


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


def run_case(folder: Path, command: tuple[str, ...]) -> tuple[int, int, float]:
    """Run a command in a limited process; return its code (minus the signal), its peak in bytes, and its seconds."""
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        for number, name in ((1, ".out"), (2, ".err")):
            file = folder.parent / f"{folder.name}{name}"
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, LARGEST))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        start, code = _status("VmRSS"), 1
        try:
            sys.argv = ["dpdist", *command]
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        except BaseException:  # noqa: BLE001 - told as what it is
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        with suppress(OSError, MemoryError):
            (folder.parent / f"{folder.name}.peak").write_text(str(_status("VmHWM") - start))
        os._exit(code)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            peak = folder.parent / f"{folder.name}.peak"
            taken = int(peak.read_text() or 0) if peak.exists() else 0
            peak.unlink(missing_ok=True)
            return os.waitstatus_to_exitcode(status), taken, time.monotonic() - started
        if time.monotonic() - started > 3 * SECONDS:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def wrong_with(folder: Path, code: int, before: set[str], entries: int | None) -> str | None:
    said = (folder.parent / f"{folder.name}.err").read_text(errors="replace")
    if code not in {0, 2, 3, 4, 5}:
        return f"it ended with {code}"
    lines = [line for line in said.splitlines() if line and line not in LABELS and _DIMENSIONS not in line]
    usage = code == 2 and bool(lines) and lines[-1].startswith(("Error: ", "dpdist: "))
    if code and not usage and (len(lines) != 1 or not lines[0].startswith("dpdist: ")):
        inspected = not lines  # inspect lists the damage on standard output, and ends with 4
        if not inspected:
            return "it said more than one sentence"
    if any(word in said for word in ("Traceback", "Warning", "\x1b")):
        return "it printed what is not its own"
    left = names_in(folder) - before - ({"new"} if code == 0 else set())
    if entries is None:  # a ledger that SQLite finds damaged keeps SQLite's own log beside it, which nobody may remove
        left -= {"ledger/ledger.sqlite-shm", "ledger/ledger.sqlite-wal"}
    if left:
        return f"it left {', '.join(sorted(left))}"
    if entries is not None and charged(folder) != entries:
        return "it charged the ledger"
    return None


def fuzz(kind_name: str, number: int, made: Path, scratch: Path, tally: Tally) -> None:
    kind = KINDS[kind_name]
    rng = np.random.default_rng([number, *kind_name.encode()])
    folder = scratch / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in {kind.damaged, *(FOLDERS if "." not in kind_name else ())}:
        (shutil.copytree if (made / name).is_dir() else shutil.copy)(made / name, folder / name)
    if not (folder / "rows.ledger").exists():
        shutil.copytree(made / "rows.ledger", folder / "rows.ledger")
    how = damage(folder / kind.damaged, rng)
    command = kind.commands[int(rng.integers(len(kind.commands)))]
    before, entries = names_in(folder), None if kind_name == "ledger" else charged(folder)
    code, peak, seconds = run_case(folder, command)
    tally.codes[code] += 1
    tally.peak = max(tally.peak, peak)
    tally.seconds = max(tally.seconds, seconds)
    if fault := wrong_with(folder, code, before, entries):
        said = (scratch / "case.err").read_text(errors="replace")[-600:]
        failed = {"kind": kind_name, "number": number, "how": how, "command": " ".join(command)}
        tally.failures.append(failed | {"fault": fault, "said": said})
        print(f"{kind_name} {number} ({how}; {' '.join(command[:2])}): {fault}\n{said}", file=sys.stderr)


def preload() -> None:
    imported.everything()
    for name in ("h5netcdf", "h5py", "pyarrow.csv", "scipy.io", "dpdist.report.html"):
        importlib.import_module(name)
