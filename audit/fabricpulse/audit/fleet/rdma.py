"""Tests by RDMA WRITE over the agents of a fleet, in rounds of disjoint pairs."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fabricpulse.audit.fleet.agent_client import AgentClient
from fabricpulse.audit.fleet.run import AgentError
from fabricpulse.audit.fleet.stage import RECEIVE_S, Fleet, stage, stage_seconds
from fabricpulse.audit.model import Measurement, clip
from fabricpulse.audit.node.rdma_wire import (
    RDMA_RECEIVE_PATH,
    RDMA_SEND_PATH,
    RdmaReceiveAnswer,
    RdmaReceiveRequest,
    RdmaResult,
    RdmaSendRequest,
)
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.path_tests import ends_of, further_tests
from fabricpulse.audit.pair_tests.rdma_tests import Written, evaluate_rdma, recalled
from fabricpulse.audit.pair_tests.schedule import Ends
from fabricpulse.audit.pair_tests.transfer_tests import MOST_ATTEMPTS, Transfers, again, within_rate

# Beyond its seconds: what a writer waits for the other end, and for writes that may be lost.
_PATIENCE_S = 30.0


class RdmaTests:
    """The tests of one run. untested : NICs of which nothing is known by RDMA, with why. notes : lines for people."""

    def __init__(self, client: AgentClient, fleet: Fleet, wanted: Transfers) -> None:
        self._client = client
        self._fleet = fleet
        self._wanted = wanted
        self._done: list[Written] = []
        self._unfinished: dict[Ends, tuple[Nic, str]] = {}
        # NICs that have said that they cannot, and why: they are not asked again.
        self._unable: dict[Nic, str] = {}
        self.untested: dict[Nic, str] = {}
        self.notes: list[str] = []

    async def run(self, order: Sequence[Ends], before: Iterable[Measurement] = ()) -> list[Measurement]:
        """Of all these ways, in this order. before : of an interrupted run, not made again."""
        self._done = recalled(before, self._fleet.ways)
        tested = {(one.way.source, one.way.target) for one in self._done}
        await self._all("RDMA writes", [way for way in order if way not in tested])
        rate = self._wanted.rate_bps
        for _ in range(MOST_ATTEMPTS - 1):
            found, _ = evaluate_rdma(self._done, rate)
            tries: Counter[Ends] = Counter()
            for one in self._done:
                tries[one.way.source, one.way.target] += one.attempts
            further = {*again(found), *further_tests(found, "rdma")}
            further = {way for way in further if tries[way] < MOST_ATTEMPTS and not self._unable.keys() & way}
            if not further or self._fleet.cancelled.is_set():
                break
            await self._all("RDMA writes again", sorted(further))
        found, self.notes = evaluate_rdma(self._done, rate)
        self._report_unfinished(found)
        return found

    async def _all(self, what: str, ways: Sequence[Ends]) -> None:
        seconds = stage_seconds(ways, self._wanted.seconds + 1.5)
        missed = await stage(self._fleet, what, ways, self._one, seconds)
        self._unfinished.update(missed)

    async def _one(self, source: Nic, target: Nic) -> None:
        """Made, or noted whose doing it is that it was not, and why."""
        unable = next((nic for nic in (source, target) if nic in self._unable), None)
        if unable is not None:
            self._unfinished[source, target] = unable, self._unable[unable]
            return
        asked = target
        try:
            answer = await self._receive(source, target)
            if answer.error:
                self._unable[target] = answer.error
                self._unfinished[source, target] = target, answer.error
                return
            asked = source
            result = await self._send(source, target, answer)
        except AgentError as error:
            self._unfinished[source, target] = target if error.of_peer else asked, str(error)
            return
        if result.unable:
            self._unable[source] = result.error
        if result.error:
            self._unfinished[source, target] = source, clip(f"to {' '.join(target)}: {result.error}")
        else:
            self._unfinished.pop((source, target), None)
            states, result = within_rate(result, self._wanted.rate_bps)
            self._done.append(Written(self._fleet.ways.way(source, target), result, states_limit=states))

    async def _receive(self, source: Nic, target: Nic) -> RdmaReceiveAnswer:
        way = self._fleet.ways.way(source, target)
        request = RdmaReceiveRequest(target[1], way.address, way.own, self._wanted.seconds)
        ask = self._fleet.ask
        return await ask(self._client, target[0], RDMA_RECEIVE_PATH, request, RdmaReceiveAnswer, RECEIVE_S)

    async def _send(self, source: Nic, target: Nic, answer: RdmaReceiveAnswer) -> RdmaResult:
        way, wanted = self._fleet.ways.way(source, target), self._wanted
        request = RdmaSendRequest(
            source[1], way.own, way.address, answer.tcp_port, answer.key, wanted.rate_bps, wanted.seconds
        )
        patience_s = _PATIENCE_S + wanted.seconds
        ask = self._fleet.ask
        return await ask(self._client, source[0], RDMA_SEND_PATH, request, RdmaResult, patience_s, target[0])

    def _report_unfinished(self, found: Iterable[Measurement]) -> None:
        """A NIC of which nothing is known by RDMA is untested; of one that has other tests it is a note."""
        known = {nic for m in found for nic in ends_of(m)}
        rest = []
        for (source, target), (nic, why) in sorted(self._unfinished.items()):
            if nic not in known:
                self.untested[nic] = f"by RDMA: {self._unable.get(nic, why)}"
            elif nic not in self._unable:
                rest.append(f"{' '.join(source)} to {' '.join(target)} ({why})")
        for ends, (nic, why) in sorted(self._unfinished.items()):
            for end in ends:
                if end not in known and end not in self.untested:
                    self.untested[end] = f"by RDMA: its partner {' '.join(nic)}: {why}"
        if rest:
            self.notes.append(clip(f"{len(rest)} RDMA tests were not made to the end: {'; '.join(rest[:4])}"))
