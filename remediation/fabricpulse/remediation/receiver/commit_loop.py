"""The commit loop: one queue of events, one writer, answers after the commit.

Everything that can change the state - deliveries, agents' reports, operators, time - is an event in one queue. The loop
applies the queued events to one transaction, reconciles, commits state and journal together, and only then answers the
senders and hands new desired states to agents. A failed commit changes nothing: the senders get an error and try again.
While one commit waits for the disk the next batch gathers, so the rate does not depend on the disk. What operators
order comes first, and no batch has more than so many alerts: the kill switch does not wait for a storm.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fabricpulse.core.log import get_logger
from fabricpulse.core.threads import DaemonThreads
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.receiver.line_limit import LineLimit
from fabricpulse.remediation.receiver.payload import DeadLetter
from fabricpulse.remediation.receiver.state.model import OUTCOMES, Recovery, State
from fabricpulse.remediation.receiver.state.transaction import Transaction, Transition
from fabricpulse.remediation.receiver.store.store import Batch, Delivery, Store, StoreError, Unsaved

log = get_logger(__name__)

Change = Callable[[Transaction, float], None]
T = TypeVar("T")

_MAX_BATCH = 256
# Commands in a batch: without authentication a flood of them must leave room for deliveries.
_MAX_COMMANDS = 64
# Alerts of a batch; one event that has more is a batch of its own.
_MAX_ALERTS = 2_000
TICK_S = 0.25
RETENTION_S = 7 * 86_400
_PRUNE_EVERY_S = 3_600
# Changes without a line in the journal, the progress of a hold say, are saved this often.
_SAVE_EVERY_S = 30.0
# Between two cycles of the reconciler, at least so many times what the last one took.
_SPACING = 10
# The journal is written at least this often.
_PROBE_EVERY_S = 10.0
# A sender gets its answer within this time: an Alertmanager of a pair sends again from the other after 15 s.
ANSWER_S = 8.0
# In the place of an alert: plans that the rebalancing controller makes by itself.
OWN_PLANS = "rebalance"
# Lines of one commit that are logged as well: a storm fills the journal, not the log.
_LOGGED_AT_ONCE = 100


@dataclass
class _Event:
    change: Change
    done: asyncio.Future[None]
    delivery: Delivery | None = None
    dead_letters: Sequence[DeadLetter] = ()
    alerts: int = 0


# What the end of a rebalancing plan says about whether it has helped.
_RECOVERY: dict[str, Recovery] = {
    "kept": "recovered",
    "rolled_back": "not_recovered",
    "rollback_failed": "not_recovered",
    "withdrawn": "unknown",
}


class CommitLoop:
    """Runs the queue. `state` is always the last committed one."""

    def __init__(self, store: Store, reconcile: Change, clock: Callable[[], float]) -> None:
        self._store = store
        # Its own: bodies, scrapes and readers queue for the threads that all share.
        self._thread = DaemonThreads(1)
        self._reconcile = reconcile
        self.clock = clock
        self._orders: deque[_Event] = deque()
        self._queue: deque[_Event] = deque()
        self._filled = asyncio.Event()
        self._listeners: list[Callable[[list[Transition]], None]] = []
        self.state = State()
        self._unsaved = Unsaved()
        self.lines = LineLimit()
        self._committed_at = time.monotonic()
        self.failure = ""
        self._reconciled_at = float("-inf")
        self._reconcile_s = 0.0
        self._put_off = False
        self.heartbeat = time.monotonic()
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.commit_seconds = [0.0, 0.0]  # of the last commit, of the slowest

    def on_commit(self, listener: Callable[[list[Transition]], None]) -> None:
        """Calls `listener` with the journal lines after each commit that has any."""
        self._listeners.append(listener)

    async def start(self, first: Change) -> None:
        """Loads the state and commits the start itself. Raises StoreError."""
        self.state = await self._in_thread(self._store.load)
        now = self.clock()
        transaction = Transaction(self.state)
        first(transaction, now)
        await self._in_thread(self._store.commit, Batch(transaction, now))
        self.state = transaction.apply()
        failpoints.reach("receiver.after_start")
        self._count(transaction.transitions)

    async def submit(
        self,
        change: Change,
        delivery: Delivery | None = None,
        dead_letters: Sequence[DeadLetter] = (),
        *,
        alerts: int = 0,
    ) -> None:
        """Applies `change` and returns once it is durable. Raises StoreError when it could not be made so in time.

        dead_letters : written with it; `change` may add some. alerts : so many are in it.
        """
        event = _Event(change, self._future(), delivery, dead_letters, alerts)
        await self._put(self._queue, event)

    async def order(self, change: Change) -> None:
        """As `submit`, for what an operator orders: it comes before all that waits."""
        await self._put(self._orders, _Event(change, self._future()))

    @staticmethod
    def _future() -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    async def _put(self, queue: deque[_Event], event: _Event) -> None:
        done = event.done
        queue.append(event)
        self._filled.set()
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
                await self._apply(events)
                if time.monotonic() - pruned > _PRUNE_EVERY_S:
                    pruned = time.monotonic()
                    await self._prune()
        finally:
            self._thread.shutdown(wait=False)
            for event in (*self._orders, *self._queue):
                _fail(event.done, StoreError("the receiver is stopping"))

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _gather(self) -> list[_Event]:
        try:
            # Not wait_for: before Python 3.12 it may swallow the order to stop, or an event with it.
            async with asyncio.timeout(self._until_next_cycle_s()):
                await self._filled.wait()
        except TimeoutError:
            return []
        events: list[_Event] = []
        alerts = 0
        for queue, most in ((self._orders, _MAX_COMMANDS), (self._queue, _MAX_BATCH)):
            while queue and len(events) < most:
                alerts += queue[0].alerts
                if events and alerts > _MAX_ALERTS:
                    return events
                events.append(queue.popleft())
        if not self._orders and not self._queue:
            self._filled.clear()
        return events

    async def _apply(self, events: list[_Event]) -> None:
        now = self.clock()
        transaction = Transaction(self.state)
        batch = Batch(transaction, now)
        kept = []
        for event in events:
            mark = transaction.mark()
            try:
                event.change(transaction, now)
            except Exception as error:  # a bug in the handling of one event must not stop the others
                log.exception("event could not be applied")
                transaction.rollback(mark)
                _fail(event.done, StoreError(f"internal error: {error}"))
                continue
            if event.delivery is not None:
                batch.deliveries.append(event.delivery)
            batch.dead_letters += event.dead_letters
            kept.append(event)
        try:
            reconciled = self._is_reconcile_due()
            self._put_off = not reconciled
            if reconciled:
                self._timed_reconcile(transaction, now)
            transaction.transitions = self.lines.limited(transaction.transitions, now)
            if transaction.transitions or batch.deliveries or batch.dead_letters or self._is_save_due():
                batch.unsaved = self._unsaved
                begun = time.monotonic()
                await self._in_thread(self._store.commit, batch)
                took = time.monotonic() - begun
                self.commit_seconds = [took, max(took, self.commit_seconds[1])]
                self._unsaved = Unsaved()
                self._committed_at = time.monotonic()
                if self.failure:
                    log.info("journal takes commits again")
                self.failure = ""
            else:
                self._unsaved.add(transaction, time.monotonic())
        except Exception as error:
            failure = str(error) or type(error).__name__
            if not isinstance(error, StoreError):
                # Deciding failed: a bug. Senders get 503, readiness fails, nothing is decided.
                log.exception("could not decide, nothing was changed")
            elif failure != self.failure:
                log.error("journal refused a commit, nothing was changed", error=failure)
            self.failure = failure
            for event in kept:
                _fail(event.done, StoreError(str(error)))
            await asyncio.sleep(TICK_S)
            return
        self.state = transaction.apply()
        if reconciled:
            self.heartbeat = time.monotonic()
        self._count(transaction.transitions)
        if batch.deliveries:
            failpoints.reach("receiver.before_answer")
        for event in kept:
            if not event.done.done():
                event.done.set_result(None)
        if transaction.transitions:
            for listener in self._listeners:
                listener(transaction.transitions)

    def _until_next_cycle_s(self) -> float:
        """How long to wait for events: until the next tick, or until a cycle that was put off is due."""
        if not self._put_off:
            return TICK_S
        due = self._reconciled_at + _SPACING * self._reconcile_s
        return min(TICK_S, max(0.0, due - time.monotonic()))

    def _is_reconcile_due(self) -> bool:
        """Whether to decide in this batch: at once while that is quick, and for a bounded share of the time always.

        A cycle decides about every NIC whose alert fires; were there one for each batch, fifty thousand of them would
        slow deliveries down to a tenth.
        """
        return time.monotonic() - self._reconciled_at >= _SPACING * self._reconcile_s

    def _timed_reconcile(self, transaction: Transaction, now: float) -> None:
        begun = time.monotonic()
        self._reconcile(transaction, now)
        self._reconciled_at = time.monotonic()
        self._reconcile_s = self._reconciled_at - begun

    def _is_save_due(self) -> bool:
        """Whether to commit though nothing happened: to save what changed, and to know that the disk takes it.

        A full disk shows at the next commit only; without events there would be none, and readiness would not be true.
        """
        if self.failure or time.monotonic() - self._committed_at > _PROBE_EVERY_S:
            return True
        return bool(self._unsaved) and time.monotonic() - self._unsaved.since > _SAVE_EVERY_S

    def _count(self, transitions: list[Transition]) -> None:
        self.counts["transitions",] += len(transitions)
        logged = 0
        for entry in transitions:
            op_id = entry.detail.get("op_id")
            action = self.state.actions.get(op_id) if op_id else None
            if entry.event == "blocked":
                self.counts["blocked", entry.detail["reason"]] += 1
            elif entry.event == "judged":
                self.counts["judged", entry.detail["alert"], entry.detail["recovery"]] += 1
            elif entry.event == "would_rebalance" or entry.event.startswith("rebalance_"):
                outcome = entry.event.removeprefix("rebalance_")
                self.counts["rebalance", "dry_run" if entry.event == "would_rebalance" else outcome] += 1
                recovery = "unknown" if entry.detail.get("withdrawn") else _RECOVERY.get(outcome)
                if recovery:
                    self.counts["judged", entry.detail.get("alert", OWN_PLANS), recovery] += 1
            elif entry.event == "would_drain" or entry.event.startswith("drain_"):
                outcome = entry.event.removeprefix("drain_")
                self.counts["drain", "dry_run" if entry.event == "would_drain" else outcome] += 1
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
            now = self.clock()
            await self._in_thread(self._store.prune, now - RETENTION_S, now)
        except StoreError as error:
            log.warning("old deliveries could not be dropped", error=str(error))


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Nobody awaits the future of a sender that has hung up; it must not warn when it is collected.
        future.exception()
