"""A small network of namespaces in one machine, whose cables can be cut; nothing leads out of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_OURS = f"dpdist-{os.getpid()}"
NETWORK = {
    "scheduler": (f"{_OURS}-hub", "10.211.0.1"),
    "one": (f"{_OURS}-one", "10.211.0.2"), "two": (f"{_OURS}-two", "10.211.0.3"),
    "trusted": (f"{_OURS}-safe", "10.211.0.4"), "driver": (f"{_OURS}-user", "10.211.0.5"),
}  # fmt: skip
"""A network namespace and an address for each role. The hub holds a bridge."""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def no_cable(namespace: str) -> Iterator[None]:
    """Cut the cable of a namespace for a while, at the hub's end: the other side sees only silence."""
    cable = ("-n", NETWORK["scheduler"][0], "link", "set", _cable(namespace))
    _ip(*cable, "down")
    try:
        yield
    finally:
        _ip(*cable, "up")


def _cable(namespace: str) -> str:
    return f"to-{namespace.rpartition('-')[2]}"


@contextmanager
def network() -> Iterator[None]:
    """Make the namespaces.

    Raises
    ------
    PermissionError
        If this user may not.
    """
    hub = NETWORK["scheduler"][0]
    try:
        for namespace, _ in NETWORK.values():
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "addr", "add", f"{NETWORK['scheduler'][1]}/24", "dev", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for namespace, address in list(NETWORK.values())[1:]:
            cable = _cable(namespace)
            _ip("-n", hub, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("-n", hub, "link", "set", cable, "master", "bridge", "up")
            _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
        yield
    except (OSError, subprocess.CalledProcessError) as error:
        raise PermissionError(f"network namespaces cannot be made here: {error}") from error
    finally:
        for namespace, _ in NETWORK.values():
            with suppress(OSError):
                subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)
