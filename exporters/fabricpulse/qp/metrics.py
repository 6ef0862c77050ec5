"""What the qp exporter exports."""

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.qp.verbs_metrics import VERBS_METRICS

_PAIR = ("workload", "device", "peer", "peer_device")
# One-way delays in a GPU fabric lie between microseconds and, in a full queue, some ten milliseconds.
DELAY_BUCKETS_S = (5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)

SENT_BYTES = MetricSpec(
    "fabricpulse_qp_sent_bytes_total",
    "counter",
    "Payload handed to the transport by all queue pairs (or sockets) of a NIC to a peer's NIC, resent bytes included.",
    _PAIR,
)
RECEIVED_BYTES = MetricSpec(
    "fabricpulse_qp_received_bytes_total",
    "counter",
    "Payload received by all queue pairs (or sockets) of a NIC from a peer's NIC.",
    _PAIR,
)
ECN_MARKED = MetricSpec(
    "fabricpulse_qp_ecn_marked_total",
    "counter",
    "Packets that arrived at the peer with a congestion mark (TCP_INFO tcpi_delivered_ce). Sockets only: what a driver "
    "counts for the port of queue pairs is in fabricpulse_nic_cnp_packets_handled_total.",
    _PAIR,
)
RETRANSMITS = MetricSpec(
    "fabricpulse_qp_retransmits_total",
    "counter",
    "Segments that the transport sent again. Sockets only: what a driver counts for the port of queue pairs is in "
    "fabricpulse_nic_retransmits_total.",
    _PAIR,
)
RESENT_CHUNKS = MetricSpec(
    "fabricpulse_qp_resent_chunks_total",
    "counter",
    "Chunks that were moved to these queue pairs from a failed lane.",
    _PAIR,
)
OWD = MetricSpec(
    "fabricpulse_qp_owd_seconds",
    "histogram",
    "One-way delay of each chunk (on a queue pair one every 5 ms), peer to device: the receiver measures it, both ends "
    "stamped on fleet time; nothing is counted while there is no fleet time.",
    _PAIR,
    DELAY_BUCKETS_S,
)
# What rules compare flows by, the quick ones of a flow, and what dashboards show as its worst.
RECENT_QUANTILES = (0.1, 0.5, 0.99)
RECENT_OWD = MetricSpec(
    "fabricpulse_qp_recent_owd_seconds",
    "summary",
    "Quantiles of fabricpulse_qp_owd_seconds over the chunks of the last delay_window_s (since the last scrape that is "
    "as old). No sample of a flow without chunks.",
    _PAIR,
)
HALF_RTT = MetricSpec(
    "fabricpulse_qp_half_rtt_seconds",
    "histogram",
    "Half of the round trip of each chunk that was sent while there was no fleet time.",
    _PAIR,
    DELAY_BUCKETS_S,
)
WORST_OWD = MetricSpec(
    "fabricpulse_qp_worst_owd_seconds",
    "gauge",
    "Mean one-way delay over the last interval of the slowest queue pairs; a series exists only while it is bad.",
    (*_PAIR, "qp"),
)
LANE_STATE = MetricSpec(
    "fabricpulse_lane_state",
    "gauge",
    "1 if a lane of the job over this NIC carries traffic, 0 if none does; TCP lanes of last resort do not count.",
    ("workload", "device"),
)
LANES = MetricSpec(
    "fabricpulse_lanes",
    "gauge",
    "Lanes of the job over this NIC by state (up, slow_start, connecting, fencing, down, damped, disabled, "
    "last_resort, spare); connecting: never up, though dialled for 5 s beside lanes that are; last_resort: TCP, "
    "carries a connection none of whose queue pairs is up; spare: such a lane that is not needed now.",
    ("workload", "device", "state"),
)
LANE_FAILOVERS = MetricSpec(
    "fabricpulse_lane_failovers_total",
    "counter",
    "Times that a lane over this NIC failed and its traffic was moved.",
    ("workload", "device"),
)
LANE_STALLS = MetricSpec(
    "fabricpulse_lane_stalls_total",
    "counter",
    "Failovers that the stall timer detected first.",
    ("workload", "device"),
)
LANE_REPATHS = MetricSpec(
    "fabricpulse_lane_repaths_total",
    "counter",
    "Times that a lane over this NIC was put on another path (new source port or flow label).",
    ("workload", "device"),
)
LANE_CORRUPT_FRAMES = MetricSpec(
    "fabricpulse_lane_corrupt_frames_total",
    "counter",
    "Frames that arrived over this NIC with a wrong checksum; they were discarded and sent again.",
    ("workload", "device"),
)
NIC_AVOIDED = MetricSpec(
    "fabricpulse_lane_nic_avoided",
    "gauge",
    "Processes of the job that avoid this NIC by a command (nic.avoid).",
    ("workload", "device"),
)
COLLECTIVE_BANDWIDTH = MetricSpec(
    "fabricpulse_collective_bandwidth_bytes_per_second",
    "gauge",
    "Payload of one rank by duration, over the operations that ended in the last interval.",
    ("workload", "collective"),
)
COLLECTIVE_OPERATIONS = MetricSpec(
    "fabricpulse_collective_operations_total",
    "counter",
    "Collectives that ended.",
    ("workload", "collective"),
)
COLLECTIVE_BYTES = MetricSpec(
    "fabricpulse_collective_bytes_total",
    "counter",
    "Payload of one rank, summed over the collectives that ended.",
    ("workload", "collective"),
)
COLLECTIVE_BUSY = MetricSpec(
    "fabricpulse_collective_busy_seconds_total",
    "counter",
    "Durations of the collectives that ended, summed.",
    ("workload", "collective"),
)
_RANK = ("workload", "communicator", "rank")
RANK_OPERATIONS = MetricSpec(
    "fabricpulse_rank_operations_total",
    "counter",
    "Collectives (no sends and receives) of one rank of a communicator that ended: the progress of the rank.",
    _RANK,
)
RANK_BUSY = MetricSpec(
    "fabricpulse_rank_busy_seconds_total",
    "counter",
    "Summed durations of a rank's ended collectives. All ranks end together: a late rank spends less time in them.",
    _RANK,
)
RANK_IN_PROGRESS = MetricSpec(
    "fabricpulse_rank_operations_in_progress",
    "gauge",
    "Collectives of one rank of a communicator that have been started and have not ended.",
    _RANK,
)
RANK_STALLED = MetricSpec(
    "fabricpulse_rank_stalled_seconds",
    "gauge",
    "For how long a rank of a communicator has been inside collectives of which none ends; only where that is longer "
    "than alerting.stalled_s, and than twice the longest such wait of its job in the last day, up to 300 s, or 1.5 "
    "times the second longest that was too long, up to 30 minutes; than 30 s "
    "until the job has been watched for two hours. uid : of the job's user; others may use the names.",
    (*_RANK, "uid"),
)
RANK_UNMOVED = MetricSpec(
    "fabricpulse_rank_unmoved_operations",
    "gauge",
    "Collectives that have ended of a rank of which none has ended for long. state : inside: it is in one, as long as "
    "fabricpulse_rank_stalled_seconds is there; outside: in none, while for half as long, or 15 s, none "
    "has ended on any rank of its job on this host, and no such rank is inside another communicator that moves.",
    (*_RANK, "state", "uid"),
)
HEARTBEAT_AGE = MetricSpec(
    "fabricpulse_plugin_heartbeat_age_seconds",
    "gauge",
    "Time since the last heartbeat of the plugin in a process of the job: 1 or less, unless the process is stopped "
    "or stuck. rank : the launcher's.",
    ("workload", "rank", "pid"),
)
PLUGIN_SILENT = MetricSpec(
    "fabricpulse_plugin_silent_seconds",
    "gauge",
    "fabricpulse_plugin_heartbeat_age_seconds of the processes for which it is more than 2: stopped, stuck or dead.",
    ("workload", "rank", "pid"),
)
REQUEST_WAITING = MetricSpec(
    "fabricpulse_request_waiting_seconds",
    "gauge",
    "Age of the oldest unfinished request to or from a peer rank and what it waits for; only the oldest few, only "
    "while old. uid : of the job's user.",
    ("workload", "rank", "peer", "peer_rank", "waits_for", "uid"),
)
REQUEST_MISSING = MetricSpec(
    "fabricpulse_request_missing_bytes",
    "gauge",
    "Bytes of the requests of fabricpulse_request_waiting_seconds that the peer does not hold, or that have not "
    "arrived of a message of which a part has; not where that is unknown. channel : NCCL's, empty when unknown "
    "(detail 2).",
    ("workload", "rank", "peer", "peer_rank", "waits_for", "channel", "uid"),
)
RANK_WAITED = MetricSpec(
    "fabricpulse_request_waited_seconds_total",
    "counter",
    "Time in which requests of a rank have not moved for 50 ms or more, whatever they waited for; not while its "
    "process had no heartbeat.",
    ("workload", "rank"),
)
PEER_WAITED = MetricSpec(
    "fabricpulse_request_waited_for_peer_seconds_total",
    "counter",
    "Time in which requests of a rank have waited for a peer rank that had not posted its data, or a receive for ours. "
    "Of the 64 peers that were waited for most.",
    ("workload", "rank", "peer", "peer_rank"),
)
FLOW_CONNECTIONS = MetricSpec(
    "fabricpulse_flow_connections",
    "gauge",
    "Open connections of the job by what they carried when NCCL's profiler was last asked (detail 2 only).",
    ("workload", "collective", "algorithm", "protocol"),
)
WORST_FLOW = MetricSpec(
    "fabricpulse_qp_worst_flow_info",
    "gauge",
    "What a queue pair of fabricpulse_qp_worst_owd_seconds carries, and between which ranks; always 1 (detail 2 only).",
    ("workload", "device", "peer", "peer_device", "qp", "collective", "algorithm", "protocol", "rank", "peer_rank",
     "channel"),
)  # fmt: skip
PROCESSES = MetricSpec(
    "fabricpulse_qp_processes",
    "gauge",
    "Processes of the job on this host whose telemetry is read.",
    ("workload",),
)
DEAD_PROCESSES = MetricSpec(
    "fabricpulse_qp_dead_processes",
    "gauge",
    "Processes of the job on this host that are gone and have left their telemetry behind, as those do that are killed "
    "or crash; until it is removed (cleanup_after_s).",
    ("workload",),
)
WORKLOAD_INFO = MetricSpec(
    "fabricpulse_workload_info",
    "gauge",
    "What the scheduler calls a workload that has processes on this host; always 1. slurm_job, pod_uid : by the cgroup "
    "of a process where source is cgroup, else as its environment says. user : of the process. account, nodes, "
    "pod_namespace, pod_name : as its environment says.",
    ("workload", "slurm_job", "pod_namespace", "pod_name", "pod_uid", "user", "account", "nodes", "source"),
)
WORKLOAD_START = MetricSpec(
    "fabricpulse_workload_start_timestamp_seconds",
    "gauge",
    "Start of the oldest process of the workload on this host, seconds since 1970, by the kernel.",
    ("workload",),
)
TELEMETRY_ERRORS = MetricSpec(
    "fabricpulse_qp_telemetry_errors_total",
    "counter",
    "Telemetry files that could not be read, counted at each poll: another layout, no regular file, truncated, a "
    "writer that died in the middle of a change, too many of one user.",
)

DROPPED_RECORDS = MetricSpec(
    "fabricpulse_qp_dropped_records_total",
    "counter",
    "Pairs and collectives found in telemetry and not kept, because their user has too many; counted at each poll.",
)

PEER_ERRORS = MetricSpec(
    "fabricpulse_qp_peer_errors_total",
    "counter",
    "Times that the qp exporter of a host was asked what its ranks wait for, because a rank here is stuck on one of "
    "them, and did not answer. Only where stalls are pushed.",
)

METRICS = (
    LANE_STATE,
    LANES,
    LANE_FAILOVERS,
    LANE_STALLS,
    LANE_REPATHS,
    LANE_CORRUPT_FRAMES,
    NIC_AVOIDED,
    PROCESSES,
    DEAD_PROCESSES,
    WORKLOAD_INFO,
    WORKLOAD_START,
    TELEMETRY_ERRORS,
    DROPPED_RECORDS,
    PEER_ERRORS,
    COLLECTIVE_BANDWIDTH,
    COLLECTIVE_OPERATIONS,
    COLLECTIVE_BYTES,
    COLLECTIVE_BUSY,
    RANK_OPERATIONS,
    RANK_BUSY,
    RANK_IN_PROGRESS,
    RANK_STALLED,
    RANK_UNMOVED,
    HEARTBEAT_AGE,
    PLUGIN_SILENT,
    FLOW_CONNECTIONS,
    REQUEST_WAITING,
    REQUEST_MISSING,
    RANK_WAITED,
    PEER_WAITED,
    SENT_BYTES,
    RECEIVED_BYTES,
    ECN_MARKED,
    RETRANSMITS,
    RESENT_CHUNKS,
    WORST_OWD,
    WORST_FLOW,
    RECENT_OWD,
    OWD,
    HALF_RTT,
    *VERBS_METRICS,
)
