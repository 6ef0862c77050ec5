"""Metrics of every daemon."""

from fabricpulse.core.metrics.catalogue import MetricSpec

# What rules may count on: it grows when they begin to read a metric that exporters give only while something is wrong,
# since one that is too old to give it looks as if all were well. FabricExporterOld asks for it.
METRICS_VERSION = 5
BUILD_INFO = MetricSpec(
    "fabricpulse_build_info",
    "gauge",
    "Always 1; the labels are the version of fabricpulse, the daemon, the Python that runs it, and which rules its "
    "metrics are enough for: a number that only grows; older daemons do not have it.",
    ("version", "daemon", "python_version", "metrics_version"),
)
EXPORTER_SERIES = MetricSpec(
    "fabricpulse_exporter_samples",
    "gauge",
    "Samples in this exposition, before the sample cap.",
)
EXPORTER_DROPPED = MetricSpec(
    "fabricpulse_exporter_dropped_samples",
    "gauge",
    "Samples that the sample cap left out of this exposition, by metric family.",
    ("family",),
)
COLLECTOR_DURATION = MetricSpec(
    "fabricpulse_scrape_collector_duration_seconds",
    "gauge",
    "How long a collector took in this scrape.",
    ("collector",),
)
COLLECTOR_SUCCESS = MetricSpec(
    "fabricpulse_scrape_collector_success",
    "gauge",
    "1 if a collector succeeded in this scrape, 0 if any part of it failed.",
    ("collector",),
)

RELOAD_SUCCESSFUL = MetricSpec(
    "fabricpulse_config_last_reload_successful",
    "gauge",
    "1 if the last attempt to load the configuration succeeded, 0 if the old one is still in force.",
)
RELOAD_TIME = MetricSpec(
    "fabricpulse_config_last_reload_success_timestamp_seconds",
    "gauge",
    "When the configuration in force was loaded, in seconds since 1970.",
)

HTTP_CONNECTIONS = MetricSpec(
    "fabricpulse_http_connections",
    "gauge",
    "Connections to this daemon by what they wait for: handshake, request head or body, active (the answer), idle.",
    ("phase",),
)
HTTP_CLOSED = MetricSpec(
    "fabricpulse_http_connections_closed_total",
    "counter",
    "Connections that this daemon has ended or refused, by reason: a time limit exceeded, or room needed.",
    ("reason",),
)
HTTP_RESPONSES = MetricSpec(
    "fabricpulse_http_responses_total",
    "counter",
    "Responses of this daemon by status code; 401 and 403 are requests without valid credentials.",
    ("code",),
)
HTTP_REQUEST_BYTES = MetricSpec(
    "fabricpulse_http_request_bytes",
    "gauge",
    "Bytes of requests that are in memory because they have not been answered yet.",
)
HTTP_ACCEPT_FAILURES = MetricSpec(
    "fabricpulse_http_accept_failures_total",
    "counter",
    "Connections that could not be accepted because the process had no file descriptor left.",
)

METRICS = (
    BUILD_INFO,
    EXPORTER_SERIES,
    EXPORTER_DROPPED,
    COLLECTOR_DURATION,
    COLLECTOR_SUCCESS,
    RELOAD_SUCCESSFUL,
    RELOAD_TIME,
    HTTP_CONNECTIONS,
    HTTP_CLOSED,
    HTTP_RESPONSES,
    HTTP_REQUEST_BYTES,
    HTTP_ACCEPT_FAILURES,
)
