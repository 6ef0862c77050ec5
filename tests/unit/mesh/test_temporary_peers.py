"""Temporary peers of a host: whom it probes for the coordinator, how long, and what it never does."""

import msgspec
import pytest

from fabricpulse.core.fleet.membership import Host, Membership, Nic
from fabricpulse.diagnosis.wire.messages import EdgeName, EvidenceReply
from fabricpulse.mesh.fleet_view import view_of
from fabricpulse.mesh.temporary_peers import Lease, TemporaryLease, peers_of_lease

FLEET = Membership(
    (
        *(
            Host(
                f"h{n}",
                (
                    Nic("eth0", f"10.0.0.{n + 1}", "rail0"),
                    Nic("eth1", f"10.0.1.{n + 1}", "rail1"),
                ),
            )
            for n in range(8)
        ),
        Host("six", (Nic("eth0", "fd00::6", "rail0"),)),
    )
)
EDGES = (EdgeName("eth0", "h1", "eth0"), EdgeName("eth1", "h2", "eth1"))


def reply(round_: int = 1, edges: tuple[EdgeName, ...] = EDGES, lease_s: float = 15.0) -> EvidenceReply:
    return EvidenceReply(False, msgspec.msgpack.encode(edges) if edges else b"", lease_s, round_, 15.0)


def test_a_lease_ends_when_the_coordinator_goes_away() -> None:
    """It is renewed by each reply, ended by one without, and over by itself when no reply comes."""
    held = TemporaryLease()
    assert held.at(0.0) == Lease()
    held.offered(reply(), 0.0)
    assert held.at(14.9).edges == EDGES
    held.offered(reply(), 14.9)
    assert held.at(29.0).edges == EDGES
    assert held.at(29.9) == Lease()
    held.offered(reply(), 40.0)
    held.offered(EvidenceReply(False), 41.0)
    assert held.at(41.0) == Lease()
    # However long the coordinator would like it to be.
    held.offered(reply(lease_s=1e9), 50.0)
    assert held.at(109.0).edges == EDGES
    assert held.at(110.0) == Lease()


def test_a_change_of_the_membership_ends_the_round() -> None:
    """It is not taken up again, however often the coordinator repeats it; the next one is."""
    held = TemporaryLease()
    held.offered(reply(3), 0.0)
    held.cancel()
    assert held.at(1.0) == Lease()
    held.offered(reply(3), 2.0)
    assert held.at(2.0) == Lease()
    held.cancel()
    held.offered(reply(3), 3.0)
    assert held.at(3.0) == Lease()
    held.offered(reply(4), 4.0)
    assert held.at(4.0).round == 4


@pytest.mark.parametrize(
    "bad",
    [
        EvidenceReply(False, b"\xc1", 15.0, 1, 15.0),
        EvidenceReply(False, msgspec.msgpack.encode(EDGES), 0.0, 1, 15.0),
        EvidenceReply(False, msgspec.msgpack.encode(EDGES), 15.0, 1, 0.0),
        EvidenceReply(False, msgspec.msgpack.encode(EDGES), float("nan"), 1, 15.0),
    ],
)
def test_nonsense_is_no_lease(bad: EvidenceReply) -> None:
    """Bytes that are no edges, and leases or periods that are none."""
    held = TemporaryLease()
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        held.offered(bad, 0.0)
    assert held.at(0.0) == Lease()


def test_only_members_are_probed_and_few_of_them() -> None:
    """From NICs that this host has to NICs of members with an address of the same family, each once, never itself, and
    no more of a NIC than it takes.
    """
    view = view_of(FLEET, "h0", 2, 0)
    edges, peers = peers_of_lease(
        (
            *EDGES,
            *EDGES,
            EdgeName("eth9", "h1", "eth0"),
            EdgeName("eth0", "h1", "eth9"),
            EdgeName("eth0", "stranger", "eth0"),
            EdgeName("eth0", "h0", "eth1"),
            EdgeName("eth0", "six", "eth0"),
        ),
        view,
        FLEET,
        4,
    )
    assert tuple(edges) == EDGES
    assert [(p.nic, p.host, p.device, p.network, p.address) for p in peers] == [
        (0, "h1", "eth0", "rail0", "10.0.0.2"),
        (1, "h2", "eth1", "rail1", "10.0.1.3"),
    ]
    many = [EdgeName("eth0", f"h{n}", f"eth{rail}") for n in range(1, 8) for rail in range(2)]
    assert [len(peers_of_lease(many, view, FLEET, most)[1]) for most in (0, 1, 4)] == [0, 1, 4]
