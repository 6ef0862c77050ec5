"""A fleet below a Clos fabric in virtual time. Its exporters report what faults do to them to `FleetEvidence`."""

import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from fabricpulse.diagnosis.evidence.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.search.suspect import Suspect
from fabricpulse.diagnosis.wire.messages import (
    PROTOCOL,
    EdgeName,
    EvidenceReport,
    FlowEvidence,
    FlowPath,
    HostFacts,
    pack_flows,
)
from fabricpulse.mesh._probe_engine import PathSizes, SizeLoss, size_after_train

PORTS = 4
# Packets a second of a healthy flow: the first source port, the others. Three make a train.
MAIN, SWEPT = 135.0, 5.0
_TRAIN = 3
_MOST_PATHS = 500  # of one report, as the exporter
# A flow is tried with a large packet once in so many seconds, as the engine's defaults have it: eight source ports, of
# which every tenth train takes one but the first, fifty trains a second.
_SWEPT_PATHS, _SWEEP, _MTU = 8, 10, 9000
_CYCLE = _SWEEP * (_SWEPT_PATHS - 1)
_TURN_S = _CYCLE / 50

Part = tuple[str, ...]
"""A kind and one or two names: ("nic_tx", "h1/r0"), ("link", "leaf0-r0", "spine1-r0")."""
Share = Callable[[Part, float], float]
Name = tuple[str, str, str]
"""Kind, component and peer of a suspect, as the API gives them."""


@dataclass
class Fault:
    """share : of the packets of each part that are lost, at a moment since the beginning; or, with `what`, the flows
    that cross it suffer while it is above 0. names : suspects that are right; of several, all together are one fault.
    above : bytes; of a fault of large packets, those that are dropped, the share of them.
    """

    what: str
    parts: tuple[Part, ...]
    names: frozenset[Name]
    share: Share
    begins_s: float
    ends_s: float
    host: str = ""  # that reboots: it says nothing meanwhile
    above: int = 1400

    def of(self, part: Part, now_s: float) -> float:
        """Share at a moment."""
        return self.share(part, now_s - self.begins_s) if self.begins_s <= now_s < self.ends_s else 0.0


@dataclass
class _Sizes:
    """What arrives of the large packets of one flow, as the probe engine keeps it. small : packets and those lost of
    them, at each turn of the last minute.
    """

    turn: int
    path: PathSizes = field(default_factory=PathSizes)
    small: deque[tuple[int, int]] = field(default_factory=lambda: deque([(0, 0)], round(60 / _TURN_S)))

    @property
    def loss_ppm(self) -> int:
        """Of the last minute, small packets."""
        sent, lost = self.small[-1][0] - self.small[0][0], self.small[-1][1] - self.small[0][1]
        return round(1e6 * lost / sent) if sent else 0


@dataclass
class _Exporter:
    edges: tuple[EdgeName, ...]
    revision: int
    at: float  # part of a second at which it reports
    reported: bool = False
    reported_paths: int = 0
    last_s: float = -100.0
    slow_until: dict[tuple[int, int], float] = field(default_factory=dict)
    sizes: dict[tuple[int, int], _Sizes] = field(default_factory=dict)


class VirtualFleet:
    """leaves : a rail. traced : share of paths that are known. blind : hosts that never report."""

    def __init__(
        self,
        seed: int,
        hosts: int,
        rails: int,
        leaves: int,
        spines: int,
        traced: bool = True,
        blind: Iterable[str] = (),
    ) -> None:
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self._large_rng = np.random.default_rng([seed, 1])
        self.hosts = [f"h{i}" for i in range(hosts)]
        self.rails = [f"r{i}" for i in range(rails)]
        self.spines, self.traced, self.blind = spines, traced, frozenset(blind)
        self.leaf = {
            f"{host}/{rail}": f"leaf{i % leaves}-{rail}"
            for i, host in enumerate(self.hosts)
            for rail in self.rails
        }
        self.members = list(self.hosts)
        self.faults: list[Fault] = []
        self.now_s = 0.0
        self.evidence = FleetEvidence(self.leaf)
        self._stopped: list[tuple[str, float, float]] = []
        self._withdrawn: dict[str, tuple[str, ...]] = {}
        self._way: dict[tuple[str, str, int], tuple[str, ...]] = {}
        self.exporters: dict[str, _Exporter] = {}
        self._deal()

    # -- what is there

    def below(self, leaf: str) -> list[str]:
        """NICs of a leaf."""
        return [nic for nic, at in self.leaf.items() if at == leaf]

    def fabric(self, rail: str) -> str:
        """How what is unknown between its leaves is called."""
        return f"fabric({rail})" if len(self.rails) > 1 else "fabric"

    def uplinks(self, leaf: str) -> list[str]:
        """Its spines."""
        rail = leaf.partition("-")[2]
        return [f"spine{k}-{rail}" for k in range(self.spines)]

    def way(self, source: str, destination: str, port: int) -> tuple[str, ...]:
        """Switches between two NICs."""
        first, last = self.leaf[source], self.leaf[destination]
        if first == last:
            return (first,)
        key = source, destination, port
        if key not in self._way:
            live = [spine for spine in self.uplinks(first) if spine not in self._withdrawn.get(first, ())]
            self._way[key] = (first, self.random.choice(live), last)
        return self._way[key]

    def parts(self, source: str, destination: str, port: int) -> list[Part]:
        """All that a flow crosses."""
        way = self.way(source, destination, port)
        return [
            ("nic_tx", source),
            ("nic_rx", destination),
            *(("switch", node) for node in way),
            *(("link", a, b) for a, b in pairwise(way)),
        ]

    # -- what happens

    def members_are(self, members: list[str]) -> None:
        """From now on these are the fleet: every exporter has other edges, and begins to count anew."""
        self.members = members
        self._deal()

    def _deal(self) -> None:
        old = self.exporters
        self.exporters = {}
        for host in self.members:
            edges = tuple(
                EdgeName(rail, peer, rail) for rail in self.rails for peer in self.members if peer != host
            )
            before = old.get(host)
            self.exporters[host] = _Exporter(
                edges, before.revision + 1 if before else 1, before.at if before else self.random.random()
            )

    def restart(self, host: str, begins_s: float, ends_s: float) -> None:
        """Its exporter is not there meanwhile, and comes back as another process."""
        self.faults.append(
            Fault("loss", self._all_of(host), frozenset(), _steady(1.0), begins_s, ends_s, host)
        )

    def stop(self, host: str, begins_s: float, ends_s: float) -> None:
        """Its exporter is stopped meanwhile; what it missed it tells as stalled."""
        silent = tuple(part for part in self._all_of(host) if part[0] == "nic_tx")
        self.faults.append(Fault("loss", silent, frozenset(), _steady(1.0), begins_s, ends_s))
        self._stopped.append((host, begins_s, ends_s))

    def _all_of(self, host: str) -> tuple[Part, ...]:
        return tuple((way, f"{host}/{rail}") for rail in self.rails for way in ("nic_tx", "nic_rx"))

    def withdraw(self, leaf: str, *spines: str) -> None:
        """From now on the leaf's routes use all uplinks but these, and its hosts trace their paths again."""
        self._withdrawn[leaf] = spines
        self._way = {key: way for key, way in self._way.items() if way[0] != leaf}
        for exporter in self.exporters.values():
            exporter.reported_paths = 0

    def restart_coordinator(self) -> None:
        """All that it knew is gone."""
        self.evidence = FleetEvidence(self.leaf)

    def play(self, seconds: float) -> list[tuple[float, tuple[Suspect, ...]]]:
        """Plays on. Returns what was named each second."""
        found = []
        for _ in range(int(seconds)):
            for host in sorted(self.exporters, key=lambda host: self.exporters[host].at):
                self._report(host, self.now_s + self.exporters[host].at)
            self.now_s += 1
            found.append((self.now_s, self.evidence.suspects(self.now_s)))
        return found

    def _rebooting(self, host: str, now_s: float) -> bool:
        return any(f.host == host and f.begins_s <= now_s < f.ends_s for f in self.faults)

    def _report(self, host: str, now_s: float) -> None:
        exporter = self.exporters[host]
        since_s = [
            now_s - ends_s
            for stopped, begins_s, ends_s in self._stopped
            if stopped == host and begins_s <= now_s
        ]
        if min(since_s, default=1.0) < 0:
            return
        stalled = min(since_s, default=1.0) < 1.0
        if self._rebooting(host, now_s):
            # It comes back as another process.
            exporter.reported, exporter.reported_paths, exporter.last_s = False, 0, now_s
            exporter.slow_until, exporter.sizes = {}, {}
            return
        flows = self._flows(host, exporter, now_s)
        if self._rebooting(host, now_s - 1.0):
            flows = []  # it has nothing to compare with yet
        if host in self.blind:
            return
        if not flows and not stalled and exporter.reported and now_s - exporter.last_s < 5:
            return
        paths = self._paths(host, exporter) if exporter.reported else ()
        report = EvidenceReport(
            *(PROTOCOL, host, exporter.revision, PORTS, MAIN, SWEPT, pack_flows(flows), stalled),
            None if exporter.reported else exporter.edges,
            paths,
            facts=None if exporter.reported else HostFacts(tuple((rail, rail) for rail in self.rails)),
        )
        if self.evidence.report(report, now_s):
            exporter.reported, exporter.reported_paths = False, 0
            return
        exporter.reported, exporter.last_s = True, now_s
        exporter.reported_paths += len(paths)

    def _paths(self, host: str, exporter: _Exporter) -> tuple[FlowPath, ...]:
        found = []
        for number, edge in enumerate(exporter.edges):
            for port in range(PORTS):
                way = self.way(f"{host}/{edge.device}", f"{edge.peer}/{edge.peer_device}", port)
                if len(way) > 1 and self.traced:
                    found.append(FlowPath(number, port, way))
        return tuple(found[exporter.reported_paths : exporter.reported_paths + _MOST_PATHS])

    def _flows(self, host: str, exporter: _Exporter, now_s: float) -> list[FlowEvidence]:
        """What it has to tell of the last second."""
        faults = [f for f in self.faults if f.begins_s - 1 <= now_s < f.ends_s + 60]
        found = []
        beside = {rail: SizeLoss() for rail in self.rails}
        for (number, _), one in exporter.sizes.items():
            beside[exporter.edges[number].device].add(one.path.loss)
        for number, edge in enumerate(exporter.edges):
            near, far = f"{host}/{edge.device}", f"{edge.peer}/{edge.peer_device}"
            for port in range(PORTS):
                crossed = self.parts(far, near, port) if faults else []
                passes = 1.0
                slow = False
                for fault in faults:
                    if fault.host == edge.peer and self._rebooting(edge.peer, now_s - 0.5):
                        passes = 0.0
                    for part in fault.parts:
                        if part not in crossed:
                            continue
                        if fault.what == "loss":
                            # The mean over the last second.
                            passes *= 1 - 0.25 * sum(
                                fault.of(part, now_s - k) for k in (0.125, 0.375, 0.625, 0.875)
                            )
                        elif fault.what == "delay":
                            slow |= self._slow(
                                host, exporter, (number, port), fault.of(part, now_s - 1.0) > 0, now_s
                            )
                large = [(f, p) for f in faults if f.what == "mtu" for p in f.parts if p in crossed]
                hole = maybe = False
                if large or passes < 1 or (number, port) in exporter.sizes:
                    one = self._tried(
                        host, exporter, (number, port), large, passes, now_s, beside[edge.device]
                    )
                    hole = one.path.black_hole(one.loss_ppm, beside[edge.device]) > 0
                    maybe = not hole and one.path.maybe_black_hole(one.loss_ppm, beside[edge.device])
                rate = SWEPT if port else MAIN
                sent = lost = 0
                if passes < 1 or self.random.random() < 2e-5 * rate:
                    sent = _TRAIN * round(rate / _TRAIN)
                    lost = int(self.rng.binomial(sent, 1 - passes)) if passes < 1 else 1
                if lost or slow or hole or maybe:
                    found.append(FlowEvidence(number, port, slow, sent, lost, hole, maybe))
        return found

    def _tried(
        self,
        host: str,
        exporter: _Exporter,
        flow: tuple[int, int],
        large: list[tuple[Fault, Part]],
        passes: float,
        now_s: float,
        beside: SizeLoss,
    ) -> _Sizes:
        """A flow with the large packets that it has been tried with until now. large : faults of these on its way.
        passes : share of all packets. beside : what its NIC loses of large ones.
        """
        # The turns of an edge begin when its exporter did.
        turn = int((now_s + 100 + 60 * _spread(host, flow[0])) / _TURN_S)
        one = exporter.sizes.setdefault(flow, _Sizes(turn - 3))
        while one.turn < turn:
            one.turn += 1
            sent, lost = one.small[-1]
            one.small.append((sent + 30, lost + int(self._large_rng.binomial(30, 1 - passes))))
            size = size_after_train(one.turn * _CYCLE, _SWEPT_PATHS, _SWEEP, _MTU)
            arrives = passes
            for fault, part in large:
                if size > fault.above:
                    arrives *= 1 - fault.of(part, now_s - (turn - one.turn) * _TURN_S)
            hole = one.path.black_hole(one.loss_ppm, beside)
            if passes > 0:
                one.path.due(one.turn, size, _MTU, *one.small[-1])
            if self._large_rng.random() < arrives:
                one.path.arrived(one.turn, size, *one.small[-1], hole)
        return one

    def _slow(self, host: str, exporter: _Exporter, flow: tuple[int, int], now: bool, now_s: float) -> bool:
        """A flow is called slow, and well again, some seconds late, each flow's at its own moment."""
        late_s = 1.0 + 4.0 * _spread(host, *flow)
        if now:
            exporter.slow_until.setdefault(flow, -(now_s + late_s))
            if (exporter.slow_until[flow] < 0 and now_s >= -exporter.slow_until[flow]) or exporter.slow_until[
                flow
            ] > 0:
                exporter.slow_until[flow] = now_s + late_s
        elif exporter.slow_until.get(flow, 0) < 0 or now_s > exporter.slow_until.get(flow, 0):
            exporter.slow_until.pop(flow, None)
        return exporter.slow_until.get(flow, 0) > 0


def _spread(*names: object) -> float:
    """From 0 to 1, always the same."""
    return zlib.crc32(repr(names).encode()) / 2**32


# -- faults


def _steady(share: float) -> Share:
    return lambda _part, _since: share


def names_of(fleet: VirtualFleet, *parts: Part) -> frozenset[Name]:
    """As the API names them; without traces nothing is known of the spines."""

    def name(node: str) -> str:
        unknown = not fleet.traced and node.startswith("spine")
        return fleet.fabric(node.partition("-")[2]) if unknown else node

    found = set()
    for part in parts:
        found.add((part[0], name(part[1]), name(part[2]) if len(part) > 2 else ""))
    return frozenset(found)


def random_fault(fleet: VirtualFleet, begins_s: float, lasts_s: float) -> Fault:
    """One of any kind."""
    choose = fleet.random.choice
    kinds = ["nic", "nic_tx", "nic_rx", "link", "cable", "spine", "leaf", "dying_leaf", "reboot", "flap"]
    kind = choose([*kinds, "delay", "mtu"])
    ends_s = begins_s + lasts_s
    nic = choose([n for n in fleet.leaf if n.partition("/")[0] in fleet.members])
    leaf = choose(sorted(set(fleet.leaf.values())))
    spine = choose(fleet.uplinks(leaf))
    up, down = ("link", leaf, spine), ("link", spine, leaf)
    share = choose([0.02, 0.05, 0.2, 0.6, 1.0])
    both: tuple[Part, ...] = (("nic_tx", nic), ("nic_rx", nic))
    name: Part
    parts: tuple[Part, ...]

    steady = _steady(share)

    def fault(what: str, parts: tuple[Part, ...], names: frozenset[Name], shares: Share = steady) -> Fault:
        return Fault(what, parts, names, shares, begins_s, ends_s)

    if kind == "nic":
        return fault("loss", both, names_of(fleet, ("nic", nic)), _steady(1.0))
    if kind in ("nic_tx", "nic_rx"):
        return fault("loss", ((kind, nic),), names_of(fleet, (kind, nic)))
    if kind == "link":
        one = choose([up, down])
        return fault("loss", (one,), names_of(fleet, one))
    if kind == "cable":
        return fault("loss", (up, down), names_of(fleet, up, down), _steady(1.0))
    if kind == "spine":
        return fault("loss", (("switch", spine),), names_of(fleet, ("switch", spine)))
    if kind == "leaf":
        return fault("loss", (("switch", leaf),), names_of(fleet, ("switch", leaf)))
    if kind == "dying_leaf":
        return _dying_leaf(fleet, leaf, begins_s, ends_s)
    if kind == "reboot":
        host = nic.partition("/")[0]
        nics = [n for n in fleet.leaf if n.startswith(host + "/")]
        parts = tuple((way, n) for n in nics for way in ("nic_tx", "nic_rx"))
        ways = [(k, n) for n in nics for k in ("nic", "nic_tx")]
        names = names_of(fleet, ("host", host), *ways)
        return Fault("loss", parts, names, _steady(1.0), begins_s, ends_s, host)
    if kind == "flap":
        period, dead = choose([(4.0, 2.0), (10.0, 1.0), (10.0, 5.0), (20.0, 8.0)])
        name, parts = choose([(("nic", nic), both), (("switch", leaf), (("switch", leaf),)), (up, (up,))])
        return fault("loss", parts, names_of(fleet, name), lambda _, since: float(since % period < dead))
    name, parts = choose(
        [
            (("nic_rx", nic), (("nic_rx", nic),)),
            (("switch", leaf), (("switch", leaf),)),
            (up, (up,)),
            (down, (down,)),
        ]
    )
    found = fault(kind, parts, names_of(fleet, name), _steady(1.0))
    return replace(found, above=choose([1400, 2000, 4000, 8000])) if kind == "mtu" else found


def _dying_leaf(fleet: VirtualFleet, leaf: str, begins_s: float, ends_s: float) -> Fault:
    """Its cables die one after the other, in any order."""
    cables: list[tuple[Part, ...]] = [(("nic_tx", n), ("nic_rx", n)) for n in fleet.below(leaf)]
    cables += [(("link", leaf, s), ("link", s, leaf)) for s in fleet.uplinks(leaf)]
    fleet.random.shuffle(cables)
    apart_s = fleet.random.choice([0.1, 0.5, 1.5, 4.0])
    dies = {part: k * apart_s for k, cable in enumerate(cables) for part in cable}
    return Fault(
        "loss",
        tuple(dies),
        names_of(fleet, ("switch", leaf)),
        lambda part, since: float(since >= dies[part]),
        begins_s,
        ends_s,
    )


def name_of(suspect: Suspect) -> Name:
    """As `Fault.names`."""
    return suspect.kind, suspect.component, suspect.peer
