"""A NIC has a smaller MTU than its peers: small packets pass, large ones do not."""

from fabricpulse.lab.demo.scenarios.base import Stage
from fabricpulse.lab.demo.scenarios.gray_fault import GrayFaultScenario

# Below that of the rails, which is 9,000, and below 1,500, the smallest size that probes try.
MTU_BYTES = 1400


class SmallMtu(GrayFaultScenario):
    """One NIC has an MTU of 1,400 for a minute, then that of the rail again."""

    name = "mtu"
    summary = "a NIC has a smaller MTU than its peers: small packets pass, large ones do not"
    # The alert names a NIC when three edges share it.
    least_hosts = 4
    alert = "FabricMtuBlackHole"
    fault = f"has an MTU of {MTU_BYTES:,} bytes"
    repaired = "has the MTU of its peers again"
    firing_s = 40.0
    # A warning: Alertmanager waits half a minute for others of its group.
    paged_s = 80.0

    async def break_nic(self, stage: Stage) -> None:
        await stage.shrink_mtu(self.host, self.device, MTU_BYTES)

    async def repair_nic(self, stage: Stage) -> None:
        await stage.shrink_mtu(self.host, self.device, 0)
