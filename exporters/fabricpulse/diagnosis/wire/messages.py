"""What a mesh exporter tells the coordinator of its flows: msgpack over HTTP, little while all is well.

Without numpy: the exporter has no other use for it, and its import costs a fifth of a start.
"""

import re
import struct
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from fabricpulse.core.fleet.membership import MOST_DEVICE_BYTES, MOST_HOST_BYTES
from fabricpulse.diagnosis.wire.queue_pairs import MOST_QUEUE_PAIR_FLOWS, QueuePairPath

PROTOCOL = 1
EVIDENCE_PATH = "/api/v1/evidence"
MOST_EDGES, MOST_PORTS = 4096, 16
MOST_HOPS = 8
# Of an address as text, or of a switch by name; 45 is INET6_ADDRSTRLEN without its end.
_SWITCH = re.compile(r"[0-9A-Za-z.:_-]{0,45}")
# Of a leaf, as a host's LLDP neighbour gives it: a name that a label may have, and no NIC.
LEAF_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
# Of one report: the largest host with all of its flows suffering.
MOST_BYTES = 2 << 20
_FLOW = struct.Struct("<HBBII")
# Bits of a flow's flags.
SLOW, CUT, MAYBE_CUT = 1, 2, 4
DELAY = struct.Struct("<HHi")
# Of a delay, either way: clocks that differ by more are not on one timeline.
LONGEST_NS = 1_000_000_000
MOST_NICS = 256
# Of a host: four of each NIC.
MOST_TEMPORARY = 4 * MOST_NICS
# Packets a second on a port; evidence divides by it.
LEAST_RATE, MOST_RATE = 1e-6, 1e5


class FlowEvidence(NamedTuple):
    """One flow, peer to us, since the last report. edge : its number in the report's edges. port : 0 = main path.
    slow : its delay is above what it used to be. sent, lost : packets. cut : it drops packets above some size.
    maybe_cut : so it seems, by too few packets to be sure.
    """

    edge: int
    port: int
    slow: bool
    sent: int
    lost: int
    cut: bool = False
    maybe_cut: bool = False


class EdgeName(msgspec.Struct, frozen=True, array_like=True):
    """An edge as its host sees it."""

    device: str
    peer: str
    peer_device: str


class FlowPath(msgspec.Struct, frozen=True, array_like=True):
    """The switches that a flow of ours to a peer crosses, in order, by the address that each answers with; "" is one
    that does not answer. edge, port : as in FlowEvidence, but of the other direction.
    """

    edge: int
    port: int
    hops: tuple[str, ...]

    def check(self, edges: int, ports: int) -> None:
        """Raises ValueError for what no exporter sends."""
        if not (0 <= self.edge < edges and 0 <= self.port < ports):
            raise ValueError(f"path {self.edge}:{self.port} does not exist")
        check_hops(self.hops)


def check_hops(hops: tuple[str, ...]) -> None:
    """Raises ValueError for what no exporter sends."""
    if len(hops) > MOST_HOPS:
        raise ValueError(f"a path has more than {MOST_HOPS} hops")
    if not all(map(_SWITCH.fullmatch, hops)):
        raise ValueError("a hop of a path is no address")


class LeastDelay(NamedTuple):
    """The least one-way delay of one edge, peer to us on the main path, since the last report with delays. edge : as in
    FlowEvidence. samples : delays that it is the least of, 65,535 at most. least_ns : signed, in fleet time, with the
    error of both clocks; the sum of both directions is free of it.
    """

    edge: int
    samples: int
    least_ns: int


class HostFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a host says of itself. nics : device and network of each. virtual : it is a virtual machine; None for
    unknown. temporary_peers : of a NIC that it takes at once, 0 for none.
    """

    nics: tuple[tuple[str, str], ...]
    virtual: bool | None = None
    temporary_peers: int = 0


class EvidenceReport(msgspec.Struct, frozen=True, array_like=True):
    """One report. revision : changes with the edges. edges : None where the coordinator knows those of this revision.
    ports : source ports of an edge. main_rate, swept_rate : packets a second on the first and on each other port.
    flows : `pack_flows`. stalled : the host has stalled, or its clock has jumped: what it missed proves nothing.
    paths : that have become known or changed since the last report. delays : `pack_delays`, now and then. facts : come
    with the edges. temporary, temporary_delays : the same of temporary peers, whose edges are reported each time. moved
    : devices that have been disconnected since the last report that was taken, at the start all: their cables may have
    been unplugged. queue_pairs : paths of queue pairs of jobs that have become known, have changed, or are no more;
    with the edges all that are known. leaves : of the host's devices, by LLDP; None where they are as they were,
    or with the edges where there are none.
    """

    protocol: int
    host: str
    revision: int
    ports: int
    main_rate: float
    swept_rate: float
    flows: bytes
    stalled: bool = False
    edges: tuple[EdgeName, ...] | None = None
    paths: tuple[FlowPath, ...] = ()
    delays: bytes = b""
    facts: HostFacts | None = None
    temporary: tuple[EdgeName, ...] = ()
    temporary_delays: bytes = b""
    moved: tuple[str, ...] = ()
    queue_pairs: tuple[QueuePairPath, ...] = ()
    leaves: tuple[tuple[str, str], ...] | None = None

    @property
    def all_leaves(self) -> tuple[tuple[str, str], ...] | None:
        """Those of the host now; None where they are as they were."""
        # An exporter that was started anew does not know what the one before it has reported.
        return () if self.leaves is None and self.edges is not None else self.leaves


def check_queue_pairs(paths: tuple[QueuePairPath, ...]) -> None:
    """Raises ValueError for what no exporter sends."""
    if len(paths) > MOST_QUEUE_PAIR_FLOWS:
        raise ValueError(f"{len(paths)} paths of queue pairs are more than a host has")
    for path in paths:
        path.check()
        check_hops(path.hops)
    _check_names((path.peer for path in paths), (name for p in paths for name in (p.device, p.peer_device)))


def check_edges(report: EvidenceReport) -> None:
    """Raises ValueError for names, edges, ports or rates that no host has."""
    if len(report.temporary) > MOST_TEMPORARY or len(report.moved) > MOST_NICS:
        raise ValueError(f"{len(report.temporary)} temporary peers are more than a host has")
    _check_names((report.host,), report.moved)
    _check_edge_names(report.temporary)
    if report.leaves is not None:
        if len(report.leaves) > MOST_NICS:
            raise ValueError(f"{len(report.leaves)} leaves are more than a host has NICs")
        _check_names((), (device for device, _ in report.leaves))
        if not all(LEAF_NAME.fullmatch(leaf) for _, leaf in report.leaves):
            raise ValueError("a leaf has no name")
    if report.edges is None:
        return
    if len(report.edges) > MOST_EDGES or not 1 <= report.ports <= MOST_PORTS:
        raise ValueError(f"{len(report.edges)} edges of {report.ports} ports are more than a host has")
    _check_edge_names(report.edges)
    if report.facts is not None:
        if len(report.facts.nics) > MOST_NICS:
            raise ValueError(f"{len(report.facts.nics)} NICs are more than a host has")
        _check_names((), (name for nic in report.facts.nics for name in nic))
    main, swept = report.main_rate, report.swept_rate
    if not (LEAST_RATE <= main <= MOST_RATE and (swept == 0 or LEAST_RATE <= swept <= MOST_RATE)):
        raise ValueError(f"rates must lie within {LEAST_RATE} and {MOST_RATE:.0f} packets a second")


def _check_edge_names(edges: Collection[EdgeName]) -> None:
    """Raises ValueError: names are kept for as long as the worker lives."""
    _check_names(
        (edge.peer for edge in edges), (name for edge in edges for name in (edge.device, edge.peer_device))
    )


def _check_names(hosts: Iterable[str], devices: Iterable[str]) -> None:
    """Raises ValueError for longer names than those of a membership."""
    if any(len(host.encode()) > MOST_HOST_BYTES for host in hosts):
        raise ValueError(f"a host name has more than {MOST_HOST_BYTES} bytes")
    if any(len(device.encode()) > MOST_DEVICE_BYTES for device in devices):
        raise ValueError(f"a name of a device or of a network has more than {MOST_DEVICE_BYTES} bytes")


class EvidenceReply(msgspec.Struct, frozen=True, array_like=True):
    """needs_edges : send the edges with the next report, at once. temporary : msgpack of a tuple of EdgeName, edges to
    be probed for lease_s from now on, b"" for none; another reply replaces it. round : another number for other edges.
    period_s : how often their least delays are to be reported. refused_queue_pairs : which of the report's queue_pairs,
    counted from 0, the coordinator does not keep, as it has no room.
    """

    needs_edges: bool
    temporary: bytes = b""
    lease_s: float = 0.0
    round: int = 0
    period_s: float = 0.0
    refused_queue_pairs: tuple[int, ...] = ()


def pack_flows(flows: Iterable[FlowEvidence]) -> bytes:
    """Twelve bytes each; counts are cut at 2^32 - 1. `flow_records.unpack_flows` is the inverse."""
    most = (1 << 32) - 1
    return b"".join(
        _FLOW.pack(
            *(f.edge, f.port, f.slow * SLOW | f.cut * CUT | f.maybe_cut * MAYBE_CUT),
            *(min(f.sent, most), min(f.lost, most)),
        )
        for f in flows
    )


def pack_delays(delays: Iterable[LeastDelay]) -> bytes:
    """Eight bytes each; delays of more than a second, either way, are left out."""
    return b"".join(
        DELAY.pack(d.edge, min(d.samples, 65_535), d.least_ns)
        for d in delays
        if abs(d.least_ns) <= LONGEST_NS
    )
