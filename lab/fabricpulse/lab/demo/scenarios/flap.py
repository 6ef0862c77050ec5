"""A NIC flaps: its link goes down and up several times, then stays up."""

from collections.abc import Sequence
from dataclasses import dataclass

from fabricpulse.lab.demo.names import DEMO, MESH
from fabricpulse.lab.demo.observed import Observed, find_alert
from fabricpulse.lab.demo.scenario_run import Milestone, Phase, ScenarioRun
from fabricpulse.lab.demo.scenarios.base import Check, Fleet, Outcome, Row, Stage, mean, shown
from fabricpulse.lab.demo.scenarios.one_page import OnePageScenario
from fabricpulse.lab.demo.scenarios.ring import IDLE_BYTES_PER_S

ALERT = "FabricNicFlapping"

# One down/up cycle of the link. Long enough for the mesh to see each disconnect (which takes about half a
# second), short enough for three of them to fit into the alert's window several times over.
DOWN_S = 1.2
UP_S = 1.3
# The flap continues until the NIC has been taken out of service, at least and at most this often.
FLAPS_MIN = 4
FLAPS_MAX = 16

DURING_S = 3.0
AFTER_S = 4.0
# Recovered means at least this share of the bandwidth before the fault.
RECOVERED_SHARE = 0.8


@dataclass(frozen=True)
class FlapOutcome(Outcome):
    """Times since the fault; bandwidths are bytes per second. other_pages : other notifications.

    detect_late_s, stall_late_ms : by how much this machine can have delayed the figure beside them (lateness.py).
    """

    detect_s: float | None
    alert_s: float | None
    action_s: float | None
    stall_ms: float | None
    errors: int
    corrupt_bytes: int
    bandwidth_before: float | None
    bandwidth_during: float | None
    bandwidth_after: float | None
    detect_late_s: float = 0.0
    stall_late_ms: float = 0.0
    page_s: float | None = None
    other_pages: int = 0

    def rows(self) -> Sequence[Row]:
        return (
            ("detect_s", "fault → nic_connected 0 in the exporter", shown(self.detect_s, 1, "s", 2)),
            ("alert_s", "fault → alert in Alertmanager", shown(self.alert_s, 1, "s", 2)),
            ("action_s", "fault → NIC taken out of service", shown(self.action_s, 1, "s", 2)),
            (
                "page_s",
                "fault → page, which waits for others of its group",
                shown(self.page_s, 1, "s", 2),
            ),
            ("other_pages", "other pages", str(self.other_pages)),
            ("stall_ms", "workload stall (longest gap between chunks)", shown(self.stall_ms, 1, "ms", 0)),
            ("errors", "errors returned to the workload", str(self.errors)),
            ("corrupt_bytes", "corrupt bytes", str(self.corrupt_bytes)),
            (
                "bandwidth_before",
                "bus bandwidth before the fault",
                shown(self.bandwidth_before, 1e-6, "MB/s", 1),
            ),
            (
                "bandwidth_during",
                "… with the NIC out of service",
                shown(self.bandwidth_during, 1e-6, "MB/s", 1),
            ),
            ("bandwidth_after", "… after its return", shown(self.bandwidth_after, 1e-6, "MB/s", 1)),
        )

    def checks(self) -> Sequence[Check]:
        detected = "fault to nic_connected 0 in the exporter"
        stalled = "longest gap between completed chunks"
        return (
            Check("detect_s", detected, self.detect_s, 1.0, "s", self.detect_late_s),
            Check("stall_ms", stalled, self.stall_ms, 300.0, "ms", self.stall_late_ms),
            Check("other_pages", "other pages", self.other_pages, 0, ""),
            Check("errors", "errors returned to the workload", self.errors, 0, ""),
            Check("corrupt_bytes", "corrupt bytes", self.corrupt_bytes, 0, ""),
        )


class Flap(OnePageScenario):
    """The link of one NIC goes down and up until it has been taken out of service, then stays up."""

    alert = ALERT
    name = "flap"
    summary = "the link of one NIC goes down and up several times, then stays up"

    def __init__(self, fleet: Fleet) -> None:
        host, device = fleet.hosts[1 % len(fleet.hosts)], fleet.devices[0]
        # The rails of the demo's fleet have the names of the devices.
        super().__init__(fleet, host, device, {"instance": host, "device": device, "network": device})

    def phases(self) -> Sequence[Phase]:
        # A page waits for others of its group: it comes while the NIC is quiet again.
        *alerted, paged = self.notified(40, 60)
        return (
            self.healthy(),
            Phase(
                "fault",
                f"fault: the link of {self.device} on {self.host} flaps",
                (
                    Milestone(
                        "nic_disconnected", "the mesh exporter shows nic_connected 0", self._disconnected, 10
                    ),
                    Milestone(
                        "workload_survived", "the ring continues over the other rail", self._survived, 10
                    ),
                    *alerted,
                    Milestone(
                        "action_applied", "NIC taken out of service, journaled and applied", self._avoided, 50
                    ),
                    Milestone(
                        "nic_out_of_service", "the plugin reports the NIC out of service", self._out, 50
                    ),
                ),
                act=self._flap,
            ),
            Phase(
                "quiet",
                f"quiet: the link of {self.device} on {self.host} stays up",
                (
                    Milestone(
                        "nic_reconnected",
                        "the mesh exporter shows nic_connected 1 again",
                        self._reconnected,
                        15,
                    ),
                    Milestone(
                        "workload_on_other_rail",
                        "the ring runs on the other rail alone",
                        self._other_rail,
                        20,
                    ),
                    paged,
                    Milestone("alert_resolved", f"{ALERT} resolved", self._resolved, 60),
                    Milestone(
                        "hold_down", "hold-down: the NIC must stay quiet a while longer", self._hold_down, 60
                    ),
                    Milestone(
                        "restored", "NIC put back in service, journaled and applied", self._restored, 75
                    ),
                    Milestone("traffic_back", "the NIC carries its share of the ring again", self._back, 80),
                    Milestone(
                        "bandwidth_recovered",
                        "bandwidth as before the fault",
                        self._recovered,
                        95,
                    ),
                ),
                act=self._quiet,
            ),
        )

    # What is done to the lab.

    async def _flap(self, stage: Stage) -> None:
        for flap in range(FLAPS_MAX):
            if flap >= FLAPS_MIN and stage.seen("nic_out_of_service"):
                break
            stage.mark("fault")
            await stage.link(self.host, self.device, up=False)
            await stage.sleep(DOWN_S)
            await stage.link(self.host, self.device, up=True)
            await stage.sleep(UP_S)
        stage.mark("flapping_over")

    async def _quiet(self, stage: Stage) -> None:
        await stage.link(self.host, self.device, up=True)
        stage.mark("quiet")

    # Fault.

    def _disconnected(self, seen: Observed) -> str | None:
        if "fault" not in seen.marks or seen.nic(self.host, self.device).connected is not False:
            return None
        return f'fabricpulse_nic_connected{{device="{self.device}"}} 0 on {self.host}'

    def _survived(self, seen: Observed) -> str | None:
        fault = seen.marks.get("fault")
        if fault is None or seen.workload.errors or seen.workload.corrupt_bytes or seen.workload.exited:
            return None
        rounds = seen.workload.rounds_at(fault)
        if (
            rounds is None
            or seen.workload.rounds <= rounds
            or (seen.workload.last_line_at or 0) < fault + DOWN_S
        ):
            return None
        if self._rate(seen) > IDLE_BYTES_PER_S and seen.nic(self.host, self.device).connected is False:
            return None
        return f"{seen.workload.rounds - rounds} rounds completed since the fault, no error"

    def _avoided(self, seen: Observed) -> str | None:
        action = seen.action("nic.avoid", self.host, self.device)
        return (
            f"journal entry {action.id}: {action.action} {action.state}" if action and action.done else None
        )

    def _out(self, seen: Observed) -> str | None:
        if seen.nic(self.host, self.device).in_service is not False:
            return None
        return f"every lane over {self.device} on {self.host} is out of service"

    # Quiet.

    def _reconnected(self, seen: Observed) -> str | None:
        if "quiet" not in seen.marks or seen.nic(self.host, self.device).connected is not True:
            return None
        return f'fabricpulse_nic_connected{{device="{self.device}"}} 1 on {self.host}'

    def _other_rail(self, seen: Observed) -> str | None:
        now = seen.workload.last_line_at
        quiet = seen.marks.get("quiet")
        nic = seen.nic(self.host, self.device)
        if now is None or quiet is None or nic.in_service is not False or not nic.connected:
            return None
        values = seen.workload.bandwidth.between(quiet, now)
        if now - quiet < DURING_S or not values or min(values) <= 0 or self._rate(seen) > IDLE_BYTES_PER_S:
            return None
        seen.marks.setdefault("during_end", now)
        return f"{self.device} idle though its link is up, bus bandwidth {sum(values) / len(values) / 1e6:.0f} MB/s"

    def _resolved(self, seen: Observed) -> str | None:
        if not (seen.prometheus_answers and seen.alertmanager_answers) or "quiet" not in seen.marks:
            return None
        if find_alert(seen.firing, ALERT, self.host, self.device):
            return None
        if find_alert(seen.notified, ALERT, self.host, self.device):
            return None
        return f"no {ALERT} for {self.host} {self.device} in Prometheus or Alertmanager any more"

    def _hold_down(self, seen: Observed) -> str | None:
        if (self.host, self.device) not in seen.hold_downs or self._resolved(seen) is None:
            return None
        return "the receiver waits out the hold-down; the NIC is still out of service"

    def _restored(self, seen: Observed) -> str | None:
        action = seen.action("nic.restore", self.host, self.device)
        if action is None or not action.done or seen.nic(self.host, self.device).in_service is not True:
            return None
        return f"journal entry {action.id}: {action.action} {action.state}, the plugin reports it in service"

    def _back(self, seen: Observed) -> str | None:
        if seen.nic(self.host, self.device).in_service is not True or not self.carries(
            seen, self.host, self.device
        ):
            return None
        if seen.workload.last_line_at is not None:
            seen.marks.setdefault("traffic_back", seen.workload.last_line_at)
        return f"{self.device} on {self.host} moves {self._rate(seen) / 1e6:.0f} MB/s"

    def _recovered(self, seen: Observed) -> str | None:
        back = seen.marks.get("traffic_back")
        before = seen.marks.get("baseline_mean")
        now = seen.workload.last_line_at
        if back is None or before is None or now is None or now - back < AFTER_S:
            return None
        # The lanes return by a slow start: the figure is that of the first seconds at the former level.
        values = seen.workload.bandwidth.between(now - AFTER_S, now)
        after = mean(values)
        if after is None or after < RECOVERED_SHARE * before:
            return None
        seen.marks.setdefault("after_start", now - AFTER_S)
        seen.marks.setdefault("after_end", now)
        return f"bus bandwidth {after / 1e6:.0f} MB/s, {100 * after / before:.0f} % of the bandwidth before"

    # Help.

    def _rate(self, seen: Observed) -> float:
        """Bytes per second of the faulty NIC; endless when it is not known, so that a gap never passes for idle."""
        rate = seen.nic(self.host, self.device).bytes_per_s
        return float("inf") if rate is None else rate

    def outcome(self, run: ScenarioRun, observed: Observed) -> FlapOutcome:
        fault = observed.marks.get("fault")

        def since_fault(milestone: str) -> float | None:
            at = run.result(milestone).seen_at
            return at - fault if at is not None and fault is not None else None

        page, last = self.page(observed), observed.workload.last_line_at
        stall = observed.workload.stall(fault, last) if fault is not None and last is not None else None
        detected_at = run.result("nic_disconnected").seen_at
        lateness = observed.lateness
        detect_late_s = stall_late_s = 0.0
        if fault is not None and detected_at is not None:
            # The exporter of the host sees it, the demo reads the exporter.
            detect_late_s = lateness.of_path([f"{MESH} on {self.host}", DEMO], fault, detected_at)
        if stall is not None:
            # A chunk of the ring passes every rank.
            ranks = [f"ring on {host}" for host in self.fleet.hosts]
            stall_late_s = lateness.of_path(ranks, stall[1], stall[2])
        return FlapOutcome(
            detect_s=since_fault("nic_disconnected"),
            alert_s=since_fault("alert_notified"),
            action_s=since_fault("action_applied"),
            stall_ms=None if stall is None else stall[0],
            errors=observed.workload.errors + len(observed.workload.exited),
            corrupt_bytes=observed.workload.corrupt_bytes,
            bandwidth_before=self.bandwidth(observed, "baseline", fault),
            bandwidth_during=self.bandwidth(observed, "quiet", observed.marks.get("during_end")),
            bandwidth_after=self.bandwidth(observed, "after_start", observed.marks.get("after_end")),
            detect_late_s=detect_late_s,
            stall_late_ms=stall_late_s * 1e3,
            page_s=None if page is None or fault is None else page - fault,
            other_pages=self.other_pages(observed),
        )
