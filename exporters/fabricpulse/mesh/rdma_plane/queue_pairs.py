"""Which queue pairs the jobs of this host have, and what their packets are made of. Pure but for `QueuePairSource`.

The telemetry of jobs is anybody's: any local user may write it. What it names is therefore taken only where it makes a
packet that a job could send: from a NIC of this host that takes part in the mesh to one of the fleet, from a source
port of RoCE v2. A user has so many source ports at most, and users take turns where there are more than are traced.
"""

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from fabricpulse.core.fleet.membership import Host, Membership
from fabricpulse.core.output import printable
from fabricpulse.diagnosis.wire.queue_pairs import (
    LEAST_PORT,
    LONGEST_WORKLOAD,
    MOST_NUMBERS,
    MOST_PORT,
    MOST_QUEUE_PAIR_FLOWS,
    MOST_WORKLOADS,
    QueuePairFlow,
)
from fabricpulse.mesh.fleet_view import FleetView
from fabricpulse.plugin_ipc.telemetry import LaneState, Table, TelemetrySnapshot, text
from fabricpulse.plugin_ipc.telemetry_folder import TelemetryFolder, VerbsFolder, monotonic_s
from fabricpulse.plugin_ipc.verbs import VerbsSnapshot, peer_name

MOST_OF_A_USER = MOST_QUEUE_PAIR_FLOWS // 2
# Of one process, looked at: more than all lanes of a job of 1,000 ranks.
_MOST_RECORDS = 4096
_VERBS_LANE, _SENDS = 2, 1  # enum fp_lane_transport; of a lane's direction
_CONNECTED_TYPES = (2, 3)  # enum ibv_qp_type: reliable, unreliable connected
_READY_TO_SEND = 3  # enum ibv_qp_state


@dataclass
class Carried:
    """numbers : own numbers of queue pairs of a flow, some of them. workloads : jobs that they belong to."""

    numbers: list[int] = field(default_factory=list)
    workloads: list[str] = field(default_factory=list)

    def add(self, numbers: Iterable[int], workloads: Iterable[str]) -> None:
        """More of both."""
        for number in numbers:
            if number not in self.numbers and len(self.numbers) < MOST_NUMBERS:
                self.numbers.append(number)
        for workload in workloads:
            name = printable(workload)[:LONGEST_WORKLOAD]
            if name not in self.workloads and len(self.workloads) < MOST_WORKLOADS:
                self.workloads.append(name)


class FleetNics:
    """NICs of the fleet by name and by address, those of this host apart."""

    def __init__(self, view: FleetView, membership: Membership) -> None:
        self.own = {nic.device: plain(nic.address) for nic in view.nics}
        self._alike: dict[str, list[Host]] = defaultdict(list)
        self._by_address: dict[str, tuple[str, str]] = {}
        for host in membership.hosts:
            self._alike[_short(host.name)].append(host)
            if host.name != view.host:
                self._by_address |= {plain(nic.address): (host.name, nic.device) for nic in host.nics}

    def named(self, host: str, device: str) -> tuple[str, str] | None:
        """Name and address of a NIC of another host, None where the fleet has none of this name."""
        alike = self._alike.get(_short(host))
        found = Membership(tuple(alike)).host(host) if alike else None
        nics = found.nics if found is not None else ()
        address = next((plain(nic.address) for nic in nics if nic.device == device), "")
        return (found.name, address) if found is not None and address in self._by_address else None

    def at(self, address: str) -> tuple[str, str] | None:
        """Host and device of an address of another host."""
        return self._by_address.get(address)


def plain(address: str) -> str:
    """An address as it is written elsewhere, too. Raises ValueError."""
    return str(ipaddress.ip_address(address))


def _short(name: str) -> str:
    return name.lower().partition(".")[0]


def of_plugin(snapshot: TelemetrySnapshot, fleet: FleetNics) -> Iterator[tuple[QueuePairFlow, int]]:
    """Flows of lanes that send, with the number of each queue pair. Of these both ends' addresses are taken to be those
    of the membership, as telemetry has names only.
    """
    lanes = snapshot.tables[Table.LANES]
    mine = (lanes["transport"] == _VERBS_LANE) & (lanes["direction"] == _SENDS)
    devices = snapshot.device_names()
    for lane in lanes[mine][:_MOST_RECORDS]:
        near = fleet.own.get(device := devices.get(int(lane["device"]), ""))
        port = int(lane["entropy"])
        if near is None or not LEAST_PORT <= port <= MOST_PORT or not _carries(int(lane["state"])):
            continue
        peer_device = text(lane["peer_device"])
        if (peer := fleet.named(text(lane["peer"]), peer_device)) is not None and _same_family(near, peer[1]):
            flow = QueuePairFlow(device, near, peer[0], peer_device, peer[1], port, 0)
            yield flow, int(lane["queue_pair"]) >> 24 & 0xFFFFFF


def _carries(state: int) -> bool:
    return state in (LaneState.UP, LaneState.SLOW_START)


def of_verbs(snapshot: VerbsSnapshot, fleet: FleetNics) -> Iterator[tuple[QueuePairFlow, int]]:
    """Flows of connected queue pairs that have sent, with the number of each. One whose own address is not that of its
    NIC in the membership is left out: packets would go out from any address that somebody writes.
    """
    pairs = snapshot.queue_pairs
    connected = (
        (pairs["qp_state"] == _READY_TO_SEND)
        & (pairs["source_port"] >= LEAST_PORT)
        & (pairs["last_post_raw_ns"] > 0)
        & ((pairs["type"] == _CONNECTED_TYPES[0]) | (pairs["type"] == _CONNECTED_TYPES[1]))
    )
    for pair in pairs[connected][:_MOST_RECORDS]:
        device = text(pair["netdev"])
        near, far = (peer_name(bytes(pair[gid]), 0) for gid in ("local_gid", "peer_gid"))
        peer = fleet.at(far)
        if peer is None or not near or near != fleet.own.get(device) or not _same_family(near, far):
            continue
        flow = QueuePairFlow(device, near, *peer, far, int(pair["source_port"]), int(pair["traffic_class"]))
        yield flow, int(pair["number"]) & 0xFFFFFF


def _same_family(a: str, b: str) -> bool:
    return (":" in a) == (":" in b)


def flows_of(
    plugin: Iterable[TelemetrySnapshot], verbs: Iterable[VerbsSnapshot], fleet: FleetNics
) -> dict[QueuePairFlow, Carried]:
    """All flows that are traced, MOST_QUEUE_PAIR_FLOWS at most, each user's in turn."""
    found: dict[int, dict[QueuePairFlow, Carried]] = defaultdict(dict)
    given: list[tuple[TelemetrySnapshot | VerbsSnapshot, Iterator[tuple[QueuePairFlow, int]]]]
    given = [*((s, of_plugin(s, fleet)) for s in plugin), *((s, of_verbs(s, fleet)) for s in verbs)]
    for snapshot, flows in given:
        own = found[snapshot.owner]
        for flow, number in flows:
            if flow in own or len(own) < MOST_OF_A_USER:
                own.setdefault(flow, Carried()).add((number,), (snapshot.workload,))
    turns: Iterable[Any] = chain.from_iterable(
        zip_longest(*(own.items() for _, own in sorted(found.items())))
    )
    merged: dict[QueuePairFlow, Carried] = {}
    for flow, carried in filter(None, turns):
        if flow in merged:
            merged[flow].add(carried.numbers, carried.workloads)
        elif len(merged) < MOST_QUEUE_PAIR_FLOWS:
            merged[flow] = carried
    return merged


class _LanesFolder(TelemetryFolder):
    """Files of the plugin of which lanes and devices are read."""

    tables = frozenset((Table.DEVICES, Table.LANES))


class QueuePairSource:
    """Of one daemon: reads the telemetry of all jobs of this host. Blocks for some milliseconds a job."""

    def __init__(self, folder: Path) -> None:
        # The QP exporter removes files of processes that are gone.
        self._plugin = _LanesFolder(folder, float("inf"))
        self._verbs = VerbsFolder(folder, float("inf"))
        self._fleet: tuple[FleetView, Membership, FleetNics] | None = None

    def flows(self, view: FleetView, membership: Membership) -> Mapping[QueuePairFlow, Carried]:
        """As they are now."""
        if self._fleet is None or self._fleet[0] is not view or self._fleet[1] is not membership:
            self._fleet = view, membership, FleetNics(view, membership)
        now_s = monotonic_s()
        return flows_of(self._plugin.poll(now_s)[0], self._verbs.poll(now_s)[0], self._fleet[2])
