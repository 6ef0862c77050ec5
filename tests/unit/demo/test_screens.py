"""What the demo shows: every state has its colour and words, on terminals of any size, before anything is known too."""

import io
import time

import pytest
from rich.console import Console
from tests.unit.demo.test_flap import World, play

from fabricpulse.lab.demo.lines import Lines
from fabricpulse.lab.demo.observed import ActionSeen, AlertSeen, new_observed
from fabricpulse.lab.demo.result import Result
from fabricpulse.lab.demo.scenarios.base import Check
from fabricpulse.lab.demo.scenarios.flap import FlapOutcome
from fabricpulse.lab.demo.screens import LineScreen
from fabricpulse.lab.demo.view import View, sparkline


def drawn(view: View, width: int, height: int) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, height=height, force_terminal=False)
    console.print(view)
    return text.getvalue()


@pytest.mark.parametrize(("width", "height"), [(200, 60), (120, 40), (80, 24), (30, 8)])
def test_the_view_draws_at_any_size(width: int, height: int) -> None:
    """Nothing known yet, everything known: both are drawn without an error and within the terminal."""
    world = World()
    view = View(
        world.observed, world.scenario_run, [("Prometheus", "http://127.0.0.1:9090")], time.monotonic()
    )
    drawn(view, width, height)
    play(world)
    view.sample()
    view.log("line")
    text = drawn(view, width, height)
    assert all(len(line) <= width for line in text.splitlines())


def test_the_view_shows_state_rates_clocks_alerts_and_steps() -> None:
    """The grid has a row a host; what is lost or taken out of service is distinguished."""
    world = World()
    view = View(
        world.observed, world.scenario_run, [("Prometheus", "http://127.0.0.1:9090")], time.monotonic()
    )
    world.healthy()
    world.run(8)
    world.observed.firing = (AlertSeen("FabricNicFlapping", "h1", "rail0", "firing"),)
    text = drawn(view, 160, 50)
    for expected in (
        "h0",
        "h1",
        "rail0",
        "rail1",
        "50.0 µs",
        "true 3.0 µs",
        "FabricNicFlapping h1/rail0",
        "✓",
        "MB/s",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("connected", "in_service", "colour"),
    [
        (None, None, "gray"),
        (True, True, "green"),
        (True, None, "green"),
        (True, False, "yellow"),
        (False, True, "red"),
    ],
)
def test_colours(connected: bool | None, in_service: bool | None, colour: str) -> None:
    """Unknown is gray, never green; lost is red whatever the job says."""
    observed = new_observed({"h0": ["rail0"]})
    nic = observed.nic("h0", "rail0")
    nic.connected, nic.in_service = connected, in_service
    assert nic.colour == colour


def test_sparkline() -> None:
    """Scaled to the largest value; nothing measured is flat."""
    assert sparkline([0.0, 50.0, 100.0]) == "▁▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""


def test_lines_tell_alerts_and_actions_once_each() -> None:
    """An alert is printed when it comes and when it is over, an action at each change of its state."""
    observed = new_observed({"h1": ["rail0"]})
    written: list[str] = []
    lines = Lines(written.append, 0.0)
    observed.firing = (AlertSeen("FabricNicFlapping", "h1", "rail0", "firing"),)
    observed.actions["7"] = ActionSeen("7", "nic.avoid", "h1", "rail0", "pending", "FabricNicFlapping")
    for now in (1.0, 2.0):
        lines.update(observed, now)
    observed.firing = ()
    observed.actions["7"] = ActionSeen("7", "nic.avoid", "h1", "rail0", "applied", "FabricNicFlapping")
    for now in (3.0, 4.0):
        lines.update(observed, now)
    assert [" ".join(line.split()[:2]) for line in written] == [
        "1.00s alert", "1.00s action", "3.00s alert", "3.00s action",
    ]  # fmt: skip
    assert written[2].endswith("over")
    assert "applied" in written[3]


def test_the_table_names_what_failed() -> None:
    """A figure beyond its limit, one that was not measured and a milestone that was not seen each have a line."""
    world = World()
    world.healthy()
    world.run(8)
    outcome = FlapOutcome(1.5, None, None, None, 0, 0, 50e6, None, None)
    checks = [
        Check("detect_s", "detection", 1.5, 1.0, "s"),
        Check("stall_ms", "stall", None, 300, "ms"),
    ]
    result = Result("flap", 100.0, world.scenario_run.results, outcome, checks)
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    LineScreen(console).end(result)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in ("1.50 s", "broken: detection", "not measured: stall", "not seen: ", "FAILED", "≤ 1 s"):
        assert expected in text
    assert "every milestone was seen" not in text
