"""Metrics of the receiver and of the node agent."""

from fabricpulse.core.metrics.catalogue import MetricSpec

ACTION_NAMES = ("nic.avoid", "nic.restore")

ACTIONS = MetricSpec(
    "fabricpulse_remediation_actions_total",
    "counter",
    "Actions by how they ended: succeeded, refused, failed, expired, unknown, superseded, dry_run, rolled_back.",
    ("action", "outcome"),
)
BLOCKED = MetricSpec(
    "fabricpulse_remediation_blocked_total", "counter", "Actions that a guard forbade, by guard.", ("reason",)
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
    "Alerts that could not be read or name no known NIC.",
)
INGEST_SECONDS = MetricSpec(
    "fabricpulse_remediation_ingest_seconds",
    "histogram",
    "From a webhook body to its durable journal entry.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
EPISODES = MetricSpec(
    "fabricpulse_remediation_episodes", "gauge", "Alert episodes in memory, by status.", ("status",)
)
TARGETS_OUT = MetricSpec(
    "fabricpulse_remediation_targets_out_of_service", "gauge", "NICs that the receiver keeps out of service."
)
MANUAL = MetricSpec(
    "fabricpulse_remediation_targets_manual", "gauge", "NICs that only a person puts back into service."
)
PENDING = MetricSpec(
    "fabricpulse_remediation_pending_actions", "gauge", "Actions that no agent has carried out yet."
)
OLDEST_PENDING = MetricSpec(
    "fabricpulse_remediation_oldest_pending_seconds",
    "gauge",
    "Age of the oldest action that no agent has carried out yet.",
)
AGENTS = MetricSpec(
    "fabricpulse_remediation_agents", "gauge", "Node agents by whether they have reported lately.", ("state",)
)
PAUSED = MetricSpec("fabricpulse_remediation_paused", "gauge", "1 while the kill switch is set.")
BUDGET = MetricSpec(
    "fabricpulse_remediation_budget",
    "gauge",
    "Actions that the rate limit still allows at once.",
    ("direction",),
)
BREAKER = MetricSpec(
    "fabricpulse_remediation_breaker_tripped",
    "gauge",
    "1 while a circuit breaker is tripped.",
    ("direction",),
)
HEARTBEAT = MetricSpec(
    "fabricpulse_remediation_heartbeat_age_seconds", "gauge", "How long ago the reconciler last came round."
)
TRUTH_AGE = MetricSpec(
    "fabricpulse_remediation_alertmanager_age_seconds",
    "gauge",
    "How long ago all Alertmanagers last said what is active; -1 if they never did.",
)
JOURNAL_LINES = MetricSpec(
    "fabricpulse_remediation_transitions_total", "counter", "Lines written to the journal."
)

JOURNAL_LENGTH = MetricSpec(
    "fabricpulse_remediation_journal_lines", "gauge", "Lines in the journal; it only ever grows."
)
COMMIT_SECONDS = MetricSpec(
    "fabricpulse_remediation_journal_commit_seconds", "gauge", "How long the last commit of the journal took."
)
CLOCK_STEP = MetricSpec(
    "fabricpulse_remediation_clock_step_seconds",
    "gauge",
    "How far the wall clock was set since the receiver started; holds and cooldowns do not follow it.",
)

AGENT_CONNECTED = MetricSpec(
    "fabricpulse_remediation_agent_connected", "gauge", "1 while the node agent reaches the receiver."
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
    "Processes with the NCCL plugin that the node agent sees.",
)
AGENT_STRAYS = MetricSpec(
    "fabricpulse_remediation_agent_strays",
    "gauge",
    "Processes that do not show the desired state of some NIC.",
)
AGENT_CALLS = MetricSpec(
    "fabricpulse_remediation_agent_calls_total",
    "counter",
    "Operations that the node agent asked of control sockets, by result.",
    ("result",),
)

RECEIVER_METRICS = (
    ACTIONS,
    BLOCKED,
    DELIVERIES,
    ALERTS,
    DEAD_LETTERS,
    INGEST_SECONDS,
    EPISODES,
    TARGETS_OUT,
    MANUAL,
    PENDING,
    OLDEST_PENDING,
    AGENTS,
    PAUSED,
    BUDGET,
    BREAKER,
    HEARTBEAT,
    TRUTH_AGE,
    CLOCK_STEP,
    COMMIT_SECONDS,
    JOURNAL_LINES,
    JOURNAL_LENGTH,
)
AGENT_METRICS = (AGENT_CONNECTED, AGENT_AVOIDED, AGENT_PROCESSES, AGENT_STRAYS, AGENT_CALLS)
METRICS = (*RECEIVER_METRICS, *AGENT_METRICS)
