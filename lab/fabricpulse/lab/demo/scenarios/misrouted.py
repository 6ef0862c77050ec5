"""A route sends a job's packets over a longer path, probes not: on-call must be notified that the paths differ."""

from fabricpulse.lab.demo.scenarios.base import Setting, Stage
from fabricpulse.lab.demo.scenarios.one_page import POLL_S
from fabricpulse.lab.demo.scenarios.shared_path import PODS, QUICK_RULES, QUIET_JOB, SharedPathScenario

DETOUR_MS = 12.0


class Misrouted(SharedPathScenario):
    """The leaf sends TCP from one NIC to another through a device that takes longer; nothing is lost."""

    name = "misrouted"
    summary = "a leaf sends the packets of a job, and not the probes, a way that is longer"
    alert = "FabricInBandSlower"
    fault = f"what the job sends from {{host}} over the spine takes a way that is {DETOUR_MS:.0f} ms longer"
    repaired = "it goes the usual way"
    network = False
    setting = Setting(pods=PODS, spines=1, job=QUIET_JOB, rules=QUICK_RULES, poll_s=POLL_S)
    # One minute for the rule, and until the fastest tenth of the chunks in its window went the longer way.
    fault_s = 150.0
    firing_s = 110.0
    paged_s = 150.0

    async def hold(self, stage: Stage) -> None:
        await stage.detour(self.sender, self.receiver, DETOUR_MS)
        await stage.sleep(self.fault_s)

    async def repair(self, stage: Stage) -> None:
        await stage.detour(self.sender, self.receiver, 0.0)
