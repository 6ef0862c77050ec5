"""What is known: events that change episodes, agents and evidence, and decide nothing.

Alertmanager delivers at least once, late, out of order, and forgets. So nothing is done because a message came;
messages only change what is known here, and `decisions` compares what is known with what is desired.
"""

from collections.abc import Iterable, Sequence

from fabricpulse.remediation.receiver.config import ReceiverConfig, RuleConfig
from fabricpulse.remediation.receiver.model import AgentState, Episode, State, Target, TargetState
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.step import Step, with_changes

# What a target is blocked by while the mesh's probes do not get through it: each report restarts its hold.
UNHEALTHY = "unhealthy"


class Knowledge:
    """Events of one configuration. nics : the devices of each host, where a membership file names them."""

    def __init__(self, config: ReceiverConfig, nics: dict[str, frozenset[str]]) -> None:
        self._config = config
        self._nics = nics
        self._rules = {rule.alert: rule for rule in config.rules}

    def target_of(self, alert: Alert) -> Target | str | None:
        """The target of an alert; None when no rule asks for it; why it has no target, if a rule does."""
        rule = self._rules.get(alert.name)
        return None if rule is None else self._target(rule, alert)

    def _target(self, rule: RuleConfig, alert: Alert) -> Target | str:
        instance = alert.labels.get(rule.host_label, "")
        host, colon, port = instance.rpartition(":")
        if not (colon and port.isdigit()):
            host = instance
        device = alert.labels.get(rule.device_label, "")
        if not host or not device:
            return f"label {rule.host_label if not host else rule.device_label} is missing"
        if not _is_name(host) or not _is_name(device):
            return "a label is not the name of a host or NIC"
        if self._nics and device not in self._nics.get(host, frozenset()):
            return "membership does not have this host and NIC"
        return Target(host, device)

    def on_alerts(self, state: State, alerts: Iterable[Alert], now: float) -> tuple[Step, bool]:
        """Alerts of a webhook notification; also says whether one of them needs the word of the Alertmanagers.

        A `firing` with the start of an episode that has ended is suspect: a stale repeat by an Alertmanager that was
        cut off, or an end that was false. With Alertmanagers to ask it waits for their answer.
        """
        step = Step(state)
        step.set(contact_at=now)
        suspect = False
        for alert in alerts:
            if self._config.alertmanagers and is_suspect(step, alert):
                suspect = True
            else:
                self._on_alert(step, alert, now)
        return step, suspect

    def on_truth(self, state: State, answers: Sequence[Sequence[Alert] | None], now: float) -> Step:
        """What each Alertmanager says is active now; None for one that did not answer.

        Heals lost notifications both ways: an alert that we never heard of begins an episode; a firing episode that
        none of them knows any more has expired, which is quiet, but not the same as healthy. One that ended is only
        believed to fire again from the same start when all of them say so.
        """
        step = Step(state)
        given = [answer for answer in answers if answer is not None]
        if not given:
            return step
        complete = len(given) == len(answers)
        active = {alert.fingerprint: alert for answer in given for alert in answer}
        everywhere = set.intersection(*({alert.fingerprint for alert in answer} for answer in given))
        step.set(contact_at=now)
        for alert in active.values():
            known = step.episodes.get(alert.fingerprint)
            # Silenced or inhibited, it begins nothing, but what it began goes on.
            wanted = not alert.suppressed or (known is not None and known.status == "firing")
            if wanted and (alert.fingerprint in everywhere or not is_suspect(step, alert)):
                self._on_alert(step, alert, now)
        if complete:
            step.set(truth_at=now)
            self._on_watchdog(step, any(alert.name == self._config.watchdog for alert in active.values()))
            for episode in list(step.episodes.values()):
                silent = now - episode.last_seen > self._config.expire_s
                if episode.status == "firing" and episode.fingerprint not in active and silent:
                    step.put_episode(with_changes(episode, status="expired", ended_at=now))
                    step.log(episode.target.key, "episode_expired", fingerprint=episode.fingerprint)
                    target = step.targets.get(episode.target.key)
                    if target is not None:
                        step.put_target(with_changes(target, needs_probe=True))
        return step

    def _on_watchdog(self, step: Step, present: bool) -> None:
        before = step.state.watchdog
        after = "seen" if present else "unknown" if before == "unknown" else "lost"
        if self._config.watchdog and after != before:
            step.set(watchdog=after)
            step.log("fleet", f"watchdog_{after}", alert=self._config.watchdog)

    def _on_alert(self, step: Step, alert: Alert, now: float) -> None:
        target = self.target_of(alert)
        if not isinstance(target, Target):
            return
        known = step.episodes.get(alert.fingerprint)
        if alert.firing and known is not None and known.status == "firing":
            starts_at = min(known.starts_at, alert.starts_at)
            step.put_episode(with_changes(known, last_seen=now, starts_at=starts_at, target=target))
        elif alert.firing:
            event = "episode_refired" if is_suspect(step, alert) else "episode_firing"
            step.put_episode(
                Episode(
                    fingerprint=alert.fingerprint,
                    alert=alert.name,
                    target=target,
                    network=alert.labels.get("network", ""),
                    starts_at=alert.starts_at,
                    first_seen=now,
                    last_seen=now,
                    status="firing",
                )
            )
            step.log(
                target.key, event, alert=alert.name, fingerprint=alert.fingerprint, starts_at=alert.starts_at
            )
        elif known is not None and known.status == "firing":
            step.put_episode(with_changes(known, status="resolved", last_seen=now, ended_at=now))
            step.log(target.key, "episode_resolved", alert=alert.name, fingerprint=alert.fingerprint)
            current = step.targets.get(target.key)
            if current is not None and current.needs_probe:
                step.put_target(with_changes(current, needs_probe=False))

    def on_agent(self, state: State, agent: AgentState, now: float) -> Step:
        """A report of an agent: alive, what its host looks like, and what it was last told."""
        step = Step(state)
        if agent.host not in state.agents:
            step.log(agent.host, "agent_joined", processes=agent.processes)
        step.put_agent(with_changes(agent, seen_at=now))
        for device, held in agent.held.items():
            target = Target(agent.host, device)
            current = step.targets.get(target.key) or TargetState(target=target)
            if held.generation > current.generation:
                # Told by a receiver whose journal we do not have. What the jobs live with now is the truth.
                phase = "avoided" if held.desired == "avoid" else "in_service"
                adopted = with_changes(
                    current,
                    desired=held.desired,
                    phase=phase,
                    generation=held.generation,
                    op_id="",
                    hold_s=self._config.hold.initial_s,
                    changed_at=now,
                )
                step.put_target(adopted)
                step.log(target.key, "adopted", desired=held.desired, generation=held.generation)
        for device, connected in agent.connected.items():
            held_out = step.targets.get(f"{agent.host}/{device}")
            if held_out is None or not held_out.quiet_since:
                continue
            if not connected:
                if held_out.blocked != UNHEALTHY:
                    step.log(held_out.target.key, "hold_restarted", reason="probes do not get through")
                step.put_target(with_changes(held_out, quiet_since=now, blocked=UNHEALTHY))
            elif held_out.blocked == UNHEALTHY:
                step.put_target(with_changes(held_out, blocked=""))
                step.log(held_out.target.key, "hold_started", hold_s=round(held_out.hold_s, 1))
        return step


def is_suspect(step: Step, alert: Alert) -> bool:
    """True for a `firing` with the start of an episode that has ended: ask before believing it."""
    known = step.episodes.get(alert.fingerprint)
    return (
        alert.firing and known is not None and known.status != "firing" and alert.starts_at <= known.starts_at
    )


def _is_name(text: str) -> bool:
    return (
        len(text) <= 253
        and text.isprintable()
        and not set(text) & {"/", " ", "\\"}
        and text not in (".", "..")
    )
