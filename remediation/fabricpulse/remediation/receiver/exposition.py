"""The receiver's metrics."""

import time
from collections import Counter
from collections.abc import Callable

from fabricpulse.core.metrics.common import RELOAD_SUCCESSFUL, RELOAD_TIME
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.remediation import metrics
from fabricpulse.remediation.receiver.commit_loop import OWN_PLANS, CommitLoop
from fabricpulse.remediation.receiver.drains import OUT
from fabricpulse.remediation.receiver.guards.guards import REASONS, bucket_level
from fabricpulse.remediation.receiver.guards.rule_record import stopped_rules
from fabricpulse.remediation.receiver.health import CODES, problems
from fabricpulse.remediation.receiver.policy import Policy, ReloadStatus
from fabricpulse.remediation.receiver.rebalance.history import did_not_help
from fabricpulse.remediation.receiver.rule_config import LANE_ACTIONS
from fabricpulse.remediation.receiver.state.model import OUTCOMES, RECOVERIES
from fabricpulse.remediation.receiver.store.store import Store
from fabricpulse.remediation.receiver.wall_clock import MonotonicWallClock
from fabricpulse.remediation.receiver.web.auth import ROUTES
from fabricpulse.remediation.receiver.web.webhook import IngestStatistics

# A scrape that took longer is given out for so many times as long.
_LONG_S = 0.01
_SPACING = 10


class Scrapes:
    """Answers to scrapes. With very many alerts each takes tens of milliseconds, and whoever reaches the port may
    ask."""

    def __init__(self) -> None:
        self._last: dict[TextFormat, tuple[bytes, float]] = {}

    def answer(
        self, text_format: TextFormat, make: Callable[[TextFormat], bytes], clock: Callable[[], float]
    ) -> bytes:
        """What `make` says now, or has said a moment ago if that took long. clock : monotonic seconds."""
        rendered, until = self._last.get(text_format, (b"", float("-inf")))
        begun = clock()
        if begun >= until:
            rendered = make(text_format)
            took = clock() - begun
            until = begun + (1 + _SPACING) * took if took > _LONG_S else float("-inf")
            self._last[text_format] = (rendered, until)
        return rendered


def expose(
    policy: Policy,
    reload: ReloadStatus,
    loop: CommitLoop,
    clock: MonotonicWallClock,
    store: Store,
    ingest: IngestStatistics,
    exclusive: bool,
    refused: Counter[str],
    reports_refused: Counter[str],
    notified: dict[str, Counter[str]],
    text_format: TextFormat,
) -> bytes:
    """One scrape's answer.

    exclusive : no other receiver writes the journal. Else another one has changed its seal between the last time that
    this one led and now, and the seal at the start says nothing about edits.
    """
    config, state, counts, now = policy.config, loop.state, loop.counts, clock()
    out = Exposition()
    out.add(RELOAD_SUCCESSFUL, (), int(reload.successful))
    out.add(RELOAD_TIME, (), reload.at)
    for action in metrics.ACTION_NAMES:
        for outcome in OUTCOMES:
            out.add(metrics.ACTIONS, (action, outcome), counts["action", action, outcome])
    for reason in REASONS:
        out.add(metrics.BLOCKED, (reason,), counts["blocked", reason])
    for code, count in sorted(ingest.deliveries.items()):
        out.add(metrics.DELIVERIES, (str(code),), count)
    for route in ROUTES:
        out.add(metrics.UNAUTHORIZED, (route,), refused[route])
    for reason in ("room", "lines", "address"):
        out.add(metrics.REPORTS_REFUSED, (reason,), reports_refused[reason])
    for name, results in sorted(notified.items()):
        for result, count in sorted(results.items()):
            out.add(metrics.NOTIFICATIONS, (name, result), count)
    out.add(metrics.ALERTS, (), ingest.alerts)
    out.add(metrics.DEAD_LETTERS, (), ingest.dead_letters)
    out.add_histogram(metrics.INGEST_SECONDS, (), ingest.seconds.counts, ingest.seconds.total)
    for status in ("firing", "resolved", "expired"):
        out.add(metrics.EPISODES, (status,), sum(e.status == status for e in state.episodes.values()))
    out.add(metrics.TARGETS_OUT, (), sum(t.desired == "avoid" for t in state.targets.values()))
    out.add(metrics.MANUAL, (), sum(t.phase == "manual" for t in state.targets.values()))
    plans = state.rebalances.values()
    waiting = sum(t.plan is not None and not t.plan.approved_at for t in state.targets.values())
    waiting += sum(plan.phase == "awaiting_approval" and not plan.approved_at for plan in plans)
    waiting += sum(d.phase == "awaiting_approval" and not d.approved_at for d in state.drains.values())
    out.add(metrics.PLANS_WAITING, (), waiting)
    for end in ("kept", "rolled_back", "rollback_failed", "withdrawn", "dropped", "dry_run"):
        out.add(metrics.REBALANCES, (end,), counts["rebalance", end])
    for end in ("drained", "returned", "failed", "dropped", "dry_run"):
        out.add(metrics.DRAINS, (end,), counts["drain", end])
    out.add(metrics.HOSTS_OUT, (), sum(drain.phase in OUT for drain in state.drains.values()))
    measured = [plan for plan in plans if (plan.phase == "kept" or did_not_help(plan)) and plan.measured]
    if measured:
        last = max(measured, key=lambda plan: plan.changed_at)
        out.add(metrics.REBALANCE_GAIN, ("predicted",), last.predicted)
        out.add(metrics.REBALANCE_GAIN, ("measured",), last.measured)
    acting = [rule for rule in config.rules if rule.action in ("nic.avoid", *LANE_ACTIONS)]
    for name in sorted({rule.alert for rule in acting} | {OWN_PLANS}):
        for recovery in RECOVERIES:
            out.add(metrics.JUDGED, (name, recovery), counts["judged", name, recovery])
    failing = [rule.alert for rule in config.rules if rule.action == "nic.avoid"]
    stopped = stopped_rules(failing, state, config.guards)
    for name in sorted(failing):
        out.add(metrics.RULE_STOPPED, (name,), int(name in stopped))
    found = {one.code for one in problems(config, state, now, "", store.edited)}
    for problem in CODES:
        out.add(metrics.PROBLEMS, (problem,), int(problem in found))
    pending = [a for a in state.actions.values() if a.outcome == "pending"]
    out.add(metrics.PENDING, (), len(pending))
    out.add(metrics.OLDEST_PENDING, (), max((now - a.created_at for a in pending), default=0.0))
    for direction in ("failover", "failback"):
        level = bucket_level(config.guards, state.buckets.get(direction), now)
        out.add(metrics.BUDGET, (direction,), level)
        out.add(metrics.BREAKER, (direction,), int(direction in state.breakers))
    alive = sum(now - a.seen_at <= config.guards.agent_timeout_s for a in state.agents.values())
    out.add(metrics.AGENTS, ("alive",), alive)
    out.add(metrics.AGENTS, ("lost",), len(state.agents) - alive)
    out.add(metrics.PAUSED, (), int(state.pause is not None))
    out.add(metrics.HEARTBEAT, (), time.monotonic() - loop.heartbeat)
    out.add(metrics.POLL_AGE, (), now - state.polled_at if state.polled_at else -1)
    out.add(metrics.CLOCK_STEP, (), clock.behind_wall())
    out.add(metrics.LEADER, (), 1)
    out.add(metrics.COMMIT_SECONDS, (), loop.commit_seconds[0])
    out.add(metrics.JOURNAL_LINES, (), counts["transitions",])
    out.add(metrics.LINES_LEFT_OUT, (), loop.lines.left_out)
    for kind, table in (("deliveries", "delivery"), ("dead_letters", "dead_letter")):
        out.add(metrics.KEPT_BYTES, (kind,), store.kept_bytes[table])
        out.add(metrics.ROWS_DROPPED, (kind,), store.dropped[table])
    seal = store.seal()
    out.add(metrics.JOURNAL_LENGTH, (), seal.length)
    out.add(metrics.JOURNAL_SEAL, (), seal.number)
    if exclusive:
        out.add(metrics.JOURNAL_SEAL_AT_START, (), store.seal_at_start.number)
    out.add(metrics.JOURNAL_WRITABLE, (), int(not loop.failure))
    return out.render(text_format)
