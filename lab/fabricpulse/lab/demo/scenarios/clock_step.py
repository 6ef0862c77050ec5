"""Both clocks of a host lose a millisecond, as in a pause of its machine: fleet time there is wrong until it is set."""

from fabricpulse.lab.demo.observed import Observed
from fabricpulse.lab.demo.scenario_run import Milestone
from fabricpulse.lab.demo.scenarios.base import Fleet, Stage
from fabricpulse.lab.demo.scenarios.one_page import COMPUTING
from fabricpulse.lab.demo.scenarios.passing_fault import PassingFaultScenario

LOST_NS = 1_000_000


class ClockStep(PassingFaultScenario):
    """A host loses time once; nobody repairs it: its sidecar sets fleet time anew."""

    name = "clock-step"
    summary = "a host is paused for a millisecond, and its clocks do not know"
    # With two hosts it cannot be known which one lost time.
    least_hosts = 3
    alert = "FabricClockContradicted"
    setting = COMPUTING
    fault = "the clocks of {host} lose a millisecond"
    repaired = "fleet time of {host} has been set anew by itself"
    fault_s = 60.0
    # A warning: Alertmanager waits half a minute for others of its group.
    paged_s = 70.0

    def __init__(self, fleet: Fleet) -> None:
        host = fleet.hosts[len(fleet.hosts) // 2]
        super().__init__(fleet, host, "", {"instance": host})

    async def hold(self, stage: Stage) -> None:
        await stage.lose_time(self.host, LOST_NS)
        await stage.sleep(self.fault_s)

    async def repair(self, stage: Stage) -> None:
        """Nothing is to be done."""

    def over(self) -> tuple[Milestone, ...]:
        # The alert looks back over a quarter of an hour.
        ring, _ = super().over()
        return (ring, Milestone("clocks_in_sync_again", "all clocks in sync again", self._right, 30))

    def _right(self, seen: Observed) -> str | None:
        clock = seen.hosts[self.host].clock
        error, bound = clock.true_error_s, clock.bound_s
        # What the sidecar says now is about the clock as it is now: the step is far longer ago than a round.
        if error is None or bound is None or abs(error) > bound + self._widest(seen):
            return None
        return self._clocks(seen)

    def _widest(self, seen: Observed) -> float:
        """The widest bound of the others, against which the error of this one is seen."""
        return max((host.clock.bound_s or 0.0) for host in seen.hosts.values() if host.name != self.host)
