"""Steps of CLOCK_REALTIME itself, which the virtual clocks of the lab leave alone: counted, and no outage."""

import subprocess
from pathlib import Path

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import DISCONNECTS, MeshFleet

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]
HOUR_NS = 3600 * 10**9
STEPS = "fabricpulse_probe_clock_steps_total"


@pytest.fixture(scope="module")
def system_clock(tmp_path_factory):
    """The library that makes the clock of a lab host the system's clock."""
    target = tmp_path_factory.mktemp("preload") / "system_clock.so"
    source = ROOT / "tests" / "native" / "clocks" / "virtual_clock_preload.c"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-DAS_SYSTEM_CLOCK"]
    include = f"-I{ROOT / 'core' / 'include'}"
    subprocess.run(["gcc", *options, include, source, "-ldl", "-o", target], check=True)
    return target


def test_a_step_of_the_system_clock_is_counted_and_no_outage(make_lab, system_clock):
    """An hour forwards, back, and another back: three steps, reported with their size; no NIC and no edge is lost."""
    lab = make_lab(hosts=2, rails=2)
    fleet = MeshFleet(lab)
    fleet.environments["h1"] = {"LD_PRELOAD": str(system_clock)}
    fleet.start().wait_green()
    assert fleet.scrape("h1").value(STEPS) == 0
    steps = [HOUR_NS, -HOUR_NS, -HOUR_NS]
    for count, step_ns in enumerate(steps, 1):
        lab.host("h1").clock.step(step_ns)
        wait_for(lambda count=count: fleet.scrape("h1").value(STEPS) == count, 10, f"step {count}")
        fleet.wait_probing(3)
    for name, counted in (("h0", 0), ("h1", len(steps))):
        scrape = fleet.scrape(name)
        assert scrape.value(STEPS) == counted
        assert set(scrape.values("fabricpulse_nic_connected")) == {1}
        assert set(scrape.values(DISCONNECTS)) == {0}
        assert scrape.value("fabricpulse_mesh_events_total", kind="edge_down") == 0
    events = fleet.get("h1", "/api/v1/events")["events"]
    reported = [event["duration_ns"] for event in events if event["event"] == "clock_step"]
    assert reported == [pytest.approx(step_ns, abs=50_000_000) for step_ns in steps]
