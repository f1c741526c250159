"""An S3 server on the loopback interface, whose credentials stand in the environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from moto.server import ThreadedMotoServer


def variables(port: int) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "secretword",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "NO_PROXY": "127.0.0.1",
    }


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    environment: dict[str, str]
    client: Any

    def keys(self, bucket: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return sorted(each["Key"] for page in pages for each in page.get("Contents", []))


@contextmanager
def s3_server() -> Iterator[S3Server]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    environment = variables(server.get_host_and_port()[1])
    session = boto3.session.Session(
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_DEFAULT_REGION"],
    )
    assert "AWS_PROFILE" not in os.environ
    try:
        yield S3Server(environment, session.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"]))
    finally:
        server.stop()
