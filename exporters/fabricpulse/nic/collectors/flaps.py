"""What the flap tracker has counted."""

from collections.abc import Sequence

from fabricpulse.core.metrics.exposition import format_value, render_labels
from fabricpulse.nic.collectors.contract import HOST, Context
from fabricpulse.nic.flap_service import FlapService
from fabricpulse.nic.metrics import flaps as m


class FlapCollector:
    """Exports the state that the link events have left; reads nothing itself."""

    name = "flaps"

    def __init__(self, service: FlapService) -> None:
        self._service = service

    def targets(self, context: Context) -> Sequence[str]:
        return [HOST]

    def collect(self, target: str, context: Context) -> None:
        sink = context.sink
        for name, state in self._service.snapshot().items():
            labels = self._service.labels(name)
            sink.add(m.DOWN_TRANSITIONS, labels, state.downs)
            sink.add(m.UP_TRANSITIONS, labels, state.ups)
            sink.add(m.UNOBSERVED, labels, state.unobserved)
            if state.last_transition_s is not None:
                sink.add(m.LAST_TRANSITION, labels, state.last_transition_s)
            self._histogram(labels, list(state.flap_counts), state.flap_seconds, context)
        for source, count in sorted(self._service.events.items()):
            sink.add(m.EVENTS, (source,), count)
        for source, count in sorted(self._service.overruns.items()):
            sink.add(m.OVERRUNS, (source,), count)

    @staticmethod
    def _histogram(labels: Sequence[str], counts: list[int], total: float, context: Context) -> None:
        spec, running = m.FLAP_SECONDS, 0
        for bound, count in zip((*spec.buckets, float("inf")), counts, strict=True):
            running += count
            rendered = render_labels(spec, labels, f'le="{format_value(bound)}"')
            context.sink.line(spec.name, f"{spec.name}_bucket{rendered} {running}\n")
        plain = render_labels(spec, labels)
        context.sink.line(spec.name, f"{spec.name}_sum{plain} {format_value(total)}\n")
        context.sink.line(spec.name, f"{spec.name}_count{plain} {running}\n")

    def close(self) -> None:
        """Nothing is held."""
