"""What the mesh exporter exports."""

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.mesh import _probe_engine as native

_NIC = ("device", "network")
_NIC_AND_LEAF = (*_NIC, "leaf")  # "" where it is not known
_EDGE = ("device", "peer", "peer_device")


def _seconds(bounds_ns: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(bound / 1e9 for bound in bounds_ns)


NIC_CONNECTED = MetricSpec(
    "fabricpulse_nic_connected",
    "gauge",
    "1 if the NIC exchanges probes with at least one peer in both directions, 0 if with none for probe.down_after_s. "
    "No sample while it is unknown.",
    _NIC_AND_LEAF,
)
NIC_STATE = MetricSpec(
    "fabricpulse_nic_state",
    "gauge",
    "1 for the state that the NIC is in: connected, disconnected or unknown.",
    (*_NIC, "state"),
)
NIC_CAUSE = MetricSpec(
    "fabricpulse_nic_disconnect_cause",
    "gauge",
    "1 while the NIC is disconnected or unknown, by cause: silent (no probe of any peer arrives), link (no carrier, "
    "down, or gone), "
    "one_way (probes of peers arrive, ours do not arrive there), never_seen (since the start), peer_gone (the only "
    "host that it "
    "reached is silent on other NICs too), one_peer_only (its only peer host is silent, and it is not known which "
    "end "
    "has failed), no_socket (this exporter cannot open its probe socket).",
    (*_NIC, "cause"),
)
NIC_DISCONNECTS = MetricSpec(
    "fabricpulse_nic_disconnects_total",
    "counter",
    "How often the NIC has lost all of its peers for longer than probe.down_after_s.",
    _NIC_AND_LEAF,
)
NIC_DISCONNECTED = MetricSpec(
    "fabricpulse_nic_disconnected",
    "gauge",
    "1 while the NIC is disconnected, and 0 for ten minutes after it was, and after the start: the opposite of "
    "fabricpulse_nic_connected, only of NICs of which there is something to say.",
    _NIC_AND_LEAF,
)
NIC_DISCONNECT_AGE = MetricSpec(
    "fabricpulse_nic_recent_disconnect_age_seconds",
    "gauge",
    "How long ago the NIC was disconnected the last time (nth=1), the time before (nth=2) and so on, since this "
    "exporter was started: the last twenty times within two hours.",
    (*_NIC_AND_LEAF, "nth"),
)
NIC_RECONNECTS = MetricSpec(
    "fabricpulse_nic_reconnects_total",
    "counter",
    "How often a disconnected NIC has exchanged probes with a peer again.",
    _NIC,
)
NIC_CHANGED = MetricSpec(
    "fabricpulse_nic_state_change_timestamp_seconds",
    "gauge",
    "When the NIC's state last changed, by this host's clock; 0 if never.",
    _NIC,
)
NIC_OUTAGE = MetricSpec(
    "fabricpulse_nic_disconnect_duration_seconds",
    "histogram",
    "How long disconnects have lasted, from the last probe of a peer to the next.",
    _NIC,
    _seconds(native.OUTAGE_BUCKETS_NS),
)
PROBE_OWD = MetricSpec(
    "fabricpulse_probe_owd_seconds",
    "histogram",
    "True one-way delay of probe trains, peer to device, all peers and paths, on fleet time. Below 0 counts as 0.",
    _NIC,
    _seconds(native.OWD_BUCKETS_NS),
)
# Over how long the quantiles are taken, s, and which.
RECENT_OWD_S = 300.0
RECENT_QUANTILES = (0.5, 0.99)
RECENT_OWD = MetricSpec(
    "fabricpulse_probe_recent_owd_seconds",
    "summary",
    "Quantiles of fabricpulse_probe_owd_seconds over the probe trains of the last five minutes (since the last scrape "
    "that is as old). No sample of a NIC for which none was counted.",
    _NIC,
)
PROBES_DROPPED = MetricSpec(
    "fabricpulse_probes_dropped_total",
    "counter",
    "Packets that arrived and were rejected: malformed, wrong_fleet (unknown key), bad_mac, replay, not_a_member, "
    "unconfirmed (a restarted peer that has not yet echoed a recent packet of ours), rate.",
    (*_NIC, "reason"),
)
PROBE_OVERFLOWS = MetricSpec(
    "fabricpulse_probe_receive_overflows_total",
    "counter",
    "Packets that the kernel dropped because this host was too slow to take them.",
    _NIC,
)
PROBE_STAMPS_LOST = MetricSpec(
    "fabricpulse_probe_tx_stamps_lost_total",
    "counter",
    "Transmit time stamps that never came back, or could not be identified.",
    _NIC,
)
NIC_STAMPS = MetricSpec(
    "fabricpulse_probe_nic_stamps",
    "gauge",
    "1 while the NIC's own time stamps are used (in the last 2 s), 0 while the kernel's are although they are asked "
    "for. No sample of a NIC that does not stamp packets, or that is not asked to.",
    _NIC,
)
NIC_CLOCK_LOST = MetricSpec(
    "fabricpulse_probe_nic_clock_lost_total",
    "counter",
    "Times that the NIC's clock was stepped, steered too hard to follow, or did not run like a clock.",
    _NIC,
)
NIC_CLOCK_ERROR = MetricSpec(
    "fabricpulse_probe_nic_clock_error_bound_seconds",
    "gauge",
    "How far a reading of the NIC's clock may be off the host's raw clock.",
    _NIC,
)
SEND_ERRORS = MetricSpec(
    "fabricpulse_probe_send_errors_total",
    "counter",
    "Probes that the kernel refused to send (link down, no route, full queue).",
    _NIC,
)
NIC_EDGES = MetricSpec(
    "fabricpulse_nic_edges",
    "gauge",
    "Edges of the NIC by state: up, down, unknown; degraded: of those that are up, with a source port that is down, "
    "lossy or slow.",
    (*_NIC, "state"),
)
NIC_PROBES = MetricSpec(
    "fabricpulse_nic_probes_total",
    "counter",
    "Probe packets of all edges of the NIC: sent, received, inbound_lost and outbound_lost.",
    (*_NIC, "event"),
)
EDGE_UP = MetricSpec(
    "fabricpulse_edge_up",
    "gauge",
    "1 if probes pass in both directions, 0 if not for probe.down_after_s. No sample while it is unknown.",
    _EDGE,
)
EDGE_SENT = MetricSpec(
    "fabricpulse_edge_probes_sent_total", "counter", "Probe packets sent to the peer.", _EDGE
)
EDGE_RECEIVED = MetricSpec(
    "fabricpulse_edge_probes_received_total",
    "counter",
    "Authentic probe packets received from the peer.",
    _EDGE,
)
EDGE_LOST = MetricSpec(
    "fabricpulse_edge_probes_lost_total",
    "counter",
    "Probe packets of the peer that did not arrive, by its numbering; while nothing arrives, by the rate at "
    "which it sends.",
    _EDGE,
)
EDGE_OUTBOUND_LOST = MetricSpec(
    "fabricpulse_edge_outbound_probes_lost_total",
    "counter",
    "Probe packets to the peer that it has not received, by the count that it reports. Constant while nothing "
    "arrives from it.",
    _EDGE,
)
EDGE_RTT = MetricSpec(
    "fabricpulse_edge_rtt_seconds",
    "gauge",
    "Round-trip time on the main path, median of the last 16 pairs of trains, from the stamps of both ends: "
    "needs no common "
    "clock.",
    _EDGE,
)
EDGE_DEGRADED = MetricSpec(
    "fabricpulse_edge_paths_degraded_ratio",
    "gauge",
    "Share of the peer's source ports that are down, lose packets or are slower than they used to be. No sample "
    "when none.",
    _EDGE,
)
EDGE_WORST_LOSS = MetricSpec(
    "fabricpulse_edge_worst_path_loss_ratio",
    "gauge",
    "Loss of the last minute on the source port that loses most, if more than a healthy path does: in two "
    "trains or more, "
    "and one packet in 2,000. No sample when none does.",
    _EDGE,
)
EDGE_INBOUND = MetricSpec(
    "fabricpulse_edge_inbound_up",
    "gauge",
    "1 if probes of the peer arrive. No sample before the first.",
    _EDGE,
)
EDGE_OUTBOUND = MetricSpec(
    "fabricpulse_edge_outbound_up",
    "gauge",
    "1 if the peer reports that it receives our probes. No sample while nothing arrives from the peer.",
    _EDGE,
)
EDGE_OWD = MetricSpec(
    "fabricpulse_edge_owd_seconds",
    "summary",
    "True one-way delay, peer to device, main path, on fleet time. Quantiles: over the last 1 to 2 "
    "latency.window_s, "
    "as measured: below 0 shows the error of the clocks. In the sum below 0 counts as 0.",
    _EDGE,
)
EDGE_OWD_BOUND = MetricSpec(
    "fabricpulse_edge_owd_error_bound_seconds",
    "gauge",
    "The true delay differs from the measured one by no more than this: the sum of both clocks' bounds.",
    _EDGE,
)
EDGE_PATH_OWD = MetricSpec(
    "fabricpulse_edge_path_owd_seconds",
    "gauge",
    "One-way delay of the best, median and worst source port of the sweep (each the median of its last trains).",
    (*_EDGE, "path"),
)
EDGE_WORST_PORT = MetricSpec(
    "fabricpulse_edge_worst_path_port",
    "gauge",
    "UDP source port, at the peer, of the worst path, while paths are degraded: one that is down, else the one "
    "that loses "
    "most, else one that drops large packets, else the slowest.",
    _EDGE,
)
EDGE_PATHS_DOWN = MetricSpec(
    "fabricpulse_edge_paths_down",
    "gauge",
    "Source ports of the sweep that do not arrive while others do.",
    _EDGE,
)
EDGE_BASELINE = MetricSpec(
    "fabricpulse_edge_owd_baseline_seconds",
    "gauge",
    "Baseline: median delay of this edge while it is healthy: one-way, or round trip while there is no fleet time.",
    _EDGE,
)
EDGE_ELEVATED = MetricSpec(
    "fabricpulse_edge_latency_elevated",
    "gauge",
    "1 if the delay of the main path (round trip while there is no fleet time) has been above its limit for "
    "some seconds. No sample while nothing arrives. With per_edge: worst, of edges of a NIC that are only slow, three.",
    _EDGE,
)
EDGE_BLACK_HOLE = MetricSpec(
    "fabricpulse_edge_mtu_black_hole_bytes",
    "gauge",
    "Smallest IP packet that is dropped for its size on a source port whose small packets arrive. No sample when all "
    "sizes that are probed arrive, up to the peer's MTU.",
    _EDGE,
)
EDGE_EVIDENCE = MetricSpec(
    "fabricpulse_edge_evidence",
    "gauge",
    "1 while this host sees something wrong with the edge: own_nic_disconnected, peer_silent, peer_host_silent (no "
    "NIC of several), peer_nic_silent (another one sends), pair_silent (it sends on another edge), "
    "peer_receives_nothing (our probes do not arrive), "
    "paths_down. An observation of this host, no diagnosis. No sample when healthy.",
    (*_EDGE, "evidence"),
)
FRONT_END_CONNECTED = MetricSpec(
    "fabricpulse_front_end_connected",
    "gauge",
    "1 if a server on this host's front-end network answers, 0 if none has for three checks. No sample before "
    "one has.",
)
FRONT_END_DISCONNECTS = MetricSpec(
    "fabricpulse_front_end_disconnects_total",
    "counter",
    "How often no server on the front-end network answered. Visible afterwards only: nothing is scraped meanwhile.",
)
FRONT_END_DOWN = MetricSpec(
    "fabricpulse_front_end_disconnected_seconds_total",
    "counter",
    "How long the front-end network was disconnected, from the last answer to the next, once it is back.",
)
LATENESS = MetricSpec(
    "fabricpulse_probe_lateness_seconds",
    "histogram",
    "How late the probe engine's thread woke for its ticks. Faults are found later while it is late.",
    (),
    _seconds(native.LATENESS_BUCKETS_NS),
)
STALLS = MetricSpec(
    "fabricpulse_probe_stalls_total",
    "counter",
    "Times when this host stalled the probe engine for more than half of probe.down_after_s.",
)
STALLED = MetricSpec(
    "fabricpulse_probe_stalled_seconds_total",
    "counter",
    "Time in which the probe engine was stalled by this host; it does not count as silence of any peer.",
)
CLOCK_STEPS = MetricSpec(
    "fabricpulse_probe_clock_steps_total",
    "counter",
    "Steps of this host's clock that the probe engine has seen.",
)
ENGINE_CPU = MetricSpec(
    "fabricpulse_probe_cpu_seconds_total", "counter", "CPU time of the probe engine's thread."
)
ENGINE_REALTIME = MetricSpec(
    "fabricpulse_probe_realtime", "gauge", "1 if the probe engine's thread runs at real-time priority."
)
SAMPLES = MetricSpec(
    "fabricpulse_probe_samples_total", "counter", "Samples of probe trains written to shared memory."
)
MEMBERS = MetricSpec("fabricpulse_mesh_members", "gauge", "Hosts in the membership that this host has read.")
MEMBER = MetricSpec(
    "fabricpulse_mesh_member",
    "gauge",
    "1 if this host is in the membership that it has read, 0 if not: then it sends no probes. No sample before "
    "it has "
    "read one.",
)
MEMBERSHIP_SUCCESS = MetricSpec(
    "fabricpulse_mesh_membership_success", "gauge", "1 if the membership could be read at the last attempt."
)
MEMBERSHIP_HELD = MetricSpec(
    "fabricpulse_mesh_membership_held",
    "gauge",
    "1 while a membership that has lost more than membership.max_shrink of the hosts is held back.",
)
PATH_TRACES = MetricSpec(
    "fabricpulse_mesh_path_traces_total", "counter", "Traces of the switches that a source port crosses."
)
PATH_TRACES_UNANSWERED = MetricSpec(
    "fabricpulse_mesh_path_traces_unanswered_total",
    "counter",
    "Traces of source ports that no switch has answered.",
)
TEMPORARY_PEERS = MetricSpec(
    "fabricpulse_mesh_temporary_peers",
    "gauge",
    "Temporary peers of this host's NICs that are probed now, as the coordinator has assigned them.",
)
PATHS_KNOWN = MetricSpec(
    "fabricpulse_mesh_paths_known", "gauge", "Source ports to a peer of which at least one switch is known."
)
QUEUE_PAIR_PATHS = MetricSpec(
    "fabricpulse_mesh_queue_pair_paths",
    "gauge",
    "Source ports of queue pairs of this host's jobs. state: known (at least one switch of the path), unknown, failed "
    "(the last trace could not be sent, as a socket has the port, for one).",
    ("state",),
)
MEMBERSHIP_TIME = MetricSpec(
    "fabricpulse_mesh_membership_timestamp_seconds",
    "gauge",
    "When the membership last changed, by this host's clock.",
)
EVENTS = MetricSpec(
    "fabricpulse_mesh_events_total", "counter", "Events of the mesh exporter's event log, by kind.", ("kind",)
)
EVENTS_DROPPED = MetricSpec(
    "fabricpulse_mesh_events_dropped_total",
    "counter",
    "Events of the mesh exporter that were lost because they came faster than they could be taken.",
)

METRICS = (
    NIC_CONNECTED,
    NIC_STATE,
    NIC_CAUSE,
    NIC_DISCONNECTS,
    NIC_DISCONNECTED,
    NIC_DISCONNECT_AGE,
    NIC_RECONNECTS,
    NIC_CHANGED,
    NIC_OUTAGE,
    PROBE_OWD,
    RECENT_OWD,
    PROBES_DROPPED,
    PROBE_OVERFLOWS,
    PROBE_STAMPS_LOST,
    NIC_STAMPS,
    NIC_CLOCK_LOST,
    NIC_CLOCK_ERROR,
    SEND_ERRORS,
    NIC_EDGES,
    NIC_PROBES,
    EDGE_UP,
    EDGE_SENT,
    EDGE_RECEIVED,
    EDGE_LOST,
    EDGE_INBOUND,
    EDGE_OUTBOUND,
    EDGE_OWD,
    EDGE_OWD_BOUND,
    EDGE_PATH_OWD,
    EDGE_WORST_PORT,
    EDGE_PATHS_DOWN,
    EDGE_BASELINE,
    EDGE_ELEVATED,
    EDGE_OUTBOUND_LOST,
    EDGE_RTT,
    EDGE_DEGRADED,
    EDGE_WORST_LOSS,
    EDGE_BLACK_HOLE,
    EDGE_EVIDENCE,
    FRONT_END_CONNECTED,
    FRONT_END_DISCONNECTS,
    FRONT_END_DOWN,
    LATENESS,
    STALLS,
    STALLED,
    CLOCK_STEPS,
    ENGINE_CPU,
    ENGINE_REALTIME,
    SAMPLES,
    MEMBERS,
    MEMBER,
    MEMBERSHIP_SUCCESS,
    MEMBERSHIP_HELD,
    MEMBERSHIP_TIME,
    PATH_TRACES,
    PATH_TRACES_UNANSWERED,
    PATHS_KNOWN,
    QUEUE_PAIR_PATHS,
    TEMPORARY_PEERS,
    EVENTS,
    EVENTS_DROPPED,
)
