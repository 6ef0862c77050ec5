"""Metrics of every daemon that pushes alerts, and their samples."""

from collections.abc import Mapping

from fabricpulse.core.alerting.pusher import PushCounters
from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.web.urls import redact

PUSHES = MetricSpec(
    "fabricpulse_alert_pushes_total",
    "counter",
    "Pushes to an Alertmanager, failed ones included; each carries all alerts that are due.",
    ("alertmanager",),
)
PUSH_FAILURES = MetricSpec(
    "fabricpulse_alert_push_failures_total",
    "counter",
    "Pushes that an Alertmanager did not take, by reason: refused (it answered with an error), unreachable.",
    ("alertmanager", "reason"),
)
PUSH_SUCCESS = MetricSpec(
    "fabricpulse_alert_push_success",
    "gauge",
    "1 if the Alertmanager took the last push, 0 if not. No sample before the first.",
    ("alertmanager",),
)
METRICS = (PUSHES, PUSH_FAILURES, PUSH_SUCCESS)


def expose_pushes(pushes: Mapping[str, PushCounters], out: Exposition) -> None:
    """Adds the samples, by the Alertmanager's URL."""
    for url, counters in pushes.items():
        name = redact(url)
        out.add(PUSHES, (name,), counters.requests)
        out.add(PUSH_FAILURES, (name, "refused"), counters.refused)
        out.add(PUSH_FAILURES, (name, "unreachable"), counters.unreachable)
        if counters.taken is not None:
            out.add(PUSH_SUCCESS, (name,), int(counters.taken))
