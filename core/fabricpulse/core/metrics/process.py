"""`process_*`: metrics of the exporter's own process, under the names that all exporters use.

The one part that prometheus-client writes: its names and their meaning are standard.
"""

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from fabricpulse.core.metrics.formats import TextFormat

_registry = CollectorRegistry()
ProcessCollector(registry=_registry)


def process_metrics(text_format: TextFormat) -> bytes:
    """The families of this process; a part of an exposition, without its end."""
    if text_format is TextFormat.OPENMETRICS:
        text: bytes = openmetrics.generate_latest(_registry)  # type: ignore[no-untyped-call]
        return text.removesuffix(text_format.end)
    return generate_latest(_registry)
