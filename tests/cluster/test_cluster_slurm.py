"""A real Slurm: a job that is killed, requeued and submitted again makes one release."""

from __future__ import annotations

import subprocess
from pathlib import Path

import dask
import pytest
import yaml
from distributed.security import Security
from faults import cluster_faults, namespaces, slurm_site
from faults.nightly import CLUSTER


def test_a_job_requeued_in_the_middle_and_submitted_again_makes_one_release(tmp_path: Path) -> None:
    namespaces.need()
    with slurm_site.running(tmp_path / "slurm") as site:
        cluster_faults.requeued(site, tmp_path / "job", "reading")


def test_the_job_script_of_elastic_workers_holds_names_of_files_and_one_address() -> None:
    jobqueue = pytest.importorskip("dask_jobqueue", reason="no dask-jobqueue here (pip install dask-jobqueue)")
    settings = yaml.safe_load((CLUSTER / "slurm" / "jobqueue.yaml").read_text())
    files = {"tls_ca_file": "/x/ca.pem", "tls_worker_cert": "/x/worker.pem", "tls_worker_key": "/x/worker.key"}
    with dask.config.set(dask.config.merge(dask.config.config, settings)):  # as Dask does with DASK_CONFIG
        job = jobqueue.slurm.SLURMJob("tls://192.0.2.1:1", name="w", protocol="tls://", security=Security(**files))
        script = job.job_script()
    assert '. "$DPDIST_CLUSTER/worker.env"' in script
    assert '--host $("$DPDIST_CLUSTER/slurm/address") --dashboard-address 127.0.0.1:0' in script
    assert all(path in script for path in files.values())
    assert "PRIVATE KEY" not in script
    assert "--nthreads 1" in script
    checked = subprocess.run(["bash", "-n"], input=script, text=True, check=False, capture_output=True)
    assert checked.returncode == 0, checked.stderr
