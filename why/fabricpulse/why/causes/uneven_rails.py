"""The same rail carries less on most hosts of the job: a setting, not a fault of one host.

Identified by the share of each NIC by device name, its median over hosts. One host alone is a lane imbalance,
including its effect on the shares of those that send to it. A rail that carried as little in the baseline is a hint.
"""

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.causes.lane_imbalance import EVEN, OLD_SHARES, UNEVEN, idle_nics, shares
from fabricpulse.why.finding import Evidence, Finding, as_hint, finding, grows

TITLE = "uneven rails"
DO = (
    "Compare NCCL_IB_HCA, NCCL_SOCKET_IFNAME and FABRICPULSE_NICS of the job with the rails of the hosts.",
    "If a rail's switch is in maintenance this is expected: the job uses what is left.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a rail."""
    by_host = shares(a)
    if len(by_host) < 3 or idle_nics(a) or median(min(s.values()) for s in by_host.values()) >= EVEN:
        return
    rails: defaultdict[str, list[float]] = defaultdict(list)
    for devices in by_host.values():
        for device, share in devices.items():
            rails[device].append(share)
    before: defaultdict[str, list[float]] = defaultdict(list)
    for devices in shares(a, before=True).values():
        for device, share in devices.items():
            before[device].append(share)
    for device, values in sorted(rails.items()):
        usual = median(values)
        if len(values) < 3 or usual > UNEVEN:
            continue
        evidence = [
            Evidence(
                f"{device} carries {usual:.0%} of a host's mean on the median of {len(values)} hosts",
                grows(1 - usual, 1 - UNEVEN, 0.9, 0.88, 0.95),
                "sent",
            )
        ]
        below = sum(value <= UNEVEN for value in values)
        evidence.append(Evidence(f"{below} of {len(values)} hosts have it below {UNEVEN:.0%}", 0.5, "sent"))
        subjects = [("nic", host, device) for host in by_host if device in by_host[host]]
        found = finding("uneven_rails", f"{device} of {below} hosts", evidence, [("job",), *subjects], "qp")
        old = device in before and median(before[device]) <= UNEVEN
        yield as_hint(found, OLD_SHARES) if old else found
