"""Observed state: events that change episodes and agents, and decide nothing.

Alertmanager delivers at least once, late, out of order, and loses. So a message triggers no action; it updates the
observed state, and `decisions` compares that with the desired state.
"""

import re
from collections.abc import Iterable, Sequence

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.rebalance.lane_requests import selector_of
from fabricpulse.remediation.receiver.rule_config import LANE_ACTIONS, RuleConfig, keeps_out
from fabricpulse.remediation.receiver.state.adoption import Adoption
from fabricpulse.remediation.receiver.state.episode_room import EpisodeRoom
from fabricpulse.remediation.receiver.state.hold import STOPPED, Observation, observe
from fabricpulse.remediation.receiver.state.model import (
    NO_TARGET,
    AgentState,
    Episode,
    LaneSelector,
    State,
    Target,
    TargetState,
)
from fabricpulse.remediation.receiver.state.names import is_name
from fabricpulse.remediation.receiver.state.rebase import rebase
from fabricpulse.remediation.receiver.state.transaction import Transaction, with_changes

# It becomes an argument of the scheduler's command, where `h[0-99]`, `h0,h1` and `ALL` would be many hosts, and `-x` an
# option.
_ONE_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
# Most labels, and characters of each, in a `notify` line.
_MOST_LABELS = 32
_MOST_TEXT = 200
# After so many seconds an Alertmanager has an alert, also where Prometheus' clock is late.
_KNOWN_AFTER_S = 120.0
# After a start the Alertmanagers have answered within so many seconds, or are away.
_FIRST_POLL_S = 10.0


class ObservedState:
    """Events of one configuration. nics : the devices of each host, where a membership file names them."""

    def __init__(self, config: ReceiverConfig, nics: dict[str, frozenset[str]]) -> None:
        self._config = config
        self._nics = nics
        self._adoption = Adoption(nics, config.hold.initial_s)
        self._rules = {rule.alert: rule for rule in config.rules}
        self._cause_labels = {entry.alert: entry.label for entry in config.cause_alerts}
        self._published = frozenset(
            r.alert for r in config.rules if r.action == "notify" and r.mode == "auto"
        )

    def target_of(self, alert: Alert) -> Target | str | None:
        """The target of an alert; None when no rule asks for it; why it has no target, if a rule does."""
        rule = self._rules.get(alert.name)
        return None if rule is None else self._target(rule, alert)

    def shared_by_nics(self, alert: Alert) -> str:
        """What an alert of cause_alerts says is at fault, `leaf=l7`; "" for any other."""
        label = self._cause_labels.get(alert.name)
        value = alert.labels.get(label) if label is not None else None
        return f"{label}={value}" if value else ""

    def _target(self, rule: RuleConfig, alert: Alert) -> Target | str:
        instance = alert.labels.get(rule.host_label, "")
        host, colon, port = instance.rpartition(":")
        if not (colon and port.isdigit()):
            host = instance
        if rule.action == "host.drain":
            return self._host(rule, host)
        device = alert.labels.get(rule.device_label, "")
        if not host or not device:
            return f"label {rule.host_label if not host else rule.device_label} is missing"
        if not is_name(host) or not is_name(device):
            return "a label is not the name of a host or NIC"
        if self._nics and device not in self._nics.get(host, frozenset()):
            return "membership does not have this host and NIC"
        if rule.action in LANE_ACTIONS:
            # About lanes: it takes no NIC out, and keeps none out.
            named = selector_of(device, alert.labels)
            return named if isinstance(named, str) else Target(host, "")
        return Target(host, device)

    def _lanes(self, alert: Alert) -> LaneSelector | None:
        rule = self._rules.get(alert.name)
        if rule is None or rule.action not in LANE_ACTIONS:
            return None
        named = selector_of(alert.labels.get(rule.device_label, ""), alert.labels)
        return None if isinstance(named, str) else named

    def _host(self, rule: RuleConfig, host: str) -> Target | str:
        if not host:
            return f"label {rule.host_label} is missing"
        if not _ONE_HOST.fullmatch(host) or host.lower() == "all":
            return "a label is not the name of one host"
        if self._nics and host not in self._nics:
            return "membership does not have this host"
        return Target(host, "")

    def on_start(self, transaction: Transaction, now: float) -> None:
        """A new start: the epoch rises; what was in progress is offered to the agents again under the same op_id."""
        # From the clock as well: agents must not take a receiver with a new journal for one out of the past.
        epoch = max(transaction.epoch + 1, int(now))
        if rebased := rebase(transaction, now):
            transaction.log("fleet", "clock_rebased", entries=rebased)
        self._pass_over_absence(transaction, now)
        transaction.set(epoch=epoch, started_at=now, polled_at=0.0, contact_at=0.0)
        transaction.set(held_back_at=0.0, answered_at=0.0)
        transaction.drop("agents", list(transaction.agents))
        transaction.log("fleet", "started", epoch=epoch)

    def _pass_over_absence(self, transaction: Transaction, now: float) -> None:
        """Alerts that came before it and after it may have begun together; so where the clock alone is ahead."""
        firing = [episode for episode in transaction.episodes.values() if episode.status == "firing"]
        seen = max((episode.last_seen for episode in firing), default=now)
        away_s = now - max(seen, min(now, max(transaction.contact_at, transaction.polled_at)))
        if away_s <= self._config.guards.shared_cause_window_s / 2:
            return
        for episode in firing:
            transaction.put_episode(with_changes(episode, began_at=episode.fault_seen_at + away_s))

    def _causes(self, alert: Alert, target: Target) -> tuple[str, ...]:
        if not target.host:
            return (cause,) if (cause := self.shared_by_nics(alert)) else ()
        rule = self._rules[alert.name]
        if rule.action == "nic.restore" or rule.action in LANE_ACTIONS:
            return ()  # that many NICs are well, or full, at once is no fault of a switch
        labels = alert.labels
        causes = [f"{name}={labels[name]}" for name in rule.cause_labels if labels.get(name)]
        return tuple(causes) or (f"device={target.device}",)

    def on_alerts(
        self,
        transaction: Transaction,
        alerts: Iterable[Alert],
        now: float,
        unplaced: list[tuple[Alert, str]] | None = None,
    ) -> bool:
        """Alerts of a webhook notification. True when one of them is suspect and the Alertmanagers must be polled.

        unplaced : gets those for which a rule asks and that have no target, with the reason.

        A `firing` with the start of an episode that has ended is suspect: a stale repeat by an Alertmanager that was
        cut off, or an end that was false. So is one that nobody remembers and that they should have had when they were
        polled last: a delivery of yesterday that comes again. With Alertmanagers to poll it waits for their answer.
        """
        transaction.set(contact_at=now)
        suspect = False
        room = EpisodeRoom(transaction)
        for alert in alerts:
            named = self.target_of(alert)
            if unplaced is not None and isinstance(named, str):
                unplaced.append((alert, named))
            known = transaction.episodes.get(alert.fingerprint)
            overdue = known is None and self._is_overdue(transaction, alert, now)
            if self._config.alertmanagers and (overdue or is_suspect(known, alert)):
                suspect = True
                if overdue:
                    transaction.set(held_back_at=now)
            elif room.admits(alert, known is not None):
                self._on_alert(transaction, alert, named, known, now)
        room.close()
        return suspect

    def _is_overdue(self, transaction: Transaction, alert: Alert, now: float) -> bool:
        """Whether an alert began so long before the Alertmanagers were polled last that they had it, if it was one."""
        if not alert.firing or now - transaction.polled_at > self._config.poll_timeout_s:
            return False
        polled_at: float = transaction.polled_at + transaction.wall_ahead_s
        return alert.starts_at < polled_at - _KNOWN_AFTER_S

    def must_come_again(self, state: State, alerts: Iterable[Alert], now: float) -> bool:
        """Whether a notification came too soon after a start: it has an old alert that nobody remembers, and the
        Alertmanagers were not asked yet. Unlike one that is overdue it is not passed over: they may be away."""
        if not self._config.alertmanagers or state.polled_at or now - state.started_at >= _FIRST_POLL_S:
            return False
        known_since = now + state.wall_ahead_s - _KNOWN_AFTER_S
        return any(
            alert.firing
            and alert.starts_at < known_since
            and alert.fingerprint not in state.episodes
            and isinstance(self.target_of(alert), Target)
            for alert in alerts
        )

    def on_poll(
        self,
        transaction: Transaction,
        answers: Sequence[Sequence[Alert] | None],
        now: float,
        asked_at: float | None = None,
    ) -> None:
        """The active alerts of each Alertmanager; None for one that did not answer. asked_at : when they were asked.

        Repairs lost notifications both ways: an alert without a notification begins an episode; a firing episode that
        no Alertmanager has any more has expired, which is quiet, but not the same as healthy. One that ended is only
        taken to fire again from the same start when all of them have it, and were asked after its end: an answer that
        was long on its way has what fired before.
        """
        given = [answer for answer in answers if answer is not None]
        if not given:
            return
        # An Alertmanager that holds the alert that always fires is fed by Prometheus, and so knows the others as well:
        # one such is enough where a second one is down for good.
        present = any(alert.name == self._config.watchdog for answer in given for alert in answer)
        complete = len(given) == len(answers) or (bool(self._config.watchdog) and present)
        active = {alert.fingerprint: alert for answer in given for alert in answer}
        everywhere = set.intersection(*({alert.fingerprint for alert in answer} for answer in given))
        asked_at = now if asked_at is None else asked_at
        transaction.set(contact_at=now, answered_at=asked_at)
        room = EpisodeRoom(transaction)
        for alert in active.values():
            known = transaction.episodes.get(alert.fingerprint)
            # Silenced or inhibited, it begins nothing, but what it began goes on.
            wanted = not alert.suppressed or (known is not None and known.status == "firing")
            plausible = not is_suspect(known, alert) or (
                alert.fingerprint in everywhere and not _has_ended_since(known, asked_at)
            )
            if wanted and plausible and room.admits(alert, known is not None):
                self._on_alert(transaction, alert, self.target_of(alert), known, now)
        room.close()
        if complete:
            transaction.set(polled_at=now)
            self._on_watchdog(transaction, present)
            for episode in list(transaction.episodes.values()):
                silent = now - episode.last_seen > self._config.expire_s
                if episode.status == "firing" and episode.fingerprint not in active and silent:
                    episode = with_changes(episode, status="expired", ended_at=now)  # noqa: PLW2901
                    transaction.put_episode(episode)
                    transaction.log(
                        _subject(episode.target), "episode_expired", fingerprint=episode.fingerprint
                    )
                    if episode.alert in self._published:
                        _publish_end(transaction, episode)
                    target = transaction.targets.get(episode.target.key)
                    if target is not None and keeps_out(self._rules, episode.alert):
                        transaction.put_target(with_changes(target, needs_probe=True))

    def _on_watchdog(self, transaction: Transaction, present: bool) -> None:
        before = transaction.watchdog
        after = "seen" if present else "unknown" if before == "unknown" else "lost"
        if self._config.watchdog and after != before:
            transaction.set(watchdog=after)
            transaction.log("fleet", f"watchdog_{after}", alert=self._config.watchdog)

    def _on_alert(
        self,
        transaction: Transaction,
        alert: Alert,
        named: Target | str | None,
        before: Episode | None,
        now: float,
    ) -> None:
        """named : its target, as `target_of` says. before : the episode of its fingerprint."""
        # An alert on what NICs share is about none of them: its episode counts for the guards alone.
        # So does that of an alert that is only notified: it keeps no NIC out.
        name = alert.name
        publishes = name in self._published
        target = (
            NO_TARGET if publishes or (name in self._cause_labels and self.shared_by_nics(alert)) else named
        )
        known = before
        if known is not None and known.alert != name:
            known = None  # a forged fingerprint: nothing of the other alert goes over to this one
        if not isinstance(target, Target):
            if alert.firing or known is None:
                return
            target = known.target  # no rule names it any more, or membership its NIC: it ends all the same
        about = named if isinstance(named, Target) else target
        lanes = self._lanes(alert) if alert.firing else None
        if alert.firing and known is not None and known.status == "firing":
            # Of several starts the last one: what began before it is stale, whoever repeats it, once this has ended.
            transaction.put_episode(
                with_changes(
                    known,
                    last_seen=now,
                    starts_at=max(known.starts_at, alert.starts_at),
                    target=target,
                    causes=self._causes(alert, target),
                    lanes=lanes,
                )
            )
        elif alert.firing:
            event = "episode_refired" if is_suspect(before, alert) else "episode_firing"
            began_at = known.fault_seen_at if known is not None and is_suspect(known, alert) else 0.0
            transaction.put_episode(
                Episode(
                    fingerprint=alert.fingerprint,
                    alert=alert.name,
                    target=target,
                    causes=self._causes(alert, target),
                    starts_at=alert.starts_at,
                    first_seen=now,
                    last_seen=now,
                    status="firing",
                    lanes=lanes,
                    began_at=began_at,
                )
            )
            transaction.log(
                _subject(target),
                event,
                alert=alert.name,
                fingerprint=alert.fingerprint,
                starts_at=alert.starts_at,
            )
            if publishes:
                _publish(transaction, about, alert, "firing")
        elif known is not None and known.status == "firing":
            if is_earlier_end(known, alert, now + transaction.wall_ahead_s):
                return
            transaction.put_episode(with_changes(known, status="resolved", last_seen=now, ended_at=now))
            transaction.log(
                _subject(target), "episode_resolved", alert=alert.name, fingerprint=alert.fingerprint
            )
            if publishes:
                _publish(transaction, about, alert, "resolved")
            current = transaction.targets.get(target.key)
            if current is not None and current.needs_probe and not self._has_expired(transaction, current):
                transaction.put_target(with_changes(current, needs_probe=False))

    def _has_expired(self, transaction: Transaction, current: TargetState) -> bool:
        """Whether an alert that kept this NIC out has vanished without `resolved` since it left."""
        since = current.failovers[-1] if current.failovers else 0.0
        return any(
            episode.status == "expired"
            and episode.ended_at >= since
            and keeps_out(self._rules, episode.alert)
            for episode in transaction.episodes.values()
            if episode.target == current.target
        )

    def on_agent(self, transaction: Transaction, agent: AgentState, now: float) -> None:
        """A report of an agent: alive, the state of its host, and the newest desired state that it has."""
        if agent.host not in transaction.agents:
            transaction.log(agent.host, "agent_joined", processes=agent.processes)
        known = transaction.agents.get(agent.host)
        transaction.put_agent(
            with_changes(agent, seen_at=now, first_seen=known.first_seen if known is not None else now)
        )
        self._adoption.report(transaction, agent, known, now)
        unreliable = self._absence_unreliable(transaction, now)
        for device in agent.health.keys() | agent.held.keys():
            out = transaction.targets.get(f"{agent.host}/{device}")
            if out is not None and out.desired == "avoid" and out.workloads != agent.workloads:
                out = with_changes(out, workloads=agent.workloads)
                transaction.put_target(out)
            if out is not None and out.quiet_since:
                observation: Observation = unreliable or agent.health.get(device) or "not_observed"
                self._observe(transaction, out, observation, now)

    def _absence_unreliable(self, transaction: Transaction, now: float) -> Observation | None:
        """Why the absence of an alert says nothing, None if it does say something."""
        if not self._config.alertmanagers:
            return None
        if now - transaction.polled_at > self._config.poll_timeout_s:
            return "alertmanager_lost"
        return "alerting_dead" if transaction.watchdog == "lost" else None

    def _observe(
        self, transaction: Transaction, target: TargetState, observation: Observation, now: float
    ) -> None:
        after = observe(target, observation, now, self._config.guards.agent_timeout_s)
        transaction.put_target(after)
        if target.plan is not None and after.plan is None:
            transaction.log(target.target.key, "plan_dropped", plan=target.plan.hash, reason="unhealthy")
        if after.blocked == target.blocked:
            return
        hold_s, counted_s = round(after.hold_s, 1), round(after.healthy_s, 1)
        if after.blocked == "unhealthy":
            transaction.log(target.target.key, "hold_restarted", reason="unhealthy")
        elif after.blocked in STOPPED:
            transaction.log(target.target.key, "hold_stopped", reason=after.blocked, counted_s=counted_s)
        elif target.blocked in STOPPED:
            transaction.log(target.target.key, "hold_resumed", hold_s=hold_s, counted_s=counted_s)


def _publish(transaction: Transaction, about: Target, alert: Alert, status: str) -> None:
    labels = {
        name[:_MOST_TEXT]: value[:_MOST_TEXT] for name, value in list(alert.labels.items())[:_MOST_LABELS]
    }
    detail = {"alert": alert.name, "status": status, "fingerprint": alert.fingerprint, "labels": labels}
    transaction.log(_subject(about), "notify", **detail)


def _publish_end(transaction: Transaction, episode: Episode) -> None:
    """Of an alert that has expired; only its fingerprint identifies it."""
    detail = {"alert": episode.alert, "status": episode.status, "fingerprint": episode.fingerprint}
    transaction.log("fleet", "notify", **detail)


def _has_ended_since(known: Episode | None, asked_at: float) -> bool:
    return known is not None and known.ended_at > asked_at


def _subject(target: Target) -> str:
    return "fleet" if target == NO_TARGET else target.key


def is_suspect(known: Episode | None, alert: Alert) -> bool:
    """True for a `firing` with the start of an episode that has ended: ask before believing it. known : of its
    fingerprint."""
    return (
        alert.firing and known is not None and known.status != "firing" and alert.starts_at <= known.starts_at
    )


def is_earlier_end(known: Episode, alert: Alert, wall: float) -> bool:
    """True for a `resolved` that tells the end of an episode before this one: an Alertmanager of a pair was cut off, or
    was answered 503, and sends it late. wall : seconds since 1970.

    What begins in the future was begun by a clock that is wrong, and its end may lie before it.
    """
    return 0 < alert.ends_at < known.starts_at <= wall and alert.starts_at < known.starts_at
