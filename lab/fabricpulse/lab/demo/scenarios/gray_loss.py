"""A NIC loses a share of its packets: its link stays up, and what looks at links sees nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from fabricpulse.lab.demo.observed import Observed, PageSeen, find_alert
from fabricpulse.lab.demo.scenarios.base import Fleet, Outcome, Promise, Row, Stage, mean, shown
from fabricpulse.lab.demo.scenarios.ring import RingScenario
from fabricpulse.lab.demo.story import Milestone, Phase, Story

ALERT = "FabricNicLossy"
LOSS_PERCENT = 20.0
# How long the fault lasts: what follows from it, on other NICs and hosts, has shown by then.
FAULT_S = 60.0
AFTER_S = 4.0
RECOVERED_SHARE = 0.8


@dataclass(frozen=True)
class GrayLossOutcome(Outcome):
    """Times since the fault; bandwidths are bytes per second. other_pages : what else people were told of."""

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
                "fault → page, which waits 10 s for others of its group",
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
            ("bandwidth_during", "… while packets were lost", shown(self.bandwidth_during, 1e-6, "MB/s", 1)),
            ("bandwidth_after", "… after it was mended", shown(self.bandwidth_after, 1e-6, "MB/s", 1)),
        )

    def promises(self) -> Sequence[Promise]:
        return (
            Promise("other_pages", "other pages", self.other_pages, 0, ""),
            Promise("errors", "errors returned to the workload", self.errors, 0, ""),
            Promise("corrupt_bytes", "corrupt bytes", self.corrupt_bytes, 0, ""),
        )


class GrayLoss(RingScenario):
    """A fifth of the packets towards one NIC is lost for a minute, then none."""

    name = "gray-loss"
    summary = "a NIC loses a fifth of its packets while its link stays up"

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.host = fleet.hosts[1 % len(fleet.hosts)]
        self.device = fleet.devices[0]
        self._about = (("device", self.device), ("instance", self.host))

    def phases(self) -> Sequence[Phase]:
        return (
            self.healthy(),
            Phase(
                "fault",
                f"fault: {LOSS_PERCENT:.0f} % of the packets towards {self.device} on {self.host} are lost",
                (
                    Milestone("alert_firing", f"{ALERT} firing in Prometheus", self._firing, 30),
                    Milestone("alert_notified", f"{ALERT} active in Alertmanager", self._notified, 35),
                    Milestone("paged", "who is on call is told which NIC it is", self._paged, 50),
                    Milestone("workload_survived", "the ring goes on", self._survived, 60),
                    Milestone("link_stayed_up", "the NIC stayed connected all the while", self._stayed, 90),
                ),
                act=self._lose,
            ),
            Phase(
                "mended",
                f"mended: {self.device} on {self.host} gets every packet",
                (
                    Milestone("bandwidth_recovered", "bandwidth as before the fault", self._recovered, 120),
                    Milestone("alert_resolved", f"{ALERT} resolved", self._resolved, 120),
                ),
                act=self._mend,
            ),
        )

    async def _lose(self, stage: Stage) -> None:
        stage.mark("fault")
        await stage.lose(self.host, self.device, LOSS_PERCENT)
        await stage.sleep(FAULT_S)
        stage.mark("fault_over")

    async def _mend(self, stage: Stage) -> None:
        await stage.lose(self.host, self.device, 0.0)
        stage.mark("mended")

    def _firing(self, seen: Observed) -> str | None:
        alert = find_alert(seen.firing, ALERT, self.host, self.device)
        return f"{ALERT} for {self.host} {self.device}" if alert and alert.state == "firing" else None

    def _notified(self, seen: Observed) -> str | None:
        alert = find_alert(seen.notified, ALERT, self.host, self.device)
        return f"{ALERT} {alert.state} for {self.host} {self.device}" if alert else None

    def _page(self, seen: Observed) -> float | None:
        """When people were told, None if they have not been."""
        told = [at for page, at in seen.pages.items() if self._is_right(page)]
        return min(told, default=None)

    def _is_right(self, page: PageSeen) -> bool:
        return (page.name, page.about) == (ALERT, self._about)

    def _paged(self, seen: Observed) -> str | None:
        return None if self._page(seen) is None else f"{ALERT} for {self.host} {self.device}"

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
        return f"fabricpulse_nic_connected 1 for {FAULT_S:.0f} s"

    def _recovered(self, seen: Observed) -> str | None:
        mended, before = seen.marks.get("mended"), seen.marks.get("baseline_mean")
        now = seen.workload.last_line_at
        if mended is None or before is None or now is None or now - mended < AFTER_S:
            return None
        after = mean(seen.workload.bandwidth.between(now - AFTER_S, now))
        if after is None or after < RECOVERED_SHARE * before:
            return None
        seen.marks.setdefault("after_start", now - AFTER_S)
        seen.marks.setdefault("after_end", now)
        return f"bus bandwidth {after / 1e6:.0f} MB/s, {100 * after / before:.0f} % of the bandwidth before"

    def _resolved(self, seen: Observed) -> str | None:
        if not (seen.prometheus_answers and seen.alertmanager_answers) or "mended" not in seen.marks:
            return None
        if find_alert((*seen.firing, *seen.notified), ALERT, self.host, self.device):
            return None
        return f"no {ALERT} for {self.host} {self.device} in Prometheus or Alertmanager any more"

    def outcome(self, story: Story, observed: Observed) -> GrayLossOutcome:
        fault, over = observed.marks.get("fault"), observed.marks.get("fault_over")
        alert, page = story.result("alert_notified").seen_at, self._page(observed)
        return GrayLossOutcome(
            alert_s=None if alert is None or fault is None else alert - fault,
            page_s=None if page is None or fault is None else page - fault,
            other_pages=sum(not self._is_right(each) for each in observed.pages),
            errors=observed.workload.errors + len(observed.workload.exited),
            corrupt_bytes=observed.workload.corrupt_bytes,
            bandwidth_before=self.bandwidth(observed, "baseline", fault),
            bandwidth_during=self.bandwidth(observed, "fault", over),
            bandwidth_after=self.bandwidth(observed, "after_start", observed.marks.get("after_end")),
        )
