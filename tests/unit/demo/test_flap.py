"""The flap scenario marks its milestones on the evidence that it names, and its figures come from what was seen."""

from typing import Any

import pytest

from fabricpulse.lab.demo.observed import ActionSeen, AlertSeen, ClockSeen, Observed, PageSeen, new_observed
from fabricpulse.lab.demo.result import Result
from fabricpulse.lab.demo.scenario_run import ScenarioRun
from fabricpulse.lab.demo.scenarios import SCENARIOS
from fabricpulse.lab.demo.scenarios.base import Fleet, Judgement, Scenario
from fabricpulse.lab.demo.scenarios.flap import ALERT, Flap, FlapOutcome

FLEET = Fleet(("h0", "h1"), ("rail0", "rail1"), ("leaf0", "leaf1"))


class World:
    """A fleet that the test sets by hand, one tenth of a second at a time."""

    def __init__(self, scenario: type[Scenario] = Flap, fleet: Fleet = FLEET) -> None:
        self.observed: Observed = new_observed(dict.fromkeys(fleet.hosts, fleet.devices))
        self.scenario: Any = scenario(fleet)
        self.scenario_run = ScenarioRun(self.scenario.phases())
        self.now = 100.0
        self.bytes: dict[tuple[str, str], float] = {}
        self.busy = {(host, device) for host in fleet.hosts for device in fleet.devices}
        self.bandwidth = 50e6

    def run(self, seconds: float) -> list[str]:
        """Lets time pass with the fleet as it is; returns the milestones that were seen meanwhile."""
        seen = []
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            for host, nic in self.observed.nics():
                key = (host.name, nic.device)
                self.bytes[key] = self.bytes.get(key, 0.0) + (5e6 if key in self.busy else 0.0)
                nic.sent.add(self.now, self.bytes[key])
                nic.received.add(self.now, self.bytes[key])
            workload = self.observed.workload
            workload.rounds += 1
            workload.round_history.add(self.now, workload.rounds)
            workload.bandwidth.add(self.now, self.bandwidth)
            workload.longest_gap.add(self.now, 12.0)
            events = self.scenario_run.advance(self.observed, self.now)
            seen += [event.result.milestone.name for event in events if event.kind == "seen" and event.result]
        return seen

    def healthy(self) -> None:
        for host in self.observed.hosts.values():
            host.clock = ClockSeen(synchronized=True, bound_s=50e-6, true_error_s=3e-6)
            host.edges = host.edges_up = 2
            host.collective_bytes_per_s = 40e6
        for _, nic in self.observed.nics():
            nic.connected = nic.in_service = True
        self.observed.prometheus_answers = self.observed.alertmanager_answers = True

    @property
    def nic(self):
        return self.observed.nic(self.scenario.host, self.scenario.device)

    def result(self) -> Result:
        outcome = self.scenario.outcome(self.scenario_run, self.observed)
        return Result(self.scenario.name, 100.0, self.scenario_run.results, outcome, outcome.checks())


def play(world: World, *others: PageSeen) -> list[str]:
    """The whole run as it goes when everything works. others : pages that come beside that of the fault."""
    scenario, observed = world.scenario, world.observed
    world.healthy()
    seen = world.run(8)
    observed.marks["fault"] = world.now
    seen += world.run(0.4)
    world.nic.connected = False
    world.busy.discard((scenario.host, scenario.device))
    world.bandwidth = 25e6
    seen += world.run(3)
    alert = AlertSeen(ALERT, scenario.host, scenario.device, "firing")
    observed.firing = (alert,)
    observed.notified = (AlertSeen(ALERT, scenario.host, scenario.device, "active"),)
    seen += world.run(0.5)
    observed.actions["1"] = ActionSeen("1", "nic.avoid", scenario.host, scenario.device, "applied", ALERT)
    world.nic.in_service = False
    seen += world.run(0.5)
    world.nic.connected = True
    observed.marks["quiet"] = world.now
    about = {"instance": scenario.host, "device": scenario.device, "network": scenario.device}
    for page in (PageSeen(ALERT, tuple(sorted(about.items())), "group"), *others):
        observed.pages[page] = world.now
    seen += world.run(5)
    observed.firing = observed.notified = ()
    observed.hold_downs = frozenset({(scenario.host, scenario.device)})
    seen += world.run(3)
    observed.hold_downs = frozenset()
    observed.actions["2"] = ActionSeen("2", "nic.restore", scenario.host, scenario.device, "applied", ALERT)
    world.nic.in_service = True
    world.busy.add((scenario.host, scenario.device))
    world.bandwidth = 50e6
    return seen + world.run(8)


def test_the_run_is_seen_in_full_and_measured() -> None:
    """With all evidence all milestones are seen; latencies count from the fault, bandwidths are as printed."""
    world = World()
    seen = play(world)
    result = world.result()
    assert sorted(seen) == sorted(milestone.milestone.name for milestone in world.scenario_run.results)
    assert result.success, result.failures()
    assert isinstance(result.outcome, FlapOutcome)
    assert result.outcome.detect_s == pytest.approx(0.5, abs=0.11)
    assert result.outcome.alert_s == pytest.approx(3.5, abs=0.11)
    assert result.outcome.action_s == pytest.approx(4.0, abs=0.11)
    assert result.outcome.page_s == pytest.approx(4.4, abs=0.11)
    assert result.outcome.bandwidth_before == pytest.approx(50e6)
    assert result.outcome.bandwidth_during == pytest.approx(25e6)
    assert result.outcome.bandwidth_after == pytest.approx(50e6)
    assert set(result.as_json()) == {
        "scenario", "milestones", "promises", "detect_s", "alert_s", "action_s", "stall_ms", "errors", "corrupt_bytes",
        "bandwidth_before", "bandwidth_during", "bandwidth_after", "detect_late_s", "stall_late_ms",
        "page_s", "other_pages",
    }  # fmt: skip


def test_another_page_fails_the_demo() -> None:
    """One of what follows from the flap, or of the flap of another NIC."""
    for name, device in (("FabricNicDisconnected", "rail0"), (ALERT, "rail1")):
        world = World()
        play(world, PageSeen(name, (("device", device), ("instance", "h1"), ("network", device)), "group"))
        result = world.result()
        assert result.failures(), name
        assert isinstance(result.outcome, FlapOutcome)
        assert result.outcome.other_pages == 1


@pytest.mark.parametrize(
    "spoil",
    ["corrupt", "errors", "exited", "stall"],
)
def test_a_broken_check_fails_the_demo(spoil: str) -> None:
    """Every milestone may be seen: one corrupt byte, one error, one dead rank or one long stall is a failure."""
    world = World()
    play(world)
    workload = world.observed.workload
    if spoil == "corrupt":
        workload.corrupt_bytes = 1
    elif spoil == "errors":
        workload.errors = 1
    elif spoil == "exited":
        workload.exited.append("rank 1")
    else:
        workload.longest_gap.add(world.now, 301.0)
    result = world.result()
    assert not result.success
    assert len(result.failures()) == 1


def late_ring(world: World, wait_ms: dict[str, float], at: float) -> None:
    """Ranks that waited for a CPU for so many ms just before `at`."""
    for host, wait in wait_ms.items():
        world.observed.lateness.add_waits(f"ring on {host}", at - 1.0, {1: 0, 2: 7_000_000_000})
        world.observed.lateness.add_waits(f"ring on {host}", at, {1: round(wait * 1e6), 2: 7_000_000_000})


@pytest.mark.parametrize(
    ("stall_ms", "waits_ms", "judgement"),
    [
        (299.0, {}, Judgement.KEPT),
        (299.0, {"h0": 500.0}, Judgement.KEPT),
        (339.0, {"h0": 20.0, "h1": 19.5}, Judgement.NOT_JUDGED),
        (339.0, {"h0": 20.0, "h1": 18.0}, Judgement.BROKEN),
        (339.0, {}, Judgement.BROKEN),
    ],
)
def test_a_stall_is_broken_only_where_the_machine_does_not_explain_it(
    stall_ms: float, waits_ms: dict[str, float], judgement: Judgement
) -> None:
    """339 ms with ranks that waited 39 ms for a CPU meanwhile prove nothing, with 38 ms they do; kept is neither."""
    world = World()
    play(world)
    late_ring(world, waits_ms, world.now)
    world.observed.workload.longest_gap.add(world.now, stall_ms)
    result = world.result()
    [stall] = [check for check in result.checks if check.name == "stall_ms"]
    assert stall.judgement is judgement
    assert result.success is (judgement is not Judgement.BROKEN)
    assert len(result.failures()) == (judgement is Judgement.BROKEN)
    assert len(result.not_judged()) == (judgement is Judgement.NOT_JUDGED)
    assert result.as_json()["promises"]["stall_ms"] == judgement.value


def test_lateness_of_another_time_excuses_nothing() -> None:
    """Ranks that waited long before the stall, and were on time in it, leave it a broken check."""
    world = World()
    play(world)
    late_ring(world, {"h0": 900.0}, world.now - 3.0)
    world.observed.lateness.add_waits("ring on h0", world.now - 1.5, {1: 900_000_000, 2: 7_000_000_000})
    world.observed.lateness.add_waits("ring on h0", world.now, {1: 900_000_000, 2: 7_000_000_000})
    world.observed.workload.longest_gap.add(world.now, 339.0)
    assert not world.result().success


def test_milestones_wait_longer_on_a_late_machine_and_not_for_ever() -> None:
    """Time for which a process waited for a CPU counts against no milestone; ten times its limit ends the run."""
    world = World()
    limit = world.scenario_run.results[0].milestone.within_s
    world.run(limit - 1)
    world.observed.lateness.add_waits("mesh on h0", world.now - limit, {1: 0})
    world.observed.lateness.add_waits("mesh on h0", world.now, {1: 30_000_000_000})
    world.run(20)
    assert not world.scenario_run.ended
    world.run(15)
    assert world.scenario_run.ended
    assert "host late 30.0 s" in world.scenario_run.results[0].evidence

    hopeless = World()
    hopeless.observed.lateness.add_waits("mesh on h0", hopeless.now, {1: 0})
    for milestone in range(1, 50):
        hopeless.observed.lateness.add_waits("mesh on h0", hopeless.now, {1: milestone * 10_000_000_000})
        hopeless.run(10)
        if hopeless.scenario_run.ended:
            break
    assert limit * 10 - 10 <= hopeless.now - 100.0 <= limit * 10 + 20


def test_an_unmeasured_check_fails_the_demo() -> None:
    """A stall that nobody measured does not pass for no stall."""
    world = World()
    play(world)
    world.observed.workload.longest_gap = type(world.observed.workload.longest_gap)()
    assert not world.result().success


def test_clocks_are_in_sync_only_when_all_say_so_within_the_bound() -> None:
    """One unsynchronised sidecar, one wide bound, or an unknown truth withholds the milestone."""
    world = World()
    for spoilt in (
        ClockSeen(synchronized=False, bound_s=1e-6, true_error_s=0.0),
        ClockSeen(synchronized=True, bound_s=0.01, true_error_s=0.0),
        ClockSeen(synchronized=True, bound_s=1e-6, true_error_s=None),
    ):
        world.healthy()
        world.observed.hosts["h1"].clock = spoilt
        assert "clocks_in_sync" not in world.run(1)
    world.healthy()
    assert "clocks_in_sync" in world.run(0.2)


def test_the_rail_that_is_not_used_withholds_the_baseline() -> None:
    """Traffic on all rails means on each of them."""
    world = World()
    world.healthy()
    world.busy.discard(("h0", "rail1"))
    assert "traffic_on_all_rails" not in world.run(5)


def test_the_alert_must_be_about_this_nic() -> None:
    """The same alert about another NIC, or only pending, is no evidence."""
    world = World()
    world.healthy()
    world.run(8)
    world.observed.marks["fault"] = world.now
    world.observed.firing = (
        AlertSeen(ALERT, "h0", "rail0", "firing"),
        AlertSeen(ALERT, world.scenario.host, world.scenario.device, "pending"),
    )
    assert "alert_firing" not in world.run(1)


def test_each_scenario_has_milestones_and_a_summary() -> None:
    """What `--scenario` offers can be played."""
    for name, scenario in SCENARIOS.items():
        assert scenario.name == name
        assert scenario.summary
        assert ScenarioRun(scenario(FLEET).phases()).results
