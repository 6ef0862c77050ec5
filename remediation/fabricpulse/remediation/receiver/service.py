"""The receiver's engine: one queue of events, one writer, answers after the commit.

Everything that can change the state - deliveries, agents' reports, people, time - is an event in one queue. The engine
takes what has gathered, lets the reconciler decide, commits state and journal in one transaction, and only then
answers the senders and hands new desired states to agents. A failed commit changes nothing: the senders hear of it and
try again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fabricpulse.core.log import get_logger
from fabricpulse.remediation.receiver.model import State
from fabricpulse.remediation.receiver.payload import DeadLetter
from fabricpulse.remediation.receiver.reconciler import Step, Transition
from fabricpulse.remediation.receiver.store import Batch, Store, StoreError

log = get_logger(__name__)

Change = Callable[[State, float], Step]

_MAX_BATCH = 256
TICK_S = 0.25
RETENTION_S = 7 * 86_400
_PRUNE_EVERY_S = 3_600


@dataclass
class _Event:
    change: Change
    done: asyncio.Future[None]
    delivery: tuple[float, str, bytes] | None = None
    dead_letters: tuple[DeadLetter, ...] = ()


class Engine:
    """Runs the queue. `state` is always the last committed one."""

    def __init__(self, store: Store, tick: Change, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._tick = tick
        self._clock = clock
        self._queue: asyncio.Queue[_Event] = asyncio.Queue()
        self._listeners: list[Callable[[list[Transition]], Awaitable[None]]] = []
        self.state = State()
        self.heartbeat = time.monotonic()
        self.counts: Counter[tuple[str, ...]] = Counter()

    def on_commit(self, listener: Callable[[list[Transition]], Awaitable[None]]) -> None:
        """Calls `listener` with the journal lines after each commit that has any."""
        self._listeners.append(listener)

    async def start(self, first: Change) -> None:
        """Loads the state and commits the start itself. Raises StoreError."""
        self.state = await asyncio.to_thread(self._store.load)
        for action in self.state.actions.values():
            if action.outcome not in ("pending", "applied"):
                self.counts["action", action.action, action.outcome] += 1
        step = first(self.state, self._clock())
        await asyncio.to_thread(
            self._store.commit, Batch(step.state, self._clock(), transitions=step.transitions)
        )
        self.state = step.state

    async def submit(
        self,
        change: Change,
        delivery: tuple[float, str, bytes] | None = None,
        dead_letters: tuple[DeadLetter, ...] = (),
    ) -> None:
        """Applies `change` and returns once it is durable. Raises StoreError when it could not be made so."""
        done = asyncio.get_running_loop().create_future()
        await self._queue.put(_Event(change, done, delivery, dead_letters))
        await done

    async def run(self) -> None:
        """Runs until cancelled; what is in the queue then is refused, and so not acknowledged."""
        pruned = 0.0
        try:
            while True:
                events = await self._gather()
                await self._apply(events)
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

    async def _apply(self, events: list[_Event]) -> None:
        now = self._clock()
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
        step = self._tick(state, now)
        batch.state = step.state
        batch.transitions += step.transitions
        try:
            if batch.transitions or batch.deliveries or batch.dead_letters:
                await asyncio.to_thread(self._store.commit, batch)
        except StoreError as error:
            log.error("journal refused a commit, nothing was changed", error=str(error))
            for event in kept:
                _fail(event.done, error)
            return
        self.state = batch.state
        self._count(batch.transitions)
        for event in kept:
            if not event.done.done():
                event.done.set_result(None)
        if batch.transitions:
            for listener in self._listeners:
                await listener(batch.transitions)

    def _count(self, transitions: list[Transition]) -> None:
        self.counts["transitions",] += len(transitions)
        for entry in transitions:
            if entry.event == "blocked":
                self.counts["blocked", entry.detail["reason"]] += 1
            op_id = entry.detail.get("op_id")
            action = self.state.actions.get(op_id) if op_id else None
            if action is not None and entry.event in ("verified", "refused", "failed", "expired", "dry_run"):
                self.counts["action", action.action, action.outcome] += 1
            log.info(entry.event, subject=entry.subject, **_flat(entry.detail))

    async def _prune(self) -> None:
        try:
            await asyncio.to_thread(self._store.prune, self._clock() - RETENTION_S)
        except StoreError as error:
            log.warning("old deliveries could not be dropped", error=str(error))


def _flat(detail: dict[str, Any]) -> dict[str, Any]:
    return {key if key != "event" else "what": value for key, value in detail.items()}


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # A sender that has hung up awaits nothing; its future must not warn when it is collected.
        future.exception()
