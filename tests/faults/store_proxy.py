"""A server between a client and an object store that does what stores do on a bad day."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

Answer = tuple[int, str]
"""A status, and the code in the body; or, from 300 to 399, the server to which the request is sent on."""
DENIED: Answer = (403, "AccessDenied")
EXPIRED: Answer = (400, "ExpiredToken")
GONE: Answer = (0, "")
"""The connection ends without an answer."""


@dataclass
class Proxy:
    """A proxy, and what it does."""

    url: str = ""
    fault: Callable[[str, str], Answer | None] = lambda method, path: None  # noqa: ARG005
    drop: frozenset[str] = frozenset()
    tags: bool = False
    google: bool = False
    seen: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def store_proxy(store: str) -> Iterator[Proxy]:
    """Stand before a store on the loopback interface while the block lasts."""
    proxy, behind = Proxy(), urlsplit(store).netloc

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # head and body in one packet: else either waits for the other's receipt

        def log_message(self, *_: Any) -> None:
            pass

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            proxy.seen.append((self.command, self.path))
            found = proxy.fault(self.command, self.path)
            if found == GONE:
                self.close_connection = True
                self.connection.close()
                return
            if found is not None:
                status, code = found
                headed = [("Location", code + self.path)] if status // 100 == 3 else []
                words = f"<Error><Code>{code}</Code><Message>secretword</Message></Error>"
                self._answer(status, headed, words.encode())
                return
            connection = http.client.HTTPConnection(behind)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in proxy.drop}
            headers = _from_google(headers) if proxy.google else headers
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() in _KEPT]
            if proxy.tags:
                kept = [(name, '"rewritten"' if name.lower() == "etag" else value) for name, value in kept]
            kept += _for_google(kept) if proxy.google else []
            self._answer(answer.status, kept, answer.read())
            connection.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in headers):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass  # noqa: N815 - as http.server asks for them

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))  # seconds until it notices its end
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


def _from_google(headers: dict[str, str]) -> dict[str, str]:
    """Return headers with a condition on the entity tag in place of the generation."""
    headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
    generation = headers.pop("x-goog-if-generation-match", None)
    headers["Authorization"] = "AWS4-HMAC-SHA256 Credential=me/20260101/us-east-1/s3/aws4_request, Signature=0"
    if generation == "0":
        return headers | {"If-None-Match": "*"}
    return headers if generation is None else headers | {"If-Match": f'"{int(generation):032x}"'}


def _for_google(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [("x-goog-generation", str(int(v.strip('"'), 16))) for name, v in headers if name.lower() == "etag"]


_KEPT = {"etag", "last-modified", "content-type", "content-length", "content-range", "x-amz-request-id"}
