"""Hosts that somebody makes up fill no memory."""

from fabricpulse.remediation.protocol import Report
from fabricpulse.remediation.receiver.agent_room import AgentRoom


def nics(count: int) -> Report:
    return Report(devices={f"rail{i}": True for i in range(count)})


def test_new_hosts_find_no_room_and_known_ones_keep_theirs():
    """Also when a known one has as many NICs as before; one that has more is refused while there is no room."""
    room = AgentRoom(max_hosts=2, max_entries=10)
    known = ["h0", "h1"]
    assert room.admits("h0", nics(4), known)
    assert room.admits("h1", nics(4), known)
    assert not room.admits("h2", nics(1), known)
    assert room.admits("h0", nics(4), known)
    assert room.admits("h0", nics(6), known)
    assert not room.admits("h1", nics(5), known)
    assert room.admits("h1", nics(3), known)


def test_entries_count_whatever_they_are():
    """Few hosts with many entries each are as much as many with few."""
    room = AgentRoom(max_hosts=99, max_entries=10)
    assert not room.admits("h0", nics(11), [])
    report = Report(connected={"a": True}, health={"a": "healthy"}, workloads=["w"])
    assert all(room.admits(f"h{i}", report, ["h0", "h1", "h2"]) for i in range(3))
    assert not room.admits("h3", report, ["h0", "h1", "h2"])


def test_what_is_forgotten_makes_room():
    """A host that the receiver no longer keeps."""
    room = AgentRoom(max_hosts=1, max_entries=10)
    assert room.admits("h0", nics(10), ["h0"])
    assert not room.admits("h1", nics(1), ["h0"])
    assert room.admits("h1", nics(1), [])
