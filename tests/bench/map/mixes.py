"""Mixes of faults below random fabrics, in virtual time: what is named that is no fault, and for how long.

One to three faults of any kind, which overlap, and beside them what happens in any fleet: an exporter or all of them
are restarted, a process is stopped, a host leaves, the coordinator starts anew. Any name counts from the first second.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterable

from tests.bench.rows import Rows
from tests.unit.diagnosis.virtual_fleet import Name, VirtualFleet, name_of, names_of, random_fault

from fabricpulse.diagnosis.search.suspect import Suspect

# Seconds: a fleet that is well; within which faults begin; until the last one has ended; until all names have left.
_QUIET_S, _BEGIN_S, _LASTS_S, _HEALED_S = 12, 30, (15, 60), 45
# So long after its end the name of a fault is no wrong one.
_LEAVES_S = 30.0


def _fleet(draw: random.Random, seed: int) -> VirtualFleet:
    """Some are not traced; in some a host cannot report."""
    leaves, rails = draw.choice([3, 3, 4, 5]), draw.choice([1, 1, 2])
    blind = [f"h{draw.randrange(9)}"] if draw.random() < 0.2 else []
    hosts = 9 if rails == 2 else 3 * leaves
    return VirtualFleet(seed, hosts, rails, leaves, draw.choice([2, 3, 4]), draw.random() < 0.75, blind)


def _right(fleet: VirtualFleet, now_s: float) -> frozenset[Name]:
    """Names of what is faulty, or was a short while ago, and of each part of it."""
    names: set[Name] = set()
    for fault in fleet.faults:
        if not fault.begins_s <= now_s <= fault.ends_s + _LEAVES_S:
            continue
        names |= fault.names
        if not fault.names:
            continue  # a restart: nothing is at fault
        names |= names_of(fleet, *fault.parts)
        for kind, first, *_ in fault.parts:
            if kind in ("nic_tx", "nic_rx") and {("nic_tx", first), ("nic_rx", first)} <= {*fault.parts}:
                names.add(("nic", first, ""))
    return frozenset(names | _whole(fleet, now_s))


def _whole(fleet: VirtualFleet, now_s: float) -> set[Name]:
    """Hosts and spines that nothing crosses, as all their parts are dead by several faults: the parts say no more."""
    dead = {
        part
        for fault in fleet.faults
        for part in fault.parts
        if fault.begins_s <= now_s <= fault.ends_s + _LEAVES_S
        and fault.of(part, min(now_s, fault.ends_s - 0.1)) == 1
    }
    names: set[Name] = set()
    for host in fleet.hosts:
        if all((way, f"{host}/{rail}") in dead for way in ("nic_tx", "nic_rx") for rail in fleet.rails):
            names.add(("host", host, ""))
    leaves = sorted(set(fleet.leaf.values()))
    for spine in {spine for leaf in leaves for spine in fleet.uplinks(leaf)}:
        below = [leaf for leaf in leaves if spine in fleet.uplinks(leaf) and ("switch", leaf) not in dead]
        up = [leaf for leaf in below if ("link", leaf, spine) not in dead]
        down = [leaf for leaf in below if ("link", spine, leaf) not in dead]
        if not any(a != b for a in up for b in down):
            names |= names_of(fleet, ("switch", spine))
    return names


def _wrong(right: frozenset[Name], found: Iterable[Suspect]) -> list[str]:
    """Of what is named, that which is no fault, nor said to be alike with one."""
    alike = {f"{kind} {a} to {b}" if b else f"{kind} {a}" for kind, a, b in right}
    return [
        f"{s.what} {' '.join(part for part in name_of(s) if part)}"
        for s in found
        if name_of(s) not in right and not alike & {*s.alternatives}
    ]


def _disturb(fleet: VirtualFleet, draw: random.Random) -> tuple[str, float]:
    """What happens beside the faults, and when it has to be done by hand, if it has."""
    what = draw.choice(["nothing", "restart", "rolling restart", "stop", "coordinator", "member"])
    at_s = _QUIET_S + draw.uniform(0, 2 * _BEGIN_S)
    if what == "restart":
        fleet.restart(draw.choice(fleet.hosts), at_s, at_s + 3.5)
    if what == "rolling restart":
        for number, host in enumerate(fleet.hosts):
            fleet.restart(host, at_s + 2.5 * number, at_s + 2.5 * number + 3.5)
    if what == "stop":
        fleet.stop(draw.choice(fleet.hosts), at_s, at_s + draw.choice([2.0, 6.0, 12.0]))
    return what, at_s


def played(seed: int) -> tuple[Counter[str], str]:
    """Seconds of each wrong name in one mix; what was played."""
    draw = random.Random(seed)
    fleet = _fleet(draw, seed)
    what, at_s = _disturb(fleet, draw)
    faults = [
        random_fault(fleet, _QUIET_S + draw.uniform(0, _BEGIN_S), draw.uniform(*_LASTS_S))
        for _ in range(draw.randint(1, 3))
    ]
    fleet.faults += faults
    wrong = Counter[str]()
    while fleet.now_s < max(fault.ends_s for fault in fleet.faults) + _HEALED_S:
        if at_s <= fleet.now_s < at_s + 1:
            if what == "coordinator":
                fleet.restart_coordinator()
            if what == "member":
                hit = {part[1].partition("/")[0] for fault in faults for part in fault.parts}
                leaving = next((host for host in fleet.hosts if host not in hit), None)
                fleet.members_are([host for host in fleet.hosts if host != leaving])
        [(now_s, found)] = fleet.play(1)
        wrong.update(_wrong(_right(fleet, now_s), found))
    text = "; ".join(
        f"{fault.what} {'+'.join(' '.join(part) for part in fault.parts[:3])} "
        f"{fault.begins_s:.1f} to {fault.ends_s:.1f} s"
        for fault in faults
    )
    traced = "" if fleet.traced else ", not traced"
    return wrong, f"{text}; {what} at {at_s:.1f} s{traced}, blind {sorted(fleet.blind)}"


def bench_mixes(rows: Rows, mixes: int, first: int) -> None:
    """Mixes of the seeds from `first` on."""
    with_wrong = seconds = 0
    for seed in range(first, first + mixes):
        wrong, text = played(seed)
        with_wrong += bool(wrong)
        seconds += sum(wrong.values())
        if wrong:
            print(f"bench map: mix {seed}: {dict(wrong)} (seconds): {text}", file=sys.stderr, flush=True)
    case = f"{mixes} mixes of 1 to 3 faults, 9 to 15 hosts, simulated, seeds from {first}"
    rows.report(case, "mixes_with_wrong_name", with_wrong, "mixes", "== 0", wrong_s=seconds)
