"""The runner: a target that hangs or raises costs itself."""

import threading

import pytest

from fabricpulse.hostinfo.inventory import Inventory
from fabricpulse.hostinfo.sysfs import ReadErrors
from fabricpulse.nic.collectors.base import Context
from fabricpulse.nic.runner import Runner


class Fake:
    """Adds one line a target; some targets raise, some wait for `release`."""

    def __init__(self, name: str, *, raising: tuple[str, ...] = (), hanging: tuple[str, ...] = ()) -> None:
        self.name = name
        self.raising, self.hanging = raising, hanging
        self.release = threading.Event()
        self.returned = threading.Event()
        self.calls: list[str] = []

    def targets(self, context: Context) -> list[str]:
        return ["a", "b", "c"]

    def collect(self, target: str, context: Context) -> None:
        self.calls.append(target)
        if target in self.raising:
            raise RuntimeError("broken driver")
        if target in self.hanging and not self.release.is_set():
            self.release.wait(60)
            self.returned.set()
        context.sink.line("metric", f"{self.name}/{target}\n")

    def close(self) -> None:
        pass


@pytest.fixture
def runner():
    made = Runner(read_timeout_s=1.0)
    yield made
    made.close()


def run(runner: Runner, *collectors: Fake) -> tuple[set[str], dict[str, bool], ReadErrors]:
    context = Context(0.0, Inventory(), ReadErrors())
    steps = [(collector, target) for collector in collectors for target in collector.targets(context)]
    outcome = runner.run(steps, context)
    lines = {line.strip() for sink in outcome.sinks for line in sink.lines.get("metric", [])}
    return lines, outcome.success, context.errors


def test_all_is_well(runner):
    """All lines of all collectors, and each has succeeded."""
    lines, success, _ = run(runner, Fake("x"), Fake("y"))
    assert lines == {"x/a", "x/b", "x/c", "y/a", "y/b", "y/c"}
    assert success == {"x": True, "y": True}


def test_a_target_that_raises_costs_itself(runner):
    lines, success, errors = run(runner, Fake("x", raising=("b",)), Fake("y"))
    assert lines == {"x/a", "x/c", "y/a", "y/b", "y/c"}
    assert success == {"x": False, "y": True}
    assert errors.now["b"] == 1


def test_what_one_target_cannot_read_is_no_fault_of_the_next(runner):
    """Also where more files could not be read than are kept for the log."""

    class Unreadable(Fake):
        def collect(self, target: str, context: Context) -> None:
            for _ in range(ReadErrors.FOUND_MAX):
                context.errors.add(target, "/sys/file", "io_error")

    _, success, _ = run(runner, Unreadable("x"), Fake("y"))
    assert success == {"x": False, "y": True}


def test_a_target_that_hangs_costs_itself_and_comes_back(runner):
    """A hung read is left behind, not tried again while it hangs, and collected again when it has returned."""
    hanging = Fake("x", hanging=("b",))
    lines, success, errors = run(runner, hanging, Fake("y"))
    assert lines == {"x/a", "x/c", "y/a", "y/b", "y/c"}
    assert success == {"x": False, "y": True}
    assert errors.total["hung"] == 1
    lines, success, _ = run(runner, hanging)
    assert lines == {"x/a", "x/c"}
    assert hanging.calls.count("b") == 1
    hanging.release.set()
    assert hanging.returned.wait(60)
    for _ in range(100):
        lines, success, _ = run(runner, hanging)
        if success["x"]:
            break
    assert lines == {"x/a", "x/b", "x/c"}


def test_several_targets_hang_at_once(runner):
    hanging = Fake("x", hanging=("a", "b", "c"))
    lines, success, _ = run(runner, hanging, Fake("y"))
    assert lines == {"y/a", "y/b", "y/c"}
    assert not success["x"]
    hanging.release.set()


def test_hanging_targets_share_the_patience_of_a_run():
    """Three of two collectors: not six times the limit, which with more NICs is more than a scrape may take."""
    runner = Runner(read_timeout_s=0.4)
    hanging = [Fake(name, hanging=("a", "b", "c")) for name in ("x", "y")]
    context = Context(0.0, Inventory(), ReadErrors())
    steps = [(collector, target) for collector in hanging for target in ("a", "b", "c")]
    outcome = runner.run(steps, context)
    assert context.errors.total["hung"] == 6
    assert sum(outcome.duration_s.values()) == pytest.approx(0.4 + 0.2 + 0.1 + 0.05 + 0.025 + 0.02)
    for collector in hanging:
        collector.release.set()
    runner.close()


async def test_on_an_event_loop_and_with_a_plan(runner):
    """The steps that follow are made when the first is done; when the first hangs they are made all the same."""
    first, rest = Fake("inventory"), Fake("x")
    for hanging in (False, True):
        first.hanging = ("a",) if hanging else ()
        context = Context(0.0, Inventory(), ReadErrors())
        outcome = await runner.run_async([(first, "a")], context, lambda: [(rest, "b"), (rest, "c")])
        lines = {line.strip() for sink in outcome.sinks for line in sink.lines.get("metric", [])}
        assert lines == ({"x/b", "x/c"} if hanging else {"inventory/a", "x/b", "x/c"})
        assert outcome.success == {"inventory": not hanging, "x": True}
    first.release.set()


def test_closing_waits_for_the_worker(runner):
    """What collectors hold is given back on the worker, after what it is at: never under a read."""
    order: list[str] = []

    class Slow(Fake):
        def collect(self, target: str, context: Context) -> None:
            order.append(target)

    slow = Slow("x")
    context = Context(0.0, Inventory(), ReadErrors())
    runner.run([(slow, "a"), (slow, "b")], context)
    runner.close(lambda: order.append("closed"))
    assert order == ["a", "b", "closed"]
