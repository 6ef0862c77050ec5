"""Transfers in both directions at once, over the agents of a fleet, in rounds of disjoint pairs."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from fabricpulse.audit.blame import Nic, retests
from fabricpulse.audit.duplex import BothWays, Ends, alone, judge_both
from fabricpulse.audit.fleet_run import AgentError, Target, ask, until
from fabricpulse.audit.model import Measurement, clip
from fabricpulse.audit.node.wire import (
    RECEIVE_PATH,
    SEND_PATH,
    ReceiveAnswer,
    ReceiveRequest,
    TransferResult,
)
from fabricpulse.audit.path_tests import Way, Ways, path_tests
from fabricpulse.audit.transfer_tests import Transfers, again
from fabricpulse.core.web.client import HttpClient


class DuplexTests:
    """The tests of one run. notes : lines for people."""

    def __init__(
        self,
        client: HttpClient,
        agents: Mapping[str, Target],
        ways: Ways,
        wanted: Transfers,
        cancelled: asyncio.Event,
        progress: Callable[[str, int, int], None],
    ) -> None:
        """progress : is told what is under way, how much of it is done, and of how much."""
        self._client = client
        self._agents = agents
        self._ways = ways
        self._wanted = wanted
        self._cancelled = cancelled
        self._progress = progress
        self._unfinished: dict[Ends, str] = {}
        self.notes: list[str] = []

    async def run(
        self,
        measured: Sequence[Measurement],
        before: Iterable[Measurement],
        disjoint: Callable[..., list[list[Ends]]],
    ) -> list[Measurement]:
        """Of all pairs whose bandwidth is known in each direction alone, and no test of which failed. measured : those
        tests. before : of an interrupted run, not made again. disjoint : makes rounds of ways."""
        rates = sound(measured)
        done = recalled(before, rates, self._ways)
        tested = {frozenset((one.way.source, one.way.target)) for one in done}
        pairs = sorted((a, b) for a, b in rates if a < b and (b, a) in rates)
        await self._all(disjoint([p for p in pairs if frozenset(p) not in tested]), done)
        found, _ = judge_both(done, rates)
        further = {*again(found), *retests(path_tests(found, "duplex"))} & set(pairs)
        await self._all(disjoint(sorted(further)), done)
        found, self.notes = judge_both(done, rates)
        if self._unfinished:
            told = "; ".join(
                f"{' '.join(a)} and {' '.join(b)} ({why})" for (a, b), why in self._unfinished.items()
            )
            self.notes.append(
                clip(f"{len(self._unfinished)} pairs were not tested both ways at once: {told}")
            )
        return found

    async def _all(self, rounds: Sequence[Sequence[Ends]], done: list[BothWays]) -> None:
        for number, pairs in enumerate(rounds):
            if self._cancelled.is_set():
                break
            self._progress("both ways at once", number, len(rounds))

            async def one(a: Nic, b: Nic) -> None:
                there, back = self._ways.way(a, b), self._ways.way(b, a)
                try:
                    done.append(BothWays(there, await self._both(there, back)))
                    self._unfinished.pop((a, b), None)
                except AgentError as error:
                    self._unfinished[a, b] = str(error)

            await until(self._cancelled, (one(a, b) for a, b in pairs))

    async def _both(self, there: Way, back: Way) -> float:
        """Bits per second of both together. Raises AgentError."""
        # Both ends agree to receive before either sends: an agent that looks for traffic of others must not see ours.
        answers = [await self._receive(way) for way in (there, back)]
        results = await asyncio.gather(
            *(self._send(way, answer) for way, answer in zip((there, back), answers, strict=True)),
            return_exceptions=True,
        )
        total = 0.0
        for result in results:
            if isinstance(result, BaseException):
                raise result
            if result.bps is None:
                raise AgentError(result.error or "too little came to tell")
            total += result.bps
        return total

    async def _receive(self, way: Way) -> ReceiveAnswer:
        url = self._agents[way.target[0]].url + RECEIVE_PATH
        streams, seconds = self._wanted.streams, self._wanted.seconds
        request = ReceiveRequest(way.target[1], way.address, way.own, streams, seconds, duplex=True)
        return await ask(self._client, url, request, ReceiveAnswer)

    async def _send(self, way: Way, answer: ReceiveAnswer) -> TransferResult:
        url = self._agents[way.source[0]].url + SEND_PATH
        request = self._wanted.request(way, answer.tcp_port, answer.udp_port, answer.key, duplex=True)
        return await ask(self._client, url, request, TransferResult)


def sound(measured: Sequence[Measurement]) -> dict[Ends, float]:
    """The rates of ways alone, without pairs that lose or are slow in a direction: what is wrong with them is found
    already, and a ratio of two bad tests is chance."""
    bad = {
        frozenset({(m.source_host, m.source_device), (m.target_host, m.target_device)})
        for m in measured
        if m.ok is False
    }
    return {ends: rate for ends, rate in alone(measured).items() if frozenset(ends) not in bad}


def recalled(before: Iterable[Measurement], rates: Mapping[Ends, float], ways: Ways) -> list[BothWays]:
    """Tests of an interrupted run, as if they had just been made."""
    found = []
    for m in before:
        a, b = (m.source_host, m.source_device), (m.target_host, m.target_device)
        if m.kind == "duplex" and a < b and ways.knows(a, b) and (a, b) in rates and (b, a) in rates:
            found.append(BothWays(ways.way(a, b), m.value * (rates[a, b] + rates[b, a]), m.attempts))
    return found
