"""The fleet as others read it: membership, targets for Prometheus (http_sd), status of the clocks."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.coordinator.members import Member
from fabricpulse.clocksync.coordinator.served_membership import served_membership
from fabricpulse.core.fleet.daemons import DAEMONS, HOST
from fabricpulse.core.fleet.membership import Host, Membership, Nic
from fabricpulse.core.log import get_logger
from fabricpulse.core.web.urls import host_and_port, join_host_port

log = get_logger(__name__)

# What is left out of the membership is named up to so many.
_LEFT_OUT = 5
# Daemons of a host that http_sd may list, by the name asked for.
SD_PORTS = {
    name.removesuffix("-sidecar"): daemon.port for name, daemon in DAEMONS.items() if daemon.role == HOST
}


@dataclass(frozen=True)
class _Document:
    """The membership as it is served. generation, static : what it was made of. tag : names the content."""

    generation: int
    static: Membership
    body: bytes
    tag: str


class FleetApi:
    """Read-only documents of a coordinator. static : the hosts of the membership file, which a reload may replace."""

    def __init__(self, fleet: Fleet, static: Membership, leaf_of: Mapping[str, str]) -> None:
        """leaf_of : by host/device, as the topology has it."""
        self._fleet = fleet
        self.static = static
        self._leaf_of = leaf_of
        self._started_s = time.monotonic()
        self._left_out: tuple[str, ...] = ()
        self._listed: tuple[Membership, frozenset[str]] = static, frozenset(h.name for h in static.hosts)
        self._document: _Document | None = None

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Where meshes, Prometheus and people ask."""
        router.add_get("/api/v1/membership", self._membership)
        router.add_get("/api/v1/http_sd", self._http_sd)
        router.add_get("/api/v1/clocksync/status", self._status)

    def lists(self, host: str) -> bool:
        """Whether the membership file has a host of this name."""
        if self._listed[0] is not self.static:
            self._listed = self.static, frozenset(listed.name for listed in self.static.hosts)
        return host in self._listed[1]

    def network_of(self, leaf: str) -> str:
        """Of the NICs below a leaf; "" if they are of several, or none is known."""
        networks = {nic.network for host in self.membership().hosts for nic in host.nics if nic.leaf == leaf}
        return networks.pop() if len(networks) == 1 else ""

    def membership(self) -> Membership:
        """The file's hosts, and those that have joined by lease."""
        latest = sorted(self._fleet.roster.members.values(), key=lambda member: -member.moved)
        membership, left_out = served_membership(
            self.static,
            (
                Host(m.name, tuple(Nic(n.device, n.address, n.network) for n in m.info.nics))
                for m in latest
                if m.info is not None and m.info.nics
            ),
            self._leaf_of,
        )
        if left_out and left_out != self._left_out:
            log.warning(
                "left out of the membership, or every mesh would refuse it: was a host renamed? Take the old name out "
                "of the membership file, give each NIC an address of its own",
                what=left_out[:_LEFT_OUT],
                all=len(left_out),
            )
        self._left_out = left_out
        return membership

    async def _membership(self, request: web.Request) -> web.Response:
        """Every mesh of the fleet asks every two seconds: made once for each change, sent to those who lack it."""
        document = self._document
        if (
            document is None
            or document.generation != self._fleet.roster.generation
            or document.static is not self.static
        ):
            # JSON is YAML: the document can be saved and used as a membership file.
            body = msgspec.json.format(msgspec.json.encode(self.membership()), indent=1) + b"\n"
            # Of the content: a coordinator that was restarted, or another one, need not send it again.
            tag = hashlib.sha256(body).hexdigest()[:32]
            document = self._document = _Document(self._fleet.roster.generation, self.static, body, tag)
        if any(tag.value in (document.tag, "*") for tag in request.if_none_match or ()):
            response = web.Response(status=304)
        else:
            response = web.Response(body=document.body, content_type="application/json")
        response.etag = document.tag
        return response

    async def _http_sd(self, request: web.Request) -> web.Response:
        """Targets for Prometheus: one group a host that has a lease; `?exporter=` one of SD_PORTS, or `?port=`. A
        sidecar is listed with the port of its own URL; one that listens on a wildcard and has no
        advertise_url is taken to listen on the usual port.
        """
        if (left := self._started_s + self._fleet.lease_s - time.monotonic()) > 0:
            # An empty list would make Prometheus drop what it has; after an error it keeps that.
            text = f"started just now: hosts that live have reported in {left:.0f} s\n"
            return web.Response(status=503, text=text, headers={"Retry-After": f"{left:.0f}"})
        exporter = request.query.get("exporter", "clocksync")
        asked = request.query.get("port", "")
        if asked and not (asked.isascii() and asked.isdigit() and 1 <= int(asked) <= 65535):
            return web.Response(status=400, text=f"port {asked!r} does not lie within 1 and 65535\n")
        port = int(asked) if asked else SD_PORTS.get(exporter)
        if port is None:
            known = ", ".join(SD_PORTS)
            return web.Response(
                status=400, text=f"exporter {exporter!r} is not known; one of {known}, or ?port=\n"
            )
        own_ports = exporter == "clocksync" and not asked
        groups = [
            {"targets": [_target(member, port, own_ports)], "labels": {"fabricpulse_host": member.name}}
            for member in sorted(self._fleet.roster.members.values(), key=lambda m: m.name)
        ]
        return web.json_response(groups)

    async def _status(self, _: web.Request) -> web.Response:
        now = time.monotonic()
        fleet = self._fleet
        members = [
            {
                "host": m.name,
                "age_s": round(now - m.received_s, 3),
                "bound_ns": line.bound_ns if line is not None else None,
                "estimated_error_ns": m.estimated_error_ns or None,
                "correction_ns": line.correction_ns if line is not None else None,
                "rate_ppb": line.rate_ppt * 1e-3 if line is not None else None,
                "edges": len(m.edges),
                "reported_edges": m.reported_edges,
                "outlier_edges": m.outliers,
                "suspect": m.suspect,
                "nic_bias_ns": {device: round(ns) for device, ns in fleet.nic_bias_ns(m).items()},
            }
            for m in sorted(fleet.roster.members.values(), key=lambda m: m.name)
            for line in [m.line]
        ]
        names = ("device", "peer", "peer_device")
        outliers = [
            {"host": host, **{name: getattr(edge, name) for name in names}, "residual_ns": round(ns)}
            for host, edge, ns in fleet.outlier_edges
        ]
        return web.json_response(
            {
                "solves": fleet.solves,
                "root": fleet.root,
                "quorum": not fleet.no_quorum,
                "awaited_anchors": list(fleet.awaited),
                "duplicate_names": list(fleet.roster.duplicates),
                "generation": fleet.roster.generation,
                "residual_p50_ns": fleet.residual_p50_ns,
                "held_out_ns": {f"{share:g}": round(ns, 1) for share, ns in fleet.held_out_ns.items()},
                "members": members,
                "outlier_edges": outliers,
            }
        )


def _target(member: Member, port: int, own_port: bool) -> str:
    """What Prometheus scrapes of `member`: its sidecar's address, by name if that is not known, and `port`.

    own_port : take the sidecar's own instead, where it is known.
    """
    try:
        host, listens = host_and_port(member.info.url if member.info is not None else "")
    except ValueError:  # its address is missing, or is no URL (older sidecars)
        return join_host_port(member.name, port)
    return join_host_port(host, listens if own_port else port)
