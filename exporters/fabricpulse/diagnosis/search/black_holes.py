"""From flows that drop large packets to the components that do. Pure."""

from collections.abc import Sequence

import numpy as np

from fabricpulse.diagnosis.flows.components import Kind, parts
from fabricpulse.diagnosis.flows.flow_table import Flows, FlowTable, Totals
from fabricpulse.diagnosis.search.locate import Finding, locate
from fabricpulse.diagnosis.search.unseen import Unseen


def black_holes(
    table: FlowTable, totals: Totals, sure: Flows, maybe: Flows, unseen: Unseen
) -> Sequence[Finding]:
    """What drops large packets. sure, maybe : flows that do, and that may do so, ascending. unseen : flows of which it
    is not known.

    Flows are tried with large packets one after the other, and so are sure one after the other: the first of a switch
    may be those of one of its links. By then it can be seen of all of them that they may suffer. Those that are sure
    say that there is a black hole, all of them say where.
    """
    maybe = np.setdiff1d(maybe, sure)
    not_known = np.union1d(unseen.flows, maybe)
    proof = _located(table, totals, sure, Unseen(not_known, np.ones(len(not_known))))
    if not proof or not len(maybe):
        return proof
    left = {flow for finding in proof if _shared(finding) for flow in finding.flows}
    if not left:
        return proof
    kept = []
    candidates = [
        (len(left.intersection(finding.flows)), finding)
        for finding in _located(table, totals, np.union1d(sure, maybe), unseen)
    ]
    for _, finding in sorted(candidates, key=lambda each: (-each[0], -each[1].score)):
        # What else drops large packets now and then, or begins to, has no proof of its own.
        if not left.isdisjoint(finding.flows):
            kept.append(finding)
            left.difference_update(finding.flows)
    return kept


def _located(table: FlowTable, totals: Totals, flows: Flows, unseen: Unseen) -> tuple[Finding, ...]:
    ones = np.ones(len(flows))
    return locate(table, totals, flows, ones, ones, None, unseen=unseen).findings


def _shared(finding: Finding) -> bool:
    return parts(finding.component)[0] is not Kind.FLOW
