"""Who counts, where a limit is a part of the fleet."""

from fabricpulse.remediation.receiver.state.counted_hosts import counted_hosts
from fabricpulse.remediation.receiver.state.model import AgentState


def agents(*named: str) -> list[AgentState]:
    """Of `host@address`."""
    parts = [name.partition("@") for name in named]
    return [AgentState(host=host, seen_at=0.0, source=source) for host, _, source in parts]


def counted(*named: str, members: tuple[str, ...] = ()) -> list[str]:
    return [agent.host for agent in counted_hosts(agents(*named), members)]


def test_one_for_each_address_the_one_that_came_first():
    """A name costs nothing, an address something; who has proven his name counts in any case."""
    assert counted("a@1", "b@2", "x@1", "c@3", "y@1", "p", "q") == ["p", "q", "a", "b", "c"]


def test_all_where_there_are_one_or_two_addresses():
    """A proxy and its stand-in speak for a fleet; but not where others have proven who they are."""
    assert counted("a@1", "b@2", "c@1", "d@2") == ["a", "b", "c", "d"]
    assert counted("a@1", "b@1", "p", "q", "r") == ["p", "q", "r", "a"]


def test_members_where_there_is_a_membership_file():
    """Whatever else is remembered from before there was one."""
    assert counted("a", "b", "x@1", members=("a", "b", "c")) == ["a", "b"]
