"""What the plugin makes of rtnetlink messages (nccl_plugin/src/process/link_events.h)."""

import random
import struct
import subprocess

import pytest
from tests.fixtures.native.programs import native

NEWLINK, DELLINK, NEWADDR, DELADDR, NEWROUTE = 16, 17, 20, 21, 24
IFNAME, MTU = 3, 4


def attribute(kind: int, payload: bytes) -> bytes:
    """struct rtattr, padded."""
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def message(kind: int, body: bytes) -> bytes:
    """struct nlmsghdr and its body."""
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body + b"\0" * (-len(body) % 4)


def link(kind: int, index: int, name: bytes) -> bytes:
    """A link message with some attribute before the name."""
    info = struct.pack("=BBHiII", 0, 0, 1, index, 0, 0)
    return message(kind, info + attribute(MTU, struct.pack("=I", 1500)) + attribute(IFNAME, name))


def address(kind: int, index: int) -> bytes:
    """An address message."""
    return message(kind, struct.pack("=BBBBI", 2, 24, 0, 0, index))


def parsed(data: bytes, variant: str = "plain") -> list[str]:
    """The events, as text."""
    done = subprocess.run(
        [native("plugin_link_events", variant)], input=data, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(errors="replace").splitlines()


def test_links_and_addresses_are_distinguished() -> None:
    """Each with its index, links with their name; messages of other kinds are left out."""
    data = link(NEWLINK, 7, b"rail0\0") + address(NEWADDR, 7) + message(NEWROUTE, b"\0" * 12)
    data += address(DELADDR, 8) + link(DELLINK, 9, b"veth1\0")
    assert parsed(data) == ["link 7 rail0", "address 7 ", "address-gone 8 ", "link-gone 9 veth1"]


def test_a_name_without_an_end_is_none() -> None:
    """The text of an attribute is not read past it."""
    assert parsed(link(NEWLINK, 7, b"rail0rail0rail0")) == ["link 7 "]


def looks(*datagrams: bytes) -> tuple[int, ...]:
    """How often rail0 (index 2), rail1 (index 3) and all interfaces were looked at, of datagrams 1 ms apart."""
    data = b"".join(struct.pack("=I", len(datagram)) + datagram for datagram in datagrams)
    done = subprocess.run([native("plugin_link_monitor")], input=data, capture_output=True, check=True)
    return tuple(map(int, done.stdout.split()))


def test_what_happens_to_other_interfaces_costs_nothing() -> None:
    """Containers come and go: no NIC of the job is looked at. Each event asked the kernel for all addresses, once a
    NIC: 35 % of a core at a hundred a second."""
    foreign = [
        event
        for index in range(100, 1100)
        for event in (
            link(NEWLINK, index, b"veth%d\0" % index),
            address(NEWADDR, index),
            link(DELLINK, index, b"veth%d\0" % index),
            address(DELADDR, index),
        )
    ]
    assert looks(*foreign) == (0, 0, 0)


def test_a_nic_is_looked_at_when_it_changes() -> None:
    """That one, once for all that one reading tells of it; by its name if it is back as another interface."""
    assert looks(link(NEWLINK, 2, b"rail0\0") + address(NEWADDR, 2) + address(DELADDR, 2)) == (1, 0, 0)
    assert looks(address(DELADDR, 3), link(DELLINK, 3, b"rail1\0")) == (0, 2, 0)
    assert looks(link(NEWLINK, 50, b"rail1\0")) == (0, 1, 0)


def test_nics_that_come_are_looked_for_at_most_five_times_a_second() -> None:
    """A hundred in 0.1 s, 450 in 0.45 s: one reading of all interfaces, which is dear, stands for many."""
    assert looks(*(link(NEWLINK, 50 + at, b"rail%d\0" % (9 + at)) for at in range(100))) == (0, 0, 1)
    assert looks(*(link(NEWLINK, 50 + at, b"rail%d\0" % (9 + at)) for at in range(450))) == (0, 0, 3)


def monitored(*arguments: str, variant: str = "plain") -> str:
    """What tests/native/plugin/link_monitor.cc prints."""
    program = native("plugin_link_monitor", variant)
    return subprocess.run(
        [program, *arguments], capture_output=True, check=True, text=True, timeout=60
    ).stdout


def test_a_nic_that_could_not_be_asked_is_asked_again() -> None:
    """The process had no descriptor left when the link came back, and no event comes a second time: it was taken for up
    with the next poll, up to 5 s later."""
    assert int(monitored("unasked", "1234")) <= 100


def test_a_nic_that_the_poll_finds_listens_soon() -> None:
    """It listened with the next poll only, 5 s later: no peer could dial it until then."""
    assert int(monitored("came")) <= 100


def test_a_nic_whose_rdma_device_was_replaced_is_used_again() -> None:
    """With the next poll, 5 s later at most, and not with the one after it."""
    down, back_ms = monitored("replaced").split()
    assert down == "1"
    assert int(back_ms) <= 5000


def test_a_lookup_without_memory_is_asked_again() -> None:
    """It ended the job."""
    assert monitored("memory") == "1\n0\n"


def test_a_kernel_that_answers_late_keeps_the_service_thread_from_nothing() -> None:
    """Others hold the lock of the network configuration, for which reading addresses waits: a lost link is acted on at
    once, and the address once the kernel has answered."""
    assert monitored("held") == "0 1\n0 0\n"


def test_where_no_thread_can_be_made_addresses_are_read_all_the_same() -> None:
    """In place, and NCCL's thread keeps its signals: it was left with all of them blocked."""
    assert monitored("threadless") == "0 0\n"


@pytest.mark.build
@pytest.mark.slow  # it builds the plugin with the sanitizer
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_read_past_a_broken_message(seed: int) -> None:
    """Cut anywhere, with any byte changed: AddressSanitizer finds nothing."""
    dice = random.Random(seed)
    whole = link(NEWLINK, 7, b"rail0\0") + address(NEWADDR, 7) + link(DELLINK, 9, b"veth1\0")
    for _ in range(50):
        data = bytearray(whole[: dice.randrange(len(whole) + 1)])
        for _ in range(dice.randrange(4)):
            if data:
                data[dice.randrange(len(data))] = dice.randrange(256)
        parsed(bytes(data), "address")
