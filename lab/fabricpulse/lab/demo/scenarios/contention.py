"""Another job fills the cable between a leaf and the spine: on-call must get the flow and the job that wait there."""

from fabricpulse.lab.demo.scenarios.base import Fleet, Setting, Stage
from fabricpulse.lab.demo.scenarios.one_page import POLL_S
from fabricpulse.lab.demo.scenarios.shared_path import PODS, QUICK_RULES, QUIET_JOB, SharedPathScenario

# Less than a NIC has: what a host sends over the spine leaves room for what it sends to its neighbour.
UPLINK_MBIT = 70.0
OTHER_JOB_MBIT = 60.0


class Contention(SharedPathScenario):
    """A job that fabricpulse does not see sends from another host of the first pod to another one of the second."""

    name = "contention"
    summary = "another job fills a cable to the spine: a flow of the ring waits in its queue"
    alert = "FabricPathContended"
    fault = f"another job sends {OTHER_JOB_MBIT:.0f} Mbit/s over a cable that {{host}} needs"
    repaired = "the other job has ended"
    network = True
    setting = Setting(
        pods=PODS, spines=1, uplink_mbit=UPLINK_MBIT, job=QUIET_JOB, rules=QUICK_RULES, poll_s=POLL_S
    )

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._other = (f"{fleet.hosts[0]}-{self.device}", f"{fleet.hosts[-1]}-{self.device}")

    async def hold(self, stage: Stage) -> None:
        await stage.load(*self._other, OTHER_JOB_MBIT)
        await stage.sleep(self.fault_s)

    async def repair(self, stage: Stage) -> None:
        await stage.load(*self._other, 0.0)
