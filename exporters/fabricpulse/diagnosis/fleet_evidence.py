"""The evidence of a fleet, and what it says now. Pure: reports and moments come in, suspects go out."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from sys import intern

import numpy as np

from fabricpulse.diagnosis.components import Kind, parts
from fabricpulse.diagnosis.flow_table import Flows
from fabricpulse.diagnosis.layout import FABRIC, Reporter, laid_out
from fabricpulse.diagnosis.locate import Finding, locate
from fabricpulse.diagnosis.loss_log import Loss, LossLog, LossTable
from fabricpulse.diagnosis.mended import has_ended
from fabricpulse.diagnosis.messages import EdgeName, EvidenceReport, check_edges, unpack_flows
from fabricpulse.diagnosis.succession import KEPT_S, Key, Succession
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
# A suspect is kept for as long after the last evidence; for less where what is told now explains what it suffered:
# then the evidence has no gap, a better explanation has replaced it.
_LINGER_S, _REPLACED_S = 5.0, 1.2
# How long paths that have become known may wait to be used: longer in a large fleet, whose sums take seconds.
_PATHS_WAIT_S, _FLOWS_A_SECOND = 5.0, 100_000
# While paths become known, what is on those that are not yet is not told: it will have a name in a moment.
_PATHS_QUIET_S = 5.0
# How long the paths that a host has told count after it has got other peers or was restarted: it traces them again.
_PATHS_KEPT_S = 300.0
_FLOWS_OF_A_HOST = 1 << 20


@dataclass
class FleetEvidence:
    """leaf_of : by host/device. switch_of : names of switches by address. Moments are monotonic seconds."""

    leaf_of: Mapping[str, str] = field(default_factory=dict)
    switch_of: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._leaves = frozenset(self.leaf_of.values())
        self._hosts: dict[str, Reporter] = {}
        self._log = LossLog(WINDOWS_S[-1])
        self._epoch = 0
        self._succession = Succession()
        self._paths_grew_s = -math.inf
        self._layout: Layout | None = None
        self._laid_out_s = -math.inf
        self._paths_changed = False
        self._live: tuple[str, ...] = ()
        self._counts: frozenset[str] = frozenset()  # the same
        self._seen: dict[Key, tuple[float, float, Suspect]] = {}
        self._remains: set[Key] = set()  # of those that are seen, what may be the rest of something else
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
            host = self._announced(
                report.host, host, report.revision, report.edges, report.ports, rates, now_s
            )
            self._layout = None
        elif host is None or host.revision != report.revision:
            return True
        flows = unpack_flows(report.flows, len(host.edges), host.ports)
        for path in report.paths:
            path.check(len(host.edges), host.ports)
        for path in report.paths:
            flow = path.edge * host.ports + path.port
            if flow not in host.paths and flow not in host.before:
                self._paths_grew_s = now_s
            host.paths[flow] = tuple(map(intern, path.hops))
        self._paths_changed |= bool(report.paths)
        self.reports += 1
        host.heard_s = now_s
        host.slow = frozenset(flow.edge * host.ports + flow.port for flow in flows if flow.slow)
        host.cut = frozenset(flow.edge * host.ports + flow.port for flow in flows if flow.cut)
        if not report.stalled:
            self._log.add(
                [
                    Loss(now_s, report.host, f.edge * host.ports + f.port, host.epoch, f.sent, f.lost)
                    for f in flows
                    if f.lost
                ]
            )
        return False

    def _announced(
        self,
        name: str,
        old: Reporter | None,
        revision: int,
        edges: tuple[EdgeName, ...],
        ports: int,
        rates: tuple[float, float],
        now_s: float,
    ) -> Reporter:
        """A host with its edges. What it has told of flows that are still there stays with them."""
        until_s = now_s + _PATHS_KEPT_S
        # Each name is that of many edges and paths: one copy of it is kept.
        edges = tuple(EdgeName(intern(e.device), intern(e.peer), intern(e.peer_device)) for e in edges)
        if old is not None and (old.edges, old.ports) == (edges, ports):
            known = {**old.before, **old.paths}
            host = Reporter(
                revision, edges, ports, rates, now_s, old.epoch, before=known, before_until_s=until_s
            )
        else:
            self._epoch += 1
            host = Reporter(revision, edges, ports, rates, now_s, self._epoch, before_until_s=until_s)
            if old is not None:
                place = {edge: number for number, edge in enumerate(edges)} if old.ports == ports else {}
                flows = {
                    number * ports + port: place[edge] * ports + port
                    for number, edge in enumerate(old.edges)
                    if edge in place
                    for port in range(ports)
                }
                self._log.renumber(name, old.epoch, host.epoch, flows)
                known = {**old.before, **old.paths}
                host.before = {flows[flow]: hops for flow, hops in known.items() if flow in flows}
        self._hosts[name] = host
        return host

    def suspects(self, now_s: float) -> tuple[Suspect, ...]:
        """What is faulty now, the surest first. To be called about once a second."""
        self._forget(now_s)
        self._log.drop_mended(now_s)
        # Paths come one by one for minutes after a start; sums over the whole fleet are not made anew for each.
        wait_s = _PATHS_WAIT_S + self.flows / _FLOWS_A_SECOND
        if self._paths_changed and now_s - self._laid_out_s >= wait_s:
            self._layout = None
        if self._layout is None:
            self._laid_out_s, self._paths_changed = now_s, False
        layout = self._laid_out()
        losses = self._table(self._log.losses)
        findings = self._findings(layout, now_s, losses)
        dead = losses.dead(now_s - WINDOWS_S[1]) if findings else frozenset()
        unsettled = now_s - self._paths_grew_s < wait_s + _PATHS_QUIET_S
        flows_of: dict[Key, Flows] = {}
        for what, finding in findings:
            suspect = suspect_of(layout, what, finding)
            key = (what, suspect.kind, suspect.component, suspect.peer)
            if unsettled and FABRIC in key and key not in self._seen:
                continue
            flows_of[key] = self._stable(np.array(finding.flows, np.int64))
            if key not in self._seen and self._succession.remains(key, flows_of[key]):
                self._remains.add(key)
            since, _, before = self._seen.get(key, (now_s, now_s, suspect))
            # Once silent it remains so: the packets that arrive as it is mended are no other fault.
            silent = before.silent or (
                what == "loss" and 2 * len(dead.intersection(finding.flows)) > len(finding.flows)
            )
            leaf = (
                suspect.component
                if silent and suspect.kind == "switch" and suspect.component in self._leaves
                else ""
            )
            self._seen[key] = since, now_s, replace(suspect, silent=silent, leaf=leaf)
        return self._told(flows_of, now_s)

    def _told(self, flows_of: Mapping[Key, Flows], now_s: float) -> tuple[Suspect, ...]:
        """What has been seen for long enough. flows_of : of what is seen now."""
        held = {key for key in self._seen if self._held(key)}
        explained: dict[str, Flows] = {}
        for key in held & flows_of.keys():
            explained[key[0]] = np.concatenate([explained.get(key[0], np.empty(0, np.int64)), flows_of[key]])

        def over(key: Key) -> bool:
            age_s = now_s - self._seen[key][1]
            replaced = key[0] in explained and self._succession.swallowed(key, explained[key[0]])
            return age_s > _LINGER_S or (age_s >= _REPLACED_S and replaced)

        self._seen = {key: seen for key, seen in self._seen.items() if not over(key)}
        self._remains &= self._seen.keys()
        for key in held & flows_of.keys():
            self._succession.name(key, flows_of[key], now_s)
        self._succession.forget(now_s)
        found = [
            replace(suspect, since_s=since) for key, (since, _, suspect) in self._seen.items() if key in held
        ]
        return tuple(sorted(found, key=lambda suspect: (-suspect.confidence, suspect.since_s)))

    def _held(self, key: Key) -> bool:
        """Whether it was found for long enough to be told."""
        since, last, suspect = self._seen[key]
        return last - since >= max(_hold_s(suspect), KEPT_S if key in self._remains else 0.0)

    def _stable(self, flows: Flows) -> Flows:
        """Numbers that stand for the same flows when the fleet has changed."""
        hosts = [self._hosts[name] for name in self._live]
        first = np.array([host.first for host in hosts], np.int64)
        epoch = np.array([host.epoch for host in hosts], np.int64)
        at = np.searchsorted(first, flows, side="right") - 1
        return np.asarray(epoch[at] * _FLOWS_OF_A_HOST + flows - first[at], np.int64)

    def _forget(self, now_s: float) -> None:
        self._log.forget(now_s)
        live = tuple(sorted(name for name, host in self._hosts.items() if now_s - host.heard_s <= LEASE_S))
        if live != self._live:
            self._live, self._counts, self._layout = live, frozenset(live), None
        for name in [n for n, host in self._hosts.items() if now_s - host.heard_s > WINDOWS_S[-1]]:
            del self._hosts[name]
        for host in self._hosts.values():
            if host.before and now_s > host.before_until_s:
                host.before, self._paths_changed = {}, True

    def _findings(self, layout: Layout, now_s: float, losses: LossTable) -> list[tuple[str, Finding]]:
        found: dict[tuple[str, int], Finding] = {}
        explained: set[int] = set()
        history: LossTable | None = None
        for window_s in WINDOWS_S:
            observed = losses.observed(layout.table.rate, now_s, window_s)
            left = np.isin(observed[0], list(explained), invert=True)
            observed = observed[0][left], observed[1][left], observed[2][left]
            if not len(observed[0]):
                continue
            newest = window_s == WINDOWS_S[0]
            # What lost packets only long ago has been mended.
            recent = losses.flows_since(now_s - (window_s if newest else window_s / 5))
            others: set[int] = set()
            located = locate(layout.table, layout.totals, *observed, window_s).findings
            for finding in without_fabric(layout, located):
                if newest and finding.score < _SURE_AT_ONCE:
                    continue
                explained.update(finding.flows)
                # Flows that cross what explains more say nothing of this one: a fault that has been mended must not
                # come back because another one hits some of its flows.
                history = history or self._table(self._log.history)
                lost_s = history.moments(layout.table, now_s - window_s, finding.component, others)
                own = set(finding.flows) - others
                others.update(finding.flows)
                if not recent.isdisjoint(own) and not has_ended(lost_s, now_s):
                    found.setdefault(("loss", finding.component), finding)
        hosts = [self._hosts[name] for name in self._live]
        for what, suffering in (
            ("delay", [host.first + flow for host in hosts for flow in host.going(host.slow)]),
            ("mtu", [host.first + flow for host in hosts for flow in host.going(host.cut)]),
        ):
            ones = np.ones(len(suffering))
            flows = np.array(sorted(suffering), dtype=np.int64)
            for finding in locate(layout.table, layout.totals, flows, ones, ones, None).findings:
                found.setdefault((what, finding.component), finding)
        return [
            (what, finding)
            for what in ("loss", "delay", "mtu")
            for finding in without_fabric(layout, [f for (of, _), f in found.items() if of == what])
            if parts(finding.component)[0] is not Kind.FLOW
        ]

    def _table(self, losses: Iterable[Loss]) -> LossTable:
        """Of what counts, the numbers of the layout."""
        rows: list[tuple[float, int, float, float]] = []
        for loss in losses:
            host = self._hosts.get(loss.host)
            # What a host tells while its numbers change waits for the next round.
            if host is None or host.epoch != loss.epoch or loss.host not in self._counts:
                continue
            if loss.flow // host.ports not in host.ended:
                weight = host.weight(loss.flow)
                rows.append((loss.at_s, host.first + loss.flow, weight * loss.sent, weight * loss.lost))
        at_s, flow, sent, lost = zip(*rows, strict=True) if rows else ((), (), (), ())
        return LossTable(np.array(at_s, float), np.array(flow, np.int64), np.array(sent), np.array(lost))

    def _laid_out(self) -> Layout:
        if self._layout is None:
            live = {name: self._hosts[name] for name in self._live}
            self._layout = laid_out(live, self.leaf_of, self.switch_of)
        return self._layout


def _hold_s(suspect: Suspect) -> float:
    if suspect.kind == "switch":
        return _SWITCH_HOLD_S
    return _HOLD_S.get(suspect.kind, _USUAL_HOLD_S) if suspect.silent else _USUAL_HOLD_S
