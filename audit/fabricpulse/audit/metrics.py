"""What the audit exports."""

from fabricpulse.core.metrics.catalogue import MetricSpec

FINDINGS = MetricSpec(
    "fabricpulse_audit_findings",
    "gauge",
    "Findings about this host in its last audit, by severity.",
    ("severity",),
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

METRICS = (FINDINGS, OUTCOMES, CHECK_FAILED, LAST_RUN, DURATION, RUNS, REFUSED, TRANSFERS)
