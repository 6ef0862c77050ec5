"""What explains the evidence of this moment: components, by what was lost, is slow, or drops large packets. Pure."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.evidence.loss_log import LossTable
from fabricpulse.diagnosis.flows.components import Kind, parts
from fabricpulse.diagnosis.flows.flow_table import Floats, Flows
from fabricpulse.diagnosis.flows.layout import Layout, Reporter
from fabricpulse.diagnosis.search.black_holes import black_holes
from fabricpulse.diagnosis.search.locate import Finding, locate
from fabricpulse.diagnosis.search.recovered import has_ended
from fabricpulse.diagnosis.search.suspect_names import without_fabric
from fabricpulse.diagnosis.search.unseen import Unseen

# Seconds of evidence that are used: each for what is too slight to show in those before. What shows in the first is
# new, and must be beyond doubt (nats): evidence of few seconds is that of few flows.
WINDOWS_S = (5.0, 30.0, 120.0)
_SURE_AT_ONCE = 40.0
# Of the flows that cross what slows packets down or drops large ones, the share of which that may be unknown.
_MOST_UNKNOWN = 0.25
# Flows of a fleet at most, of which those that cross what was found in a shorter window speak neither way.
_MOST_EXCUSED = 200_000


def found_now(
    layout: Layout,
    losses: LossTable,
    history: LossTable,
    hosts: Sequence[Reporter],
    unseen_of: Callable[[float], Unseen],
    waits: Unseen,
    now_s: float,
    known: Collection[int] = (),
) -> list[tuple[str, Finding]]:
    """Each with what it does to flows. losses, history : that count, and all. hosts : whose evidence counts.
    unseen_of : of so many seconds, flows of which it is not known what they lost. waits : so of the last seconds.
    known : components that were found to lose packets a moment ago.
    """
    found: dict[tuple[str, int], Finding] = {}
    explained: set[int] = set()
    for window_s in WINDOWS_S:
        away = unseen_of(window_s)
        rest = waits.beside(away.flows)
        unseen = away.beside_which(rest.flows, rest.packets)
        observed = losses.observed(layout.table, now_s, window_s, unseen)
        unseen = unseen.beside_which(*_crossing(layout, explained, window_s))
        # A flow through what was found may have lost nothing in the last seconds, and much before: no new evidence.
        left = ~layout.table.crossing(observed[0], explained)
        others = set(observed[0][~left].tolist())
        observed = observed[0][left], observed[1][left], observed[2][left]
        if not len(observed[0]):
            continue
        newest = window_s == WINDOWS_S[0]
        # What lost packets only long ago has recovered.
        recent = losses.flows_since(now_s - (window_s if newest else window_s / 5))
        located = locate(
            layout.table, layout.totals, *observed, window_s, unseen=unseen, known=known
        ).findings
        # "The fabric" explains what it loses also where it is not reported.
        sure = [finding for finding in located if not newest or finding.score >= _SURE_AT_ONCE]
        explained.update(finding.component for finding in sure)
        for finding in without_fabric(layout, sure):
            # Flows that cross what explains more say nothing of this one: a fault that has ended must not
            # come back because another one hits some of its flows.
            lost_s, excused = history.moments(layout.table, now_s - window_s, finding.component, others)
            own = set(finding.flows) - others
            others.update(finding.flows)
            if not recent.isdisjoint(own) and not has_ended(lost_s, excused, now_s):
                found.setdefault(("loss", finding.component), finding)
    # A host that has just come does not know yet what its delays usually are, nor what becomes of large packets.
    unseen = unseen_of(WINDOWS_S[1])
    unknown = replace(unseen, packets=np.ones(len(unseen.flows)))
    slow, cut, maybe_cut = (
        _rows(layout, [(host.epoch, flows) for host, flows in suffer if len(flows)])
        for suffer in (
            [(host, host.slow) for host in hosts],
            [(host, host.cut) for host in hosts],
            [(host, host.maybe_cut) for host in hosts],
        )
    )
    ones = np.ones(len(slow))
    for finding in locate(layout.table, layout.totals, slow, ones, ones, None, unseen=unknown).findings:
        if _is_known(layout, finding, unknown):
            found["delay", finding.component] = finding
    for finding in black_holes(layout.table, layout.totals, cut, maybe_cut, unknown):
        if _is_known(layout, finding, unknown):
            found["mtu", finding.component] = finding
    return [
        (what, finding)
        for what in ("loss", "delay", "mtu")
        for finding in without_fabric(layout, [f for (of, _), f in found.items() if of == what])
        if parts(finding.component)[0] is not Kind.FLOW
    ]


def own_flows(what: str, finding: Finding, findings: Sequence[tuple[str, Finding]]) -> tuple[int, ...]:
    """The flows of a finding that no lesser one explains, too; all where there are none."""
    lesser = (f.flows for of, f in findings if of == what and len(f.flows) < len(finding.flows))
    rest = set(finding.flows).difference(*lesser)
    return tuple(sorted(rest)) if rest else finding.flows


def _is_known(layout: Layout, finding: Finding, unknown: Unseen) -> bool:
    """Whether it is known of most flows that cross it how they are. Where those that suffer are all that is known, a
    switch explains them as well as one of its links.
    """
    crosses = unknown.flows[layout.table.crossing(unknown.flows, [finding.component])]
    silent = len(np.setdiff1d(crosses, np.array(finding.flows, np.int64)))
    crossed_by = float(layout.totals.of(np.array([finding.component]))[1][0])
    return silent <= _MOST_UNKNOWN * max(crossed_by, len(finding.flows))


def _crossing(layout: Layout, components: Collection[int], window_s: float) -> tuple[Flows, Floats]:
    """The flows that cross one of these, and what each sends in so many seconds; none of a large fleet, where that
    would take too long and hardly any component has most of its flows in common with another one.
    """
    table = layout.table
    if not components or len(table) > _MOST_EXCUSED:
        return np.zeros(0, np.int64), np.zeros(0)
    every = np.arange(len(table), dtype=np.int64)
    flows = every[table.crossing(every, components)]
    return flows, table.rate_of(flows).astype(float) * window_s


def _rows(layout: Layout, flows: Sequence[tuple[int, NDArray[np.int32]]]) -> Flows:
    """Of flows of some hosts, by epoch, those of the table that are sent on, ascending."""
    if not flows:
        return np.zeros(0, np.int64)
    epoch = np.repeat([epoch for epoch, _ in flows], [len(own) for _, own in flows])
    rows = layout.rows(epoch, np.concatenate([own for _, own in flows]))
    return np.unique(rows[rows >= 0])
