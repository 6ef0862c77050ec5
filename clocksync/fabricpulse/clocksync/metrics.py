"""Metrics of clocksync: `fabricpulse_clock_*` of a sidecar, `fabricpulse_clocksync_*` of the coordinator."""

from fabricpulse.core.metrics.catalogue import MetricSpec

BOUND = MetricSpec(
    "fabricpulse_clock_error_bound_seconds",
    "gauge",
    "Error bound of fleet time on this host: true time is no farther away; grows in holdover; +Inf while unknown.",
)
ESTIMATED_ERROR = MetricSpec(
    "fabricpulse_clock_estimated_error_seconds",
    "gauge",
    "Likely error of fleet time on this host, while known: 99 % of what its edges measured in the last "
    "minutes agrees within it with what all others predict. An estimate; the guarantee is the bound, which it is never "
    "above.",
)
OFFSET = MetricSpec("fabricpulse_clock_offset_seconds", "gauge", "Fleet time minus this host's system clock.")
FREQUENCY = MetricSpec(
    "fabricpulse_clock_frequency_ratio",
    "gauge",
    "Rate of fleet time divided by the rate of this host's system clock.",
)
SYNCHRONIZED = MetricSpec(
    "fabricpulse_clock_synchronized",
    "gauge",
    "1 while fleet time on this host is synchronized (follows fresh corrections), else 0.",
)
STATUS = MetricSpec(
    "fabricpulse_clock_status",
    "gauge",
    "1 for the current status of fleet time: unknown, synchronized, holdover, disrupted; 0 for the others.",
    ("status",),
)
HOST_CLOCK_STEPS = MetricSpec(
    "fabricpulse_clock_host_steps_total",
    "counter",
    "Clock steps of this host's CLOCK_REALTIME, and slews of more than 20 us between two samples; fleet time does not "
    "notice.",
)
CONTRADICTIONS = MetricSpec(
    "fabricpulse_clock_contradictions_total",
    "counter",
    "Times that fleet time of this host was found wrong and set again, by what showed it: causality (delays below 0), "
    "edges (clocks of most peers jumped at once), epoch (the mesh began another stamp clock), suspend, vmclock.",
    ("source",),
)
SLEW = MetricSpec(
    "fabricpulse_clock_slew_seconds",
    "gauge",
    "Offset that is still to be slewed: the last correction minus fleet time as published.",
)
EDGES = MetricSpec(
    "fabricpulse_clock_edges",
    "gauge",
    "Edges by fit quality in the last round; peer: fitted by the other end; none: not fitted.",
    ("quality",),
)
EDGE_RESIDUAL = MetricSpec(
    "fabricpulse_clock_edge_residual_seconds",
    "gauge",
    "Residual of the solve (measured offset minus solved offset), for the few worst edges of this host.",
    ("device", "peer", "peer_device"),
)
EDGE_STEPS = MetricSpec(
    "fabricpulse_clock_edge_steps_total",
    "counter",
    "Estimation windows of edges that were cut by a clock step.",
)
ROUTE_CHANGES = MetricSpec(
    "fabricpulse_clock_route_changes_total",
    "counter",
    "Estimation windows of edges that were cut by a route change.",
)
SAMPLES = MetricSpec("fabricpulse_clock_samples_total", "counter", "Probe samples read from the ring.")
SAMPLES_LOST = MetricSpec(
    "fabricpulse_clock_samples_lost_total", "counter", "Probe samples overwritten before they were read."
)
COORDINATOR_UP = MetricSpec(
    "fabricpulse_clock_coordinator_up", "gauge", "1 if a coordinator answered the last report."
)
REPORT_ERRORS = MetricSpec(
    "fabricpulse_clock_report_errors_total", "counter", "Reports that no coordinator answered.", ("reason",)
)
SUSPECT = MetricSpec(
    "fabricpulse_clock_suspect",
    "gauge",
    "1 while the coordinator suspects this host of being faulty: its stamps, or its UTC, contradict the fleet.",
)
FIT_SECONDS = MetricSpec(
    "fabricpulse_clock_fit_seconds", "gauge", "CPU time of fitting all edges in the last round."
)

OUTPUT_SAMPLES = MetricSpec(
    "fabricpulse_clock_output_samples_total",
    "counter",
    "Samples of fleet time given to other daemons of this host.",
    ("output",),
)
OUTPUT_FAILURES = MetricSpec(
    "fabricpulse_clock_output_failures_total",
    "counter",
    "Samples of fleet time that a daemon of this host did not take: it is not running, or not set up for them.",
    ("output",),
)

MEMBERS = MetricSpec(
    "fabricpulse_clocksync_members", "gauge", "Hosts in the membership: those whose sidecars report."
)
UNREACHED = MetricSpec(
    "fabricpulse_clocksync_unreached_members",
    "gauge",
    "Members that no edge connects to the timeline.",
)
QUORUM = MetricSpec(
    "fabricpulse_clocksync_quorum",
    "gauge",
    "1 while the last solve had a quorum: an anchor, or most hosts of the previous quorum; 0: minority partition.",
)
SOLVES = MetricSpec("fabricpulse_clocksync_solves_total", "counter", "Solves of the fleet's clocks.")
SOLVE_SECONDS = MetricSpec("fabricpulse_clocksync_solve_seconds", "gauge", "Duration of the last solve.")
SOLVE_FAILURES = MetricSpec("fabricpulse_clocksync_solve_failures_total", "counter", "Solves that failed.")
SOLVE_EDGES = MetricSpec("fabricpulse_clocksync_edges", "gauge", "Edge fits in the last solve.")
RESIDUAL = MetricSpec(
    "fabricpulse_clocksync_residual_seconds",
    "gauge",
    "Median absolute residual of the edges in the last solve.",
)
HELD_OUT = MetricSpec(
    "fabricpulse_clocksync_held_out_residual_seconds",
    "gauge",
    "What edges measure minus what all others predict, in the last solve: this share of the edges (0.5, 0.99) is "
    "within. "
    "The error to expect between neighbours, and that of the edge itself on top; no bound, as what all edges of a host "
    "hide does not show.",
    ("share",),
)
OUTLIERS = MetricSpec(
    "fabricpulse_clocksync_outlier_edges", "gauge", "Edges with an outlying residual in the last solve."
)
SUSPECTS = MetricSpec(
    "fabricpulse_clocksync_suspect",
    "gauge",
    "1 for each host suspected of being faulty: its stamps, or its UTC, contradict the fleet.",
    ("peer",),
)
NIC_BIAS = MetricSpec(
    "fabricpulse_clocksync_nic_bias_seconds",
    "gauge",
    "How far the stamps of a NIC are ahead of the mean of its host's NICs, for the few of the fleet that are furthest. "
    "It is taken off what its edges measure.",
    ("peer", "peer_device"),
)
DATAGRAMS = MetricSpec(
    "fabricpulse_clocksync_datagrams_total",
    "counter",
    "Reports as datagrams by outcome: taken, answered, or why not; overflowed: the kernel had no room.",
    ("outcome",),
)

METRICS = (
    *(
        BOUND,
        ESTIMATED_ERROR,
        OFFSET,
        FREQUENCY,
        SYNCHRONIZED,
        STATUS,
        HOST_CLOCK_STEPS,
        CONTRADICTIONS,
        SLEW,
    ),
    *(EDGES, EDGE_RESIDUAL, EDGE_STEPS, ROUTE_CHANGES, SAMPLES, SAMPLES_LOST, COORDINATOR_UP, REPORT_ERRORS),
    *(SUSPECT, FIT_SECONDS, OUTPUT_SAMPLES, OUTPUT_FAILURES),
    *(
        MEMBERS,
        QUORUM,
        UNREACHED,
        SOLVES,
        SOLVE_SECONDS,
        SOLVE_FAILURES,
        SOLVE_EDGES,
        RESIDUAL,
        HELD_OUT,
        OUTLIERS,
        SUSPECTS,
    ),
    NIC_BIAS,
    DATAGRAMS,
)
