"""Echoes between NICs over the agents of a fleet, of all hosts at once. What failed is tested again, and with other
partners where that decides whose fault it is.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fabricpulse.audit.fleet.agent_client import AgentClient
from fabricpulse.audit.fleet.progress import few
from fabricpulse.audit.fleet.run import AT_A_TIME, AgentError, send_echoes, until
from fabricpulse.audit.fleet.stage import Fleet
from fabricpulse.audit.model import Measurement, clip
from fabricpulse.audit.node.echo import COUNT, ECHO_TESTS_AT_A_TIME, PATIENCE_S
from fabricpulse.audit.node.wire import MOST_ECHO_TESTS, EchoResult
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.front_end import judged
from fabricpulse.audit.pair_tests.path_tests import (
    PathDirection,
    Rail,
    ends_of,
    further_tests,
    measurements,
    not_tested,
    plan_ways,
)
from fabricpulse.audit.pair_tests.schedule import Ends
from fabricpulse.audit.pair_tests.transfer_tests import again

# Ways that are tested again: a fleet of which more fails has a cause that a second test does not tell from the first.
MOST_AGAIN = 2000
ECHO_KINDS = ("connectivity", "mtu")


class Echoes:
    """The echo tests of one run. untested : NICs of which nothing could be learned, with why. notes : lines for
    people."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.untested: dict[Nic, str] = {}
        self.notes: list[str] = []
        self._not_tested: dict[Nic, str] = {}

    async def run(self, rails: Mapping[str, Rail], before: Sequence[Measurement] = ()) -> list[Measurement]:
        """Connectivity and MTU of all pairs of the plan. before : of an interrupted run, not made again."""
        done = [m for m in before if m.kind in ECHO_KINDS]
        tested = {ends_of(m) for m in done}
        planned = plan_ways(rails, self._fleet.ways)
        left = {
            host: [way for way in ways if (way.source, way.target) not in tested]
            for host, ways in planned.items()
        }
        found = done + await self._echo("echoes", left)
        if self._fleet.cancelled.is_set():
            return found
        # Of a front end that drops all echoes nothing is tested again: its ways would push out those of the rails.
        known, _ = judged(found)
        failed = set(again(known))
        further = failed | {way for kind in ECHO_KINDS for way in further_tests(known, kind)}
        by_host: dict[str, list[PathDirection]] = defaultdict(list)
        for source, target in sorted(further)[:MOST_AGAIN]:
            by_host[source[0]].append(self._fleet.ways.way(source, target))
        merged, recovered = merge(found, await self._echo("echoes again", by_host))
        if recovered:
            names = "; ".join(f"{' '.join(a)} to {' '.join(b)}" for a, b in recovered[:8])
            self.notes.append(clip(f"echoes of {len(recovered)} ways failed once and passed again: {names}"))
        tested_from = {ends_of(m)[0] for m in merged}
        self.untested |= {nic: why for nic, why in self._not_tested.items() if nic not in tested_from}
        return merged

    async def _echo(self, what: str, by_host: Mapping[str, Sequence[PathDirection]]) -> list[Measurement]:
        found: list[Measurement] = []
        # Of the worst case, in which no echo of a host is answered.
        longest = max((sum(len(way.echo_tests()) for way in ways) for ways in by_host.values()), default=0)
        patience = min(30 + longest * COUNT * PATIENCE_S / ECHO_TESTS_AT_A_TIME, 3600)
        silent = self._fleet.silence.silent
        asked = {host: ways for host, ways in by_host.items() if ways and not silent(host)}
        waits = dict.fromkeys(asked)

        def show() -> None:
            self._fleet.progress(what, len(asked) - len(waits), len(asked), few(waits))

        config = msgspec.structs.replace(self._fleet.config, timeout_s=patience)
        slots = asyncio.Semaphore(AT_A_TIME)
        async with AgentClient(config, connections=AT_A_TIME) as client:

            async def one(host: str, ways: Sequence[PathDirection]) -> None:
                # Not in the pool: who waits for a connection would seem to wait for its agent.
                async with slots:
                    await ask(host, ways)

            async def ask(host: str, ways: Sequence[PathDirection]) -> None:
                for start in range(0, len(ways), MOST_ECHO_TESTS // 2):
                    part = ways[start : start + MOST_ECHO_TESTS // 2]
                    try:
                        part, results = await self._results(client, host, part)
                    except AgentError as error:
                        if not error.answered:
                            self._fleet.silence.unanswered(host, dead=error.dead)
                        for way in part:
                            self.untested[way.source] = f"its agent did not send echoes: {error}"
                        break
                    found.extend(measurements(part, results))
                    self._not_tested |= not_tested(part, results)
                waits.pop(host, None)
                show()

            show()
            await until(self._fleet.cancelled, (one(host, ways) for host, ways in asked.items()))
        return found

    async def _results(
        self, client: AgentClient, host: str, ways: Sequence[PathDirection]
    ) -> tuple[Sequence[PathDirection], Sequence[EchoResult]]:
        """Of those of the ways that the agent can test, which are all but where it is of an older release. Raises
        AgentError."""
        echo_tests = [test for way in ways for test in way.echo_tests()]
        if not echo_tests:
            return ways, ()
        try:
            return ways, await send_echoes(client, self._fleet.agents[host], echo_tests)
        except AgentError as error:
            plain = [way for way in ways if not way.from_address]
            if not error.unknown or len(plain) == len(ways):
                raise
            for way in ways:
                if way.from_address:
                    self.untested[way.source] = "its agent is of an older release, and tests no front end"
            return await self._results(client, host, plain)


def merge(
    first: Iterable[Measurement], second: Iterable[Measurement]
) -> tuple[list[Measurement], list[Ends]]:
    """Echo tests with those that were made again, of which the better result of a way counts; and the ways that
    passed only the second time."""
    best = {(m.kind, *ends_of(m)): m for m in first}
    recovered = []
    for m in second:
        key = (m.kind, *ends_of(m))
        old = best.get(key)
        if old is None:
            best[key] = m
            continue
        if m.ok and not old.ok:
            recovered.append(ends_of(m))
        better = m if m.ok and not old.ok else old
        best[key] = msgspec.structs.replace(better, attempts=old.attempts + 1)
    return sorted(best.values()), sorted(set(recovered))


def unreachable(measured: Iterable[Measurement]) -> set[Ends]:
    """Ways, in both directions, whose small echoes are not answered: a transfer needs packets both ways."""
    failed = {ends_of(m) for m in measured if m.kind == "connectivity" and m.ok is False}
    return failed | {(target, source) for source, target in failed}
