"""Scenarios of one flow of a job that crosses the spine: another job is in its way, or it is sent another way."""

from typing import ClassVar

from fabricpulse.lab.demo.scenarios.base import Fleet
from fabricpulse.lab.demo.scenarios.passing_fault import PassingFaultScenario
from fabricpulse.lab.demo.workload import WORKLOAD, Job

# Two pods below one spine: the ring crosses it once in each direction.
PODS = 2
# A job that computes most of the time: what its own packets wait for one another is a few milliseconds at most.
QUIET_JOB = Job(compute_ms=40, round_bytes=1 << 20, slice_bytes=16 << 10, depth=2)
# Delays are seen within seconds, in the demo's scrapes of a second; and a flow is slow when it is so beside what the
# cores on which all of this runs make of it.
QUICK_RULES = {
    "rateWindow": "15s",
    "contentionDelaySeconds": 0.004,
    "contentionKeepFiring": "20s",
    "incastKeepFiring": "30s",
}


class SharedPathScenario(PassingFaultScenario):
    """The fault is at the flow of the ring from the last host of the first pod to the first of the second."""

    # Two hosts in each pod.
    least_hosts = 4
    fault_s = 100.0
    firing_s = 60.0
    # A warning: Alertmanager waits half a minute for others of its group.
    paged_s = 100.0
    network: ClassVar[bool]

    def __init__(self, fleet: Fleet) -> None:
        second = (len(fleet.hosts) + 1) // PODS
        device = fleet.devices[0]
        host, self.peer = fleet.hosts[second - 1], fleet.hosts[second]
        about = {
            "instance": host,
            "device": device,
            "peer": self.peer,
            "peer_device": device,
            "workload": WORKLOAD,
        }
        super().__init__(fleet, host, device, about | ({"network": device} if self.network else {}))
        self.sender, self.receiver = f"{host}-{device}", f"{self.peer}-{device}"
