"""What the flap tracker has counted."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Self

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import format_value, render_labels
from fabricpulse.nic.collectors.base import HOST, Collector, Context, Environment, register
from fabricpulse.nic.flap_service import FlapService
from fabricpulse.nic.flap_tracker import OUTAGE_BOUNDS_S
from fabricpulse.nic.metric_spec import PORT, counter, gauge

DOWN_TRANSITIONS = counter(
    "port_down_transitions",
    "Times the link went down: rtnetlink events, closed with the kernel's carrier_down_count for the time before start "
    "and during restarts; kept in the run directory.",
    PORT,
)
UP_TRANSITIONS = counter(
    "port_up_transitions",
    "Times the link came up: rtnetlink events, closed with the kernel's carrier_up_count for the time before start and "
    "during restarts; kept in the run directory.",
    PORT,
)
UNOBSERVED = counter(
    "port_down_transitions_unobserved",
    "Link downs (also in port_down_transitions) that only the kernel's counter shows: time and duration are unknown.",
    PORT,
)
LAST_TRANSITION = gauge(
    "port_last_transition_timestamp_seconds",
    "When the link last went up or down while the exporter ran, Unix time; absent until it has.",
    PORT,
)
# As the mesh exporter says of disconnects: the longest window within which they can be counted, and how many.
KEPT_S = 7200.0
MOST = 20
RECENT_DOWN_AGE = gauge(
    "port_recent_down_age_seconds",
    "How long ago the link went down, as of the first scrape after it, the last 20 times within two hours while the "
    "exporter ran; nth : 1 is the last.",
    (*PORT, "nth"),
)
FLAP_SECONDS = MetricSpec(
    "fabricpulse_nic_flap_duration_seconds",
    "histogram",
    "How long the link was down, for outages that were seen to begin and to end.",
    PORT,
    OUTAGE_BOUNDS_S,
)
EVENTS = counter(
    "events", "Link and device events taken in, by source: rtnetlink, poll, verbs, kernel_log.", ("source",)
)
OVERRUNS = counter(
    "event_overruns",
    "Times a source lost events because the exporter was late (rtnetlink ENOBUFS, kmsg EPIPE); the state was then read again.",
    ("source",),
)


class RecentDowns:
    """When links went down lately, by their counts at each scrape. Pure: times are seconds of one clock."""

    def __init__(self) -> None:
        self._downs: dict[str, int] = {}
        self._times: dict[str, deque[float]] = {}

    def ages(self, link: str, downs: int, now: float) -> Iterator[float]:
        """Takes in how often a link has gone down; seconds since each time, the last one first."""
        times = self._times.setdefault(link, deque(maxlen=MOST))
        # Nothing is known of when those before the first scrape were.
        times.extendleft([now] * min(max(0, downs - self._downs.get(link, downs)), MOST))
        self._downs[link] = downs
        return (now - time for time in times if now - time < KEPT_S)


@register()
class FlapCollector(Collector):
    """Exports the state that the link events have left; reads nothing itself."""

    name = "flaps"
    order = 15

    @classmethod
    def make(cls, environment: Environment) -> Self:
        return cls(environment.flaps)

    def __init__(self, service: FlapService) -> None:
        self._service = service
        self._recent = RecentDowns()

    def targets(self, context: Context) -> Sequence[str]:
        return [HOST]

    def collect(self, target: str, context: Context) -> None:
        sink = context.sink
        for name, state in self._service.snapshot().items():
            labels = self._service.series_labels(name)
            sink.add(DOWN_TRANSITIONS, labels, state.downs)
            sink.add(UP_TRANSITIONS, labels, state.ups)
            sink.add(UNOBSERVED, labels, state.unobserved)
            for nth, age_s in enumerate(self._recent.ages(name, state.downs, context.now), start=1):
                sink.add(RECENT_DOWN_AGE, (*labels, str(nth)), age_s)
            if state.last_transition_s is not None:
                sink.add(LAST_TRANSITION, labels, state.last_transition_s)
            self._histogram(labels, list(state.flap_counts), state.flap_seconds, context)
        for source, count in sorted(self._service.events.items()):
            sink.add(EVENTS, (source,), count)
        for source, count in sorted(self._service.overruns.items()):
            sink.add(OVERRUNS, (source,), count)

    @staticmethod
    def _histogram(labels: Sequence[str], counts: list[int], total: float, context: Context) -> None:
        spec, running = FLAP_SECONDS, 0
        for bound, count in zip((*spec.buckets, float("inf")), counts, strict=True):
            running += count
            rendered = render_labels(spec, labels, f'le="{format_value(bound)}"')
            context.sink.line(spec.name, f"{spec.name}_bucket{rendered} {running}\n")
        plain = render_labels(spec, labels)
        context.sink.line(spec.name, f"{spec.name}_sum{plain} {format_value(total)}\n")
        context.sink.line(spec.name, f"{spec.name}_count{plain} {running}\n")
