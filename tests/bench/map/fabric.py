"""A simulated Clos fabric of three tiers, its probes, and faults in it: what the diagnosis has to find, at sizes that
no lab has.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fabricpulse.diagnosis.flows.components import NO_HOP, SILENT_HOP, Kind, Nodes, code, parts
from fabricpulse.diagnosis.flows.flow_table import Floats, Flows, FlowTable
from fabricpulse.diagnosis.flows.silent_hops import named

# The mesh's defaults: 50 trains of three packets a second, every tenth of which leaves the main path.
PORTS, TRAINS, PACKETS, SWEEP = 8, 50, 3, 10
MAIN_RATE = TRAINS * PACKETS * (1 - 1 / SWEEP)
SWEEP_RATE = TRAINS * PACKETS / SWEEP / (PORTS - 1)


@dataclass(frozen=True)
class Clos:
    """leaves : in all. pods : groups of leaves with spines of their own. spines : of each pod. cores : above each spine
    of a pod. hosts : each has one NIC a rail, and the rails are fabrics apart; one rail is simulated. peers : of a NIC.
    """

    hosts: int = 50_000
    leaves: int = 1024
    pods: int = 32
    spines: int = 16
    cores: int = 16
    peers: int = 10

    def hops(self, rng: np.random.Generator) -> tuple[Nodes, Nodes, Nodes]:
        """Source, destination, and the switches of every flow (5 columns, NO_HOP behind the last)."""
        rings = [rng.permutation(self.hosts) for _ in range(self.peers // 2)]
        near = np.concatenate(rings)
        far = np.concatenate([np.roll(ring, 1) for ring in rings])
        # Two rings may agree on a pair of neighbours, which are peers once.
        both = np.concatenate([near * self.hosts + far, far * self.hosts + near])
        source, destination = (np.repeat(end, PORTS) for end in np.divmod(np.unique(both), self.hosts))
        leaf_of = np.arange(self.hosts) % self.leaves
        a, b = leaf_of[source], leaf_of[destination]
        pod_a, pod_b = a * self.pods // self.leaves, b * self.pods // self.leaves
        spine = rng.integers(self.spines, size=len(source))
        core = rng.integers(self.cores, size=len(source))
        first = self.hosts + self.leaves
        spine_a, spine_b = (first + pod * self.spines + spine for pod in (pod_a, pod_b))
        top = first + self.pods * self.spines + spine * self.cores + core
        hops = np.full((len(source), 5), NO_HOP, np.int32)
        hops[:, 0] = self.hosts + a
        other_leaf, other_pod = a != b, pod_a != pod_b
        hops[:, 1] = np.where(other_leaf, spine_a, NO_HOP)
        hops[:, 2] = np.where(other_pod, top, np.where(other_leaf, self.hosts + b, NO_HOP))
        hops[:, 3] = np.where(other_pod, spine_b, NO_HOP)
        hops[:, 4] = np.where(other_pod, self.hosts + b, NO_HOP)
        return source.astype(np.int32), destination.astype(np.int32), hops

    @property
    def nodes(self) -> int:
        """NICs and switches, numbered through."""
        return self.hosts + self.leaves + self.pods * self.spines + self.spines * self.cores


class Simulation:
    """A fabric with its flows. table : as it is. seen : as the coordinator knows it, some switches silent.

    silent : share of the switches above the leaves that do not answer; leaves are declared.
    """

    def __init__(self, clos: Clos, silent: float, seed: int) -> None:
        self.clos = clos
        self.rng = np.random.default_rng(seed)
        self.random = random.Random(seed)
        source, destination, hops = clos.hops(self.rng)
        # The table counts switches from 0.
        hops[hops >= 0] -= clos.hosts
        edges = len(source) // PORTS
        self.table = FlowTable(
            source[::PORTS],
            destination[::PORTS],
            np.full(clos.hosts, -1, np.int32),
            np.full(edges, MAIN_RATE, np.float32),
            np.full(edges, SWEEP_RATE, np.float32),
            np.arange(edges + 1) * PORTS,
            hops.astype(np.int16),
            clos.hosts,
        )
        self.rate = self.table.rate_of(np.arange(len(self.table)))
        above = clos.hosts + clos.leaves
        quiet = self.rng.random(clos.nodes - above) < silent
        self.silence((above + np.flatnonzero(quiet)).tolist())

    def silence(self, switches: Sequence[int]) -> None:
        """From now on these do not answer, and all others do."""
        table, nodes, hosts = self.table, self.clos.nodes, self.clos.hosts
        self.quiet = np.zeros(nodes + 1, bool)
        self.quiet[list(switches)] = True
        answered = table.hops.copy()
        answered[self.quiet[hosts:][table.hops] & (table.hops >= 0)] = SILENT_HOP
        hops, found = named(answered, nodes - hosts, np.zeros(len(answered), np.uint8))
        may_be = tuple(tuple(hosts + other for other in each.may_be) for each in found)
        self.seen = replace(table, hops=hops, first_unnamed=nodes, may_be=may_be)

    def seen_as(self, switch: int) -> set[int]:
        """The nodes that stand for a switch in `seen`."""
        seen = self.seen.hops[self.table.hops == switch - self.clos.hosts]
        return {self.clos.hosts + hop for hop in seen.tolist()}

    def fault(self) -> int:
        """A random component: a link, a switch, a NIC or one direction of it."""
        kind = self.random.choice(
            (Kind.LINK, Kind.LINK, Kind.LINK, Kind.SWITCH, Kind.NIC, Kind.NIC_TX, Kind.NIC_RX)
        )
        flow = np.array([self.random.randrange(len(self.table))])
        crossed = [int(c[0]) for c in self.table.shared(flow) if c[0] >= 0 and parts(int(c[0]))[0] == kind]
        return self.random.choice(crossed) if crossed else self.fault()

    def crossing(self, component: int) -> Flows:
        """The flows that cross it."""
        kind, a, b = parts(component)
        table, hops, hosts = self.table, self.table.hops, self.clos.hosts
        if kind in (Kind.NIC, Kind.NIC_TX, Kind.NIC_RX):
            sends, hears = table.source == a, table.destination == a
            edges = sends | hears if kind is Kind.NIC else sends if kind is Kind.NIC_TX else hears
            hit = np.repeat(edges, PORTS)
        elif kind is Kind.SWITCH:
            hit = (hops == a - hosts).any(axis=1)
        else:
            hit = ((hops[:, :-1] == a - hosts) & (hops[:, 1:] == b - hosts)).any(axis=1)
        return np.flatnonzero(hit)

    def lose(
        self, faults: dict[int, float], window_s: float, background: float
    ) -> tuple[Flows, Floats, Floats]:
        """Plays the probes of a window. faults : loss of each faulty component. Returns flows that lost packets, how
        many, and of how many.
        """
        passes = np.full(len(self.table), 1 - background)
        for component, loss in faults.items():
            passes[self.crossing(component)] *= 1 - loss
        sent = self.rng.poisson(self.rate * window_s)
        lost = self.rng.binomial(sent, 1 - passes)
        hit = np.flatnonzero(lost)
        return hit, lost[hit].astype(float), sent[hit].astype(float)

    def names(self, component: int) -> frozenset[int]:
        """What counts as its name: itself. Of what is silent, all that the coordinator can know of it."""
        kind, a, b = parts(component)
        if kind in (Kind.NIC, Kind.NIC_TX, Kind.NIC_RX) or not (
            self.quiet[a] or (kind is Kind.LINK and self.quiet[b])
        ):
            return frozenset({component})
        flows = self.crossing(component)
        true, seen = self.table.hops_of(flows), self.seen.hops_of(flows)
        if kind is Kind.LINK:
            rows, places = np.nonzero((true[:, :-1] == a) & (true[:, 1:] == b))
            ends = np.unique(np.stack([seen[rows, places], seen[rows, places + 1]], axis=1), axis=0)
            return frozenset(code(Kind.LINK, int(x), int(y)) for x, y in ends)
        names: set[int] = set()
        rows, places = np.nonzero(true == a)
        for step in (-1, 0, 1):
            inside = (places + step >= 0) & (places + step < true.shape[1])
            there, beside = seen[rows[inside], places[inside]], seen[rows[inside], places[inside] + step]
            for x, y in np.unique(np.stack([there, beside], axis=1), axis=0).tolist():
                if step == 0:
                    names.add(code(Kind.SWITCH, x))
                elif y >= 0:
                    names.add(code(Kind.LINK, *((x, y) if step > 0 else (y, x))))
        return frozenset(names)
