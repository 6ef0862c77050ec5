"""Whether those that should have sent were there to send. Pure.

An exporter that is restarted or stopped sends nothing, and its peers report that all is lost. Several of them below one
leaf, as in a rolling restart, look like its uplinks. The coordinator learns of it: a host that reports was there, and
one that comes back reports that it was away.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable

import numpy as np

from fabricpulse.diagnosis.evidence.loss_log import LossLog, LossTable
from fabricpulse.diagnosis.flows.components import Nodes
from fabricpulse.diagnosis.flows.flow_table import Floats, Flows, FlowTable
from fabricpulse.diagnosis.flows.layout import Layout
from fabricpulse.diagnosis.flows.names import Names
from fabricpulse.diagnosis.search.unseen import NOTHING_UNSEEN, Unseen

# Reports of a host that suffers are a second apart; a shorter absence loses hardly a packet.
SHORTEST_S = 1.5
# Reports of a host that is well are five seconds apart.
SURELY_AWAY_S = 6.5
# Peers report what they missed for so long after a host has said that it is back.
_LATE_S = 2.0
# Seconds of losses that are looked at, more than from one report of a healthy host to the next, and the share of them
# that somebody must stand for.
_LOOKED_AT_S, _ENOUGH = 8.0, 0.9
# From one report of a host that suffers to the next, usually and at most.
_ROUND_S, _NEXT_S = 1.2, 1.7
# Absences that are remembered, the newest, and flows of which it is said what was not seen of them: bounds time.
_MOST_ABSENCES, _MOST_FLOWS = 4096, 100_000

Absence = tuple[float, float, bool]
"""When a host last reported, when it came back, and whether as another process."""


class Absences:
    """Of the hosts of a fleet."""

    def __init__(self) -> None:
        self._absent: dict[str, Absence] = {}
        self._past = deque[tuple[str, float, float, float]](maxlen=_MOST_ABSENCES)

    def returned(self, host: str, absent_since_s: float, now_s: float, anew: bool) -> None:
        """A host has been stopped for some time, or was restarted (anew), and is back."""
        if now_s - absent_since_s > SHORTEST_S:
            self._absent[host] = absent_since_s, now_s, anew
            # What a new process has missed it tells in its second report; one that was stopped has been there since.
            self._past.append((host, absent_since_s, now_s, now_s + (_ROUND_S if anew else 0.0)))

    def back_s(self, hosts: Collection[str], now_s: float) -> float:
        """For how long all of these hosts have been there; inf if none was away in the last minutes."""
        return min((now_s - back_s for host, _, back_s, _ in self._past if host in hosts), default=math.inf)

    def unseen(
        self,
        table: FlowTable,
        names: Names,
        silent: Iterable[tuple[str, float]],
        now_s: float,
        window_s: float,
    ) -> Unseen:
        """Of the packets that would have been sent in a window, those of flows from and to hosts that were away: that
        none of them is reported as lost is no evidence that all is well. silent : hosts that are away now, since when.
        """
        away_s = np.zeros((2, len(names) + 1))  # what it sends, what it receives
        past = (
            (host, since_s, receives_s, back_s + _LATE_S) for host, since_s, back_s, receives_s in self._past
        )
        now = ((host, since_s, now_s, now_s) for host, since_s in silent)
        for host, since_s, receives_s, late_s in (*past, *now):
            if late_s > now_s - window_s and (number := names.find(host)) >= 0:
                begins_s = max(since_s, now_s - window_s)
                away_s[0, number] += min(late_s, now_s) - begins_s
                away_s[1, number] += max(min(receives_s, now_s) - begins_s, 0.0)
        if not away_s.any() or not len(table):
            return NOTHING_UNSEEN
        by_nic = away_s[:, names.host_of()]
        seconds_of = np.minimum(by_nic[0][table.source] + by_nic[1][table.destination], window_s)
        edges = np.flatnonzero(seconds_of)
        count = np.diff(table.first)[edges].astype(np.int64)
        edges = edges[np.cumsum(count) <= _MOST_FLOWS]
        count = count[: len(edges)]
        flows = np.repeat(table.first[edges] - np.cumsum(count) + count, count) + np.arange(count.sum())
        return Unseen(flows, (table.rate_of(flows) * np.repeat(seconds_of[edges], count)).astype(float))

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
        losses["recovered"][these[away]] = losses["excused"][these[away]] = True


def unanswered(
    losses: LossTable, table: FlowTable, names: Names, last_report_s: Floats, now_s: float
) -> Unseen:
    """What may have been sent since the last report of its receiver, on flows that lost packets in that: who still
    loses packets reports each second, and one that has died reports no more. last_report_s : of each node.
    """
    start = int(np.searchsorted(losses.at_s, now_s - SURELY_AWAY_S))
    flow = losses.flow[start:].astype(np.int64)
    heard_s = last_report_s[names.host_of()[table.ends_of(flow)[1]]]
    last = (losses.at_s[start:] >= heard_s) & (now_s - heard_s > _ROUND_S)
    flows, at = np.unique(flow[last], return_index=True)
    packets = table.rate_of(flows) * (now_s - heard_s[last][at])
    return Unseen(flows, packets.astype(float))


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
