"""Connections to object stores: addresses, where settings and credentials come from, what is said of faults."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from tempfile import gettempdir
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dpdist._util.text import has_control
from dpdist.errors import DataError, DpdistError, ResumableError, UsageError

T = TypeVar("T")
_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""The schemes, and how the variables begin by which obstore is told where a store is, and who asks."""
_ENDPOINTS = (
    "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "GOOGLE_BASE_URL",
    "AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL",
)  # fmt: skip
_RETRIES: dict[str, Any] = {"max_retries": 8, "retry_timeout": timedelta(seconds=90)}
_CLIENT: dict[str, Any] = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=300)}
_NOWHERE = "http://127.0.0.1:1"
"""Where nobody listens: there goes what a plain store on this machine sends on to another machine."""
_DIRECT = "localhost,127.0.0.0/8,::1,169.254.0.0/16,fd00:ec2::254"
"""What a plain store on this machine is reached by, and where its machine gives out credentials."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_NO_CREDENTIALS = (
    "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestExpired", "InvalidAccessKeyId",
    "CredentialsError", "MissingCredential", "169.254.169.254", "InvalidClientTokenId", "AuthenticationFailed",
)  # fmt: skip


def plain_address(url: str) -> str:
    """Check an address, and write it in one way."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if "@" in rest.partition("/")[0] or "?" in rest or "#" in rest or has_control(rest):
        raise UsageError(
            f"An address {scheme}:// takes no user name, password, query or control character: it is printed and "
            f"logged, so consider what stood there known and change it. Credentials are given {_where(scheme)}."
        )
    rest = rest.rstrip("/")
    bucket, _, key = rest.partition("/")
    if scheme not in _VARIABLES or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket):
        raise UsageError(f"An address is {scheme}://BUCKET/NAME, and a bucket has letters, digits, hyphens and dots.")
    if key and any(part in {"", ".", ".."} for part in key.split("/")):
        raise UsageError(f"{scheme}://{rest}: between the slashes of an address stand names, none of them . or ..")
    return f"{scheme}://{rest}"


def obstore() -> Any:
    """Import obstore."""
    try:
        import obstore  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(
            "Object stores are read and written with obstore, which is not installed: pip install 'dpdist[stores]'"
        ) from None
    return obstore


def connection(scheme: str, bucket: str, prefix: str = "") -> Any:
    """Return this process's connection to a bucket or a prefix of it; a new one when its environment has changed."""
    return _connected(scheme, bucket, prefix, settings(scheme), os.getpid())


def settings(scheme: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that a connection depends on. Secret."""
    prefixes = (_VARIABLES[scheme], "AZURITE_") if scheme == "az" else _VARIABLES[scheme]
    return tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(prefixes)))


@lru_cache(maxsize=16)
def _connected(scheme: str, bucket: str, prefix: str, given: tuple[tuple[str, str], ...], _process: int) -> Any:
    obstore()
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415 - as above

    plain = [name for name, value in given if name.upper() in _ENDPOINTS and is_plain(value, name)]
    client = {**_CLIENT, "allow_http": bool(plain)}  # said here, it is not taken from the environment
    if plain:  # a proxy of the environment would see the rows, and a redirect lead off this machine
        client |= {"proxy_url": _NOWHERE, "proxy_excludes": _DIRECT}
    kinds: dict[str, Callable[..., Any]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    with suppress(Exception):  # whatever it says may quote a setting
        return kinds[scheme](bucket, prefix=prefix or None, retry_config=_RETRIES, client_options=client)
    raise DataError(
        f"The store of {scheme}://{bucket} cannot be reached as the environment says. Check what is given "
        f"{_where(scheme)}."
    )


def is_plain(endpoint: str, name: str) -> bool:
    """Say whether an endpoint is on this machine and reached without encryption."""
    if not endpoint.strip().lower().startswith("http://"):
        return False
    if not on_loopback(endpoint):
        raise UsageError(
            f"The store that {name} names is reached over http://, unencrypted: everybody on the way could read "
            "the rows. Use https://, which only a store on this machine (127.0.0.1) can do without."
        )
    return True


def on_loopback(url: str) -> bool:
    """Say whether an address is of this machine."""
    try:
        host = urlsplit(url.strip()).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


# --- faults -----------------------------------------------------------------------------------------------------------


def _where(scheme: str) -> str:
    variables = _VARIABLES.get(scheme, "")
    return f"in the variables of the environment that begin with {variables}, or by the role of the machine"


def says(error: BaseException, *words: str) -> bool:
    """Say whether a library's text of a fault has one of some words."""
    return any(word in str(error) for word in words)


def kind_of(error: BaseException | None) -> str:
    """Return the name of obstore's class of a fault."""
    return type(error).__name__


def no_bucket(url: str) -> DataError:
    """Return what is said where there is no bucket."""
    scheme, _, rest = url.partition("://")
    return DataError(f"There is no bucket {scheme}://{rest.partition('/')[0]}. Create it first, or name another one.")


def failure(error: Exception, url: str, how: str) -> DpdistError:
    """Return what is said of a request that failed; the library's own text may quote anything, and is not told."""
    if isinstance(error, DpdistError):
        return error
    if says(error, *_NO_BUCKET):
        return no_bucket(url)
    scheme = url.partition("://")[0]
    if kind_of(error) == "PermissionDeniedError":
        return DataError(
            f"{url} cannot be {how}: the store denies it to these credentials. Let its owner allow it, or give others "
            f"{_where(scheme)}."
        )
    if kind_of(error) == "UnauthenticatedError" or says(error, *_NO_CREDENTIALS):
        return DataError(
            f"{url} cannot be {how}: there are no credentials, or the store does not accept them any more. Renew them "
            f"{_where(scheme)}, and run the same command again."
        )
    return ResumableError(
        f"{url} cannot be {how}: its store does not answer, or ends connections, again and again. Run the same command "
        "again when it does."
    )


def asked(url: str, question: Callable[[], T], how: str = "read") -> T:
    """Ask a store for something."""
    try:
        return question()
    except FileNotFoundError as error:
        wrong: Exception = FileNotFoundError(2, "there is no such object", url)
        if says(error, *_NO_BUCKET):
            wrong = no_bucket(url)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - obstore's errors share no class with what its HTTP client raises
        wrong = failure(error, url, how)
    raise wrong  # outside the handler: the library's text, and what it quotes, is not chained


# --- locks ------------------------------------------------------------------------------------------------------------


@contextmanager
def locked_here(url: str) -> Iterator[int]:
    """Hold an address against the other processes of this user on this machine; give the file that is locked for it."""
    folder = Path(gettempdir()) / f"dpdist-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
        sound = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
    except OSError:
        sound = False
    if not sound:
        raise DataError(f"{folder} must be a folder that only you can enter: there {url} is held. Remove it.")
    name = hashlib.sha256(url.encode()).hexdigest()
    handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
