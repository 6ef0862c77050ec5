"""rtnetlink messages as bytes: what is taken, what is left out, and that nothing breaks the parser."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.hostinfo.netlink import link_messages as wire


def link(
    name: str = "rail0",
    *,
    kind: int = wire.RTM_NEWLINK,
    family: int = 0,
    flags: int = 0x11043,
    counts: tuple[int, int] | None = (3, 2),
    carrier: int | None = 1,
    sequence: int = 0,
    port: int = 0,
) -> bytes:
    body = struct.pack("=BxHiII", family, 1, 7, flags, 0)
    encoded = name.encode() + b"\0"
    parts = [struct.pack("=HH", 4 + len(encoded), 3) + encoded]
    if carrier is not None:
        parts.append(struct.pack("=HHB", 5, 33, carrier))
    if counts is not None:
        parts.append(struct.pack("=HHI", 8, 47, counts[0]))
        parts.append(struct.pack("=HHI", 8, 48, counts[1]))
    body += b"".join(part + b"\0" * (-len(part) % 4) for part in parts)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, sequence, port) + body


def test_a_link():
    """Name, index, administrative and carrier state, how often the carrier came and went, and whose answer it is."""
    (message,) = wire.parse(link(sequence=9, port=4711))
    assert message == wire.LinkMessage("rail0", 7, True, True, 3, 2, False, wire.Request(4711, 9))


def test_old_kernels_report_the_carrier_by_a_flag_without_counts():
    (message,) = wire.parse(link(counts=None, carrier=None, flags=0x1003))
    assert isinstance(message, wire.LinkMessage)
    assert (message.carrier, message.up_count, message.down_count) == (False, None, None)


@pytest.mark.parametrize("kind", [wire.RTM_NEWLINK, wire.RTM_DELLINK])
def test_messages_of_bridges_are_left_out(kind):
    assert list(wire.parse(link(kind=kind, family=7))) == []


def test_several_messages_in_one_datagram():
    done = struct.pack("=IHHIIi", 20, wire.NLMSG_DONE, 0, 5, 6, 0)
    first, second, end = wire.parse(link("a") + link("bcd", kind=wire.RTM_DELLINK) + done)
    assert isinstance(first, wire.LinkMessage)
    assert isinstance(second, wire.LinkMessage)
    assert (first.name, second.name, second.removed) == ("a", "bcd", True)
    assert end == wire.Control(wire.Request(6, 5), 0, False, True)


def test_addresses_and_errors():
    """An address message has the index of its link; an error has its errno and the request."""
    address = struct.pack("=IHHIIBBBBI", 24, wire.RTM_NEWADDR, 0, 0, 0, 2, 24, 0, 0, 12)
    error = struct.pack("=IHHIIi", 20, wire.NLMSG_ERROR, 0, 5, 6, -16)
    assert list(wire.parse(address + error)) == [
        wire.AddressMessage(12),
        wire.Control(wire.Request(6, 5), -16, False, True),
    ]


def test_a_message_that_is_cut_off():
    """Cut at any byte: an incomplete message reports no link."""
    for cut in range(len(link())):
        assert list(wire.parse(link()[:cut])) == [], cut


@given(st.binary(max_size=200))
def test_garbage(data):
    """Random bytes are parsed or left out, never an exception."""
    list(wire.parse(data))


@given(st.lists(st.tuples(st.integers(0, len(link()) - 1), st.integers(0, 255)), max_size=6))
def test_a_damaged_message(changes):
    """A good message with random bytes in it: at most as many messages as fit into it."""
    damaged = bytearray(link())
    for place, byte in changes:
        damaged[place] = byte
    assert len(list(wire.parse(bytes(damaged)))) <= len(damaged) // 16
