"""A scenario run as lines with times, for logs and for terminals that cannot be drawn on."""

import time
from collections.abc import Callable

from fabricpulse.lab.demo.observed import AlertSeen, Observed
from fabricpulse.lab.demo.scenario_run import Event


class Lines:
    """Prints events of the run, alerts and actions as they come. Times are seconds since the demo was started."""

    def __init__(self, write: Callable[[str], None], started: float) -> None:
        self._write = write
        self._started = started
        self._alerts: dict[AlertSeen, str] = {}
        self._actions: dict[str, str] = {}
        self._pages = 0
        self._last_status = 0.0

    def line(self, kind: str, text: str, at: float | None = None) -> None:
        """One line: time, what kind of thing, text."""
        now = time.monotonic() if at is None else at
        self._write(f"{now - self._started:7.2f}s  {kind:<9} {text}")

    def event(self, event: Event) -> None:
        """A phase begins, a milestone was seen or missed, the run ends."""
        if event.kind == "phase":
            self.line("PHASE", event.text, event.at)
        elif event.kind in ("seen", "missed") and event.result is not None:
            mark = "✓" if event.kind == "seen" else "✗"
            self.line("milestone", f"{mark} {event.result.milestone.title}: {event.text}", event.at)
        else:
            self.line("END", event.text, event.at)

    def update(self, observed: Observed, now: float) -> None:
        """Prints what is new among alerts and actions, and once every five seconds how the fleet is."""
        current = dict.fromkeys((a for a in observed.firing if a.state == "firing"), "Prometheus")
        current |= dict.fromkeys(observed.notified, "Alertmanager")
        for alert, where in current.items():
            if alert not in self._alerts:
                self.line(
                    "alert", f"{where}: {alert.name} {alert.instance} {alert.device} {alert.state}", now
                )
        for alert, where in self._alerts.items():
            if alert not in current:
                self.line("alert", f"{where}: {alert.name} {alert.instance} {alert.device} over", now)
        self._alerts = current
        for page, at in list(observed.pages.items())[self._pages :]:
            self.line("page", f"on-call is notified: {page}", at)
        self._pages = len(observed.pages)
        for action in observed.actions.values():
            if self._actions.get(action.id) != action.state:
                self._actions[action.id] = action.state
                text = (
                    f"{action.action} {action.instance} {action.device}: {action.state} (on {action.alert})"
                )
                self.line("action", text, now)
        if now - self._last_status >= 5.0 and observed.workload.rounds:
            self._last_status = now
            self.line("status", self._status(observed), now)

    @staticmethod
    def _status(observed: Observed) -> str:
        workload = observed.workload
        bad = [
            f"{host.name}/{nic.device} {nic.colour}" for host, nic in observed.nics() if nic.colour != "green"
        ]
        bounds = [h.clock.bound_s for h in observed.hosts.values() if h.clock.bound_s is not None]
        return ", ".join(
            [
                f"ring {(workload.bandwidth.last or 0.0) / 1e6:.0f} MB/s in round {workload.rounds}",
                f"clock error bound {max(bounds) * 1e6:.0f} µs" if bounds else "no clock yet",
                "NICs: " + (" ".join(bad) if bad else "all green"),
            ]
        )
