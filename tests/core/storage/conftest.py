"""One S3 server for the tests of the stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.s3_server import S3Server, s3_server


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    """Run an S3 server with a bucket."""
    with s3_server() as started:
        started.client.create_bucket(Bucket="private")
        yield started
