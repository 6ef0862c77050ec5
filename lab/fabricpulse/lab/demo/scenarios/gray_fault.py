"""A NIC does worse, its link stays up, and what looks at links sees nothing; then it is repaired."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fabricpulse.lab.demo.observed import Observed
from fabricpulse.lab.demo.scenario_run import Milestone, Phase, ScenarioRun
from fabricpulse.lab.demo.scenarios.base import Check, Fleet, Outcome, Row, Stage, mean, shown
from fabricpulse.lab.demo.scenarios.one_page import OnePageScenario

# How long the fault lasts: what follows from it, on other NICs and hosts, has shown by then.
FAULT_S = 60.0
AFTER_S = 4.0
RECOVERED_SHARE = 0.8


@dataclass(frozen=True)
class GrayFaultOutcome(Outcome):
    """Times since the fault; bandwidths are bytes per second. other_pages : other notifications."""

    alert_s: float | None
    page_s: float | None
    other_pages: int
    errors: int
    corrupt_bytes: int
    bandwidth_before: float | None
    bandwidth_during: float | None
    bandwidth_after: float | None

    def rows(self) -> Sequence[Row]:
        return (
            ("alert_s", "fault → alert in Alertmanager", shown(self.alert_s, 1, "s", 2)),
            (
                "page_s",
                "fault → page, which waits for others of its group",
                shown(self.page_s, 1, "s", 2),
            ),
            ("other_pages", "other pages", str(self.other_pages)),
            ("errors", "errors returned to the workload", str(self.errors)),
            ("corrupt_bytes", "corrupt bytes", str(self.corrupt_bytes)),
            (
                "bandwidth_before",
                "bus bandwidth before the fault",
                shown(self.bandwidth_before, 1e-6, "MB/s", 1),
            ),
            ("bandwidth_during", "… while it was at fault", shown(self.bandwidth_during, 1e-6, "MB/s", 1)),
            ("bandwidth_after", "… after the repair", shown(self.bandwidth_after, 1e-6, "MB/s", 1)),
        )

    def checks(self) -> Sequence[Check]:
        return (
            Check("other_pages", "other pages", self.other_pages, 0, ""),
            Check("errors", "errors returned to the workload", self.errors, 0, ""),
            Check("corrupt_bytes", "corrupt bytes", self.corrupt_bytes, 0, ""),
        )


class GrayFaultScenario(OnePageScenario):
    """A fault of one NIC that leaves its link up, for `fault_s`, then none.

    fault : in words. firing_s, paged_s : how long the rule and the page may take.
    """

    fault: ClassVar[str]
    repaired: ClassVar[str]
    fault_s: ClassVar[float] = FAULT_S
    firing_s: ClassVar[float]
    paged_s: ClassVar[float]

    def __init__(self, fleet: Fleet) -> None:
        host, device = fleet.hosts[1 % len(fleet.hosts)], fleet.devices[0]
        # The rails of the demo's fleet have the names of the devices.
        super().__init__(fleet, host, device, {"instance": host, "device": device, "network": device})

    @abstractmethod
    async def break_nic(self, stage: Stage) -> None:
        """Begins the fault."""

    @abstractmethod
    async def repair_nic(self, stage: Stage) -> None:
        """Ends it."""

    def phases(self) -> Sequence[Phase]:
        nic = f"{self.device} on {self.host}"
        return (
            self.healthy(),
            Phase(
                "fault",
                f"fault: {nic} {self.fault}",
                (
                    *self.notified(self.firing_s, self.paged_s),
                    Milestone("workload_survived", "the ring continues", self._survived, 60),
                    Milestone(
                        "link_stayed_up",
                        "the NIC stayed connected all the while",
                        self._stayed,
                        self.fault_s + 30,
                    ),
                ),
                act=self._break,
            ),
            Phase(
                "repaired",
                f"repaired: {nic} {self.repaired}",
                (
                    Milestone("bandwidth_recovered", "bandwidth as before the fault", self._recovered, 120),
                    Milestone("alert_resolved", f"{self.alert} resolved", self._resolved, 120),
                ),
                act=self._repair,
            ),
        )

    async def _break(self, stage: Stage) -> None:
        stage.mark("fault")
        await self.break_nic(stage)
        await stage.sleep(self.fault_s)
        stage.mark("fault_over")

    async def _repair(self, stage: Stage) -> None:
        await self.repair_nic(stage)
        stage.mark("repaired")

    def _survived(self, seen: Observed) -> str | None:
        fault = seen.marks.get("fault")
        rounds = None if fault is None else seen.workload.rounds_at(fault)
        if rounds is None or seen.workload.rounds < rounds + 3:
            return None
        if seen.workload.errors or seen.workload.corrupt_bytes or seen.workload.exited:
            return None
        return f"{seen.workload.rounds - rounds} rounds completed since the fault, no error"

    def _stayed(self, seen: Observed) -> str | None:
        nic = seen.nic(self.host, self.device)
        if nic.connected is not True:
            seen.marks["was_disconnected"] = 1.0
        if "fault_over" not in seen.marks or "was_disconnected" in seen.marks:
            return None
        return f"fabricpulse_nic_connected 1 for {self.fault_s:.0f} s"

    def _recovered(self, seen: Observed) -> str | None:
        repaired_at, before = seen.marks.get("repaired"), seen.marks.get("baseline_mean")
        now = seen.workload.last_line_at
        if repaired_at is None or before is None or now is None or now - repaired_at < AFTER_S:
            return None
        after = mean(seen.workload.bandwidth.between(now - AFTER_S, now))
        if after is None or after < RECOVERED_SHARE * before:
            return None
        seen.marks.setdefault("after_start", now - AFTER_S)
        seen.marks.setdefault("after_end", now)
        return f"bus bandwidth {after / 1e6:.0f} MB/s, {100 * after / before:.0f} % of the bandwidth before"

    def _resolved(self, seen: Observed) -> str | None:
        if not (seen.prometheus_answers and seen.alertmanager_answers) or "repaired" not in seen.marks:
            return None
        named = self.active_alert(seen)
        return None if named else f"no {self.alert} for {self.host} {self.device} any more"

    def outcome(self, run: ScenarioRun, observed: Observed) -> GrayFaultOutcome:
        fault, over = observed.marks.get("fault"), observed.marks.get("fault_over")
        alert, page = run.result("alert_notified").seen_at, self.page(observed)
        return GrayFaultOutcome(
            alert_s=None if alert is None or fault is None else alert - fault,
            page_s=None if page is None or fault is None else page - fault,
            other_pages=self.other_pages(observed),
            errors=observed.workload.errors + len(observed.workload.exited),
            corrupt_bytes=observed.workload.corrupt_bytes,
            bandwidth_before=self.bandwidth(observed, "baseline", fault),
            bandwidth_during=self.bandwidth(observed, "fault", over),
            bandwidth_after=self.bandwidth(observed, "after_start", observed.marks.get("after_end")),
        )
