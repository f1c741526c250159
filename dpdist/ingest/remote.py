"""Sources in object stores and on web servers, by URL, through fsspec.

Credentials come from where the store's own library looks for them (its configuration files and environment), never
from the URL: an address is printed, logged and seen in lists of processes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

from dpdist.errors import UsageError
from dpdist.storage.atomic import require_space
from dpdist.storage.connections import is_plain, on_loopback

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_EXTRAS = {"s3": "s3", "gs": "gcs", "https": "https", "http": "https", "memory": ""}
"""What may be read, and the extra that brings its library."""
_PIECE = 1 << 20
_CONFIGURED = "the environment, or a profile,"
_VERSION_HEADERS = ("size", "ETag", "Content-MD5", "Digest", "Last-Modified")
"""What a web server may say of a file that changes with it."""


@dataclass(frozen=True)
class Remote:
    """A place in a store, asked as a :class:`~pathlib.Path` is."""

    address: str

    def __post_init__(self) -> None:
        kind = self.address.partition("://")[0]
        if kind not in _EXTRAS:
            kinds = ", ".join(f"{scheme}://" for scheme in ("file", *_EXTRAS) if scheme != "memory")
            raise UsageError(f"{kind}:// is no address that can be read; these are: {kinds}.")
        try:
            parts = urlsplit(self.address)
        except ValueError:
            raise UsageError("The address of the source is no URL. Write it as s3://BUCKET/FOLDER/FILE.") from None
        # neither message repeats the address: it holds what must not be printed
        if "@" in parts.netloc:
            raise UsageError(
                f"The {kind}:// address holds a user name or password. Leave it out: addresses are seen in logs and in "
                "lists of processes. Put it where the store's library looks for it, such as ~/.aws/credentials."
            )
        if parts.query or parts.fragment or "::" in re.sub(r"\[[^]]*\]", "", self.address):
            raise UsageError(
                f"The {kind}:// address has a query, a fragment or a chain of addresses. A query often is a signature, "
                "as good as a password: copy the file to this machine and ingest it from there."
            )
        if kind == "http" and not on_loopback(self.address):
            raise UsageError(
                f"{self.address} would send private rows over the network unencrypted. Take https://, or copy the file "
                "to this machine by a safe way."
            )

    def __str__(self) -> str:
        return self.address

    def __reduce__(self) -> tuple[type[Remote], tuple[str]]:
        return type(self), (self.address,)  # another process opens connections of its own

    @property
    def kind(self) -> str:
        """The store, as the address begins."""
        return self.address.partition("://")[0]

    @property
    def web(self) -> bool:
        """Whether a web server has it: it lists no folders, and may give files from their beginning only."""
        return self.kind in {"http", "https"}

    @property
    def name(self) -> str:
        """Last part of its path."""
        return PurePosixPath(self.address.partition("://")[2]).name

    @property
    def suffix(self) -> str:
        """What follows the last dot of its name."""
        return PurePosixPath(self.name).suffix

    @cached_property
    def _system(self) -> Any:
        """The file system of fsspec, by which no row goes over a network in plain."""
        if self.web:
            return self._filesystem(client_kwargs=self._web_options())
        filesystem = self._filesystem()
        # settings and profiles are the libraries' business: they are asked what they have made of them
        if self.kind == "s3":
            filesystem.connect()
            if is_plain(str(filesystem.s3.meta.endpoint_url), _CONFIGURED):
                filesystem = self._filesystem(config_kwargs={"proxies": {}})
        elif self.kind == "gs":
            is_plain(str(filesystem.base), _CONFIGURED)
        return filesystem

    def _filesystem(self, **options: object) -> Any:
        import fsspec  # noqa: PLC0415 - files of this machine are read without

        try:
            return fsspec.filesystem(self.kind, use_listings_cache=False, skip_instance_cache=True, **options)
        except ImportError:
            pass
        raise self._missing_library()

    def _missing_library(self) -> UsageError:
        return UsageError(
            f"Reading {self.kind}:// needs a library for it. Install it with: "
            f"pip install 'dpdist[{_EXTRAS[self.kind]}]'"
        )

    def _web_options(self) -> dict[str, object]:
        """Return what makes a web client follow no redirect to an address in plain over a network."""
        try:
            from aiohttp import TraceConfig  # noqa: PLC0415 - an extra
        except ImportError:
            raise self._missing_library() from None
        address = self.address

        async def before_it_is_followed(_session: Any, _context: Any, sent: Any) -> None:
            target = sent.response.headers.get("Location") or sent.response.headers.get("URI") or ""
            is_plain(str(sent.url.join(type(sent.url)(target))), f"a redirect of {address}")

        trace: Any = TraceConfig()
        trace.on_request_redirect.append(before_it_is_followed)
        return {"trace_configs": [trace]}

    @property
    def _key(self) -> str:
        return str(self._system._strip_protocol(self.address))  # noqa: SLF001 - what every implementation of fsspec has

    def open(self, mode: str, /) -> IO[bytes]:
        """Open it to read bytes."""
        opened: IO[bytes] = self._system.open(self._key, mode)
        return opened

    def fetch(self, folder: Path) -> None:
        """Copy it into a folder, for its owner alone."""
        handle = os.open(folder / self.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out, self.open("rb") as file:
            require_space(folder, int(self.stat().st_size), "rows, which are fetched first,")
            while block := file.read(_PIECE):
                out.write(block)

    def range(self, start: int, length: int) -> bytes:
        """Return so many bytes from a place in it; OSError if it has not so many."""
        content: bytes = self._system.cat_file(self._key, start=start, end=start + length)
        if len(content) != length:
            raise OSError(errno.EINVAL, "it is shorter")
        return content

    def stat(self) -> os.stat_result:
        """Return its size; nothing else is known of it."""
        return os.stat_result((0, 0, 0, 0, 0, 0, int(self._system.size(self._key)), 0, 0, 0))

    def version(self) -> str:
        """Return what changes when the object does, as far as the store tells: its size, time or tag, asked anew."""
        self._system.invalidate_cache()
        if self.web:  # fsspec takes files of web servers for ones that never change
            info = self._system.info(self._key)
            return str([info.get(name) for name in _VERSION_HEADERS])
        if self.suffix.lower() == ".zarr":  # a folder, of which stores tell nothing but its name
            entries = self._system.find(self._key, detail=True)
            versions = sorted((name, sorted(map(str, info.items()))) for name, info in entries.items())
            return hashlib.sha256(json.dumps(versions).encode()).hexdigest()
        return str(self._system.ukey(self._key))

    def is_dir(self) -> bool:
        """Whether it is a folder; a web server has none."""
        return not self.web and bool(self._system.isdir(self._key))

    def is_file(self) -> bool:
        """Whether there is such a file."""
        return bool(self._system.isfile(self._key))

    def iterdir(self) -> Iterator[Remote]:
        """Yield what is in the folder."""
        for key in self._system.ls(self._key, detail=False):
            if str(key).rstrip("/") != str(self._key).rstrip("/"):  # an empty object stands for the folder
                yield self / PurePosixPath(str(key)).name

    def __truediv__(self, name: str) -> Remote:
        """Return what is in the folder under a name."""
        return Remote(f"{self.address.rstrip('/')}/{name}")

    def with_suffix(self, suffix: str) -> Remote:
        """Return its neighbour of another kind."""
        return Remote(self.address[: len(self.address) - len(self.suffix)] + suffix)


def location_of(text: str) -> Path | Remote:
    """Return the place that a user named: a path, or an address."""
    if not _URL.match(text):
        return Path(text)
    if text.startswith("file://"):
        path = Path(text.removeprefix("file://"))
        if not path.is_absolute():
            raise UsageError("A file:// address has three slashes and the whole path: file:///FOLDER/FILE.")
        return path
    return Remote(text)
