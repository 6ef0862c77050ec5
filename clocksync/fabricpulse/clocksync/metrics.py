"""Metrics of clocksync. `clock` names the clock: "fleet" is fleet time on the host that is scraped."""

from fabricpulse.core.metrics.catalogue import MetricSpec

BOUND = MetricSpec(
    "fabricpulse_clock_error_bound_seconds",
    "gauge",
    "Fleet time on this host is wrong by at most this; grows without fresh measurements; +Inf at first.",
    ("clock",),
)
OFFSET = MetricSpec(
    "fabricpulse_clock_offset_seconds", "gauge", "Fleet time minus this host's system clock.", ("clock",)
)
FREQUENCY = MetricSpec(
    "fabricpulse_clock_frequency_ratio",
    "gauge",
    "Rate of fleet time divided by the rate of this host's system clock.",
    ("clock",),
)
SYNCHRONIZED = MetricSpec(
    "fabricpulse_clock_synchronized",
    "gauge",
    "1 while fleet time follows fresh measurements, else 0.",
    ("clock",),
)
STATUS = MetricSpec(
    "fabricpulse_clock_status",
    "gauge",
    "1 for the status that fleet time has now: unknown, synchronized, holdover, disrupted.",
    ("clock", "status"),
)
DISRUPTIONS = MetricSpec(
    "fabricpulse_clock_disruptions_total",
    "counter",
    "Steps of this host's system clock that were seen.",
    ("clock",),
)
SLEW = MetricSpec(
    "fabricpulse_clock_slew_seconds",
    "gauge",
    "How far fleet time still has to be slewed to be where it should.",
    ("clock",),
)
EDGES = MetricSpec(
    "fabricpulse_clock_edges",
    "gauge",
    "Edges by what their fit in the last step rests on; peer: the other end fits it; none: nobody can.",
    ("quality",),
)
EDGE_RESIDUAL = MetricSpec(
    "fabricpulse_clock_edge_residual_seconds",
    "gauge",
    "Measured clock difference minus what the fleet agrees on, for the few worst edges of this host.",
    ("device", "peer", "peer_device"),
)
EDGE_STEPS = MetricSpec(
    "fabricpulse_clock_edge_steps_total", "counter", "Times that a clock step cut the window of an edge."
)
ROUTE_CHANGES = MetricSpec(
    "fabricpulse_clock_route_changes_total",
    "counter",
    "Times that a change of route cut the window of an edge.",
)
SAMPLES = MetricSpec("fabricpulse_clock_samples_total", "counter", "Probe samples read from the ring.")
SAMPLES_LOST = MetricSpec(
    "fabricpulse_clock_samples_lost_total", "counter", "Probe samples overwritten before they were read."
)
COORDINATOR_UP = MetricSpec(
    "fabricpulse_clock_coordinator_up", "gauge", "1 if the last report to a coordinator was answered."
)
REPORT_ERRORS = MetricSpec(
    "fabricpulse_clock_report_errors_total", "counter", "Reports that no coordinator answered.", ("reason",)
)
SUSPECT = MetricSpec(
    "fabricpulse_clock_suspect",
    "gauge",
    "1 while the coordinator finds that this host's stamps, or its UTC, contradict the fleet.",
)
FIT_SECONDS = MetricSpec(
    "fabricpulse_clock_fit_seconds", "gauge", "Time that fitting all edges took in the last step."
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

MEMBERS = MetricSpec("fabricpulse_clocksync_members", "gauge", "Hosts with a lease.")
UNREACHED = MetricSpec(
    "fabricpulse_clocksync_unreached_members",
    "gauge",
    "Hosts with a lease that no edge connects to the timeline.",
)
QUORUM = MetricSpec(
    "fabricpulse_clocksync_quorum",
    "gauge",
    "1 while the last solve spoke for the fleet: it had an anchor, or most hosts of the solve before.",
)
SOLVES = MetricSpec("fabricpulse_clocksync_solves_total", "counter", "Solves of the fleet.")
SOLVE_SECONDS = MetricSpec("fabricpulse_clocksync_solve_seconds", "gauge", "Duration of the last solve.")
SOLVE_FAILURES = MetricSpec("fabricpulse_clocksync_solve_failures_total", "counter", "Solves that failed.")
SOLVE_EDGES = MetricSpec("fabricpulse_clocksync_edges", "gauge", "Edge fits in the last solve.")
RESIDUAL = MetricSpec(
    "fabricpulse_clocksync_residual_seconds", "gauge", "Median size of the edge residuals in the last solve."
)
MISFITS = MetricSpec(
    "fabricpulse_clocksync_misfit_edges", "gauge", "Edges that do not fit the fleet in the last solve."
)
SUSPECTS = MetricSpec(
    "fabricpulse_clocksync_suspect",
    "gauge",
    "1 for each host whose stamps, or UTC, contradict the fleet.",
    ("peer",),
)
DATAGRAMS = MetricSpec(
    "fabricpulse_clocksync_datagrams_total",
    "counter",
    "Reports as datagrams by what became of them: taken, answered, or why not; overflowed: the kernel had no room.",
    ("outcome",),
)

METRICS = (
    *(BOUND, OFFSET, FREQUENCY, SYNCHRONIZED, STATUS, DISRUPTIONS, SLEW),
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
        MISFITS,
        SUSPECTS,
    ),
    DATAGRAMS,
)
