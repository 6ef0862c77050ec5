"""The questions that are put to Prometheus: PromQL by name. An answer's evidence names the query that shows it.

Placeholders: `{job}` matchers of the workload's own series, `{hosts}` of its hosts' series, `{others}` of other jobs',
`{w}` the window of rates, `{e}` the longer one over which events are counted, `{r}` the last part of the window, `{s}`
the step at which samples are looked for.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

_NIC = "instance, device"
_FLOW = "instance, device, peer, peer_device"


@dataclass(frozen=True)
class Query:
    """before : is put for the baseline as well. parts : what answers about some of the hosts each make together, where
    the whole is too long for a backend: a list of all, or their sum, min or max; "" where they make no answer.
    """

    name: str
    text: str
    before: bool = False
    parts: str = "list"


def _increase(metric: str, matchers: str = "{hosts}", by: str = _NIC) -> str:
    return f"sum by ({by}) (increase({metric}{{{matchers}}}[{{e}}]))"


def _rate(metric: str, matchers: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[{{w}}]))"


def _last(metric: str, by: str, matchers: str = "{hosts}", how: str = "max") -> str:
    return f"{how} by ({by}) (last_over_time({metric}{{{matchers}}}[{{w}}]))"


def _share(lost: str, of: str) -> str:
    """Of the probes of each NIC."""
    some, whole = (
        _rate("fabricpulse_nic_probes_total", f'{{hosts}}, event=~"{events}"', _NIC) for events in (lost, of)
    )
    return f"{some} / {whole} > {_LITTLE}"


def _lost_share(lost: str, of: str) -> str:
    """Of the probes of each edge."""
    metric = {
        "lost": "fabricpulse_edge_probes_lost_total",
        "received": "fabricpulse_edge_probes_received_total",
        "outbound_lost": "fabricpulse_edge_outbound_probes_lost_total",
        "sent": "fabricpulse_edge_probes_sent_total",
    }
    some, rest = (f"sum by ({_FLOW}) (increase({metric[what]}{{{{hosts}}}}[{{w}}]))" for what in (lost, of))
    return f"({some} / ({some} + {rest}))" if of == "received" else f"({some} / {rest})"


def _summed(counters: Iterable[str]) -> str:
    """Of each NIC, over those of the counters that it has."""
    each = (
        f'label_replace(rate({counter}{{{{hosts}}}}[{{w}}]), "counter", "{counter}", "", "")'
        for counter in counters
    )
    return f"sum by ({_NIC}) ({' or '.join(each)})"


def _mean(rate: str) -> str:
    """Over those that move, if any do: an exporter keeps what ended processes have counted, and that stands still."""
    return f"avg by (collective) ({rate} > 0) or avg by (collective) ({rate})"


def _delay(q: float) -> str:
    return f"histogram_quantile({q:g}, {_rate('fabricpulse_qp_owd_seconds_bucket', '{job}', _FLOW + ', le')})"


_DROPS = (
    "fabricpulse_nic_out_of_buffer_drops_total",
    "fabricpulse_nic_rnr_nak_packets_sent_total",
    "fabricpulse_nic_phy_discards_total",
    "fabricpulse_nic_priority_discards_total",
    "fabricpulse_nic_pcie_outbound_buffer_overflows_total",
)
_PCIE = "fabricpulse_nic_pcie_link_"
# Share of lost probes that says nothing of a NIC.
_LITTLE = 0.001

# While processes of the job run on a host.
_ALIVE = "fabricpulse_qp_processes{{job}}"
_EXPORTERS = "group by (instance, daemon) (last_over_time(fabricpulse_build_info{{hosts}}[{w}]))"

# Which hosts run the job, now and before: all other questions are about these.
# A host has one series of a workload: of several, as replicas make them, the largest.
PROCESSES = Query("processes", _last("fabricpulse_qp_processes", "instance, cluster", "{job}"), before=True)

QUERIES = (
    Query("exporters_counted", f"count by (daemon) ({_EXPORTERS})", parts="sum"),
    Query("connected", _last("fabricpulse_nic_connected", _NIC + ", network", how="min")),
    # Where none and not known are the same, only what there is: of a large job each answer is a megabyte of zeros.
    Query("disconnects", f"{_increase('fabricpulse_nic_disconnects_total')} > 0"),
    Query(
        "link_downs",
        f"({_increase('fabricpulse_nic_port_down_transitions_total')} or "
        f"{_increase('fabricpulse_nic_carrier_down_changes_total')}) > 0",
    ),
    Query("failovers", f"{_increase('fabricpulse_lane_failovers_total', '{job}')} > 0"),
    Query("avoided", f"{_last('fabricpulse_lane_nic_avoided', _NIC, '{job}')} > 0"),
    Query(
        "speed",
        f"{_last('fabricpulse_nic_port_rate_bytes_per_second', _NIC)} or {_last('fabricpulse_nic_link_speed_bytes_per_second', _NIC)}",
        before=True,
    ),
    Query(
        "transmitted",
        f"max by ({_NIC}) (rate(fabricpulse_nic_transmitted_bytes_total{{{{hosts}}}}[{{w}}])) > 0 or "
        f"max by ({_NIC}) (rate(fabricpulse_nic_link_transmitted_bytes_total{{{{hosts}}}}[{{w}}]))",
        before=True,
    ),
    # Shares and no rates: of a large job these are most of what is sent and read.
    Query("loss_in", _share("inbound_lost", "received|inbound_lost")),
    Query("loss_out", _share("outbound_lost", "sent")),
    Query("drops", _summed(_DROPS)),
    Query("pause_sent", f"max by ({_NIC}) (rate(fabricpulse_nic_pfc_pause_transmitted_seconds_total{{{{hosts}}}}[{{w}}]))"),
    Query("pause_received", f"max by ({_NIC}) (rate(fabricpulse_nic_pfc_pause_received_seconds_total{{{{hosts}}}}[{{w}}]))"),
    Query("nic_slowed", _rate("fabricpulse_nic_cnp_packets_handled_total", "{hosts}", _NIC)),
    Query("nic_marked", _rate("fabricpulse_nic_ecn_marked_packets_received_total", "{hosts}", _NIC)),
    # mlx5 counts what its peers ask for again, others what they send again.
    Query(
        "nic_resent",
        f"{_rate('fabricpulse_nic_retransmits_total', '{hosts}', _NIC)} or "
        f"{_rate('fabricpulse_nic_packet_sequence_errors_total', '{hosts}', _NIC)}",
    ),
    Query("pcie_stalled", _last("fabricpulse_nic_pcie_outbound_stalled_writes_ratio", _NIC)),
    Query(
        "pcie_share",
        f"max by ({_NIC}) ({_PCIE}width_lanes{{{{hosts}}}} * {_PCIE}transfers_per_second{{{{hosts}}}} / "
        f"({_PCIE}width_lanes_attainable{{{{hosts}}}} * {_PCIE}transfers_per_second_attainable{{{{hosts}}}}))",
    ),
    Query("sent", _rate("fabricpulse_qp_sent_bytes_total", "{job}", _FLOW), before=True),
    Query("delay", _delay(0.5), before=True),
    Query("marked", _rate("fabricpulse_qp_ecn_marked_total", "{job}", _FLOW)),
    Query("retransmits", _rate("fabricpulse_qp_retransmits_total", "{job}", _FLOW)),
    *(
        Query(name, _mean(f"rate(fabricpulse_collective_{metric}_total{{{{job}}}}[{{w}}])"), before=True, parts="")
        for name, metric in (("rate", "operations"), ("bytes", "bytes"), ("busy", "busy_seconds"))
    ),
    *(
        Query(f"others_{name}", _rate(f"fabricpulse_collective_{metric}_total", "{others}", "workload, collective"))
        for name, metric in (("rate", "operations"), ("bytes", "bytes"), ("busy", "busy_seconds"))
    ),
    Query("rank_operations", _last("fabricpulse_rank_operations_total", "instance, communicator, rank", "{job}")),
    Query("rank_in_progress", _last("fabricpulse_rank_operations_in_progress", "instance, communicator, rank", "{job}")),
    Query("rank_rate", _rate("fabricpulse_rank_operations_total", "{job}", "instance, communicator, rank"), before=True),
    Query("rank_busy", _rate("fabricpulse_rank_busy_seconds_total", "{job}", "instance, communicator, rank"), before=True),
    Query("clock_synchronized", _last("fabricpulse_clock_synchronized", "instance", how="min")),
    Query("clock_bound", _last("fabricpulse_clock_error_bound_seconds", "instance")),
    Query("clock_disruptions", _increase("fabricpulse_clock_contradictions_total", by="instance")),
    Query("clock_suspect", _last("fabricpulse_clock_suspect", "instance")),
    Query("waiting", "fabricpulse_request_waiting_seconds{{job}}"),
    Query("missing_bytes", "fabricpulse_request_missing_bytes{{job}}"),
    Query(
        "origins",
        "count by (slurm_job, user, account, nodes, source) (last_over_time(fabricpulse_workload_info{{job}}[{w}]))",
        parts="sum",
    ),
    Query(
        "started",
        "min(last_over_time(fabricpulse_workload_start_timestamp_seconds{{job}}[{w}]))",
        before=True,
        parts="min",
    ),
    # When the job's series begin and end: rates over a window that they do not fill are too low.
    Query("first_seen", f"min(timestamp({_ALIVE} offset {{w}}) or min_over_time(timestamp({_ALIVE})[{{w}}:{{s}}]))", before=True, parts="min"),
    Query("last_seen", f"max(timestamp({_ALIVE}) or max_over_time(timestamp({_ALIVE})[{{w}}:{{s}}]))", before=True, parts="max"),
    Query("samples", "max(count_over_time(fabricpulse_qp_processes{{job}}[{w}]))", before=True, parts="max"),
    Query("restarts", "max(resets(fabricpulse_collective_operations_total{{job}}[{w}]))", before=True, parts="max"),
    Query(
        "exporter_seen",
        'max(max_over_time(timestamp(fabricpulse_build_info{{hosts}, daemon="qp"})[{w}:{s}]))',
        parts="max",
    ),
    Query("moved", "max(increase(fabricpulse_rank_operations_total{{job}}[{r}]))", parts="max"),
    # Of a job whose collectives come in bursts nothing ends for as long between them. Of parts the least is too small.
    Query(
        "moved_least",
        "min_over_time((max(increase(fabricpulse_rank_operations_total{{job}}[{r}])))[{w}:{s}])",
        before=True,
        parts="max",
    ),
    Query("copies", "max(count by (instance) (last_over_time(fabricpulse_qp_processes{{job}}[{w}])))", parts="max"),
    Query("dead", "max by (instance) (max_over_time(fabricpulse_qp_dead_processes{{job}}[{w}]))"),
    Query("heartbeat", "fabricpulse_plugin_heartbeat_age_seconds{{job}}"),
    Query("gpu_clock", 'max by (Hostname, gpu) (last_over_time(DCGM_FI_DEV_SM_CLOCK{{gpu_hosts}}[{w}]))'),
    # Bits 3 (hardware slowdown), 5, 6 (heat), 7 (power brake) of nvmlClocksEventReasons.
    Query("gpu_throttled", "max by (Hostname, gpu) (last_over_time(DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{gpu_hosts}}[{w}]))"),
    Query("recorded", "count(flow:fabricpulse_qp_owd_seconds:contention_score{{any}})"),
    Query(
        "other_slow_flows",
        "flow:fabricpulse_qp_owd_seconds:contention_score{{others}} > 3 and flow:fabricpulse_qp_owd_seconds:p50_2m{{others}} > 0.00005",
        before=True,
    ),
)  # fmt: skip

# What the rules have recorded costs nothing to read; to compute it is most of what an answer costs.
RECORDED_DELAY = Query("recorded_delay", "flow:fabricpulse_qp_owd_seconds:p50_2m{{job}}")
RECORDED_WINDOW_S = 120
# Queried where the workload is not known.
WORKLOADS = Query("workloads", "count by (workload) (last_over_time(fabricpulse_qp_processes{{any}}[{w}]))")
# Second round, about few hosts or only when needed.
# Of a large job thousands, of which hardly ever one is missing.
EXPORTERS = Query("exporters", _EXPORTERS)
# Where ranks wait: hosts are scraped at moments of their own.
SCRAPED = Query("scraped", "max by (instance) (timestamp(fabricpulse_qp_processes{{job}}))")
EDGES = Query("edges", _last("fabricpulse_nic_edges", _NIC, '{hosts}, state!="degraded"', "sum"))
# In either direction: of a NIC that sends badly all its edges lose what it sends, of the peers of one that takes badly one.
LOSSY_EDGES = Query(
    "lossy_edges",
    f"{_lost_share('lost', 'received')} > 0.005 or {_lost_share('outbound_lost', 'sent')} > 0.005",
)
# NICs of the whole fleet that were gone: edges to them lose everything, whosever they are.
GONE = Query(
    "gone",
    f"group by ({_NIC}) (last_over_time(fabricpulse_nic_connected{{{{fleet}}}}[{{w}}]) == 0) or "
    f"group by ({_NIC}) (increase(fabricpulse_nic_disconnects_total{{{{fleet}}}}[{{e}}]) > 0.5)",
)
# Of those who receive slow flows, and of as many others.
FLOOR = Query(
    "floor",
    f"histogram_quantile(0.1, "
    f"{_rate('fabricpulse_qp_owd_seconds_bucket', '{job}, {hosts}', _FLOW + ', le')})",
)
PROBE_DELAY = Query("probe_delay", _last("fabricpulse_edge_owd_seconds", _FLOW, '{hosts}, quantile="0.5"'))
HISTORY = "sum(rate(fabricpulse_collective_bytes_total{{job}}[{w}])) / sum(rate(fabricpulse_collective_busy_seconds_total{{job}}[{w}]))"
# Of a job that stands still, or whose collectives are as quick as they were, its bandwidth says nothing.
PACE_HISTORY = "avg(rate(fabricpulse_collective_operations_total{{job}}[{w}]))"


@dataclass(frozen=True)
class Scope:
    """What stands behind the placeholders. extra : matchers that each series must have, such as `cluster="a"`. only :
    hosts to which the workload's own series are narrowed; () for all."""

    workload: str
    hosts: tuple[str, ...] = ()
    extra: str = ""
    window_s: int = 120
    events_s: int = 900
    only: tuple[str, ...] = ()

    def fill(self, text: str) -> str:
        """A query as Prometheus takes it."""
        plain = self._plain
        # In one pass: names are chosen by others, and may look like placeholders.
        # `{{job}}` brings its own braces, `{job}` stands among others.
        return re.sub(
            r"\{\{(\w+)\}\}|\{(\w+)\}",
            lambda m: f"{{{plain[m[1]]}}}" if m[1] else plain[m[2]],
            text,
        )

    @property
    def recent_s(self) -> int:
        """In which a job that moves ends a collective: of less than a window, four scrapes at most."""
        return max(30, self.window_s // 4)

    @property
    def step_s(self) -> int:
        """At which samples of the window are looked for."""
        return min(max(5, self.window_s // 24), 300)

    @cached_property
    def _plain(self) -> Mapping[str, str]:
        """What stands for each placeholder. Once for all queries: the hosts of a large job are long to write."""
        label, hosts = quote(self.workload), quote(alternatives(self.hosts))
        matchers = {
            "job": f"workload={label}",
            "others": f"workload!={label}",
            "any": 'workload!=""',
            "fleet": 'instance!=""',
            "hosts": f"instance=~{hosts}",
        }
        if self.only:
            matchers["job"] += f", instance=~{quote(alternatives(self.only))}"
        if self.extra:
            matchers = {name: f"{own}, {self.extra}" for name, own in matchers.items()}
        matchers["gpu_hosts"] = f"Hostname=~{hosts}"
        times = {"w": self.window_s, "e": self.events_s, "r": self.recent_s, "s": self.step_s}
        return {name: f"{value}s" for name, value in times.items()} | matchers


def quote(value: str) -> str:
    """A PromQL string with this value, whatever is in it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def alternatives(values: Iterable[str]) -> str:
    """A regular expression that matches exactly these; none of them matches nothing."""
    special = set(r".+*?()|[]{}^$\\")
    return "|".join("".join(f"\\{c}" if c in special else c for c in value) for value in values) or "a^"
