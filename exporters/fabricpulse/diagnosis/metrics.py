"""What the coordinator exports of its diagnosis."""

from fabricpulse.core.metrics.catalogue import MetricSpec

_COMPONENT = ("what", "kind", "component", "peer")
_LEAF = (*_COMPONENT, "leaf", "network")

FAULT = MetricSpec(
    "fabricpulse_fault_component",
    "gauge",
    "Probability that this component is what makes flows suffer, given that one of the candidates is. what: loss, "
    "delay, mtu (large packets are dropped). "
    "kind: host, nic, nic_tx, nic_rx, switch, link (component to peer), pair. leaf: the component if it is a "
    "declared leaf that is dead; network: of the NICs below it. Suspects only.",
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

METRICS = (
    FAULT,
    FAULT_SHARE,
    FAULT_FLOWS,
    EVIDENCE_HOSTS,
    EVIDENCE_FLOWS,
    EVIDENCE_PATHS,
    EVIDENCE_REPORTS,
    EVIDENCE_REFUSED,
    DIAGNOSIS_SECONDS,
)
