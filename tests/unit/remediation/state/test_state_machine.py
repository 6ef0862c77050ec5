"""Anything may happen in any order; the promises hold all the same.

Alertmanager repeats, reorders, forgets and lies; agents vanish, refuse, answer late or twice; the receiver restarts;
time passes. After every step:

  I2  an operation has at most one effect, and generations of a target only rise
  I3  no host is left without a NIC that works
  I4  actions in flight stay within the budget, one a host
  I5  nothing is decided while paused, or while the breaker of that direction is tripped
  I7  every decision has a line in the journal that gives its reason
  I9  a NIC returns only after a hold in which it was observed healthy, or because something was undone
and at the end (I8) faults stop, and what is desired is what is, in bounded time.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.remediation.world import START, World, alert, config

from fabricpulse.remediation.protocol import Result

HOSTS = st.sampled_from(["h0", "h1", "h2"])
DEVICES = st.sampled_from(["rail0", "rail1", "rail2", "rail3"])
LIMITS = (
    "rules: [{alert: FabricNicFlapping, mode: auto}]\n"
    "hold: {initial_s: 10, jitter: 0, sticky_count: 4}\n"
    "alertmanagers: [http://a, http://b]\n"
    "guards: {cooldown_s: 5, max_attempts: 4, max_in_flight: 2, breaker_hosts: 2, breaker_window_s: 30}\n"
)


class Remediation(RuleBasedStateMachine):
    """The reconciler against a world that does what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(config(LIMITS), hosts=3, nics=4)
        self.world.poll([], [])
        self.avoided: dict[str, bool] = {}
        self.generations: dict[str, int] = {}
        self.done: set[str] = set()
        self.double: list[str] = []
        self.decided: set[str] = set()
        self.starts: dict[tuple[str, str], float] = {}
        self.paused_decisions: list[str] = []

    # --- what may happen ---------------------------------------------------------------------------------------

    @rule(host=HOSTS, device=DEVICES)
    def fires(self, host: str, device: str) -> None:
        self.starts[host, device] = self.world.now
        self._watch(lambda: self.world.deliver(alert(host, device, starts_at=self.world.now)))

    @rule(host=HOSTS, device=DEVICES)
    def resolves(self, host: str, device: str) -> None:
        start = self.starts.get((host, device), START)
        self._watch(lambda: self.world.deliver(alert(host, device, firing=False, starts_at=start)))

    @rule(host=HOSTS, device=DEVICES)
    def stale_copy(self, host: str, device: str) -> None:
        start = self.starts.get((host, device), START)
        self._watch(lambda: self.world.deliver(alert(host, device, starts_at=start)))

    @rule(host=HOSTS, device=DEVICES)
    def late_end(self, host: str, device: str) -> None:
        """The end of an episode before the one that fires, or fired last."""
        start = self.starts.get((host, device), START)
        late = alert(host, device, firing=False, starts_at=start - 20, ends_at=start - 10)
        before = self.world.state.episodes.get(late.fingerprint)
        self._watch(lambda: self.world.deliver(late))
        assert self.world.state.episodes.get(late.fingerprint) == before

    @rule(active=st.sets(st.tuples(HOSTS, DEVICES), max_size=4), second=st.booleans(), answers=st.booleans())
    def poll(self, active: set[tuple[str, str]], second: bool, answers: bool) -> None:
        alerts = [alert(h, d, starts_at=self.starts.get((h, d), START)) for h, d in sorted(active)]
        self._watch(lambda: self.world.poll(alerts, (alerts if second else []) if answers else None))

    @rule(seconds=st.sampled_from([0.0, 0.3, 2.0, 6.0, 11.0, 45.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self._watch(lambda: self.world.tick(seconds))

    @rule(seconds=st.sampled_from([2.0, 12.0, 45.0]), health=st.sampled_from(["unknown", "unhealthy"]))
    def nobody_observes(self, seconds: float, health: str) -> None:
        world = self.world
        since = world.now
        reported = {} if health == "unknown" else dict.fromkeys(world.devices, health)
        while world.now < since + seconds:
            world.now += 2
            world.report(health=reported)
            self._watch(world.reconcile)

    @rule(seconds=st.sampled_from([20.0, 130.0]))
    def agents_are_away(self, seconds: float) -> None:
        self.world.now += seconds
        self._watch(self.world.reconcile)

    @precondition(lambda self: self.world.pending())
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["applied", "applied", "refused", "failed"]),
        late=st.booleans(),
    )
    def agent_carries_out(self, data: Any, outcome: Any, late: bool) -> None:
        action = data.draw(st.sampled_from(self.world.pending()))
        self.world.sent([action.op_id])
        if late:
            return
        key, wanted = action.target.key, action.desired == "avoid"
        if outcome == "applied" and action.generation > self.generations.get(key, 0):
            if action.op_id in self.done:
                self.double.append(action.op_id)
            self.done.add(action.op_id)
            self.generations[key] = action.generation
            self.avoided[key] = wanted
        self._watch(lambda: self.world.result(action, outcome, processes=1))

    @precondition(lambda self: self.world.state.actions)
    @rule(data=st.data(), outcome=st.sampled_from(["applied", "refused", "failed"]), stalled=st.booleans())
    def late_report(self, data: Any, outcome: Any, stalled: bool) -> None:
        action = data.draw(st.sampled_from(sorted(self.world.state.actions.values(), key=lambda a: a.op_id)))
        if outcome == "applied" and action.op_id not in self.done:
            return  # an agent does not claim what it has not done
        traffic: Any = "stalled" if stalled else ""
        word = Result(action.op_id, outcome, 1, traffic=traffic)
        world = self.world
        self._watch(lambda: world.report_result(action.target.host, word))

    @rule()
    def receiver_restarts(self) -> None:
        self.world.now += 1
        self.world.restart()
        self.world.report()

    @rule()
    def pauses(self) -> None:
        self.world.pause("test", "ada")

    @rule()
    def resumes(self) -> None:
        self.world.resume("ada")

    def _watch(self, event: Any) -> None:
        """Runs an event, and notes which decisions it led to under a pause or a tripped breaker."""
        before, since = self.world.state, len(self.world.lines)
        event()
        for line in self.world.lines[since:]:
            if line.event not in ("nic.avoid", "nic.restore"):
                continue
            undone = line.detail["reason"].startswith(("rolled back", "no agent fetched"))
            direction = "failover" if line.event == "nic.avoid" else "failback"
            if not undone and (before.pause is not None or direction in before.breakers):
                self.paused_decisions.append(line.event)
            if line.event == "nic.restore" and not undone:
                assert line.detail["reason"].startswith("healthy for "), line
                counted = float(line.detail["reason"].split()[2])
                assert counted >= 9.5, "I9: back before the hold was over"

    # --- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def one_effect_each(self) -> None:
        assert self.double == [], "I2"
        for key, generation in self.generations.items():
            assert self.world.state.targets[key].generation >= generation

    @invariant()
    def a_nic_is_left(self) -> None:
        for host in self.world.hosts:
            wanted_out = [
                t for t in self.world.state.targets.values() if t.target.host == host and t.desired == "avoid"
            ]
            assert len(wanted_out) <= 1, f"I3: 4 rails, three quarters stay: {wanted_out}"

    @invariant()
    def within_the_budget(self) -> None:
        hosts = [
            a.target.host
            for a in self.world.pending()
            if not a.reason.startswith(("rolled back", "no agent"))
        ]
        assert len(hosts) <= 2, "I4: in flight"
        assert len(set(hosts)) == len(hosts), "I4: one a host"

    @invariant()
    def kill_switch(self) -> None:
        assert self.paused_decisions == [], "I5"

    @invariant()
    def every_decision_has_its_line(self) -> None:
        lines = {line.detail.get("op_id") for line in self.world.lines if line.detail.get("reason")}
        assert self.world.state.actions.keys() <= lines, "I7"

    def teardown(self) -> None:
        """I8: faults stop, everybody is well, and soon nothing is out except what waits for a person."""
        world = self.world
        world.resume("ada")
        world.deliver(*(alert(h, d, firing=False) for h in world.hosts for d in world.devices))
        for _ in range(40):
            world.poll([], [])
            world.report(connected=dict.fromkeys(world.devices, True))
            world.settle()
            for target in list(world.state.targets.values()):
                action = world.state.actions.get(target.op_id)
                if action is not None and action.outcome in ("unknown", "failed", "refused", "expired"):
                    world.result(action, "applied", processes=1)
            world.now += 7
            world.resume("ada")
            world.reconcile()
        out = {
            t.target.key: t.phase
            for t in world.state.targets.values()
            if t.phase not in ("in_service", "manual")
        }
        assert out == {}, "I8"


TestRemediation = pytest.mark.simulation(Remediation.TestCase)
TestRemediation.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
