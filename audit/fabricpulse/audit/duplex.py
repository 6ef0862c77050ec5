"""What transfers in both directions at once mean, beside those in one. Pure.

A full-duplex link carries in each direction what it carries alone. The sum of both at once over the sum of each alone
is 1 then, and about 0.5 where both share something: a link that runs half duplex, a PCIe slot with too few lanes, one
processor core. Only the first two are faults of one NIC, so the ratio is compared with that of the others.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fabricpulse.audit.blame import Nic
from fabricpulse.audit.model import Measurement, clip
from fabricpulse.audit.path_tests import PathDirection
from fabricpulse.audit.transfer_tests import BUSY, LEAST, SLOW, compared

Ends = tuple[Nic, Nic]


@dataclass(frozen=True)
class BothWays:
    """A pair, by one of its ways, and what both directions carried at once, bits per second together. attempts : tests
    that this is the best of. unhindered : what they would have if no host had been late, as far as is known."""

    way: PathDirection
    bps: float
    attempts: int = 1
    unhindered: float = 0.0


def alone(measured: Iterable[Measurement]) -> dict[Ends, float]:
    """Bits per second of each way alone."""
    return {
        ((m.source_host, m.source_device), (m.target_host, m.target_device)): m.value
        for m in measured
        if m.kind == "bandwidth"
    }


def judge_both(done: Iterable[BothWays], rates: Mapping[Ends, float]) -> tuple[list[Measurement], list[str]]:
    """Two measurements a pair, one a way, with the pair's ratio, and notes about what could not be judged.

    rates : of each way alone, bits per second; a pair that lacks one is not judged.
    """
    tries: dict[Ends, list[BothWays]] = defaultdict(list)
    for one in done:
        tries[min(one.way.source, one.way.target), max(one.way.source, one.way.target)].append(one)
    networks: dict[str, list[tuple[Ends, float, float, int]]] = defaultdict(list)
    for (a, b), own in tries.items():
        single = rates.get((a, b), 0.0) + rates.get((b, a), 0.0)
        if rates.get((a, b)) and rates.get((b, a)):
            ratio = max(one.bps for one in own) / single
            could = max(one.unhindered for one in own) / single
            networks[own[0].way.network].append(((a, b), ratio, could, sum(one.attempts for one in own)))
    found: list[Measurement] = []
    notes: list[str] = []
    for network, pairs in sorted(networks.items()):
        reference = _reference(network, [ratio for _, ratio, _, _ in pairs], notes)
        ratios = sorted(ratio for _, ratio, _, _ in pairs)
        for (a, b), ratio, could, attempts in pairs:
            ok, why = (None, "") if reference is None else compared(ratio, reference, ratios)
            if ok is False and reference is not None and could >= SLOW * reference:
                ok, why = None, BUSY
            for source, target in ((a, b), (b, a)):
                found.append(
                    Measurement("duplex", network, *source, *target, ratio, ok, attempts, detail=why)
                )
    if ways := sorted(
        {
            f"{m.source_host} and {m.target_host}"
            for m in found
            if m.detail == BUSY and m.source_host < m.target_host
        }
    ):
        notes.append(
            clip(
                f"{len(ways)} pairs are not judged both ways at once, a host was too busy: {', '.join(ways[:6])}"
            )
        )
    return sorted(found), notes


def _reference(network: str, ratios: Sequence[float], notes: list[str]) -> float | None:
    """The ratio of a good pair; None where nobody can say."""
    usual = sorted(ratios)[len(ratios) * 3 // 4]
    if usual >= 0.9:
        return 1.0
    text = f"both directions at once: {network} reaches {100 * usual:.0f} % of what they reach alone"
    if len(ratios) >= LEAST:
        notes.append(
            clip(
                f"{text}: NICs are compared with one another, and one processor core a NIC may be what limits them"
            )
        )
        return usual
    notes.append(clip(f"{text}; too few pairs to say what is usual"))
    return None
