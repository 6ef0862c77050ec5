"""The network of a lab: every NIC reaches every other, by the NIC that was asked for."""

import socket

import pytest

from fabricpulse.lab import Lab, Nic

pytestmark = pytest.mark.root

PORT = 5000


def echo(lab: Lab, source: tuple[str, str], target: tuple[str, str], timeout: float = 2.0) -> str | None:
    """Sends a datagram from one (node, address) to another and back; the address that the target saw, or None."""
    family = socket.AF_INET6 if ":" in source[1] else socket.AF_INET
    with (
        lab.socket(source[0], socket.SOCK_DGRAM, family) as ours,
        lab.socket(target[0], socket.SOCK_DGRAM, family) as theirs,
    ):
        theirs.bind((target[1], PORT))
        ours.bind((source[1], 0))
        for sock in (ours, theirs):
            sock.settimeout(timeout)
        try:
            ours.sendto(b"x", (target[1], PORT))
            data, seen = theirs.recvfrom(16)
            theirs.sendto(data, seen)
            ours.recv(16)
        except TimeoutError:
            return None
        return str(seen[0])


@pytest.mark.parametrize("version", [4, 6])
def test_every_nic_reaches_every_nic_under_its_own_address(shared_lab: Lab, version: int) -> None:
    """Within a rail by the leaf, across rails by a spine; the source address is the one that was bound."""

    def address(nic: Nic) -> str:
        return nic.address if version == 4 else nic.address6

    nics = [(host.name, nic) for host in shared_lab.hosts for nic in host.nics]
    for host, nic in nics:
        for peer, peer_nic in nics:
            if host != peer:
                assert echo(shared_lab, (host, address(nic)), (peer, address(peer_nic))) == address(nic)


def test_front_end_joins_all_hosts_and_mgmt(shared_lab: Lab) -> None:
    """Every host reaches mgmt and is reached by it."""
    mgmt = shared_lab.fabric.front_end_addresses["mgmt"]
    for host in shared_lab.hosts:
        assert echo(shared_lab, (host.name, host.front_end), ("mgmt", mgmt)) == host.front_end
        assert echo(shared_lab, ("mgmt", mgmt), (host.name, host.front_end)) == mgmt
