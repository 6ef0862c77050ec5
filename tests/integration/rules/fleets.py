"""Made-up fleets that a real Prometheus scrapes: one HTTP server, a path for each daemon of each host.

A fleet is what its exporters would say of a fault: dead daemons do not answer, peers of dead NICs lose what those do
not send. Series are those that the alerts read, with the labels that the exporters give them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.fixtures.web.loopback_http import LoopbackServer, Reply, Request

from fabricpulse.core.metrics.common import METRICS_VERSION

DAEMONS = ("mesh", "qp", "clocksync", "remediation")
MONITOR = "monitor"
RAILS = ("rail0", "rail1")


@dataclass
class Fleet:
    """State of a fleet. dead_hosts, dead_nics (host, device), dead_coordinator, dead_daemons (host, daemon), small_mtus
    (NICs), suspects (hosts whose clock contradicts the others) : the fault.
    leaves : of NICs, where they are known. dead_leaf : one that the coordinator has located. ticks : scrapes so far.

    A host's NIC n is `rail<n>` on the network of that name; every NIC probes those of the same network on all hosts.
    """

    name: str
    hosts: tuple[str, ...]
    dead_leaf: str = ""
    leaves: dict[tuple[str, str], str] = field(default_factory=dict)
    dead_hosts: set[str] = field(default_factory=set)
    dead_nics: set[tuple[str, str]] = field(default_factory=set)
    dead_coordinator: bool = False
    dead_daemons: set[tuple[str, str]] = field(default_factory=set)
    small_mtus: set[tuple[str, str]] = field(default_factory=set)
    suspects: set[str] = field(default_factory=set)
    lost: dict[tuple[str, ...], int] = field(default_factory=dict)
    received: dict[tuple[str, ...], int] = field(default_factory=dict)

    def page(self, host: str, daemon: str) -> str | None:
        """The exposition of a daemon, None if nobody answers."""
        if host in self.dead_hosts or (host, daemon) in self.dead_daemons:
            return None
        if daemon == "coordinator":
            return None if self.dead_coordinator else "\n".join(self._coordinator()) + "\n"
        if daemon == "receiver":
            return "\n".join(self._receiver()) + "\n"
        lines = [self._build(daemon)]
        lines += {"mesh": self._mesh, "clocksync": self._clock, "qp": self._qp}.get(daemon, self._agent)(host)
        return "\n".join(lines) + "\n"

    def _up(self, host: str, device: str) -> bool:
        return host not in self.dead_hosts and (host, device) not in self.dead_nics

    def _mesh(self, host: str) -> Iterator[str]:
        yield "fabricpulse_mesh_member 1"
        for device in RAILS:
            up = self._up(host, device)
            nic = f'device="{device}",network="{device}",leaf="{self.leaves.get((host, device), "")}"'
            yield f"fabricpulse_nic_connected{{{nic}}} {int(up)}"
            yield f"fabricpulse_nic_disconnects_total{{{nic}}} {int(not up)}"
            yield f"fabricpulse_nic_disconnected{{{nic}}} {int(not up)}"
            yield from self._retries(host, device)
            for peer in self.hosts:
                if peer != host:
                    yield from self._edge(host, device, peer, up)

    def _edge(self, host: str, device: str, peer: str, up: bool) -> Iterator[str]:
        edge = (host, device, peer)
        received = up and self._up(peer, device)
        counts = self.received if received else self.lost
        counts[edge] = counts.get(edge, 0) + 50
        labels = f'device="{device}",peer="{peer}",peer_device="{device}"'
        yield f"fabricpulse_edge_probes_received_total{{{labels}}} {self.received.get(edge, 0)}"
        yield f"fabricpulse_edge_probes_lost_total{{{labels}}} {self.lost.get(edge, 0)}"
        yield f"fabricpulse_edge_latency_elevated{{{labels}}} 0"
        if received and {(host, device), (peer, device)} & self.small_mtus:
            yield f"fabricpulse_edge_mtu_black_hole_bytes{{{labels}}} 1500"
        if not received:
            silent = "peer_host_silent" if peer in self.dead_hosts else "peer_silent"
            evidence = silent if up else "own_nic_disconnected"
            yield f'fabricpulse_edge_evidence{{{labels},evidence="{evidence}"}} 1'

    def _retries(self, host: str, device: str) -> Iterator[str]:
        """Queue pairs to NICs that are dead have used up their retries."""
        if any(not self._up(peer, device) for peer in self.hosts):
            counter = f'device="{device}",counter="transport_retries_exceeded"'
            yield f"fabricpulse_nic_recent_increase{{{counter}}} 3"

    def _clock(self, host: str) -> Iterator[str]:
        up = int(not self.dead_coordinator and MONITOR not in self.dead_hosts)
        yield f"fabricpulse_clock_synchronized {up}"
        yield f"fabricpulse_clock_error_bound_seconds {1e-5 if up else 0.01}"
        yield f"fabricpulse_clock_coordinator_up {up}"
        yield f"fabricpulse_clock_suspect {int(host in self.suspects)}"

    def _qp(self, host: str) -> Iterator[str]:
        for device in RAILS:
            state = int(self._up(host, device) and (host, device) not in self.small_mtus)
            yield f'fabricpulse_lane_state{{workload="7",device="{device}"}} {state}'
        # A ring: who receives from a dead host waits for it, the others for those before them.
        rank = self.hosts.index(host)
        peer_rank = (rank or len(self.hosts)) - 1
        peer = self.hosts[peer_rank]
        if self.dead_hosts & set(self.hosts):
            waits_for = "delivery" if peer in self.dead_hosts else "peer_send"
            request = (
                f'workload="7",rank="{rank}",peer="{peer}",peer_rank="{peer_rank}",waits_for="{waits_for}"'
            )
            yield f"fabricpulse_request_waiting_seconds{{{request}}} 20"

    def _agent(self, _host: str) -> Iterator[str]:
        yield f"fabricpulse_remediation_agent_connected {int(MONITOR not in self.dead_hosts)}"

    def _build(self, daemon: str) -> str:
        return (
            f'fabricpulse_build_info{{daemon="{daemon}",version="1",metrics_version="{METRICS_VERSION}"}} 1'
        )

    def _receiver(self) -> Iterator[str]:
        yield self._build("remediation-receiver")
        yield "fabricpulse_remediation_heartbeat_age_seconds 0.1"

    def _coordinator(self) -> Iterator[str]:
        yield self._build("clocksync-coordinator")
        yield "fabricpulse_clocksync_quorum 1"
        if self.dead_leaf:
            fault = f'what="loss",kind="switch",faulty="{self.dead_leaf}",peer="",leaf="{self.dead_leaf}"'
            yield f'fabricpulse_fault_component{{{fault},network="{RAILS[0]}"}} 1'
        yield f"fabricpulse_clocksync_members {len(self.hosts) - len(self.dead_hosts)}"

    def jobs(self, address: str) -> Iterator[tuple[str, dict[str, object]]]:
        """(job, static_config) of each target."""
        for host in self.hosts:
            for daemon in DAEMONS:
                yield f"fabricpulse-{daemon}", self._target(address, host, daemon)
        yield "fabricpulse-coordinator", self._target(address, MONITOR, "coordinator")
        yield "fabricpulse-receiver", self._target(address, MONITOR, "receiver")

    def _target(self, address: str, host: str, daemon: str) -> dict[str, object]:
        path = f"/{self.name}/{host}/{daemon}"
        return {
            "targets": [address],
            "labels": {"instance": host, "cluster": self.name, "__metrics_path__": path},
        }


def fleet_server(fleets: list[Fleet]) -> LoopbackServer:
    """Serves fleets; a daemon that is dead closes the connection without an answer."""
    by_name = {fleet.name: fleet for fleet in fleets}

    def answer(request: Request) -> Reply | None:
        _, name, host, daemon = request.path.split("?")[0].split("/")
        page = by_name[name].page(host, daemon)
        return None if page is None else Reply(page.encode(), content_type="text/plain; version=0.0.4")

    return LoopbackServer(answer)
