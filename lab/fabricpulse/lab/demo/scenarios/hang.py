"""One rank of a job stops: on-call must be notified of its process, and of no fault of the network."""

from fabricpulse.lab.demo.scenarios.base import Fleet, Stage
from fabricpulse.lab.demo.scenarios.one_page import COMPUTING
from fabricpulse.lab.demo.scenarios.passing_fault import PassingFaultScenario
from fabricpulse.lab.demo.workload import WORKLOAD


class Hang(PassingFaultScenario):
    """The process of one rank is stopped for a while, then continues."""

    name = "hang"
    summary = "a rank of the job stops, and the others wait for it"
    alert = "FabricCollectiveStalled"
    setting = COMPUTING
    fault = "the process of the rank on {host} is stopped"
    repaired = "the process continues"

    def __init__(self, fleet: Fleet) -> None:
        host = fleet.hosts[len(fleet.hosts) // 2]
        super().__init__(fleet, host, "", {"peer": host, "workload": WORKLOAD})

    async def hold(self, stage: Stage) -> None:
        await stage.suspend_rank(self.host, suspended=True)
        await stage.sleep(self.fault_s)

    async def repair(self, stage: Stage) -> None:
        await stage.suspend_rank(self.host, suspended=False)
