"""Temporary peers: further edges that the coordinator assigns for a minute, to find out by their delays where a NIC is.

They are probed by an engine of their own on a separate port, so that they do not enter health, loss, alerts, fleet time
or any metric of the standing edges. The engine runs only while there are such edges.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.log import get_logger
from fabricpulse.diagnosis.wire.messages import EdgeName, EvidenceReply, LeastDelay
from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh.config import MeshConfig
from fabricpulse.mesh.engine_settings import temporary_settings
from fabricpulse.mesh.fleet_view import FleetView, Peer
from fabricpulse.mesh.least_delays import LeastDelays
from fabricpulse.mesh.snapshot import parse_snapshot

log = get_logger(__name__)

_DECODER = msgspec.msgpack.Decoder(tuple[EdgeName, ...])
# Of a coordinator, at most; it asks again with each report.
_LONGEST_LEASE_S = 60.0
WINDOW_S = 2.0


@dataclass(frozen=True)
class Lease:
    """What is assigned to this host. period_s : between two reports of delays. until_s : monotonic."""

    round: int = 0
    edges: tuple[EdgeName, ...] = ()
    period_s: float = 0.0
    until_s: float = 0.0


class TemporaryLease:
    """Which edges are assigned now. Pure."""

    def __init__(self) -> None:
        self.lease = Lease()
        self._cancelled = 0  # a round that is not taken up again

    def offered(self, reply: EvidenceReply, now_s: float) -> None:
        """A reply of the coordinator: it begins, renews or ends a lease. Raises ValueError for nonsense."""
        if not reply.temporary or reply.round == self._cancelled:
            self.lease = Lease()
            return
        if not (reply.lease_s > 0 and 1 <= reply.period_s <= 3600):
            raise ValueError("a lease of temporary peers has no such length or period")
        until_s = now_s + min(reply.lease_s, _LONGEST_LEASE_S)
        self.lease = Lease(reply.round, _DECODER.decode(reply.temporary), reply.period_s, until_s)

    def cancel(self) -> None:
        """The membership has changed: the round is over for this host."""
        self._cancelled, self.lease = self.lease.round or self._cancelled, Lease()

    def at(self, now_s: float) -> Lease:
        """What holds: nothing once the coordinator has been silent for too long."""
        if self.lease.edges and now_s >= self.lease.until_s:
            self.lease = Lease()
        return self.lease


def peers_of_lease(
    edges: Sequence[EdgeName], view: FleetView, membership: Membership, most: int
) -> tuple[list[EdgeName], list[Peer]]:
    """Those edges that can be probed, at most `most` of a NIC: from NICs of this host to members with an address of the
    same family. Pure.
    """
    index = {nic.device: number for number, nic in enumerate(view.nics)}
    wanted = {edge.peer for edge in edges}
    hosts = {host.name: host for host in membership.hosts if host.name in wanted}
    found: list[EdgeName] = []
    peers: list[Peer] = []
    count = dict.fromkeys(index, 0)
    for edge in dict.fromkeys(edges):
        nics = hosts[edge.peer].nics if edge.peer in hosts and edge.peer != view.host else ()
        far = next((nic for nic in nics if nic.device == edge.peer_device), None)
        if far is None or edge.device not in index or count[edge.device] >= most:
            continue
        number = index[edge.device]
        if (":" in far.address) != (":" in view.nics[number].address):
            continue
        count[edge.device] += 1
        found.append(edge)
        peers.append(Peer(number, edge.peer, edge.peer_device, far.network, far.address))
    return found, peers


class TemporaryPeers:
    """Of one daemon. state : the view and the membership in force, None before there is one. keys : of the fleet."""

    def __init__(
        self,
        config: MeshConfig,
        state: Callable[[], tuple[FleetView, Membership | None]],
        keys: Callable[[], list[bytes]],
    ) -> None:
        self._config, self._state, self._keys = config, state, keys
        self._lease = TemporaryLease()
        self._engine: native.ProbeEngine | None = None
        self._probed = Lease()
        self._edges: tuple[EdgeName, ...] = ()
        self._delays = LeastDelays(0, WINDOW_S)
        self._signed: list[bytes] = []

    @property
    def probed(self) -> int:
        """Edges that are probed now."""
        return len(self._edges) if self._engine is not None else 0

    def offered(self, reply: EvidenceReply, now_s: float) -> None:
        """See TemporaryLease; nonsense ends the lease."""
        try:
            self._lease.offered(reply, now_s)
        except (ValueError, msgspec.MsgspecError) as error:
            log.error("the coordinator assigns temporary peers that cannot be", error=str(error))
            self._lease.cancel()

    def cancel(self) -> None:
        """See TemporaryLease."""
        self._lease.cancel()

    async def tick(self, now_s: float) -> None:
        """Probes what is assigned now. To be called each second."""
        lease = self._lease.at(now_s)
        if (lease.round, lease.edges) != (self._probed.round, self._probed.edges):
            await self.stop()
            self._start(lease)
        if self._engine is None:
            return
        if (keys := self._keys()) != self._signed:
            self._signed = keys
            self._engine.set_keys(keys)
        self._delays.add(parse_snapshot(self._engine.snapshot()), now_s)

    def due(self, now_s: float) -> tuple[tuple[EdgeName, ...], list[LeastDelay]]:
        """What to report now of which edges: nothing before the period is over."""
        delays = self._delays.due(now_s)
        return (self._edges, delays) if delays else ((), [])

    def taken(self, now_s: float) -> None:
        """The coordinator has it."""
        self._delays.taken(now_s)

    def _start(self, lease: Lease) -> None:
        self._probed = lease
        view, membership = self._state()
        if not lease.edges or membership is None:
            return
        edges, peers = peers_of_lease(lease.edges, view, membership, self._config.evidence.temporary_peers)
        if not peers:
            return
        self._signed = self._keys()
        try:
            engine = native.ProbeEngine(temporary_settings(self._config, view.host))
            engine.set_keys(self._signed)
            engine.configure(
                [(nic.device, nic.network, nic.address) for nic in view.nics],
                [(p.nic, p.host, p.device, p.network, p.address) for p in peers],
            )
            engine.start()
        except (OSError, ValueError) as error:
            log.error("temporary peers cannot be probed", error=str(error))
            return
        self._engine, self._edges = engine, tuple(edges)
        self._delays = LeastDelays(lease.period_s, WINDOW_S)
        log.info("temporary peers", round=lease.round, edges=len(edges), assigned=len(lease.edges))

    async def stop(self) -> None:
        """Probes no temporary peer."""
        if self._engine is not None:
            engine, self._engine, self._edges = self._engine, None, ()
            self._delays = LeastDelays(0, WINDOW_S)
            await asyncio.to_thread(engine.stop)
