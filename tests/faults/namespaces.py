"""Machines for the tests: network namespaces joined by a bridge, whose cables can be cut. Nothing leads out of them."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults import packages


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def need(*, minutes: bool = True) -> None:
    """Skip a test where no network namespaces can be made, or, where it takes minutes, unless these were asked for."""
    if minutes:
        packages.need_time("iproute2")
    packages.need("iproute2", "ip", "nsenter")
    reason = "only root makes network namespaces" if os.getuid() else _refusal()
    if reason is not None:  # no program to install helps here: it is this user, or this kernel, that may not
        pytest.skip(reason)


@functools.cache
def _refusal() -> str | None:
    try:
        with network("probe"):
            return None
    except PermissionError as error:
        return str(error)


@dataclass(frozen=True)
class Network:
    """Machines by their names."""

    prefix: str
    machines: tuple[str, ...]

    @property
    def hub(self) -> str:
        return f"{self.prefix}-hub"

    def namespace(self, machine: str) -> str:
        return f"{self.prefix}-{self.machines.index(machine)}"

    def holds(self, machine: str, name: str | None) -> bool:
        return name == f"net:[{Path('/run/netns', self.namespace(machine)).stat().st_ino}]"

    def address(self, machine: str) -> str:
        return f"10.211.0.{self.machines.index(machine) + 2}"

    def on(self, machine: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs a command on a machine; the process is the same."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(machine)}", *command]

    def set_cable(self, machine: str, *, up: bool) -> None:
        """Cut the cable of a machine, or mend it, at the other end: the machine itself sees only silence."""
        _ip("-n", self.hub, "link", "set", f"to-{self.machines.index(machine)}", "up" if up else "down")

    @contextmanager
    def cut(self, machine: str) -> Iterator[None]:
        self.set_cable(machine, up=False)
        try:
            yield
        finally:
            self.set_cable(machine, up=True)


def _join(made: Network, names: Sequence[str]) -> None:
    for name in names:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", made.hub, "link", "add", "bridge", "type", "bridge")
    _ip("-n", made.hub, "link", "set", "bridge", "up")
    for number, machine in enumerate(made.machines):
        name, cable = made.namespace(machine), f"to-{number}"
        _ip("-n", made.hub, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", made.hub, "link", "set", cable, "master", "bridge", "up")
        _ip("-n", name, "addr", "add", f"{made.address(machine)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")


@contextmanager
def network(*machines: str) -> Iterator[Network]:
    made = Network(f"dpdist-{os.getpid()}", machines)
    names = [made.hub, *map(made.namespace, machines)]
    try:
        try:
            _join(made, names)
        except (OSError, subprocess.CalledProcessError) as error:
            words = error.stderr.decode().strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise PermissionError(f"no network namespaces here: {words}") from error
        yield made
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
