"""How probes leave a host: in which class of traffic, as the network sees it on the wire, and by which NIC."""

import socket
from collections import Counter, defaultdict

import pytest
import yaml
from tests.fixtures.waiting import Patience, wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root

MAGIC = b"FPM1"
PACKET_BYTES = 120
ETH_P_ALL = 3
PORT = 9620  # default of probe.port
DSCP = 26  # AF31, which RoCE networks often give a lossless priority


def udp_of(packet: bytes) -> tuple[int, int, bytes] | None:
    """TOS or traffic class, source port and payload of a UDP packet without IP options; None for anything else."""
    if len(packet) >= 28 and packet[0] == 0x45 and packet[9] == socket.IPPROTO_UDP:
        return packet[1], int.from_bytes(packet[20:22], "big"), packet[28:]
    if len(packet) >= 48 and packet[0] >> 4 == 6 and packet[6] == socket.IPPROTO_UDP:
        traffic_class = (packet[0] & 0xF) << 4 | packet[1] >> 4
        return traffic_class, int.from_bytes(packet[40:42], "big"), packet[48:]
    return None


def tos_by_source_port(lab: Lab, host: str, probes: int, timeout_s: float = 10) -> dict[int, Counter[int]]:
    """TOS octets of the next `probes` probe packets that leave `host`, by UDP source port.

    AssertionError when fewer come in time.
    """
    found: dict[int, Counter[int]] = defaultdict(Counter)
    seen = 0
    patience = Patience(timeout_s)
    with lab.socket(host, socket.SOCK_DGRAM, socket.AF_PACKET, socket.htons(ETH_P_ALL)) as tap:
        tap.settimeout(60)
        while seen < probes:
            packet, address = tap.recvfrom(2000)
            assert patience.left(), f"{seen} probes of {probes} in {timeout_s:g} s"
            udp = udp_of(packet)
            if address[2] != socket.PACKET_OUTGOING or udp is None:
                continue
            tos, source_port, payload = udp
            if payload.startswith(MAGIC) and len(payload) == PACKET_BYTES:
                found[source_port][tos] += 1
                seen += 1
    return found


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_probes_leave_in_the_class_that_is_set(make_lab, family):
    """`probe.dscp` is on every packet of every source port of the sweep, over IPv4 and IPv6; the ECN bits are 0."""
    lab = make_lab(hosts=2, rails=1)
    fleet = MeshFleet(lab, {"dscp": DSCP})
    if family == "IPv6":
        document = yaml.safe_load(fleet.membership.read_text())
        addresses = {nic.address: nic.address6 for host in lab.hosts for nic in host.nics}
        for host in document["hosts"]:
            for nic in host["nics"]:
                nic["address"] = addresses[nic["address"]]
        fleet.membership.write_text(yaml.safe_dump(document))
    fleet.start().wait_green()
    # 150 packets a second, every tenth train on a next source port: 450 go round all eight.
    tos = tos_by_source_port(lab, "h0", 450)
    assert sorted(tos) == list(range(PORT, PORT + 8))
    assert sum(tos.values(), Counter()) == {DSCP << 2: 450}


def test_probes_leave_by_their_own_nic(make_lab):
    """A wrong route leads to the peer over the other rail: bound to its device, a probe does not follow it."""
    lab = make_lab(hosts=2, rails=2)
    fleet = MeshFleet(lab, {"cross_peers": 0})
    fleet.start().wait_green()
    host = lab.host("h0")
    peer = f"{lab.host('h1').nic('rail0').address}/32"
    host.run(["ip", "route", "add", peer, "dev", "rail1", "table", "77"])
    host.run(["ip", "rule", "add", "to", peer, "table", "77", "priority", "1"])  # before the lab's own rules
    fleet.wait_probing(3)
    for name in ("h0", "h1"):
        assert set(fleet.scrape(name).values("fabricpulse_edge_up")) == {1.0}
    # The route is as wrong as that: without the binding the edge is lost.
    fleet.daemons["h0"].stop()
    fleet.probe["bind_device"] = False
    fleet.start("h0")

    def only_the_wrong_route_is_lost():
        scrape = fleet.scrape("h1")
        return [scrape.value("fabricpulse_edge_up", device=rail) for rail in ("rail0", "rail1")] == [0, 1]

    wait_for(only_the_wrong_route_is_lost, 10, "the edge is lost")
