"""What transfers in both directions at once mean, beside those in one. Pure.

A full-duplex link carries in each direction what it carries alone. The sum of both at once over the sum of each alone
is 1 then, and about 0.5 where both share something: a link that runs half duplex, a PCIe slot with too few lanes, one
processor core. Only the first two are faults of one NIC, so the ratio is compared with that of the others.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fabricpulse.audit.model import Measurement, clip
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.path_tests import PathDirection
from fabricpulse.audit.pair_tests.transfer_tests import BUSY, LEAST, SLOW, compared

Ends = tuple[Nic, Nic]


@dataclass(frozen=True)
class BothWays:
    """A pair, by one of its ways, and both directions at once, in bits per second together.

    bps : what the path was seen to carry; where a host was late each direction counts for the time in which it was not
    held up, and the two need not be the same time. reached : what came through at once, at least. attempts : tests
    that this is the best of. unhindered : what they would have if no host had been late, as far as is known.
    """

    way: PathDirection
    bps: float
    reached: float
    attempts: int = 1
    unhindered: float = 0.0


def alone(measured: Iterable[Measurement]) -> dict[Ends, float]:
    """Bits per second of each way alone."""
    return {
        ((m.source_host, m.source_device), (m.target_host, m.target_device)): m.value
        for m in measured
        if m.kind == "bandwidth"
    }


@dataclass(frozen=True)
class _Pair:
    """What the tests of a pair come to: sums over those of each way alone."""

    ends: Ends
    ratio: float
    reached: float
    could: float
    attempts: int


def evaluate_both(
    done: Iterable[BothWays], rates: Mapping[Ends, float], spoilt: Collection[Ends] = ()
) -> tuple[list[Measurement], list[str]]:
    """Two measurements a pair, one a way, with the pair's ratio, and notes about what could not be judged.

    rates : of each way alone, bits per second; a pair that lacks one is not judged. spoilt : of which that is less than
    the way carries, because a host was busy; the ratio of such a pair may be too good, never too bad.
    """
    tries: dict[Ends, list[BothWays]] = defaultdict(list)
    for one in done:
        tries[min(one.way.source, one.way.target), max(one.way.source, one.way.target)].append(one)
    networks: dict[str, list[_Pair]] = defaultdict(list)
    for (a, b), own in tries.items():
        single = rates.get((a, b), 0.0) + rates.get((b, a), 0.0)
        if rates.get((a, b)) and rates.get((b, a)):
            sure = 0.0 if {(a, b), (b, a)} & set(spoilt) else max(one.reached for one in own)
            pair = _Pair(
                ends=(a, b),
                ratio=max(one.bps for one in own) / single,
                reached=sure / single,
                could=max(one.unhindered for one in own) / single,
                attempts=sum(one.attempts for one in own),
            )
            networks[own[0].way.network].append(pair)
    found: list[Measurement] = []
    notes: list[str] = []
    for network, pairs in sorted(networks.items()):
        ratios = sorted(pair.ratio for pair in pairs)
        reference = _reference(network, ratios, notes)
        for pair in pairs:
            ok, why = (None, "") if reference is None else compared(pair.ratio, reference, ratios)
            if reference is not None:
                enough = SLOW * reference
                if (ok is False and pair.could >= enough) or (ok and pair.reached < enough):
                    ok, why = None, BUSY
            for source, target in (pair.ends, pair.ends[::-1]):
                found.append(
                    Measurement(
                        "duplex", network, *source, *target, pair.ratio, ok, pair.attempts, detail=why
                    )
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
    """The ratio of a good pair; None where it is not known. ratios : in ascending order."""
    usual = ratios[len(ratios) * 3 // 4]
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
