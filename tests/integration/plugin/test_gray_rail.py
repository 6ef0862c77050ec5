"""A rail that works a little: the other one is whole, so the job must hardly notice."""

import time
from collections.abc import Iterator

import pytest
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root

MAX_STALL_MS = 300


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=2, rails=2, nic_mbit=400) as started:
        yield started


@pytest.fixture
def ring(lab: Lab) -> Iterator[Ring]:
    started = Ring(lab, 2, ["--bytes", "2M", "--slice", "128K"])
    try:
        started.wait_running()
        yield started
    finally:
        lab.heal()
        started.kill()


def sending(ring: Ring) -> dict[str, set[str]]:
    """State and epoch of the lanes by which h1 sends over rail0, by connection and lane."""
    return {
        f"{connection['connection']} {lane['lane']}": {lane["state"], str(lane["epoch"])}
        for connection in ring.control("h1", op="status")["connections"]
        for lane in connection["lanes"]
        if connection["direction"] == "send" and lane["device"] == "rail0"
    }


def test_a_path_that_loses_full_packets_is_not_taken_again(ring: Ring, lab: Lab) -> None:
    """An MTU black hole on what h1 sends: small packets pass, so dialling would succeed again and again. The lanes that
    have failed stay down until full packets pass, and then come back."""

    def failed() -> dict[str, set[str]]:
        return {lane: state for lane, state in sending(ring).items() if not state & {"up", "slow_start"}}

    since = time.time()
    with ring.lateness() as lateness:
        fault = lab.host(1).nic(0).mtu(1200)
        ring.until(lambda: bool(failed()), 5)
        dark = failed()
        time.sleep(3.0)  # the time in which they must not come back
        after = sending(ring)
        until = time.time()
    assert all(after[lane] & {"down", "fencing", "damped"} for lane in dark), after
    assert ring.stall_ms(since, until, lateness) <= MAX_STALL_MS
    fault.undo()
    ring.until(lambda: all(sending(ring)[lane] & {"up", "slow_start"} for lane in dark), 15)
    ring.stop()


def test_a_path_that_loses_a_third_does_not_hold_the_job_up(ring: Ring, lab: Lab) -> None:
    """Acknowledgements trickle on it, so it is never silent for long; its chunks go elsewhere all the same."""
    since = time.time()
    with ring.lateness() as lateness, lab.host(1).nic(0).loss(30):
        time.sleep(4.0)  # the time in which a gap is looked for
        until = time.time()
    assert ring.stall_ms(since, until, lateness) <= MAX_STALL_MS
    ring.stop()


def test_a_nic_without_its_address_does_not_hold_the_job_up(ring: Ring, lab: Lab) -> None:
    """Its sockets cannot send, which no missing acknowledgement shows."""
    host = lab.host(1)
    shown = host.run(["ip", "-o", "-4", "addr", "show", "dev", "rail0"]).stdout.split()
    address = shown[shown.index("inet") + 1]
    since = time.time()
    with ring.lateness() as lateness:
        host.run(["ip", "addr", "del", address, "dev", "rail0"])
        time.sleep(1.5)  # the time in which a gap is looked for
        until = time.time()
    assert ring.stall_ms(since, until, lateness) <= MAX_STALL_MS
    host.run(["ip", "addr", "add", address, "dev", "rail0"])
    ring.until(lambda: ring.carries("h1", "rail0"), 10)
    ring.stop()
