"""One-way delay inside the NCCL plugin's ring beside that of probes between the same NICs. Pure.

The smallest delay of a connection is that of its way: queues add to others. Probes and the ring are timed by the same
two clocks, moments apart. A transport that is marked, encapsulated or routed differently goes another way, and is late
with each number of lanes; a lane that meets a queue, or a rank that had no processor, is late once.

A chunk is timed to its last byte, a probe is one packet: what a slow link needs for the bytes is no other way. In the
first step of a round a NIC has nothing else to send than that step, so the smallest delay has no more of it than one
step needs: later by more is late, by less is not known. One step needs no longer than the mean of all, nor than at half
of the rate that tests of both NICs have seen, as a ring sends both ways at once. The speed of a link is no such rate:
those of virtual functions and machines are shaped below it. Nor is a test of the pair alone: TCP on a longer way is
slower itself.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fabricpulse.audit.checks.fleet import nccl_delay
from fabricpulse.audit.model import Finding, InBandDelay, Measurement, Ring, clip
from fabricpulse.audit.node.wire import RING_STEP_BYTES, RingAnswer
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.path_tests import ends_of

# Beyond so many times the probes' delay, and this much more, seconds: what threads and a stream of bytes add to that of
# a packet is more over TCP.
LATE, LATE_RDMA_S, LATE_TCP_S = 1.5, 50e-6, 500e-6
# Chunks of which the smallest delay says something; rings that must agree.
LEAST_CHUNKS, LEAST_RINGS = 16, 2
MESH, DATAGRAMS = "probes of the mesh", "datagrams"


def in_band_delays(
    hosts: Sequence[str], answers: Mapping[str, RingAnswer], measured: Iterable[Measurement]
) -> tuple[InBandDelay, ...]:
    """Of each pair of NICs of a ring that has fleet time and probes. hosts : in the order of ranks; each receives from
    the one before it. measured : of `--transfers`, for pairs that the mesh does not probe."""
    measured = tuple(measured)
    owds = {ends_of(m): m for m in measured if m.kind == "owd"}
    step = _Step(min((answer.bps for answer in answers.values()), default=0.0), measured)
    found = []
    for number, host in enumerate(hosts):
        source = hosts[number - 1]
        answer, sender = answers.get(host), answers.get(source)
        if answer is None or sender is None or answer.clock_bound_ns is None or sender.clock_bound_ns is None:
            continue
        own_bound = (answer.clock_bound_ns + sender.clock_bound_ns) / 1e9
        for delay in answer.delays:
            ends: tuple[Nic, Nic] = (source, delay.peer_device), (host, delay.device)
            if delay.mesh_ns is not None:
                probe, bound, of = delay.mesh_ns / 1e9, delay.mesh_bound_ns / 1e9, MESH
            elif (owd := owds.get(ends)) is not None:
                probe, bound, of = owd.value, owd.bound, DATAGRAMS
            else:
                continue
            more = LATE_RDMA_S if delay.rdma else LATE_TCP_S
            least = delay.least_ns / 1e9
            sent_s = step.seconds(ends)
            excess = least - own_bound - LATE * max(0.0, probe + bound) - more
            # Between both it may be the bytes or another way.
            late = True if excess > sent_s else None if excess > 0 else False
            # Negative beyond its bound: a clock is wrong, and nothing that it times is known.
            judged = delay.chunks >= LEAST_CHUNKS and probe + bound >= 0
            found.append(
                InBandDelay(
                    *ends[0], *ends[1], least, delay.most_ns / 1e9, probe, own_bound + bound, of,
                    late if judged else None,
                )
            )  # fmt: skip
    return tuple(
        sorted(found, key=lambda one: (one.source_host, one.source_device, one.target_device, one.least))
    )


class _Step:
    """What the NICs of a ring need for the bytes of one step. bps : of its slowest rank."""

    def __init__(self, bps: float, measured: Iterable[Measurement]) -> None:
        self._bps = bps
        # The most that a test of a NIC has seen; what ways have that are slower than others.
        self._seen: dict[Nic, float] = defaultdict(float)
        self._slow: dict[tuple[Nic, Nic], float] = {}
        for m in measured:
            if m.kind in ("bandwidth", "rdma"):
                if m.ok is False:
                    self._slow[ends_of(m)] = m.value
                for nic in ends_of(m):
                    self._seen[nic] = max(m.value, self._seen[nic])

    def seconds(self, ends: tuple[Nic, Nic]) -> float:
        """Most, of one pair; infinite where nothing is known of its rate."""
        seen = self._slow.get(ends, min(self._seen[nic] for nic in ends))
        rate = max(self._bps, seen / 2)
        return 8 * RING_STEP_BYTES / rate if rate > 0 else math.inf


@dataclass(frozen=True)
class _Way:
    """All rings of a pair of NICs: those that judge it, and the one whose delay is smallest."""

    judged: int
    late: int
    best: InBandDelay


def _ways(rings: Iterable[Ring]) -> dict[tuple[Nic, Nic], _Way]:
    by_way: dict[tuple[Nic, Nic], list[InBandDelay]] = defaultdict(list)
    for ring in rings:
        for one in ring.delays:
            by_way[(one.source_host, one.source_device), (one.target_host, one.target_device)].append(one)
    return {
        ends: _Way(
            sum(one.late is not None for one in own),
            sum(one.late is True for one in own),
            min(own, key=lambda one: (one.least, one.most, one.probe)),
        )
        for ends, own in by_way.items()
    }


def in_band_findings(rings: Iterable[Ring]) -> list[Finding]:
    """Ways that are late in each ring that judges them, of two rings or more."""
    found = []
    for (source, target), way in sorted(_ways(rings).items()):
        if way.judged < LEAST_RINGS or way.late < way.judged:
            continue
        best = way.best
        text = (
            f"the NCCL ring takes {_us(best.least)} or more to {' '.join(target)}, {best.of} {_us(best.probe)}: its "
            "packets go another way"
        )
        evidence = {
            "target": " ".join(target),
            "in_band": f"{_us(best.least)} to {_us(best.most)}",
            "probes": f"{_us(best.probe)} ({best.of})",
            "bound": _us(best.bound),
            "rings": str(way.judged),
        }
        found.append(nccl_delay.CHECK.finding(*source, text, evidence))
    return found


def in_band_note(rings: Sequence[Ring]) -> list[str]:
    """One line of how many ways were compared, or why none was; none without a ring."""
    made = [ring for ring in rings if ring.bps is not None]
    if not made:
        return []
    ways = _ways(made)
    judged = [way.best for way in ways.values() if way.judged >= LEAST_RINGS]
    if not judged:
        why = "no fleet time, or no probes of its pairs"
        if ways:
            why = "too few chunks, or all that is late may be the time that a slow link needs for them"
        return [f"NCCL ring: its delay is not compared with that of probes: {why}"]
    worst = max(judged, key=lambda one: one.least - one.probe)
    ends = f"{worst.source_host} {worst.source_device} to {worst.target_host} {worst.target_device}"
    return [
        clip(
            f"NCCL ring: delay of {len(judged)} ways compared with that of probes; largest difference {ends}: "
            f"{_us(worst.least)} to {_us(worst.most)} in the ring, {worst.of} {_us(worst.probe)}"
        )
    ]


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} µs"
