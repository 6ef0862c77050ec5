"""Another job fills the cable between a leaf and the spine: on-call must get the flow and the job that wait there, and
remediation puts the lanes of that flow on the other spine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fabricpulse.lab.demo.observed import Observed, PlanSeen
from fabricpulse.lab.demo.scenario_run import Milestone, ScenarioRun
from fabricpulse.lab.demo.scenarios.base import Check, Fleet, Row, Setting, Stage, mean, shown
from fabricpulse.lab.demo.scenarios.one_page import POLL_S
from fabricpulse.lab.demo.scenarios.passing_fault import PassingFaultOutcome
from fabricpulse.lab.demo.scenarios.shared_path import PODS, QUICK_RULES, QUIET_JOB, SharedPathScenario
from fabricpulse.lab.demo.workload import WORKLOAD

# Less than a NIC has: what a host sends over the spine leaves room for what it sends to its neighbour.
UPLINK_MBIT = 70.0
OTHER_JOB_MBIT = 60.0
# A job that stays on the paths that chance gave it: with the plugin's own search it would have left within seconds, and
# nobody would have been notified. Nor does it take a lane for dead that is only slow: what a full queue drops is sent
# again after 200 ms, and a new lane has another path. Of sends below 32 KiB no lane's throughput is measured.
STAYING_JOB = replace(
    QUIET_JOB,
    slice_bytes=32 << 10,
    env={"FABRICPULSE_BALANCE": "0", "FABRICPULSE_REPATH": "0", "FABRICPULSE_STALL_MS": "5000"},
)
# Two of these wait for one another for that long, on the slower links. The alert stays until on-call has been notified:
# remediation ends what it is about within seconds, and Alertmanager waits half a minute for others of its group. Probes
# wait in the same queue, over this one of two spines: paths of theirs are news if they are slow for longer than the
# other job may send, which is until its last milestone is due.
LAST_DUE_S = 180.0
RULES = QUICK_RULES | {"contentionDelaySeconds": 0.008, "contentionKeepFiring": "45s", "pathSlowFor": "210s"}
# How long a bandwidth is measured for, and what a window of it begins after: the ring has to have got going again.
SPAN_S = 8.0
STEADY_S = 2.0
# Phases of a plan in which nothing is decided about it.
UNDER_WAY = ("awaiting_approval", "moving", "measuring", "rolling_back")
# A figure in Prometheus is the receiver's.
SAME = 1e-6
# At least so much of what the job has there alone it must have after the action. Not all: at both ends the other job's
# data still goes through NICs of the ring.
LEAST_SHARE = 0.8


@dataclass(frozen=True)
class ContentionOutcome(PassingFaultOutcome):
    """And what remediation did. action_s, kept_s : since the fault. gain_* : goodput of the job after the plan that was
    kept by that before it; `predicted` also of one that was not. new_paths : of that plan and those for the flow before
    it. bandwidth_* : bytes per second; `alone`: on the same paths, once the other job has ended, which is a little more
    than the links left allow. unused : 1 - after / alone. unused_late : see FlapOutcome. wrong_actions : plans about
    something else, plans for the flow that ended without a gain unless one after them was kept, and actions on NICs."""

    action_s: float | None
    kept_s: float | None
    new_paths: int | None
    gain_predicted: float | None
    gain_measured: float | None
    bandwidth_before: float | None
    bandwidth_contended: float | None
    bandwidth_after: float | None
    bandwidth_alone: float | None
    unused: float | None
    wrong_actions: int
    unused_late: float = 0.0

    def rows(self) -> Sequence[Row]:
        paths = "not measured" if self.new_paths is None else str(self.new_paths)
        return (
            *super().rows(),
            ("action_s", "fault → the flow gets another path", shown(self.action_s, 1, "s", 2)),
            ("kept_s", "fault → gain measured, the plan is kept", shown(self.kept_s, 1, "s", 2)),
            ("new_paths", "paths tried", paths),
            (
                "gain_predicted",
                "goodput afterwards by before, predicted",
                shown(self.gain_predicted, 1, "", 2),
            ),
            ("gain_measured", "… measured", shown(self.gain_measured, 1, "", 2)),
            (
                "bandwidth_before",
                "bus bandwidth before the fault",
                shown(self.bandwidth_before, 1e-6, "MB/s", 1),
            ),
            (
                "bandwidth_contended",
                "… beside the other job",
                shown(self.bandwidth_contended, 1e-6, "MB/s", 1),
            ),
            ("bandwidth_after", "… after the action", shown(self.bandwidth_after, 1e-6, "MB/s", 1)),
            (
                "bandwidth_alone",
                "… there without the other job",
                shown(self.bandwidth_alone, 1e-6, "MB/s", 1),
            ),
            ("unused", "… missing after the action", shown(self.unused, 100, "%", 1)),
            ("wrong_actions", "wrong actions", str(self.wrong_actions)),
        )

    def checks(self) -> Sequence[Check]:
        missing = "part of the bandwidth without the other job that is missing after the action"
        return (
            *super().checks(),
            Check("unused", missing, self.unused, 1 - LEAST_SHARE, "", self.unused_late),
            Check("wrong_actions", "wrong actions", self.wrong_actions, 0, ""),
        )


class Contention(SharedPathScenario):
    """A job that fabricpulse does not see sends from another host of the first pod to another one of the second."""

    name = "contention"
    summary = (
        "another job fills a cable to the spine: a flow of the ring waits in its queue, and gets another path"
    )
    alert = "FabricPathContended"
    fault = f"another job sends {OTHER_JOB_MBIT:.0f} Mbit/s over a cable that {{host}} needs"
    repaired = "the other job has ended"
    network = True
    setting = Setting(
        pods=PODS,
        spines=2,
        uplink_mbit=UPLINK_MBIT,
        job=STAYING_JOB,
        rules=RULES,
        repaths=True,
        poll_s=POLL_S,
    )

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._other = (f"{fleet.hosts[0]}-{self.device}", f"{fleet.hosts[-1]}-{self.device}")

    async def hold(self, stage: Stage) -> None:
        # The ring comes back from the last host to the first: its acknowledgements go with the other job's data, and
        # on one spine both flows of the ring between the pods would be slow.
        back = self._other[::-1]
        await stage.load(*self._other, OTHER_JOB_MBIT, (self.sender, self.receiver), (back[0], back[1]))
        await stage.sleep(self.fault_s)

    async def repair(self, stage: Stage) -> None:
        await stage.load(*self._other, 0.0)

    def remediated(self) -> tuple[Milestone, ...]:
        return (
            Milestone(
                "plan_begun", "remediation puts the lanes of the flow on another path", self._begun, 75
            ),
            Milestone("plan_kept", "the gain is measured, and the plan is kept", self._kept, 150),
            Milestone(
                "gain_shown",
                "Prometheus has the gain, predicted and measured, for the dashboard",
                self._shown,
                160,
            ),
            Milestone(
                "rebalanced_measured",
                "bandwidth measured beside the other job",
                self._rebalanced_measured,
                LAST_DUE_S,
            ),
        )

    def over(self) -> tuple[Milestone, ...]:
        return (
            *super().over(),
            Milestone("alone_measured", "bandwidth measured without it", self._alone_measured, 60),
        )

    # Evidence.

    def _is_right_plan(self, plan: PlanSeen) -> bool:
        return (plan.alert, plan.workload, plan.at) == (self.alert, WORKLOAD, ((self.host, self.device),))

    def _plans(self, seen: Observed) -> list[PlanSeen]:
        """The plans for the lanes of the flow, to the one that was kept, if one was."""
        found = []
        for plan in filter(self._is_right_plan, seen.plans):
            found.append(plan)
            if plan.phase == "kept":
                break
        return found

    def _kept_plan(self, seen: Observed) -> PlanSeen | None:
        plans = self._plans(seen)
        return plans[-1] if plans and plans[-1].phase == "kept" else None

    def _wrong(self, seen: Observed) -> int:
        """How many plans are wrong. One for the flow that is undone has been measured, as it is to be, and another one
        may follow; after the one that is kept, or without one, it has disturbed the job for nothing."""
        fine = self._plans(seen) if self._kept_plan(seen) is not None else []
        return sum(
            not self._is_right_plan(plan) or (plan.phase not in UNDER_WAY and plan not in fine)
            for plan in seen.plans
        )

    def _begun(self, seen: Observed) -> str | None:
        plan = next((plan for plan in self._plans(seen) if plan.tries >= 1), None)
        if plan is None:
            return None
        return f"{plan.id} for {plan.alert}, predicted gain {plan.predicted:.2f}"

    def _kept(self, seen: Observed) -> str | None:
        plan = self._kept_plan(seen)
        if plan is None or seen.workload.last_line_at is None:
            return None
        seen.marks.setdefault("plan_kept", seen.workload.last_line_at)
        return f"measured gain {plan.measured:.2f} after {plan.tries} new paths"

    def _shown(self, seen: Observed) -> str | None:
        # Prometheus has that of the plan that has ended last: at first of the one that is kept.
        plan, gains = self._kept_plan(seen), seen.gains
        if plan is None or not {"predicted", "measured"} <= gains.keys():
            return None
        if abs(gains["measured"] - plan.measured) > SAME:
            return None
        return f"predicted {gains['predicted']:.2f}, measured {gains['measured']:.2f}"

    def _rebalanced_measured(self, seen: Observed) -> str | None:
        return self._measured(seen, "rebalanced", seen.marks.get("plan_kept"))

    def _alone_measured(self, seen: Observed) -> str | None:
        repaired = seen.marks.get("repaired")
        return self._measured(seen, "alone", None if repaired is None else repaired + STEADY_S)

    def _measured(self, seen: Observed, name: str, since: float | None) -> str | None:
        """Bandwidth over SPAN_S; leaves the marks `name` and `name`_end."""
        last = seen.workload.last_line_at
        if since is None or last is None or last < since + SPAN_S:
            return None
        seen.marks.setdefault(name, since)
        value = self.bandwidth(seen, name, seen.marks.setdefault(f"{name}_end", since + SPAN_S))
        return None if value is None else f"bus bandwidth {value / 1e6:.1f} MB/s over {SPAN_S:.0f} s"

    def outcome(self, run: ScenarioRun, observed: Observed) -> ContentionOutcome:
        fault, plans = observed.marks.get("fault"), self._plans(observed)
        kept_plan = self._kept_plan(observed)
        begun, kept = (run.result(name).seen_at for name in ("plan_begun", "plan_kept"))

        def over(name: str) -> float | None:
            return self.bandwidth(observed, name, observed.marks.get(f"{name}_end"))

        contended = None
        if fault is not None and begun is not None:
            contended = mean(observed.workload.bandwidth.between(fault + STEADY_S, begun))
        after, alone = over("rebalanced"), over("alone")
        late_s = 0.0
        for name in ("rebalanced", "alone"):
            if name in observed.marks:
                ranks = [f"ring on {host}" for host in self.fleet.hosts]
                span = (observed.marks[name], observed.marks[f"{name}_end"])
                late_s = max(late_s, observed.lateness.of_path(ranks, *span))
        return ContentionOutcome(
            **vars(super().outcome(run, observed)),
            action_s=None if begun is None or fault is None else begun - fault,
            kept_s=None if kept is None or fault is None else kept - fault,
            new_paths=sum(plan.tries for plan in plans) if plans else None,
            gain_predicted=plans[-1].predicted if plans else None,
            gain_measured=None if kept_plan is None else kept_plan.measured,
            bandwidth_before=self.bandwidth(observed, "baseline", fault),
            bandwidth_contended=contended,
            bandwidth_after=after,
            bandwidth_alone=alone,
            unused=None if after is None or not alone else 1 - after / alone,
            wrong_actions=len(observed.actions) + self._wrong(observed),
            unused_late=late_s / SPAN_S,
        )
