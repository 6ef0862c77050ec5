"""Transfers between NICs over the agents of a fleet: as many disjoint pairs at a time as there are. What failed is
tested again, and with other partners where that decides whose fault it is.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from fabricpulse.audit.fleet.agent_client import AgentClient
from fabricpulse.audit.fleet.duplex import DuplexTests
from fabricpulse.audit.fleet.paths import MOST_AGAIN
from fabricpulse.audit.fleet.rdma import RdmaTests
from fabricpulse.audit.fleet.run import AT_A_TIME, AgentError
from fabricpulse.audit.fleet.stage import OVER, RECEIVE_S, Fleet, stage, stage_seconds
from fabricpulse.audit.model import Measurement, clip
from fabricpulse.audit.node.wire import (
    RECEIVE_PATH,
    SEND_PATH,
    ReceiveAnswer,
    Received,
    ReceiveRequest,
    TransferResult,
)
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.ecmp import evaluate_ports
from fabricpulse.audit.pair_tests.path_tests import PathDirections, Rail, ends_of, further_tests
from fabricpulse.audit.pair_tests.schedule import Ends
from fabricpulse.audit.pair_tests.transfer_tests import (
    BUSY,
    LEAST_LOST,
    LIMITED,
    MOST_ATTEMPTS,
    MOST_LOSS,
    UNSTATED,
    Transferred,
    Transfers,
    again,
    evaluate,
    loss_rate_note,
    within_rate,
)

# What a run that is killed has to do again, seconds.
CHECKPOINT_S = 5.0


class FleetTransfers:
    """The transfers of one run. checkpoint : is given all that was measured so far, now and then. untested : NICs of
    which nothing could be learned, with why. notes : lines for people."""

    def __init__(
        self,
        fleet: Fleet,
        wanted: Transfers,
        checkpoint: Callable[[Sequence[Measurement]], None] = lambda _measured: None,
    ) -> None:
        self._fleet = fleet
        self._wanted = wanted
        self._checkpoint = checkpoint
        self._next_checkpoint = 0.0
        self._done: list[Transferred] = []
        self._unfinished: dict[Ends, tuple[Nic, str]] = {}
        # Of these, tests that ended early: which end it is due to is not known.
        self._ended_early: set[Ends] = set()
        self.untested: dict[Nic, str] = {}
        self.notes: list[str] = []

    async def run(
        self,
        rails: Mapping[str, Rail],
        before: Sequence[Measurement] = (),
        without: Collection[Ends] = (),
    ) -> list[Measurement]:
        """Loss, bandwidth and one-way delay of all pairs of the plan: one transfer a NIC at a time, each direction of a
        pair after the other, all networks at once. before : of an interrupted run, not made again. without : ways that
        are not tested."""
        fleet, wanted = self._fleet, self._wanted
        self._done = recalled(before, fleet.ways, wanted)
        tested = {(one.way.source, one.way.target) for one in self._done} | set(without)
        order = planned(rails)
        ways = [way for way in order if way not in tested]
        config = msgspec.structs.replace(fleet.config, timeout_s=RECEIVE_S + wanted.patience_s)
        async with AgentClient(config, connections=2 * AT_A_TIME) as client:
            seconds = stage_seconds(ways, wanted.each_s)

            async def one(source: Nic, target: Nic) -> None:
                await self._transfer(client, source, target)

            def keep() -> None:
                self._keep(before)

            self._unfinished.update(await stage(fleet, "transfers", ways, one, seconds, done=keep))
            # What is found of further partners may be what decides whose fault the first ones show.
            for number in range(MOST_ATTEMPTS - 1):
                further = self._further(without, unfinished=number == 0)
                if not further or fleet.cancelled.is_set():
                    break
                for way in further:
                    self._unfinished.pop(way, None)
                # What is tested again has no longer than what was tested first.
                seconds = min(seconds, stage_seconds(further, wanted.each_s))
                self._unfinished.update(
                    await stage(fleet, "transfers again", further, one, seconds, done=keep)
                )
            found, notes = evaluate(self._done, wanted.rate_bps, fleet.leaves)
            found += self._of_ports(before)
            self.notes += notes + loss_rate_note(self._done)
            self._report_unfinished(found)
            self._checkpoint(found)
            if wanted.duplex:
                duplex = DuplexTests(client, fleet, wanted)
                found += await duplex.run(found, before, order)
                self.notes += duplex.notes
            else:
                found += [m for m in before if m.kind == "duplex"]
            if wanted.rdma:
                self._checkpoint(found)
                rdma = RdmaTests(client, fleet, wanted)
                found += await rdma.run([way for way in order if way not in set(without)], before)
                self.notes += rdma.notes
                self.untested = rdma.untested | self.untested
            else:
                found += [m for m in before if m.kind == "rdma"]
        return found

    def _further(self, without: Collection[Ends], *, unfinished: bool) -> list[Ends]:
        """Ways to test once more, or for the first time, by what is known so far. unfinished : also those whose test
        did not come to its end."""
        found, _ = evaluate(self._done, self._wanted.rate_bps, self._fleet.leaves)
        failed = set(again([*found, *evaluate_ports(self._done)]))
        kinds = ("loss", "bandwidth", "owd")
        failed |= {way for kind in kinds for way in further_tests(found, kind)}
        if unfinished:
            failed |= {way for way, (_, why) in self._unfinished.items() if why != OVER}
        tries: dict[Ends, int] = defaultdict(int)
        for transfer in self._done:
            tries[transfer.way.source, transfer.way.target] += transfer.attempts
        return [way for way in sorted(failed - set(without)) if tries[way] < MOST_ATTEMPTS][:MOST_AGAIN]

    def _of_ports(self, before: Sequence[Measurement]) -> list[Measurement]:
        """Of all ways. before : of an interrupted run, counts for ways that were not tested since."""
        found = evaluate_ports(self._done)
        made = {ends_of(m) for m in found}
        return found + [m for m in before if m.kind.startswith("ecmp_") and ends_of(m) not in made]

    def _keep(self, before: Sequence[Measurement]) -> None:
        """A checkpoint, if the last one is long ago: one takes a twentieth of the time at most."""
        begun = time.monotonic()
        if begun < self._next_checkpoint:
            return
        found, _ = evaluate(self._done, self._wanted.rate_bps, self._fleet.leaves)
        self._checkpoint([*found, *self._of_ports(before)])
        now = time.monotonic()
        self._next_checkpoint = now + max(CHECKPOINT_S, 20 * (now - begun))

    def _report_unfinished(self, found: Iterable[Measurement]) -> None:
        """A NIC of which nothing is known is untested, and so is one whose agent has refused a way, or did not answer:
        it may have died amid the tests. A test that ended early, or was made before, is a note of NICs with others."""
        found = list(found)
        known = {nic for m in found for nic in ends_of(m)}
        decided = {ends_of(m) for m in found if m.ok is not None}
        rest = []
        refused: dict[Nic, list[str]] = defaultdict(list)
        for (source, target), (nic, why) in sorted(self._unfinished.items()):
            if nic not in known or not {(source, target)} & (self._ended_early | decided):
                refused[nic].append(why)
            else:
                rest.append(f"{' '.join(source)} to {' '.join(target)} ({why})")
        for nic, reasons in refused.items():
            count = "" if nic not in known else f"{len(reasons)} of its ways: "
            self.untested[nic] = count + reasons[-1]
        if rest:
            self.notes.append(clip(f"{len(rest)} transfers were not made to the end: {'; '.join(rest[:4])}"))

    async def _transfer(self, client: AgentClient, source: Nic, target: Nic) -> None:
        """Made, or noted with whose doing it is that it was not, or not to its end, and why."""
        fleet, wanted = self._fleet, self._wanted
        way = fleet.ways.way(source, target)
        self._ended_early.discard((source, target))
        asked = target
        try:
            receive = ReceiveRequest(target[1], way.address, way.own, wanted.streams, wanted.seconds)
            answer = await fleet.ask(client, target[0], RECEIVE_PATH, receive, ReceiveAnswer, RECEIVE_S)
            asked = source
            send = wanted.request(way, answer.tcp_port, answer.udp_port, answer.key)
            result = await fleet.ask(
                client, source[0], SEND_PATH, send, TransferResult, wanted.patience_s, target[0]
            )
        except AgentError as error:
            self._unfinished[source, target] = target if error.of_peer else asked, str(error)
            return
        if result.error:
            self._unfinished[source, target] = source, clip(f"to {' '.join(target)}: {result.error}")
            self._ended_early.add((source, target))
        states, result = within_rate(result, wanted.rate_bps)
        self._done.append(Transferred(way, result, udp_port=answer.udp_port, states_limit=states))


def planned(rails: Mapping[str, Rail]) -> list[Ends]:
    """All ways of the plans in the order of their rounds, all networks beside one another."""
    ways: list[tuple[int, Ends]] = []
    for rail in rails.values():
        number = 0
        for pairs in rail.plan.rounds:
            for turn in (0, 1):
                ways += [(number, (rail.nics[pair[turn]][0], rail.nics[pair[1 - turn]][0])) for pair in pairs]
                number += 1
    return [way for _, way in sorted(ways, key=lambda one: one[0])]


def recalled(before: Iterable[Measurement], ways: PathDirections, wanted: Transfers) -> list[Transferred]:
    """Transfers of an interrupted run, from what it has kept of them: as if they had just been made."""
    by_ends: dict[Ends, dict[str, Measurement]] = defaultdict(dict)
    for m in before:
        if m.kind in ("loss", "owd", "bandwidth"):
            by_ends[ends_of(m)][m.kind] = m
    found = []
    for (source, target), own in sorted(by_ends.items()):
        if not ways.knows(source, target):
            continue
        way = ways.way(source, target)
        attempts = max(m.attempts for m in own.values())
        speed = own.get("bandwidth")
        starved = 0.999 if speed and speed.detail == BUSY else 0.0
        rate = speed.value if speed else None
        limit = rate if speed and speed.detail == LIMITED else None
        tests = _loss_of(own["loss"], wanted.datagrams) if "loss" in own else [(0, None)]
        owd = own.get("owd")
        delay = {"owd_ns": round(owd.value * 1e9), "owd_bound_ns": round(owd.bound * 1e9)} if owd else {}
        for number, (sent, counted) in enumerate(tests):
            received = msgspec.structs.replace(counted, **delay) if counted else None
            count = attempts - len(tests) + 1 if number == 0 else 1
            found.append(
                Transferred(
                    way,
                    TransferResult(sent, received, rate, starved=starved, limit_bps=limit),
                    count,
                    states_limit=speed is None or speed.detail != UNSTATED,
                )
            )
    return found


def _loss_of(loss: Measurement, datagrams: int) -> list[tuple[int, Received | None]]:
    """(sent, received) of tests that are judged as this was: it lost in each of them, or in one alone, or what is
    missing may have been dropped by the hosts themselves."""
    sent = datagrams * loss.attempts
    lost = round(sent * loss.value)
    if loss.ok is None:
        lost = max(lost, LEAST_LOST, math.ceil(sent * MOST_LOSS) + 1)
        return [(sent, Received(max(0, sent - lost), host_dropped=lost))]
    if loss.attempts < 2:
        return [(sent, Received(sent - lost))]
    first = sent // 2
    in_second = lost // 2 if loss.ok is False else 0
    return [
        (first, Received(max(0, first - lost + in_second))),
        (sent - first, Received(sent - first - in_second)),
    ]
