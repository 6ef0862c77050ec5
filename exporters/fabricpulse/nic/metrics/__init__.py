"""Metrics of the NIC exporter: a module for each collector that has some, in the order of the exposition."""

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.nic.metrics import (
    bonding,
    dcb,
    ethtool,
    flaps,
    gid,
    infiniband,
    kernel_log,
    module,
    netdev,
    pcie,
    resources,
    scrape,
    verbs,
)

_MODULES = (
    scrape,
    infiniband,
    netdev,
    bonding,
    pcie,
    gid,
    ethtool,
    dcb,
    module,
    verbs,
    resources,
    flaps,
    kernel_log,
)

METRICS: tuple[MetricSpec, ...] = tuple(
    spec for module in _MODULES for spec in vars(module).values() if isinstance(spec, MetricSpec)
)
