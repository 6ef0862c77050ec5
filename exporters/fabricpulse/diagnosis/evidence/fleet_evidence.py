"""The evidence of a fleet, and what it says now. Pure: reports and moments come in, suspects go out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fabricpulse.diagnosis.evidence.found import WINDOWS_S, found_now, own_flows
from fabricpulse.diagnosis.evidence.holds import SILENT_HOLD_S, hold_s
from fabricpulse.diagnosis.evidence.incumbents import beside, incumbents, is_heir
from fabricpulse.diagnosis.evidence.known_faults import REPLACED_S, known_faults
from fabricpulse.diagnosis.evidence.loss_log import LossLog, LossTable
from fabricpulse.diagnosis.evidence.presence import SHORTEST_S, SURELY_AWAY_S, Absences, unanswered, vouched
from fabricpulse.diagnosis.flows.components import SILENT_HOP, Nodes
from fabricpulse.diagnosis.flows.flow_table import Floats, Flows
from fabricpulse.diagnosis.flows.layout import NO_FLOWS, Layout, Reporter, laid_out, renumbered
from fabricpulse.diagnosis.flows.names import Names
from fabricpulse.diagnosis.flows.planes import is_fabric
from fabricpulse.diagnosis.leaf_paths.found import LeafPaths
from fabricpulse.diagnosis.leaf_paths.watch import LeafWatch
from fabricpulse.diagnosis.search.locate import Finding
from fabricpulse.diagnosis.search.succession import KEPT_S, Key, Succession
from fabricpulse.diagnosis.search.suspect import Suspect
from fabricpulse.diagnosis.search.suspect_names import network_across, suspect_of
from fabricpulse.diagnosis.search.unseen import Unseen
from fabricpulse.diagnosis.wire.flow_records import numbers, suffering, unpack_flows
from fabricpulse.diagnosis.wire.messages import EdgeName, EvidenceReport, FlowPath, check_edges

# A host that has not reported for so long says nothing of its flows any more.
LEASE_S = 20.0
_WHOLE = ("host", "nic")
_NICS = ("nic", "nic_tx", "nic_rx")
# For how long NICs of one leaf are in question: until who is away is not counted upon, and one round more.
_COMMON_LEAF_HOLD_S = SURELY_AWAY_S + 1.5
# As the coordinator starts hosts report one by one, then their paths: before, delays and sizes are not located, and
# losses only where that has a name.
_START_S = 12.0
# What hosts may have caused that have not reported since: until they are no longer counted upon, and somewhat more.
_AWAY_HOLD_S = LEASE_S + 5.0
# What is found in two rounds of reports was there.
_ROUNDS_S = 1.2
# What has no name yet is found anew after so long without it, or two rounds that took longer.
_GAP_S = 2.5
# A suspect is kept for as long after the last evidence; for less where what is found now explains what it suffered:
# then the evidence has no gap, a better explanation has replaced it.
_LINGER_S = 5.0
# How long paths that have become known may wait to be used: longer in a large fleet, whose sums take seconds.
_PATHS_WAIT_S, _FLOWS_A_SECOND = 5.0, 100_000
# The same of hosts that come and go, which make evidence of their flows wait.
_LAID_OUT_A_SECOND = 400_000
# While paths become known, what is on those that are not yet is not reported: it will have a name in a moment.
_PATHS_QUIET_S = 5.0
# How long the paths that a host has reported count after it has got other peers or was restarted: it traces them again.
_PATHS_KEPT_S = 300.0
# So many lists of NICs are kept beside two for each host, before those that no host has any more are dropped.
_SPARE_NICS = 16


@dataclass
class FleetEvidence:
    """Declared are leaf_of by host/device, switch_of, names of switches by address. Moments are monotonic seconds."""

    leaf_of: Mapping[str, str] = field(default_factory=dict)
    switch_of: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._leaves = frozenset(self.leaf_of.values())
        self._reported_leaves: dict[str, tuple[tuple[str, str], ...]] = {}  # by host, of its devices
        self._leaves_now: Mapping[str, str] = {}
        # Of hosts and NICs; of switches, so few that their numbers are small.
        self._names, self._switches = Names(), Names()
        self._hosts: dict[str, Reporter] = {}
        self._log = LossLog(WINDOWS_S[-1])
        self._epoch = 0
        self._succession = Succession()
        self._paths_grew_s = -math.inf
        self._layout: Layout | None = None
        self._laid_out_s = -math.inf
        self._fleet_changed = self._paths_changed = False
        self._live: frozenset[str] = frozenset()
        self._seen: dict[Key, tuple[float, float, Suspect]] = {}
        self._named: set[Key] = set()  # of those that are seen, what was reported the last time
        self._remains: set[Key] = set()  # of those that are seen, what may be the rest of something else
        self._absences = Absences()
        self._grown: dict[Key, float] = {}  # when what had been seen in part was first seen as a whole
        self._unvouched: set[Key] = set()  # of those that are seen, what hosts that are away may have caused
        self._rates = (0.0, 0.0)
        self._nics: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = {}
        self._leaf_paths = LeafWatch()
        self._began_s = self._round_s = math.inf
        self.reports = 0

    @property
    def flows(self) -> int:
        """Flows that are known of."""
        return len(self._layout.table) if self._layout is not None else 0

    @property
    def paths(self) -> int:
        """Flows whose switches are known."""
        return sum(host.paths.reported for host in self._hosts.values())

    @property
    def hosts(self) -> int:
        """Hosts whose evidence counts."""
        return len(self._live)

    def name_switches(self, names: Mapping[str, str]) -> None:
        """Names of switches by address, beside those that are declared; paths that are known already have them, too."""
        self.switch_of = {**names, **self.switch_of}
        moved = self._switches.rename(names)
        for host in self._hosts.values():
            host.paths.renumber(moved)
        self._paths_changed = True

    def leaf_paths(self, now_s: float) -> LeafPaths:
        """Which leaves have fewer live paths than their siblings, by the flows of the last `suspects`."""
        if self._layout is None:
            return LeafPaths()
        return self._leaf_paths.update(self._layout, self._laid_out_s, self._network_of, now_s)

    def _network_of(self, nic: str) -> str:
        name, _, device = nic.partition("/")
        host = self._hosts.get(name)
        return dict(host.nics).get(device, "") if host is not None else ""

    def abandon(self) -> None:
        """For a fork that needs none of it: gives large arrays back, or it would keep what its parent replaces. To free
        small objects, too, would be to copy the pages that they are on.
        """
        if self._layout is not None:
            self._layout.abandon()
        self._log = LossLog(WINDOWS_S[-1])

    def report(self, report: EvidenceReport, now_s: float) -> bool:
        """Takes one in. Returns whether the host has to send its edges. Raises ValueError for nonsense."""
        host = self._hosts.get(report.host)
        check_edges(report)
        if report.edges is not None:
            edges, ports = len(report.edges), report.ports
        elif host is None or host.revision != report.revision:
            return True
        else:
            edges, ports = host.edges, host.ports
        flows = unpack_flows(report.flows, edges, ports)
        for path in report.paths:
            path.check(edges, ports)
        self._began_s = min(self._began_s, now_s)
        if report.stalled or report.edges is not None:
            # What the first report tells was lost before anybody was there to know who was away.
            before_s = host.last_report_s if host else self._began_s - SHORTEST_S
            self._absences.returned(report.host, before_s, now_s, report.edges is not None)
        if report.edges is not None or host is None:
            host = self._announced(report, report.edges or (), host, now_s)
            if report.facts is not None:
                # Nearly all hosts have the same: one copy is kept.
                host.nics = self._nics.setdefault(report.facts.nics, report.facts.nics)
                if len(self._nics) > 2 * len(self._hosts) + _SPARE_NICS:
                    self._nics = {other.nics: other.nics for other in self._hosts.values()}
        leaves = report.all_leaves
        if leaves is not None and leaves != self._reported_leaves.get(report.host, ()):
            self._reported_leaves[report.host] = leaves
            self._fleet_changed = True
        if report.paths:
            self._send_paths(host, report.paths, now_s)
        self.reports += 1
        host.last_report_s = now_s
        host.slow, host.cut, host.maybe_cut = suffering(flows, ports) if len(flows) else 3 * (NO_FLOWS,)
        if not report.stalled and len(flows):
            lost = flows[flows["lost"] > 0]
            self._log.add(now_s, host.epoch, numbers(lost, ports), lost["sent"], lost["lost"])
        return False

    def _send_paths(self, host: Reporter, paths: tuple[FlowPath, ...], now_s: float) -> None:
        number, switch_of = self._switches.of, self.switch_of
        rows = []
        for path in paths:
            switches = [switch_of.get(hop, hop) for hop in path.hops]
            rows.append([number(switch) if switch else SILENT_HOP for switch in switches])
        flows = [path.edge * host.ports + path.port for path in paths]
        if host.paths.update(flows, rows, host.flows):
            self._paths_grew_s = now_s
        if host.paths.changed:
            host.rerouted_s = now_s
        self._paths_changed = True

    def _announced(
        self, report: EvidenceReport, edges: tuple[EdgeName, ...], old: Reporter | None, now_s: float
    ) -> Reporter:
        """A host with its edges. What it has reported of flows that are still there stays with them."""
        names = self._names
        near = [names.nic(report.host, edge.device) for edge in edges]
        far = [names.nic(edge.peer, edge.peer_device) for edge in edges]
        ends = np.array([near, far], np.int32)
        rates = report.main_rate, report.swept_rate
        # Nearly all hosts have the same: one copy is kept.
        self._rates = rates = self._rates if rates == self._rates else rates
        ports, until_s = report.ports, now_s + _PATHS_KEPT_S
        if old is not None and ports == old.ports and np.array_equal(ends, old.ends):
            # It was restarted. Its flows are the same.
            self._fleet_changed |= rates != old.rates
            old.revision, old.rates, old.before_until_s = report.revision, rates, until_s
            old.paths.begin_anew()
            return old
        self._fleet_changed = True
        self._epoch += 1
        host = Reporter(
            *(names.of(report.host), report.revision, ends, ports, rates, now_s, self._epoch),
            before_until_s=until_s,
        )
        if old is not None:
            flows = renumbered(old, host)
            self._log.renumber(old.epoch, host.epoch, flows)
            host.paths = old.paths.moved(flows, host.flows)
        self._hosts[report.host] = host
        return host

    def suspects(self, now_s: float) -> tuple[Suspect, ...]:
        """What is faulty now, the surest first. To be called about once a second."""
        # Of two that explain alike now one is found, now the other.
        gap_s = max(_GAP_S, 2.5 * (now_s - self._round_s))
        self._round_s = now_s
        self._forget(now_s)
        self._log.drop_recovered(now_s)
        layout = self._laid_out(now_s)
        self._absences.excuse(self._log, layout, self._names, now_s)
        losses, history = self._log.tables(layout)
        findings = self._findings(layout, now_s, losses, history)
        dead = losses.dead(now_s - WINDOWS_S[1]) if findings else frozenset()
        starting = now_s - self._began_s < _START_S
        unsettled = starting or now_s - self._paths_grew_s < self._paths_wait_s + _PATHS_QUIET_S
        flows_of: dict[Key, Flows] = {}
        suspects = [suspect_of(layout, what, finding) for what, finding in findings]
        nameless = unsettled and any(is_fabric(name) for s in suspects for name in (s.component, s.peer))
        now = {(s.what, s.kind, s.component, s.peer) for s in suspects}
        gone = {key: self._seen[key][2] for key in self._named & self._seen.keys() - now}
        for (what, finding), suspect in zip(findings, suspects, strict=True):
            key = (what, suspect.kind, suspect.component, suspect.peer)
            if key not in self._named and (stay := incumbents(gone, suspect)):
                flows = layout.stable(np.array(finding.flows, np.int64))
                for other in stay:
                    flows_of[other] = flows
                    self._seen[other] = self._seen[other][0], now_s, beside(gone[other], suspect)
                self._seen.pop(key, None)
                continue
            # Beside what has no name yet, what is seen first is the part of it that has one: a NIC of many.
            in_fabric = is_fabric(suspect.component) or is_fabric(suspect.peer)
            doubtful = unsettled and (in_fabric or (starting and nameless))
            if (doubtful and key not in self._seen) or (what != "loss" and starting):
                continue
            flows_of[key] = layout.stable(np.array(finding.flows, np.int64))
            if is_heir(gone, suspect):
                self._remains.discard(key)
            elif key not in self._seen and self._succession.remains(key, flows_of[key]):
                self._remains.add(key)
            own = own_flows(what, finding, findings)
            if what == "loss" and not (key in self._seen and self._held(key)):
                sure = vouched(losses, *self._sources(layout, own, now_s), now_s)
                (self._unvouched.discard if sure else self._unvouched.add)(key)
            since, last, before = self._seen.get(key, (now_s, now_s, suspect))
            if what == "loss" and key not in self._named and now_s - last > gap_s:
                since = now_s  # in between something else was found
            # Once silent it remains so: the packets that arrive as it recovers are no other fault.
            silent = before.silent or (
                what == "loss"
                and (
                    2 * len(dead.intersection(own)) > len(own)
                    or losses.all_or_nothing(now_s - WINDOWS_S[0], own)
                    or (suspect.kind == "switch" and losses.flapping(now_s - WINDOWS_S[0], own))
                )
            )
            leaf = (
                suspect.component
                if silent and suspect.kind == "switch" and suspect.component in self._leaves
                else ""
            )
            if silent and key not in self._seen and suspect.kind in _WHOLE:
                since = min([since, *self._silent_since(what, suspect)])
                self._grown[key] = now_s
            seen = replace(suspect, silent=silent, leaf=leaf, network=before.network)
            self._seen[key] = since, now_s, seen
            # A label of its alert, by which others are muted: that of the second in which it is first reported. Before
            # that hosts may not have reported yet; after that another one would be another alert.
            if key not in self._named and not seen.network and self._held(key):
                network = network_across(layout, finding, self._network_of)
                self._seen[key] = since, now_s, replace(seen, network=network)
        return self._persistent(flows_of, now_s)

    def _persistent(self, flows_of: Mapping[Key, Flows], now_s: float) -> tuple[Suspect, ...]:
        """What has been seen for long enough. flows_of : of what is seen now."""
        held = self._named = {key for key in self._seen if self._held(key)}
        explained: dict[str, Flows] = {}
        for key in held & flows_of.keys():
            explained[key[0]] = np.concatenate([explained.get(key[0], np.empty(0, np.int64)), flows_of[key]])

        def over(key: Key) -> bool:
            age_s = now_s - self._seen[key][1]
            replaced = key[0] in explained and self._succession.swallowed(key, explained[key[0]])
            return age_s > _LINGER_S or (age_s >= REPLACED_S and replaced)

        self._seen = {key: seen for key, seen in self._seen.items() if not over(key)}
        self._remains &= self._seen.keys()
        self._unvouched &= self._seen.keys()
        self._grown = {key: first for key, first in self._grown.items() if key in self._seen}
        # As the coordinator starts what is found is not reported for some seconds, and may end meanwhile.
        found_at_start = {
            key
            for key, (since, last, _) in self._seen.items()
            if now_s - self._began_s < _START_S and last - since > _ROUNDS_S
        }
        for key in (held | found_at_start) & flows_of.keys():
            self._succession.name(key, flows_of[key], now_s)
        self._succession.forget(now_s)
        found = [
            replace(suspect, since_s=since) for key, (since, _, suspect) in self._seen.items() if key in held
        ]
        return tuple(sorted(found, key=lambda suspect: (-suspect.confidence, suspect.since_s)))

    def _held(self, key: Key) -> bool:
        """Whether it was found for long enough to be reported."""
        since, last, suspect = self._seen[key]
        wait_s = max(hold_s(suspect), KEPT_S if key in self._remains else 0.0)
        # What has been named does not become doubtful as such an end is found.
        waits = suspect.kind == "pair" and key not in self._named
        if waits and (
            (suspect.silent and self._ends_may_be_away(key))
            or self._ends_were_away(key, last)
            or self._rerouted(key, last)
        ):
            wait_s = max(wait_s, SILENT_HOLD_S["nic"])
        if key not in self._named and not suspect.silent and self._leaf_is_common(key):
            wait_s = max(wait_s, _COMMON_LEAF_HOLD_S)
        # Of a silent host or NIC it is the same question, and has been waited for.
        away = key in self._unvouched and not (suspect.silent and suspect.kind in SILENT_HOLD_S)
        # For one round of reports a part may look like the whole.
        grown = last - self._grown.get(key, -math.inf) >= _ROUNDS_S
        return grown and last - since >= max(wait_s, _AWAY_HOLD_S if away else 0.0)

    def _leaf_is_common(self, nic: Key) -> bool:
        """Whether another NIC of the same leaf is suspected of the same: rather it is the leaf, of which a host that
        is away, but still counted upon, seems to say that it is well.
        """
        leaf = self._leaves_now.get(nic[2])
        return leaf is not None and any(
            of == nic[0] and kind in _NICS and component != nic[2] and self._leaves_now.get(component) == leaf
            for of, kind, component, _ in self._seen
        )

    def _ends_may_be_away(self, pair: Key) -> bool:
        """Whether a host or NIC at its ends is suspected to be silent, which would explain the pair: while others are
        restarted that is found for some of its flows only.
        """
        ends = {name for end in pair[2:] for name in (end, end.partition("/")[0])}
        return any(
            of == pair[0] and kind in SILENT_HOLD_S and component in ends and suspect.silent
            for (of, kind, component, _), (_, _, suspect) in self._seen.items()
        )

    def _ends_were_away(self, pair: Key, now_s: float) -> bool:
        """Whether a host at its ends has come back a short while ago: what was lost then cannot be distinguished from
        what is lost since, and of its other flows it is not known how they are.
        """
        ends = {end.partition("/")[0] for end in pair[2:]}
        return self._absences.back_s(ends, now_s) < WINDOWS_S[1]

    def _rerouted(self, pair: Key, now_s: float) -> bool:
        """Whether paths of its source have changed a short while ago: what flows lost before is that of other links."""
        source = self._hosts.get(pair[2].partition("/")[0])
        return source is not None and now_s - source.rerouted_s < WINDOWS_S[1]

    def _silent_since(self, what: str, suspect: Suspect) -> list[float]:
        """Of a host or NIC, since when a part of that host is silent: one direction is found first, the whole once its
        host is no longer counted upon. Not the other way round: that is how a NIC recovers.
        """
        host = suspect.component.partition("/")[0]
        return [
            since
            for (of, kind, component, _), (since, _, before) in self._seen.items()
            if of == what and kind in SILENT_HOLD_S and before.silent and component.partition("/")[0] == host
        ]

    def _sources(self, layout: Layout, suffer: tuple[int, ...], now_s: float) -> tuple[Flows, Nodes, Floats]:
        """These flows, the host that sends on each, and when it last reported. One that has not reported yet
        may be away, and comes back within some seconds; of one that never reports that is not known.
        """
        last_report_s = self._last_reports(known=now_s - self._began_s > _AWAY_HOLD_S)
        flows = np.array(suffer, np.int64)
        source = self._names.host_of()[layout.table.ends_of(flows)[0]]
        return flows, source, last_report_s[source]

    def _last_reports(self, known: bool) -> Floats:
        """By node. known : of a host that never reports, that it does not."""
        last_report_s = np.full(len(self._names) + 1, math.inf if known else -math.inf)
        last_report_s[-1] = math.inf  # no host
        for host in self._hosts.values():
            last_report_s[host.node] = host.last_report_s
        return last_report_s

    def _forget(self, now_s: float) -> None:
        self._log.forget(now_s)
        for name in [n for n, host in self._hosts.items() if now_s - host.last_report_s > WINDOWS_S[-1]]:
            del self._hosts[name]
            self._reported_leaves.pop(name, None)
        live = frozenset(name for name, host in self._hosts.items() if now_s - host.last_report_s <= LEASE_S)
        if live != self._live:
            self._live, self._fleet_changed = live, True
        for host in self._hosts.values():
            if now_s > host.before_until_s:
                host.before_until_s = math.inf
                self._paths_changed |= host.paths.forget_before()

    def _findings(
        self, layout: Layout, now_s: float, losses: LossTable, history: LossTable
    ) -> list[tuple[str, Finding]]:
        silent = [
            (name, host.last_report_s)
            for name, host in self._hosts.items()
            if now_s - host.last_report_s > SURELY_AWAY_S
        ]

        def unseen(window_s: float) -> Unseen:
            away = self._absences.unseen(layout.table, self._names, silent, now_s, window_s)
            return away.at_least(history.excused_since(now_s - window_s))

        live = [self._hosts[name] for name in self._live]
        waits = unanswered(losses, layout.table, self._names, self._last_reports(known=True), now_s)
        last_found = (self._seen[key] for key in self._named & self._seen.keys())
        known = known_faults(last_found, layout, self._switches, now_s)
        return found_now(layout, losses, history, live, unseen, waits, now_s, known)

    @property
    def _paths_wait_s(self) -> float:
        return _PATHS_WAIT_S + self.flows / _FLOWS_A_SECOND

    def _laid_out(self, now_s: float) -> Layout:
        """Paths come one by one for minutes after a start, and hosts leave one after the other: the sums over a large
        fleet are not made anew for each.
        """
        age_s = now_s - self._laid_out_s
        due = self._fleet_changed and age_s >= self.flows / _LAID_OUT_A_SECOND
        due |= self._paths_changed and age_s >= self._paths_wait_s
        if self._layout is None or due:
            self._layout = None  # not two at a time
            self._laid_out_s, self._fleet_changed, self._paths_changed = now_s, False, False
            self._compact()
            live = [self._hosts[name] for name in sorted(self._live)]
            self._leaves_now = self._leaf_of()
            self._layout = laid_out(live, self._names, self._switches, self._leaves_now)
        return self._layout

    def _leaf_of(self) -> Mapping[str, str]:
        """As declared, else as a host says of its own NICs."""
        if not self._reported_leaves:
            return self.leaf_of
        reported = {
            f"{host}/{device}": leaf
            for host, leaves in self._reported_leaves.items()
            for device, leaf in leaves
        }
        return {**reported, **self.leaf_of}

    def _compact(self) -> None:
        """Forgets names that nobody tells any more, when it is worth it."""
        hosts = self._hosts.values()
        if self._names.overdue:
            used = np.zeros(len(self._names), bool)
            for host in hosts:
                used[host.node] = used[host.ends] = True
            moved = self._names.compact(used)
            for host in hosts:
                host.node, host.ends = int(moved[host.node]), moved[host.ends]
        if self._switches.overdue:
            used = np.zeros(len(self._switches), bool)
            for host in hosts:
                used[host.paths.hops[host.paths.hops >= 0]] = True
            moved = self._switches.compact(used)
            for host in hosts:
                host.paths.renumber(moved)
