"""Real verbs on the RDMA lab: data crosses the network that the faults are in, and faults look as they do on NICs."""

import ctypes
import time
from typing import Any

import pytest

from fabricpulse.lab.rdma.fleet import RdmaFleet

# The first test of a module waits for the guest and for all tests of the module.
pytestmark = [pytest.mark.rdma, pytest.mark.timeout(600)]


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
