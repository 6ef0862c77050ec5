"""Tests between NICs over the agents of a fleet: echoes of all hosts at once, then transfers in rounds of disjoint
pairs. What failed is tested again, and with other partners where that decides whose fault it is.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from fabricpulse.audit.blame import Nic, retests
from fabricpulse.audit.ecmp import judge_ports
from fabricpulse.audit.fleet_duplex import DuplexTests
from fabricpulse.audit.fleet_run import AgentError, Target, ask, send_echoes, until
from fabricpulse.audit.model import Measurement, clip
from fabricpulse.audit.node.echo import COUNT, ECHO_TESTS_AT_A_TIME, PATIENCE_S
from fabricpulse.audit.node.transfer import PATIENCE_S as TRANSFER_PATIENCE_S
from fabricpulse.audit.node.wire import (
    MOST_ECHO_TESTS,
    RECEIVE_PATH,
    SEND_PATH,
    ReceiveAnswer,
    Received,
    ReceiveRequest,
    TransferResult,
)
from fabricpulse.audit.path_tests import Rail, Way, Ways, measurements, path_tests, plan_ways
from fabricpulse.audit.transfer_tests import Transferred, Transfers, again, judge
from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.client_config import HttpClientConfig

# Ways that are tested again: a fleet of which more fails has a cause that a second test does not tell from the first.
MOST_AGAIN = 2000
# What a run that is killed has to do again, seconds.
CHECKPOINT_S = 5.0
ECHO_KINDS = ("connectivity", "mtu")
Ends = tuple[Nic, Nic]


class FleetPaths:
    """The tests of one run. untested : NICs of which nothing could be learned, with why. notes : lines for people."""

    def __init__(
        self,
        agents: Mapping[str, Target],
        config: HttpClientConfig,
        rails: Mapping[str, Rail],
        ways: Ways,
        leaves: Mapping[Nic, str],
        cancelled: asyncio.Event,
        progress: Callable[[str, int, int], None] = lambda _what, _done, _of: None,
        checkpoint: Callable[[Sequence[Measurement]], None] = lambda _measured: None,
    ) -> None:
        """progress : is told what is under way, how much of it is done, and of how much. checkpoint : is given all
        that was measured so far, now and then."""
        self._agents = agents
        self._config = config
        self._rails = rails
        self._ways = ways
        self._leaves = leaves
        self._cancelled = cancelled
        self._progress = progress
        self._checkpoint = checkpoint
        self._next_checkpoint = 0.0
        self._echoes: Sequence[Measurement] = ()
        self.untested: dict[Nic, str] = {}
        self.notes: list[str] = []

    # -- echoes --------------------------------------------------------------------------------------------------

    async def echoes(self, before: Sequence[Measurement] = ()) -> list[Measurement]:
        """Connectivity and MTU of all pairs of the plan. before : of an interrupted run, not made again."""
        done = [m for m in before if m.kind in ECHO_KINDS]
        tested = {_ends(m) for m in done}
        planned = plan_ways(self._rails, self._ways)
        left = {
            host: [way for way in ways if (way.source, way.target) not in tested]
            for host, ways in planned.items()
        }
        found = done + await self._echo(left)
        if self._cancelled.is_set():
            return found
        failed = set(again(found))
        further = failed | {way for kind in ECHO_KINDS for way in retests(path_tests(found, kind))}
        by_host: dict[str, list[Way]] = defaultdict(list)
        for source, target in sorted(further)[:MOST_AGAIN]:
            by_host[source[0]].append(self._ways.way(source, target))
        merged, recovered = merge(found, await self._echo(by_host))
        if recovered:
            names = "; ".join(f"{' '.join(a)} to {' '.join(b)}" for a, b in recovered[:8])
            self.notes.append(clip(f"echoes of {len(recovered)} ways failed once and passed again: {names}"))
        self._echoes = merged
        self._checkpoint(merged)
        return merged

    async def _echo(self, by_host: Mapping[str, Sequence[Way]]) -> list[Measurement]:
        found: list[Measurement] = []
        # Of the worst case, in which no echo of a host is answered.
        longest = max((sum(len(way.echo_tests()) for way in ways) for ways in by_host.values()), default=0)
        patience = min(30 + longest * COUNT * PATIENCE_S / ECHO_TESTS_AT_A_TIME, 3600)
        async with self._client(patience) as client:

            async def one(host: str, ways: Sequence[Way]) -> None:
                for start in range(0, len(ways), MOST_ECHO_TESTS // 2):
                    part = ways[start : start + MOST_ECHO_TESTS // 2]
                    echo_tests = [p for way in part for p in way.echo_tests()]
                    try:
                        results = await send_echoes(client, self._agents[host], echo_tests)
                    except AgentError as error:
                        for way in part:
                            self.untested[way.source] = f"its agent did not send echoes: {error}"
                        return
                    found.extend(measurements(part, results))

            await until(self._cancelled, (one(host, ways) for host, ways in by_host.items() if ways))
        return found

    # -- transfers -----------------------------------------------------------------------------------------------

    async def transfers(
        self, wanted: Transfers, before: Sequence[Measurement] = (), without: Collection[Ends] = ()
    ) -> list[Measurement]:
        """Loss, bandwidth and one-way delay of all pairs of the plan: one transfer a NIC at a time, each direction of a
        pair after the other. before : of an interrupted run, not made again. without : ways that are not tested."""
        done = recalled(before, self._ways, wanted)
        tested = {(one.way.source, one.way.target) for one in done} | set(without)
        rounds: list[list[Ends]] = []
        for rail in self._rails.values():
            for pairs in rail.plan.rounds:
                for turn in (0, 1):
                    ends = [(rail.nics[p[turn]][0], rail.nics[p[1 - turn]][0]) for p in pairs]
                    rounds.append([way for way in ends if way not in tested])
        unfinished: dict[Ends, tuple[Nic, str]] = {}
        async with self._client(2 * TRANSFER_PATIENCE_S + 60 + wanted.seconds) as client:
            for number, ends in enumerate(rounds):
                if self._cancelled.is_set():
                    break
                self._progress("transfers", number, len(rounds))
                done += await self._round(client, wanted, ends, unfinished)
                self._keep(done, wanted, before)
            found, _ = judge(done, wanted.rate_bps, self._leaves)
            failed = set(again([*found, *judge_ports(done)]))
            kinds = ("loss", "bandwidth", "owd")
            failed |= {way for kind in kinds for way in retests(path_tests(found, kind))}
            failed |= unfinished.keys()
            for ends in disjoint(sorted(failed - set(without))[:MOST_AGAIN]):
                if self._cancelled.is_set():
                    break
                self._progress("tested again", 0, len(failed))
                for way in ends:
                    unfinished.pop(way, None)
                done += await self._round(client, wanted, ends, unfinished)
        found, notes = judge(done, wanted.rate_bps, self._leaves)
        found += self._of_ports(done, before)
        self.notes += notes
        self._tell_unfinished(found, unfinished)
        if not wanted.duplex:
            return found + [m for m in before if m.kind == "duplex"]
        self._checkpoint([*self._echoes, *found])
        async with self._client(2 * TRANSFER_PATIENCE_S + 60 + wanted.seconds) as client:
            tests = DuplexTests(client, self._agents, self._ways, wanted, self._cancelled, self._progress)
            found += await tests.run(found, before, disjoint)
        self.notes += tests.notes
        return found

    def _of_ports(self, done: Sequence[Transferred], before: Sequence[Measurement]) -> list[Measurement]:
        """Of all ways. before : of an interrupted run, counts for ways that were not tested since."""
        found = judge_ports(done)
        made = {_ends(m) for m in found}
        return found + [m for m in before if m.kind.startswith("ecmp_") and _ends(m) not in made]

    def _keep(self, done: Sequence[Transferred], wanted: Transfers, before: Sequence[Measurement]) -> None:
        """A checkpoint, if the last one is long ago: one takes a twentieth of the time at most."""
        begun = time.monotonic()
        if begun < self._next_checkpoint:
            return
        found, _ = judge(done, wanted.rate_bps, self._leaves)
        self._checkpoint([*self._echoes, *found, *self._of_ports(done, before)])
        now = time.monotonic()
        self._next_checkpoint = now + max(CHECKPOINT_S, 20 * (now - begun))

    def _tell_unfinished(
        self, found: Iterable[Measurement], unfinished: Mapping[Ends, tuple[Nic, str]]
    ) -> None:
        """A NIC of which nothing is known is untested; of one that has other tests it is a note."""
        known = {nic for m in found for nic in _ends(m)}
        rest = []
        for (source, target), (nic, why) in sorted(unfinished.items()):
            if nic in known:
                rest.append(f"{' '.join(source)} to {' '.join(target)} ({why})")
            else:
                self.untested[nic] = why
        if rest:
            self.notes.append(clip(f"{len(rest)} transfers were not made to the end: {'; '.join(rest[:4])}"))

    async def _round(
        self,
        client: HttpClient,
        wanted: Transfers,
        ends: Iterable[Ends],
        unfinished: dict[Ends, tuple[Nic, str]],
    ) -> list[Transferred]:
        """Those that were made. unfinished : takes ways that were not, or not to the end, with whose doing and why."""
        found: list[Transferred] = []

        async def one(source: Nic, target: Nic) -> None:
            way = self._ways.way(source, target)
            try:
                answer = await ask(
                    client,
                    self._agents[target[0]].url + RECEIVE_PATH,
                    ReceiveRequest(target[1], way.address, way.own, wanted.streams, wanted.seconds),
                    ReceiveAnswer,
                )
            except AgentError as error:
                unfinished[source, target] = target, str(error)
                return
            try:
                request = wanted.request(way, answer.tcp_port, answer.udp_port, answer.key)
                result = await ask(client, self._agents[source[0]].url + SEND_PATH, request, TransferResult)
            except AgentError as error:
                unfinished[source, target] = source, str(error)
                return
            if result.error:
                unfinished[source, target] = source, clip(f"to {' '.join(target)}: {result.error}")
            found.append(Transferred(way, result, udp_port=answer.udp_port))

        await until(self._cancelled, (one(source, target) for source, target in ends))
        return found

    def _client(self, timeout_s: float) -> HttpClient:
        return HttpClient(msgspec.structs.replace(self._config, timeout_s=timeout_s), connections=256)


def merge(
    first: Iterable[Measurement], second: Iterable[Measurement]
) -> tuple[list[Measurement], list[Ends]]:
    """Echo tests with those that were made again, of which the better result of a way counts; and the ways that
    passed only the second time."""
    best = {(m.kind, *_ends(m)): m for m in first}
    recovered = []
    for m in second:
        key = (m.kind, *_ends(m))
        old = best.get(key)
        if old is None:
            best[key] = m
            continue
        if m.ok and not old.ok:
            recovered.append(_ends(m))
        better = m if m.ok and not old.ok else old
        best[key] = msgspec.structs.replace(better, attempts=old.attempts + 1)
    return sorted(best.values()), sorted(set(recovered))


def unreachable(measured: Iterable[Measurement]) -> set[Ends]:
    """Ways, in both directions, whose small echoes are not answered: a transfer needs packets both ways."""
    failed = {_ends(m) for m in measured if m.kind == "connectivity" and m.ok is False}
    return failed | {(target, source) for source, target in failed}


def disjoint(ways: Sequence[Ends]) -> list[list[Ends]]:
    """The ways in rounds in which each NIC is in one way at most, in order."""
    rounds: list[tuple[set[Nic], list[Ends]]] = []
    for way in ways:
        for used, own in rounds:
            if not used & set(way):
                used.update(way)
                own.append(way)
                break
        else:
            rounds.append((set(way), [way]))
    return [own for _, own in rounds]


def recalled(before: Iterable[Measurement], ways: Ways, wanted: Transfers) -> list[Transferred]:
    """Transfers of an interrupted run, from what it has kept of them: as if they had just been made."""
    by_ends: dict[Ends, dict[str, Measurement]] = defaultdict(dict)
    for m in before:
        if m.kind in ("loss", "owd", "bandwidth"):
            by_ends[_ends(m)][m.kind] = m
    found = []
    for (source, target), own in sorted(by_ends.items()):
        if not ways.knows(source, target):
            continue
        received, sent = None, 0
        if loss := own.get("loss"):
            owd = own.get("owd")
            sent = wanted.datagrams * loss.attempts
            received = Received(
                round(sent * (1 - loss.value)),
                0,
                round(owd.value * 1e9) if owd else None,
                round(owd.bound * 1e9) if owd else 0,
            )
        rate = own["bandwidth"].value if "bandwidth" in own else None
        attempts = max(m.attempts for m in own.values())
        found.append(Transferred(ways.way(source, target), TransferResult(sent, received, rate), attempts))
    return found


def _ends(m: Measurement) -> Ends:
    return (m.source_host, m.source_device), (m.target_host, m.target_device)
