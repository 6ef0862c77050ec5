"""The reconciler in a hostile world: lost, late and repeated messages, dead agents, refusing plugins."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fabricpulse.remediation.receiver.config import GuardConfig, HoldConfig, ReceiverConfig, RuleConfig
from fabricpulse.remediation.receiver.model import AgentState, State, Target
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.reconciler import Reconciler, Step

HOSTS = ("h0", "h1", "h2")
DEVICES = ("rail0", "rail1", "rail2")
CONFIG = ReceiverConfig(
    rules=(RuleConfig(alert="FabricNicFlapping", mode="auto"),),
    hold=HoldConfig(initial_s=30, cap_s=300, jitter=0, sticky_count=4, sticky_window_s=3600),
    guards=GuardConfig(
        cooldown_s=20, max_attempts=50, breaker_hosts=2, min_fraction_in_service=0.3, shared_cause_count=3
    ),
)


def alert(
    host: str, device: str, firing: bool, starts_at: float = 0.0, name: str = "FabricNicFlapping"
) -> Alert:
    labels = {"alertname": name, "instance": f"{host}:9610", "device": device}
    return Alert(firing, f"{name}/{host}/{device}", starts_at, labels)


class World(RuleBasedStateMachine):
    """Each rule is something that the world may do to the receiver; the invariants are what it may never do."""

    def __init__(self) -> None:
        super().__init__()
        self.reconciler = Reconciler(CONFIG)
        self.now = 1_790_000_000.0
        self.state = self.reconciler.on_start(State(), self.now).state
        self.generations: dict[str, int] = {}
        self.quiet_since: dict[str, float] = {}
        self.hands: set[str] = set()

    @initialize()
    def agents_join(self) -> None:
        for host in HOSTS:
            self.report(host, set())

    def take(self, step: Step) -> None:
        before, self.state = self.state, step.state
        for op_id in self.state.actions.keys() - before.actions.keys():
            self.check_new(before, op_id)
        # The journal explains every change of a desired state.
        for key, target in self.state.targets.items():
            old = before.targets.get(key)
            if old is None or old.generation != target.generation:
                assert any(entry.subject == key for entry in step.transitions)
        # Deciding again on the same knowledge decides nothing.
        again = self.reconciler.on_tick(self.state, self.now)
        assert again.state.actions == self.state.actions

    def check_new(self, before: State, op_id: str) -> None:
        action = self.state.actions[op_id]
        key = action.target.key
        assert action.generation > self.generations.get(key, 0)
        self.generations[key] = action.generation
        rolled_back = action.reason.startswith("rolled back")
        assert self.state.pause is None or rolled_back or key in self.hands, (
            "a paused receiver decided something"
        )
        if action.action == "nic.avoid":
            assert "failover" not in before.breakers
        elif not rolled_back and key not in self.hands:
            target = before.targets[key]
            assert key in self.quiet_since, "failback while the alert was firing"
            assert self.now - self.quiet_since[key] >= target.hold_s - 1e-6, (
                "failback before the hold was over"
            )

    @rule(
        host=st.sampled_from(HOSTS),
        device=st.sampled_from(DEVICES),
        age=st.floats(0, 1000),
        times=st.integers(1, 3),
    )
    def fires(self, host: str, device: str, age: float, times: int) -> None:
        self.quiet_since.pop(f"{host}/{device}", None)
        for _ in range(times):
            self.take(
                self.reconciler.on_alerts(self.state, [alert(host, device, True, self.now - age)], self.now)
            )

    @rule(host=st.sampled_from(HOSTS), device=st.sampled_from(DEVICES))
    def resolves(self, host: str, device: str) -> None:
        known = self.state.episodes.get(f"FabricNicFlapping/{host}/{device}")
        if known is not None and known.status == "firing":
            self.quiet_since[f"{host}/{device}"] = self.now
        self.take(self.reconciler.on_alerts(self.state, [alert(host, device, False)], self.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0, 31.0, 130.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.reconciler.on_tick(self.state, self.now))

    @rule(
        host=st.sampled_from(HOSTS),
        outcome=st.sampled_from(["applied", "applied", "applied", "refused", "failed"]),
    )
    def agent_carries_out(self, host: str, outcome: str) -> None:
        for action in list(self.state.actions.values()):
            if action.target.host == host and action.outcome == "pending":
                self.take(self.reconciler.on_sent(self.state, action.op_id, self.now))
                verified = outcome == "applied"
                self.take(
                    self.reconciler.on_result(
                        self.state, action.op_id, outcome, verified, 2, "because", self.now
                    )
                )

    @rule(host=st.sampled_from(HOSTS), down=st.sets(st.sampled_from(DEVICES)))
    def report(self, host: str, down: set[str]) -> None:
        devices = {
            d: d not in down
            and (
                f"{host}/{d}" not in self.state.targets
                or self.state.targets[f"{host}/{d}"].desired == "in_service"
            )
            for d in DEVICES
        }
        agent = AgentState(host=host, seen_at=0, devices=devices, processes=2)
        self.take(self.reconciler.on_agent(self.state, agent, self.now))

    @rule()
    def truth_knows_nothing(self) -> None:
        for key in {e.target.key for e in self.state.episodes.values() if e.status == "firing"}:
            episode = next(
                e for e in self.state.episodes.values() if e.target.key == key and e.status == "firing"
            )
            if self.now - episode.last_seen > CONFIG.expire_s:
                self.quiet_since[key] = self.now
        self.take(self.reconciler.on_truth(self.state, [], self.now, complete=True))

    @precondition(lambda self: self.state.pause is None)
    @rule()
    def pause(self) -> None:
        self.take(self.reconciler.on_pause(self.state, "test", "me", self.now))

    @rule()
    def resume(self) -> None:
        self.take(self.reconciler.on_resume(self.state, "me", self.now))

    @rule(host=st.sampled_from(HOSTS), device=st.sampled_from(DEVICES))
    def release(self, host: str, device: str) -> None:
        self.hands.add(f"{host}/{device}")
        self.take(self.reconciler.on_release(self.state, Target(host, device), "me", self.now))
        self.hands.discard(f"{host}/{device}")

    @rule()
    def restarts(self) -> None:
        document = msgspec.json.encode(self.state)
        self.state = msgspec.json.decode(document, type=State)
        epoch = self.state.epoch
        self.take(self.reconciler.on_start(self.state, self.now))
        assert self.state.epoch == epoch + 1

    @invariant()
    def a_rail_stays(self) -> None:
        for host in HOSTS:
            out = [d for d in DEVICES if self.is_out(f"{host}/{d}")]
            assert len(out) < len(DEVICES), f"{host} has no NIC in service"

    @invariant()
    def one_at_a_time(self) -> None:
        for host in HOSTS:
            going = [
                a
                for a in self.state.actions.values()
                if a.outcome == "pending" and a.target.host == host and a.action == "nic.avoid"
            ]
            assert len(going) <= 1

    def is_out(self, key: str) -> bool:
        target = self.state.targets.get(key)
        return target is not None and target.desired == "avoid"


World.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestWorld = World.TestCase


def start() -> tuple[Reconciler, State, float]:
    reconciler = Reconciler(CONFIG)
    now = 1_790_000_000.0
    state = reconciler.on_start(State(), now).state
    for host in HOSTS:
        agent = AgentState(host=host, seen_at=now, devices=dict.fromkeys(DEVICES, True), processes=1)
        state = reconciler.on_agent(state, agent, now).state
    return reconciler, state, now


def test_a_firing_alert_takes_the_nic_out_and_quiet_puts_it_back():
    """The whole circle: fires, avoided, resolved, held, restored, in service."""
    reconciler, state, now = start()
    state = reconciler.on_alerts(state, [alert("h0", "rail1", True)], now).state
    (avoid,) = state.actions.values()
    assert (avoid.action, avoid.target) == ("nic.avoid", Target("h0", "rail1"))
    state = reconciler.on_result(state, avoid.op_id, "applied", True, 1, "", now + 0.1).state
    state = reconciler.on_alerts(state, [alert("h0", "rail1", False)], now + 10).state
    report = {host: AgentState(host=host, seen_at=0, devices=dict.fromkeys(DEVICES, True)) for host in HOSTS}
    for second in range(11, 45):
        for agent in report.values():
            state = reconciler.on_agent(state, agent, now + second).state
    restore = next(a for a in state.actions.values() if a.action == "nic.restore")
    assert 40 <= restore.created_at - now <= 41
    state = reconciler.on_result(state, restore.op_id, "applied", True, 1, "", now + 46).state
    assert state.targets["h0/rail1"].phase == "in_service"


def test_other_alerts_and_unusable_labels_name_no_target():
    """Only alerts with a rule, and labels that can be a host and a device, are acted on."""
    reconciler, state, now = start()
    odd = [
        alert("h0", "rail0", True, name="SomethingElse"),
        Alert(True, "a", 0, {"alertname": "FabricNicFlapping", "instance": "h0"}),
        Alert(True, "b", 0, {"alertname": "FabricNicFlapping", "device": "rail0"}),
        Alert(True, "c", 0, {"alertname": "FabricNicFlapping", "instance": "../h0", "device": "rail0"}),
    ]
    step = reconciler.on_alerts(state, odd, now)
    assert not step.state.episodes
    assert not step.state.actions


def test_dry_run_decides_once_and_changes_nothing():
    """A rule in dry run journals what it would do, once per episode, and leaves the NIC in service."""
    reconciler = Reconciler(ReceiverConfig())
    _, state, now = start()
    for _ in range(3):
        state = reconciler.on_alerts(state, [alert("h0", "rail0", True)], now).state
    (action,) = state.actions.values()
    assert action.dry_run
    state = reconciler.on_result(state, action.op_id, "applied", False, 1, "dry run", now).state
    assert state.actions[action.op_id].outcome == "dry_run"
    assert state.targets["h0/rail0"].desired == "in_service"


def test_a_refusal_is_rolled_back_and_cools_down():
    """A process that refuses leaves the host in the one known state, and it is not tried again at once."""
    reconciler, state, now = start()
    state = reconciler.on_alerts(state, [alert("h0", "rail0", True)], now).state
    (avoid,) = state.actions.values()
    state = reconciler.on_result(state, avoid.op_id, "refused", False, 1, "last healthy lane", now).state
    assert state.actions[avoid.op_id].outcome == "refused"
    restore = state.actions[state.targets["h0/rail0"].op_id]
    assert (restore.action, restore.outcome) == ("nic.restore", "pending")
    state = reconciler.on_result(state, restore.op_id, "applied", True, 1, "", now + 1).state
    state = reconciler.on_tick(state, now + 2).state
    assert state.targets["h0/rail0"].blocked == "cooldown"


def test_one_rail_on_many_hosts_is_a_switch_not_a_nic():
    """Alerts of one rail on as many hosts as the limit within a minute take nothing more out of service."""
    reconciler, state, now = start()
    alerts = [alert(host, "rail0", True) for host in HOSTS]
    state = reconciler.on_alerts(state, alerts, now).state
    assert not state.actions
    assert {t.blocked for t in state.targets.values()} == {"shared_cause"}


def test_nothing_is_done_about_a_host_whose_agent_is_silent():
    """Without a recent report the receiver does not know what a job uses, and holds still."""
    reconciler, state, now = start()
    state = reconciler.on_alerts(state, [alert("h0", "rail0", True)], now + 60).state
    assert not state.actions


def test_failed_over_too_often_waits_for_a_person():
    """After the sticky count the NIC stays out of service until it is released by hand."""
    config = msgspec.structs.replace(CONFIG, hold=HoldConfig(initial_s=1, cap_s=1, jitter=0, sticky_count=2))
    reconciler = Reconciler(config)
    _, state, now = start()
    for _ in range(2):
        now += 60
        for host in HOSTS:
            agent = AgentState(host=host, seen_at=now, devices=dict.fromkeys(DEVICES, True))
            state = reconciler.on_agent(state, agent, now).state
        state = reconciler.on_alerts(state, [alert("h0", "rail0", True, now)], now).state
        state = reconciler.on_result(
            state, state.targets["h0/rail0"].op_id, "applied", True, 1, "", now
        ).state
        state = reconciler.on_alerts(state, [alert("h0", "rail0", False, now)], now).state
        state = reconciler.on_tick(state, now + 2).state
        if state.targets["h0/rail0"].phase == "restoring":
            state = reconciler.on_result(
                state, state.targets["h0/rail0"].op_id, "applied", True, 1, "", now + 2
            ).state
    assert state.targets["h0/rail0"].phase == "manual"
    state = reconciler.on_release(state, Target("h0", "rail0"), "somebody", now + 5).state
    assert state.targets["h0/rail0"].desired == "in_service"
