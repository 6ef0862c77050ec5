"""The receiver's engine: one queue of events, one writer, answers after the commit.

Everything that can change the state - deliveries, agents' reports, people, time - is an event in one queue. The engine
takes what has gathered, lets the reconciler decide, commits state and journal in one transaction, and only then
answers the senders and hands new desired states to agents. A failed commit changes nothing: the senders hear of it and
try again. While one commit waits for the disk the next batch gathers, so the rate does not depend on the disk.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fabricpulse.core.log import get_logger
from fabricpulse.remediation.receiver.model import OUTCOMES, State
from fabricpulse.remediation.receiver.payload import DeadLetter
from fabricpulse.remediation.receiver.step import Step, Transition
from fabricpulse.remediation.receiver.store import Batch, Delivery, Store, StoreError

log = get_logger(__name__)

Change = Callable[[State, float], Step]

_MAX_BATCH = 256
TICK_S = 0.25
RETENTION_S = 7 * 86_400
_PRUNE_EVERY_S = 3_600
# A sender gets its answer within this time: an Alertmanager of a pair sends again from the other after 15 s.
ANSWER_S = 8.0
# Lines of one commit that are logged as well: a storm fills the journal, not the log.
_LOGGED_AT_ONCE = 100


class SteadyClock:
    """Seconds since 1970 that never jump and never go back, also not behind what the journal has already seen.

    Holds, cooldowns and breakers measure durations; a wall clock that is set while the receiver runs must neither end
    them nor stretch them. It follows the wall clock at each start.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._origin = max(time.time(), not_before) - time.monotonic()

    def __call__(self) -> float:
        return self._origin + time.monotonic()

    def behind_wall(self) -> float:
        """Wall clock minus this clock, in seconds: how much the wall clock was stepped since the start."""
        return time.time() - self()


@dataclass
class _Event:
    change: Change
    done: asyncio.Future[None]
    delivery: Delivery | None = None
    dead_letters: tuple[DeadLetter, ...] = ()


class Engine:
    """Runs the queue. `state` is always the last committed one."""

    def __init__(self, store: Store, tick: Change, clock: Callable[[], float]) -> None:
        self._store = store
        self._tick = tick
        self.clock = clock
        self._queue: asyncio.Queue[_Event] = asyncio.Queue()
        self._listeners: list[Callable[[list[Transition]], None]] = []
        self.state = State()
        self.heartbeat = time.monotonic()
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.commit_seconds = [0.0, 0.0]  # of the last commit, of the slowest

    def on_commit(self, listener: Callable[[list[Transition]], None]) -> None:
        """Calls `listener` with the journal lines after each commit that has any."""
        self._listeners.append(listener)

    async def start(self, first: Change) -> None:
        """Loads the state and commits the start itself. Raises StoreError."""
        self.state = await asyncio.to_thread(self._store.load)
        now = self.clock()
        step = first(self.state, now)
        await asyncio.to_thread(self._store.commit, Batch(step.state, now, transitions=step.transitions))
        self.state = step.state
        self._count(step.transitions)

    async def submit(
        self, change: Change, delivery: Delivery | None = None, dead_letters: tuple[DeadLetter, ...] = ()
    ) -> None:
        """Applies `change` and returns once it is durable. Raises StoreError when it could not be made so in time."""
        done = asyncio.get_running_loop().create_future()
        await self._queue.put(_Event(change, done, delivery, dead_letters))
        try:
            async with asyncio.timeout(ANSWER_S):
                await done
        except TimeoutError as error:
            raise StoreError(f"the journal takes longer than {ANSWER_S:.0f} s") from error

    async def run(self) -> None:
        """Runs until cancelled; what is in the queue then is refused, and so not acknowledged."""
        pruned = 0.0
        try:
            while True:
                events = await self._gather()
                if await self._apply(events):
                    self.heartbeat = time.monotonic()
                if time.monotonic() - pruned > _PRUNE_EVERY_S:
                    pruned = time.monotonic()
                    await self._prune()
        finally:
            while not self._queue.empty():
                _fail(self._queue.get_nowait().done, StoreError("the receiver is stopping"))

    async def _gather(self) -> list[_Event]:
        try:
            # Not wait_for: before Python 3.12 it may swallow the order to stop, or an event with it.
            async with asyncio.timeout(TICK_S):
                events = [await self._queue.get()]
        except TimeoutError:
            return []
        while len(events) < _MAX_BATCH and not self._queue.empty():
            events.append(self._queue.get_nowait())
        return events

    async def _apply(self, events: list[_Event]) -> bool:
        """True when the batch was committed, or held nothing to commit."""
        now = self.clock()
        state = self.state
        batch = Batch(state, now)
        kept = []
        for event in events:
            try:
                step = event.change(state, now)
            except Exception as error:  # a defect of ours in one event must not stop the others
                log.exception("event could not be applied")
                _fail(event.done, StoreError(f"internal error: {error}"))
                continue
            state = step.state
            batch.transitions += step.transitions
            if event.delivery is not None:
                batch.deliveries.append(event.delivery)
            batch.dead_letters += event.dead_letters
            kept.append(event)
        try:
            step = self._tick(state, now)
            batch.state = step.state
            batch.transitions += step.transitions
            if batch.transitions or batch.deliveries or batch.dead_letters:
                begun = time.monotonic()
                await asyncio.to_thread(self._store.commit, batch)
                took = time.monotonic() - begun
                self.commit_seconds = [took, max(took, self.commit_seconds[1])]
        except Exception as error:
            if isinstance(error, StoreError):
                log.error("journal refused a commit, nothing was changed", error=str(error))
            else:
                # Deciding failed: a defect of ours. Senders hear 503, readiness fails, nothing is done by guess.
                log.exception("could not decide, nothing was changed")
            for event in kept:
                _fail(event.done, StoreError(str(error)))
            await asyncio.sleep(TICK_S)
            return False
        self.state = batch.state
        self._count(batch.transitions)
        for event in kept:
            if not event.done.done():
                event.done.set_result(None)
        if batch.transitions:
            for listener in self._listeners:
                listener(batch.transitions)
        return True

    def _count(self, transitions: list[Transition]) -> None:
        self.counts["transitions",] += len(transitions)
        logged = 0
        for entry in transitions:
            op_id = entry.detail.get("op_id")
            action = self.state.actions.get(op_id) if op_id else None
            if entry.event == "blocked":
                self.counts["blocked", entry.detail["reason"]] += 1
            elif action is not None and entry.event in OUTCOMES:
                self.counts["action", action.action, entry.event] += 1
            if logged == _LOGGED_AT_ONCE:
                continue
            logged += 1
            fields = {"what" if key == "event" else key: value for key, value in entry.detail.items()}
            log.info(entry.event, subject=entry.subject, **fields)
        if len(transitions) > logged:
            log.info("more lines are in the journal only", lines=len(transitions) - logged)

    async def _prune(self) -> None:
        try:
            await asyncio.to_thread(self._store.prune, self.clock() - RETENTION_S)
        except StoreError as error:
            log.warning("old deliveries could not be dropped", error=str(error))


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # A sender that has hung up awaits nothing; its future must not warn when it is collected.
        future.exception()
