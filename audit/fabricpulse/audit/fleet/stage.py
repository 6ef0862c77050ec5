"""One stage of the tests of a fleet: as many pairs at a time as their NICs allow, until all are done or time is over.

A stage always ends: it has a deadline, and an agent that has not answered twice in succession, or does not even say
that it is alive, is not asked again. What was not tested is reported with the reason.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from fabricpulse.audit.fleet.agent_client import AgentClient, DeadAgentError
from fabricpulse.audit.fleet.run import AT_A_TIME, DEAD, AgentError, Target, ask
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.path_tests import PathDirections
from fabricpulse.audit.pair_tests.schedule import Ends, PairSchedule
from fabricpulse.core.web.client_config import HttpClientConfig

# An agent that has not answered so often in succession is given up.
MOST_SILENT = 2
# Interval at which the hosts still waited for are printed, and from when on a test is, seconds.
SHOW_S, SLOW_S = 1.0, 4.0
# An agent may wait for the transfer before it to be over, and looks for a job, before it agrees to receive.
RECEIVE_S = 15.0
OVER = "the time of the tests was over"
# What is under way, how much of it is done, of how much, who is waited for.
Progress = Callable[[str, int, int, str], None]
T = TypeVar("T")


@dataclass
class Silence:
    """Which agents do not answer any more. Shared by all stages of a run."""

    _counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def answered(self, host: str) -> None:
        """It has answered."""
        self._counts.pop(host, None)

    def unanswered(self, host: str, *, dead: bool = False) -> None:
        """It has not; one that is dead is given up."""
        self._counts[host] += MOST_SILENT if dead else 1

    def silent(self, host: str) -> bool:
        """Whether it is given up."""
        return self._counts.get(host, 0) >= MOST_SILENT

    def last(self) -> frozenset[str]:
        """Hosts that have not answered what they were asked last, whether they are given up or not."""
        return frozenset(self._counts)


@dataclass(frozen=True)
class Fleet:
    """What all tests between NICs of one run share. progress : gets what is under way."""

    agents: Mapping[str, Target]
    config: HttpClientConfig
    ways: PathDirections
    leaves: Mapping[Nic, str]
    cancelled: asyncio.Event
    progress: Progress = lambda _what, _done, _of, _waits: None
    silence: Silence = field(default_factory=Silence)

    async def ask(
        self,
        client: AgentClient,
        host: str,
        path: str,
        document: msgspec.Struct,
        kind: type[T],
        patience_s: float,
        peer: str = "",
    ) -> T:
        """As `fleet_run.ask`; remembers who does not answer. peer : a host that it has to do with, and which is not
        waited for either once it is dead: the error is `of_peer` then. Raises AgentError."""
        request = ask(client, self.agents[host].url + path, document, kind, patience_s)
        try:
            answer = await (client.while_alive(self.agents[peer].url, request) if peer else request)
        except DeadAgentError as error:
            self.silence.unanswered(peer, dead=True)
            raise AgentError(DEAD, answered=True, of_peer=True) from error
        except AgentError as error:
            if error.answered:
                self.silence.answered(host)
            else:
                self.silence.unanswered(host, dead=error.dead)
            raise
        self.silence.answered(host)
        return answer


def stage_seconds(ways: Iterable[Ends], each_s: float, most: int = AT_A_TIME) -> float:
    """Deadline of a stage whose tests take `each_s` each: three times as long as the busiest NIC needs, or as all need
    with `most` at a time, and half a minute."""
    each: dict[Nic, int] = defaultdict(int)
    count = 0
    for way in ways:
        count += 1
        for nic in way:
            each[nic] += 1
    return 30 + 3 * each_s * max(max(each.values(), default=0), count / most)


async def stage(
    fleet: Fleet,
    what: str,
    ways: Iterable[Ends],
    test: Callable[[Nic, Nic], Awaitable[None]],
    seconds: float,
    *,
    most: int = AT_A_TIME,
    done: Callable[[], None] = lambda: None,
) -> dict[Ends, tuple[Nic, str]]:
    """Has `test` be made of all ways, which raises nothing; those that were not made, or not to their end, with whose
    doing and why. seconds : that all of it may take. done : called after each. Nothing runs on afterwards."""
    turns = PairSchedule(ways, most)
    of = len(turns.left)
    begun = time.monotonic()
    under_way: dict[asyncio.Task[None], tuple[Ends, float]] = {}
    missed: dict[Ends, tuple[Nic, str]] = {}
    cancelled = asyncio.create_task(fleet.cancelled.wait())
    try:
        while not fleet.cancelled.is_set() and (left := begun + seconds - time.monotonic()) > 0:
            while ways_now := turns.begin():
                for way in ways_now:
                    gone = next((nic for nic in way if fleet.silence.silent(nic[0])), None)
                    if gone is not None:
                        missed[way] = gone, "its agent does not answer any more"
                        turns.end(way)
                        continue
                    task = asyncio.ensure_future(_made(test, way))
                    under_way[task] = way, time.monotonic()
            if not under_way:
                break
            fleet.progress(what, of - len(turns.left) - len(under_way), of, waits(under_way.values()))
            await asyncio.wait(
                {*under_way, cancelled}, timeout=min(SHOW_S, left), return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in under_way if task.done()]:
                way, _ = under_way.pop(task)
                turns.end(way)
                await task
                done()
    finally:
        cancelled.cancel()
        for task in under_way:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*under_way, return_exceptions=True)
    if not fleet.cancelled.is_set():
        rest = [way for way, _ in under_way.values()] + turns.left
        missed.update({way: (way[0], OVER) for way in rest})
    return missed


async def _made(test: Callable[[Nic, Nic], Awaitable[None]], way: Ends) -> None:
    await test(*way)


def waits(under_way: Iterable[tuple[Ends, float]]) -> str:
    """Whom the stage waits for: the tests that take longest, "" while all are quick."""
    now = time.monotonic()
    slow = sorted((began, way) for way, began in under_way if now - began > SLOW_S)
    return "; ".join(f"{' '.join(a)} to {' '.join(b)} for {now - began:.0f} s" for began, (a, b) in slow[:3])
