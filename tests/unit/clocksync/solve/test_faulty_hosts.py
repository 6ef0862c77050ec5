"""Hosts whose stamps, or whose UTC, are wrong: for how long they are named, and what becomes of the bounds."""

import copy
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.unit.clocksync.coordinator import reporting_fleet
from tests.unit.clocksync.coordinator.reporting_fleet import ReportingFleet

from fabricpulse.clocksync.solve.outliers import HOLD_S
from fabricpulse.clocksync.wire.suspicions import CONTRADICTING, DISPUTED, JUMPED, SUSPICIONS
from fabricpulse.lab.tools import find_tool

pytestmark = pytest.mark.simulation

_MS = 1_000_000
_RULES = Path(__file__).parents[4] / "rules" / "alerts" / "clock.yaml"
_SCRAPE_S = 15


@pytest.fixture(scope="module")
def running() -> ReportingFleet:
    """Eight hosts that have been running for 20 s; not to be touched."""
    made = ReportingFleet()
    made.run(20)
    assert made.suspects() == {}
    return made


@pytest.fixture
def fleet(running: ReportingFleet) -> ReportingFleet:
    """Those hosts, for one test."""
    return copy.deepcopy(running)


def test_a_host_whose_stamps_jumped_stays_suspect_and_its_bound_says_so(fleet: ReportingFleet) -> None:
    """For minutes, and no longer than what it can do about it; nobody else is worse off."""
    before = {host: fleet.bound_ns(host) for host in fleet.hosts}
    fleet.lies_ns["h02"] = _MS
    for _ in range(4):
        fleet.run(60)
        assert fleet.suspects() == {"h02": SUSPICIONS[JUMPED]}
        assert abs(fleet.error_ns("h02")) == pytest.approx(_MS, abs=100)
        assert abs(fleet.error_ns("h02")) <= fleet.bound_ns("h02") <= 1.1 * _MS
        for host in set(fleet.hosts) - {"h02"}:
            assert abs(fleet.error_ns(host)) <= 1
            assert fleet.bound_ns(host) <= before[host]


def test_it_is_trusted_again_when_its_stamps_come_back(fleet: ReportingFleet) -> None:
    """After the time that a suspicion is held, and with its previous bound at once."""
    before = fleet.bound_ns("h02")
    fleet.lies_ns["h02"] = _MS
    fleet.run(30)
    del fleet.lies_ns["h02"]
    fleet.run()
    assert fleet.bound_ns("h02") <= before + 2
    fleet.run(round(HOLD_S) - 2)
    assert fleet.suspects() == {"h02": SUSPICIONS[JUMPED]}
    fleet.run(3)
    assert fleet.suspects() == {}


def test_stamps_that_move_in_several_parts_come_back_in_others(fleet: ReportingFleet) -> None:
    """Windows of edges are cut one after the other: only the sum counts, also of parts that alone were no jump."""
    for lie in (300_000, 340_000, _MS, _MS - 30_000, 400_000, 110_000, 80_000):
        fleet.lies_ns["h02"] = lie
        fleet.run()
        assert fleet.bound_ns("h02") >= lie
    fleet.lies_ns["h02"] = 0
    fleet.run()
    assert fleet.bound_ns("h02") < 10_000


def test_a_step_of_its_clock_explains_a_jump(fleet: ReportingFleet) -> None:
    """Noticed by the host in time: no suspicion; noticed late: one that ends."""
    fleet.step_clock("h03", _MS)
    fleet.run(2)
    assert fleet.suspects() == {}
    fleet.run(30)
    fleet.clock_ns["h03"] += _MS
    fleet.run()
    assert fleet.suspects() == {"h03": SUSPICIONS[JUMPED]}
    fleet.steps["h03"] += 1
    fleet.run(2)
    assert fleet.suspects() == {}
    assert fleet.bound_ns("h03") < 10_000


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("seconds", [1, 2, 5])
def test_edges_that_are_late_to_know_of_a_step_make_nobody_suspect(
    fleet: ReportingFleet, seconds: int, follows: bool
) -> None:
    """They fit the pre-step clock for a while. A sidecar does not follow them; if it does, its bound says so."""
    fleet.step_clock("h03", _MS)
    fleet.lies_ns["h03"] = -_MS
    if not follows:
        fleet.unheard.add("h03")
    for _ in range(seconds):
        fleet.run()
        assert abs(fleet.error_ns("h03")) <= fleet.bound_ns("h03")
        assert fleet.suspects() == {}
    fleet.unheard.clear()
    del fleet.lies_ns["h03"]
    fleet.run()
    assert fleet.suspects() == {}
    fleet.run(2)
    assert fleet.bound_ns("h03") < 10_000
    fleet.run(30)
    assert fleet.suspects() == {}
    assert abs(fleet.error_ns("h03")) <= 1


def test_edges_may_be_late_one_after_the_other_and_replies_lost(fleet: ReportingFleet) -> None:
    """A host that followed one part and did not hear of the other: what it is wrong by is the sum of both."""
    fleet.step_clock("h03", _MS)
    fleet.lies_ns["h03"] = -300_000
    fleet.run()
    fleet.lies_ns["h03"] = -_MS
    fleet.unheard.add("h03")
    fleet.run()
    fleet.unheard.clear()
    fleet.run()
    assert fleet.bound_ns("h03") >= abs(fleet.error_ns("h03")) == _MS
    del fleet.lies_ns["h03"]
    fleet.run(30)
    assert fleet.suspects() == {}
    assert fleet.bound_ns("h03") < 10_000


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_fleet_that_moves_while_a_host_has_just_been_stepped_makes_nobody_suspect(
    fleet: ReportingFleet, lost: int
) -> None:
    """A host that hears later than the others of an anchor that moves them all follows them, which is no jump."""
    fleet.step_clock("h03", _MS)
    fleet.run(2)
    fleet.anchors = {"h01": (10 * _MS, 2_000)}
    if lost:
        fleet.unheard.add("h03")
        fleet.run(lost)
        fleet.unheard.clear()
    fleet.run(30)
    assert fleet.suspects() == {}
    assert fleet.bound_ns("h03") < 10_000
    assert abs(fleet.error_ns("h03") - fleet.error_ns("h05")) <= 1


def test_a_step_does_not_excuse_stamps_that_stay_wrong(fleet: ReportingFleet) -> None:
    """A host that lies from the moment of a step on is named when its edges have had time to know of the step."""
    fleet.step_clock("h03", _MS)
    fleet.lies_ns["h03"] = -_MS
    fleet.run(30)
    assert fleet.suspects() == {"h03": SUSPICIONS[JUMPED]}
    assert abs(fleet.error_ns("h03")) <= fleet.bound_ns("h03")


def test_a_new_sidecar_is_not_blamed_for_the_old_one(fleet: ReportingFleet) -> None:
    """Whoever mends the stamps restarts it."""
    fleet.lies_ns["h02"] = _MS
    fleet.run(5)
    fleet.restart("h02")
    fleet.run()
    assert fleet.suspects() == {}
    assert fleet.error_ns("h02") != 0


def test_a_lost_reply_is_no_second_jump(fleet: ReportingFleet) -> None:
    """A host that does not receive its replies jumps once, and comes back once."""
    before = fleet.bound_ns("h02")
    fleet.unheard = {"h02"}
    fleet.lies_ns["h02"] = _MS
    fleet.run(4)
    fleet.unheard = set()
    fleet.run()
    assert _MS <= fleet.bound_ns("h02") <= 1.1 * _MS
    fleet.unheard = {"h02"}
    del fleet.lies_ns["h02"]
    fleet.run(2)
    fleet.unheard = set()
    fleet.run()
    assert fleet.bound_ns("h02") <= before + 2


def test_a_fleet_does_not_follow_the_stamps_of_its_only_anchor() -> None:
    """Its UTC is right and reaches the others by stamps that jumped: they stay, it is named, bounds hold."""
    fleet = ReportingFleet(anchors={"h01": (0, 2_000)})
    fleet.run(20)
    fleet.lies_ns["h01"] = _MS
    fleet.run(200)
    assert fleet.suspects() == {"h01": SUSPICIONS[JUMPED]}
    for host in fleet.hosts:
        assert abs(fleet.error_ns(host)) <= (1_100_000 if host == "h01" else 1_000)
        assert abs(fleet.error_ns(host)) <= fleet.bound_ns(host)


def test_an_anchor_that_moves_the_whole_fleet_makes_nobody_suspect() -> None:
    """A first anchor, 10 ms away from where the fleet's time has been: all are moved, and none of them lies."""
    fleet = ReportingFleet()
    fleet.run(20)
    fleet.anchors = {"h01": (10 * _MS, 2_000)}
    fleet.run(5)
    assert fleet.suspects() == {}
    assert abs(fleet.error_ns("h05") - 10 * _MS) <= 1_000


def test_one_wrong_anchor_of_three_is_named_and_moves_nobody() -> None:
    """However sure of itself it is."""
    fleet = ReportingFleet(anchors={"h00": (0, _MS), "h01": (0, _MS), "h02": (10 * _MS, 1_000)})
    fleet.run(120)
    assert fleet.suspects() == {"h02": SUSPICIONS[CONTRADICTING]}
    for host in fleet.hosts:
        assert abs(fleet.error_ns(host)) <= fleet.bound_ns(host) <= 1.2 * _MS
    fleet.anchors["h02"] = (0, 1_000)
    fleet.run(round(HOLD_S) + 2)
    assert fleet.suspects() == {}


def test_two_anchors_that_contradict_each_other_are_both_named() -> None:
    """The fleet stays where it was, and its bounds tell of both; when they agree again, bounds are narrow again."""
    fleet = ReportingFleet(anchors={"h00": (0, 1_000), "h01": (0, 1_000)})
    fleet.run(20)
    fleet.anchors["h01"] = (10 * _MS, 500)
    fleet.run(30)
    assert fleet.suspects() == {"h00": SUSPICIONS[DISPUTED], "h01": SUSPICIONS[DISPUTED]}
    for host in fleet.hosts:
        assert abs(fleet.error_ns(host)) <= 2_000
        assert fleet.bound_ns(host) >= 10 * _MS
    fleet.anchors["h01"] = (0, 500)
    fleet.run(2)
    assert all(fleet.bound_ns(host) < 10_000 for host in fleet.hosts)


def test_the_alert_fits_what_is_shown_for_how_long(tmp_path: Path) -> None:
    """Scraped each 15 s, by the rules that are shipped: one that lies on alerts, one that lied for 20 s does not."""
    promtool = find_tool("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    fleet = ReportingFleet()
    fleet.run(30)
    shown: dict[str, list[int]] = {host: [] for host in fleet.hosts}
    for second in range(330):
        if second == 60:
            fleet.lies_ns = {"h02": _MS, "h05": _MS}
        if second == 80:
            del fleet.lies_ns["h05"]
        fleet.run()
        if second % _SCRAPE_S == 0:
            suspects = fleet.suspects()
            for host, values in shown.items():
                values.append(int(host in suspects))
    assert 1 in shown["h05"]
    at = [(60, False), (165, False), (195, True), (320, True)]
    query = (
        'sum by (component, instance, severity) (ALERTS{alertname="FabricClockSuspect", alertstate="firing"})'
    )
    firing = '{component="clocksync", instance="h02", severity="warning"}'
    test = {
        "rule_files": [str(_RULES)],
        "evaluation_interval": f"{_SCRAPE_S}s",
        "tests": [
            {
                "interval": f"{_SCRAPE_S}s",
                "input_series": [
                    {
                        "series": f'fabricpulse_clock_suspect{{instance="{host}"}}',
                        "values": " ".join(map(str, values)),
                    }
                    for host, values in shown.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": f"{second}s",
                        "exp_samples": [{"labels": firing, "value": 1}] if fires else [],
                    }
                    for second, fires in at
                ],
            }
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(test))
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_host_that_missed_the_round_in_which_the_root_moved(
    fleet: ReportingFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bound, once it gets one again, holds against the root, and so do those of hosts that rest on it."""
    root = fleet.fleet.root
    missing = next(host for host in fleet.hosts if host != root)
    monkeypatch.setattr(reporting_fleet, "EDGE_BOUND_NS", 200_000)
    fleet.lies_ns[root] = 90_000
    fleet.unheard = {missing}
    fleet.run()
    fleet.unheard = set()
    fleet.run()
    assert fleet.fleet.root == root
    assert abs(fleet.error_ns(root)) > 50_000
    for host in set(fleet.hosts) - {root}:
        assert abs(fleet.error_ns(host) - fleet.error_ns(root)) <= fleet.bound_ns(host)
