"""Several machines: a cluster with TLS across a network, started as an operator starts it, and a cable that is cut."""

from __future__ import annotations

from pathlib import Path

from faults import cluster_faults, hosts, namespaces
from faults.hosts import Hosts


def only_tls_listens(machines: Hosts) -> None:
    """Check that nothing listens but TLS at the one address of each machine, and a dashboard on loopback."""
    for machine in ("scheduler", *hosts.WORKERS):
        address = machines.network.address(machine)
        found = machines.listening(machine)
        assert {host for host, _ in found} == {address, "127.0.0.1"}
        assert all(machines.speaks_tls(machine, port) for host, port in found if host == address)


def test_only_tls_listens_and_a_machine_that_is_cut_off_costs_time_and_nothing_else(tmp_path: Path) -> None:
    namespaces.need()
    cluster_faults.worker_cut(tmp_path, silence=hosts.SHORT, first=only_tls_listens)
