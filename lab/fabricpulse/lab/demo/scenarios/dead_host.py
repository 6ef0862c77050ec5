"""A host dies while a job runs on it: on-call must be notified of the host, and not also of the job that waits."""

from collections.abc import Sequence
from dataclasses import dataclass

from fabricpulse.lab.demo.observed import Observed, find_alert
from fabricpulse.lab.demo.scenario_run import Milestone, Phase, ScenarioRun
from fabricpulse.lab.demo.scenarios.base import Check, Fleet, Outcome, Row, Stage, shown
from fabricpulse.lab.demo.scenarios.one_page import COMPUTING, OnePageScenario

STALL = "FabricCollectiveStalled"
# What follows from it, the job's stall before all, is firing by then: twice the stall and Alertmanager's wait.
WATCHED_S = 60.0
# Prometheus calls no host of a cluster down that it did not reach a minute before (exporterDownFor): it has just been
# started, or has lost the cluster and has it back. An evaluation more, and a slow machine's start.
KNOWN_S = 75.0


@dataclass(frozen=True)
class DeadHostOutcome(Outcome):
    """Times since the fault. other_pages : other notifications."""

    alert_s: float | None
    page_s: float | None
    other_pages: int
    corrupt_bytes: int

    def rows(self) -> Sequence[Row]:
        return (
            ("alert_s", "fault → alert in Alertmanager", shown(self.alert_s, 1, "s", 2)),
            (
                "page_s",
                "fault → page, which waits 10 s for others of its group",
                shown(self.page_s, 1, "s", 2),
            ),
            ("other_pages", "other pages", str(self.other_pages)),
            ("corrupt_bytes", "corrupt bytes", str(self.corrupt_bytes)),
        )

    def checks(self) -> Sequence[Check]:
        return (
            Check("other_pages", "other pages", self.other_pages, 0, ""),
            Check("corrupt_bytes", "corrupt bytes", self.corrupt_bytes, 0, ""),
        )


class DeadHost(OnePageScenario):
    """A host is powered off while the ring runs over it."""

    name = "dead-host"
    summary = "a host dies while a job runs on it"
    # Two hosts must miss it: then the rule does not wait for more scrapes.
    least_hosts = 3
    alert = "FabricHostDown"
    setting = COMPUTING

    def __init__(self, fleet: Fleet) -> None:
        host = fleet.hosts[len(fleet.hosts) // 2]
        super().__init__(fleet, host, "", {"instance": host, "peer": host})

    def phases(self) -> Sequence[Phase]:
        return (
            self.healthy(),
            Phase(
                "fault",
                f"fault: once Prometheus knows the fleet, {self.host} is powered off",
                (
                    *self.notified(KNOWN_S + 30, KNOWN_S + 50),
                    Milestone("stall_known", f"{STALL} of the job is known", self._stalled, KNOWN_S + 50),
                    Milestone("watched", f"{WATCHED_S:.0f} s have passed", self._watched, KNOWN_S + 90),
                ),
                act=self._power_off,
            ),
        )

    async def _power_off(self, stage: Stage) -> None:
        await stage.sleep(KNOWN_S)
        stage.mark("fault")
        await stage.power_off(self.host)
        await stage.sleep(WATCHED_S)
        stage.mark("fault_over")

    def _stalled(self, seen: Observed) -> str | None:
        alert = find_alert(seen.notified, STALL, "", "")
        return None if alert is None else f"{STALL} {alert.state} in Alertmanager"

    def _watched(self, seen: Observed) -> str | None:
        return f"pages: {len(seen.pages)}" if "fault_over" in seen.marks else None

    def outcome(self, run: ScenarioRun, observed: Observed) -> DeadHostOutcome:
        fault = observed.marks.get("fault")
        alert, page = run.result("alert_notified").seen_at, self.page(observed)
        return DeadHostOutcome(
            alert_s=None if alert is None or fault is None else alert - fault,
            page_s=None if page is None or fault is None else page - fault,
            other_pages=self.other_pages(observed),
            corrupt_bytes=observed.workload.corrupt_bytes,
        )
