"""Rounds of temporary peers: which pairs are measured now, for how long, and what came of it. Pure.

A round is assigned at once and ends by itself. Both ends of a pair report the least delays of each period, as they do
of their standing edges, a few times within a round.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.tree.coverage import LEAST_SLOTS
from fabricpulse.diagnosis.tree.minima import SLOTS, TwoWayMinima
from fabricpulse.diagnosis.wire.messages import EdgeName

# Temporary peers of a NIC at once, at most, and pairs of a round: what their names cost to send.
MOST_PEERS = 4
MOST_ROUND = 20_000
# Periods of a round: those that are needed, one that begins late, one that is cut off.
_PERIODS = LEAST_SLOTS + 3
# Until both ends measure: the next report of a healthy host, a second of its loop, and what its engine says at first.
_START_S = 10.0
_SHORTEST_PERIOD_S = 2.0
# How long a pair that did not answer twice is left alone, and the pause after a round without any answer: it doubles.
_LEAVE_S = 3600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 300.0, 3600.0

Pair = tuple[str, str]
"""Two NICs, host/device, the first by name first."""


@dataclass(frozen=True)
class Round:
    """number : of it. period_s : between two reports of an end. Moments are monotonic seconds."""

    number: int
    pairs: frozenset[Pair]
    began_s: float
    until_s: float
    period_s: float


class Assigner:
    """slot_s : that of the standing minima; a period of a round is a quarter of it, two seconds at least."""

    def __init__(self, slot_s: float) -> None:
        self.period_s = max(slot_s / 4, _SHORTEST_PERIOD_S)
        self.current: Round | None = None
        self.number = 0
        self._minima = self._fresh()
        self._ended: Round | None = None
        self._unanswered: dict[Pair, tuple[int, float]] = {}
        self._pause_s = 0.0
        self._next_s = -math.inf

    def _fresh(self) -> TwoWayMinima:
        return TwoWayMinima(SLOTS * self.period_s)

    def wants(self, now_s: float) -> bool:
        """Whether a round may begin."""
        return self.current is None and now_s >= self._next_s

    def begin(self, pairs: Iterable[Pair], now_s: float) -> None:
        """Assigns these, if there are any and no round is under way. What the last one has measured is dropped."""
        assigned = frozenset(pairs)
        if self.current is not None or not assigned:
            return
        self.number += 1
        self.current = Round(
            self.number, assigned, now_s, now_s + _START_S + (_PERIODS + 0.5) * self.period_s, self.period_s
        )
        self._minima, self._ended = self._fresh(), None

    def add_delays(
        self, host: str, edges: Sequence[EdgeName], delays: NDArray[np.void], now_s: float
    ) -> None:
        """Delays of messages.DELAY_DTYPE of edges of a host. Of pairs that are not assigned nothing is taken."""
        if self.current is None:
            return
        assigned = tuple(
            edge
            for edge in edges
            if pair_of(f"{host}/{edge.device}", f"{edge.peer}/{edge.peer_device}") in self.current.pairs
        )
        if len(assigned) == len(edges) and assigned:
            self._minima.edges(host, assigned, None, now_s)
            self._minima.add_delays(host, delays, now_s)

    def advance(self, now_s: float) -> bool:
        """Ends a round whose time is over. Returns whether it has."""
        if self.current is None or now_s < self.current.until_s:
            return False
        self.current, self._ended = None, self.current
        return True

    def measured(self) -> tuple[Round | None, list[tuple[Pair, float, int]]]:
        """The round that has ended, until it is settled, and of its pairs that are known two-way ns and samples."""
        ended = self._ended
        if ended is None:
            return None, []
        nics, delays, _ = self._minima.delays({}, ended.until_s)
        rows = zip(
            delays.a.tolist(),
            delays.b.tolist(),
            delays.two_way_ns.tolist(),
            delays.samples.tolist(),
            strict=True,
        )
        return ended, [(pair_of(nics[a].name, nics[b].name), ns, count) for a, b, ns, count in rows]

    def settle(self, number: int, answered: frozenset[Pair], now_s: float) -> None:
        """What came of a round that has ended: once."""
        ended = self._ended
        if ended is None or ended.number != number:
            return
        self._ended = None
        for pair in ended.pairs:
            if pair in answered:
                self._unanswered.pop(pair, None)
            else:
                self._unanswered[pair] = (self._unanswered.get(pair, (0, 0.0))[0] + 1, now_s)
        if answered:
            self._pause_s = 0.0
        else:
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._next_s = now_s + self._pause_s

    def given_up(self, now_s: float) -> set[Pair]:
        """Pairs that have not answered twice, lately."""
        self._unanswered = {
            pair: seen for pair, seen in self._unanswered.items() if now_s - seen[1] <= _LEAVE_S
        }
        return {pair for pair, (times, _) in self._unanswered.items() if times > 1}


def pair_of(a: str, b: str) -> Pair:
    """In order."""
    return (a, b) if a < b else (b, a)
