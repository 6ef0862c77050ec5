"""What the audit exports."""

from fabricpulse.core.metrics.catalogue import MetricSpec

FINDINGS = MetricSpec(
    "fabricpulse_audit_findings",
    "gauge",
    "Findings about this host in its last audit, by severity.",
    ("severity",),
)
OPEN_FINDINGS = MetricSpec(
    "fabricpulse_audit_open_findings",
    "gauge",
    "Findings about this host of runs of the fleet (paths, NCCL, odd values, a profile), and of earlier audits that "
    "none since has looked at again, by severity and check; of one that names suspects each of them has it.",
    ("severity", "check"),
)
FLEET_LAST_RUN = MetricSpec(
    "fabricpulse_audit_fleet_last_run_timestamp_seconds",
    "gauge",
    "When the last run of the fleet that has a result for this host ended, Unix time; absent if there was none.",
)
OUTCOMES = MetricSpec(
    "fabricpulse_audit_outcomes",
    "gauge",
    "Outcomes of the checks of this host in its last audit, by category and status: passed, failed, unknown, "
    "not_applicable.",
    ("category", "status"),
)
CHECK_FAILED = MetricSpec(
    "fabricpulse_audit_check_failed",
    "gauge",
    "Subjects of a check that failed in the last audit of this host; 0 for a check that passed.",
    ("check",),
)
LAST_RUN = MetricSpec(
    "fabricpulse_audit_last_run_timestamp_seconds",
    "gauge",
    "When this host was audited last, Unix time; 0 for never.",
)
DURATION = MetricSpec(
    "fabricpulse_audit_duration_seconds", "gauge", "Duration of the last audit of this host, on the host."
)
RUNS = MetricSpec(
    "fabricpulse_audit_runs_total", "counter", "Audits of this host since the audit agent started."
)
REFUSED = MetricSpec(
    "fabricpulse_audit_refused_requests_total",
    "counter",
    "Requests that the audit agent has refused, by reason (token, busy, invalid; job: a job runs on the NIC; off).",
    ("reason",),
)
TRANSFERS = MetricSpec(
    "fabricpulse_audit_transfers_total",
    "counter",
    "Transfers to measure paths that this host took part in, by direction (sent, received), also those that were "
    "stopped.",
    ("direction",),
)

METRICS = (
    FINDINGS,
    OPEN_FINDINGS,
    FLEET_LAST_RUN,
    OUTCOMES,
    CHECK_FAILED,
    LAST_RUN,
    DURATION,
    RUNS,
    REFUSED,
    TRANSFERS,
)
