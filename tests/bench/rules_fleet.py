"""A fleet on paper: the series that rules and dashboards read, for any number of hosts, with or without faults.

Each host is one target with what its mesh, NIC, qp and clock daemons say, labelled as those label it. A page is text
whose counters are placeholders: a thousand hosts are rendered in seconds.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from tests.fixtures.loopback_http import LoopbackServer, Reply, Request

RAILS = 8
PEERS = 4
_OWD_BUCKETS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1)
_RATES = (1, 3, 10, 50, 1000, 2_000_000, 3_000_000_000, 30_000_000_000)
_FLAP_S = 60


@dataclass(frozen=True)
class Faults:
    """What is wrong: a NIC gone, one that flaps, a rail whose delay is high, a lossy NIC, a slow flow, a wide clock,
    PCIe below its width and a lane out of service. With fewer than three hosts some fall on one host.
    """

    gone: tuple[int, int] = (7, 1)
    flapping: tuple[int, int] = (3, 2)
    slow_rail: int = 6
    lossy: tuple[int, int] = (5, 0)
    slow_flow: tuple[int, int] = (4, 3)
    wide_clock: int = 2
    narrow_pcie: tuple[int, int] = (9, 7)


class PaperFleet:
    """hosts : how many, each with `RAILS` NICs. faults : None for a fleet that is well."""

    def __init__(self, hosts: int, faults: Faults | None = None) -> None:
        self.names = [f"gpu-{number:04d}" for number in range(hosts)]
        self._faults = faults
        self._pages: dict[str, str] = {}

    def page(self, name: str, seconds: float) -> bytes:
        """What host `name` says when the fleet has run for so long."""
        text = self._pages.get(name)
        if text is None:
            text = self._pages[name] = "\n".join(self._host(self.names.index(name))) + "\n"
        for rate in _RATES:
            text = text.replace(f"@{rate}@", str(int(rate * seconds)))
        flaps = int(seconds // _FLAP_S)
        return text.replace("@up@", str(int(seconds % _FLAP_S > 6))).replace("@flaps@", str(flaps)).encode()

    def _has(self, fault: str, host: int, rail: int) -> bool:
        if self._faults is None:
            return False
        at, on = cast("tuple[int, int]", getattr(self._faults, fault))
        return at % len(self.names) == host and on == rail

    def _host(self, host: int) -> Iterator[str]:
        wide = self._faults is not None and self._faults.wide_clock % len(self.names) == host
        for component in ("mesh", "nic", "qp", "clocksync"):
            yield f'fabricpulse_build_info{{daemon="{component}",version="1"}} 1'
        yield "fabricpulse_mesh_member 1"
        yield "fabricpulse_clock_synchronized 1"
        yield f"fabricpulse_clock_error_bound_seconds {0.002 if wide else 4e-6}"
        yield f"fabricpulse_clock_offset_seconds {(host % 21 - 10) * 1e-5}"
        yield "fabricpulse_clock_coordinator_up 1"
        yield "fabricpulse_remediation_agent_connected 1"
        for rail in range(RAILS):
            yield from self._nic(host, rail)
            yield from self._hardware(host, rail)
            for step in range(1, PEERS + 1):
                if step < len(self.names):
                    yield from self._edge(host, rail, (host + step) % len(self.names))
            yield from self._flow(host, rail)
        collective = 'workload="42",collective="AllReduce"'
        yield f"fabricpulse_collective_bandwidth_bytes_per_second{{{collective}}} 30000000000"
        yield f"fabricpulse_collective_bytes_total{{{collective}}} @30000000000@"
        yield f"fabricpulse_collective_operations_total{{{collective}}} @10@"

    def _nic(self, host: int, rail: int) -> Iterator[str]:
        gone, flapping = self._has("gone", host, rail), self._has("flapping", host, rail)
        slow = self._faults is not None and self._faults.slow_rail == rail
        nic = f'device="rail{rail}",network="rail{rail}"'
        yield f"fabricpulse_nic_connected{{{nic}}} {'@up@' if flapping else int(not gone)}"
        yield f"fabricpulse_nic_disconnects_total{{{nic}}} {'@flaps@' if flapping else int(gone)}"
        yield from _histogram("fabricpulse_probe_owd_seconds", nic, 5e-3 if slow else 5e-5, 50)

    def _edge(self, host: int, rail: int, peer: int) -> Iterator[str]:
        slow = self._faults is not None and self._faults.slow_rail == rail
        lossy = self._has("lossy", host, rail)
        gone = self._has("gone", host, rail) or self._has("gone", peer, rail)
        edge = f'device="rail{rail}",peer="{self.names[peer]}",peer_device="rail{rail}"'
        yield f"fabricpulse_edge_up{{{edge}}} {int(not gone)}"
        yield f"fabricpulse_edge_probes_received_total{{{edge}}} {0 if gone else '@1000@'}"
        yield f"fabricpulse_edge_probes_lost_total{{{edge}}} {'@10@' if lossy else '@1000@' if gone else 0}"
        if gone:
            evidence = "own_nic_disconnected" if self._has("gone", host, rail) else "peer_nic_silent"
            yield f'fabricpulse_edge_evidence{{{edge},evidence="{evidence}"}} 1'
        yield f"fabricpulse_edge_latency_elevated{{{edge}}} {int(slow)}"
        yield f"fabricpulse_edge_paths_down{{{edge}}} 0"
        if lossy:  # no sample while no path loses more than a healthy one does
            yield f"fabricpulse_edge_worst_path_loss_ratio{{{edge}}} 0.01"
        for quantile, factor in (("0.5", 1.0), ("0.99", 1.4), ("1", 2.0)):
            delay = (5e-3 if slow else 4.5e-5) * factor
            yield f'fabricpulse_edge_owd_seconds{{{edge},quantile="{quantile}"}} {delay:g}'

    def _hardware(self, host: int, rail: int) -> Iterator[str]:
        narrow = self._has("narrow_pcie", host, rail)
        device = f'device="rail{rail}",rdma_device="mlx5_{rail}",port="1"'
        yield f"fabricpulse_nic_port_up{{{device}}} {int(not self._has('gone', host, rail))}"
        for name in ("port_down_transitions", "ecn_marked_packets_received", "cnp_packets_handled"):
            count = "@flaps@" if self._has("flapping", host, rail) else 0
            yield f"fabricpulse_nic_{name}_total{{{device}}} {count}"
        for name in ("received_bytes", "transmitted_bytes"):
            yield f"fabricpulse_nic_{name}_total{{{device}}} @30000000000@"
        for way in ("received", "transmitted"):
            yield f'fabricpulse_nic_link_{way}_bytes_total{{device="rail{rail}"}} @1000@'
        yield f"fabricpulse_nic_received_packets_total{{{device}}} @2000000@"
        for name in ("symbol_errors", "link_downed", "transport_retries_exceeded", "rnr_retries_exceeded"):
            yield f"fabricpulse_nic_{name}_total{{{device}}} 0"
        yield f"fabricpulse_nic_nccl_gid_index{{{device}}} 3"
        pcie = f'device="rail{rail}",pci_address="0000:{rail:02x}:00.0"'
        yield f"fabricpulse_nic_present{{{pcie}}} 1"
        for name, value in (("width_lanes", 16), ("transfers_per_second", 32e9)):
            now = value / 2 if narrow and name == "width_lanes" else value
            yield f"fabricpulse_nic_pcie_link_{name}{{{pcie}}} {now:g}"
            yield f"fabricpulse_nic_pcie_link_{name}_max{{{pcie}}} {value:g}"

    def _flow(self, host: int, rail: int) -> Iterator[str]:
        slow = self._has("slow_flow", host, rail)
        peer = self.names[(host + 1) % len(self.names)]
        lane = f'workload="42",device="rail{rail}"'
        yield f"fabricpulse_lane_state{{{lane}}} {int(not self._has('gone', host, rail))}"
        yield f'fabricpulse_lanes{{{lane},state="up"}} 2'
        yield f"fabricpulse_lane_failovers_total{{{lane}}} 0"
        flow = f'{lane},peer="{peer}",peer_device="rail{rail}"'
        yield f"fabricpulse_qp_sent_bytes_total{{{flow}}} {'@2000000@' if slow else '@3000000000@'}"
        yield f"fabricpulse_qp_ecn_marked_total{{{flow}}} {'@50@' if slow else 0}"
        yield f"fabricpulse_qp_retransmits_total{{{flow}}} 0"
        # The other end of the flow of the host before: the receiver counts what has come and measures its delay.
        before = (host - 1) % len(self.names)
        slow = self._has("slow_flow", before, rail)
        flow = f'{lane},peer="{self.names[before]}",peer_device="rail{rail}"'
        yield f"fabricpulse_qp_received_bytes_total{{{flow}}} {'@2000000@' if slow else '@3000000000@'}"
        yield from _histogram("fabricpulse_qp_owd_seconds", flow, 5e-3 if slow else 6e-5, 1000)


def _histogram(name: str, labels: str, delay: float, rate: int) -> Iterator[str]:
    """Half of the observations in the bucket of `delay`, the rest below."""
    for bound in _OWD_BUCKETS:
        share = f"@{rate}@" if bound >= delay else "0"
        yield f'{name}_bucket{{{labels},le="{bound:g}"}} {share}'
    yield f'{name}_bucket{{{labels},le="+Inf"}} @{rate}@'
    yield f"{name}_count{{{labels}}} @{rate}@"
    yield f"{name}_sum{{{labels}}} 0"


def serve(fleet: PaperFleet) -> LoopbackServer:
    """Serves a fleet over HTTP: /HOST is a host's page."""
    began = time.monotonic()

    def page(request: Request) -> Reply:
        body = fleet.page(request.path.strip("/"), time.monotonic() - began)
        return Reply(body, content_type="text/plain; version=0.0.4")

    return LoopbackServer(page)
