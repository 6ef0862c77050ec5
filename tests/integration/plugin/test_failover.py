"""The ring keeps running, without an error and with every byte right, whatever happens to a rail."""

import re
import time
from collections.abc import Callable, Iterator

import pytest
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.lab.faults import Fault

pytestmark = pytest.mark.root

MAX_STALL_MS = 300


@pytest.fixture(scope="module")
def ring_lab() -> Iterator[Lab]:
    with Lab(hosts=4, rails=2, nic_mbit=400) as lab:
        yield lab


@pytest.fixture
def ring(ring_lab: Lab) -> Iterator[Ring]:
    started = Ring(ring_lab, arguments=["--bytes", "2M"])
    try:
        started.wait_running()
        yield started
    finally:
        ring_lab.heal()
        started.kill()


FAULTS: dict[str, Callable[[Lab], Fault]] = {
    "link_down": lambda lab: lab.host(1).nic(0).down(),
    "admin_down": lambda lab: lab.host(1).nic(0).admin_down(),
    "black_hole": lambda lab: lab.host(1).nic(0).black_hole(),
    "one_way_rx": lambda lab: lab.host(1).nic(0).black_hole("rx"),
    "one_way_tx": lambda lab: lab.host(1).nic(0).black_hole("tx"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_dead_rail_costs_a_short_stall_and_nothing_else(ring: Ring, ring_lab: Lab, kind: str) -> None:
    """Traffic is on the other rail within 300 ms, and back on the first within 3 s of its repair."""
    since = time.time()
    with ring.lateness() as lateness:
        fault = FAULTS[kind](ring_lab)
        time.sleep(1.0)  # the time in which a gap is looked for
        until = time.time()
    assert ring.stall_ms(since, until, lateness) <= MAX_STALL_MS
    assert ring.bandwidth(until - 0.5, until) > 0
    assert all(lane["state"] != "up" for lane in ring.lanes("h1") if lane["device"] == "rail0")
    fault.undo()
    ring.until(lambda: ring.carries("h1", "rail0"), 3.0)
    ring.stop()


def test_a_lane_is_not_taken_for_dead_before_the_stall_timer_says_so(ring_lab: Lab) -> None:
    """However long a timer was asked for: FABRICPULSE_STALL_MS is the least that there is, from 20 to 10000."""
    started = Ring(ring_lab, 2, ["--bytes", "2M"], env={"FABRICPULSE_STALL_MS": "2000"})
    started.wait_running()
    since_ns = time.monotonic_ns()

    def stalls() -> list[int]:
        events = [e for host in ("h0", "h1") for e in started.control(host, op="events")["events"]]
        return [e["mono_ns"] for e in events if (e["kind"], e["reason"]) == ("lane_down", "stall")]

    with ring_lab.host(1).nic(0).black_hole():
        started.until(lambda: bool(stalls()))
    # Half a second less, as the last word of the peer may have been a while before.
    assert min(stalls()) - since_ns > 1_500_000_000
    started.stop()


def test_both_rails_dead_is_waited_for(ring: Ring, ring_lab: Lab) -> None:
    """No lane at all is no error either: the ring stands still and goes on when one rail is back."""
    first, second = ring_lab.host(1).nic(0).down(), ring_lab.host(1).nic(1).black_hole()
    time.sleep(1.0)  # what is under way arrives
    stopped = time.time()
    time.sleep(0.5)  # the time in which nothing may move
    assert ring.bandwidth(stopped, stopped + 0.4) == 0
    first.undo()
    restored = time.time()
    ring.until(lambda: ring.bandwidth(restored, time.time()) > 0, 5.0)
    second.undo()
    ring.stop()


def test_a_dead_peer_is_an_error_that_names_it(ring: Ring) -> None:
    """When a rank is killed all fail within seconds; the first to notice names the ended process, and each says why.

    The other neighbour may fail by the end of the ring, which the first one's end goes around, before h2's silence.
    """
    ring.ranks[2].process.kill()
    neighbours = (ring.ranks[1], ring.ranks[3])
    assert [rank.process.wait(60) for rank in neighbours] == [1, 1]
    assert any("h2 (pid" in rank.text() and "has ended" in rank.text() for rank in neighbours)
    for rank in (*neighbours, ring.ranks[0]):
        rank.process.wait(60)
        assert re.search(r"(to|from) h\d \(pid \d+.*\): .*(has ended|the peer ended it)", rank.text()), (
            rank.text()
        )


def test_a_stopped_peer_is_no_fault(ring: Ring) -> None:
    """SIGSTOP for a second: the lanes are well, so none fails, and the ring goes on after SIGCONT."""
    before = {lane["failovers"] for lane in ring.lanes("h1")}
    ring.ranks[2].process.suspend()
    time.sleep(1.0)  # many stall timers long
    ring.ranks[2].process.resume()
    resumed = time.time()
    ring.until(lambda: ring.bandwidth(resumed, time.time()) > 0, 5.0)
    assert {lane["failovers"] for lane in ring.lanes("h1")} == before == {0}
    ring.stop()


def test_a_hang_names_who_waits_for_whom(ring: Ring) -> None:
    """With h2 stopped its neighbours' connections say how long they have waited for h2, and for what; after it goes on
    nobody waits long for anybody."""

    def waits(host: str, peer: str) -> set[str]:
        """What a host's connections with a peer wait for, of those without progress for half a second."""
        return {
            c["waits_for"]
            for c in ring.control(host, op="status")["connections"]
            if c["peer"] == peer and c["requests"] > 0 and c["idle_ms"] > 500
        }

    (rank,) = {c["peer_rank"] for c in ring.control("h1", op="status")["connections"] if c["peer"] == "h2"}
    assert rank == 2
    ring.ranks[2].process.suspend()
    # h1 sends to h2, h3 receives from it.
    ring.until(lambda: bool(waits("h1", "h2")) and bool(waits("h3", "h2")), 5.0)
    assert waits("h1", "h2") <= {"peer_receive", "delivery"}
    assert waits("h3", "h2") <= {"peer_send", "arrival"}
    # The sender knows what it has not got through.
    stuck = [c for c in ring.control("h1", op="status")["connections"] if c["peer"] == "h2"]
    assert any(c["missing_bytes"] > 0 for c in stuck if c["direction"] == "send" and c["idle_ms"] > 500)
    ring.ranks[2].process.resume()
    ring.until(lambda: not waits("h1", "h2") and not waits("h3", "h2"), 5.0)
    ring.stop()
