"""A leaf loses power: on-call must be notified of the switch, not of the NICs below it, nor of its rail."""

from fabricpulse.lab.demo.scenarios.base import Fleet, Stage
from fabricpulse.lab.demo.scenarios.one_page import COMPUTING
from fabricpulse.lab.demo.scenarios.passing_fault import PassingFaultScenario


class DeadLeaf(PassingFaultScenario):
    """Every cable of the leaf of the first rail goes dark for a while; the ring continues over the other rails."""

    name = "dead-leaf"
    summary = "the leaf of a rail loses its power while a job runs over it"
    # Fewer NICs below a leaf may each have failed.
    least_hosts = 4
    diagnosis = True
    setting = COMPUTING
    alert = "FabricFaultLocated"
    fault = "{host} loses its power"
    repaired = "{host} is back"
    firing_s = 30.0

    def __init__(self, fleet: Fleet) -> None:
        leaf = fleet.leaves[0]
        super().__init__(fleet, leaf, "", {"faulty": leaf, "what": "loss", "network": fleet.devices[0]})

    async def hold(self, stage: Stage) -> None:
        await stage.power_leaf(self.host, on=False)
        await stage.sleep(self.fault_s)

    async def repair(self, stage: Stage) -> None:
        await stage.power_leaf(self.host, on=True)
