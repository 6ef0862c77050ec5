"""One rank of a job is late each round: on-call must be notified of that rank, though in a ring all ranks wait."""

from fabricpulse.lab.demo.scenarios.base import Fleet, Stage
from fabricpulse.lab.demo.scenarios.passing_fault import PassingFaultScenario
from fabricpulse.lab.demo.workload import WORKLOAD


class Straggler(PassingFaultScenario):
    """A rank does nothing for two seconds before each round, for a while, then keeps up again."""

    name = "straggler"
    summary = "a rank of the job enters each round two seconds late, and the others wait for it"
    # In a ring of two each waits for the other alone.
    least_hosts = 3
    alert = "FabricStraggler"
    fault = "the rank on {host} enters each round two seconds late"
    repaired = "the rank is as quick as the others"
    fault_s = 80.0
    firing_s = 60.0
    # A warning: Alertmanager waits half a minute for others of its group.
    paged_s = 100.0

    def __init__(self, fleet: Fleet) -> None:
        host = fleet.hosts[len(fleet.hosts) // 2]
        super().__init__(fleet, host, "", {"peer": host, "workload": WORKLOAD})

    async def hold(self, stage: Stage) -> None:
        await stage.straggle(self.host)
        await stage.sleep(self.fault_s)

    async def repair(self, stage: Stage) -> None:
        await stage.straggle(self.host)
