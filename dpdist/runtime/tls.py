"""What is sent between processes stays unread: which addresses are safe, and the certificates for those that are not.

A certificate of the cluster opens every un-noised partial sum in it, whatever its role:
one cluster per trust domain.
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

from dpdist._util.paths import AnyPath, local, read_plain
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.naming import parameter

if TYPE_CHECKING:
    from distributed.security import Security

_MOST = 16 << 20  # bytes of a file of certificates at most
_ENCRYPTED = {"tls", "wss", "gateway"}
"""Ways to connect that need TLS. Dask Gateway's proxy chooses the cluster by its name and hands the stream on; TLS is
spoken with the cluster's scheduler itself (dask_gateway/comm.py)."""


@dataclass(frozen=True)
class Certificates:
    """The files with which this process shows a cluster who it is, and knows the cluster: PEM, the key unencrypted.

    Parameters
    ----------
    authority : str or path-like
        Certificate of the cluster's CA.
    certificate : str or path-like
        The certificate of this process, of that CA.
    key : str or path-like
        The certificate's key.

    Raises
    ------
    UsageError
        If one is an address. The files are read, and checked, when a cluster is connected to.

    See Also
    --------
    Cluster : Takes them.

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
        for name in ("authority", "certificate", "key"):  # text will do as well
            object.__setattr__(self, name, local(getattr(self, name)))

    @classmethod
    def of(cls, authority: AnyPath | None, certificate: AnyPath | None, key: AnyPath | None) -> Certificates | None:
        """Take all three files, or none."""
        if authority and certificate and key:
            return cls(local(authority), local(certificate), local(key))
        if authority or certificate or key:
            raise UsageError(
                f"TLS needs three files: the cluster's CA ({parameter('tls_ca')}), a certificate "
                f"({parameter('tls_cert')}) and its key ({parameter('tls_key')}). Give all of them, or none."
            )
        return None

    def security(self) -> Security:
        """Check the files and return what Dask connects with, to encrypted addresses only."""
        from distributed.security import Security  # noqa: PLC0415 - Dask takes its time, and a small table needs none of it

        _require_valid(self.authority, parameter("tls_ca"))
        _require_valid(self.certificate, parameter("tls_cert"))
        try:
            read_plain(self.key, _MOST)
            # an encrypted key would otherwise be asked for on the terminal
            ssl.create_default_context().load_cert_chain(self.certificate, self.key, password="")
        except ssl.SSLError:
            raise DataError(
                f"{self.key} is not the unencrypted PEM key of {self.certificate}. Pass the key that was made with the "
                "certificate.",
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
    """Check that a file holds certificates that are valid now."""
    from cryptography import x509  # noqa: PLC0415 - nobody without certificates needs it

    try:
        found = x509.load_pem_x509_certificates(read_plain(path, _MOST))
    except OSError as error:
        raise DataError(f"The certificate {path} cannot be read: {error.strerror} ({option}).") from None
    except ValueError:
        raise DataError(f"{path} holds no certificate in PEM format ({option}).") from None
    now = datetime.now(UTC)
    for certificate in found:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise DataError(
                f"The certificate {path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to "
                f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, not now: make new ones with "
                f"cluster/make-certificates, or set the clock ({option})."
            )


def the_three() -> str:
    """Name the parameters of a certificate."""
    return f"{parameter('tls_ca')}, {parameter('tls_cert')} and {parameter('tls_key')}"


def require_safe(scheduler: str, certificates: Certificates | None, *, insecure: bool) -> None:
    """Refuse an address where others could read what is sent, before anything is sent.

    ``tcp://`` may stay on this machine: 127.0.0.0/8, ::1 or localhost. Other names are not looked up: what they mean
    may change until the connection is made.
    """
    protocol, host, _ = parts_of(scheduler)
    if protocol in {"http", "https"}:
        raise UsageError(
            f"{scheduler} is no address of a Dask scheduler: these begin with tls:// or tcp://, as the scheduler "
            "prints it when it starts, and one that begins with http:// is its dashboard's."
        )
    if (protocol in _ENCRYPTED) != (certificates is not None):
        raise UsageError(
            f"{scheduler} is the address of a scheduler that speaks TLS: pass the cluster's CA and your certificate "
            f"and key ({the_three()})."
            if certificates is None
            else f"Certificates are of no use at {scheduler}, which is not encrypted: pass an address that begins with "
            f"tls://, or leave {the_three()} out."
        )
    if certificates is None and not insecure and not (protocol == "tcp" and _is_loopback(host)):
        raise RefusedError(
            f"The scheduler {scheduler} is on the network and not encrypted. Whoever listens there can read un-noised "
            "sums; whoever connects can read the rows. Start the cluster with TLS (cluster/README.md) and pass a "
            f"tls:// address with {the_three()}. Where the network itself is safe, pass {parameter('insecure')}."
        )


def require_safe_cluster(scheduler: str, workers: Iterable[str], *, foreign: bool) -> None:
    """Refuse a cluster that others can listen to: a scheduler on loopback may have workers elsewhere."""
    for what, address in (("scheduler", scheduler), *(("worker", each) for each in workers)):
        if not _is_safe(address):
            cure = f"Where the network itself is safe, pass {parameter('insecure')}."
            if foreign:
                cure = "Or ingest the rows and fit the path of the rows.zarr. Nothing was sent."
            raise RefusedError(
                f"The {what} {address} is on the network and not encrypted: whoever listens there can read un-noised "
                "sums. Start scheduler and workers of an unencrypted cluster on 127.0.0.1 (--host), or start the "
                f"cluster with TLS (cluster/README.md). {cure}"
            )


def on_this_machine(address: str) -> bool:
    """Say whether a worker is known to be on this machine, and to take of its memory."""
    protocol, host, _ = parts_of(address)
    return protocol == "inproc" or _is_loopback(host)


def _is_safe(address: str) -> bool:
    protocol, host, _ = parts_of(address)
    # inproc: threads of this process, which nothing outside can speak to
    return protocol in {*_ENCRYPTED, "inproc"} or (protocol == "tcp" and _is_loopback(host))


def parts_of(address: str) -> tuple[str, str, int | None]:
    """Return the protocol of an address, tcp where none is named, its host, and its port if it names one."""
    protocol, found, place = address.rpartition("://")
    try:
        parts = urlsplit(f"//{place}")
        return (protocol.lower() if found else "tcp"), parts.hostname or "", parts.port
    except ValueError:
        return protocol, "", None


def _is_loopback(host: str) -> bool:
    try:
        return host in {"localhost", ""} or ip_address(host).is_loopback  # nothing can be sent to no host
    except ValueError:
        return False
