"""A NIC loses a share of its packets."""

from fabricpulse.lab.demo.scenarios.base import Stage
from fabricpulse.lab.demo.scenarios.gray_fault import GrayFaultScenario

LOSS_PERCENT = 20.0


class GrayLoss(GrayFaultScenario):
    """A fifth of the packets towards one NIC is lost for a minute, then none."""

    name = "gray-loss"
    summary = "a NIC loses a fifth of its packets while its link stays up"
    # The alert names a NIC when three edges share it.
    least_hosts = 4
    alert = "FabricNicLossy"
    fault = f"loses {LOSS_PERCENT:.0f} % of the packets that are sent to it"
    repaired = "gets every packet"
    firing_s = 30.0
    paged_s = 50.0

    async def break_nic(self, stage: Stage) -> None:
        await stage.lose(self.host, self.device, LOSS_PERCENT)

    async def repair_nic(self, stage: Stage) -> None:
        await stage.lose(self.host, self.device, 0.0)
