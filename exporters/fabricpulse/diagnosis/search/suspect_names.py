"""From findings, which are numbers, to suspects, which have names. Pure."""

from collections.abc import Callable, Sequence

import numpy as np

from fabricpulse.diagnosis.flows.components import Kind, code, parts
from fabricpulse.diagnosis.flows.flow_table import Flows
from fabricpulse.diagnosis.flows.layout import Layout
from fabricpulse.diagnosis.search.locate import Finding
from fabricpulse.diagnosis.search.suspect import Suspect

# Pairs of NICs that are named with a suspect.
_MOST_SUFFERERS = 8
_MOST_OF_ALL = 0.9
# Flows that are looked at together: bounds memory.
_FLOWS = 65_536


def without_fabric(layout: Layout, findings: Sequence[Finding]) -> list[Finding]:
    """Without "the fabric" where a named component is reported beside it. The fabric is everything between two leaves
    that is unknown (also of the paths of a host that traces none); a link into or out of it is less. Nor with a pair
    some of whose flows may take a reported link there.
    """
    # A fault of one plane says nothing of what is unknown of another.
    of_plane: dict[int, list[Finding]] = {}
    pairs: list[Finding] = []
    for finding in findings:
        kind, a, _ = parts(finding.component)
        if kind in (Kind.SWITCH, Kind.LINK):
            of_plane.setdefault(layout.plane_of(a), []).append(finding)
        elif kind is Kind.PAIR:
            pairs.append(finding)
    covered = {f.component for some in of_plane.values() for f in _covered(layout, some)}
    rest = [finding for finding in findings if finding.component not in covered]
    near, far = _named_ends(layout, rest)
    hidden = {pair.component for pair in pairs if _some_pass(layout, pair, near, far)}
    return [finding for finding in rest if finding.component not in hidden]


def _named_ends(layout: Layout, findings: Sequence[Finding]) -> tuple[set[int], set[int]]:
    """Where links between switches that have names begin, and where they end."""
    both = [parts(finding.component) for finding in findings]
    links = [(a, b) for kind, a, b in both if kind is Kind.LINK and max(a, b) < layout.table.first_unnamed]
    return {a for a, _ in links}, {b for _, b in links}


def _pass(layout: Layout, flows: Flows, near: set[int], far: set[int]) -> bool:
    """Whether nearly all of these flows enter or leave the unknown where a link that is reported begins or ends."""
    first = layout.table.first_unnamed
    hops = layout.table.hops_of(flows)
    out = (hops[:, 1:] >= first) & np.isin(hops[:, :-1], list(near))
    into = (hops[:, :-1] >= first) & np.isin(hops[:, 1:], list(far))
    return bool((out | into).any(axis=1).mean() >= _MOST_OF_ALL)


def _some_pass(layout: Layout, pair: Finding, near: set[int], far: set[int]) -> bool:
    """Whether a pair is rather what a reported link takes of its flows: some others of these are well."""
    flows = np.array(pair.flows, np.int64)
    edge = layout.table.edge_of(flows[:1])
    every = layout.table.edge_load(edge)[1][0]
    return bool(near or far) and len(flows) < every and _pass(layout, flows, near, far)


def _covered(layout: Layout, findings: Sequence[Finding]) -> list[Finding]:
    """Those of switches and links of a plane that others of these may explain."""
    first = layout.table.first_unnamed
    switches = set[int]()
    named = False
    # Nats of what is unknown, and of the best link into or out of it.
    unknown: dict[int, float] = {}
    by_link: dict[int, float] = {}
    for finding in findings:
        kind, a, b = parts(finding.component)
        if kind is Kind.SWITCH and a < first:
            switches.add(a)
        elif kind is Kind.SWITCH:
            unknown[a] = finding.score
        elif max(a, b) < first:
            named = True
        else:
            by_link[max(a, b)] = max(by_link.get(max(a, b), 0.0), finding.score)
    near, far = _named_ends(layout, findings)
    # What is unknown is reported where nothing that has a name, nor a link into or out of it, explains as much.
    best = max(by_link.values(), default=-np.inf)
    reported = {a for a, score in unknown.items() if not switches and not named and score > best}

    def cabled(a: int, b: int) -> bool:
        """Whether some flow is known to go from one switch to the other."""
        return bool(layout.totals.of(np.array([code(Kind.LINK, a, b)]))[1][0] > 0)

    def covered(finding: Finding) -> bool:
        kind, a, b = parts(finding.component)
        if kind is Kind.SWITCH and a >= first:
            return a not in reported
        if kind is not Kind.LINK or max(a, b) < first:
            return False
        if (near or far) and _pass(layout, np.array(finding.flows, np.int64), near, far):
            return True
        # Chance may make one link look worse than the rest: it does not hide the switch that explains more.
        if max(a, b) in reported:
            return True
        # The reported switch may be at either end of this link.
        if b >= first:
            return a in near or any(cabled(a, switch) for switch in switches)
        return b in far or any(cabled(switch, b) for switch in switches)

    return [finding for finding in findings if covered(finding)]


def suspect_of(layout: Layout, what: str, finding: Finding) -> Suspect:
    """The finding by names. what : loss, delay or mtu."""
    kind, a, b = parts(finding.component)
    flows = np.array(finding.flows, np.int64)
    _, first = np.unique(layout.table.edge_of(flows), return_index=True)
    pairs = flows[first]
    ends = [column.tolist() for column in layout.table.ends_of(pairs[:_MOST_SUFFERERS])]
    return Suspect(
        what,
        kind.name.lower(),
        _name(layout, a),
        _name(layout, b) if kind in (Kind.LINK, Kind.PAIR) else "",
        float(finding.share),
        finding.confidence,
        len(finding.flows),
        0.0,
        tuple(_text(layout, other) for other in finding.alternatives),
        _text(layout, finding.runner_up) if finding.runner_up is not None else "",
        pairs=len(pairs),
        sufferers=tuple(
            f"{_name(layout, source)} to {_name(layout, destination)}"
            for source, destination in zip(*ends, strict=True)
        ),
    )


def network_across(layout: Layout, finding: Finding, network_of: Callable[[str], str]) -> str:
    """That of all NICs whose flows cross a switch or a link; "" if they are of several, or if that of one is unknown,
    and for what is none of these. Of all flows, not of those that suffer, which are other ones in each second.

    network_of : of host/device, "" for unknown.
    """
    kind, a, b = parts(finding.component)
    if kind not in (Kind.SWITCH, Kind.LINK):
        return ""
    ends = set[int]()
    for first in range(0, len(layout.table), _FLOWS):
        flows = np.arange(first, min(first + _FLOWS, len(layout.table)))
        hops = layout.table.hops_of(flows)
        crosses = hops == a if kind is Kind.SWITCH else (hops[:, :-1] == a) & (hops[:, 1:] == b)
        ends.update(np.unique(layout.table.ends_of(flows[crosses.any(axis=1)])).tolist())
    networks = {network_of(_name(layout, node)) for node in ends}
    return networks.pop() if len(networks) == 1 else ""


def _name(layout: Layout, node: int) -> str:
    return layout.names[node] if node < len(layout.names) else "?"


def _text(layout: Layout, component: int) -> str:
    kind, a, b = parts(component)
    if kind is Kind.FLOW:
        flow = component & ((1 << 58) - 1)
        if flow >= len(layout.table):
            return "flow ?"
        source, destination = layout.table.ends_of(np.array([flow]))
        return f"flow {_name(layout, int(source[0]))} to {_name(layout, int(destination[0]))}"
    if kind in (Kind.LINK, Kind.PAIR):
        return f"{kind.name.lower()} {_name(layout, a)} to {_name(layout, b)}"
    return f"{kind.name.lower()} {_name(layout, a)}"
