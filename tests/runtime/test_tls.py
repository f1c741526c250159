"""TLS with real processes: the right certificates work end to end, wrong ones are refused in time, at no cost."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from faults import worker_environment
from faults.waiting import until
from support.cli_scene import start
from support.folders import CLUSTER

from dpdist import cli
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.jobs.job_file import read_job
from dpdist.ledger.ledger import Ledger
from dpdist.runtime import cluster
from dpdist.runtime import tls as tls_keys
from dpdist.runtime.cluster import Cluster
from dpdist.runtime.sums import OnDask
from dpdist.runtime.tls import Certificates, require_safe, require_safe_cluster

MAKE = CLUSTER / "make-certificates"
LOOPBACK = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
RELEASE = ("--epsilon", "1", "--delta", "1e-6", "--clip", "8")
OTHER_HOST = "192.0.2.1:8786"  # an address that no machine has


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
    for name in ("right", "other"):
        subprocess.run([sys.executable, MAKE, made / name, "1"], check=True)
    loader = importlib.machinery.SourceFileLoader("make_certificates", str(MAKE))
    spec = importlib.util.spec_from_loader("make_certificates", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.make(made / "expired", 1, datetime.now(UTC) - timedelta(days=7))
    return made


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def address(folder: Path, logs: Path) -> Iterator[str]:
    """Start the right cluster, a scheduler and one worker, and return its address."""
    with ExitStack() as stack:
        found = stack.enter_context(tls_scheduler(folder / "right", logs))
        worker = ("worker", folder / "right", "worker", logs / "worker.log", found, "--nthreads", "1", "--no-nanny")
        stack.enter_context(dask(*worker))
        yield found


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(500, 4)))
    budget = ("--budget-epsilon", "2", "--budget-delta", "1e-5")
    assert dpdist("ingest", tmp_path / "data.npy", tmp_path / "rows.zarr", *budget).returncode == 0
    return tmp_path / "rows.zarr"


def dpdist(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["dpdist", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    return subprocess.CompletedProcess(arguments, int(stop.value.code or 0), out.getvalue(), err.getvalue())


def tls(folder: Path, role: str = "client") -> tuple[str, ...]:
    files = {"--tls-ca": "ca.pem", "--tls-cert": f"{role}.pem", "--tls-key": f"{role}.key"}
    return tuple(part for option, name in files.items() for part in (option, str(folder / name)))


def certificates(folder: Path) -> Certificates:
    return Certificates(folder / "ca.pem", folder / "client.pem", folder / "client.key")


def assert_refused(run: subprocess.CompletedProcess[str], code: int, rows: Path) -> str:
    """Check the exit code, that one paragraph was said, and that nothing was spent or published."""
    assert (run.returncode, run.stdout) == (code, "")
    assert run.stderr.count("\n") == 1, run.stderr
    assert Ledger(rows.with_suffix(".ledger")).records == []
    assert not (rows.parent / "release.zarr").exists()
    return run.stderr


# The right certificates


def test_a_release_and_its_scores_through_a_tls_cluster(address: str, folder: Path, rows: Path) -> None:
    assert address.startswith("tls://127.0.0.1:")
    here, there = rows.parent, ("--scheduler", address, *tls(folder / "right"))
    said = start("release", rows, here / "release.zarr", *RELEASE, *there, folder=here)
    assert said.code == 0, said.err
    assert dpdist("pca", here / "release.zarr", here / "model.zarr", "--components", "2").returncode == 0
    run = dpdist("project", rows, here / "model.zarr", here / "scores.zarr", *there)
    assert run.returncode == 0, run.stderr
    assert [record.state for record in Ledger(here / "rows.ledger").records] == ["published"]


def test_a_job_takes_its_certificates_from_its_file_or_the_command(address: str, folder: Path, rows: Path) -> None:
    (rows.parent / "tls").symlink_to(folder / "other")
    (rows.parent / "job.toml").write_text(
        f"""
        [rows]
        path = "rows.zarr"
        [release]
        path = "release.zarr"
        epsilon = 1
        clip = 8
        [cluster]
        scheduler = "{address}"
        tls_ca = "tls/ca.pem"
        tls_cert = "tls/client.pem"
        tls_key = "tls/client.key"
        """
    )
    assert "No Dask scheduler answers" in assert_refused(dpdist("run", rows.parent / "job.toml"), 4, rows)
    run = dpdist("run", rows.parent / "job.toml", *tls(folder / "right"))
    assert run.returncode == 0, run.stderr


# Wrong ones


@pytest.mark.parametrize(
    ("who", "words"),
    [("other", "No Dask scheduler answers"), ("expired", "make new ones"), ("missing", "cannot be read")],
)
def test_wrong_certificates_are_refused_in_time_and_nothing_is_spent(
    address: str, folder: Path, rows: Path, who: str, words: str
) -> None:
    run = dpdist("release", rows, rows.parent / "release.zarr", *RELEASE, "--scheduler", address, *tls(folder / who))
    assert words in assert_refused(run, 4, rows)


@pytest.mark.parametrize("wrong", ["authority", "certificate"])
def test_each_side_checks_the_other(address: str, folder: Path, wrong: str) -> None:
    right, other = certificates(folder / "right"), certificates(folder / "other")
    mixed = (
        Certificates(other.authority, right.certificate, right.key)
        if wrong == "authority"
        else Certificates(right.authority, other.certificate, other.key)
    )
    began = time.monotonic()
    with pytest.raises(DataError, match="No Dask scheduler answers"), Cluster(address, certificates=mixed).connected():
        pass
    assert time.monotonic() - began < 2 * cluster.CONNECT_SECONDS


def test_tls_itself_refuses_a_cluster_whose_certificates_expired(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_keys, "_require_valid", lambda *_: None)
    with (
        tls_scheduler(folder / "expired", tmp_path) as expired,
        pytest.raises(DataError, match="No Dask scheduler answers"),
        Cluster(expired, certificates=certificates(folder / "expired")).connected(),
    ):
        pass


def test_a_worker_with_a_certificate_of_another_ca_cannot_join(
    address: str, folder: Path, logs: Path, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name, source in {"ca.pem": "right", "worker.pem": "other", "worker.key": "other"}.items():
        (mixed / name).symlink_to(folder / source / name)
    security = certificates(folder / "right").security()
    with Client(address, security=security, set_as_default=False, timeout=15) as client:
        client.wait_for_workers(1, timeout=30)

        def refusals() -> int:
            return (logs / "right.log").read_text().count("CERTIFICATE_VERIFY_FAILED")

        before = refusals()
        with dask("worker", mixed, "worker", tmp_path / "worker.log", address, "--nthreads", "1", "--no-nanny"):
            # it reached the scheduler, again and again, and was turned away for its certificate
            until(lambda: refusals() > before + 3)
            assert len(client.scheduler_info(n_workers=-1)["workers"]) == 1


@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize(
    ("broken", "content"),
    [("--tls-ca", b""), ("--tls-cert", b"sentinel-73519"), ("--tls-key", b"sentinel-73519"), ("--tls-key", None)],
    ids=["empty", "garbage", "no key", "folder"],
)
def test_a_broken_file_is_named_and_not_quoted(
    folder: Path, tmp_path: Path, broken: str, content: bytes | None
) -> None:
    bad = tmp_path / "bad.pem"
    bad.mkdir() if content is None else bad.write_bytes(content)
    files = dict(zip(("--tls-ca", "--tls-cert", "--tls-key"), tls(folder / "right")[1::2], strict=True))
    paths = {option: Path(name) for option, name in files.items()} | {broken: bad}
    with pytest.raises(DataError) as error:
        Certificates(*paths.values()).security()
    assert str(bad) in str(error.value)
    assert broken in str(error.value)
    assert "73519" not in str(error.value)


def test_the_key_of_another_certificate_is_refused(folder: Path) -> None:
    right, other = certificates(folder / "right"), certificates(folder / "other")
    with pytest.raises(DataError, match="made with the certificate"):
        Certificates(right.authority, right.certificate, other.key).security()


def test_some_of_the_three_files_are_not_enough(folder: Path, rows: Path) -> None:
    options = ("--scheduler", "tls://127.0.0.1:1", *tls(folder / "right")[:4])
    run = dpdist("release", rows, rows.parent / "release.zarr", *RELEASE, *options)
    assert "all of them, or none" in assert_refused(run, 2, rows)


# Addresses


OPEN_JOB = f"""
[rows]
path = "rows.zarr"
[release]
path = "release.zarr"
epsilon = 1
clip = 8
[cluster]
scheduler = "tcp://{OTHER_HOST}"
"""


def test_an_unencrypted_scheduler_on_the_network_is_refused_before_any_connection(rows: Path) -> None:
    here, there = rows.parent, ("--scheduler", f"tcp://{OTHER_HOST}")
    (here / "job.toml").write_text(OPEN_JOB)
    for arguments in (
        ("release", rows, here / "release.zarr", *RELEASE, *there),
        ("project", rows, here / "model.zarr", here / "scores.zarr", *there),
        ("run", here / "job.toml"),
    ):
        message = assert_refused(dpdist(*arguments), 3, rows)
        assert "insecure" in message
        assert "not encrypted" in message


def test_insecure_allows_it(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(OPEN_JOB)
    assert read_job(job, insecure=True).cluster.insecure
    job.write_text(OPEN_JOB + "insecure = false\n")
    with pytest.raises(RefusedError):
        read_job(job)
    job.write_text(OPEN_JOB + "insecure = true\n")
    assert read_job(job).cluster.scheduler == f"tcp://{OTHER_HOST}"


def test_addresses_of_this_machine_need_no_encryption_and_all_others_do() -> None:
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
    with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:8787 is no address of a Dask scheduler"):
        require_safe("http://127.0.0.1:8787", None, insecure=True)


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


def test_address_and_certificates_must_go_together(folder: Path) -> None:
    with pytest.raises(UsageError, match="authority"):
        require_safe("tls://192.0.2.1:8786", None, insecure=True)
    with pytest.raises(UsageError, match="tls://"):
        require_safe("tcp://127.0.0.1:8786", certificates(folder / "right"), insecure=True)
    require_safe("tls://192.0.2.1:8786", certificates(folder / "right"), insecure=False)


# Sockets, and the script


def test_every_socket_of_a_cluster_started_by_hand_is_on_loopback(address: str, folder: Path) -> None:
    def listening() -> list[str]:  # in here, because those processes cannot import this file
        links = [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        sockets = {str(link)[8:-1] for link in links if str(link).startswith("socket:[")}
        tables = [Path(f"/proc/self/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        fields = [line.split() for table in tables for line in table]
        return sorted({field[1].split(":")[0] for field in fields if field[3] == "0A" and field[9] in sockets})

    with Cluster(address, certificates=certificates(folder / "right")).connected() as found:
        assert isinstance(found, OnDask)
        places = [found._client.run_on_scheduler(listening), *found._client.run(listening).values()]
    assert places == [["0100007F"], ["0100007F"]]  # 127.0.0.1, as the kernel writes it


def test_keys_are_for_their_owner_only_and_the_key_of_the_ca_is_nowhere(folder: Path) -> None:
    made = sorted(path.name for path in (folder / "right").iterdir())
    assert made == sorted(["ca.pem", *(f"{r}.{e}" for r in ("scheduler", "worker", "client") for e in ("pem", "key"))])
    assert stat.S_IMODE((folder / "right").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder / "right").iterdir()} == {0o600}


def test_certificates_are_never_overwritten_and_always_short_lived(folder: Path, tmp_path: Path) -> None:
    def make(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(MAKE), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    before = {path.name: path.read_bytes() for path in (folder / "right").iterdir()}
    run = make(folder / "right", "1")
    assert run.returncode == 1
    assert "Nothing is overwritten" in run.stderr
    assert {path.name: path.read_bytes() for path in (folder / "right").iterdir()} == before
    for days in ("0", "91", "-1", "many"):
        assert make(tmp_path / "new", days).returncode == 2
    assert not (tmp_path / "new").exists()
