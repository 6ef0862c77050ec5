"""What the failovers of a rule have come to, and whether it goes on acting. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from fabricpulse.remediation.protocol import STALLED
from fabricpulse.remediation.receiver.config import GuardConfig
from fabricpulse.remediation.receiver.state.model import Action, AgentState, State

_MEASURED = ("recovered", "not_recovered")
_CAME_TO_NOTHING = ("failed", "rolled_back")


# What has come to nothing on one host only says nothing about the others.
_FEWEST_HOSTS = 2
# What processes of one host dispute among themselves counts once it is so on several: a defect that shows in one
# process of each job does so everywhere, and false reports of one user have those of all others between them.
_FEWEST_DISPUTED = 5
FLEET = ""


def stops_of(
    alert: str,
    actions: Iterable[Action],
    limits: GuardConfig,
    resumed_at: float,
    agents: Collection[AgentState] = (),
) -> dict[str, str]:
    """Host, or FLEET for all of them -> why the rule of this alert only observes there: `harmful` when jobs stalled
    after its last failovers, `unhelpful` when none of more of them has a proven recovery. What was before an operator
    resumed does not count.

    A failover on a host without traffic proves nothing either way, nor does one that nobody could measure. The fleet is
    judged by reports of several hosts, and by those that processes of one host dispute among themselves only where the
    last ones of all are bad, on five hosts: a user with false counters, or who does not do what he says, must not stop
    the rule for all others. So what one user's processes can have said alone, as he was on each of these hosts, counts
    on the hosts where he is.
    """
    tried = sorted(
        (a for a in actions if a.alert == alert and a.desired == "avoid" and a.created_at > resumed_at),
        key=lambda action: action.created_at,
    )
    by_host: defaultdict[str, list[Action]] = defaultdict(list)
    for action in tried:
        by_host[action.target.host].append(action)
    found = {host: stop[0] for host, own in by_host.items() if (stop := _stop(own, limits, 1))}
    agreed = [action for action in tried if not _is_disputed(action)]
    if stop := _stop(agreed, limits, _FEWEST_HOSTS) or _stop(tried, limits, _FEWEST_DISPUTED):
        why, last = stop
        hosts = _where_one_may_say_so(last, agents)
        if hosts is None:
            return found | {FLEET: why}
        for host in hosts:
            found.setdefault(host, why)
    return found


def _where_one_may_say_so(last: list[Action], agents: Collection[AgentState]) -> set[str] | None:
    """Hosts of the users who had processes on the hosts of all of these failovers; None for the whole fleet: there was
    no such user, or one is everywhere.

    Where it is not known whose processes there were, any user may have had some: that never makes it several. Then
    these hosts count, too, and where nothing is known of all these failovers, all hosts of which nothing is. A fleet of
    agents that do not report users is one.
    """
    if not any(agent.users for agent in agents):
        return None
    known = [set(action.users) for action in last if action.users]
    hosts = {action.target.host for action in last if not action.users}
    if not known:
        return hosts | {agent.host for agent in agents if agent.processes and not agent.users}
    suspects = {
        user
        for user in set.intersection(*known)
        if any(agent.users and user not in agent.users for agent in agents)
    }
    if not suspects:
        return None
    return hosts | {agent.host for agent in agents if suspects & set(agent.users)}


def _stop(tried: list[Action], limits: GuardConfig, fewest_hosts: int) -> tuple[str, list[Action]] | None:
    stalled = [(a, a.traffic in STALLED) for a in tried if a.traffic in ("moved", *STALLED)]
    if last := _all(stalled, limits.max_harmful, fewest_hosts):
        return "harmful", last
    unproven = [
        (a, a.recovery != "recovered")
        for a in tried
        if a.recovery in _MEASURED or a.outcome in _CAME_TO_NOTHING
    ]
    if last := _all(unproven, limits.max_unproven, fewest_hosts):
        return "unhelpful", last
    return None


def _is_disputed(action: Action) -> bool:
    """Whether other processes of the host were well with it: of other users, or those that did what was asked."""
    return action.traffic == "partly_stalled" or (action.outcome == "failed" and action.processes > 0)


def _all(tried: list[tuple[Action, bool]], count: int, fewest_hosts: int) -> list[Action]:
    """The last `count` if all of them are there and bad, and they are of so many hosts; for a larger number of hosts
    than that, so many are looked at."""
    if fewest_hosts > _FEWEST_HOSTS:
        count = max(count, fewest_hosts)
    last = tried[-count:]
    hosts = {action.target.host for action, _ in last}
    if len(last) >= count and all(bad for _, bad in last) and len(hosts) >= min(count, fewest_hosts):
        return [action for action, _ in last]
    return []


def stopped_rules(alerts: Iterable[str], state: State, limits: GuardConfig) -> dict[str, dict[str, str]]:
    """Rules that only observe somewhere, by the name of their alert; see `stops_of`."""
    acted = {action.alert for action in state.actions.values()}
    found = {
        alert: stops_of(alert, state.actions.values(), limits, state.resumed_at, state.agents.values())
        for alert in alerts
        if alert in acted
    }
    return {alert: stops for alert, stops in found.items() if stops}
