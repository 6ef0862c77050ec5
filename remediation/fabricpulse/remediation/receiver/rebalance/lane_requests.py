"""Rules with `lane.repath` or `lane.weight`: an alert names lanes, and what is measured of them must confirm it. Pure.

An alert alone moves nothing: it may be forged, stale, or about a path that is well by now. It chooses which lanes a
plan may be about; the plan itself comes from what the agents report, is carried out and judged like any other.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.rebalance.lane_evidence import IDLE_BYTES_S, LaneSummary
from fabricpulse.remediation.receiver.rule_config import LANE_ACTIONS, RuleConfig
from fabricpulse.remediation.receiver.state.model import Episode, LaneSelector, Rebalance
from fabricpulse.remediation.receiver.state.transaction import Transaction

_MOST_TEXT = 128


@dataclass(frozen=True)
class LaneRequest:
    """An alert that fires, and the rule that says what to do about it."""

    episode: Episode
    rule: RuleConfig

    @property
    def key(self) -> str:
        """Of this episode: the same alert that fires again later is another request."""
        return f"{self.episode.fingerprint} {self.episode.first_seen!r}"

    def names(self, lane: LaneSummary) -> bool:
        """Whether the alert is about this lane."""
        named, last = self.episode.lanes, lane.last
        return (
            named is not None
            and lane.host == self.episode.target.host
            and last.device == named.device
            and named.workload in ("", last.workload)
            and named.connection in ("", last.connection)
            and named.lane in (-1, last.lane)
        )


def lane_requests(transaction: Transaction, rules: Mapping[str, RuleConfig]) -> list[LaneRequest]:
    """What fires and asks for other paths or weights, first come first. rules : by the name of the alert."""
    lane_rules = {name: rule for name, rule in rules.items() if is_lane_rule(rule)}
    if not lane_rules:
        return []
    found = [
        LaneRequest(episode, lane_rules[episode.alert])
        for episode in transaction.episodes.values()
        if episode.status == "firing" and episode.alert in lane_rules and episode.lanes is not None
    ]
    return sorted(found, key=lambda request: request.episode.first_seen)


def is_lane_rule(rule: RuleConfig) -> bool:
    """Whether the rule needs what lanes do."""
    return rule.action in LANE_ACTIONS and rule.mode != "observe"


def reports_lanes(config: ReceiverConfig) -> bool:
    """Whether agents are asked what lanes do."""
    return config.rebalance.mode != "observe" or any(map(is_lane_rule, config.rules))


def selector_of(device: str, labels: Mapping[str, str]) -> LaneSelector | str:
    """The lanes that the labels of an alert name, or why they name none."""
    lane = labels.get("lane", "")
    if lane and not (lane.isascii() and lane.isdigit() and len(lane) <= 4):
        return "label lane is not the number of a lane"
    workload, connection = labels.get("workload", ""), labels.get("connection", "")
    if max(len(workload), len(connection)) > _MOST_TEXT:
        return "a label is longer than any name of a job or connection"
    return LaneSelector(device, workload, connection, int(lane) if lane else -1)


def is_answered(request: LaneRequest, plans: Collection[Rebalance]) -> bool:
    """Whether a dry run has logged already what it would do about this episode."""
    return any(plan.phase == "dry_run" and plan.episode == request.key for plan in plans)


def why_not(request: LaneRequest, lanes: Mapping[str, LaneSummary], resting: Mapping[str, str]) -> str:
    """Why there is no plan for what it names: what is measured does not confirm it, or nothing of what it carries is
    measured, or nothing more may be tried."""
    named = [lane for lane in lanes.values() if request.names(lane)]
    rests = {resting.get(lane.job) for lane in named}
    if "cooldown" in rests:
        return "cooldown"
    if "no_new_path" in rests and request.rule.action == "lane.repath":
        return "unhelpful"
    at_work = [lane for lane in named if lane.goodput >= IDLE_BYTES_S]
    return "not_measured" if any(lane.capacity <= 0 for lane in at_work) else "unconfirmed"
