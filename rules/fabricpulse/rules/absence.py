"""Why a series that the rules read may not be there although all is set up: by the metric, which daemon gives it, and
what that daemon must see first.
"""

import re

# The daemon that gives a metric, by the first name that fits: the label `daemon` of fabricpulse_build_info.
_DAEMONS = tuple(
    (re.compile(rf"fabricpulse_(?:{names})"), daemon)
    for names, daemon in (
        (r"clocksync_\w+|fault_\w+|leaf_\w+|topology_\w+|diagnosis_\w+", "clocksync-coordinator"),
        (r"clock_\w+", "clocksync-sidecar"),
        (r"remediation_agent_\w+", "remediation-node"),
        (r"remediation_\w+", "remediation-receiver"),
        (r"(?:collective|lane|lanes|plugin|qp|rank|request)(?:_\w+)?", "qp"),
        (r"(?:edge|front_end|mesh|probe)_\w+", "mesh"),
        (
            r"nic_(?:connected|disconnected|disconnects_total|edges|recent_disconnect_age_seconds|state)",
            "mesh",
        ),
        (r"nic_\w+", "nic"),
        (r"alert_push\w+", "mesh"),
    )
)

# Metrics that exist only while something is wrong, or has been.
_ONLY_AMID_FAULTS = re.compile(
    r"fabricpulse_(?:edge_evidence|edge_mtu_black_hole_bytes|edge_worst_path_loss_ratio"
    r"|nic_disconnected|nic_recent_(?:disconnect_age_seconds|increase|rate)"
    r"|plugin_silent_seconds|rank_stalled_seconds|rank_unmoved_operations|request_waiting_seconds"
    r"|fault_component|leaf_paths_missing|topology_nic_miscabled|clock_contradictions_total"
    r"|remediation_deliveries_total|exporter_dropped_samples)(?:\{.*)?"
    # Of metrics that are there always, what is said of faults.
    r'|fabricpulse_lanes\{.*state="last_resort".*|fabricpulse_nic_nccl_gid_info\{.*'
)

# What a selector waits for where its daemon is scraped, by the first that fits. Of what is not here a daemon always
# gives something, so that its absence is a fault.
_WAITS = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (
            r"fabricpulse_collective_\w+",
            "a job whose NCCL has the profiler plugin",
        ),
        (
            r"fabricpulse_(?:collective|lane|lanes|plugin|qp|rank|request)(?:_\w+)?(?:\{.*)?",
            "a job with the NCCL plugin, while one runs: that the plugin is loaded and finds the exporter",
        ),
        (r'fabricpulse_nic_connected\{.*leaf!="".*', "the names of leaves"),
        (
            r"fabricpulse_front_end_\w+",
            "`front_end` of the mesh exporter: which servers it watches there",
        ),
        (
            r"fabricpulse_edge_\w+(?:\{.*)?",
            "an edge that suffers: of edges that are well a large fleet exports the usual delay alone",
        ),
        (
            r"fabricpulse_alert_push\w+",
            "`alerting` of the mesh exporter: the Alertmanagers that it pushes to",
        ),
        (
            r"fabricpulse_nic_expected_ports\w*",
            "`expected` of the NIC exporter: the ports that a host should have",
        ),
        (
            r"fabricpulse_nic_(?:nccl_gid_\w+|port_\w+|transmit_wait_ticks_total)(?:\{.*)?",
            "RDMA devices: hosts without one, or whose driver does not count it, have none",
        ),
        (
            r"fabricpulse_nic_(?:info|pcie_\w+|present)(?:\{.*)?",
            "NICs on a PCIe bus: virtual ones have none, and drivers do not tell all of it",
        ),
        (
            r"fabricpulse_nic_(?:pfc_priorities|trust_dscp|link_speed_bytes_per_second)",
            "NICs whose driver tells it (DCB, speed): virtual ones do not",
        ),
        (
            r"fabricpulse_remediation_rule_stopped",
            "a rule of the receiver that avoids NICs",
        ),
        (
            r"fabricpulse_remediation_journal_seal_at_start",
            "a receiver that leads alone: of two with one database it is unknown who has edited the journal",
        ),
    )
)


# What a NIC exporter says of counters that have grown, by the name of the counter, and of GIDs, by their type.
_GROWN = re.compile(r"fabricpulse_nic_recent_(?:rate|increase)\{(.*)\}")
_GID = re.compile(r"(fabricpulse_nic_nccl_gid_info)\{(.*)\}")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)("(?:[^"\\]|\\.)*")')
_OF_FAULTS = frozenset(("counter", "kind", "gid_type", "address_family"))

# A daemon that is looked for by its build.
_BUILD = re.compile(r'fabricpulse_build_info\{.*daemon=~"\.\*(coordinator|receiver)".*')
_BUILT = {"coordinator": "clocksync-coordinator", "receiver": "remediation-receiver"}


def daemon_of(selector: str) -> str:
    """The daemon that gives what a selector asks for, or "": any of them, or none (up, ALERTS)."""
    if build := _BUILD.fullmatch(selector):
        return _BUILT[build[1]]
    name = selector.partition("{")[0]
    return next((daemon for names, daemon in _DAEMONS if names.fullmatch(name)), "")


def only_amid_faults(selector: str) -> bool:
    """Whether its series exist only while something is wrong, or has been."""
    return _ONLY_AMID_FAULTS.fullmatch(selector) is not None


def waits_for(selector: str) -> str:
    """What must be there, beside its daemon, before it has series; "" where nothing else must."""
    return next((reason for pattern, reason in _WAITS if pattern.fullmatch(selector)), "")


def counters_of(selector: str) -> list[str]:
    """Selectors of what its series are made of: of counters that have grown these counters, of GIDs of a type all GIDs.
    Where none of these is there nobody knows whether anything is wrong; [] of other selectors.
    """
    if gid := _GID.fullmatch(selector):
        return [gid[1] + _others(gid[2])]
    if not (grown := _GROWN.fullmatch(selector)):
        return []
    names = [
        name
        for label, _, text in _MATCHER.findall(grown[1])
        if label == "counter"
        for name in text[1:-1].split("|")
    ]
    return [f"fabricpulse_nic_{name}_total{_others(grown[1])}" for name in names]


def _others(matchers: str) -> str:
    """The matchers that are those of all series of the rules, in braces."""
    others = [
        label + how + text for label, how, text in _MATCHER.findall(matchers) if label not in _OF_FAULTS
    ]
    return f"{{{','.join(others)}}}" if others else ""
