"""Offsets and rates of all hosts from the fits of all edges: robust weighted least squares on the graph.

Unknown per host: its correction c (fleet time minus host clock, ns) and its rate r (fleet rate minus host
rate, ppb). An edge fit says: clock of j minus clock of i is m, so c_i - c_j = m and r_i - r_j = its rate.
Robust least squares solve both. Pure: arrays in, arrays out.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve import doubt
from fabricpulse.clocksync.solve.gauge import Anchors, gauge, gauge_rate
from fabricpulse.clocksync.solve.graph import Graph
from fabricpulse.clocksync.solve.graph_forms import graph_of
from fabricpulse.clocksync.solve.held_out import held_out
from fabricpulse.clocksync.solve.hosts import Hosts, Ints
from fabricpulse.clocksync.solve.least_squares import Floats, robust_least_squares, tail_of
from fabricpulse.clocksync.solve.quorum import Election
from fabricpulse.clocksync.solve.rate_doubt import rate_doubt_ppb
from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths


@dataclass(frozen=True)
class Edges:
    """Edge fits of one round, one entry an edge; i, j : host indices. age_s : how long ago the fit held.

    offset_ns : clock of j minus clock of i then. bound_age_s : age of bound_ns. bias_ns : what is known of it that
    NICs add.
    """

    i: NDArray[np.intp]
    j: NDArray[np.intp]
    offset_ns: Ints
    rate_ppb: Floats
    sigma_ns: Floats
    rate_sigma_ppb: Floats
    bound_ns: Floats
    age_s: Floats
    bound_age_s: Floats
    bias_ns: Floats | float = 0.0


@dataclass(frozen=True)
class Solution:
    """One solve. reached : host has a correction now (it is connected to the timeline).

    residual_ns : per edge, measured minus solved. held_out_ns : per edge, measured minus what all others say
    (solve.held_out). component : per host; hosts of other components than `main` keep a timeline of their own.
    has_quorum : the main component speaks for the fleet. falsetickers : anchors whose UTC most others exclude; disputed
    : those whose UTC some others exclude, where no majority agrees. root_moved_ns : by how much what hosts knew of the
    root no longer holds. root_lost : the root of the timeline is not in the main component, and hosts may still follow
    it: `root` does not replace it yet. announced : `root` is new, and does not count before hosts name it
    (solve.quorum).
    doubt_ns : per host, how far it may be off that edges contradict, else 0 (solve.doubt). rate_doubt_ppb : per host,
    how far its rate may be off (solve.rate_doubt).
    """

    correction_ns: Ints
    rate_ppb: Floats
    bound_ns: Floats
    reached: NDArray[np.bool_]
    residual_ns: Floats
    held_out_ns: Floats
    component: NDArray[np.int32]
    main: int
    root: int
    has_quorum: bool
    falsetickers: NDArray[np.bool_]
    disputed: NDArray[np.bool_]
    root_moved_ns: float
    root_lost: bool
    announced: bool
    doubt_ns: Floats
    rate_doubt_ppb: Floats

    @property
    def placed(self) -> NDArray[np.bool_]:
        """Per host: it is on the timeline of the main component."""
        placed: NDArray[np.bool_] = self.reached & (self.component == self.main)
        return placed


@dataclass(frozen=True)
class SolveParameters:
    """drift_ppb : growth of bounds with age; holdover_drift_ppb : where nothing was measured for unmeasured_s.
    measured_s : a fit whose last train is older than this is of the past, and no longer as precise as it was.
    pull_ppb : how much the fleet's rate may change in a solve towards the median of its clocks.

    A host in holdover cannot know that the fleet's rate changes. At 4 solves a second (the start of a fleet) and
    0.05 ppb this is 0.1 us after 1,000 s for each 1 us that its own clock may be wrong by (holdover_drift_ppb): 20 ppb
    would be a hundred times its bound.
    """

    drift_ppb: float = 250.0
    holdover_drift_ppb: float = 1_000.0
    unmeasured_s: float = 2.0
    measured_s: float = 1.0
    pull_ppb: float = 0.05


def solve(hosts: Hosts, edges: Edges, election: Election, parameters: SolveParameters) -> Solution:
    """One round of the fleet: corrections, rates and bounds of all hosts at the common instant.

    election : whose the root is, and what the main component must have to speak for the fleet, whose time without
    anchors is right by definition; otherwise others may keep the fleet's time, and only what hosts knew before is
    known. The timeline goes on without a jump: the median correction of hosts that already
    keep it does not change, unless anchors say so.
    """
    n = len(hosts)
    graph = graph_of(n, edges.i, edges.j)
    component = graph.components()
    counts = hosts.counting(component, election.votes)
    predicted = _predict(replace(hosts, known=counts), edges, graph, component)

    start = np.where(hosts.known, hosts.rate_ppb, 0.0)
    changed_ns, rate_sigma = _changed_since(edges.bound_age_s, parameters)
    np.hypot(edges.rate_sigma_ppb, rate_sigma, out=rate_sigma)
    rate, _ = robust_least_squares(graph, edges.rate_ppb, rate_sigma, start)
    main = _main_component(hosts, component, election)
    chosen = election.root if election.root is not None and component[election.root] == main else None
    if chosen is None:
        chosen = _choose_root(component, edges, main, election.order)
    rate_residual = edges.rate_ppb - (rate[edges.i] - rate[edges.j])
    doubt_ppb = rate_doubt_ppb(graph, chosen, rate_sigma, rate_residual, parameters.drift_ppb)
    # Of 50,000 hosts with 20 edges each array of the edges is 8 MB: those that are not needed again go at once.
    del rate_sigma, rate_residual
    # Offsets are brought to the common instant by the hosts' rates: many edges know them better than one.
    m = (edges.offset_ns - (predicted[edges.i] - predicted[edges.j])).astype(np.float64)
    m += (rate[edges.i] - rate[edges.j]) * edges.age_s
    m -= edges.bias_ns
    sigma = np.hypot(edges.sigma_ns, 0.3 * edges.rate_sigma_ppb * edges.age_s / np.sqrt(10))
    np.hypot(sigma, changed_ns, out=sigma)
    del changed_ns
    delta, huber = robust_least_squares(graph, m, sigma, tail=tail_of(edges.bound_ns))
    unbiased = m
    unbiased -= delta[edges.i] - delta[edges.j]
    # Bounds and suspicions follow from what was measured.
    residual = unbiased + edges.bias_ns
    huber /= np.square(sigma)
    held_out_ns = held_out(graph, huber, unbiased, component)
    del m, unbiased, sigma, huber

    hides = edges.bound_ns + _aged(np.maximum(edges.bound_age_s, 0.0), parameters)
    paths = ShortestPaths(graph, hides + np.abs(residual))
    anchors = Anchors.of(n)
    correction_f = gauge(hosts, component, predicted, delta, counts, election.keeps, chosen, paths, anchors)
    rate = gauge_rate(
        hosts, component, rate, parameters.pull_ppb, counts, election.keeps, chosen, anchors.survivors
    )
    correction = predicted + np.rint(correction_f).astype(np.int64)
    change = (correction - hosts.correction_ns).astype(np.float64)
    in_main = component == main
    anchored = bool((in_main & np.isfinite(hosts.anchor_ns)).any())
    has_quorum = election.has_quorum(in_main, anchored)
    begins = not (hosts.known & in_main).any()
    # Anchors say themselves what they know; without them the root of the fleet is right, and that of a part is not.
    # Those that the root has left with still say that they are synchronized, and get no reply: had the others a root of
    # their own now, their bounds would be of another time than those.
    root_absent = election.followed and election.root is None and election.quorum is not None
    root_absent &= not np.isfinite(hosts.anchor_ns).any()
    apart = election.root is not None and bool(component[election.root] != main)
    root_lost = root_absent or (election.followed and apart)
    announced = has_quorum and not (root_lost or anchored or election.names(in_main, chosen))
    right = chosen if (has_quorum or begins) and not root_lost and not announced else None
    if not has_quorum:
        hosts = replace(hosts, bound_ns=hosts.bound_ns + hosts.unnoticed_ns)
    root_moved_ns = 0.0
    if right is not None and hosts.known[right] and not np.isfinite(hosts.anchor_ns).any():
        hosts, change, root_moved_ns = _against_root(hosts, change, right, election.former)
    hosts = replace(hosts, bound_ns=np.where(counts, hosts.bound_ns, np.inf))
    source = _sources(hosts, change, right, anchors)
    if right is not None and source[right] == 0.0:
        # A root without a recent measurement may be off by any amount: its NIC is dead, its management network is not.
        at_root = edges.bound_age_s[(edges.i == right) | (edges.j == right)]
        source[right] = _aged(at_root.min(initial=np.inf), parameters) if len(at_root) else 0.0
    kept = np.where(hosts.known, hosts.bound_ns + np.abs(change), np.inf)
    bound, doubt_ns = doubt.bounds(paths, hides, residual, source, kept, hosts.doubt_ns)
    del paths, hides
    reached = np.isfinite(bound)
    return Solution(
        correction,
        rate,
        bound,
        reached,
        residual,
        held_out_ns,
        component,
        main,
        chosen,
        has_quorum,
        anchors.falsetickers & ~anchors.disputed,
        anchors.falsetickers & anchors.disputed,
        root_moved_ns,
        root_lost,
        announced,
        doubt_ns,
        doubt_ppb,
    )


def _aged(age_s: Floats, parameters: SolveParameters) -> Floats:
    """By how much two clocks may have gone apart since they were compared, ns: clocks that are no longer compared may
    do, since then, whatever they may do in holdover.
    """
    unmeasured = age_s > parameters.unmeasured_s
    aged: Floats = np.where(unmeasured, parameters.holdover_drift_ppb, parameters.drift_ppb) * age_s
    return aged


def _changed_since(age_s: Floats, parameters: SolveParameters) -> tuple[Floats, Floats]:
    """What the clocks of an edge may have done since its last train: ns, and ppb of their rates.

    The fit of a path that has just died is as precise as any, and says that nothing has happened: of a host whose
    oscillator changes then, its dead neighbours would outvote those that go on to measure it.
    """
    past_s = np.maximum(age_s - parameters.measured_s, 0.0)
    drift_ppb = np.where(age_s > parameters.unmeasured_s, parameters.holdover_drift_ppb, parameters.drift_ppb)
    return drift_ppb * past_s, drift_ppb * np.minimum(past_s / parameters.measured_s, 1.0)


def _predict(hosts: Hosts, edges: Edges, graph: Graph, component: NDArray[np.int32]) -> Ints:
    """A first int64 guess of each correction, so that the least squares only see small numbers."""
    n = len(hosts)
    predicted = hosts.correction_ns.copy()
    if hosts.known.all() or not len(edges.i):
        return predicted
    # Unknown hosts get theirs along a tree of edges that starts at a known host, or anywhere.
    # key of (i, j) -> an edge of that pair, in both directions; a dict of tuples would take 200 MB at 50,000 hosts.
    keys = np.concatenate([edges.i * n + edges.j, edges.j * n + edges.i])
    by_key = np.argsort(keys, kind="stable")
    # c_i - c_j = offset, so going from i to j subtracts it.
    gain = np.concatenate([-edges.offset_ns, edges.offset_ns])[by_key]
    keys = keys[by_key]
    for label in np.unique(component[~hosts.known]):
        members = np.flatnonzero(component == label)
        known = members[hosts.known[members]]
        start = int(known[0]) if len(known) else int(members[0])
        order, parent = graph.breadth_first(start)
        nodes = order[1:]
        up = parent[nodes]
        change = gain[np.searchsorted(keys, up * n + nodes)]
        for node, above, by in zip(nodes.tolist(), up.tolist(), change.tolist(), strict=True):
            if not hosts.known[node]:
                predicted[node] = predicted[above] + by
    return predicted


def _main_component(hosts: Hosts, component: NDArray[np.int32], election: Election) -> int:
    """The component that goes on as the fleet: the one with most anchors; without them, or where they are equally many,
    with most hosts that keep fleet time and vote, then with most that keep it, then with the root, then the largest.
    """
    n = int(component.max()) + 1
    with_root = np.zeros(n)
    if election.root is not None:
        with_root[component[election.root]] = 1.0
    ranks = [
        np.bincount(component, of, n)
        for of in (np.isfinite(hosts.anchor_ns), hosts.known & election.votes, hosts.known)
    ]
    # The last key is the first that counts.
    return int(np.lexsort([np.bincount(component, minlength=n), with_root, *reversed(ranks)])[-1])


def _choose_root(component: NDArray[np.int32], edges: Edges, main: int, order: NDArray[np.uint64]) -> int:
    """The best connected host, and the same at each coordinator with the same reports."""
    degree = np.bincount(edges.i, minlength=len(component)) + np.bincount(edges.j, minlength=len(component))
    degree = np.where(component == main, degree, -1)
    best = np.flatnonzero(degree == degree.max())
    return int(best[order[best].argmin()])


def _against_root(hosts: Hosts, change: Floats, root: int, last: int | None) -> tuple[Hosts, Floats, float]:
    """Bounds that still hold once the root is right by definition, changes against it, and how far it has moved.

    What hosts knew, they knew of the root as it was. Where it moves against them (most edges of it say so, perhaps
    wrongly), they are as far from it as it has moved; hosts that missed the round, by that more. last : the root that
    last counted; another one was as wrong as its bound said.
    """
    bound_ns = hosts.bound_ns + hosts.missed_ns
    another_ns = float(bound_ns[root]) if root != last else 0.0
    hosts = replace(hosts, bound_ns=bound_ns + another_ns)
    return hosts, change - change[root], abs(float(change[root])) + another_ns


def _sources(hosts: Hosts, change: Floats, root: int | None, anchors: Anchors) -> Floats:
    """How far hosts that know something themselves may be wrong; the bound of any is the shortest way to one of them.

    Right are: surviving anchors, within their own bounds; without anchors the root, if there is one, by
    definition of the timeline; and any host as far as its previous bound still holds.
    """
    source = np.where(hosts.known & ~anchors.disputed, hosts.bound_ns + np.abs(change), np.inf)
    if np.isfinite(hosts.anchor_ns).any():
        source = np.minimum(source, anchors.source_ns)
    elif root is not None:
        source[root] = 0.0
    return source
