"""All ranks of an all-to-all send one of them several times as much as before: on-call must get the NIC at which they
meet, though each flow into it is slow and the probes to it wait, too."""

from fabricpulse.lab.demo.observed import Observed
from fabricpulse.lab.demo.scenario_run import Milestone, Phase
from fabricpulse.lab.demo.scenarios.base import Fleet, Setting, Stage
from fabricpulse.lab.demo.scenarios.one_page import POLL_S
from fabricpulse.lab.demo.scenarios.passing_fault import PassingFaultScenario
from fabricpulse.lab.demo.scenarios.shared_path import QUICK_RULES
from fabricpulse.lab.demo.workload import WORKLOAD, Job

# Host whose rank is the hot one, and others beside it: as many senders as the alert asks for.
HOT, SENDERS = 1, 3
SKEW = 6
# The blocks are small, so that flows that share no port with the hot NIC are quick; with so many rounds under way they
# fill each NIC all the same: of a NIC that receives far more than it ever did, nobody knows whether it is full or slow.
BLOCK_BYTES, ROUNDS_UNDER_WAY = 16 << 10, 6
# Half of the queue of a switch port. What a sender has for others waits some milliseconds behind what the hot one gets.
SLOW_S = 0.01
PEAK_AGE_S = 10
# Two windows of the rate and PEAK_AGE_S: then the rules know what each NIC usually receives.
KNOWN_S = 40.0


class Incast(PassingFaultScenario):
    """The tokens of an expert that many choose: all hosts send them to one NIC, whose switch port cannot pass them."""

    name = "incast"
    summary = "ranks of an all-to-all send one of them far more than the others: they meet at its NIC"
    least_hosts = SENDERS + 1
    alert = "FabricIncast"
    fault = f"each rank sends the one on {{host}} {SKEW} times as much as the others"
    repaired = "each rank sends every other one the same"
    fault_s = 100.0
    firing_s = 70.0
    # A warning: Alertmanager waits half a minute for others of its group.
    paged_s = 110.0
    setting = Setting(
        # Over one NIC of each host: with two the plugin would spread the load, and both would be full.
        job=Job(
            pattern="all-to-all",
            hot=HOT,
            skew=SKEW,
            rails=1,
            round_bytes=SENDERS * BLOCK_BYTES,
            depth=ROUNDS_UNDER_WAY,
        ),
        rules=QUICK_RULES | {"contentionDelaySeconds": SLOW_S, "usualPeakAge": f"{PEAK_AGE_S}s"},
        poll_s=POLL_S,
    )

    def __init__(self, fleet: Fleet) -> None:
        host, device = fleet.hosts[HOT], fleet.devices[0]
        about = {
            "instance": host,
            "device": device,
            "peer": host,
            "peer_device": device,
            "workload": WORKLOAD,
        }
        super().__init__(fleet, host, device, about)

    def healthy(self) -> Phase:
        """Until the rules know what a NIC usually receives."""
        healthy = super().healthy()
        known = Milestone("peak_known", f"the job has run for {KNOWN_S:.0f} s", self._known, KNOWN_S + 50)
        return Phase(healthy.name, healthy.title, (*healthy.milestones, known))

    async def hold(self, stage: Stage) -> None:
        await self._skew(stage)
        await stage.sleep(self.fault_s)

    async def repair(self, stage: Stage) -> None:
        await self._skew(stage)

    async def _skew(self, stage: Stage) -> None:
        for host in self.fleet.hosts:
            if host != self.host:
                await stage.skew(host)

    def _known(self, seen: Observed) -> str | None:
        traffic, now = self._traffic(seen), seen.workload.last_line_at
        if traffic is None or now is None:
            return None
        return traffic if now - seen.marks.setdefault("carries", now) >= KNOWN_S else None
