"""Whether those that should have sent were there to send. Pure.

An exporter that is restarted or stopped sends nothing, and its peers report that all is lost. Several of them below one
leaf, as in a rolling restart, look like its uplinks. The coordinator learns of it: a host that reports was there, and
one that comes back reports that it was away.
"""

import numpy as np

from fabricpulse.diagnosis.evidence.loss_log import LossLog, LossTable
from fabricpulse.diagnosis.flows.components import Nodes
from fabricpulse.diagnosis.flows.flow_table import Floats, Flows
from fabricpulse.diagnosis.flows.layout import Layout
from fabricpulse.diagnosis.flows.names import Names

# Reports of a host that suffers are a second apart; a shorter absence loses hardly a packet.
SHORTEST_S = 1.5
# Peers report what they missed for so long after a host has said that it is back.
_LATE_S = 2.0
# Seconds of losses that are looked at, more than from one report of a healthy host to the next, and the share of them
# that somebody must stand for.
_LOOKED_AT_S, _ENOUGH = 8.0, 0.9
# From one report of a host that suffers to the next, usually and at most.
_ROUND_S, _NEXT_S = 1.2, 1.7

Absence = tuple[float, float, bool]
"""When a host last reported, when it came back, and whether as another process."""


class Absences:
    """Of the hosts of a fleet."""

    def __init__(self) -> None:
        self._absent: dict[str, Absence] = {}

    def returned(self, host: str, absent_since_s: float, now_s: float, anew: bool) -> None:
        """A host has been stopped for some time, or was restarted (anew), and is back."""
        if now_s - absent_since_s > SHORTEST_S:
            self._absent[host] = absent_since_s, now_s, anew

    def excuse(self, log: LossLog, layout: Layout, names: Names, now_s: float) -> None:
        """What was lost of flows from a host that was away counts for nothing, unless they had lost before."""
        self._absent = {host: away for host, away in self._absent.items() if now_s - away[1] <= 2 * _LATE_S}
        absent = sorted((names.find(host), *times) for host, times in self._absent.items())
        if not absent or not len(layout.table):
            return
        node, absent_since_s, back_s, anew = (np.array(column) for column in zip(*absent, strict=True))
        history = log.history
        start = int(np.searchsorted(history["at_s"], absent_since_s.min() - _NEXT_S))
        losses = history[start:]
        flow = layout.rows(losses["epoch"], losses["flow"])
        host = names.host_of()[layout.table.ends_of(flow)[0]]
        at = np.minimum(np.searchsorted(node, host), len(node) - 1)
        these = np.flatnonzero((flow >= 0) & (node[at] == host))
        if not len(these):
            return
        flow, at_s, at = flow[these], losses["at_s"][these], at[these]
        away = (at_s > absent_since_s[at]) & (at_s <= back_s[at] + _LATE_S)
        # By flow, and each in order of time: one that lost before, and went on, did not do so because of this.
        order = np.argsort(flow, kind="stable")
        flow, at_s = flow[order], at_s[order]
        unbroken = (np.diff(flow, prepend=-1) == 0) & (np.diff(at_s, prepend=0.0) <= _NEXT_S)
        run = np.cumsum(~unbroken)
        absent_since_s, away = absent_since_s[at[order]], away[order]
        # A process that is started again and again was away before, too; one that stalls has lost what it lost before.
        excused = losses["recovered"][these[order]] & anew[at[order]]
        before = (at_s <= absent_since_s) & ~excused
        went_on = np.bincount(run, before) * np.bincount(run, at_s > absent_since_s + _ROUND_S) > 0
        away &= ~np.isin(flow, flow[went_on[run]])
        these = these[order]
        losses["recovered"][these[away]] = True


def vouched(losses: LossTable, flows: Flows, source: Nodes, last_report_s: Floats, now_s: float) -> bool:
    """Whether nearly all that these flows (ascending) have lost was surely sent: the source has reported since it
    began, or some packets of a flow of it arrive, report after report. source, last_report_s : of each flow.
    """
    start = int(np.searchsorted(losses.at_s, now_s - _LOOKED_AT_S))
    flow = losses.flow[start:]
    at = np.minimum(np.searchsorted(flows, flow), len(flows) - 1)
    these = np.flatnonzero(flows[at] == flow)
    if not len(these):
        return False
    # By flow, and each in order of time: runs of reports without a gap.
    these = these[np.argsort(flow[these], kind="stable")]
    flow, at = flow[these], at[these]
    at_s, lost, sent = (column[start:][these] for column in (losses.at_s, losses.lost, losses.sent))
    goes_on = (np.diff(flow, prepend=-1) == 0) & (np.diff(at_s, prepend=0.0) <= _NEXT_S)
    run = np.cumsum(~goes_on) - 1
    some = lost < 0.9 * sent
    arrives = source[at[1:]][goes_on[1:] & some[1:] & some[:-1]]
    sure = (last_report_s[at] >= at_s)[~goes_on][run] | np.isin(source[at], arrives)
    return float(lost[sure].sum()) >= _ENOUGH * float(lost.sum())
