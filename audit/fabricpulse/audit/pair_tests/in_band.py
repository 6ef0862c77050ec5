"""One-way delay inside the NCCL plugin's ring beside that of probes between the same NICs. Pure.

The smallest delay of a connection is that of its way: queues add to others. Probes and the ring are timed by the same
two clocks, moments apart. A transport that is marked, encapsulated or routed differently goes another way, and is late
with each number of lanes; a lane that meets a queue, or a rank that had no processor, is late once.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fabricpulse.audit.checks.fleet import nccl_delay
from fabricpulse.audit.model import Finding, InBandDelay, Measurement, Ring, clip
from fabricpulse.audit.node.wire import RingAnswer
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
    owds = {ends_of(m): m for m in measured if m.kind == "owd"}
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
            late = least - own_bound > LATE * max(0.0, probe + bound) + more
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
        return [
            "NCCL ring: its delay is not compared with that of probes: no fleet time, or no probes of its pairs"
        ]
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
