"""Who is in the fleet: what hosts report of themselves."""

import gc
import tracemalloc

import msgspec

from fabricpulse.clocksync.coordinator.roster import Roster
from fabricpulse.clocksync.wire.messages import EdgeName, HostInfo


def info_of(*edges: EdgeName) -> HostInfo:
    """As it comes by HTTP: no two of its strings are one object."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(HostInfo(1, "", (), edges, "none")), type=HostInfo)


def test_edges_keep_their_names() -> None:
    """In their order, while hosts come and go and get other numbers."""
    roster = Roster()
    for number in range(1_100):
        roster.admit(f"gone{number}", 1, 0.0, 1.0)
    roster.take_info(roster.members["gone9"], info_of(EdgeName("former", "b", "former")))
    edges = {
        "a": [
            EdgeName("rail1", "b", "rail0"),
            EdgeName("rail0", "b", "rail1"),
            EdgeName("rail0", "z", "rail0"),
        ],
        "b": [EdgeName("rail0", "gone7", "rail2")],
    }
    for host, its in edges.items():
        roster.take_info(roster.admit(host, 1, 5.0, 1.0), info_of(*its))
        roster.columns.at["expires_s"][roster.members[host].slot] = 20.0
    nics = roster.nics()
    assert nics is not None
    assert len(nics.key) == 8
    roster.expire(10.0, 1.0)
    assert roster.crowded
    roster.renumber()
    assert {host: roster.edges(member) for host, member in roster.members.items()} == edges
    assert roster.slots == 4
    assert sorted(roster._devices) == ["rail0", "rail1", "rail2"]
    again = roster.nics()
    assert again is not None
    # Without those of the edge of gone9.
    assert len(again.key) == 6
    assert set(again.key.tolist()) < set(nics.key.tolist())


def test_an_edge_that_changes_is_taken() -> None:
    roster = Roster()
    member = roster.admit("a", 1, 0.0, 1.0)
    for device in "rail0", "rail0", "rail1":
        roster.take_info(member, info_of(EdgeName(device, "b", "rail0")))
        assert roster.edges(member) == [EdgeName(device, "b", "rail0")]
    # Where it listens has not changed.
    assert roster.generation == 2


def test_what_a_host_reports_of_its_edges_takes_little_memory() -> None:
    """Strings and objects of 16 edges took 3.7 KB a host."""
    roster, hosts = Roster(), 500
    names = [f"gpu-{number:05d}" for number in range(hosts)]
    for name in names:
        roster.slot(name)
        roster.admit(name, 1, 0.0, 1.0)
    gc.collect()
    tracemalloc.start()
    for number, name in enumerate(names):
        edges = (
            EdgeName(f"mlx5_{k % 8}", names[(number + k) % hosts], f"mlx5_{k % 8}") for k in range(1, 17)
        )
        roster.take_info(roster.members[name], info_of(*edges))
    gc.collect()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 1_000 * hosts


def test_names_of_nics_that_nobody_has_are_given_up() -> None:
    """Of two hosts: one renames its NICs with each report, the other keeps its names."""
    roster = Roster()
    lasting = [EdgeName(f"rail{k}", "b", f"rail{k}") for k in range(2)]
    roster.take_info(roster.admit("a", 1, 0.0, 1.0), info_of(*lasting))
    key = roster.nics()
    changing = roster.admit("b", 1, 0.0, 1.0)
    most = 0
    for number in range(50):
        edges = [EdgeName(f"new{number}-{k}", "a", f"far{number}-{k}") for k in range(200)]
        roster.take_info(changing, info_of(*edges))
        assert roster.edges(changing) == edges
        assert roster.edges(roster.members["a"]) == lasting
        most = max(most, len(roster._devices))
    # What is left by its last report, twice, beside one report and a few.
    assert most <= 1024 + 3 * 402
    assert len(roster._device_numbers) == len(roster._devices)
    nics = roster.nics()
    assert key is not None
    assert nics is not None
    assert set(key.key.tolist()) <= set(nics.key.tolist())
