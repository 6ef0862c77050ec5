"""The way to a NIC has become slow: its queue grows and overflows, and the job moves to the other NICs of the host."""

from fabricpulse.lab.demo.scenarios.base import Setting, Stage
from fabricpulse.lab.demo.scenarios.gray_fault import GrayFaultScenario

# A fifth of what each NIC of the demo has.
SLOW_MBIT = 25.0


class SlowPath(GrayFaultScenario):
    """The link of one NIC has a fifth of its speed for a while, then all of it again."""

    name = "slow-path"
    summary = "the link of a NIC has a fifth of its speed: packets wait, some are lost"
    # The alert names a NIC when three edges share it.
    least_hosts = 4
    alert = "FabricNicSlow"
    fault = f"gets no more than {SLOW_MBIT:.0f} Mbit/s"
    repaired = "gets all that its link can carry"
    fault_s = 110.0
    firing_s = 60.0
    # A warning: Alertmanager waits half a minute for others of its group.
    paged_s = 100.0
    # Its end is a milestone, which need not take two minutes more.
    setting = Setting(rules={"nicSlowKeepFiring": "30s"})

    async def break_nic(self, stage: Stage) -> None:
        await stage.slow(self.host, self.device, SLOW_MBIT)

    async def repair_nic(self, stage: Stage) -> None:
        await stage.slow(self.host, self.device, 0.0)
