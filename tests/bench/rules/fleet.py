"""A fleet on paper: every series that a rule reads, for any number of hosts, with or without faults.

Each host has what its mesh, NIC, qp, clock and remediation daemons say by default, a monitor what the coordinator and
the receiver do, labelled as those label it. NICs are mlx5 with one priority for PFC, jobs use queue pairs. A value is a
number, or `@RATE@` for a counter that grows by so much a second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from fabricpulse.core.metrics.common import METRICS_VERSION
from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh.config import Probe
from fabricpulse.mesh.exposition import MOST_HOSTS_WITH_ALL_EDGES

RAILS = 8
PEERS = Probe().peers
# Hosts of one job, which is a ring over all of them on each rail.
JOB_HOSTS = 64
# Counters of a NIC that are 0 while all is well, by what labels they have beside those of the NIC.
_QUIET_COUNTERS = {
    "": (
        "link_crc_errors",
        "phy_crc_errors",
        "phy_pcs_symbol_errors",
        "phy_discards",
        "fec_uncorrectable_blocks",
        "icrc_errors",
        "out_of_buffer_drops",
        "pause_storm_warning_events",
        "pause_storm_error_events",
        "global_pause_received_seconds",
        "pcie_outbound_buffer_overflows",
    ),
    'rdma_device="{rdma}",port="1"': (
        "symbol_errors",
        "link_error_recovery",
        "link_downed",
        "transport_retries_exceeded",
        "rnr_retries_exceeded",
        "rnr_nak_packets_sent",
        "gid_index_moves",
        "transmit_wait_ticks",
    ),
    'priority="3"': (
        "pfc_pause_frames_received",
        "pfc_pause_received_seconds",
        "pfc_pause_transmitted_seconds",
    ),
    'kind="health"': ("kernel_messages",),
}


@dataclass(frozen=True)
class Faults:
    """What is wrong: a NIC gone, one that flaps, a rail whose delay is high, a lossy NIC, a slow flow, a wide clock,
    PCIe below its width and a lane out of service, a process that is stopped. With fewer than three hosts some fall on
    one host.
    """

    gone: tuple[int, int] = (7, 1)
    flapping: tuple[int, int] = (3, 2)
    slow_rail: int = 6
    lossy: tuple[int, int] = (5, 0)
    slow_flow: tuple[int, int] = (4, 3)
    wide_clock: int = 2
    narrow_pcie: tuple[int, int] = (9, 7)
    stopped: tuple[int, int] = (8, 4)


@dataclass(frozen=True)
class Series:
    """labels : as in the text format, without those of the target. value : a number, or `@RATE@`."""

    name: str
    labels: str
    value: str


class PaperFleet:
    """hosts : how many, each with `RAILS` NICs. faults : None for a fleet that is well."""

    def __init__(self, hosts: int, faults: Faults | None = None) -> None:
        self.names = [f"gpu-{number:04d}" for number in range(hosts)]
        self._faults = faults

    def targets(self) -> Iterator[tuple[str, str, list[Series]]]:
        """Job, instance and series of each target."""
        for host, name in enumerate(self.names):
            for job, lines in (
                ("mesh", self._mesh(host)),
                ("nic", self._nic_exporter(host)),
                ("qp", self._qp(host)),
                ("clocksync", self._clocksync(host)),
                ("remediation", _agent()),
            ):
                daemon = "remediation-node" if job == "remediation" else job
                yield f"fabricpulse-{job}", name, [*_common(daemon), *map(_parsed, lines)]
        for job, lines in (("coordinator", _coordinator()), ("remediation", _receiver())):
            yield f"fabricpulse-{job}", "monitor", [*_common(job), *map(_parsed, lines)]

    def _has(self, fault: str, host: int, rail: int) -> bool:
        if self._faults is None:
            return False
        at, on = cast("tuple[int, int]", getattr(self._faults, fault))
        return at % len(self.names) == host and on == rail

    def _mesh(self, host: int) -> Iterator[str]:
        yield "fabricpulse_mesh_member 1"
        yield "fabricpulse_front_end_connected 1"
        yield "fabricpulse_front_end_disconnects_total 0"
        yield 'fabricpulse_alert_push_failures_total{alertmanager="http://monitor:9093",reason="timeout"} 0'
        for rail in range(RAILS):
            gone, flapping = self._has("gone", host, rail), self._has("flapping", host, rail)
            slow = self._faults is not None and self._faults.slow_rail == rail
            # A leaf on each rail of thirty-two hosts.
            nic = f'device="rail{rail}",network="rail{rail}",leaf="leaf-{host // 32}-{rail}"'
            yield f"fabricpulse_nic_connected{{{nic}}} {int(not gone)}"
            yield f"fabricpulse_nic_disconnects_total{{{nic}}} {'@0.0167@' if flapping else int(gone)}"
            if gone:  # of the others there is nothing to say
                yield f"fabricpulse_nic_disconnected{{{nic}}} 1"
            for nth in range(1, 6 if flapping else 2 if gone else 1):
                yield f'fabricpulse_nic_recent_disconnect_age_seconds{{{nic},nth="{nth}"}} {60 * nth - 30}'
            for state in ("up", "down", "unknown"):
                yield f'fabricpulse_nic_state{{{nic},state="{state}"}} {int(state == ("down" if gone else "up"))}'
            for quantile, delay in (("0.5", 5e-3 if slow else 5e-5), ("0.99", 7e-3 if slow else 7e-5)):
                labels = f'device="rail{rail}",network="rail{rail}",quantile="{quantile}"'
                yield f"fabricpulse_probe_recent_owd_seconds{{{labels}}} {delay:g}"
            for step in range(1, PEERS + 1):
                if step < len(self.names):
                    yield from self._edge(host, rail, (host + step) % len(self.names), step)
            for state in ("up", "down", "unknown", "degraded"):
                count = PEERS if state == "up" else 0
                labels = f'device="rail{rail}",network="rail{rail}",state="{state}"'
                yield f"fabricpulse_nic_edges{{{labels}}} {count}"

    def _edge(self, host: int, rail: int, peer: int, nth: int) -> Iterator[str]:
        slow = self._faults is not None and self._faults.slow_rail == rail
        lossy = self._has("lossy", host, rail)
        gone = self._has("gone", host, rail) or self._has("gone", peer, rail)
        edge = f'device="rail{rail}",peer="{self.names[peer]}",peer_device="rail{rail}"'
        yield f"fabricpulse_edge_owd_baseline_seconds{{{edge}}} 4.5e-05"
        exported = lossy or gone or (slow and nth <= native.MOST_SLOW_EDGES)
        if len(self.names) > MOST_HOSTS_WITH_ALL_EDGES and not exported:
            return
        yield f"fabricpulse_edge_up{{{edge}}} {int(not gone)}"
        every = len(self.names) <= MOST_HOSTS_WITH_ALL_EDGES
        if every or lossy or gone:
            yield f"fabricpulse_edge_probes_received_total{{{edge}}} {0 if gone else '@1000@'}"
            yield f"fabricpulse_edge_probes_lost_total{{{edge}}} {'@10@' if lossy else '@1000@' if gone else 0}"
        if gone:
            evidence = "own_nic_disconnected" if self._has("gone", host, rail) else "peer_nic_silent"
            yield f'fabricpulse_edge_evidence{{{edge},evidence="{evidence}"}} 1'
        yield f"fabricpulse_edge_latency_elevated{{{edge}}} {int(slow)}"
        if every:
            yield f"fabricpulse_edge_paths_down{{{edge}}} 0"
        if lossy:  # no sample while no path loses more than a healthy one does
            yield f"fabricpulse_edge_worst_path_loss_ratio{{{edge}}} 0.01"
            yield f"fabricpulse_edge_mtu_black_hole_bytes{{{edge}}} 1500"
        delay = 5e-3 if slow else 4.5e-5
        for quantile, factor in (("0.5", 1.0), ("0.99", 1.4), ("1", 2.0)):
            yield f'fabricpulse_edge_owd_seconds{{{edge},quantile="{quantile}"}} {delay * factor:g}'
        for path, factor in (("best", 1.0), ("worst", 1.3)):
            yield f'fabricpulse_edge_path_owd_seconds{{{edge},path="{path}"}} {delay * factor:g}'

    def _nic_exporter(self, host: int) -> Iterator[str]:
        for collector in ("ethtool", "pci", "rdma", "sysfs", "gid", "kernel_log"):
            yield f'fabricpulse_scrape_collector_success{{collector="{collector}"}} 1'
        yield f"fabricpulse_nic_expected_ports {RAILS}"
        yield f"fabricpulse_nic_expected_ports_up {RAILS}"
        yield "fabricpulse_nic_nccl_gid_index_consistent 1"
        for rail in range(RAILS):
            yield from self._hardware(host, rail)

    def _hardware(self, host: int, rail: int) -> Iterator[str]:
        narrow, flapping = self._has("narrow_pcie", host, rail), self._has("flapping", host, rail)
        alone = f'device="rail{rail}"'
        port = f'{alone},rdma_device="mlx5_{rail}",port="1"'
        yield f"fabricpulse_nic_port_up{{{port}}} {int(not self._has('gone', host, rail))}"
        for nth in range(1, 6 if flapping else 1):
            yield f'fabricpulse_nic_port_recent_down_age_seconds{{{port},nth="{nth}"}} {60 * nth - 30}'
        for name in ("port_down_transitions", "ecn_marked_packets_received", "cnp_packets_handled"):
            yield f"fabricpulse_nic_{name}_total{{{port}}} {'@0.0167@' if flapping else 0}"
        for name in ("received_bytes", "transmitted_bytes"):
            yield f"fabricpulse_nic_{name}_total{{{port}}} @30000000000@"
        for way in ("received", "transmitted"):
            yield f"fabricpulse_nic_link_{way}_bytes_total{{{alone}}} @1000@"
        yield f"fabricpulse_nic_recent_bytes_per_second{{{alone}}} 60000002000"
        yield f"fabricpulse_nic_received_packets_total{{{port}}} @2000000@"
        for priority in range(8):
            yield f'fabricpulse_nic_priority_discards_total{{{alone},priority="{priority}"}} 0'
        for labels, names in _QUIET_COUNTERS.items():
            own = ",".join(filter(None, (alone, labels.format(rdma=f"mlx5_{rail}"))))
            for name in names:
                yield f"fabricpulse_nic_{name}_total{{{own}}} 0"
        if self._has("lossy", host, rail):  # counters that stand still are not reported
            yield f'fabricpulse_nic_recent_increase{{{alone},counter="link_crc_errors"}} 30'
            yield f'fabricpulse_nic_recent_rate{{{alone},counter="link_crc_errors"}} 0.03'
        yield f"fabricpulse_nic_nccl_gid_index{{{port}}} 3"
        for index, kind in enumerate(("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2")):
            yield f'fabricpulse_nic_gid_info{{{port},index="{index}",gid_type="{kind}"}} 1'
        yield f'fabricpulse_nic_nccl_gid_info{{{port},index="3",gid_type="RoCE v2",address_family="ipv4"}} 1'
        for name, value in (
            ("link_mtu_bytes", 9000),
            ("link_speed_bytes_per_second", 50e9),
            ("trust_dscp", 1),
            ("pcie_outbound_stalled_writes_ratio", 0),
        ):
            yield f"fabricpulse_nic_{name}{{{alone}}} {value:g}"
        for priority in range(8):
            yield f'fabricpulse_nic_pfc_enabled{{{alone},priority="{priority}"}} {int(priority == 3)}'
        yield f"fabricpulse_nic_pfc_priorities{{{alone}}} 8"
        pcie = f'{alone},pci_address="0000:{rail:02x}:00.0"'
        yield f'fabricpulse_nic_info{{{pcie},board="MT_0838",firmware="28.39.1002"}} 1'
        yield f"fabricpulse_nic_present{{{pcie}}} 1"
        for name, value in (("width_lanes", 16), ("transfers_per_second", 32e9)):
            now = value / 2 if narrow and name == "width_lanes" else value
            yield f"fabricpulse_nic_pcie_link_{name}{{{pcie}}} {now:g}"
            for limit in ("max", "attainable"):
                yield f"fabricpulse_nic_pcie_link_{name}_{limit}{{{pcie}}} {value:g}"

    def _qp(self, host: int) -> Iterator[str]:
        job, first = 42 + host // JOB_HOSTS, host - host % JOB_HOSTS
        others = [*range(first, min(first + JOB_HOSTS, len(self.names)))]
        after = others[(host - first + 1) % len(others)]
        before = others[(host - first - 1) % len(others)]
        workload = f'workload="{job}"'
        yield f"fabricpulse_qp_processes{{{workload}}} {RAILS}"
        for rail in range(RAILS):
            yield from self._flow(host, rail, workload, before, after)
            rank = (host - first) * RAILS + rail
            own = f'{workload},rank="{rank}"'
            peer = f'peer="{self.names[before]}",peer_rank="{(rank - RAILS) % (len(others) * RAILS)}"'
            process, stopped = f'{own},pid="{1000 + rail}"', self._has("stopped", host, rail)
            yield f"fabricpulse_plugin_heartbeat_age_seconds{{{process}}} {8 if stopped else 0.1}"
            if stopped:
                yield f"fabricpulse_plugin_silent_seconds{{{process}}} 8"
            communicator = f'{workload},communicator="c0ffee",rank="{rank}"'
            yield f"fabricpulse_rank_operations_total{{{communicator}}} @10@"
            yield f"fabricpulse_rank_operations_in_progress{{{communicator}}} 1"
            if stopped:
                yield f"fabricpulse_rank_stalled_seconds{{{communicator}}} 40"
                yield f'fabricpulse_rank_unmoved_operations{{{communicator},state="inside"}} 1000'
            yield f"fabricpulse_request_waited_seconds_total{{{own}}} @0.1@"
            yield f"fabricpulse_request_waited_for_peer_seconds_total{{{own},{peer}}} @0.1@"
            if self._has("slow_flow", host, rail):  # a request that is not old is not there
                yield f'fabricpulse_request_waiting_seconds{{{own},{peer},waits_for="peer_send"}} 1.5'
        collective = f'{workload},collective="AllReduce"'
        yield f"fabricpulse_collective_bandwidth_bytes_per_second{{{collective}}} 30000000000"
        yield f"fabricpulse_collective_bytes_total{{{collective}}} @30000000000@"
        yield f"fabricpulse_collective_operations_total{{{collective}}} @10@"
        yield f"fabricpulse_collective_busy_seconds_total{{{collective}}} @4@"

    def _flow(self, host: int, rail: int, workload: str, before: int, after: int) -> Iterator[str]:
        slow = self._has("slow_flow", host, rail)
        lane = f'{workload},device="rail{rail}"'
        yield f"fabricpulse_lane_state{{{lane}}} {int(not self._has('gone', host, rail))}"
        yield f"fabricpulse_lane_nic_avoided{{{lane}}} 0"
        # States that no lane has are not there.
        yield f'fabricpulse_lanes{{{lane},state="{"down" if self._has("gone", host, rail) else "up"}"}} 2'
        yield f"fabricpulse_lane_failovers_total{{{lane}}} 0"
        flow = f'{lane},peer="{self.names[after]}",peer_device="rail{rail}"'
        yield f"fabricpulse_qp_sent_bytes_total{{{flow}}} {'@2000000@' if slow else '@3000000000@'}"
        if slow:  # which goes over a socket: no verb tells of marks and retransmits
            yield f"fabricpulse_qp_ecn_marked_total{{{flow}}} @50@"
            yield f"fabricpulse_qp_retransmits_total{{{flow}}} @1@"
        # The other end of the flow of the host before: the receiver counts what has come and measures its delay.
        slow = self._has("slow_flow", before, rail)
        flow = f'{lane},peer="{self.names[before]}",peer_device="rail{rail}"'
        yield f"fabricpulse_qp_received_bytes_total{{{flow}}} {'@2000000@' if slow else '@3000000000@'}"
        for quantile, usual in (("0.1", 3e-5), ("0.5", 5e-5), ("0.99", 9e-5)):
            delay = 100 * usual if slow else usual
            yield f'fabricpulse_qp_recent_owd_seconds{{{flow},quantile="{quantile}"}} {delay:g}'

    def _clocksync(self, host: int) -> Iterator[str]:
        wide = self._faults is not None and self._faults.wide_clock % len(self.names) == host
        yield "fabricpulse_clock_synchronized 1"
        yield f"fabricpulse_clock_error_bound_seconds {0.002 if wide else 4e-6}"
        yield f"fabricpulse_clock_offset_seconds {(host % 21 - 10) * 1e-5}"
        yield "fabricpulse_clock_coordinator_up 1"
        yield "fabricpulse_clock_suspect 0"
        for source in ("edges", "causality", "epoch"):
            yield f'fabricpulse_clock_contradictions_total{{source="{source}"}} 0'


def _parsed(line: str) -> Series:
    name, _, value = line.rpartition(" ")
    name, _, labels = name.partition("{")
    return Series(name, labels.removesuffix("}"), value)


def _common(daemon: str) -> Iterator[Series]:
    """What each daemon has, and what Prometheus says of its target."""
    yield Series("up", "", "1")
    yield Series(
        "fabricpulse_build_info", f'daemon="{daemon}",version="1",metrics_version="{METRICS_VERSION}"', "1"
    )
    yield Series("fabricpulse_exporter_dropped_samples", 'family="all"', "0")


def _agent() -> Iterator[str]:
    yield "fabricpulse_remediation_agent_connected 1"


def _coordinator() -> Iterator[str]:
    yield "fabricpulse_clocksync_quorum 1"
    fault = 'what="loss",kind="link",faulty="leaf-0-1",peer="spine-1",leaf="leaf-0-1",network="rail1"'
    yield f"fabricpulse_fault_component{{{fault}}} 0.5"
    cable = 'peer="gpu-0001",peer_device="rail1",reason="wrong_leaf",at="leaf-1-1",expected="leaf-0-1"'
    yield f"fabricpulse_topology_nic_miscabled{{{cable}}} 0"
    yield 'fabricpulse_leaf_paths_missing{leaf="leaf-0-1",network="rail1"} 1'


def _receiver() -> Iterator[str]:
    yield 'fabricpulse_remediation_actions_total{action="nic.avoid",outcome="failed"} 0'
    yield "fabricpulse_remediation_alertmanager_age_seconds 1"
    yield "fabricpulse_remediation_heartbeat_age_seconds 1"
    yield 'fabricpulse_remediation_breaker_tripped{direction="out"} 0'
    yield 'fabricpulse_remediation_deliveries_total{code="401"} 0'
    yield "fabricpulse_remediation_journal_seal 7"
    yield "fabricpulse_remediation_journal_seal_at_start 7"
    yield "fabricpulse_remediation_journal_writable 1"
    yield "fabricpulse_remediation_paused 0"
    yield 'fabricpulse_remediation_rule_stopped{rule="FabricNicFlapping"} 0'
    yield 'fabricpulse_remediation_problem{code="rollback_failed"} 0'
    yield 'fabricpulse_remediation_unauthorized_total{route="agents"} 0'
    yield 'fabricpulse_remediation_reports_refused_total{reason="address"} 0'
