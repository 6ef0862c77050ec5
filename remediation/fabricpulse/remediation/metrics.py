"""Metrics of the receiver and of the node agent."""

from fabricpulse.core.metrics.catalogue import MetricSpec

ACTION_NAMES = ("nic.avoid", "nic.restore")

ACTIONS = MetricSpec(
    "fabricpulse_remediation_actions_total",
    "counter",
    "Actions by outcome: succeeded, refused, failed, expired, unknown, superseded, dry_run, rolled_back.",
    ("action", "outcome"),
)
BLOCKED = MetricSpec(
    "fabricpulse_remediation_blocked_total",
    "counter",
    "Actions that a guard of the remediation receiver blocked, by guard.",
    ("reason",),
)
DELIVERIES = MetricSpec(
    "fabricpulse_remediation_deliveries_total",
    "counter",
    "Webhook deliveries by HTTP status code.",
    ("code",),
)
ALERTS = MetricSpec("fabricpulse_remediation_alerts_total", "counter", "Alerts in accepted deliveries.")
DEAD_LETTERS = MetricSpec(
    "fabricpulse_remediation_dead_letters_total",
    "counter",
    "Alerts that could not be decoded or name no known NIC.",
)
UNAUTHORIZED = MetricSpec(
    "fabricpulse_remediation_unauthorized_total",
    "counter",
    "Requests without valid credentials (401) or role (403), by whose route it was: alertmanager, agents, operator.",
    ("route",),
)
REPORTS_REFUSED = MetricSpec(
    "fabricpulse_remediation_reports_refused_total",
    "counter",
    "Agents' reports that were refused: no room for another host (room), more journal lines than one may "
    "cause (lines), from another address than the one that reports for the host (address).",
    ("reason",),
)
NOTIFICATIONS = MetricSpec(
    "fabricpulse_remediation_notifications_total",
    "counter",
    "Requests to the destinations of `notify`: sent, failed.",
    ("name", "outcome"),
)
JUDGED = MetricSpec(
    "fabricpulse_remediation_judged_actions_total",
    "counter",
    "Failovers, and plans for lanes, by rule (its alert; `rebalance` for plans without one) and by what they were "
    "measured to have come to: recovered, not_recovered, idle, unknown.",
    ("rule", "recovery"),
)
PROBLEMS = MetricSpec(
    "fabricpulse_remediation_problem",
    "gauge",
    "1 for each code of the problems that `fabricpulse remediation status` lists now, else 0.",
    ("code",),
)
RULE_STOPPED = MetricSpec(
    "fabricpulse_remediation_rule_stopped",
    "gauge",
    "1 for a rule that only observes, on the fleet or on some host: jobs stalled after its failovers, or none had a "
    "proven recovery.",
    ("rule",),
)
REBALANCES = MetricSpec(
    "fabricpulse_remediation_rebalances_total",
    "counter",
    "Plans to put lanes of jobs on other paths, by how they ended: kept, rolled_back, rollback_failed, withdrawn, "
    "dropped, dry_run.",
    ("outcome",),
)
REBALANCE_GAIN = MetricSpec(
    "fabricpulse_remediation_rebalance_gain_ratio",
    "gauge",
    "Goodput after the last rebalancing plan divided by the goodput before it, by kind: predicted, measured.",
    ("kind",),
)
DRAINS = MetricSpec(
    "fabricpulse_remediation_drains_total",
    "counter",
    "Drains of hosts by outcome: drained, returned, failed, dropped, dry_run.",
    ("outcome",),
)
HOSTS_OUT = MetricSpec(
    "fabricpulse_remediation_hosts_out",
    "gauge",
    "Hosts that are being drained, are drained, or whose drain command failed.",
)
INGEST_SECONDS = MetricSpec(
    "fabricpulse_remediation_ingest_seconds",
    "histogram",
    "Time from a webhook body to its durable journal entry.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
EPISODES = MetricSpec(
    "fabricpulse_remediation_episodes", "gauge", "Alert episodes in memory, by status.", ("status",)
)
TARGETS_OUT = MetricSpec(
    "fabricpulse_remediation_targets_out_of_service", "gauge", "NICs that the receiver keeps out of service."
)
MANUAL = MetricSpec(
    "fabricpulse_remediation_targets_manual", "gauge", "NICs that only an operator puts back into service."
)
PLANS_WAITING = MetricSpec(
    "fabricpulse_remediation_plans_waiting", "gauge", "Plans that wait for an operator's approval."
)
PENDING = MetricSpec(
    "fabricpulse_remediation_pending_actions", "gauge", "Actions without a result from the agent."
)
OLDEST_PENDING = MetricSpec(
    "fabricpulse_remediation_oldest_pending_seconds",
    "gauge",
    "Age of the oldest action without a result from the agent.",
)
AGENTS = MetricSpec(
    "fabricpulse_remediation_agents", "gauge", "Node agents by whether they report: alive, lost.", ("state",)
)
PAUSED = MetricSpec("fabricpulse_remediation_paused", "gauge", "1 while the kill switch is set.")
BUDGET = MetricSpec(
    "fabricpulse_remediation_budget",
    "gauge",
    "Actions that the rate limit allows at this moment.",
    ("direction",),
)
BREAKER = MetricSpec(
    "fabricpulse_remediation_breaker_tripped",
    "gauge",
    "1 while a circuit breaker is tripped.",
    ("direction",),
)
HEARTBEAT = MetricSpec(
    "fabricpulse_remediation_heartbeat_age_seconds",
    "gauge",
    "Seconds since the reconciler's last completed cycle.",
)
POLL_AGE = MetricSpec(
    "fabricpulse_remediation_alertmanager_age_seconds",
    "gauge",
    "Seconds since the Alertmanagers were last polled with success; -1 if never.",
)
LEADER = MetricSpec(
    "fabricpulse_remediation_leader", "gauge", "1 for the receiver that leads, 0 for one that stands by."
)
JOURNAL_LINES = MetricSpec(
    "fabricpulse_remediation_transitions_total", "counter", "Lines written to the journal."
)

LINES_LEFT_OUT = MetricSpec(
    "fabricpulse_remediation_lines_left_out_total",
    "counter",
    "Lines about alerts for which the journal had no room: they come and go more often than any fleet's.",
)
KEPT_BYTES = MetricSpec(
    "fabricpulse_remediation_received_bytes",
    "gauge",
    "Size of what is kept as it was received, by kind: deliveries, dead_letters.",
    ("kind",),
)
ROWS_DROPPED = MetricSpec(
    "fabricpulse_remediation_received_dropped_total",
    "counter",
    "Deliveries and dead letters that made room for newer ones before their seven days were over, by kind.",
    ("kind",),
)
JOURNAL_LENGTH = MetricSpec(
    "fabricpulse_remediation_journal_lines", "gauge", "Lines in the journal, which is append-only."
)
JOURNAL_SEAL = MetricSpec(
    "fabricpulse_remediation_journal_seal",
    "gauge",
    "First 48 bits of the hash over the journal's lines and state, as of the last commit.",
)
JOURNAL_SEAL_AT_START = MetricSpec(
    "fabricpulse_remediation_journal_seal_at_start",
    "gauge",
    "The seal that the journal had when it was opened; not the last one before that if a program edited the file. "
    "Not exposed where several receivers share a journal.",
)
JOURNAL_WRITABLE = MetricSpec(
    "fabricpulse_remediation_journal_writable",
    "gauge",
    "1 while commits succeed, 0 after one that failed.",
)
COMMIT_SECONDS = MetricSpec(
    "fabricpulse_remediation_journal_commit_seconds", "gauge", "Duration of the last commit of the journal."
)
CLOCK_STEP = MetricSpec(
    "fabricpulse_remediation_clock_step_seconds",
    "gauge",
    "Steps of the wall clock since the receiver started; holds and cooldowns do not follow them.",
)

AGENT_CONNECTED = MetricSpec(
    "fabricpulse_remediation_agent_connected",
    "gauge",
    "1 while the receiver answers the node agent, 0 otherwise, from the start on.",
)
AGENT_AVOIDED = MetricSpec(
    "fabricpulse_remediation_agent_avoided",
    "gauge",
    "1 for a NIC that the node agent keeps out of service.",
    ("device",),
)
AGENT_PROCESSES = MetricSpec(
    "fabricpulse_remediation_agent_processes",
    "gauge",
    "Processes with the NCCL plugin that answer the node agent.",
)
AGENT_DIVERGENT = MetricSpec(
    "fabricpulse_remediation_agent_divergent_processes",
    "gauge",
    "Processes with the NCCL plugin in which some NIC of this host is not in its desired state.",
)
AGENT_CALLS = MetricSpec(
    "fabricpulse_remediation_agent_calls_total",
    "counter",
    "Operations that the node agent requested of the NCCL plugin's control sockets, by outcome.",
    ("outcome",),
)

RECEIVER_METRICS = (
    ACTIONS,
    BLOCKED,
    DELIVERIES,
    ALERTS,
    DEAD_LETTERS,
    UNAUTHORIZED,
    REPORTS_REFUSED,
    NOTIFICATIONS,
    INGEST_SECONDS,
    EPISODES,
    TARGETS_OUT,
    MANUAL,
    PLANS_WAITING,
    JUDGED,
    PROBLEMS,
    RULE_STOPPED,
    REBALANCES,
    REBALANCE_GAIN,
    DRAINS,
    HOSTS_OUT,
    PENDING,
    OLDEST_PENDING,
    AGENTS,
    PAUSED,
    BUDGET,
    BREAKER,
    HEARTBEAT,
    POLL_AGE,
    CLOCK_STEP,
    COMMIT_SECONDS,
    LEADER,
    JOURNAL_LINES,
    LINES_LEFT_OUT,
    KEPT_BYTES,
    ROWS_DROPPED,
    JOURNAL_LENGTH,
    JOURNAL_SEAL,
    JOURNAL_SEAL_AT_START,
    JOURNAL_WRITABLE,
)
AGENT_METRICS = (AGENT_CONNECTED, AGENT_AVOIDED, AGENT_PROCESSES, AGENT_DIVERGENT, AGENT_CALLS)
METRICS = (*RECEIVER_METRICS, *AGENT_METRICS)
