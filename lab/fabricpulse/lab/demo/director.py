"""Plays a scenario: runs the observers, advances the run, does to the lab what a phase says, gives the result."""

import asyncio
import time
from collections.abc import Callable, Sequence

from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.lab.demo.nic_faults import NicFaults
from fabricpulse.lab.demo.observed import Observed
from fabricpulse.lab.demo.result import Result
from fabricpulse.lab.demo.scenario_run import Event, ScenarioRun
from fabricpulse.lab.demo.scenarios.base import Scenario
from fabricpulse.lab.demo.watch import Watch

Listener = Callable[[Event], None]
OnUpdate = Callable[[Observed, float], None]


class Director:
    """One performance. It is the scenario's `Stage`."""

    def __init__(
        self,
        scenario: Scenario,
        observed: Observed,
        watches: Sequence[Watch],
        faults: NicFaults,
        on_event: Listener,
        on_update: OnUpdate,
    ) -> None:
        self.run = ScenarioRun(scenario.phases())
        self._scenario = scenario
        self._observed = observed
        self._watches = watches
        self._faults = faults
        self._on_event = on_event
        self._on_update = on_update
        self._changed = asyncio.Event()

    async def play(self) -> Result:
        """Plays the scenario to its end. Watches and acts are over when it returns or is cancelled."""
        started = time.monotonic()
        acts: list[asyncio.Task[None]] = []
        tasks = [asyncio.create_task(watch.run(self._observed, self._changed)) for watch in self._watches]
        try:
            while not self.run.ended:
                now = time.monotonic()
                for event in self.run.advance(self._observed, now):
                    if event.phase is not None and event.kind == "phase" and event.phase.act is not None:
                        acts.append(asyncio.create_task(self._act(event, acts[-1] if acts else None)))
                    self._on_event(event)
                self._on_update(self._observed, now)
                for task in (*tasks, *acts):
                    if task.done() and (error := task.exception()):
                        raise error
                self._changed.clear()
                await wait_with_timeout(self._changed, 0.2)
        finally:
            for task in (*tasks, *acts):
                task.cancel()
            await asyncio.gather(*tasks, *acts, return_exceptions=True)
        outcome = self._scenario.outcome(self.run, self._observed)
        return Result(self._scenario.name, started, self.run.results, outcome, outcome.checks())

    async def _act(self, event: Event, previous: asyncio.Task[None] | None) -> None:
        """The act of a phase, after that of the phase before: a link is not pulled both ways at once."""
        if previous is not None:
            await previous
        if event.phase is not None and event.phase.act is not None:
            await event.phase.act(self)

    # The scenario's stage.

    async def link(self, host: str, device: str, up: bool) -> None:
        """Puts the link of a NIC down or up."""
        await asyncio.to_thread(self._faults.link, host, device, up)

    async def lose(self, host: str, device: str, percent: float) -> None:
        """Drops a share of the packets towards a NIC, at the switch; 0 ends it."""
        await asyncio.to_thread(self._faults.lose, host, device, percent)

    async def slow(self, host: str, device: str, mbit: float) -> None:
        """Lets no more than so many Mbit/s through to a NIC; 0 gives it its own speed again."""
        await asyncio.to_thread(self._faults.slow, host, device, mbit)

    async def shrink_mtu(self, host: str, device: str, size: int) -> None:
        """Gives a NIC an MTU of so many bytes; 0 gives it its own again."""
        await asyncio.to_thread(self._faults.shrink_mtu, host, device, size)

    async def lose_time(self, host: str, lost_ns: int) -> None:
        """Both clocks of a host lose so many nanoseconds."""
        await asyncio.to_thread(self._faults.lose_time, host, lost_ns)

    async def power_off(self, host: str) -> None:
        """Kills a host, for good."""
        await asyncio.to_thread(self._faults.power_off, host)

    async def power_leaf(self, leaf: str, *, on: bool) -> None:
        """Takes the power of a leaf, or gives it back."""
        await asyncio.to_thread(self._faults.power_leaf, leaf, on=on)

    async def straggle(self, host: str) -> None:
        """Makes the rank of a host enter each round of the ring late, or no more if it does."""
        await asyncio.to_thread(self._faults.straggle, host)

    async def skew(self, host: str) -> None:
        """Makes the rank of a host send more to the hot rank than to others, or no more if it does."""
        await asyncio.to_thread(self._faults.skew, host)

    async def suspend_rank(self, host: str, suspended: bool) -> None:
        """Stops the ring's process of a host where it is, and lets it go on."""
        await asyncio.to_thread(self._faults.suspend_rank, host, suspended)

    async def load(
        self,
        source: str,
        destination: str,
        mbit: float,
        beside: tuple[str, str] | None = None,
        apart: tuple[str, str] | None = None,
    ) -> None:
        """Sends so many Mbit/s from one NIC to another, which no daemon sees; 0 ends it."""
        await asyncio.to_thread(self._faults.load, source, destination, mbit, beside, apart)

    async def detour(self, source: str, destination: str, delay_ms: float) -> None:
        """Sends TCP from one NIC to another over a longer way; 0 ends it."""
        await asyncio.to_thread(self._faults.detour, source, destination, delay_ms)

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    def mark(self, name: str) -> None:
        """Remembers the time of something that the scenario did, the first time that it does it."""
        self._observed.marks.setdefault(name, time.monotonic())
        self._changed.set()

    def seen(self, milestone: str) -> bool:
        """True once the run has seen a milestone."""
        return self.run.result(milestone).seen_at is not None
