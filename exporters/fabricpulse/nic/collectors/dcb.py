"""PFC, ETS, DSCP and ECN configuration: lossless traffic is lossless only if every NIC is set up the same."""

import errno
from collections.abc import Sequence
from typing import Self

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import sample_prefix
from fabricpulse.hostinfo.inventory import Netdev
from fabricpulse.hostinfo.netlink.dcb import DcbSource, DcbState
from fabricpulse.hostinfo.sysfs import CachedDirectory, DescriptorBudget
from fabricpulse.nic.collectors.base import Collector, Context, Environment, register
from fabricpulse.nic.collectors.link_base import DECLINED, DECLINED_PAUSE_S
from fabricpulse.nic.metric_spec import LINK, PRIORITY, counter, gauge

PFC_ENABLED = gauge(
    "pfc_enabled", "1 if priority flow control is on for the priority (DCB netlink, IEEE PFC).", PRIORITY
)
PFC_PRIORITIES = gauge(
    "pfc_priorities",
    "The priorities that have priority flow control, as one number to compare: bit P is set for priority P (8: 3 alone).",
    LINK,
)
DCB_PFC_SENT = counter(
    "dcb_pfc_requests",
    "Pause frames sent per priority, as DCB counts them (DCB netlink, PFC requests).",
    PRIORITY,
)
DCB_PFC_RECEIVED = counter(
    "dcb_pfc_indications",
    "Pause frames received per priority, as DCB counts them (DCB netlink, PFC indications).",
    PRIORITY,
)
PRIORITY_CLASS = gauge(
    "priority_traffic_class", "Traffic class of the priority (DCB netlink, ETS).", PRIORITY
)
CLASS_BANDWIDTH = gauge(
    "traffic_class_bandwidth_ratio",
    "Guaranteed share of the traffic class; absent for strict priority (DCB netlink, ETS, percent converted).",
    (*LINK, "traffic_class"),
)
DSCP_PRIORITY = gauge(
    "dscp_priority",
    "Priority to which a DSCP is mapped (DCB netlink, application table).",
    (*LINK, "dscp"),
)
TRUST_DSCP = gauge(
    "trust_dscp",
    "1 if the NIC takes the priority from DSCP, 0 if from the VLAN tag (DCB netlink: a DSCP entry in the application table).",
    LINK,
)
ECN_ENABLED = gauge(
    "ecn_enabled",
    "1 if congestion control is on for the priority; role np answers marks, rp slows down (class/net/IF/ecn/roce_ROLE/enable/P, out-of-tree mlx5).",
    (*LINK, "role", "priority"),
)

# Configuration changes by hand: it is asked for every minute, counters among it are as old at most.
REFRESH_S = 60.0

Lines = list[tuple[str, str]]


class _Link:
    def __init__(self, netdev: Netdev, budget: DescriptorBudget) -> None:
        self.netdev = netdev
        self.lines: Lines = []
        self.next_at = 0.0
        self.ecn = {
            role: CachedDirectory(f"{netdev.path}/ecn/roce_{role}/enable", netdev.name, budget)
            for role in ("np", "rp")
        }


@register()
class DcbCollector(Collector):
    """One target a netdev. source : the kernel, a stand-in, or None to read sysfs alone."""

    name = "dcb"

    @classmethod
    def make(cls, environment: Environment) -> Self:
        dcb = environment.sources.dcb
        return cls(dcb() if dcb is not None else None, environment.budget)

    def __init__(self, source: DcbSource | None, budget: DescriptorBudget) -> None:
        self._source = source
        self._budget = budget
        self._links: dict[str, _Link] = {}

    def targets(self, context: Context) -> Sequence[str]:
        links = {}
        for netdev in context.inventory.netdevs:
            known = self._links.pop(netdev.name, None)
            if known is None or known.netdev != netdev:
                if known is not None:
                    self._close(known)
                known = _Link(netdev, self._budget)
            links[netdev.name] = known
        self.close_links()
        self._links = links
        return list(links)

    def collect(self, target: str, context: Context) -> None:
        link = self._links[target]
        if self._source is not None and context.now >= link.next_at:
            link.next_at = context.now + REFRESH_S
            try:
                link.lines = lines_of(self._source.state(target), link.netdev.labels)
            except OSError as error:
                link.lines = []
                if error.errno in DECLINED:
                    link.next_at = context.now + DECLINED_PAUSE_S
                else:
                    reason = "permission" if error.errno in (errno.EPERM, errno.EACCES) else "dcb"
                    context.errors.add(link.netdev.name, f"dcb {target}", reason)
        for family, line in link.lines:
            context.sink.line(family, line)
        self._ecn(link, context)

    def _ecn(self, link: _Link, context: Context) -> None:
        for role, directory in link.ecn.items():
            if not directory.refresh(context.errors):
                continue
            for priority in directory.files:
                raw = directory.read(priority, context.now, context.errors)
                if raw in (b"0", b"1") and priority.isdigit():
                    context.sink.add(ECN_ENABLED, (*link.netdev.labels, role, priority), int(raw))

    @staticmethod
    def _close(link: _Link) -> None:
        for directory in link.ecn.values():
            directory.close()

    def close_links(self) -> None:
        for link in self._links.values():
            self._close(link)
        self._links = {}

    def close(self) -> None:
        self.close_links()
        if self._source is not None:
            self._source.close()


def lines_of(state: DcbState, labels: tuple[str]) -> Lines:
    """The samples of one netdev's configuration, rendered."""
    lines: Lines = []

    def add(spec: MetricSpec, extra: tuple[str, ...], value: float) -> None:
        lines.append((spec.name, f"{sample_prefix(spec, (*labels, *extra))}{value:g}\n"))

    if state.pfc_enabled is not None:
        for priority, enabled in enumerate(state.pfc_enabled):
            add(PFC_ENABLED, (str(priority),), int(enabled))
        add(PFC_PRIORITIES, (), sum(1 << priority for priority, on in enumerate(state.pfc_enabled) if on))
        for spec, counts in ((DCB_PFC_SENT, state.requests), (DCB_PFC_RECEIVED, state.indications)):
            # Drivers without these counters leave all of them 0: absent, not 0.
            if any(counts):
                for priority, count in enumerate(counts):
                    lines.append((spec.name, f"{sample_prefix(spec, (*labels, str(priority)))}{count}\n"))
        add(TRUST_DSCP, (), int(bool(state.dscp_to_priority)))
    for priority, traffic_class in enumerate(state.priority_to_class):
        add(PRIORITY_CLASS, (str(priority),), traffic_class)
    for traffic_class, percent in enumerate(state.bandwidth_percent):
        if state.is_ets[traffic_class]:
            add(CLASS_BANDWIDTH, (str(traffic_class),), percent / 100)
    for dscp, priority in sorted(state.dscp_to_priority.items()):
        add(DSCP_PRIORITY, (str(dscp),), priority)
    return lines
