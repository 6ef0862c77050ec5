"""Transfers in both directions at once, over the agents of a fleet, in rounds of disjoint pairs."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from fabricpulse.audit.fleet.agent_client import AgentClient
from fabricpulse.audit.fleet.run import AgentError
from fabricpulse.audit.fleet.stage import RECEIVE_S, Fleet, stage, stage_seconds
from fabricpulse.audit.model import Measurement, clip
from fabricpulse.audit.node.wire import (
    RECEIVE_PATH,
    SEND_PATH,
    ReceiveAnswer,
    ReceiveRequest,
    TransferResult,
)
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.duplex import BothWays, Ends, alone, evaluate_both
from fabricpulse.audit.pair_tests.path_tests import PathDirection, PathDirections, ends_of, further_tests
from fabricpulse.audit.pair_tests.transfer_tests import (
    BUSY,
    MOST_ATTEMPTS,
    Transfers,
    again,
    carried,
    unhindered,
)

A = TypeVar("A")


class DuplexTests:
    """The tests of one run. notes : lines for people."""

    def __init__(self, client: AgentClient, fleet: Fleet, wanted: Transfers) -> None:
        self._client = client
        self._fleet = fleet
        self._wanted = wanted
        self._done: list[BothWays] = []
        self._unfinished: dict[Ends, str] = {}
        self.notes: list[str] = []

    async def run(
        self, measured: Sequence[Measurement], before: Iterable[Measurement], order: Iterable[Ends]
    ) -> list[Measurement]:
        """Of all pairs whose bandwidth is known in each direction alone, and no test of which failed. measured : those
        tests. before : of an interrupted run, not made again. order : of ways; others follow."""
        rates = sound(measured)
        spoilt = {ends_of(m) for m in measured if m.kind == "bandwidth" and m.detail == BUSY}
        self._done = recalled(before, rates, self._fleet.ways)
        tested = {frozenset((one.way.source, one.way.target)) for one in self._done}
        first = [(min(way), max(way)) for way in order]
        pairs = [
            (a, b)
            for a, b in dict.fromkeys((*first, *sorted(rates)))
            if a < b and {(a, b), (b, a)} <= rates.keys()
        ]
        await self._all("both ways at once", [p for p in pairs if frozenset(p) not in tested])
        for _ in range(MOST_ATTEMPTS - 1):
            found, _ = evaluate_both(self._done, rates, spoilt)
            further = {*again(found), *further_tests(found, "duplex")} & set(pairs)
            if not further or self._fleet.cancelled.is_set():
                break
            await self._all("both ways again", sorted(further))
        found, self.notes = evaluate_both(self._done, rates, spoilt)
        if self._unfinished:
            reasons = "; ".join(
                f"{' '.join(a)} and {' '.join(b)} ({why})" for (a, b), why in self._unfinished.items()
            )
            self.notes.append(
                clip(f"{len(self._unfinished)} pairs were not tested both ways at once: {reasons}")
            )
        return found

    async def _all(self, what: str, pairs: Sequence[Ends]) -> None:
        async def one(a: Nic, b: Nic) -> None:
            there, back = self._fleet.ways.way(a, b), self._fleet.ways.way(b, a)
            try:
                self._done.append(await self._both(there, back))
                self._unfinished.pop((a, b), None)
            except AgentError as error:
                self._unfinished[a, b] = str(error)

        seconds = stage_seconds(pairs, self._wanted.seconds + 1.5)
        missed = await stage(self._fleet, what, pairs, one, seconds)
        self._unfinished.update({ends: why for ends, (_, why) in missed.items()})

    async def _both(self, there: PathDirection, back: PathDirection) -> BothWays:
        """What both reach together. Raises AgentError."""
        # Both ends agree to receive before either sends: an agent that looks for traffic of others must not see ours.
        agreed = await asyncio.gather(*map(self._receive, (there, back)), return_exceptions=True)
        answers = [_given(answer) for answer in agreed]
        results = await asyncio.gather(
            *(self._send(way, answer) for way, answer in zip((there, back), answers, strict=True)),
            return_exceptions=True,
        )
        total = reached = could = 0.0
        for result in results:
            answered = _given(result)
            if answered.bps is None:
                raise AgentError(answered.error or "too little arrived to measure")
            total += carried(answered)
            reached += answered.bps
            could += unhindered(answered)
        return BothWays(there, total, reached, unhindered=could)

    async def _receive(self, way: PathDirection) -> ReceiveAnswer:
        streams, seconds = self._wanted.streams, self._wanted.seconds
        request = ReceiveRequest(way.target[1], way.address, way.own, streams, seconds, duplex=True)
        ask = self._fleet.ask
        return await ask(self._client, way.target[0], RECEIVE_PATH, request, ReceiveAnswer, RECEIVE_S)

    async def _send(self, way: PathDirection, answer: ReceiveAnswer) -> TransferResult:
        request = self._wanted.request(way, answer.tcp_port, answer.udp_port, answer.key, duplex=True)
        patience_s = self._wanted.patience_s
        ask = self._fleet.ask
        source, target = way.source[0], way.target[0]
        return await ask(self._client, source, SEND_PATH, request, TransferResult, patience_s, target)


def _given(answer: A | BaseException) -> A:
    """Raises what came in place of an answer."""
    if isinstance(answer, BaseException):
        raise answer
    return answer


def sound(measured: Sequence[Measurement]) -> dict[Ends, float]:
    """The rates of ways alone, without pairs that lose or are slow in a direction: what is wrong with them is found
    already, and a ratio of two bad tests is chance. A late way carries as much as others."""
    bad = {
        frozenset({(m.source_host, m.source_device), (m.target_host, m.target_device)})
        for m in measured
        if m.ok is False and m.kind in ("loss", "ecmp_loss", "bandwidth")
    }
    return {ends: rate for ends, rate in alone(measured).items() if frozenset(ends) not in bad}


def recalled(
    before: Iterable[Measurement], rates: Mapping[Ends, float], ways: PathDirections
) -> list[BothWays]:
    """Tests of an interrupted run, as if they had just been made."""
    found = []
    for m in before:
        a, b = (m.source_host, m.source_device), (m.target_host, m.target_device)
        if m.kind == "duplex" and a < b and ways.knows(a, b) and (a, b) in rates and (b, a) in rates:
            both = m.value * (rates[a, b] + rates[b, a])
            busy = m.detail == BUSY
            reached, could = (0.0, float("inf")) if busy else (both, both)
            found.append(BothWays(ways.way(a, b), both, reached, m.attempts, could))
    return found
