"""The paths of queue pairs, as the mesh traces them from telemetry, beside those that their packets take."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.rdma.routed_pair import HOSTS, RoutedPair

from fabricpulse.core.fleet.membership import Host, Membership, Nic
from fabricpulse.lab import syscalls
from fabricpulse.lab.rdma.fleet import RdmaFleet, run
from fabricpulse.mesh.config import Probe
from fabricpulse.mesh.fleet_view import FleetView
from fabricpulse.mesh.rdma_plane.hop_probe import MOST_HOPS, ROCE_PORT, Found, Way, traced
from fabricpulse.mesh.rdma_plane.queue_pairs import QueuePairSource
from fabricpulse.mesh.rdma_plane.tracing import QueuePairTracing
from fabricpulse.verbs.locate import preload_library

PAIRS = 8
_ETH_P_IP, _MOST_PACKETS = 0x0800, 20_000
T = TypeVar("T")


def on(host: str, work: Callable[[], T]) -> T:
    """Does it in a host's network."""
    found: list[T] = []

    def there() -> None:
        with Path(f"/run/netns/{host}").open() as namespace:
            syscalls.setns(namespace.fileno(), syscalls.CLONE_NEWNET)
        found.append(work())

    thread = threading.Thread(target=there)
    thread.start()
    thread.join(120)
    [result] = found
    return result


def check_paths(routed: RoutedPair, folder: Path) -> None:
    """AssertionError where a traced path is not the one that packets take, a trace disturbs a queue pair, or a source
    port that a socket has is not given up.
    """
    arguments = [word for host in HOSTS for word in (routed.device(host), routed.address(host))]
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.rdma.paths_program", *arguments, str(PAIRS)],
        env={**os.environ, "LD_PRELOAD": str(preload_library()), "FABRICPULSE_RUN_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdin is not None
        assert program.stdout is not None
        spines = {int(number): spine for number, spine in json.loads(program.stdout.readline()).items()}
        hosts = tuple(
            Host(name=host, nics=(Nic(device=f"eth-{host}", address=routed.address(host), network="rail0"),))
            for host in HOSTS
        )
        view = FleetView("r0", hosts[0].nics, (), len(hosts))
        flows = QueuePairSource(folder / "plugin").flows(view, Membership(hosts))
        assert sorted(n for carried in flows.values() for n in carried.numbers) == sorted(spines)
        assert {flow.traffic_class for flow in flows} == {32}
        ways: list[Way] = []

        def trace(wanted: list[Way]) -> list[Found]:
            ways.extend(wanted)
            return on("r0", lambda: traced(wanted))

        tracing = QueuePairTracing(Probe(), lambda: (view, None), trace)
        tracing.follow(flows)
        for second in range(len(flows)):
            tracing.step(float(second))
        assert {
            number: tracing.known.get(flow) for flow, carried in flows.items() for number in carried.numbers
        } == {number: routed.way(spine) for number, spine in spines.items()}
        assert len(set(spines.values())) > 1

        # What comes through nevertheless is not taken for a packet of a queue pair, and disturbs none.
        def counters() -> list[str]:
            words = run("ip", "netns", "exec", "r1", "rdma", "statistic", "show", "link", "rxe-r1/1").split()
            return words[words.index("rcvd_pkts") :]

        before = counters()
        assert all(one.sent == MOST_HOPS for one in trace([replace(way, hops=MOST_HOPS) for way in ways]))
        assert counters() == before
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "sent\n"
        program.stdin.close()
    assert program.returncode == 0


def check_lane_ports(fleet: RdmaFleet, folder: Path) -> None:
    """AssertionError where a lane of the first host sends nothing from its port. folder : run directory of its rank."""
    hosts = tuple(
        Host(
            name=host,
            nics=tuple(
                Nic(device=f"rail{rail}", address=fleet.address(host, rail), network=f"rail{rail}")
                for rail in range(fleet.rails)
            ),
        )
        for host in ("h0", "h1")
    )
    view = FleetView("h0", hosts[0].nics, (), len(hosts))

    def ports(device: str) -> set[int]:
        flows = QueuePairSource(folder / "plugin").flows(view, Membership(hosts))
        return {flow.port for flow in flows if flow.device == device}

    for nic in hosts[0].nics:
        wanted = ports(nic.device)
        seen = on("h1", partial(_ports_on_wire, nic.device, wanted))
        # On a busy machine a lane may take another path meanwhile: its former port is on the wire no more.
        lasting = wanted & ports(nic.device)
        assert lasting, "each lane has taken another path"
        assert lasting <= seen


def _ports_on_wire(device: str, wanted: set[int]) -> set[int]:
    """Source ports of packets to the port of RoCE that arrive, until all that are wanted have, or enough packets."""
    found: set[int] = set()
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP)) as tap:
        tap.bind((device, _ETH_P_IP))
        tap.settimeout(30)
        for _ in range(_MOST_PACKETS):
            packet, address = tap.recvfrom(64)
            port, to = struct.unpack_from("!HH", packet, 20)
            if to == ROCE_PORT and address[2] != socket.PACKET_OUTGOING:
                found.add(port)
            if wanted <= found:
                break
    return found
