"""Connections that others cannot read: safe addresses, and the certificates for the others.

Every certificate of a cluster, whatever its role, gives access to all its partial sums without noise: use one cluster
per trust domain.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.naming import parameter
from dpdist.core.paths import AnyPath, local, read_plain

if TYPE_CHECKING:
    from distributed.security import Security

_MAX_BYTES = 16 << 20  # of a file of certificates
_ENCRYPTED = {"tls", "wss", "gateway"}
"""Protocols with TLS. Dask Gateway's proxy selects the cluster by its name and forwards the stream; the TLS connection
is with the cluster's scheduler itself (dask_gateway/comm.py)."""


@dataclass(frozen=True)
class Certificates:
    """Files that authenticate this process and a cluster to each other: PEM, with an unencrypted key.

    Parameters
    ----------
    authority : str or path-like
        Certificate of the cluster's CA.
    certificate : str or path-like
        Certificate of this process, from that CA.
    key : str or path-like
        Private key of the certificate.

    Raises
    ------
    UsageError
        If one is an address. The files are read and checked when connecting to a cluster.

    See Also
    --------
    Cluster : A place to compute, which takes certificates.

    Examples
    --------
    >>> import dpdist
    >>> keys = dpdist.Certificates("ca.pem", "cert.pem", "key.pem")
    >>> dpdist.Cluster("tls://10.0.0.1:8786", certificates=keys).scheduler
    'tls://10.0.0.1:8786'
    """

    authority: Path
    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        for name in ("authority", "certificate", "key"):  # may be text
            object.__setattr__(self, name, local(getattr(self, name)))

    @classmethod
    def of(cls, authority: AnyPath | None, certificate: AnyPath | None, key: AnyPath | None) -> Certificates | None:
        """Return certificates of all three files, or None without any."""
        if authority and certificate and key:
            return cls(local(authority), local(certificate), local(key))
        if authority or certificate or key:
            raise UsageError(
                f"TLS needs three files: the cluster's CA ({parameter('tls_ca')}), a certificate "
                f"({parameter('tls_cert')}) and its key ({parameter('tls_key')}). Give all of them, or none."
            )
        return None

    def security(self) -> Security:
        """Check the files, and return Dask's settings for encrypted connections only."""
        from distributed.security import Security  # noqa: PLC0415 - slow to import

        _require_valid(self.authority, parameter("tls_ca"))
        _require_valid(self.certificate, parameter("tls_cert"))
        try:
            read_plain(self.key, _MAX_BYTES)
            # otherwise OpenSSL prompts for the password of an encrypted key
            ssl.create_default_context().load_cert_chain(self.certificate, self.key, password="")
        except ssl.SSLError:
            raise DataError(
                f"{self.key} is not the unencrypted PEM key of {self.certificate}. Pass the key that was created with "
                "the certificate.",
                parameter="tls_key",
            ) from None
        except OSError as error:
            raise DataError(f"The key {self.key} cannot be read: {error.strerror}.", parameter="tls_key") from None
        return Security(
            require_encryption=True,
            tls_ca_file=str(self.authority),
            tls_client_cert=str(self.certificate),
            tls_client_key=str(self.key),
        )


def _require_valid(path: Path, option: str) -> None:
    """Check that a file contains certificates that are valid now."""
    from cryptography import x509  # noqa: PLC0415 - only certificates need it

    try:
        certificates = x509.load_pem_x509_certificates(read_plain(path, _MAX_BYTES))
    except OSError as error:
        raise DataError(f"The certificate {path} cannot be read: {error.strerror} ({option}).") from None
    except ValueError:
        raise DataError(f"{path} contains no certificate in PEM format ({option}).") from None
    now = datetime.now(UTC)
    for certificate in certificates:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise DataError(
                f"The certificate {path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to "
                f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, not now. Create new ones with "
                f"cluster/make-certificates, or set the clock ({option})."
            )


def certificate_parameters() -> str:
    """Return the names of the three parameters."""
    return f"{parameter('tls_ca')}, {parameter('tls_cert')} and {parameter('tls_key')}"


def require_safe(scheduler: str, certificates: Certificates | None, *, insecure: bool) -> None:
    """Refuse an address where others could read messages, before connecting.

    ``tcp://`` is allowed on this machine: 127.0.0.0/8, ::1 or localhost. Other names are not resolved, because they may
    resolve differently when the connection is made.
    """
    protocol, host, _ = split_address(scheduler)
    if protocol in {"http", "https"}:
        raise UsageError(
            f"{scheduler} is not the address of a Dask scheduler, but may be that of its dashboard. Pass the address "
            "that the scheduler prints when it starts, which begins with tls:// or tcp://."
        )
    if (protocol in _ENCRYPTED) != (certificates is not None):
        raise UsageError(
            f"{scheduler} is the address of a scheduler with TLS: pass the cluster's CA, your certificate "
            f"and its key ({certificate_parameters()})."
            if certificates is None
            else f"Certificates have no effect with {scheduler}, which is not encrypted. Pass an address that begins "
            f"with tls://, or leave {certificate_parameters()} out."
        )
    if certificates is None and not insecure and not (protocol == "tcp" and _is_loopback(host)):
        raise RefusedError(
            f"The scheduler {scheduler} is on the network and not encrypted: eavesdroppers can read sums without "
            "noise, and everyone who connects can read the rows. Start the cluster with TLS (cluster/README.md), and "
            f"pass a tls:// address with {certificate_parameters()}. If the network itself is safe, pass "
            f"{parameter('insecure')}."
        )


def require_safe_cluster(scheduler: str, workers: Iterable[str], *, foreign: bool) -> None:
    """Refuse a cluster with unencrypted connections on the network, which the workers of a local scheduler may have."""
    for role, address in (("scheduler", scheduler), *(("worker", worker) for worker in workers)):
        if not _is_safe(address):
            cure = f"If the network itself is safe, pass {parameter('insecure')}."
            if foreign:
                cure = "Or ingest the rows, and fit the path of the rows.zarr. Nothing was sent."
            raise RefusedError(
                f"The {role} {address} is on the network and not encrypted: eavesdroppers can read sums without "
                "noise. Start scheduler and workers of an unencrypted cluster on 127.0.0.1 (--host), or start the "
                f"cluster with TLS (cluster/README.md). {cure}"
            )


def is_local(address: str) -> bool:
    """Return whether a worker is on this machine, and shares its memory."""
    protocol, host, _ = split_address(address)
    return protocol == "inproc" or _is_loopback(host)


def _is_safe(address: str) -> bool:
    protocol, host, _ = split_address(address)
    # inproc: threads of this process, which nothing outside can connect to
    return protocol in {*_ENCRYPTED, "inproc"} or (protocol == "tcp" and _is_loopback(host))


def split_address(address: str) -> tuple[str, str, int | None]:
    """Return the protocol of an address (default: tcp), its host, and its port, if any."""
    protocol, separator, location = address.rpartition("://")
    try:
        parts = urlsplit(f"//{location}")
        return (protocol.lower() if separator else "tcp"), parts.hostname or "", parts.port
    except ValueError:
        return protocol, "", None


def _is_loopback(host: str) -> bool:
    try:
        return host in {"localhost", ""} or ip_address(host).is_loopback  # an empty host cannot be reached
    except ValueError:
        return False
