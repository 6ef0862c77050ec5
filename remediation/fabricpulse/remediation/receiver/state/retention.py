"""What is forgotten: the journal keeps all, memory the ended ones that are new."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from fabricpulse.remediation.receiver.state.episode_room import MAX_EPISODES
from fabricpulse.remediation.receiver.state.model import State, TargetState
from fabricpulse.remediation.receiver.state.transaction import Transaction

# Ended actions that stay in memory.
_KEEP_ACTIONS = 500
# Ended episodes stay for so long, in seconds: the start of one that ended says that a `firing` with it is stale, and an
# Alertmanager that was cut off repeats it hours later.
_KEEP_EPISODES_S = 86_400.0
# At most so many of them, the newest: room is left for those that fire.
_KEEP_EPISODES = MAX_EPISODES // 4
# Episodes are looked through this often: of a large fleet there are tens of thousands.
EPISODES_EVERY_S = 30.0
_FORGET_HOST_S = 86_400.0
# NICs that are adopted from hosts for which others could report as well: of all, and of those behind one address.
_MOST_ADOPTED = 4_096
_MOST_OF_AN_ADDRESS = 1_024
# Generation of a target in service of whose operations its agent holds none: less than that of any.
DISOWNED = 1


def is_adopted(target: TargetState) -> bool:
    """Whether this receiver knows of the target only by what an agent holds: it has never decided about it."""
    decided = target.op_id or target.failovers or target.attempts
    return target.generation > 0 and not decided


def room_to_adopt(state: State | Transaction, source: str) -> int:
    """How many more targets may be adopted from hosts that report from `source`, and for which others could as well."""
    adopted = _adopted_by_source(state)
    return max(0, min(_MOST_ADOPTED - adopted.total(), _MOST_OF_AN_ADDRESS - adopted[source]))


def adoption_full(state: State) -> str:
    """Why no more targets are adopted from some hosts, "" while there is room."""
    adopted = _adopted_by_source(state)
    if adopted.total() >= _MOST_ADOPTED:
        return f"{adopted.total()} NICs that agents without an identity report as out"
    full = sorted(source for source, count in adopted.items() if source and count >= _MOST_OF_AN_ADDRESS)
    return f"{adopted[full[0]]} NICs that agents at {full[0]} report as out" if full else ""


def _adopted_by_source(state: State | Transaction) -> Counter[str]:
    """Adopted targets by the address of their agents, "" where they have not reported since the start. Not those of
    hosts for which nobody else can report."""
    adopted: Counter[str] = Counter()
    agents = state.agents
    for target in state.targets.values():
        if is_adopted(target):
            agent = agents.get(target.target.host)
            if agent is None or agent.source:
                adopted[agent.source if agent is not None else ""] += 1
    return adopted


def forget(transaction: Transaction, recent_s: float, now: float) -> None:
    """Drops what is too old. recent_s : how long the times of actions count."""
    recent = tuple(entry for entry in transaction.recent if now - entry[0] <= recent_s)
    if len(recent) != len(transaction.recent):
        transaction.set(recent=recent)
    current = {op for target in transaction.targets.values() for op in (target.op_id, target.avoid_op_id)}
    transaction.drop(
        "actions",
        _oldest(
            transaction.actions,
            _KEEP_ACTIONS,
            lambda a: a.outcome != "pending" and a.op_id not in current,
            lambda a: float(a.created_at),
        ),
    )
    forget_hosts(
        transaction,
        [host for host, agent in transaction.agents.items() if now - agent.seen_at > _FORGET_HOST_S],
    )


def forget_hosts(transaction: Transaction, hosts: Collection[str]) -> None:
    """Drops the agents of these hosts, and what was adopted from them. What was decided about them stays."""
    for host in hosts:
        transaction.drop("agents", [host])
        keys = [key for key in transaction.targets_of(host) if is_adopted(transaction.targets[key])]
        transaction.drop("targets", keys)


def forget_ended(transaction: Transaction, shared_s: float, now: float) -> None:
    """Drops old episodes, and targets of hosts that do not report since before a restart: nobody has what was adopted,
    and of a NIC in service there is nothing to know. shared_s : as long as this an episode counts for others.

    An expired episode stays while its target is out and needs a probe: it alone says that the end of another one is not
    enough.
    """
    keep_s = max(_KEEP_EPISODES_S, shared_s)
    unproven = {
        key for key, target in transaction.targets.items() if target.needs_probe and target.desired == "avoid"
    }
    ended = {
        key: e
        for key, e in transaction.episodes.items()
        if e.status == "resolved" or (e.status == "expired" and e.target.key not in unproven)
    }
    old = [key for key, episode in ended.items() if now - episode.ended_at > keep_s]
    old += _oldest(ended, _KEEP_EPISODES, lambda _: True, lambda e: float(e.ended_at))
    transaction.drop("episodes", list(dict.fromkeys(old)))
    if now - transaction.started_at <= _FORGET_HOST_S:
        return  # agents are not kept: those that have not reported yet may all be there
    transaction.drop(
        "targets",
        [
            key
            for key, target in transaction.targets.items()
            # What was adopted has a hold that no report will end any more.
            if (is_adopted(target) or _is_settled(target, now))
            and target.target.host not in transaction.agents
            and 0 < target.changed_at < now - _FORGET_HOST_S
            and not _is_under_way(transaction, target)
        ],
    )


def _is_settled(target: TargetState, now: float) -> bool:
    """Whether nothing is known of a target that the clock does not know: the next decision must be newer than what its
    agent holds."""
    return target.phase == "in_service" and not target.blocked and target.generation < int(now * 1000)


def _is_under_way(transaction: Transaction, target: TargetState) -> bool:
    action = transaction.actions.get(target.op_id)
    return action is not None and action.outcome == "pending"


def _oldest(values: Any, keep: int, ended: Callable[[Any], bool], when: Callable[[Any], float]) -> list[str]:
    """Keys of the ended ones beyond the newest `keep`."""
    if len(values) <= keep:
        return []
    keys = sorted((key for key, value in values.items() if ended(value)), key=lambda key: when(values[key]))
    return keys[: max(0, len(keys) - keep)]
