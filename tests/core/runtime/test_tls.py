"""TLS with real processes: the right certificates work end to end, wrong ones are refused in time, at no cost."""

from __future__ import annotations

import json
import os
import runpy
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from distributed import Client
from faults import worker_environment
from faults.waiting import until
from support.cli_scene import Call, Said, start
from support.folders import CLUSTER
from support.norms import some_rows, table_of

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.runtime import cluster
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.runtime.tls import Certificates, require_safe, require_safe_cluster

MAKE = CLUSTER / "make-certificates"
LOOPBACK = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
RELEASE = ("--epsilon", "1", "--delta", "1e-6", "--clip", "8")


@contextmanager
def dask(tool: str, folder: Path, role: str, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Dask process as cluster/README.md starts it, with the certificate of a role from a folder."""
    tls = ("--tls-ca-file", str(folder / "ca.pem"), "--tls-cert", str(folder / f"{role}.pem"))
    command = [sys.executable, "-m", f"distributed.cli.dask_{tool}", *options, *LOOPBACK, *tls]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--tls-key", str(folder / f"{role}.key")],
            stdout=file, stderr=file, cwd=log.parent,
            env={**os.environ, **worker_environment.declared(), "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def tls_scheduler(folder: Path, logs: Path) -> Iterator[str]:
    """Run a TLS scheduler with the certificates of a folder."""
    contact = logs / f"{folder.name}.json"
    options = ("--protocol", "tls", "--port", "0", "--scheduler-file", str(contact))
    with dask("scheduler", folder, "scheduler", logs / f"{folder.name}.log", *options):
        until(lambda: contact.exists() and contact.stat().st_size > 0)  # it is made first, and written then
        yield json.loads(contact.read_text())["address"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the certificates of three clusters: the right one, another, and one of last week."""
    made = tmp_path_factory.mktemp("certificates")
    subprocess.run([sys.executable, MAKE, made / "right", "1"], check=True)
    make = runpy.run_path(str(MAKE))["make"]
    make(made / "other", 1, datetime.now(UTC))
    make(made / "expired", 1, datetime.now(UTC) - timedelta(days=7))
    return made


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Start the right cluster, a scheduler and one worker, and return its address."""
    with (
        tls_scheduler(folder / "right", folder) as found,
        dask("worker", folder / "right", "worker", folder / "worker.log", found, "--nthreads", "1", "--no-nanny"),
    ):
        yield found


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return table_of(tmp_path / "rows.zarr", some_rows(), PrivacyLoss.parse("2", "1e-5")).path


def tls(folder: Path) -> tuple[str, ...]:
    files = {"--tls-ca": "ca.pem", "--tls-cert": "client.pem", "--tls-key": "client.key"}
    return tuple(part for option, name in files.items() for part in (option, str(folder / name)))


def certificates(folder: Path) -> Certificates:
    return Certificates(folder / "ca.pem", folder / "client.pem", folder / "client.key")


def assert_refused(run: Said, code: int, rows: Path) -> str:
    """Check the exit code, that one paragraph was said, and that nothing was spent or published."""
    assert (run.code, run.out, run.err.count("\n")) == (code, "", 1)
    assert Ledger(rows.with_suffix(".ledger")).records == []
    assert not (rows.parent / "release.zarr").exists()
    return run.err


def test_a_release_and_its_scores_through_a_tls_cluster(address: str, folder: Path, rows: Path, call: Call) -> None:
    assert address.startswith("tls://127.0.0.1:")
    here, there = rows.parent, ("--scheduler", address, *tls(folder / "right"))
    said = start("release", rows, here / "release.zarr", *RELEASE, *there, folder=here)
    assert said.code == 0, said.err
    assert call("pca", here / "release.zarr", here / "model.zarr", "--components", "2").code == 0
    assert call("project", rows, here / "model.zarr", here / "scores.zarr", *there).code == 0
    assert [record.state for record in Ledger(here / "rows.ledger").records] == ["published"]


def test_wrong_certificates_are_refused_and_nothing_is_spent(
    address: str, folder: Path, rows: Path, call: Call
) -> None:
    for who, words in {
        "other": "No Dask scheduler answers", "expired": "Create new ones", "missing": "cannot be read"
    }.items():  # fmt: skip
        run = call("release", rows, rows.parent / "release.zarr", *RELEASE, "--scheduler", address, *tls(folder / who))
        assert words in assert_refused(run, 4, rows)


@pytest.mark.parametrize("wrong", ["authority", "certificate"])
def test_each_side_checks_the_other(address: str, folder: Path, wrong: str) -> None:
    right, other = certificates(folder / "right"), certificates(folder / "other")
    one, two = (other, right) if wrong == "authority" else (right, other)
    mixed, began = Certificates(one.authority, two.certificate, two.key), time.monotonic()
    with pytest.raises(DataError, match="No Dask scheduler answers"), Cluster(address, certificates=mixed).connected():
        pass
    assert time.monotonic() - began < 2 * cluster.CONNECT_SECONDS


def test_a_worker_with_a_certificate_of_another_ca_cannot_join(address: str, folder: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name, source in {"ca.pem": "right", "worker.pem": "other", "worker.key": "other"}.items():
        (mixed / name).symlink_to(folder / source / name)

    def refusals() -> int:
        return (folder / "right.log").read_text().count("CERTIFICATE_VERIFY_FAILED")

    security, before = certificates(folder / "right").security(), refusals()
    with (
        Client(address, security=security, set_as_default=False, timeout=15) as client,
        dask("worker", mixed, "worker", tmp_path / "worker.log", address, "--nthreads", "1", "--no-nanny"),
    ):
        client.wait_for_workers(1, timeout=30)
        # it reached the scheduler, again and again, and was turned away for its certificate
        until(lambda: refusals() > before + 3)
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 1


@pytest.mark.usefixtures("typed")
def test_a_broken_file_is_named_and_not_quoted(folder: Path, tmp_path: Path) -> None:
    right, bad = certificates(folder / "right"), tmp_path / "bad.pem"
    for option, content in {"authority": b"", "certificate": b"sentinel-73519", "key": b"sentinel-73519"}.items():
        bad.write_bytes(content)
        with pytest.raises(DataError) as error:
            replace(right, **{option: bad}).security()
        assert str(bad) in str(error.value)
        assert {"authority": "--tls-ca", "certificate": "--tls-cert", "key": "--tls-key"}[option] in str(error.value)
        assert "73519" not in str(error.value)
    with pytest.raises(DataError, match=str(tmp_path)):  # a folder
        replace(right, key=tmp_path).security()
    with pytest.raises(DataError, match="created with the certificate"):
        replace(right, key=certificates(folder / "other").key).security()


def test_addresses_of_this_machine_need_no_encryption_and_all_others_do(folder: Path) -> None:
    for host in ("127.0.0.1", "127.8.9.10", "[::1]", "localhost"):
        for protocol in ("tcp://", ""):
            require_safe(f"{protocol}{host}:8786", None, insecure=False)
    for scheduler in (
        "tcp://192.0.2.1:8786", "192.0.2.1:8786", "192.0.2.1", "tcp://[2001:db8::1]:8786", "tcp://0.0.0.0:8786",
        "tcp://node7:8786", "tcp://localhost.example.org:8786", "tcp://127.0.0.1.example.org:8786",
        "tcp://127.0.0.1@192.0.2.1:8786", "ws://127.0.0.1:8786", "ucx://192.0.2.1:8786",
    ):  # fmt: skip
        with pytest.raises(RefusedError):
            require_safe(scheduler, None, insecure=False)
        require_safe(scheduler, None, insecure=True)
    certified = certificates(folder / "right")
    require_safe("tls://192.0.2.1:8786", certified, insecure=False)
    for scheduler, given, said in (
        ("http://127.0.0.1:8787", None, r"http://127\.0\.0\.1:8787 is not the address of a Dask scheduler"),
        ("tls://192.0.2.1:8786", None, "authority"), ("tcp://127.0.0.1:8786", certified, "tls://"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            require_safe(scheduler, given, insecure=True)


def test_workers_must_be_encrypted_or_on_this_machine_too() -> None:
    here = "tcp://127.0.0.1:1"
    safe = ["tls://192.0.2.1:4711", "tcp://127.0.0.1:4711", "tcp://[::1]:4711", "inproc://192.0.2.1/7/1"]
    require_safe_cluster(here, safe, foreign=False)
    for address in ("tcp://192.0.2.1:4711", "tcp://node7:4711", "ws://127.0.0.1:4711"):
        with pytest.raises(RefusedError, match="pass insecure"):
            require_safe_cluster(here, [here, address], foreign=False)
        for scheduler, workers in ((address, []), (here, [address])):
            with pytest.raises(RefusedError, match="Nothing was sent"):
                require_safe_cluster(scheduler, workers, foreign=True)


def test_keys_are_for_their_owner_only_and_the_key_of_the_ca_is_nowhere(folder: Path) -> None:
    made = sorted(path.name for path in (folder / "right").iterdir())
    assert made == sorted(["ca.pem", *(f"{r}.{e}" for r in ("scheduler", "worker", "client") for e in ("pem", "key"))])
    assert stat.S_IMODE((folder / "right").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder / "right").iterdir()} == {0o600}


def test_certificates_are_never_overwritten_and_always_short_lived(folder: Path, tmp_path: Path) -> None:
    def make(place: Path, days: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, MAKE, place, days], capture_output=True, text=True, check=False)

    before = {path.name: path.read_bytes() for path in (folder / "right").iterdir()}
    run = make(folder / "right", "1")
    assert run.returncode == 1
    assert "Nothing is overwritten" in run.stderr
    assert {path.name: path.read_bytes() for path in (folder / "right").iterdir()} == before
    for days in ("0", "91", "many"):
        assert make(tmp_path / "new", days).returncode == 2
    assert not (tmp_path / "new").exists()
