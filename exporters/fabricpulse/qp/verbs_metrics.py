"""What the qp exporter exports of the verbs interposer."""

from fabricpulse.core.metrics.catalogue import MetricSpec

_PAIR = ("workload", "device", "rdma_device", "port", "peer_gid")
# The bounds of the interposer's own histogram (verbs_interposer/src/meter.cc).
COMPLETION_BUCKETS_S = (
    2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip

POSTS = MetricSpec(
    "fabricpulse_verbs_posts_total",
    "counter",
    "Send work requests that programs with the verbs interposer posted and the provider took. peer_gid : address of "
    "the remote GID, lid:N on InfiniBand without GIDs, empty for datagrams.",
    (*_PAIR, "opcode"),
)
SENT_BYTES = MetricSpec(
    "fabricpulse_verbs_sent_bytes_total",
    "counter",
    "Payload of the send work requests that were posted; of reads, what is fetched.",
    (*_PAIR, "opcode"),
)
RECEIVED_BYTES = MetricSpec(
    "fabricpulse_verbs_received_bytes_total",
    "counter",
    "Bytes reported by receive completions. RDMA WRITEs without immediate data have none at the receiver.",
    _PAIR,
)
MESSAGES = MetricSpec(
    "fabricpulse_verbs_messages_total",
    "counter",
    "Messages: sends, and runs of RDMA WRITEs that end with immediate data. direction : sent, received.",
    (*_PAIR, "direction"),
)
COMPLETION_ERRORS = MetricSpec(
    "fabricpulse_verbs_completion_errors_total",
    "counter",
    "Completions with an error, by status (ibv_wc_status).",
    (*_PAIR, "status"),
)
COMPLETION = MetricSpec(
    "fabricpulse_verbs_completion_seconds",
    "histogram",
    "Time from the post of a signaled work request to the poll of its completion: a round trip and its time in queue.",
    _PAIR,
    COMPLETION_BUCKETS_S,
)
QUEUE_PAIRS = MetricSpec(
    "fabricpulse_verbs_queue_pairs",
    "gauge",
    "Queue pairs of programs with the verbs interposer: connected ones, and those of datagrams.",
    _PAIR,
)
OUTSTANDING = MetricSpec(
    "fabricpulse_verbs_outstanding",
    "gauge",
    "Send work requests of programs with the verbs interposer that have no completion yet.",
    _PAIR,
)
WAITING = MetricSpec(
    "fabricpulse_verbs_waiting_seconds",
    "gauge",
    "How long the slowest queue pair has had signaled work outstanding without any completion.",
    _PAIR,
)
PROCESSES = MetricSpec(
    "fabricpulse_verbs_processes",
    "gauge",
    "Processes of this host with the verbs interposer that have opened an RDMA device.",
    ("workload",),
)
UNSEEN = MetricSpec(
    "fabricpulse_verbs_unseen_total",
    "counter",
    "Not counted by the interposer: posts and completions of queue pairs that it does not know, records without room.",
    ("workload", "kind"),
)
BYPASS = MetricSpec(
    "fabricpulse_verbs_bypass",
    "gauge",
    "Processes that go around libibverbs, so that some of their work is not counted. kind : direct, devx.",
    ("workload", "kind"),
)
VERBS_ERRORS = MetricSpec(
    "fabricpulse_verbs_telemetry_errors_total",
    "counter",
    "Files of the interposer that could not be read, counted at each poll, and pairs that found no room.",
)

VERBS_METRICS = (
    PROCESSES,
    BYPASS,
    UNSEEN,
    VERBS_ERRORS,
    QUEUE_PAIRS,
    OUTSTANDING,
    WAITING,
    POSTS,
    SENT_BYTES,
    RECEIVED_BYTES,
    MESSAGES,
    COMPLETION_ERRORS,
    COMPLETION,
)
