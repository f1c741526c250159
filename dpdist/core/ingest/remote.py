"""Sources in object stores and on web servers, by URL, through fsspec.

Credentials come from the configuration files and environment of the store's own library, never from the URL: addresses
are printed, logged and visible in process lists.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dpdist.core.errors import UsageError
from dpdist.core.paths import text_of
from dpdist.core.storage.atomic import require_space
from dpdist.core.storage.connections import is_plain, on_loopback

if TYPE_CHECKING:
    from dpdist.core.storage.objects import ObjectStore

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_EXTRAS = {"s3": "s3", "gs": "gcs", "https": "https", "http": "https", "memory": ""}
"""Supported schemes, and the extra that installs their library."""
_PIECE = 1 << 20
_CONFIGURED = "the environment, or a profile,"
_VERSION_HEADERS = ("size", "ETag", "Content-MD5", "Digest", "Last-Modified")
"""Response fields of a web server that change with the file."""


@dataclass(frozen=True)
class Remote:
    """An object or folder in a store, with the interface of :class:`~pathlib.Path`."""

    address: str

    def __post_init__(self) -> None:
        kind = self.address.partition("://")[0]
        if kind not in _EXTRAS:
            kinds = ", ".join(f"{scheme}://" for scheme in ("file", *_EXTRAS) if scheme != "memory")
            raise UsageError(f"{kind}:// addresses cannot be read. Use one of: {kinds}.")
        try:
            parts = urlsplit(self.address)
        except ValueError:
            raise UsageError("The address of the source is not a URL. Write it as s3://BUCKET/FOLDER/FILE.") from None
        # neither message repeats the address, which may hold a secret
        if "@" in parts.netloc:
            raise UsageError(
                f"The {kind}:// address holds a user name or password. Leave it out: addresses are visible in logs and "
                "process lists. Put it where the store's library reads it, such as ~/.aws/credentials."
            )
        if parts.query or parts.fragment or "::" in re.sub(r"\[[^]]*\]", "", self.address):
            raise UsageError(
                f"The {kind}:// address has a query, a fragment or a chain of addresses. A query may be a signature, "
                "equivalent to a password: copy the file to this machine and ingest it from there."
            )
        if kind == "http" and not on_loopback(self.address):
            raise UsageError(
                f"{self.address} would send private rows over the network unencrypted. Use https://, or copy the file "
                "to this machine securely."
            )

    def __str__(self) -> str:
        return self.address

    def __reduce__(self) -> tuple[type[Remote], tuple[str]]:
        return type(self), (self.address,)  # other processes open their own connections

    @property
    def kind(self) -> str:
        """The scheme of the address."""
        return self.address.partition("://")[0]

    @property
    def web(self) -> bool:
        """Whether it is on a web server, which lists no folders and may not serve ranges."""
        return self.kind in {"http", "https"}

    @property
    def name(self) -> str:
        return PurePosixPath(self.address.partition("://")[2]).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @cached_property
    def _system(self) -> Any:
        """The fsspec file system; it sends no row over a network unencrypted."""
        if self.web:
            return self._filesystem(client_kwargs=self._web_options())
        filesystem = self._filesystem()
        # the libraries apply settings and profiles: check the resulting endpoint
        if self.kind == "s3":
            filesystem.connect()
            if is_plain(str(filesystem.s3.meta.endpoint_url), _CONFIGURED):
                filesystem = self._filesystem(config_kwargs={"proxies": {}})
        elif self.kind == "gs":
            is_plain(str(filesystem.base), _CONFIGURED)
        return filesystem

    def _filesystem(self, **options: object) -> Any:
        import fsspec  # noqa: PLC0415 - local files do without

        try:
            return fsspec.filesystem(self.kind, use_listings_cache=False, skip_instance_cache=True, **options)
        except ImportError:
            pass
        raise self._missing_library()

    def _missing_library(self) -> UsageError:
        return UsageError(
            f"Reading {self.kind}:// needs a library for it. Install it with: pip install '.[{_EXTRAS[self.kind]}]'"
        )

    def _web_options(self) -> dict[str, object]:
        """Return client options that refuse redirects to unencrypted network addresses."""
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
        return str(self._system._strip_protocol(self.address))  # noqa: SLF001 - common to all fsspec implementations

    def open(self, mode: str, /) -> IO[bytes]:
        opened: IO[bytes] = self._system.open(self._key, mode)
        return opened

    def fetch(self, folder: Path) -> None:
        """Copy it into a folder, readable by the owner alone."""
        handle = os.open(folder / self.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out, self.open("rb") as file:
            require_space(folder, int(self.stat().st_size), "rows, which are fetched first,")
            while block := file.read(_PIECE):
                out.write(block)

    def range(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from an offset; OSError if there are fewer."""
        content: bytes = self._system.cat_file(self._key, start=start, end=start + length)
        if len(content) != length:
            raise OSError(errno.EINVAL, "it is shorter")
        return content

    def stat(self) -> os.stat_result:
        """Return its size, and zeros for all else."""
        return _sized(int(self._system.size(self._key)))

    def version(self) -> str:
        """Return size, time or tag of the object, uncached: text that changes with it."""
        self._system.invalidate_cache()
        if self.web:  # fsspec assumes that files of web servers never change
            info = self._system.info(self._key)
            return str([info.get(name) for name in _VERSION_HEADERS])
        if self.suffix.lower() == ".zarr":  # a folder: stores know only its name
            entries = self._system.find(self._key, detail=True)
            versions = sorted((name, sorted(map(str, info.items()))) for name, info in entries.items())
            return hashlib.sha256(json.dumps(versions).encode()).hexdigest()
        return str(self._system.ukey(self._key))

    def is_dir(self) -> bool:
        return not self.web and bool(self._system.isdir(self._key))

    def is_file(self) -> bool:
        return bool(self._system.isfile(self._key))

    def iterdir(self) -> Iterator[Remote]:
        for key in self._system.ls(self._key, detail=False):
            if str(key).rstrip("/") != str(self._key).rstrip("/"):  # an empty object stands for the folder
                yield self / PurePosixPath(str(key)).name

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.address.rstrip('/')}/{name}")

    def with_suffix(self, suffix: str) -> Remote:
        return Remote(self.address[: len(self.address) - len(self.suffix)] + suffix)


@dataclass(frozen=True)
class StoredFile:
    """An object of a table that is being written, with the interface of :class:`Remote`."""

    store: ObjectStore
    key: str
    web = False

    def __str__(self) -> str:
        return str(self.store.address(self.key))

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name

    def open(self, mode: str, /) -> IO[bytes]:  # noqa: ARG002 - for reading
        """Open it for reading, in ranges."""
        return io.BufferedReader(_Ranges(self), _PIECE)

    def range(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from an offset; OSError if there are fewer."""
        return self.store.get_range(self.key, start, length)

    def stat(self) -> os.stat_result:
        """Return its size, and zeros for all else."""
        return _sized(self.store.size(self.key))

    def version(self) -> str:
        """Return its version in the store: a task that was given up may write it again."""
        return self.store.version(self.key)

    def is_dir(self) -> bool:
        return False

    def is_file(self) -> bool:
        return True


class _Ranges(io.RawIOBase):
    """An object that is read in ranges."""

    def __init__(self, file: StoredFile) -> None:
        self._file, self._size, self._offset = file, file.stat().st_size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._offset = offset + (0, self._offset, self._size)[whence]
        return self._offset

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(0, self._size - self._offset))
        buffer[:length] = self._file.range(self._offset, length) if length else b""
        self._offset += length
        return length


def _sized(size: int) -> os.stat_result:
    return os.stat_result((0, 0, 0, 0, 0, 0, size, 0, 0, 0))


def location_of(location: object) -> Path | Remote:
    """Parse a path or an address."""
    if isinstance(location, Remote):
        return location
    text = text_of(location)
    if not _URL.match(text):
        return Path(text)
    if text.startswith("file://"):
        path = Path(text.removeprefix("file://"))
        if not path.is_absolute():
            raise UsageError(
                "A file:// address needs three slashes and an absolute path. Write it as file:///FOLDER/FILE."
            )
        return path
    return Remote(text)
