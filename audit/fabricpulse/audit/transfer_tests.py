"""What transfers between NICs mean: loss, bandwidth, one-way delay. Pure.

Nobody says how fast a fleet must be: NICs of one network are compared with one another, and with the rate that was
asked for. The reference is a quartile of the good side, not the median: with a bad NIC in a small fleet half of all
tests are slow.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fabricpulse.audit.blame import Nic
from fabricpulse.audit.model import Finding, Measurement, MeasurementKind, clip
from fabricpulse.audit.node.wire import SendRequest, TransferResult
from fabricpulse.audit.path_tests import Way

# A path loses when this many datagrams are missing and they are this share: one lost datagram is chance.
LEAST_LOST, MOST_LOSS = 3, 1e-3
# Of the reference: goodput of TCP beside it is slow. Noise of busy hosts stays above, half of a link's rate below.
SLOW = 0.8
# One-way delay beyond this many times the reference, and this much more, with both clocks' bounds in its favour.
LATE, LATE_S = 1.5, 50e-6
# Tests of a network, or of a kind of path, that can be compared.
LEAST = 4


@dataclass(frozen=True)
class Transfers:
    """What `audit run --transfers` sends. rate_bps : most of a NIC, bits per second. seconds : of TCP a direction.
    duplex : whether both directions at once follow."""

    rate_bps: int = 10_000_000_000
    seconds: float = 0.5
    streams: int = 4
    datagrams: int = 2000
    duplex: bool = True

    def cost(self, ways: int, datagram_bytes: int = 9000) -> int:
        """Most bytes that so many ways send."""
        tcp = round(self.rate_bps * self.seconds / 8) * (2 if self.duplex else 1)
        return ways * (tcp + self.datagrams * datagram_bytes)

    def request(
        self, way: Way, tcp_port: int, udp_port: int, key: str, *, duplex: bool = False
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
        )


@dataclass(frozen=True)
class Transferred:
    """A way and what its transfer has told. attempts : transfers that this is the result of, more than one if it is
    from an interrupted run. udp_port : that the datagrams were sent to."""

    way: Way
    result: TransferResult
    attempts: int = 1
    udp_port: int = 0


def judge(
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
    speeds: dict[str, list[tuple[Way, float, int]]] = defaultdict(list)
    delays: dict[tuple[str, str], list[tuple[Way, float, float, int]]] = defaultdict(list)
    for tries in by_way.values():
        way, count = tries[0].way, sum(t.attempts for t in tries)
        found += _loss(way, tries, count)
        if rates := [t.result.bps for t in tries if t.result.bps]:
            speeds[way.network].append((way, max(rates), count))
        owds = [
            t.result.received for t in tries if t.result.received and t.result.received.owd_ns is not None
        ]
        if owds:
            best = min(owds, key=lambda r: r.owd_ns or 0)
            sides = leaves.get(way.source, ""), leaves.get(way.target, "")
            kind = "" if "" in sides else ("within a leaf" if sides[0] == sides[1] else "between leaves")
            delays[way.network, kind].append((way, (best.owd_ns or 0) / 1e9, best.owd_bound_ns / 1e9, count))
    for network, ways in sorted(speeds.items()):
        found += _bandwidth(network, ways, rate_bps, notes)
    for _, group in sorted(delays.items()):
        found += _delay(group)
    if by_way and not delays:
        notes.append("delay: not measured, the hosts have no fleet time (clocksync sidecar)")
    return sorted(found), notes


def _measured(
    kind: MeasurementKind, way: Way, value: float, ok: bool | None, attempts: int, bound: float = 0.0
) -> Measurement:
    return Measurement(kind, way.network, *way.source, *way.target, value, ok, attempts, bound)


def _loss(way: Way, tries: Sequence[Transferred], count: int) -> list[Measurement]:
    known = [(t.result.sent, t.result.received) for t in tries if t.result.received is not None]
    # What the receiver's own socket had no room for was not lost on the way, nor did it arrive: not counted at all.
    sent = sum(max(0, n - r.overflowed) for n, r in known if r is not None)
    lost = sum(max(0, n - r.overflowed - r.datagrams) for n, r in known if r is not None)
    if not sent:
        return []
    return [_measured("loss", way, lost / sent, not (lost >= LEAST_LOST and lost / sent > MOST_LOSS), count)]


def _bandwidth(
    network: str, ways: Sequence[tuple[Way, float, int]], rate_bps: float, notes: list[str]
) -> list[Measurement]:
    rates = sorted(rate for _, rate, _ in ways)
    usual = rates[len(rates) * 3 // 4]
    if usual >= 0.9 * rate_bps:
        reference: float | None = rate_bps
        notes.append(clip(f"bandwidth: {network} carries the {rate_bps / 1e9:g} Gb/s that were asked for"))
    elif len(ways) >= LEAST:
        reference = usual
        notes.append(
            clip(
                f"bandwidth: {network} reaches {usual / 1e9:.3g} of {rate_bps / 1e9:g} Gb/s: NICs are compared with "
                "one another, and one processor core a NIC may be what limits them"
            )
        )
    else:
        reference = None
        notes.append(clip(f"bandwidth: {network} has too few pairs to say what is slow"))
    return [
        _measured("bandwidth", way, rate, None if reference is None else rate >= SLOW * reference, count)
        for way, rate, count in ways
    ]


def _delay(group: Sequence[tuple[Way, float, float, int]]) -> list[Measurement]:
    ordered = sorted(group, key=lambda one: one[1])
    _, usual, usual_bound, _ = ordered[len(ordered) // 4]
    # The bounds of all clocks of the group: one that is wide must not make another's path look late.
    bound = max(usual_bound, statistics.median(b for _, _, b, _ in group))
    found = []
    for way, owd, own_bound, count in group:
        late = owd - own_bound > max(0.0, usual + bound) * LATE + LATE_S
        # Negative beyond the bound: a clock is wrong, and its delays prove nothing.
        ok = None if len(group) < LEAST or owd + own_bound < 0 else not late
        found.append(_measured("owd", way, owd, ok, count, own_bound))
    return found


def again(measured: Iterable[Measurement]) -> list[tuple[Nic, Nic]]:
    """Ways with a test that failed once, each once: chance and a busy host do not fail twice."""
    return sorted(
        {
            ((m.source_host, m.source_device), (m.target_host, m.target_device))
            for m in measured
            if m.ok is False and m.attempts == 1
        }
    )


def untested_findings(reasons: Mapping[Nic, str]) -> list[Finding]:
    """NICs of which nothing is known, with why."""
    return [
        Finding(
            "path-untested",
            "back-end",
            "warning",
            host,
            device,
            clip(f"not tested: {why}"),
            {"reason": clip(why)},
        )
        for (host, device), why in sorted(reasons.items())
    ]
