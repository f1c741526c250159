"""Connections to object stores: addresses, settings, credentials and error messages."""

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

from dpdist.core.errors import DataError, DpdistError, ResumableError, UsageError
from dpdist.core.text import has_control

T = TypeVar("T")
_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Schemes, and the prefix of the environment variables with endpoint and credentials for obstore."""
_ENDPOINTS = (
    "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "GOOGLE_BASE_URL",
    "AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL",
)  # fmt: skip
_RETRIES: dict[str, Any] = {"max_retries": 8, "retry_timeout": timedelta(seconds=90)}
_CLIENT: dict[str, Any] = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=300)}
_NOWHERE = "http://127.0.0.1:1"
"""A dead proxy for redirects from an unencrypted local store to another machine."""
_DIRECT = "localhost,127.0.0.0/8,::1,169.254.0.0/16,fd00:ec2::254"
"""Hosts that bypass it: the local store and the metadata services of cloud machines."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_NO_CREDENTIALS = (
    "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestExpired", "InvalidAccessKeyId",
    "CredentialsError", "MissingCredential", "169.254.169.254", "InvalidClientTokenId", "AuthenticationFailed",
)  # fmt: skip


def plain_address(url: str) -> str:
    """Check and normalise an address."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if "@" in rest.partition("/")[0] or "?" in rest or "#" in rest or has_control(rest):
        raise UsageError(
            f"An address {scheme}:// takes no user name, password, query or control character. Addresses are printed "
            f"and logged, so change any secret that it contained. Give credentials {_credentials_source(scheme)}."
        )
    rest = rest.rstrip("/")
    bucket, _, key = rest.partition("/")
    if scheme not in _VARIABLES or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket):
        raise UsageError(f"An address is {scheme}://BUCKET/NAME; a bucket has letters, digits, hyphens and dots.")
    if key and any(part in {"", ".", ".."} for part in key.split("/")):
        raise UsageError(f"{scheme}://{rest} has an empty name, . or .. between its slashes. Write it without.")
    return f"{scheme}://{rest}"


def obstore() -> Any:
    """Import obstore."""
    try:
        import obstore  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(
            "Object stores need obstore, which is not installed. Install it in the clone of dpdist: "
            "pip install '.[stores]'"
        ) from None
    return obstore


def connection(scheme: str, bucket: str, prefix: str = "") -> Any:
    """Return the connection of this process to a bucket or prefix, a new one if the environment has changed."""
    return _connected(scheme, bucket, prefix, settings(scheme), os.getpid())


def settings(scheme: str) -> tuple[tuple[str, str], ...]:
    """Return the environment variables that a connection depends on. Secret."""
    prefixes = (_VARIABLES[scheme], "AZURITE_") if scheme == "az" else _VARIABLES[scheme]
    return tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(prefixes)))


@lru_cache(maxsize=16)
def _connected(scheme: str, bucket: str, prefix: str, variables: tuple[tuple[str, str], ...], _process: int) -> Any:
    obstore()
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415 - as above

    plain = [name for name, value in variables if name.upper() in _ENDPOINTS and is_plain(value, name)]
    client = {**_CLIENT, "allow_http": bool(plain)}  # set here to override the environment
    if plain:  # a proxy would see the rows, and a redirect could lead to another machine
        client |= {"proxy_url": _NOWHERE, "proxy_excludes": _DIRECT}
    kinds: dict[str, Callable[..., Any]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    with suppress(Exception):  # its message may quote a setting
        return kinds[scheme](bucket, prefix=prefix or None, retry_config=_RETRIES, client_options=client)
    raise DataError(
        f"The settings for the store of {scheme}://{bucket} are not valid. Check those {_credentials_source(scheme)}."
    )


def is_plain(endpoint: str, name: str) -> bool:
    """Return whether an endpoint is unencrypted, which only one on this machine may be."""
    if not endpoint.strip().lower().startswith("http://"):
        return False
    if not on_loopback(endpoint):
        raise UsageError(
            f"The URL that {name} gives is unencrypted (http://), so anyone on the network could read the rows. Use "
            "https://; only a store on this machine (127.0.0.1) may do without."
        )
    return True


def on_loopback(url: str) -> bool:
    """Return whether a URL is on this machine."""
    try:
        host = urlsplit(url.strip()).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


# --- errors -----------------------------------------------------------------------------------------------------------


def _credentials_source(scheme: str) -> str:
    variables = _VARIABLES.get(scheme, "")
    return f"in the environment variables that begin with {variables}, or by the role of the machine"


def mentions(error: BaseException, *phrases: str) -> bool:
    """Return whether the text of an error contains one of the phrases."""
    return any(phrase in str(error) for phrase in phrases)


def kind_of(error: BaseException | None) -> str:
    """Return the name of the class of an error of obstore."""
    return type(error).__name__


def no_bucket(url: str) -> DataError:
    """Return the error for a missing bucket."""
    scheme, _, rest = url.partition("://")
    return DataError(f"There is no bucket {scheme}://{rest.partition('/')[0]}. Create it, or name another one.")


def failure(error: Exception, url: str, action: str) -> DpdistError:
    """Return the error for a failed request, without the text of the library, which may quote anything."""
    if isinstance(error, DpdistError):
        return error
    if mentions(error, *_NO_BUCKET):
        return no_bucket(url)
    scheme = url.partition("://")[0]
    if kind_of(error) == "PermissionDeniedError":
        return DataError(
            f"{url} cannot be {action}: the store denies access to these credentials. Ask its owner for access, or "
            f"give other credentials {_credentials_source(scheme)}."
        )
    if kind_of(error) == "UnauthenticatedError" or mentions(error, *_NO_CREDENTIALS):
        return DataError(
            f"{url} cannot be {action}: there are no credentials, or the store does not accept them. Renew them "
            f"{_credentials_source(scheme)}, then run the same command again.{_without_endpoint(scheme)}"
        )
    return ResumableError(
        f"{url} cannot be {action}: its store does not answer, or keeps closing connections. Run the same command "
        f"again when it is available.{_without_endpoint(scheme)}"
    )


def _without_endpoint(scheme: str) -> str:
    """Return a hint, after a space, for an s3 address if no endpoint is set."""
    if scheme != "s3" or any(name.upper() in _ENDPOINTS for name in os.environ):
        return ""
    return " No endpoint is set, so AWS was asked; for another store, set AWS_ENDPOINT_URL."


def send_request(url: str, request: Callable[[], T], action: str = "read") -> T:
    """Run a request to a store, and translate its errors."""
    try:
        return request()
    except FileNotFoundError as error:
        translated: Exception = FileNotFoundError(2, "there is no such object", url)
        if mentions(error, *_NO_BUCKET):
            translated = no_bucket(url)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - the errors of obstore and its HTTP client share no class
        translated = failure(error, url, action)
    raise translated  # outside the handler, so that the text of the library is not chained


# --- locks ------------------------------------------------------------------------------------------------------------


@contextmanager
def locked_here(url: str) -> Iterator[int]:
    """Lock an address against other processes of this user on this machine; yield the handle of the lock file."""
    folder = Path(gettempdir()) / f"dpdist-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        sound = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    except OSError:
        sound = False
    if not sound:
        raise DataError(
            f"{folder}, the folder of the lock of {url}, must be accessible to you alone. Remove it, then try again."
        )
    name = hashlib.sha256(url.encode()).hexdigest()
    handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
