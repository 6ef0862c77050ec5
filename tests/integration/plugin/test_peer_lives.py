"""As long as both processes live nothing is an error, whatever their hosts answer."""

import time
from collections.abc import Iterator

import pytest
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.lab.node import Host

pytestmark = pytest.mark.root


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(hosts=2, rails=2, nic_mbit=400) as started:
        yield started


@pytest.fixture
def ring(lab: Lab) -> Iterator[Ring]:
    started = Ring(lab, 2, ["--bytes", "256K"])
    try:
        started.wait_running()
        yield started
    finally:
        started.kill()


def reject(host: Host, what: str) -> None:
    """The host answers every TCP segment on its rails so."""
    host.run(["nft", "add", "table", "inet", "firewall"])
    host.run(["nft", "add", "chain", "inet", "firewall", "in", "{ type filter hook input priority 0; }"])
    rule = ["iifname", "rail*", "meta", "l4proto", "tcp", "reject", "with", *what.split()]
    host.run(["nft", "add", "rule", "inet", "firewall", "in", *rule])


def silence(host: Host) -> None:
    """The host takes connections on rail0 and hears nothing that is said on them; on rail1 it refuses them."""
    reject(host, "tcp reset")
    host.run(["nft", "flush", "chain", "inet", "firewall", "in"])
    for words in (
        "iifname rail0 tcp flags & psh == psh drop",
        "iifname rail1 meta l4proto tcp reject with tcp reset",
    ):
        host.run(["nft", "add", "rule", "inet", "firewall", "in", *words.split()])


def accept(host: Host) -> None:
    host.run(["nft", "delete", "table", "inet", "firewall"])


@pytest.mark.parametrize("what", ["tcp reset", "icmpx type port-unreachable"])
def test_a_firewall_that_rejects_is_survived(ring: Ring, lab: Lab, what: str) -> None:
    """Both rails refuse each segment for a second and a half: no error, and the ring goes on."""
    reject(lab.host(1), what)
    time.sleep(1.5)  # how long the fault lasts
    accept(lab.host(1))
    healed = time.time()
    ring.until(lambda: ring.bandwidth(healed, time.time()) > 0, 10.0)
    ring.stop()


def test_the_end_of_a_process_is_known_although_its_kernel_resets_all_lanes(ring: Ring) -> None:
    """A rank is killed with unread bytes on every lane, here as it was stopped before. A reset says nothing about a
    process, and refusals are believed after ten seconds only, but the connection that carries nothing ends in order."""

    def watched() -> bool:
        made = ring.lab.host(1).run(["ss", "-Htn", "state", "established"]).stdout.splitlines()
        # Each of two processes watches the other; the ranks have a connection of their own.
        return len(made) == len(ring.lanes("h1")) + 2 + 1

    ring.until(watched, 10.0)
    ring.ranks[1].process.suspend()
    time.sleep(1.5)  # a control frame a second on each lane, which the stopped process leaves unread
    ring.ranks[1].process.kill()
    assert ring.ranks[0].process.wait(60) == 1
    assert "has ended (its kernel closed its connections" in ring.ranks[0].text()


@pytest.mark.slow
def test_a_peer_too_busy_to_answer_a_hello_is_waited_for(lab: Lab) -> None:
    """Longer than refusals alone would be believed, its kernel takes connections and its process says nothing."""
    silence(lab.host(1))
    ring = Ring(lab, 2, ["--bytes", "256K"])
    try:
        time.sleep(14.0)  # how long the fault lasts: over ten seconds after the first dial
        assert all(rank.process.poll() is None for rank in ring.ranks)
        accept(lab.host(1))
        ring.wait_running()
        ring.stop()
    finally:
        ring.kill()


def test_weight_zero_on_every_lane_stops_nothing(ring: Ring) -> None:
    """A lane of weight 0 is kept free as long as another one carries; when all have it, all carry."""
    sends = [c for c in ring.control("h0", op="status")["connections"] if c["direction"] == "send"]
    lanes = [(c["connection"], lane["lane"]) for c in sends for lane in c["lanes"]]
    for number, (connection, lane) in enumerate(lanes):
        target = {"connection": connection, "lane": lane, "weight": 0}
        assert ring.control("h0", op="lane.weight", op_id=f"w{number}", generation=1, **target)["ok"]
    set_at = time.time()
    ring.until(lambda: ring.bandwidth(set_at + 0.2, time.time()) > 0, 10.0)
    ring.stop()


def test_weight_zero_gives_way_when_the_others_fail(ring: Ring, lab: Lab) -> None:
    """All lanes over rail1 have weight 0, then rail0 loses its carrier: rail1 carries."""
    sends = [c for c in ring.control("h0", op="status")["connections"] if c["direction"] == "send"]
    lanes = [(c["connection"], x["lane"]) for c in sends for x in c["lanes"] if x["device"] == "rail1"]
    for number, (connection, lane) in enumerate(lanes):
        target = {"connection": connection, "lane": lane, "weight": 0}
        assert ring.control("h0", op="lane.weight", op_id=f"x{number}", generation=1, **target)["ok"]
    with lab.host(0).nic(0).down():
        down = time.time()
        ring.until(lambda: ring.bandwidth(down + 0.5, time.time()) > 0, 10.0)
    ring.stop()


def test_an_address_that_is_taken_away_costs_a_short_stall(ring: Ring, lab: Lab) -> None:
    """What is sent from it is lost without a sign; the lanes over its NIC end all the same, at once."""
    host = lab.host(1)
    address = host.run(["ip", "-o", "-4", "addr", "show", "dev", "rail0"]).stdout.split()[3]
    since = time.time()
    with ring.lateness() as lateness:
        host.run(["ip", "addr", "del", address, "dev", "rail0"])
        ring.until(
            lambda: all(lane["state"] != "up" for lane in ring.lanes("h1") if lane["device"] == "rail0"), 3.0
        )
        time.sleep(1.0)  # the time in which a gap is looked for
        until = time.time()
    assert ring.stall_ms(since, until, lateness) <= 300
    assert ring.bandwidth(until - 0.5, until) > 0
    ring.stop()
