"""A host takes data more slowly than it arrives: PCIe, memory, or a NUMA node too far.

Identified by that host's own NIC: packets dropped for want of buffers or by the port, pause frames that it sends, PCIe
that stalls writes or has trained below what card and slot can do. Slow flows into this NIC are then an effect, no
incast. What most NICs of the job show alike is how these machines are, and a hint; so is a NIC that the job does not
use.
"""

from collections.abc import Callable, Iterator
from statistics import median

from fabricpulse.why.analysis import Analysis, nic_subject
from fabricpulse.why.facts import Nic
from fabricpulse.why.finding import Evidence, Finding, as_hint, finding, grows

TITLE = "receiver-side congestion"
DO = (
    "Look at PCIe of this NIC (`lspci -vv`: LnkSta against LnkCap), at NUMA placement and at the IOMMU of this host.",
    "The network is not the reason: do not look at switches.",
)
# Of NICs that are compared, the fewest; how far from their median is not alike.
_FEWEST = 4
_ALIKE = 2.0
_COMMON = 0.3


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a NIC."""
    drops, paused = _usual(a, lambda nic: nic.drops), _usual(a, lambda nic: nic.pause_sent)
    width = _usual(a, lambda nic: nic.pcie_share)
    for nic in a.facts.nics:
        evidence = []
        if nic.drops is not None and nic.drops > 10:
            evidence.append(
                Evidence(
                    f"{nic.id} drops {nic.drops:.0f} packets a second",
                    grows(nic.drops, 10, 1000, 0.75, 0.93) if nic.drops > _ALIKE * (drops or 0) else _COMMON,
                    "drops",
                )
            )
        if nic.pause_sent is not None and nic.pause_sent > 0.05:
            evidence.append(
                Evidence(
                    f"{nic.id} pauses its switch port {nic.pause_sent:.0%} of the time",
                    grows(nic.pause_sent, 0.05, 0.3, 0.8, 0.95)
                    if nic.pause_sent > _ALIKE * (paused or 0)
                    else _COMMON,
                    "pause_sent",
                )
            )
        if nic.pcie_stalled is not None and nic.pcie_stalled > 0.3:
            evidence.append(
                Evidence(f"PCIe stalls {nic.pcie_stalled:.0%} of its memory writes", 0.9, "pcie_stalled")
            )
        if nic.pcie_share is not None and nic.pcie_share < 0.99:
            evidence.append(
                Evidence(
                    f"PCIe of {nic.id} gives {nic.pcie_share:.0%} of what card and slot can do",
                    0.85 if width is None or nic.pcie_share < 0.95 * width else _COMMON,
                    "pcie_share",
                )
            )
        if not evidence:
            continue
        slow = [f for f in a.flows_of(nic.id) if f.target == nic.id and f in a.slow_set]
        common = all(e.strength <= _COMMON for e in evidence)
        if slow:
            evidence.append(Evidence(f"{len(slow)} flows into it are slow", 0.6, "delay"))
        found = finding("receiver_congestion", str(nic.id), evidence, [nic_subject(nic.id)], "nic")
        if not a.uses(nic):
            found = as_hint(found, "the job does not use this network")
        elif common:
            found = as_hint(found, "most NICs of the job show as much")
        yield found


def _usual(a: Analysis, value: Callable[[Nic], float | None]) -> float | None:
    """The median over the job's NICs; None where too few are known."""
    known = [v for nic in a.facts.nics if (v := value(nic)) is not None]
    return median(known) if len(known) >= _FEWEST else None
