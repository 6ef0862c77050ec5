"""A link runs at a lower speed than its siblings, or than it did: half of its lanes lost, or negotiated down.

Identified by the speed that the driver reports now, against the same NIC before and against the other NICs of the job
on the same network. A ring is as fast as its slowest link, so one such NIC slows all ranks. The other NICs then carry
less than they could; that is an effect.

A link that is slower than its reported speed (a shaped port, a degraded link) has a queue before it: all flows from and
to the NIC are slow, and probes on the same path as well, unlike with a misrouted flow. That queue is full at times and
drops packets. Where each flow has a queue of its own, probes do not wait: then even the quickest chunks of all flows
from and to the NIC take several times as long as those of other hosts, and it carries far less than before, both ways.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import fsum
from statistics import median

from fabricpulse.why.analysis import SLOW_DELAY_S, SLOW_SCORE, Analysis, nic_subject
from fabricpulse.why.facts import Nic
from fabricpulse.why.finding import Evidence, Finding, as_hint, as_undecided, finding, grows

TITLE = "slow link"
# Quickest chunks of all flows of a NIC, in times of what others' are, and what it carries then, of what it did.
_QUICKEST, _CARRIES = 2.5, 0.6
# Of its probes, from where on they are lost, and of how many edges.
_LOSS, _EDGES = 0.005, 2
_NO_PCIE = "no nic exporter says whether its host takes what arrives (drops, pause, PCIe)"
DO = (
    "Compare the speed of NIC and switch port (`ethtool`); replace cable or transceiver; look for lanes without light.",
    "Until then keep the job off this NIC: on few NICs at full speed it is quicker than on all at the slowest one's.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a NIC."""
    speeds: defaultdict[str, list[float]] = defaultdict(list)
    for nic in a.facts.nics:
        if nic.speed:
            speeds[_siblings(nic)].append(nic.speed)
    medians = {siblings: median(alike) for siblings, alike in speeds.items()}
    silent = frozenset(a.missing().get("nic", ()))
    for nic in a.facts.nics:
        if nic.connected is False:
            continue
        if waiting := _queue_before(a, nic) or queues_of_flows(a, nic):
            found = finding("slow_link", str(nic.id), waiting, [nic_subject(nic.id)], "qp", "mesh")
            yield as_undecided(found, _NO_PCIE) if nic.id.host in silent else found
            continue
        if not nic.speed:
            continue
        evidence = []
        alike = speeds[_siblings(nic)]
        usual = medians[_siblings(nic)]
        old = bool(nic.speed_before) and nic.speed >= 0.9 * (nic.speed_before or 0) and a.slower_than_before
        if len(alike) >= 3 and nic.speed < 0.9 * usual:
            evidence.append(
                Evidence(
                    f"{nic.id} runs at {_gbit(nic.speed)}, the median of the job's NICs at {_gbit(usual)}"
                    + (", as in the baseline, when the job was quicker" if old else ""),
                    0.75 if old else 0.92,
                    "speed",
                )
            )
        if nic.speed_before and nic.speed < 0.9 * nic.speed_before:
            evidence.append(
                Evidence(
                    f"{nic.id} ran at {_gbit(nic.speed_before)} before, now at {_gbit(nic.speed)}",
                    0.93,
                    "speed",
                )
            )
        if evidence and nic.transmitted and nic.transmitted > 0.8 * nic.speed:
            evidence.append(
                Evidence(f"it sends at {nic.transmitted / nic.speed:.0%} of that", 0.6, "transmitted")
            )
        delayed = [
            f
            for f in a.flows_of(nic.id)
            if f.source == nic.id and f in a.slow_set and a.grown(f) is not False
        ]
        if evidence and delayed:
            evidence.append(Evidence(f"{len(delayed)} flows from it wait, longer than before", 0.6, "delay"))
        if evidence:
            found = finding("slow_link", str(nic.id), evidence, [nic_subject(nic.id)], "nic")
            yield found if a.uses(nic) else as_hint(found, "the job does not use this network")


def _siblings(nic: Nic) -> str:
    """NICs that ought to be alike: of its network; without the mesh, of its name, as a host has slower ones for other
    uses."""
    return nic.network or nic.id.device


def _queue_before(a: Analysis, nic: Nic) -> list[Evidence]:
    """Empty where not everything from and to it waits, probes included, or where no probe goes."""
    flows = a.flows_of(nic.id)
    # The mesh has no edge between all pairs: a flow without probes beside it says nothing against a queue.
    slow = [f for f in flows if f in a.slow_set and (f.probe_s is None or f.probe_s > SLOW_DELAY_S)]
    probes = [f.probe_s for f in slow if f.probe_s is not None]
    if (
        {nic.id} == {f.source for f in slow}
        or not {nic.id} & {f.source for f in slow}
        or len(slow) < len(flows)
        or not probes
    ):
        return []
    others = a.probes_but(flows)
    worst = max(slow, key=a.score)
    probe_s = min(probes)
    if others and probe_s < SLOW_SCORE * median(others):
        return []
    return [
        Evidence(
            f"all flows from and to {nic.id} are slow, {worst} {a.score(worst):.0f} times as slow as quick ones",
            grows(a.score(worst), 3, 10, 0.75, 0.85),
            "delay",
        ),
        Evidence(f"probes on their way take {probe_s * 1e6:.0f} us or more", 0.6, "probe_delay"),
    ]


def quickest(a: Analysis, nic: Nic) -> float:
    """How many times as long as those of other hosts the quickest chunks of each flow from and to a NIC take, where it
    carries far less than before both ways; 0 where it does not, or that is not known.
    """
    flows = [f for f in a.flows_of(nic.id) if f.floor_s and not a.minor(f)]
    out, into = [f for f in flows if f.source == nic.id], [f for f in flows if f.target == nic.id]
    for way in (out, into):
        before = fsum(f.sent_before or 0.0 for f in way)
        if before <= 0 or fsum(f.sent or 0.0 for f in way) > _CARRIES * before:
            return 0.0
    others = a.floors_but(nic.id.host)
    usual_s = median(others) if len(others) > 1 else 0.0
    return min(f.floor_s or 0.0 for f in flows) / usual_s if usual_s > 0 else 0.0


def queues_of_flows(a: Analysis, nic: Nic) -> list[Evidence]:
    """Only where its probes are lost as well, and not by a host that does not take them."""
    lost = max(nic.loss_in or 0.0, nic.loss_out or 0.0)
    if lost <= _LOSS or (nic.lossy_edges or 0) < _EDGES or (nic.pcie_share or 1.0) < 1.0:
        return []
    times = quickest(a, nic)
    if times < _QUICKEST:
        return []
    return [
        Evidence(
            f"even the quickest chunks of all flows from and to {nic.id} take {times:.0f} times as long as those of "
            "other hosts, and it carries far less than before",
            grows(times, _QUICKEST, 10, 0.75, 0.85),
            "floor",
        ),
        Evidence(f"a full queue drops: {lost:.1%} of its probes are lost", 0.3, "loss_out"),
    ]


def _gbit(bytes_per_second: float) -> str:
    return f"{bytes_per_second * 8e-9:.0f} Gb/s"
