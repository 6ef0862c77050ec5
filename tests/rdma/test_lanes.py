"""Real verbs on the RDMA lab and the interposer on them; then lanes: a ring goes on through faults of its network.

One module, as each module boots a guest of its own.
"""

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from tests.rdma.ring_pair import UP, RingPair

from fabricpulse.audit.node.rdma_transfer import RdmaListener, rdma_send
from fabricpulse.audit.node.rdma_wire import (
    RdmaReceiveAnswer,
    RdmaReceiveRequest,
    RdmaResult,
    RdmaSendRequest,
)
from fabricpulse.audit.pair_tests.transfer_tests import LEAST_STARVED
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.lab import syscalls
from fabricpulse.lab.rdma.fleet import RdmaFleet, run

# The first test of a module waits for the guest and for all tests of the module.
pytestmark = [pytest.mark.rdma, pytest.mark.timeout(1200)]

MIB = 1 << 20
# The guest is slow, and slower on a busy machine: what is asserted is that it happens, not when.
PATIENCE_S = 120.0
# Both ranks, the emulated machine and the tests share one core: a rank that looks more often takes it from them.
POLL = ["--poll-us", "1000"]
RING_ARGUMENTS = ["--bytes", "1M", "--slice", "256K", "--channels", "1", *POLL]


def connected(fleet: RdmaFleet, rail: int, **options: Any) -> Any:
    """A queue pair at each host, connected over one rail."""
    from tests.rdma.queue_pair import End

    ends = [End(fleet.device(host, rail), fleet.address(host, rail)) for host in ("h0", "h1")]
    for end, peer in (ends, reversed(ends)):
        end.connect(peer, **options)
    return ends


@pytest.mark.parametrize("rail", [0, 1])
def test_a_write_with_immediate_arrives(fleet: RdmaFleet, rail: int) -> None:
    """The bytes are in the peer's memory, the immediate in its completion, on each rail."""
    here, there = connected(fleet, rail)
    ctypes.memmove(here.memory.buf, b"abc" * 30_000, 90_000)
    there.post_receive()
    here.post_write(there, 90_000, immediate=77)
    assert here.completion().status == 0
    received = there.completion()
    assert (received.status, received.imm_data) == (0, 77)
    assert there.memory.read(90_000, 0) == b"abc" * 30_000


def test_a_pulled_cable_is_an_event_of_one_host(fleet: RdmaFleet) -> None:
    """PORT_ERR where the carrier went, PORT_ACTIVE when it is back; the peer's device says nothing."""
    import pyverbs.enums as e

    here, there = connected(fleet, 0)
    with fleet.cable_pulled("h0", 0):
        assert here.event(60) == e.IBV_EVENT_PORT_ERR
        assert not here.port_active()
        assert there.port_active()
    assert here.event(60) == e.IBV_EVENT_PORT_ACTIVE
    assert there.event(0) is None


def test_a_dead_path_is_no_event_and_ends_in_retries(fleet: RdmaFleet) -> None:
    """Both ports stay ACTIVE; the sender's queue pair ends with RETRY_EXC_ERR; the other rail does not notice."""
    import pyverbs.enums as e

    here, there = connected(fleet, 1, timeout=12, retries=2)
    other, other_peer = connected(fleet, 0)
    with fleet.path_dead(1):
        here.post_write(there, 4096)
        assert here.completion().status == e.IBV_WC_RETRY_EXC_ERR
        assert here.port_active()
        assert there.port_active()
        assert here.event(0) is None
        other.post_write(other_peer, 4096)
        assert other.completion().status == e.IBV_WC_SUCCESS
    again, again_peer = connected(fleet, 1)
    again.post_write(again_peer, 4096)
    assert again.completion().status == e.IBV_WC_SUCCESS


def test_delay_on_the_path_is_in_the_completions(fleet: RdmaFleet) -> None:
    """100 ms on the way there: a write that took less is none that crossed that network."""
    here, there = connected(fleet, 0)
    here.post_write(there, 64)
    assert here.completion().status == 0
    with fleet.netem("h0", 0, "delay", "100ms"):
        started = time.monotonic()
        here.post_write(there, 64)
        assert here.completion().status == 0
        assert time.monotonic() - started >= 0.1


def written(fleet: RdmaFleet, source: str, target: str, rail: int) -> RdmaResult:
    """What the audit measures by RDMA WRITE from one host to the other, each end in its host's network."""
    device, stop = f"rail{rail}", threading.Event()
    own, peer = fleet.address(source, rail), fleet.address(target, rail)
    found: list[RdmaResult] = []

    def there(listening: Future[RdmaListener]) -> None:
        enter(target)
        listener = RdmaListener(RdmaReceiveRequest(device, peer, own, 0.6))
        listening.set_result(listener)
        listener.run(stop)

    def here(answer: RdmaReceiveAnswer) -> None:
        enter(source)
        request = RdmaSendRequest(device, own, peer, answer.tcp_port, answer.key, 20_000_000, 0.6)
        found.append(rdma_send(request, stop))

    listening: Future[RdmaListener] = Future()
    ends = [threading.Thread(target=there, args=(listening,))]
    ends[0].start()
    ends.append(threading.Thread(target=here, args=(listening.result(60).answer,)))
    ends[1].start()
    for end in ends:
        end.join(60)
    [result] = found
    return result


def enter(host: str) -> None:
    """Moves this thread into a host's network."""
    with Path(f"/run/netns/{host}").open() as namespace:
        syscalls.setns(namespace.fileno(), syscalls.CLONE_NEWNET)


def user_pairs() -> set[str]:
    """Queue pairs of processes."""
    return {line for line in run("rdma", "resource", "show", "qp").splitlines() if " pid " in line}


def test_the_audit_sees_what_a_path_carries_by_rdma(fleet: RdmaFleet) -> None:
    """As asked for, if no host is late; what is sent on a path with a tenth of that is seen to be slow, and its way
    back not; where RoCE alone is dropped the writes fail. No queue pair is left."""
    before = user_pairs()
    ways = (("h0", "h1"), ("h1", "h0"))
    good = written(fleet, "h0", "h1", 0)
    with fleet.netem("h0", 0, "rate", "2mbit"):
        there, back = [written(fleet, *way, 0) for way in ways]
    with fleet.rdma_dead(0):
        dead = written(fleet, "h0", "h1", 0)
    reported = [(one.bps, one.error, one.starved) for one in (good, there, back, dead)]
    assert [one.error for one in (good, there, back, dead)] == [""] * 4, reported
    # One write more or less in half a second.
    assert 0 < (there.bps or 0) < 2.6e6, reported
    for one in (good, back):
        assert (one.bps or 0) > 4e6 or one.starved >= LEAST_STARVED, reported
    assert (dead.failed, dead.bps, dead.writes) == (True, None, 0)
    assert not user_pairs() - before


@pytest.mark.slow
def test_the_traced_path_of_a_queue_pair_is_that_of_its_packets(tmp_path: Path) -> None:
    """Of every queue pair that the interposer tells of, with and without a flow label, over two leaves and four spines:
    the same switches. No packet of a trace counts as one of RDMA.
    """
    from tests.rdma.routed_pair import build_routed
    from tests.rdma.traced_paths import check_paths

    check_paths(build_routed(), tmp_path)


@pytest.mark.slow
def test_a_program_is_counted_exactly_and_its_messages_match(fleet: RdmaFleet, tmp_path: Path) -> None:
    """By the interposer: posts, bytes, messages; the n-th message sent is the n-th received, later; series name device
    and port."""
    # Imports of tens of megabytes take seconds in the guest: not for those that are not asked for.
    from tests.rdma.interposed_counts import check_counts

    check_counts(fleet, tmp_path)


@pytest.fixture(scope="module")
def ring(fleet: RdmaFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingPair]:
    """A ring over both rails, and TCP over another network as the last resort. At its end no rank has seen an error, or
    a byte that is not what was sent."""
    assert fleet.rails == 2
    with RingPair(
        tmp_path_factory.mktemp("ring"), RING_ARGUMENTS, {"FABRICPULSE_LAST_RESORT": "ctl"}
    ) as pair:
        pair.until_moved(1, PATIENCE_S)
        yield pair
        pair.finish(PATIENCE_S)


def test_lanes_are_queue_pairs_of_both_rails(ring: RingPair) -> None:
    """Both ends name the same two queue pairs, each its own first; nothing moves over TCP."""
    ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
    sending = {(lane["device"], lane["queue_pair"]) for lane in ring.lanes() if lane["state"] == "up"}
    receiving = {
        (lane["device"], (lane["queue_pair"] & 0xFFFFFF) << 24 | lane["queue_pair"] >> 24)
        for lane in ring.lanes("receive")
        if lane["state"] == "up"
    }
    assert sending == receiving
    assert {lane["transport"] for lane in ring.lanes() if lane["state"] == "up"} == {"verbs"}


@pytest.mark.slow
def test_the_qp_exporter_tells_of_queue_pairs(ring: RingPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes by NIC and peer NIC, and what each NIC's lanes are; retransmits only where the transport counts them."""
    from fabricpulse.qp.config import QpConfig
    from fabricpulse.qp.service import Exporter

    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(ring.run_dir(0)))
    ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)

    async def scrape() -> str:
        exporter = Exporter(QpConfig())
        try:
            return (await exporter.scrape(TextFormat.PLAIN)).decode()
        finally:
            await exporter.close()

    found: dict[tuple[str, str, str], Sample] = {}

    def all_there() -> bool:
        # Of a plugin that is stopped in the middle of an update nothing can be read: the emulated machine does that.
        text = asyncio.run(scrape())
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                device = sample.labels.get("device")
                if device and sample.labels.get("state", "up") == "up":
                    found[sample.name, device, sample.labels.get("peer_device", device)] = sample
        return all(("fabricpulse_qp_sent_bytes_total", rail, rail) in found for rail in ("rail0", "rail1"))

    ring.until(all_there, PATIENCE_S)
    sent = {
        lane["device"]: lane["sent_bytes"]
        for lane in ring.lanes()
        if lane["rank"] == 0 and lane["device"] == lane["peer_device"]
    }
    for rail in ("rail0", "rail1"):
        assert 0 < found["fabricpulse_qp_sent_bytes_total", rail, rail].value <= sent[rail]
        assert found["fabricpulse_lanes", rail, rail].value >= 1


@pytest.mark.slow
def test_source_ports_of_lanes_are_those_on_the_wire(ring: RingPair, fleet: RdmaFleet) -> None:
    """The mesh traces lanes by the port that telemetry has for their queue pairs."""
    from tests.rdma.traced_paths import check_lane_ports

    check_lane_ports(fleet, ring.run_dir(0))


def both_rails_dead(fleet: RdmaFleet) -> ExitStack:
    """Nothing passes between the hosts at all."""
    stack = ExitStack()
    for rail in range(fleet.rails):
        stack.enter_context(fleet.path_dead(rail))
    return stack


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda fleet: fleet.cable_pulled("h0", 0), id="cable-here"),
        pytest.param(lambda fleet: fleet.path_dead(0), id="dead-path"),
        pytest.param(lambda fleet: fleet.cable_pulled("h1", 0), id="cable-at-peer", marks=pytest.mark.slow),
        pytest.param(
            lambda fleet: fleet.netem("h0", 0, "loss", "100%"), id="one-way", marks=pytest.mark.slow
        ),
        pytest.param(lambda fleet: fleet.netem("h1", 0, "loss", "3%"), id="loss", marks=pytest.mark.slow),
    ],
)
def test_the_other_rail_carries_on(
    ring: RingPair, fleet: RdmaFleet, fault: Callable[[RdmaFleet], Any]
) -> None:
    """Data moves while the rail is broken, and over that rail again when it is repaired."""
    ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
    with fault(fleet):
        ring.until_moved(2 * MIB, PATIENCE_S)
    ring.until(lambda: ring.up(0), PATIENCE_S)
    ring.until_moved(MIB, PATIENCE_S)


def epochs(ring: RingPair, rail: int) -> dict[int, int]:
    """The number of the last queue pair that was up on this rail, by sending rank."""
    return {
        lane["rank"]: lane["epoch"]
        for lane in ring.lanes()
        if lane["device"] == lane["peer_device"] == f"rail{rail}" and lane["transport"] == "verbs"
    }


@pytest.mark.slow
def test_queue_pairs_that_pass_nothing_get_no_chunk(ring: RingPair, fleet: RdmaFleet) -> None:
    """RoCE is dropped on a rail, TCP is not: its queue pairs come up again and again, and nothing waits on them."""

    def on_the_rail() -> list[dict[str, Any]]:
        return [lane for lane in ring.lanes() if lane["device"] == lane["peer_device"] == "rail0"]

    ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
    with fleet.rdma_dead(0):
        ring.until(lambda: all(lane["state"] not in UP for lane in on_the_rail()), PATIENCE_S)
        before = {lane["rank"]: lane["sent_bytes"] for lane in on_the_rail()}
        again = {key: epoch + 1 for key, epoch in epochs(ring, 0).items()}
        ring.until(lambda: all(epoch >= again[key] for key, epoch in epochs(ring, 0).items()), PATIENCE_S)
        ring.until_moved(MIB, PATIENCE_S)
        assert {lane["rank"]: lane["sent_bytes"] for lane in on_the_rail()} == before
    ring.until(lambda: ring.up(0), PATIENCE_S)
    ring.until_moved(MIB, PATIENCE_S)


@pytest.mark.slow
def test_a_total_outage_ends_with_the_fault(fleet: RdmaFleet, tmp_path: Path) -> None:
    """Both rails dead until neither rank has a lane in either direction: no error, and the job goes on."""
    with RingPair(tmp_path, RING_ARGUMENTS, port=7002) as ring:
        ring.until_moved(1, PATIENCE_S)
        ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
        with both_rails_dead(fleet):
            ring.until(
                lambda: all(
                    lane["state"] not in UP for way in ("send", "receive") for lane in ring.lanes(way)
                ),
                PATIENCE_S,
            )
        ring.until_moved(2 * MIB, PATIENCE_S)
        ring.finish(PATIENCE_S)


@pytest.mark.slow
def test_an_address_that_goes_and_comes_has_another_gid_index(ring: RingPair, fleet: RdmaFleet) -> None:
    """The GID is found by its address: lanes come back although its place in the table has changed."""
    ring.until(lambda: ring.up(1), PATIENCE_S)
    with fleet.without_address("h0", 1):
        ring.until_moved(2 * MIB, PATIENCE_S)
    ring.until(lambda: ring.up(1), PATIENCE_S)


def test_a_tcp_lane_is_the_last_resort(ring: RingPair, fleet: RdmaFleet) -> None:
    """Both rails dead and TCP over another network left: the job goes on there, says so, and comes back."""
    ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
    ring.until(
        lambda: {lane["state"] for lane in ring.lanes() if lane["device"] == "ctl"} == {"spare"}, PATIENCE_S
    )
    with both_rails_dead(fleet):
        ring.until(ring.on_last_resort, PATIENCE_S)
        ring.until_moved(MIB // 4, PATIENCE_S)
        lanes = ring.lanes()
    carries = [lane for lane in lanes if lane["state"] == "last_resort"]
    assert {(lane["device"], lane["transport"]) for lane in carries} == {("ctl", "tcp")}
    assert not [lane for lane in lanes if lane["device"] != "ctl" and lane["state"] == "up"]
    ring.until(lambda: not ring.on_last_resort() and ring.up(0), PATIENCE_S)
    ring.until_moved(MIB // 4, PATIENCE_S)
    assert "FABRICPULSE_LAST_RESORT" in ring.said()


@pytest.mark.slow
def test_tcp_of_a_nic_is_the_last_resort_of_its_queue_pairs(fleet: RdmaFleet, tmp_path: Path) -> None:
    """RoCE is dropped on both rails, TCP over the same NICs is not: queue pairs come up again and again, as their ends
    meet over TCP; the job goes on by TCP all the same, and back."""
    with RingPair(
        tmp_path,
        ["--bytes", "64K", "--slice", "64K", "--channels", "1", *POLL],
        {"FABRICPULSE_LAST_RESORT": "rail*"},
        port=7003,
    ) as ring:
        ring.until_moved(1, PATIENCE_S)
        ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
        with fleet.rdma_dead(0), fleet.rdma_dead(1):
            ring.until(ring.on_last_resort, PATIENCE_S)
            ring.until_moved(MIB // 4, PATIENCE_S)
            carries = [lane for lane in ring.lanes() if lane["state"] == "last_resort"]
            again = {key: epoch + 1 for key, epoch in epochs(ring, 0).items()}
            ring.until(lambda: all(epoch >= again[key] for key, epoch in epochs(ring, 0).items()), PATIENCE_S)
            assert ring.on_last_resort()
            ring.until_moved(MIB // 4, PATIENCE_S)
        assert {(lane["device"][:-1], lane["transport"]) for lane in carries} == {("rail", "tcp")}
        ring.until(lambda: not ring.on_last_resort() and ring.up(0), PATIENCE_S)
        ring.until_moved(MIB // 4, PATIENCE_S)
        ring.finish(PATIENCE_S)


def test_without_libibverbs_the_job_does_not_start_on_tcp(fleet: RdmaFleet, tmp_path: Path) -> None:
    """The error says what is missing, which devices wait for it, and how to have TCP all the same."""
    assert fleet.rails == 2
    with RingPair(
        tmp_path, ["--rounds", "1"], {"FABRICPULSE_IBVERBS": "/nowhere/libibverbs.so.1"}, port=7001
    ) as ring:
        codes = ring.wait(PATIENCE_S)
        said = ring.said()
    assert 0 not in codes
    assert "libibverbs cannot be loaded" in said
    assert "rxe0-0" in said
    assert "FABRICPULSE_LANES=tcp" in said
