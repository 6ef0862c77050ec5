"""Hosts that somebody makes up fill no memory."""

from fabricpulse.remediation.protocol import Report
from fabricpulse.remediation.receiver.web.agent_room import AgentRoom


def nics(count: int) -> Report:
    return Report(devices={f"rail{i}": True for i in range(count)})


def admits(room: AgentRoom, host: str, report: Report, known: list[str]) -> bool:
    return room.make_room(host, report, known) is not None


def test_new_hosts_find_no_room_and_known_ones_keep_theirs():
    """Also when a known one has as many NICs as before; one that has more is refused while there is no room."""
    room = AgentRoom(max_hosts=2, max_entries=10)
    known = ["h0", "h1"]
    assert admits(room, "h0", nics(4), known)
    assert admits(room, "h1", nics(4), known)
    assert not admits(room, "h2", nics(1), known)
    assert admits(room, "h0", nics(4), known)
    assert admits(room, "h0", nics(6), known)
    assert not admits(room, "h1", nics(5), known)
    assert admits(room, "h1", nics(3), known)


def test_entries_count_whatever_they_are():
    """Few hosts with many entries each are as much as many with few."""
    room = AgentRoom(max_hosts=99, max_entries=10)
    assert not admits(room, "h0", nics(11), [])
    report = Report(connected={"a": True}, health={"a": "healthy"}, workloads=["w"])
    assert all(admits(room, f"h{i}", report, ["h0", "h1", "h2"]) for i in range(3))
    assert not admits(room, "h3", report, ["h0", "h1", "h2"])


def test_what_is_forgotten_makes_room():
    """A host that the receiver no longer keeps."""
    room = AgentRoom(max_hosts=1, max_entries=10)
    assert admits(room, "h0", nics(10), ["h0"])
    assert not admits(room, "h1", nics(1), ["h0"])
    assert admits(room, "h1", nics(1), [])


def test_who_makes_up_hosts_takes_their_room_from_himself():
    """Twenty thousand names of one address left no room for a fleet's hosts: theirs goes first, newest first."""
    room = AgentRoom(max_hosts=10, max_entries=100)
    known = [f"fake{i}" for i in range(10)]
    assert all(room.make_room(name, nics(1), known, "10.0.0.9") == [] for name in known)
    assert room.make_room("fake10", nics(1), known, "10.0.0.9") is None
    assert room.make_room("h0", nics(1), known, "10.0.0.1") == ["fake9"]
    known = [*known[:9], "h0"]
    assert room.make_room("fake9", nics(1), known, "10.0.0.9") is None
    assert room.make_room("proven", nics(1), known) == ["fake8"]
    # Entries are room as well as names.
    room = AgentRoom(max_hosts=10, max_entries=100)
    assert room.make_room("fake0", nics(49), [], "10.0.0.9") == []
    assert room.make_room("fake1", nics(49), ["fake0"], "10.0.0.9") == []
    assert room.make_room("h0", nics(8), ["fake0", "fake1"], "10.0.0.1") == ["fake1"]
    assert room.make_room("fake1", nics(44), ["fake0", "h0"], "10.0.0.9") is None, "what h0 has stays"
    assert room.make_room("fake1", nics(43), ["fake0", "h0"], "10.0.0.9") == []


def test_addresses_with_as_much_do_not_push_each_other_out():
    """Else each report of one would make the other's hosts join anew, a line of the journal each."""
    room = AgentRoom(max_hosts=10, max_entries=100)
    for i in range(10):
        assert room.make_room(f"a{i}", nics(1), [f"a{j}" for j in range(i)], "10.0.0.1") == []
    known = [f"a{i}" for i in range(10)]
    for i in range(10):
        left = room.make_room(f"b{i}", nics(1), known, "10.0.0.2")
        assert (left == [known[9 - i]]) if i < 5 else left is None
        known = [name for name in known if name not in (left or ())] + [f"b{i}"] * (left is not None)
        assert room.make_room("a9", nics(1), known, "10.0.0.1") is None
