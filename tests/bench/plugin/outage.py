"""How long a job stands still when all paths were away for a moment, and what of it is the kernel's."""

import math
import statistics
import time
from contextlib import ExitStack

from tests.bench.plugin.rows import report
from tests.bench.plugin.stalls import Lateness, running
from tests.bench.rows import quantile
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab

HOSTS = ("h0", "h1")
OUTAGE_S, SETTLE_S, LOOKED_AT_S = 0.05, 4.0, 2.0
# Linux forgets the neighbours of a NIC that loses its carrier. What a host sends meanwhile, resets and retransmissions
# of its lanes' sockets, asks for their addresses anew; that request is lost, and the kernel repeats it after this long.
# 1000 is its default.
NEIGHBOUR_RETRIES_MS = (1000, 100, 20)


def bench_outage(faults: int) -> None:
    """Both cables of a host pulled for 50 ms, with several settings of the kernel's retry: the longest gap that the job
    sees beyond the outage, and when link and first lane were up again, from the repair on."""
    with (
        Lab(hosts=2, rails=2, nic_mbit=200) as lab,
        running(lab, ["--bytes", "1M", "--slice", "64K"]) as ring,
    ):
        lateness = Lateness()
        for retry_ms in NEIGHBOUR_RETRIES_MS:
            _set_retry(lab, retry_ms)
            beyond: list[float] = []
            links: list[float] = []
            lanes: list[float] = []
            late: list[float] = []
            for _ in range(faults):
                time.sleep(SETTLE_S)  # damping forgets the last one
                before = {host: ring.events(host)[1] for host in HOSTS}
                since, began_ns = time.time(), time.monotonic_ns()
                with ExitStack() as stack:
                    for rail in range(2):
                        stack.enter_context(lab.host("h1").nic(rail).down())
                    time.sleep(OUTAGE_S)  # the fault is that long
                repaired_ns, until = time.monotonic_ns(), time.time()
                time.sleep(LOOKED_AT_S)  # a stall may begin late: the whole span is judged
                beyond.append(ring.stall_ms(since, until + LOOKED_AT_S) - (repaired_ns - began_ns) / 1e6)
                links.append(_first_ms(ring, "link_up", before, repaired_ns))
                lanes.append(_first_ms(ring, "lane_up", before, repaired_ns))
                late.append(lateness.most_ms(since, until + LOOKED_AT_S))
            report(
                f"both links down 50 ms, neighbours asked again after {retry_ms} ms",
                "outage_stall_beyond_ms_p50", statistics.median(beyond), "ms", p95=round(quantile(beyond, 0.95), 1),
                link_up_after_ms=round(statistics.median(links), 1),
                lane_up_after_ms=round(statistics.median(lanes), 1),
                faults=faults, host_late_ms_p99=round(quantile(late, 0.99), 1),
            )  # fmt: skip
        lateness.stop()


def _set_retry(lab: Lab, retry_ms: int) -> None:
    for host in HOSTS:
        for nic in lab.host(host).nics:
            lab.host(host).run(
                ["ip", "ntable", "change", "name", "arp_cache", "dev", nic.device, "retrans", str(retry_ms)]
            )


def _first_ms(ring: Ring, kind: str, before: dict[str, int], repaired_ns: int) -> float:
    """When the later host had its first event of a kind since `before`, in ms from the repair on; NaN without one."""
    firsts = []
    for host in HOSTS if kind == "lane_up" else ("h1",):
        events, _ = ring.events(host, before[host])
        firsts.append(min((e["mono_ns"] for e in events if e["kind"] == kind), default=math.nan))
    return (max(firsts) - repaired_ns) / 1e6
