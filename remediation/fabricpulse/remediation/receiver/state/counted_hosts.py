"""Which hosts count where a limit is a part of the fleet: names cost nothing, so invented hosts must move no limit.

Where agents share one token, or none is asked for, whoever has it can report for thousands of hosts. A host counts if
no other sender can report for it: it is in the membership file, or has shown a token or certificate of its own. Of the
others one counts for each address that they report from, the one that came first.
"""

from collections.abc import Collection, Iterable

from fabricpulse.remediation.receiver.state.model import AgentState

# So few addresses are proxies, or a fleet too small for parts of it to mean much: then every host counts.
_FEWEST_SOURCES = 3


def counted_hosts(agents: Iterable[AgentState], members: Collection[str]) -> list[AgentState]:
    """agents : in the order in which they came. members : hosts of the membership file; where there is one, only they
    count."""
    if members:
        return [agent for agent in agents if agent.host in members]
    counted: list[AgentState] = []
    first: dict[str, AgentState] = {}
    others: list[AgentState] = []
    for agent in agents:
        if not agent.source:
            counted.append(agent)
            continue
        others.append(agent)
        first.setdefault(agent.source, agent)
    few = len(first) < _FEWEST_SOURCES and len(counted) < _FEWEST_SOURCES
    return counted + (others if few else list(first.values()))
