"""What the coordinator exports of its diagnosis."""

from fabricpulse.core.metrics.catalogue import MetricSpec

_COMPONENT = ("what", "kind", "faulty", "peer")
_LEAF = (*_COMPONENT, "leaf", "network")

FAULT = MetricSpec(
    "fabricpulse_fault_component",
    "gauge",
    "Probability that this component is what makes flows suffer, given that one of the candidates is. what: loss, "
    "delay, mtu (large packets are dropped). "
    "kind: host, nic, nic_tx, nic_rx, switch, link (faulty to peer), pair. faulty: its name. leaf: the same if it is a "
    "declared leaf that is dead; network: of the NICs whose packets cross a switch or link, where all are of one. "
    "Suspects only.",
    _LEAF,
)
FAULT_SHARE = MetricSpec(
    "fabricpulse_fault_component_affected_ratio",
    "gauge",
    "Share of the suspect's packets (delay, mtu: of its flows) that suffer.",
    _COMPONENT,
)
FAULT_FLOWS = MetricSpec(
    "fabricpulse_fault_component_flows", "gauge", "Flows that suffer and cross the suspect.", _COMPONENT
)
LEAVES = MetricSpec(
    "fabricpulse_leaves",
    "gauge",
    "Leaves that traced paths begin at. paths: whole (as many next hops as most siblings), fewer, unknown (too few "
    "paths are traced, or no two siblings).",
    ("paths",),
)
LEAF_PATHS_MISSING = MetricSpec(
    "fabricpulse_leaf_paths_missing",
    "gauge",
    "Next hops that a leaf has fewer than most of its siblings, by the traced paths. Only leaves with fewer, 256 at "
    "most.",
    ("leaf", "network"),
)
LEAF_PATHS_SINCE = MetricSpec(
    "fabricpulse_leaf_paths_missing_since_timestamp_seconds",
    "gauge",
    "When the leaf last had as many next hops as most of its siblings. Absent: not since it has been watched.",
    ("leaf", "network"),
)
EVIDENCE_HOSTS = MetricSpec(
    "fabricpulse_diagnosis_hosts", "gauge", "Hosts whose mesh exporters report evidence to this coordinator."
)
EVIDENCE_FLOWS = MetricSpec(
    "fabricpulse_diagnosis_flows",
    "gauge",
    "Flows (source ports of pairs of NICs) that mesh exporters watch.",
)
EVIDENCE_PATHS = MetricSpec(
    "fabricpulse_diagnosis_paths", "gauge", "Flows whose switches are known, by traces of the mesh exporters."
)
QUEUE_PAIR_PATHS = MetricSpec(
    "fabricpulse_diagnosis_queue_pair_paths",
    "gauge",
    "Paths of queue pairs of jobs that are known, by traces of the mesh exporters.",
)
QUEUE_PAIR_PATHS_REFUSED = MetricSpec(
    "fabricpulse_diagnosis_queue_pair_paths_refused_total",
    "counter",
    "Paths of queue pairs that were reported and not kept, as the coordinator keeps 50,000.",
)
EVIDENCE_REPORTS = MetricSpec(
    "fabricpulse_diagnosis_reports_total", "counter", "Reports of evidence that were taken."
)
EVIDENCE_REFUSED = MetricSpec(
    "fabricpulse_diagnosis_reports_refused_total",
    "counter",
    "Reports of evidence that were refused: malformed, too large, or out of bounds.",
)
DIAGNOSIS_SECONDS = MetricSpec(
    "fabricpulse_diagnosis_duration_seconds", "gauge", "How long the last diagnosis took."
)
TOPOLOGY_KNOWN = MetricSpec(
    "fabricpulse_topology_known",
    "gauge",
    "1 while there is a tree of leaves, learned from delays (/api/v1/topology), else 0.",
)
TOPOLOGY_AGE = MetricSpec(
    "fabricpulse_topology_age_seconds",
    "gauge",
    "Since the delays were taken that the last tree was computed from. Absent before the first one.",
)
TOPOLOGY_NICS = MetricSpec(
    "fabricpulse_topology_nics", "gauge", "NICs. place: placed (their leaf is known), unknown.", ("place",)
)
TOPOLOGY_LEAVES = MetricSpec("fabricpulse_topology_leaves", "gauge", "Leaves of the learned tree.")
TOPOLOGY_UNSEPARATED = MetricSpec(
    "fabricpulse_topology_leaves_unseparated",
    "gauge",
    "Leaves of the learned tree that may be parts of others: no pairs of NICs separate them.",
)
TOPOLOGY_EDGES = MetricSpec(
    "fabricpulse_topology_edges",
    "gauge",
    "Pairs of NICs that are edges of the mesh. delay: known (the two-way delay), unknown.",
    ("delay",),
)
TOPOLOGY_WRONG_CABLES = MetricSpec(
    "fabricpulse_topology_wrong_cables", "gauge", "NICs that are surely at another leaf than they should be."
)
TOPOLOGY_MISCABLED = MetricSpec(
    "fabricpulse_topology_nic_miscabled",
    "gauge",
    "1 for a NIC at another leaf than it should be. reason: wrong_rail, wrong_leaf. at: the leaf where it is; "
    "expected: where it belongs. 256 NICs at most.",
    ("peer", "peer_device", "reason", "at", "expected"),
)

METRICS = (
    FAULT,
    FAULT_SHARE,
    FAULT_FLOWS,
    LEAVES,
    LEAF_PATHS_MISSING,
    LEAF_PATHS_SINCE,
    EVIDENCE_HOSTS,
    EVIDENCE_FLOWS,
    EVIDENCE_PATHS,
    QUEUE_PAIR_PATHS,
    QUEUE_PAIR_PATHS_REFUSED,
    EVIDENCE_REPORTS,
    EVIDENCE_REFUSED,
    DIAGNOSIS_SECONDS,
    TOPOLOGY_KNOWN,
    TOPOLOGY_AGE,
    TOPOLOGY_NICS,
    TOPOLOGY_LEAVES,
    TOPOLOGY_UNSEPARATED,
    TOPOLOGY_EDGES,
    TOPOLOGY_WRONG_CABLES,
    TOPOLOGY_MISCABLED,
)
