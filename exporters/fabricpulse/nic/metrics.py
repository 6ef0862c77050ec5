"""Metrics of the NIC exporter, in the order of the exposition."""

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.nic import scrape_metrics
from fabricpulse.nic.recent_errors import RECENT_INCREASE, RECENT_RATE
from fabricpulse.nic.recent_traffic import RECENT_BYTES
from fabricpulse.nic.registry import registered

METRICS: tuple[MetricSpec, ...] = (
    *(spec for spec in vars(scrape_metrics).values() if isinstance(spec, MetricSpec)),
    RECENT_INCREASE,
    RECENT_RATE,
    RECENT_BYTES,
    *(spec for found in registered().values() for spec in found.metrics),
)
