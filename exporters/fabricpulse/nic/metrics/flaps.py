"""Metrics of link changes and of the sources that tell them."""

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.nic.metrics.declare import LINK, counter, gauge

DOWN_TRANSITIONS = counter(
    "port_down_transitions",
    "Times the link went down: rtnetlink events, closed with the kernel's carrier_down_count for the time before start "
    "and during restarts; kept in the run directory.",
    LINK,
)
UP_TRANSITIONS = counter(
    "port_up_transitions",
    "Times the link came up: rtnetlink events, closed with the kernel's carrier_up_count for the time before start and "
    "during restarts; kept in the run directory.",
    LINK,
)
UNOBSERVED = counter(
    "port_down_transitions_unobserved",
    "Part of port_down_transitions that only the kernel's counter tells of: no time and no duration is known.",
    LINK,
)
LAST_TRANSITION = gauge(
    "port_last_transition_timestamp_seconds",
    "Host time of the last change of the link that was seen happening; absent until there is one.",
    LINK,
)
FLAP_SECONDS = MetricSpec(
    "fabricpulse_nic_flap_duration_seconds",
    "histogram",
    "How long the link was down, for outages that were seen to begin and to end.",
    LINK,
    (0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0),
)
EVENTS = counter(
    "events", "Link and device events taken in, by source: rtnetlink, poll, verbs, kernel_log.", ("source",)
)
OVERRUNS = counter(
    "event_overruns",
    "Times a source lost events because the exporter was late (rtnetlink ENOBUFS, kmsg EPIPE); the state was then read anew.",
    ("source",),
)
