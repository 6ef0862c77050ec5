"""Reports as datagrams: what they say, what is believed, what is answered, and when HTTP takes over."""

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Iterator
from copy import deepcopy

import msgspec
import pytest
from tests.fixtures.ports import reserved_port
from tests.unit.clocksync.wire.datagrams import HOSTS, NOW, Coordinator, Sidecar, packed, rejoin, report_of

from fabricpulse.clocksync import _report_intake
from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.sidecar.datagram_client import DatagramClient
from fabricpulse.clocksync.wire.datagram import (
    ARRIVAL_DTYPE,
    REPLY_DTYPE,
    Reset,
    fits,
    pack_request,
    unpack_reply,
)
from fabricpulse.clocksync.wire.messages import (
    Channel,
    Line,
    Quorum,
    RoundReply,
    unpack_residuals,
)


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    made = Coordinator()
    yield made
    made.channels.stop()


@pytest.fixture
def sidecars(coordinator: Coordinator) -> Iterator[dict[str, Sidecar]]:
    made = {host: Sidecar(channel, coordinator.port) for host, channel in coordinator.channel.items()}
    yield made
    for sidecar in made.values():
        sidecar.socket.close()


def test_layouts_are_those_of_the_native_module() -> None:
    """Heads of requests (with what is added as they arrive) and replies."""
    assert (
        ARRIVAL_DTYPE.itemsize - 16,
        REPLY_DTYPE.itemsize,
        ARRIVAL_DTYPE.itemsize,
    ) == _report_intake.HEAD_SIZES


def test_a_round_by_datagram_says_what_one_by_http_says(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """Lines, root and residuals; leases are renewed; a reply is never longer than its request."""
    # A fleet that does not know the last root, or how it moved, gives wider bounds.
    known = coordinator.fleet
    by_http = Fleet(root=known.root, quorum=known.quorum, root_moves=deepcopy(known.root_moves))
    sizes = {}
    for host, sidecar in sidecars.items():
        report = report_of(host, 300 if host == "a" else 0)
        by_http.report(msgspec.structs.replace(report, info=report_of(host, info=True).info), 100.0)
        data = packed(sidecar.channel, 7, report)
        sizes[host] = len(data)
        sidecar.socket.send(data)
    coordinator.wait_for(taken=3)
    assert coordinator.channels.intake.waiting() == (3, 0)
    coordinator.now_s = 105.0
    assert coordinator.solve() == 3
    assert not coordinator.fleet.expire(111.0)
    by_http.solve_round(100.01)
    for host, sidecar in sidecars.items():
        data = sidecar.socket.recv(2048)
        assert len(data) <= sizes[host]
        answer = unpack_reply(sidecar.channel, 7, data, "before")
        assert answer is not None
        reply, expected = answer[0], by_http.roster.members[host]
        assert expected.line is not None
        assert reply.line is not None
        assert reply.line.correction_ns == pytest.approx(expected.line.correction_ns, abs=1)
        assert reply.line.bound_ns == pytest.approx(expected.line.bound_ns, abs=2)
        assert reply.root == coordinator.fleet.root
        assert (reply.quorum, reply.no_quorum) == (coordinator.fleet.quorum, False)
        assert reply.quorum is not None
        assert reply.quorum.hosts == 3
        assert unpack_residuals(reply.residuals) == unpack_residuals(expected.residuals)
        assert not reply.resend_info


@pytest.mark.parametrize("no_quorum", [False, True])
def test_half_of_a_fleet_hears_by_datagram_that_it_is_without_quorum(
    no_quorum: bool, coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """A quorum that the reports bring is the coordinator's, as by HTTP, and its root is found by the hash."""
    by_http = Fleet()
    quorum = Quorum(NOW // 10**9, 8, "b", anchored=False)
    for host, sidecar in sidecars.items():
        report = msgspec.structs.replace(report_of(host), quorum=quorum, no_quorum=no_quorum)
        by_http.report(msgspec.structs.replace(report, info=report_of(host, info=True).info), 100.0)
        sidecar.socket.send(packed(sidecar.channel, 7, report))
    coordinator.wait_for(taken=3)
    coordinator.solve()
    by_http.solve_round(100.01)
    assert by_http.no_quorum
    for host, sidecar in sidecars.items():
        reply, expected = sidecar.receive(7), by_http.roster.members[host].line
        assert (reply.quorum, reply.root, reply.no_quorum) == (quorum, "b", True)
        assert expected is not None
        assert reply.line is not None
        # What nobody has noticed is added to the bound, unless it grows already.
        assert reply.line.bound_ns == pytest.approx(expected.bound_ns, abs=2)
        assert (reply.line.bound_ns > 5_000) is not no_quorum


def test_a_root_of_which_only_the_hash_is_known_is_asked_for(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """The quorum counts at once, is not passed on without its root, and is whole after a report by HTTP."""
    quorum = Quorum(NOW // 10**9, 8, "elsewhere", anchored=False)
    for sequence, (host, sidecar) in enumerate(sidecars.items(), 1):
        report = msgspec.structs.replace(report_of(host), quorum=quorum)
        sidecar.socket.send(packed(sidecar.channel, sequence, report))
    coordinator.wait_for(taken=3)
    coordinator.solve()
    assert coordinator.fleet.no_quorum
    for sequence, sidecar in enumerate(sidecars.values(), 1):
        answer = unpack_reply(sidecar.channel, sequence, sidecar.socket.recv(2048), "before", quorum)
        assert answer is not None
        assert (answer[0].quorum, answer[0].root, answer[1]) == (quorum, "before", True)
    coordinator.fleet.report(msgspec.structs.replace(report_of("a"), quorum=quorum), coordinator.now_s)
    coordinator.solve()
    assert coordinator.fleet.quorum == quorum


def test_a_name_for_which_a_reply_has_no_room_is_fetched_by_http(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """What is known of the quorum stays until then."""
    before = Quorum(NOW // 10**9, 3, "b" * 200, anchored=False)
    coordinator.fleet.quorum = Quorum(NOW // 10**9 + 100, 8, "c" * 200, anchored=False)
    sidecars["a"].socket.send(packed(sidecars["a"].channel, 1, report_of("a")))
    sidecars["b"].socket.send(packed(sidecars["b"].channel, 1, report_of("b")))
    coordinator.wait_for(taken=2)
    coordinator.solve()
    answer = unpack_reply(sidecars["a"].channel, 1, sidecars["a"].socket.recv(2048), "before", before)
    assert answer is not None
    assert (answer[0].quorum, answer[0].root, answer[0].no_quorum, answer[1]) == (
        before,
        "before",
        True,
        True,
    )


def test_what_is_forged_or_replayed_is_not_taken(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """A wrong key, a changed byte anywhere, the same datagram twice, an older one; nor is any of it answered."""
    sidecar = sidecars["a"]
    good = packed(sidecar.channel, 9, report_of("a"))
    wrong_key = packed(msgspec.structs.replace(sidecar.channel, key=bytes(16)), 10, report_of("a"))
    sidecar.socket.send(wrong_key)
    for at in (8, 20, 90, len(good) - 1):
        sidecar.socket.send(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    coordinator.wait_for(forged=5)
    sidecar.socket.send(good)
    sidecar.socket.send(good)
    sidecar.socket.send(packed(sidecar.channel, 8, report_of("a")))
    coordinator.wait_for(taken=1, replayed=2)
    assert coordinator.solve() == 1
    sidecar.receive(9)
    assert coordinator.solve() == 0


def test_what_is_no_datagram_of_ours_is_dropped(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """Too short, too long, another magic, more edges than bytes, parts that cannot be."""
    send = sidecars["a"].socket.send
    good = packed(sidecars["a"].channel, 1, report_of("a"))
    send(good[:100])
    send(good.ljust(1_500, b"\0"))
    send(b"GET " + good[4:])
    send(good[:82] + b"\xff" + good[83:])
    # The second of one part, and the first of five.
    send(good[:83] + b"\x01" + good[84:])
    send(good[:83] + b"\x40" + good[84:])
    coordinator.wait_for(malformed=6)
    assert coordinator.counts()["taken"] == 0


def test_values_of_nonsense_are_left_out(coordinator: Coordinator, sidecars: dict[str, Sidecar]) -> None:
    """Under a valid tag: a time that would overflow, a negative bound. The others' reports count."""
    for host, line in (("a", Line(2**62, 0, 0, 0)), ("b", Line(NOW, 0, 0, -1))):
        report = msgspec.structs.replace(report_of(host), line=line)
        sidecars[host].socket.send(packed(sidecars[host].channel, 1, report))
    sidecars["c"].socket.send(packed(sidecars["c"].channel, 1, report_of("c")))
    coordinator.wait_for(taken=3)
    rows, records = coordinator.channels.take()
    assert rows["slot"].tolist() == [coordinator.fleet.roster.members["c"].slot]
    assert len(records) == 2


def test_a_channel_that_is_not_known_is_reported_so(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """After a restart and after the end of a lease; and a number that was closed is not given on at once."""
    before = coordinator.fleet.roster.members["a"].channel
    assert coordinator.fleet.expire(coordinator.now_s + 100) == HOSTS
    sidecar = sidecars["a"]
    sidecar.socket.send(packed(sidecar.channel, 1, report_of("a")))
    data = sidecar.socket.recv(2048)
    with pytest.raises(Reset):
        unpack_reply(sidecar.channel, 1, data, "")
    assert unpack_reply(sidecar.channel, 2, data, "") is None
    member = coordinator.fleet.report(report_of("a", info=True), coordinator.now_s)
    coordinator.channels.open(member)
    assert member.channel not in range(before, before + len(HOSTS))


def test_a_source_gets_few_resets_in_a_second(coordinator: Coordinator, sidecars: dict[str, Sidecar]) -> None:
    """Nobody can make the coordinator a source of traffic; the answers are far shorter than what asks for them."""
    sidecar = sidecars["a"]
    nowhere = msgspec.structs.replace(sidecar.channel, number=(sidecar.channel.number + 1_000) & 0xFFFFFFFF)
    for sequence in range(100):
        sidecar.socket.send(packed(nowhere, sequence, report_of("a")))
    coordinator.wait_for(unknown=100)
    sidecar.socket.setblocking(False)
    sizes = []
    with contextlib.suppress(BlockingIOError):
        while True:
            sizes.append(len(sidecar.socket.recv(2048)))
    # The turn of a second may lie in between.
    assert sizes in ([24] * 16, [24] * 32)


def test_of_several_reports_the_last_counts_and_one_is_answered(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """And of very many only a few are kept."""
    sidecar = sidecars["a"]
    for sequence in range(1, 8):
        sidecar.socket.send(packed(sidecar.channel, sequence, report_of("a", edges=sequence % 3)))
    coordinator.wait_for(taken=4, surplus=3)
    assert coordinator.solve() == 1
    sidecar.receive(4)
    assert coordinator.fleet.roster.members["a"].reported_edges == 4 % 3


def test_who_did_not_report_is_missed_once(coordinator: Coordinator, sidecars: dict[str, Sidecar]) -> None:
    """The next solve waits for it, the one after does not; a report by HTTP ends the waiting too."""
    assert coordinator.channels.intake.waiting() == (0, 3)
    for host in "ab":
        sidecars[host].socket.send(packed(sidecars[host].channel, 1, report_of(host)))
    coordinator.wait_for(taken=2)
    assert coordinator.channels.intake.waiting() == (2, 1)
    coordinator.channels.close(coordinator.fleet.roster.members["c"])
    assert coordinator.channels.intake.waiting() == (2, 0)
    coordinator.solve()
    assert coordinator.channels.intake.waiting() == (0, 2)
    coordinator.solve()
    assert coordinator.channels.intake.waiting() == (0, 0)


def test_the_event_descriptor_says_when_all_are_there(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """Readable after the first report, and again after the last that was missing."""
    descriptor = coordinator.channels.intake.event_fd
    for expected, hosts in ((1, "a"), (3, "bc")):
        for host in hosts:
            sidecars[host].socket.send(packed(sidecars[host].channel, 1, report_of(host)))
        while coordinator.channels.intake.waiting()[0] < expected:
            assert select.select([descriptor], [], [], 10)[0]
            os.eventfd_read(descriptor)


def test_news_of_neighbours_are_fetched_by_http(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """A host whose neighbour has moved is asked to fetch the list; one that has it, or has other neighbours, is not."""
    fleet = coordinator.fleet
    joined = fleet.roster.members["b"].info
    assert joined is not None
    info = msgspec.structs.replace(joined, generation=2, url="http://elsewhere:9613")
    fleet.report(msgspec.structs.replace(report_of("b"), info=info, generation=2), coordinator.now_s)
    fleet.roster.members["c"].neighbours_sent = fleet.roster.generation
    for host in "ac":
        sidecars[host].socket.send(packed(sidecars[host].channel, 1, report_of(host)))
    coordinator.wait_for(taken=2)
    coordinator.solve()
    for host, expected in (("a", True), ("c", False)):
        answer = unpack_reply(sidecars[host].channel, 1, sidecars[host].socket.recv(2048), "")
        assert answer is not None
        assert answer[1] is expected


@pytest.mark.parametrize(("edges", "parts"), [(33, 1), (34, 2), (40, 2), (132, 4)])
def test_a_report_of_many_edges_comes_in_parts(
    edges: int, parts: int, coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """In any order; it counts once, with all edges, and one reply no longer than a part has all residuals."""
    rejoin(coordinator, "a", edges)
    sidecar = sidecars["a"]
    sidecar.channel = coordinator.channels.open(coordinator.fleet.roster.members["a"])
    data = pack_request(sidecar.channel, 7, report_of("a", edges=edges))
    assert [len(part) <= 1432 for part in data] == [True] * parts
    for host in "bc":
        sidecars[host].socket.send(packed(sidecars[host].channel, 1, report_of(host)))
    for part in reversed(data):
        sidecar.socket.send(part)
    coordinator.wait_for(taken=3)
    assert coordinator.counts()["incomplete"] == coordinator.counts()["replayed"] == 0
    assert coordinator.solve() == 3
    assert coordinator.fleet.roster.members["a"].reported_edges == edges
    raw = sidecar.socket.recv(2048)
    assert len(raw) <= max(map(len, data))
    answer = unpack_reply(sidecar.channel, 7, raw, "before")
    assert answer is not None
    residuals = unpack_residuals(answer[0].residuals)
    assert sorted(residual.edge for residual in residuals) == list(range(edges))
    assert answer[0].root == coordinator.fleet.root


def test_a_reply_to_most_edges_has_room_for_the_longest_name(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """Else such a host would have to fetch it by HTTP at each round."""
    rejoin(coordinator, "a", 132)
    sidecar = sidecars["a"]
    sidecar.channel = coordinator.channels.open(coordinator.fleet.roster.members["a"])
    name = "r" * 253
    coordinator.fleet.quorum = Quorum(NOW // 10**9 + 100, 8, name, anchored=False)
    for host in "bc":
        sidecars[host].socket.send(packed(sidecars[host].channel, 1, report_of(host)))
    for part in pack_request(sidecar.channel, 7, report_of("a", edges=132)):
        sidecar.socket.send(part)
    coordinator.wait_for(taken=3)
    coordinator.solve()
    reply = sidecar.receive(7)
    assert (reply.root, len(unpack_residuals(reply.residuals))) == (name, 132)


def test_a_report_of_which_a_part_was_lost_is_overtaken(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """Nothing of it counts, a part that comes late or twice does not either; and nobody waits for the lost part."""
    sidecar = sidecars["a"]
    first, second = pack_request(sidecar.channel, 1, report_of("a", edges=40))
    sidecar.socket.send(first)
    sidecar.socket.send(first)
    coordinator.wait_for(replayed=1)
    assert coordinator.channels.intake.waiting() == (0, 3)
    assert coordinator.solve() == 0
    assert coordinator.channels.intake.waiting() == (0, 2)
    sidecar.socket.send(packed(sidecar.channel, 2, report_of("a", edges=2)))
    sidecar.socket.send(second)
    coordinator.wait_for(taken=1, incomplete=1, replayed=2)
    rows, records = coordinator.channels.take()
    assert (rows["edges"].tolist(), len(records)) == ([2], 2)


def test_a_part_under_another_key_completes_nothing(
    coordinator: Coordinator, sidecars: dict[str, Sidecar]
) -> None:
    """Each part has its own tag."""
    sidecar = sidecars["a"]
    first, second = pack_request(sidecar.channel, 1, report_of("a", edges=40))
    sidecar.socket.send(first)
    sidecar.socket.send(second[:-1] + bytes([second[-1] ^ 1]))
    coordinator.wait_for(forged=1)
    assert coordinator.counts()["taken"] == 0
    sidecar.socket.send(second)
    coordinator.wait_for(taken=1)


def test_what_is_too_long_goes_by_http() -> None:
    """HostInfo, and more edges than the parts of a report take."""
    assert fits(report_of("a", edges=132))
    assert not fits(report_of("a", edges=133))
    assert not fits(report_of("a", info=True))


def reply_with(channel: Channel | None) -> RoundReply:
    return RoundReply(1, None, "a", False, b"", "", None, 1, channel=channel)


@pytest.mark.parametrize("edges", [2, 40, 132])
async def test_a_client_that_is_answered_goes_on(edges: int, coordinator: Coordinator) -> None:
    """The reply comes back, to a report in parts too, and the next may go the same way."""
    client = DatagramClient(f"http://127.0.0.1:{coordinator.port}")
    rejoin(coordinator, "a", edges)
    await client.open(reply_with(coordinator.channels.open(coordinator.fleet.roster.members["a"])))
    report = report_of("a", edges=edges)
    assert client.ready(report)
    task = asyncio.create_task(client.report(report, 10.0))
    await asyncio.to_thread(coordinator.wait_for, taken=1)
    coordinator.solve()
    reply = await task
    assert reply is not None
    assert reply.root == coordinator.fleet.root
    assert client.ready(report)
    client.close()


async def test_a_client_whose_coordinator_was_restarted_hears_it_at_once(coordinator: Coordinator) -> None:
    """Not after a timeout; and it asks for a new channel, since the old one had worked."""
    client = DatagramClient(f"http://127.0.0.1:{coordinator.port}")
    await client.open(reply_with(coordinator.channel["a"]))
    coordinator.fleet.expire(coordinator.now_s + 100)
    assert await client.report(report_of("a"), 60.0) is None
    assert not client.ready(report_of("a"))
    assert (client.wanted, client.lost) == (True, True)
    await client.open(reply_with(None))
    assert not client.lost


async def test_a_client_behind_a_wall_gives_up_for_a_while() -> None:
    """Datagrams vanish: after two channels in a row it asks for none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hole:
        hole.bind(("127.0.0.1", 0))
        client = DatagramClient(f"http://127.0.0.1:{hole.getsockname()[1]}")
        for _ in range(2):
            assert client.wanted
            await client.open(reply_with(Channel(1, bytes(16))))
            assert await client.report(report_of("a"), 0.02) is None
            assert not client.ready(report_of("a"))
        assert not client.wanted


async def test_a_port_without_a_listener_is_noticed_at_once() -> None:
    """The network says so; no timeout."""
    client = DatagramClient(f"http://127.0.0.1:{reserved_port()}")
    await client.open(reply_with(Channel(1, bytes(16))))
    assert await client.report(report_of("a"), 60.0) is None
    assert client.lost
