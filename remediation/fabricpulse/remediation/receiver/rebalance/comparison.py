"""What jobs carried before a plan and after it, by the processes that both windows know. Pure.

Sums over whatever reports would be another number with each agent that comes back and each rank that begins or ends: a
plan was kept because a host reported again.
"""

from collections.abc import Mapping

from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneSummary

# (job, host, process).
Process = tuple[str, str, str]
# Of what a job carried before, so much must be known again.
_KNOWN_AGAIN = 0.75
# A job that carried less is idle, bytes per second: what becomes of that says nothing.
_IDLE_BYTES_S = 1e5


def goodput_by_process(lanes: Mapping[str, LaneSummary]) -> dict[Process, float]:
    """Process -> bytes per second of all of its lanes."""
    total: dict[Process, float] = {}
    for lane in lanes.values():
        key = (lane.job, lane.host, lane.last.process)
        total[key] = total.get(key, 0.0) + lane.goodput
    return total


def compared(
    before: Mapping[Process, float], after: Mapping[Process, float]
) -> dict[str, tuple[float, float]]:
    """Job -> its goodput before and after, bytes per second, over the processes in both. Without jobs that were idle,
    or of which those carried too little to speak for the rest."""
    whole: dict[str, float] = {}
    both: dict[str, tuple[float, float]] = {}
    for process, goodput in before.items():
        job = process[0]
        whole[job] = whole.get(job, 0.0) + goodput
        if process in after:
            then, now = both.get(job, (0.0, 0.0))
            both[job] = then + goodput, now + after[process]
    return {
        job: (then, now)
        for job, (then, now) in both.items()
        if whole[job] >= _IDLE_BYTES_S and then >= _KNOWN_AGAIN * whole[job]
    }
