"""Scenarios that end with one page: on-call is notified of the fault, and of nothing that follows from it."""

from typing import ClassVar

from fabricpulse.lab.demo.observed import Observed, PageSeen, find_alert
from fabricpulse.lab.demo.scenario_run import Milestone
from fabricpulse.lab.demo.scenarios.base import Fleet, Setting
from fabricpulse.lab.demo.scenarios.ring import RingScenario
from fabricpulse.lab.demo.workload import Job

# Alerts and pages take seconds, and no figure here is in milliseconds.
POLL_S = 1.0
# A job that computes for most of the time, where its bandwidth is not measured: the bytes of a ring that sends without
# a pause are a third of a fleet's processor time.
COMPUTING = Setting(job=Job(compute_ms=500), poll_s=POLL_S)


class OnePageScenario(RingScenario):
    """alert : the one that on-call must get. host, device : where it is; no device where it is the host or a job.

    about : labels of the alert as a page shows them.
    """

    alert: ClassVar[str]

    def __init__(self, fleet: Fleet, host: str, device: str, about: dict[str, str]) -> None:
        super().__init__(fleet)
        self.host = host
        self.device = device
        self._instance = about.get("instance", "")
        self._about = tuple(sorted(about.items()))
        self._named = f"{self.alert} for {self.host} {device}".rstrip()

    def notified(self, firing_s: float, paged_s: float) -> tuple[Milestone, ...]:
        """From the rule to the page; how many seconds after the phase began these must have come."""
        return (
            Milestone("alert_firing", f"{self.alert} firing in Prometheus", self._firing, firing_s),
            Milestone("alert_notified", f"{self.alert} active in Alertmanager", self._notified, firing_s + 5),
            Milestone("paged", "on-call is notified of the fault", self._paged, paged_s),
        )

    def active_alert(self, seen: Observed) -> str | None:
        """The alert in Prometheus or Alertmanager, None if it is in neither."""
        found = find_alert((*seen.firing, *seen.notified), self.alert, self._instance, self.device)
        return None if found is None else self._named

    def page(self, seen: Observed) -> float | None:
        """When on-call was notified, None if not yet."""
        return min((at for page, at in seen.pages.items() if self._is_right(page)), default=None)

    def other_pages(self, seen: Observed) -> int:
        """The number of other notifications."""
        return sum(not self._is_right(page) for page in seen.pages)

    def _firing(self, seen: Observed) -> str | None:
        alert = find_alert(seen.firing, self.alert, self._instance, self.device)
        return self._named if alert and alert.state == "firing" else None

    def _notified(self, seen: Observed) -> str | None:
        alert = find_alert(seen.notified, self.alert, self._instance, self.device)
        return f"{self.alert} {alert.state} for {self.host} {self.device}".rstrip() if alert else None

    def _is_right(self, page: PageSeen) -> bool:
        return (page.name, page.about) == (self.alert, self._about)

    def _paged(self, seen: Observed) -> str | None:
        return None if self.page(seen) is None else self._named
