"""Running the commands of drains: each on the state as it is when it begins, one at a time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.remediation.state.test_drains import Hosts

from fabricpulse.remediation.receiver import drain_hooks
from fabricpulse.remediation.receiver.drain_hooks import DrainHooks
from fabricpulse.remediation.receiver.state.model import State
from fabricpulse.remediation.receiver.state.transaction import Transaction


class Loop:
    """A commit loop that applies at once."""

    def __init__(self, world: Hosts) -> None:
        self._world = world

    @property
    def state(self) -> State:
        """What is committed."""
        return self._world.state

    def clock(self) -> float:
        """The world's."""
        return self._world.now

    async def submit(self, change: Callable[[Transaction, float], Any]) -> None:
        """One event."""
        self._world.run(lambda t: change(t, self._world.now))


class Commands:
    """Stands for run_command: each begins, and ends when the test lets it."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.timeouts_s: list[float] = []
        self.begins = asyncio.Event()
        self.end = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, arguments: tuple[str, ...], timeout_s: float) -> str:
        self.begun.append(" ".join(arguments[2:4]))
        self.timeouts_s.append(timeout_s)
        self.begins.set()
        try:
            await self.end.wait()
        finally:
            self.ended.set()
        self.end.clear()
        return ""


@pytest.fixture
async def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """In place of real ones."""
    found = Commands()
    monkeypatch.setattr(drain_hooks, "run_command", found)
    return found


async def settled() -> None:
    """Lets every task that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_operators_order_while_a_command_runs_holds_for_the_next_one(commands: Commands) -> None:
    """Two hosts are due. While the first command runs, the second host is released and remediation paused: its drain
    command does not run any more, its undo does."""
    world = Hosts(more="  max_hosts: 2", hosts=4)
    world.fire("h0")
    world.fire("h1")
    world.tick(70)
    assert [order.phase for order in world.orders()] == ["draining", "draining"]
    hooks = DrainHooks(Loop(world), world.reconciler, lambda: float("inf"))  # type: ignore[arg-type]
    running = asyncio.create_task(hooks.run())
    await commands.begins.wait()
    world.pause("stop", "ada")
    assert world.release_host("h1")
    commands.end.set()
    await settled()
    assert commands.begun == ["NodeName=h0 State=DRAIN", "NodeName=h1 State=RESUME"]
    commands.end.set()
    await settled()
    assert [drain.phase for drain in world.state.drains.values()] == ["drained", "returned"]
    running.cancel()


async def test_a_command_runs_as_long_as_the_lease_is_renewed(commands: Commands) -> None:
    """Its time is timeout_s, not what is left of the lease as it begins; when the lease is lost it is ended, and has
    no result: another receiver runs it again."""
    world = Hosts(more="  timeout_s: 300")
    world.fire()
    world.tick(70)
    left_s = [0.001] * 100
    hooks = DrainHooks(Loop(world), world.reconciler, lambda: left_s.pop() if left_s else 0.0)  # type: ignore[arg-type]
    running = asyncio.create_task(hooks.run())
    await commands.begins.wait()
    assert commands.timeouts_s == [300]
    await asyncio.wait_for(commands.ended.wait(), 60)
    assert left_s == [], "it ran through a hundred leases"
    await settled()
    assert (world.drain().phase, world.drain().tries) == ("draining", 0)
    assert len(commands.begun) == 1, "without a lease nothing is begun"
    running.cancel()
