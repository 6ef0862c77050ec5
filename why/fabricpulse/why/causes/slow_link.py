"""A link runs at a lower speed than its siblings, or than it did: half of its lanes lost, or negotiated down.

Told by the speed that the driver reports now, against the same NIC before and against the other NICs of the job on the
same network. A ring is as fast as its slowest link, so one such NIC slows all ranks. The other NICs then carry less
than they could; that is an effect.
"""

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from fabricpulse.why.analysis import Analysis, nic_subject
from fabricpulse.why.finding import Evidence, Finding, finding

TITLE = "slow link"
DO = (
    "Compare the speed of NIC and switch port (`ethtool`); replace cable or transceiver; look for lanes without light.",
    "Until then keep the job off this NIC: on few NICs at full speed it is quicker than on all at the slowest one's.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a NIC."""
    speeds: defaultdict[str, list[float]] = defaultdict(list)
    for nic in a.facts.nics:
        if nic.speed:
            speeds[nic.network].append(nic.speed)
    for nic in a.facts.nics:
        if not nic.speed or nic.connected is False:
            continue
        evidence = []
        usual = median(speeds[nic.network])
        if len(speeds[nic.network]) >= 3 and nic.speed < 0.9 * usual:
            evidence.append(
                Evidence(
                    f"{nic.id} runs at {_gbit(nic.speed)}, the median of the job's NICs at {_gbit(usual)}",
                    0.92,
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
        if evidence:
            yield finding("slow_link", str(nic.id), evidence, [nic_subject(nic.id)], "nic")


def _gbit(bytes_per_second: float) -> str:
    return f"{bytes_per_second * 8e-9:.0f} Gb/s"
