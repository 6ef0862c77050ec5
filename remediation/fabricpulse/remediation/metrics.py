"""Metrics of the receiver and of the node agent."""

from fabricpulse.core.metrics.catalogue import MetricSpec

ACTIONS = MetricSpec(
    "fabricpulse_remediation_actions_total",
    "counter",
    "Actions by how they ended: succeeded, refused, failed, superseded, dry_run.",
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
DEAD_LETTERS = MetricSpec(
    "fabricpulse_remediation_dead_letters_total", "counter", "Alerts of a delivery that could not be read."
)
EPISODES = MetricSpec(
    "fabricpulse_remediation_episodes", "gauge", "Alert episodes in memory, by status.", ("status",)
)
TARGETS_OUT = MetricSpec(
    "fabricpulse_remediation_targets_out_of_service", "gauge", "NICs that the receiver keeps out of service."
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
    DEAD_LETTERS,
    EPISODES,
    TARGETS_OUT,
    PENDING,
    OLDEST_PENDING,
    AGENTS,
    PAUSED,
    BREAKER,
    HEARTBEAT,
    TRUTH_AGE,
    JOURNAL_LINES,
)
AGENT_METRICS = (AGENT_CONNECTED, AGENT_AVOIDED, AGENT_PROCESSES, AGENT_CALLS)
METRICS = (*RECEIVER_METRICS, *AGENT_METRICS)
