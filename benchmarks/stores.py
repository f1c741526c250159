"""Rows, releases, models and scores in object stores of three makers, from ingest to what plain zarr reads.

Each server runs on the loopback interface: moto (Amazon S3), Azurite (Azure Blob Storage, from its maker) and s3rver
(a second S3, without conditional requests). Nobody offers a server of Google Cloud Storage that knows generations:
in its place stands moto behind a proxy that tells conditions as Google does. That shows that obstore's own requests
for it are understood as they are meant, and nothing of Google's service::

    npm install --prefix /tmp/stores azurite s3rver
    python -m benchmarks.stores --npm /tmp/stores --output benchmarks/results/stores
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import email.utils
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import obstore
import zarr
from faults.store_proxy import store_proxy
from moto.server import ThreadedMotoServer
from zarr.storage import ObjectStore

from dpdist.core.storage.connections import connection

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The published key of Azurite's own account."""
ROWS, COLUMNS = 20000, 20
Server = tuple[str, dict[str, str]]
"""The address of a bucket, and what the environment says of it."""


def free_port() -> int:
    """Return a port that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until somebody listens."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise SystemExit(f"nobody listens at {port}")


def s3_variables(url: str, key: str = "me") -> dict[str, str]:
    """Return what clients of an S3 server need."""
    return {
        "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": key, "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url, "NO_PROXY": "127.0.0.1",
    }  # fmt: skip


@contextmanager
def moto() -> Iterator[Server]:
    """Run moto's S3."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=(port := free_port()), verbose=False)
    server.start()
    url = f"http://127.0.0.1:{port}"
    boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="me",
        aws_secret_access_key="me",  # noqa: S106
    ).create_bucket(Bucket="private")
    try:
        yield "s3://private", s3_variables(url)
    finally:
        server.stop()


@contextmanager
def like_google() -> Iterator[Server]:
    """Run moto behind a proxy that speaks of generations."""
    with moto() as (_, environment), store_proxy(environment["AWS_ENDPOINT_URL"]) as proxy:
        proxy.google = True
        account = {
            "gcs_base_url": proxy.url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        yield "gs://private", {
            "GOOGLE_BASE_URL": proxy.url, "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "NO_PROXY": "127.0.0.1",
        }  # fmt: skip


@contextmanager
def started(command: list[str], port: int) -> Iterator[None]:
    """Run a server as a process."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603 - npm made it
        try:
            wait_for(port)
            yield
        finally:
            process.terminate()


@contextmanager
def azurite(npm: Path, folder: Path) -> Iterator[Server]:
    """Run Azurite, and make a container in it."""
    port, account = free_port(), "devstoreaccount1"
    url = f"http://127.0.0.1:{port}"
    command = [str(npm / "node_modules/.bin/azurite-blob"), "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with started([*command, "--blobPort", str(port), "--location", str(folder)], port):
        now, version = email.utils.formatdate(usegmt=True), "2021-08-06"
        path = f"/{account}/{account}/private\nrestype:container"
        said = "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:{version}\n{path}"
        signed = base64.b64encode(hmac.new(base64.b64decode(KEY), said.encode(), hashlib.sha256).digest()).decode()
        headers = {"x-ms-date": now, "x-ms-version": version, "Authorization": f"SharedKey {account}:{signed}"}
        place = f"{url}/{account}/private?restype=container"
        urllib.request.urlopen(urllib.request.Request(place, method="PUT", headers=headers))  # noqa: S310 - http
        yield "az://private", {
            "AZURE_STORAGE_ACCOUNT_NAME": account, "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": url, "NO_PROXY": "127.0.0.1",
        }  # fmt: skip


@contextmanager
def s3rver(npm: Path, folder: Path) -> Iterator[Server]:
    """Run s3rver."""
    port = free_port()
    command = [str(npm / "node_modules/.bin/s3rver"), "-d", str(folder), "-a", "127.0.0.1", "-p", str(port)]
    with started([*command, "--configure-bucket", "private"], port):
        yield "s3://private", s3_variables(f"http://127.0.0.1:{port}", "S3RVER")


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a command, and return how it ended."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "dpdist", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    said = ended.stderr.strip().splitlines()[-1] if ended.returncode else ""
    return {"code": ended.returncode, "seconds": round(time.monotonic() - begun, 1), "said": said}


def tried(bucket: str, folder: Path) -> dict[str, Any]:
    """Run every step with its places in a bucket; each once more, which must change nothing."""
    rows, release, model, scores = (
        f"{bucket}/{folder.name}/{name}.zarr" for name in ("rows", "release", "model", "scores")
    )
    source, ledger = "t.npy", ["--ledger", "rows.ledger"]
    values = np.random.default_rng(1).normal(size=(ROWS, COLUMNS))
    np.save(folder / source, values)
    steps = {
        "ingest": ["ingest", source, rows, "--budget-epsilon", "3", "--budget-delta", "1e-5", *ledger],
        "bound": ["bound", rows, "--epsilon", "0.2", "--workers", "2"],
        "release": ["release", rows, release, "--epsilon", "1", "--delta", "1e-6", "--clip", "8", "--workers", "2"],
        "pca": ["pca", release, model, "--components", "3"],
        "project": ["project", rows, model, scores, "--workers", "2"],
        "report": ["report", release, f"{bucket}/{folder.name}/report.html"],
        "inspect": ["inspect", rows, "--verify"],
    }
    found: dict[str, Any] = {}
    for name, arguments in steps.items():
        found[name] = run(folder, *arguments)
        if found[name]["code"]:
            return found
    found["again"] = [run(folder, *steps[name])["code"] for name in ("ingest", "release", "pca", "project")]
    found["ledger"] = run(folder, "ledger", "verify", "rows.ledger", "--release", release)["code"]
    scheme, _, name = bucket.partition("://")

    def plain(place: str) -> ObjectStore[Any]:
        return ObjectStore(connection(scheme, name, place), read_only=True)

    ((_, stored),) = zarr.open_group(plain(f"{folder.name}/rows.zarr"), mode="r").arrays()
    released = zarr.open_group(plain(f"{folder.name}/release.zarr"), mode="r")
    found["plain zarr"] = {
        "rows": bool(np.array_equal(np.asarray(stored[...]), values)),
        "second_moment": list(dict(released.arrays())["second_moment"].shape),
        "scores": list(zarr.open_array(plain(f"{folder.name}/scores.zarr"), mode="r").shape),
    }
    listed = [each["path"] for piece in obstore.list(connection(scheme, name), folder.name) for each in piece]
    found["objects"] = len(listed)
    found["left over"] = [path for path in listed if "probe" in path or path.endswith(".root")]
    return found


def main() -> None:
    """Try every server, and write what happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--npm", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    for name in ("moto", "azurite", "s3rver", "moto, told as Google"):
        with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
            folder = Path(place)
            (folder / "data").mkdir()
            if name in {"azurite", "s3rver"}:
                server = (azurite if name == "azurite" else s3rver)(asked.npm, folder / "data")
            else:
                server = moto() if name == "moto" else like_google()
            bucket, environment = stack.enter_context(server)
            os.environ.update(environment, DPDIST_STATE_HOME=str(folder / "state"))
            found[name] = {"bucket": bucket, **tried(bucket, folder)}
            for each in environment:
                del os.environ[each]
    asked.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    lines = ["| server | address | ends with | again | what plain zarr reads |", "|---|---|---|---|---|"]
    for name, each in found.items():
        bad = [f"{step}: exit {value['code']}. {value['said']}" for step, value in each.items()
               if isinstance(value, dict) and value.get("code")]  # fmt: skip
        lines.append(
            f"| {name} | {each['bucket']} | {bad[0] if bad else 'exit 0 of every command'} | {each.get('again', '')} | "
            f"{json.dumps(each.get('plain zarr', '')) if not bad else ''} |"
        )
    asked.output.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
