"""The evidence of a fleet, and what it says now. Pure: reports and moments come in, suspects go out."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fabricpulse.diagnosis.components import NO_HOP, SILENT_HOP, Kind, parts
from fabricpulse.diagnosis.flow_table import Floats, Flows, FlowTable, totals
from fabricpulse.diagnosis.locate import Finding, locate
from fabricpulse.diagnosis.mended import has_ended
from fabricpulse.diagnosis.messages import EdgeName, EvidenceReport, check_edges, unpack_flows
from fabricpulse.diagnosis.silent_hops import named
from fabricpulse.diagnosis.suspect import Suspect
from fabricpulse.diagnosis.suspect_names import Layout, suspect_of, without_fabric

# Seconds of evidence that are used: each for what is too slight to show in those before. What shows in the first is
# new, and must be beyond doubt (nats): evidence of few seconds is that of few flows.
WINDOWS_S = (5.0, 30.0, 120.0)
_SURE_AT_ONCE = 40.0
# A host that has not reported for so long says nothing of its flows any more.
LEASE_S = 20.0
# An exporter that is restarted looks like a dead NIC for some seconds; a cable does not restart.
# Only where all is lost: who loses a part of his packets is running.
_HOLD_S = {"host": 20.0, "nic": 20.0, "nic_tx": 20.0, "nic_rx": 20.0}
# Hosts report at different moments: for a second the evidence is that of some of them. A switch waits for the second
# report of all: only then it is known whether it is dead.
_USUAL_HOLD_S, _SWITCH_HOLD_S = 1.2, 3.0
# A suspect is kept for as long after the last evidence; for less where what is told now explains all that it suffered:
# then the evidence has no gap, a better explanation has replaced it.
_LINGER_S, _REPLACED_S = 5.0, 1.2
# A flow that has lost packets in so many reports has been mended after some seconds, and some gaps, without a loss.
_OFTEN, _MENDED_S = 3, 4.0
# How long paths that have become known may wait to be used: longer in a large fleet, whose sums take seconds.
_PATHS_WAIT_S, _FLOWS_A_SECOND = 5.0, 100_000
FABRIC = "fabric"


@dataclass
class _Host:
    revision: int
    edges: tuple[EdgeName, ...]
    ports: int
    rates: tuple[float, float]
    heard_s: float
    first: int = 0  # its first flow in the table
    # Where its flows go, by edge times ports plus port.
    paths: dict[int, tuple[str, ...]] = field(default_factory=dict)
    slow: frozenset[int] = frozenset()
    cut: frozenset[int] = frozenset()
    # Edges whose way is not known in full. Nine of ten packets take the main path, and that one way of many: the ports
    # of such an edge count alike, or a fault of one way looks like one of the pairs whose main path takes it.
    even: frozenset[int] = frozenset()

    def weight(self, flow: int) -> float:
        """Of its packets; flow : edge times ports plus port."""
        edge, port = divmod(flow, self.ports)
        main, swept = self.rates
        return swept / main if port == 0 and edge in self.even and swept > 0 else 1.0


@dataclass(frozen=True)
class _Seen:
    """A suspect that was found. since_s, last_s : for the first and the last time. flows : those that suffered then, by
    their numbers in the layout of laid_out_s.
    """

    since_s: float
    last_s: float
    suspect: Suspect
    laid_out_s: float
    flows: tuple[int, ...]

    @property
    def held(self) -> bool:
        """Whether it was found for long enough to be told."""
        return self.last_s - self.since_s >= _hold_s(self.suspect)


@dataclass
class FleetEvidence:
    """leaf_of : by host/device. switch_of : names of switches by address. Moments are monotonic seconds."""

    leaf_of: Mapping[str, str] = field(default_factory=dict)
    switch_of: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._leaves = frozenset(self.leaf_of.values())
        self._hosts: dict[str, _Host] = {}
        # (moment, host, edge x port, sent, lost); host by name, because numbers change with the fleet.
        self._losses: deque[tuple[float, str, int, int, int]] = deque()
        # Of all losses, those of mended flows too: moment, host, edge x port.
        self._history: deque[tuple[float, str, int]] = deque()
        self._layout: Layout | None = None
        self._laid_out_s = -math.inf
        self._paths_changed = False
        self._live: tuple[str, ...] = ()
        self._seen: dict[tuple[str, str, str, str], _Seen] = {}
        self.reports = 0

    @property
    def flows(self) -> int:
        """Flows that are known of."""
        return len(self._layout.table) if self._layout is not None else 0

    @property
    def paths(self) -> int:
        """Flows whose switches are known."""
        return sum(len(host.paths) for host in self._hosts.values())

    @property
    def hosts(self) -> int:
        """Hosts whose evidence counts."""
        return len(self._live)

    def report(self, report: EvidenceReport, now_s: float) -> bool:
        """Takes one in. Returns whether the host has to send its edges. Raises ValueError for nonsense."""
        host = self._hosts.get(report.host)
        check_edges(report)
        if report.edges is not None:
            rates = report.main_rate, report.swept_rate
            host = _Host(report.revision, report.edges, report.ports, rates, now_s)
            self._hosts[report.host] = host
            self._layout = None
        elif host is None or host.revision != report.revision:
            return True
        flows = unpack_flows(report.flows, len(host.edges), host.ports)
        for path in report.paths:
            path.check(len(host.edges), host.ports)
        for path in report.paths:
            host.paths[path.edge * host.ports + path.port] = path.hops
        self._paths_changed |= bool(report.paths)
        self.reports += 1
        host.heard_s = now_s
        host.slow = frozenset(flow.edge * host.ports + flow.port for flow in flows if flow.slow)
        host.cut = frozenset(flow.edge * host.ports + flow.port for flow in flows if flow.cut)
        if not report.stalled:
            told = [
                (now_s, report.host, flow.edge * host.ports + flow.port, flow.sent, flow.lost)
                for flow in flows
                if flow.lost
            ]
            self._losses.extend(told)
            self._history.extend(entry[:3] for entry in told)
        return False

    def suspects(self, now_s: float) -> tuple[Suspect, ...]:
        """What is faulty now, the surest first. To be called about once a second."""
        self._forget(now_s)
        self._drop_mended(now_s)
        # Paths come one by one for minutes after a start; sums over the whole fleet are not made anew for each.
        wait_s = _PATHS_WAIT_S + self.flows / _FLOWS_A_SECOND
        if self._paths_changed and now_s - self._laid_out_s >= wait_s:
            self._layout = None
        if self._layout is None:
            self._laid_out_s, self._paths_changed = now_s, False
        layout = self._laid_out()
        findings = self._findings(layout, now_s)
        dead = self._dead_flows(now_s) if findings else frozenset()
        for what, finding in findings:
            suspect = suspect_of(layout, what, finding)
            key = (what, suspect.kind, suspect.component, suspect.peer)
            before = self._seen.get(key)
            # Once silent it remains so: the packets that arrive as it is mended are no other fault.
            silent = (before is not None and before.suspect.silent) or (
                what == "loss" and 2 * len(dead.intersection(finding.flows)) > len(finding.flows)
            )
            leaf = (
                suspect.component
                if silent and suspect.kind == "switch" and suspect.component in self._leaves
                else ""
            )
            suspect = replace(suspect, silent=silent, leaf=leaf)
            since_s = now_s if before is None else before.since_s
            self._seen[key] = _Seen(since_s, now_s, suspect, self._laid_out_s, finding.flows)
        self._end_suspects(now_s)
        found = [replace(seen.suspect, since_s=seen.since_s) for seen in self._seen.values() if seen.held]
        return tuple(sorted(found, key=lambda suspect: (-suspect.confidence, suspect.since_s)))

    def _end_suspects(self, now_s: float) -> None:
        """Those without evidence for long, and those that what is told now has replaced."""
        explained: dict[str, set[int]] = {}
        if any(now_s - seen.last_s >= _REPLACED_S for seen in self._seen.values()):
            for seen in self._seen.values():
                if seen.last_s == now_s and seen.held:
                    explained.setdefault(seen.suspect.what, set()).update(seen.flows)

        def over(seen: _Seen) -> bool:
            if (age_s := now_s - seen.last_s) < _REPLACED_S:
                return False
            # Another layout has other numbers.
            same = seen.laid_out_s == self._laid_out_s
            return age_s > _LINGER_S or (same and explained.get(seen.suspect.what, set()) >= {*seen.flows})

        self._seen = {key: seen for key, seen in self._seen.items() if not over(seen)}

    def _forget(self, now_s: float) -> None:
        while self._losses and now_s - self._losses[0][0] > WINDOWS_S[-1]:
            self._losses.popleft()
        while self._history and now_s - self._history[0][0] > WINDOWS_S[-1]:
            self._history.popleft()
        live = tuple(sorted(name for name, host in self._hosts.items() if now_s - host.heard_s <= LEASE_S))
        if live != self._live:
            self._live, self._layout = live, None
        for name in [n for n, host in self._hosts.items() if now_s - host.heard_s > WINDOWS_S[-1]]:
            del self._hosts[name]

    def _drop_mended(self, now_s: float) -> None:
        """Losses of flows that used to lose often and have not for long: what they say is over."""
        seen: dict[tuple[str, int], tuple[int, float, float]] = {}
        for at, name, number, _, _ in self._losses:
            count, first, _ = seen.get((name, number), (0, at, at))
            seen[name, number] = count + 1, first, at
        mended = {
            flow
            for flow, (count, first, last) in seen.items()
            if count >= _OFTEN and now_s - last > _MENDED_S + 5 * (last - first) / (count - 1)
        }
        if mended:
            self._losses = deque(entry for entry in self._losses if (entry[1], entry[2]) not in mended)

    def _findings(self, layout: Layout, now_s: float) -> list[tuple[str, Finding]]:
        found: dict[tuple[str, int], Finding] = {}
        explained: set[int] = set()
        for window_s in WINDOWS_S:
            observed = self._observed(layout, now_s, window_s)
            left = np.array([flow not in explained for flow in observed[0].tolist()], bool)
            observed = observed[0][left], observed[1][left], observed[2][left]
            if not len(observed[0]):
                continue
            newest = window_s == WINDOWS_S[0]
            # What lost packets only long ago has been mended.
            recent = set(self._observed(layout, now_s, window_s if newest else window_s / 5)[0].tolist())
            others: set[int] = set()
            for finding in without_fabric(
                layout, locate(layout.table, layout.totals, *observed, window_s).findings
            ):
                if newest and finding.score < _SURE_AT_ONCE:
                    continue
                explained.update(finding.flows)
                # Flows that cross what explains more say nothing of this one: a fault that has been mended must not
                # come back because another one hits some of its flows.
                lost_s = self._moments(layout, now_s, window_s, finding.component, others)
                own = set(finding.flows) - others
                others.update(finding.flows)
                if not recent.isdisjoint(own) and not has_ended(lost_s, now_s):
                    found.setdefault(("loss", finding.component), finding)
        hosts = [self._hosts[name] for name in self._live]
        for what, suffering in (
            ("delay", [host.first + flow for host in hosts for flow in host.slow]),
            ("mtu", [host.first + flow for host in hosts for flow in host.cut]),
        ):
            ones = np.ones(len(suffering))
            flows = np.array(sorted(suffering), dtype=np.int64)
            for finding in locate(layout.table, layout.totals, flows, ones, ones, None).findings:
                found.setdefault((what, finding.component), finding)
        return [(what, f) for (what, _), f in found.items() if parts(f.component)[0] is not Kind.FLOW]

    def _counted(self, now_s: float, window_s: float) -> Iterator[tuple[float, int, float, float]]:
        """The losses of a window: moment, flow, packets sent and lost; the latest first."""
        for at, name, number, packets, missing in reversed(self._losses):
            if now_s - at > window_s:
                break
            host = self._hosts.get(name)
            if name in self._live and host is not None and number < len(host.edges) * host.ports:
                weight = host.weight(number)
                yield at, host.first + number, weight * packets, weight * missing

    def _moments(
        self, layout: Layout, now_s: float, window_s: float, component: int, others: set[int]
    ) -> Floats:
        """When flows that cross the component, and are none of the others, have lost packets; ascending."""
        moments: list[float] = []
        flows: list[int] = []
        for at, name, number in self._history:
            host = self._hosts.get(name)
            known = name in self._live and host is not None and number < len(host.edges) * host.ports
            if known and host is not None and now_s - at <= window_s:
                moments.append(at)
                flows.append(host.first + number)
        at_s, crossed = np.array(moments), np.array(flows, np.int64)
        crosses = ~np.isin(crossed, list(others))
        crosses &= np.logical_or.reduce([column == component for column in layout.table.shared(crossed)])
        return at_s[crosses]

    def _observed(self, layout: Layout, now_s: float, window_s: float) -> tuple[Flows, Floats, Floats]:
        lost: dict[int, float] = {}
        sent: dict[int, float] = {}
        for _, flow, packets, missing in self._counted(now_s, window_s):
            lost[flow] = lost.get(flow, 0.0) + missing
            sent[flow] = sent.get(flow, 0.0) + packets
        flows = np.array(sorted(lost), dtype=np.int64)
        missing_of = np.array([lost[flow] for flow in flows.tolist()], dtype=float)
        told = np.array([sent[flow] for flow in flows.tolist()], dtype=float)
        # Reports without a loss do not say what was sent; the rate does.
        return flows, missing_of, np.maximum(told, layout.table.rate[flows] * window_s)

    def _dead_flows(self, now_s: float) -> frozenset[int]:
        """Flows of which nothing arrived in the last report that told of a loss."""
        latest: dict[int, bool] = {}
        for at, name, number, packets, missing in reversed(self._losses):
            if now_s - at > WINDOWS_S[1]:
                break
            if name in self._live:
                latest.setdefault(self._hosts[name].first + number, missing >= 0.99 * packets)
        return frozenset(flow for flow, dead in latest.items() if dead)

    def _laid_out(self) -> Layout:
        if self._layout is not None:
            return self._layout
        nodes: dict[str, int] = {}

        def node(name: str) -> int:
            return nodes.setdefault(name, len(nodes))

        source: list[int] = []
        destination: list[int] = []
        rate: list[float] = []
        edge: list[int] = []
        hops: list[list[int]] = []
        pairs = 0
        numbers = {
            name: {edge: number for number, edge in enumerate(self._hosts[name].edges)} for name in self._live
        }
        for name in self._live:
            host = self._hosts[name]
            host.first = len(source)
            even = set()
            for number, one in enumerate(host.edges):
                far, near = f"{one.peer}/{one.peer_device}", f"{name}/{one.device}"
                source += host.ports * [node(far)]
                destination += host.ports * [node(near)]
                back = numbers.get(one.peer, {}).get(EdgeName(one.peer_device, name, one.device))
                for port in range(host.ports):
                    path = self._path(far, near, self._traced(one.peer, back, port), node)
                    hops.append(path)
                    if port == 0 and host.ports > 1 and SILENT_HOP in path:
                        even.add(number)
                main = host.rates[1] if number in even and host.rates[1] > 0 else host.rates[0]
                rate += [main, *(host.ports - 1) * [host.rates[1]]]
                edge += host.ports * [pairs]
                pairs += 1
            host.even = frozenset(even)
        devices: dict[str, set[str]] = {}
        for nic in [name for name in nodes if "/" in name]:
            devices.setdefault(nic.partition("/")[0], set()).add(nic)
        host_of = {nic: node(host) for host, nics in devices.items() if len(nics) > 1 for nic in nics}
        first_unnamed = len(nodes)
        longest = max(map(len, hops), default=1) or 1
        rows = np.full((len(hops), longest), NO_HOP, np.int32)
        for place in range(longest):
            rows[:, place] = [path[place] if place < len(path) else NO_HOP for path in hops]
        rows, silent = named(rows, max(first_unnamed, 1))
        owner = np.full(first_unnamed + len(silent) + 1, -1, np.int32)
        for nic, number in host_of.items():
            owner[nodes[nic]] = number
        table = FlowTable(
            np.array(source, np.int32),
            np.array(destination, np.int32),
            owner,
            np.array(rate, np.float32),
            np.array(edge, np.int32),
            rows,
            first_unnamed,
            tuple(switch.may_be for switch in silent),
        )
        names = (*nodes, *(FABRIC for _ in silent))
        self._layout = Layout(table, totals(table), names)
        return self._layout

    def _traced(self, sender: str, edge: int | None, port: int) -> tuple[str, ...] | None:
        host = self._hosts.get(sender)
        if host is None or edge is None or port >= host.ports:
            return None
        return host.paths.get(edge * host.ports + port)

    def _path(
        self, source: str, destination: str, traced: tuple[str, ...] | None, node: Callable[[str], int]
    ) -> list[int]:
        """The switches of a flow. A leaf that is declared stands, whatever answers in its place."""
        first, last = self.leaf_of.get(source, ""), self.leaf_of.get(destination, "")
        if first and first == last:
            return [node(first)]
        hops = [self.switch_of.get(hop, hop) for hop in traced or ()]
        if not hops:
            return [node(first), SILENT_HOP, node(last)] if first and last else []
        if first:
            hops[0] = first
        # Behind the last hop that answered there may be a silent leaf.
        if last and hops[-1] != last:
            hops.append(last)
        return [node(hop) if hop else SILENT_HOP for hop in hops]


def _hold_s(suspect: Suspect) -> float:
    if suspect.kind == "switch":
        return _SWITCH_HOLD_S
    return _HOLD_S.get(suspect.kind, _USUAL_HOLD_S) if suspect.silent else _USUAL_HOLD_S
