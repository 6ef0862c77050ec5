"""What transfers between NICs mean: loss, bandwidth, one-way delay. Pure.

There is no target speed of a fleet: NICs of one network are compared with one another, and with the rate that was
asked for. The reference is a quartile of the good side, not the median: with a bad NIC in a small fleet half of all
tests are slow.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from fabricpulse.audit.checks.fleet import path_untested
from fabricpulse.audit.model import Finding, Measurement, MeasurementKind, clip
from fabricpulse.audit.node.rdma_wire import RdmaResult
from fabricpulse.audit.node.transfer import MOST_DATAGRAM_S, MOST_SEGMENTS, PATIENCE_S
from fabricpulse.audit.node.wire import SendRequest, TransferResult
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.path_tests import PathDirection

R = TypeVar("R", TransferResult, RdmaResult)

# A path loses when this many datagrams are missing and they are this share: one lost datagram is chance.
LEAST_LOST, MOST_LOSS = 3, 1e-3
# Of the reference: goodput of TCP beside it is slow. Noise of busy hosts stays above, half of a link's rate below.
SLOW = 0.8
# Of the rate that was asked for: what TCP reaches of it, headers and chunks of a short test left out.
PACED = 0.85
# One-way delay beyond this many times the reference, and this much more, with both clocks' bounds in its favour.
LATE, LATE_S = 1.5, 50e-6
# Tests of a network, or of a kind of path, that can be compared.
LEAST = 4
# From this share of the time on that a host was late, its lateness may be why TCP did not reach what the path carries.
LEAST_STARVED = 0.02
# All processors of an end are the limit when they are busy for so much of the time, with a transfer of a rate from
# which on TCP is their work. Below it others have taken them, and a path that is slower is slow.
MOST_BUSY, LEAST_WORK_BPS = 0.95, 1e9
# Of a stream: TCP sends in pieces of two segments or more, and of ten pieces two that are acknowledged a moment later
# are a fifth of the rate.
LEAST_BYTES = 400_000
# Tests of a way of which a busy host has spoilt each.
MOST_ATTEMPTS = 3
# `detail` of a measurement that decides nothing: a host was too busy for it; good ones differ as much; the sender's
# agent is set to send no faster.
BUSY, NOISY = "a host was busy", "others differ as much"
LIMITED = "the sender's agent sends no faster (transfer_mbit_s)"
UNSTATED = "the sender's agent, of an older release, does not say whether transfer_mbit_s limits it"
# A value is bad when it is further below the usual one than this many times what good ones are above it.
SPREAD = 6.0


# Of notes: what the details above say of a way.
UNJUDGED = (
    (BUSY, "a host was too busy"),
    (NOISY, "good ones differ as much from one another"),
    (LIMITED, "the agent that sends is set to send no faster (transfer_mbit_s)"),
    (
        UNSTATED,
        "the agent that sends is of an older release and may be set to send no faster (transfer_mbit_s)",
    ),
)


@dataclass(frozen=True)
class Transfers:
    """What `audit run --transfers` sends. rate_bps : most of a NIC, bits per second. seconds : of TCP a direction.
    most_streams : of TCP. duplex : whether both directions at once follow. rdma : whether each direction follows by
    RDMA WRITE. loss_s : seconds of datagrams at the whole rate a direction, 0 for those at a quarter of it alone."""

    rate_bps: int = 10_000_000_000
    seconds: float = 0.5
    most_streams: int = 4
    datagrams: int = 2000
    duplex: bool = True
    rdma: bool = False
    loss_s: float = 0.0

    def cost(self, ways: int, datagram_bytes: int = 9000) -> int:
        """Most bytes that so many ways send."""
        each = round(self.rate_bps * self.seconds / 8) * (1 + self.duplex + self.rdma)
        each += round(self.rate_bps * self.loss_s / 8)
        return ways * (each + self.datagrams * datagram_bytes)

    @property
    def enough(self) -> bool:
        """Whether a direction brings enough bytes to be measured."""
        return self.rate_bps * self.seconds / 8 >= LEAST_BYTES

    @property
    def streams(self) -> int:
        """Of TCP: as many as each has enough to be measured, one at least."""
        return max(1, min(self.most_streams, int(self.rate_bps * self.seconds / 8 / LEAST_BYTES)))

    @property
    def each_s(self) -> float:
        """What one transfer takes where hosts are not busy, seconds."""
        return self._datagrams_s + self.seconds + 1.0

    @property
    def patience_s(self) -> float:
        """How long a sender has for one, seconds."""
        return 2 * (self._datagrams_s + self.seconds) + 2 * PATIENCE_S + 5.0

    @property
    def _datagrams_s(self) -> float:
        """Of the largest, at a quarter of the rate, no more than 20,000 a second; then those at all of it."""
        slow_s = min(self.datagrams * max(9000 * 8 / (self.rate_bps / 4), 5e-5), MOST_DATAGRAM_S)
        return slow_s + self.loss_s

    def request(
        self, way: PathDirection, tcp_port: int, udp_port: int, key: str, *, duplex: bool = False
    ) -> SendRequest:
        """Of one way; datagrams are as large as the sender's MTU. duplex : TCP both ways at once, with one datagram."""
        size = min(max(way.size, 576), 9000)
        return SendRequest(
            way.source[1],
            way.own,
            way.address,
            tcp_port,
            udp_port,
            key,
            self.rate_bps,
            self.seconds,
            self.streams,
            1 if duplex else self.datagrams,
            size,
            duplex,
            loss_seconds=0.0 if duplex else self.loss_s,
        )


@dataclass(frozen=True)
class Transferred:
    """A way and what its transfer has measured. attempts : transfers that this is the result of, more than one if it is
    from an interrupted run. udp_port : that the datagrams were sent to. states_limit : whether the sender's agent says
    what it is set to send at most; one of an older release does not."""

    way: PathDirection
    result: TransferResult
    attempts: int = 1
    udp_port: int = 0
    states_limit: bool = True


def evaluate(
    done: Iterable[Transferred], rate_bps: float, leaves: Mapping[Nic, str]
) -> tuple[list[Measurement], list[str]]:
    """Measurements of all transfers, those of one way together, and notes about what could not be judged.

    leaves : NIC -> leaf as far as known: delays are compared within a leaf and between leaves.
    """
    by_way: dict[tuple[Nic, Nic], list[Transferred]] = defaultdict(list)
    for one in done:
        by_way[one.way.source, one.way.target].append(one)
    found: list[Measurement] = []
    notes: list[str] = []
    speeds: dict[str, list[Speed]] = defaultdict(list)
    delays: dict[tuple[str, str], list[tuple[PathDirection, float, float, int]]] = defaultdict(list)
    for tries in by_way.values():
        way, count = tries[0].way, sum(t.attempts for t in tries)
        found += _loss(way, tries, count)
        if seen := max(carried(t.result) for t in tries):
            could = max(unhindered(t.result) for t in tries)
            limit, states = limit_of(t.result for t in tries), all(t.states_limit for t in tries)
            speeds[way.network].append(Speed(way, seen, could, count, limit, states))
        owds = [
            t.result.received for t in tries if t.result.received and t.result.received.owd_ns is not None
        ]
        if owds:
            best = min(owds, key=lambda r: r.owd_ns or 0)
            sides = leaves.get(way.source, ""), leaves.get(way.target, "")
            kind = "" if "" in sides else ("within a leaf" if sides[0] == sides[1] else "between leaves")
            delays[way.network, kind].append((way, (best.owd_ns or 0) / 1e9, best.owd_bound_ns / 1e9, count))
    for network, ways in sorted(speeds.items()):
        found += evaluate_speeds("bandwidth", network, ways, rate_bps, notes, fastest(speeds.values()))
    for _, group in sorted(delays.items()):
        found += _delay(group)
    if by_way and not delays:
        notes.append("delay: not measured, the hosts have no fleet time (clocksync sidecar)")
    for why, reason in UNJUDGED:
        if ways_of := sorted({f"{m.source_host} to {m.target_host}" for m in found if m.detail == why}):
            notes.append(clip(f"{len(ways_of)} ways are not judged, {reason}: {', '.join(ways_of[:6])}"))
    return sorted(found), notes


def loss_rate_note(done: Iterable[Transferred]) -> list[str]:
    """At what rates datagrams were sent that were to be sent at the whole rate; none if none were."""
    rates = sorted(one.result.loss_bps for one in done if one.result.loss_bps is not None)
    if not rates:
        return []
    least, most = rates[0] / 1e9, rates[-1] / 1e9
    return [f"loss: measured at {least:.3g} to {most:.3g} Gb/s on the wire, of {len(rates)} transfers"]


@dataclass(frozen=True)
class Speed:
    """Bandwidth of a way, bits per second: the best that the path was seen to carry, and that would have been seen if
    neither host had been late. count : transfers. limit : of the sender's agent, where it is below what was asked.
    states_limit : as in Transferred."""

    way: PathDirection
    carried: float
    unhindered: float
    count: int
    limit: float = math.inf
    states_limit: bool = True


def fastest(speeds: Iterable[Iterable[Speed]]) -> dict[str, float]:
    """The most that each host's agent was seen to send by one NIC: it is not set to send less. Bits per second."""
    found: dict[str, float] = defaultdict(float)
    for ways in speeds:
        for one in ways:
            host = one.way.source[0]
            found[host] = max(found[host], one.carried)
    return found


def limit_of(results: Iterable[TransferResult]) -> float:
    """What the agent of the sender was set to send at most, bits per second; infinite where that is enough."""
    return max((math.inf if one.limit_bps is None else one.limit_bps for one in results), default=math.inf)


def within_rate(result: R, rate_bps: float) -> tuple[bool, R]:
    """Whether the agent says what it is set to send at most, and its result, with a limit where that is below the rate
    that it was asked for."""
    states = result.limit_bps is not None
    limit = result.limit_bps if states and (result.limit_bps or 0.0) < rate_bps else None
    return states, msgspec.structs.replace(result, limit_bps=limit)


def carried(result: TransferResult) -> float:
    """Bits per second that the path was seen to carry: while nothing else held TCP back if a host was late; else what
    was reached, as a full window or an empty queue is then the host's own doing."""
    reached = result.bps or 0.0
    return max(reached, result.path_bps or 0.0) if result.starved >= LEAST_STARVED else reached


def unhindered(result: TransferResult) -> float:
    """Bits per second that a transfer would have reached if neither host had been late, by rule of three where the
    path's own time is not known. While a processor is stolen the kernel sends nothing, either. Infinite where moving so
    much has left an end's processors nothing to spare: its kernel, which no thread waits for, was the limit."""
    if result.busy >= MOST_BUSY and (result.bps or 0.0) >= LEAST_WORK_BPS:
        return math.inf
    late = result.starved if result.path_bps is None and result.starved >= LEAST_STARVED else 0.0
    return carried(result) / max(1 - late, 1e-3) / max(1 - result.stolen, 1e-3)


def measured(
    kind: MeasurementKind,
    way: PathDirection,
    value: float,
    ok: bool | None,
    attempts: int,
    bound: float = 0.0,
    detail: str = "",
) -> Measurement:
    """Of a way."""
    return Measurement(kind, way.network, *way.source, *way.target, value, ok, attempts, bound, detail)


def on_the_way(one: Transferred) -> tuple[int, int, int]:
    """Of the datagrams of a transfer that the receiver reported: sent, without those that its socket certainly had no
    room for; missing; and how many of the missing the hosts themselves, or that socket, may have dropped."""
    received = one.result.received
    if received is None:
        return 0, 0, 0
    # What the receiver's own socket had no room for was not lost on the way, nor did it arrive: not counted at all.
    least = received.overflowed if received.pieces is None else min(received.pieces, received.overflowed)
    sent = max(0, one.result.sent - least)
    missing = max(0, sent - received.datagrams)
    # At the whole rate hosts without a NIC of hardware hand on, and drop, many in one piece.
    piece = MOST_SEGMENTS if one.result.loss_bps is not None else 1
    dropped = (received.host_dropped + one.result.host_dropped) * piece
    return sent, missing, min(missing, dropped + received.overflowed - least)


def _loss(way: PathDirection, tries: Sequence[Transferred], count: int) -> list[Measurement]:
    """Failed where more is missing than the hosts themselves have dropped, in each test: a burst that was lost once is
    none of the path's. Not decided where only that excuse saves it."""
    known = [counts for one in tries if (counts := on_the_way(one))[0]]
    sent = sum(n for n, _, _ in known)
    if not sent:
        # Of some that were sent, and of which the receiver's socket had room for none, nothing is known.
        full = any(one.result.sent and one.result.received for one in tries)
        return [measured("loss", way, 0.0, None, count, detail=BUSY)] if full else []
    lost = sum(missing - excused for _, missing, excused in known)
    each = all(missing > excused for _, missing, excused in known)
    if _loses(sent, lost) and each:
        return [measured("loss", way, lost / sent, False, count)]
    if any(excused for _, _, excused in known) and _loses(sent, sum(missing for _, missing, _ in known)):
        return [measured("loss", way, lost / sent, None, count, detail=BUSY)]
    return [measured("loss", way, lost / sent, True, count)]


def _loses(sent: int, lost: int) -> bool:
    return lost >= LEAST_LOST and lost / sent > MOST_LOSS


def evaluate_speeds(
    kind: Literal["bandwidth", "rdma"],
    network: str,
    ways: Sequence[Speed],
    rate_bps: float,
    notes: list[str],
    seen: Mapping[str, float],
) -> list[Measurement]:
    """Of one network, compared with one another and with the rate that was asked for; a note says with which. seen : of
    `fastest`."""
    what, limit = (
        ("bandwidth", ", and one processor core a NIC may be what limits them")
        if kind == "bandwidth"
        else ("RDMA writes", "")
    )
    rates = sorted(one.carried for one in ways)
    usual = rates[len(rates) * 3 // 4]
    if usual < PACED * rate_bps and _some_reach(rate_bps, ways):
        usual = rate_bps
    paced = usual >= PACED * rate_bps
    reference = min(usual, rate_bps) if paced or len(ways) >= LEAST else None
    if paced:
        notes.append(clip(f"{what}: {network} carries the {rate_bps / 1e9:g} Gb/s that were asked for"))
    elif reference is not None:
        notes.append(
            clip(
                f"{what}: {network} reaches {usual / 1e9:.3g} of {rate_bps / 1e9:g} Gb/s: NICs are compared with "
                f"one another{limit}"
            )
        )
    else:
        notes.append(clip(f"{what}: {network} has too few pairs to say what is slow"))
    found = []
    for one in ways:
        # Above the rate that was asked for there is nothing but chance of a short test: it does not tell how good ones
        # differ.
        others = [] if paced else rates
        # A NIC is not slow because its agent is set to send no more; that it can do more is not known, either.
        goal = None if reference is None else min(reference, one.limit)
        ok, why = (None, "") if goal is None else compared(one.carried, goal, others)
        if ok and reference is not None and one.limit < SLOW * reference:
            ok, why = None, LIMITED
        if ok is False and goal is not None and one.unhindered >= SLOW * goal:
            ok, why = None, BUSY
        if ok is False and goal is not None and not one.states_limit:
            may_be_limited = seen[one.way.source[0]] < SLOW * goal
            ok, why = (None, UNSTATED) if may_be_limited else (ok, why)
        found.append(measured(kind, one.way, one.carried, ok, one.count, detail=why))
    return found


def _some_reach(rate_bps: float, ways: Sequence[Speed]) -> bool:
    """Whether some NICs reach the rate in all their tests with one another: then it is what the network carries, even
    where most NICs do not. Where processors limit a fleet chance picks ways, not NICs."""
    fast = [one for one in ways if one.carried >= PACED * rate_bps]
    nics = {nic for one in fast for nic in (one.way.source, one.way.target)}
    between = [one for one in ways if {one.way.source, one.way.target} <= nics and one.limit >= rate_bps]
    return min(len(nics), len(fast)) >= LEAST and all(one.carried >= SLOW * rate_bps for one in between)


def compared(value: float, reference: float, values: Sequence[float]) -> tuple[bool | None, str]:
    """Whether one of `values`, in ascending order, is as good as the reference says; None with why where good ones
    differ from one another so much that it proves nothing: where processors are what limits them, chance decides."""
    if value >= SLOW * reference:
        return True, ""
    above = max(0.0, values[(len(values) - 1) * 19 // 20] - reference) if values else 0.0
    return (None, NOISY) if value >= reference - SPREAD * above else (False, "")


def _delay(group: Sequence[tuple[PathDirection, float, float, int]]) -> list[Measurement]:
    ordered = sorted(group, key=lambda one: one[1])
    _, usual, usual_bound, _ = ordered[len(ordered) // 4]
    # The bounds of all clocks of the group: one that is wide must not make another's path look late.
    bound = max(usual_bound, statistics.median(b for _, _, b, _ in group))
    found = []
    for way, owd, own_bound, count in group:
        late = owd - own_bound > max(0.0, usual + bound) * LATE + LATE_S
        # Negative beyond the bound: a clock is wrong, and its delays prove nothing.
        ok = None if len(group) < LEAST or owd + own_bound < 0 else not late
        found.append(measured("owd", way, owd, ok, count, own_bound))
    return found


def again(found: Iterable[Measurement]) -> list[tuple[Nic, Nic]]:
    """Ways with a test that failed once, or that a busy host has spoilt: chance does not fail twice, and hosts may be
    less busy a moment later."""
    return sorted(
        {
            ((m.source_host, m.source_device), (m.target_host, m.target_device))
            for m in found
            if (m.ok is False and m.attempts == 1) or (m.detail == BUSY and m.attempts < MOST_ATTEMPTS)
        }
    )


def untested_findings(reasons: Mapping[Nic, str], front_end: Collection[Nic] = ()) -> list[Finding]:
    """NICs of which nothing is known, with why. front_end : those of front ends."""
    return [
        path_untested.CHECK.finding(
            host,
            device,
            f"not tested: {why}",
            {"reason": clip(why)},
            category="front-end" if (host, device) in front_end else None,
        )
        for (host, device), why in sorted(reasons.items())
    ]
