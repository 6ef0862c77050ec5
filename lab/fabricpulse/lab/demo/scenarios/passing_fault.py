"""A fault of a process or of a clock that passes: on-call is notified once, and the ring continues."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fabricpulse.lab.demo.observed import Observed
from fabricpulse.lab.demo.scenario_run import Milestone, Phase, ScenarioRun
from fabricpulse.lab.demo.scenarios.base import Check, Outcome, Row, Setting, Stage, shown
from fabricpulse.lab.demo.scenarios.one_page import POLL_S, OnePageScenario


@dataclass(frozen=True)
class PassingFaultOutcome(Outcome):
    """Times since the fault. other_pages : other notifications."""

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

    def checks(self) -> Sequence[Check]:
        return (
            Check("other_pages", "other pages", self.other_pages, 0, ""),
            Check("errors", "errors returned to the workload", self.errors, 0, ""),
            Check("corrupt_bytes", "corrupt bytes", self.corrupt_bytes, 0, ""),
        )


class PassingFaultScenario(OnePageScenario):
    """A fault at `self.host` for FAULT_S, then none.

    fault, repaired : texts. firing_s, paged_s : how long the rule and the page may take.
    """

    setting: ClassVar[Setting] = Setting(poll_s=POLL_S)
    fault: ClassVar[str]
    repaired: ClassVar[str]
    fault_s: ClassVar[float] = 40.0
    firing_s: ClassVar[float] = 20.0
    paged_s: ClassVar[float] = 35.0

    @abstractmethod
    async def hold(self, stage: Stage) -> None:
        """Begins the fault; returns when it has lasted for `fault_s`."""

    @abstractmethod
    async def repair(self, stage: Stage) -> None:
        """Ends it."""

    def phases(self) -> Sequence[Phase]:
        return (
            self.healthy(),
            Phase(
                "fault",
                f"fault: {self.fault.format(host=self.host)}",
                (
                    *self.notified(self.firing_s, self.paged_s),
                    *self.remediated(),
                    Milestone(
                        "watched",
                        f"{self.fault_s:.0f} s have passed",
                        self._watched,
                        max(self.fault_s, self.paged_s) + 30,
                    ),
                ),
                act=self._break,
            ),
            Phase(
                "repaired", f"repaired: {self.repaired.format(host=self.host)}", self.over(), act=self._repair
            ),
        )

    def remediated(self) -> tuple[Milestone, ...]:
        """What remediation makes of it meanwhile."""
        return ()

    def over(self) -> tuple[Milestone, ...]:
        """What must be seen when it has been repaired."""
        return (
            Milestone("ring_goes_on", "the ring continues, without an error", self._keeps_running, 30),
            Milestone("alert_resolved", f"{self.alert} resolved", self._resolved, 90),
        )

    async def _break(self, stage: Stage) -> None:
        stage.mark("fault")
        await self.hold(stage)
        stage.mark("fault_over")

    async def _repair(self, stage: Stage) -> None:
        await self.repair(stage)
        stage.mark("repaired")

    def _watched(self, seen: Observed) -> str | None:
        return f"pages: {len(seen.pages)}" if "fault_over" in seen.marks else None

    def _keeps_running(self, seen: Observed) -> str | None:
        repaired_at = seen.marks.get("repaired")
        rounds = None if repaired_at is None else seen.workload.rounds_at(repaired_at)
        if rounds is None or seen.workload.rounds < rounds + 3:
            return None
        if seen.workload.errors or seen.workload.corrupt_bytes or seen.workload.exited:
            return None
        return f"{seen.workload.rounds - rounds} rounds completed since, no error"

    def _resolved(self, seen: Observed) -> str | None:
        if not (seen.prometheus_answers and seen.alertmanager_answers) or "repaired" not in seen.marks:
            return None
        return None if self.active_alert(seen) else f"no {self.alert} any more"

    def outcome(self, run: ScenarioRun, observed: Observed) -> PassingFaultOutcome:
        fault = observed.marks.get("fault")
        alert, page = run.result("alert_notified").seen_at, self.page(observed)
        return PassingFaultOutcome(
            alert_s=None if alert is None or fault is None else alert - fault,
            page_s=None if page is None or fault is None else page - fault,
            other_pages=self.other_pages(observed),
            errors=observed.workload.errors + len(observed.workload.exited),
            corrupt_bytes=observed.workload.corrupt_bytes,
        )
