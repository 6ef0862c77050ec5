"""One rank of a job stops: people must be told of its process, and of nothing that the network seems to do."""

from collections.abc import Sequence
from dataclasses import dataclass

from fabricpulse.lab.demo.observed import Observed
from fabricpulse.lab.demo.scenarios.base import Fleet, Outcome, Promise, Row, Stage, shown
from fabricpulse.lab.demo.scenarios.one_page import OnePageScenario
from fabricpulse.lab.demo.story import Milestone, Phase, Story
from fabricpulse.lab.demo.workload import WORKLOAD

HANG_S = 40.0


@dataclass(frozen=True)
class HangOutcome(Outcome):
    """Times since the fault. other_pages : what else people were told of."""

    alert_s: float | None
    page_s: float | None
    other_pages: int
    errors: int
    corrupt_bytes: int

    def rows(self) -> Sequence[Row]:
        return (
            ("alert_s", "fault → alert in Alertmanager", shown(self.alert_s, 1, "s", 2)),
            ("page_s", "fault → page, which waits for others of its group", shown(self.page_s, 1, "s", 2)),
            ("other_pages", "other pages", str(self.other_pages)),
            ("errors", "errors returned to the workload", str(self.errors)),
            ("corrupt_bytes", "corrupt bytes", str(self.corrupt_bytes)),
        )

    def promises(self) -> Sequence[Promise]:
        return (
            Promise("other_pages", "other pages", self.other_pages, 0, ""),
            Promise("errors", "errors returned to the workload", self.errors, 0, ""),
            Promise("corrupt_bytes", "corrupt bytes", self.corrupt_bytes, 0, ""),
        )


class Hang(OnePageScenario):
    """The process of one rank is stopped for a while, then goes on."""

    name = "hang"
    summary = "a rank of the job stops, and the others wait for it"
    alert = "FabricCollectiveStalled"

    def __init__(self, fleet: Fleet) -> None:
        host = fleet.hosts[len(fleet.hosts) // 2]
        super().__init__(fleet, host, "", {"peer": host, "workload": WORKLOAD})

    def phases(self) -> Sequence[Phase]:
        return (
            self.healthy(),
            Phase(
                "fault",
                f"fault: the process of the rank on {self.host} is stopped",
                (
                    *self.told(20, 35),
                    Milestone("watched", f"{HANG_S:.0f} s have passed", self._watched, 70),
                ),
                act=self._suspend,
            ),
            Phase(
                "mended",
                "mended: the process goes on",
                (
                    Milestone("ring_goes_on", "the ring goes on, without an error", self._goes_on, 30),
                    Milestone("alert_resolved", f"{self.alert} resolved", self._resolved, 60),
                ),
                act=self._resume,
            ),
        )

    async def _suspend(self, stage: Stage) -> None:
        stage.mark("fault")
        await stage.suspend_rank(self.host, suspended=True)
        await stage.sleep(HANG_S)
        stage.mark("fault_over")

    async def _resume(self, stage: Stage) -> None:
        await stage.suspend_rank(self.host, suspended=False)
        stage.mark("mended")

    def _watched(self, seen: Observed) -> str | None:
        return f"pages: {len(seen.pages)}" if "fault_over" in seen.marks else None

    def _goes_on(self, seen: Observed) -> str | None:
        mended = seen.marks.get("mended")
        rounds = None if mended is None else seen.workload.rounds_at(mended)
        if rounds is None or seen.workload.rounds < rounds + 3:
            return None
        if seen.workload.errors or seen.workload.corrupt_bytes or seen.workload.exited:
            return None
        return f"{seen.workload.rounds - rounds} rounds completed since, no error"

    def _resolved(self, seen: Observed) -> str | None:
        if not (seen.prometheus_answers and seen.alertmanager_answers) or "mended" not in seen.marks:
            return None
        return None if self.heard_of(seen) else f"no {self.alert} any more"

    def outcome(self, story: Story, observed: Observed) -> HangOutcome:
        fault = observed.marks.get("fault")
        alert, page = story.result("alert_notified").seen_at, self.page(observed)
        return HangOutcome(
            alert_s=None if alert is None or fault is None else alert - fault,
            page_s=None if page is None or fault is None else page - fault,
            other_pages=self.other_pages(observed),
            errors=observed.workload.errors + len(observed.workload.exited),
            corrupt_bytes=observed.workload.corrupt_bytes,
        )
