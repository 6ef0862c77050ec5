"""New paths for lanes: by command, and by themselves when rings collide on one spine."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.plugin.paths import (
    PAIRS,
    collided,
    elsewhere,
    port_over,
    sending,
    spine_of,
    two_spines,
)
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root


def connection(ring: Ring) -> dict[str, Any]:
    """The sending connection of h0."""
    (found,) = sending(ring, "h0")
    return found


def lane(ring: Ring) -> dict[str, Any]:
    """Its primary lane."""
    return dict(connection(ring)["lanes"][0])


@pytest.fixture(scope="module")
def ring() -> Iterator[Ring]:
    with Lab(hosts=2, rails=1, spines=2, pods=2, nic_mbit=400) as lab:
        started = Ring(lab, 2, ["--bytes", "1M", "--channels", "1"], env={"FABRICPULSE_REPATH": "0"})
        started.wait_running()
        started.until(lambda: len(connection(started)["lanes"]) == 2)
        yield started
        started.stop()


def test_a_single_nic_has_two_lanes_by_two_source_ports(ring: Ring) -> None:
    lanes = connection(ring)["lanes"]
    assert [each["device"] for each in lanes] == ["rail0", "rail0"]
    assert lanes[0]["entropy"] != lanes[1]["entropy"]


def test_repath_to_a_port_moves_the_lane_without_a_fault(ring: Ring) -> None:
    """Another spine carries it, three times; nothing failed on the way, and nothing was lost."""
    before = lane(ring)
    for number, spine in enumerate(("spine0", "spine1", "spine0")):
        port = port_over(ring, "h0", "h1", before, spine, start=100 * number)
        answer = ring.control(
            "h0",
            op="lane.repath",
            op_id=f"r-{number}",
            generation=1,
            entropy=port,
            connection=connection(ring)["connection"],
            lane=0,
        )
        assert answer["ok"], answer
        ring.until(lambda port=port: lane(ring)["entropy"] == port, 5.0)  # type: ignore[misc]
        assert spine_of(ring, "h0", "h1", lane(ring)) == spine
    after = lane(ring)
    assert after["repaths"] == before["repaths"] + 3
    assert after["failovers"] == before["failovers"]
    ring.until(lambda: lane(ring)["state"] == "up", 5.0)
    kinds = [(e["kind"], e["reason"]) for e in ring.control("h0", op="events")["events"]]
    assert kinds.count(("repath", "command")) == 3
    assert "no_lane" not in [kind for kind, _ in kinds]


def test_a_port_of_a_connection_to_elsewhere_can_be_had(ring: Ring) -> None:
    """Two jobs of a host, or two peers of one: ports are taken for each pair of addresses, not for the host."""
    target = {"connection": connection(ring)["connection"], "lane": 0, "generation": 2}
    with ring.lab.socket("h0") as other, ring.lab.socket("h1") as server:
        for at, host in ((other, "h0"), (server, "h1")):
            at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            at.bind((ring.lab.address(host, "rail0"), 0))
        server.listen()
        other.connect(server.getsockname())
        port = other.getsockname()[1]
        assert ring.control("h0", op="lane.repath", op_id="o-1", entropy=port, **target)["ok"]
        ring.until(lambda: lane(ring)["entropy"] == port, 5.0)


def test_a_port_that_is_taken_leaves_the_lane_as_it_is(ring: Ring) -> None:
    """The sibling's port cannot be had twice; the lane keeps its path, and takes any other on the next wish."""
    before, taken = lane(ring), connection(ring)["lanes"][1]["entropy"]
    target = {"connection": connection(ring)["connection"], "lane": 0, "generation": 2}
    assert ring.control("h0", op="lane.repath", op_id="t-1", entropy=taken, **target)["ok"]
    ring.until(lambda: ring.control("h0", op="status", op_id="t-1")["age_ms"] > 100, 5.0)
    assert lane(ring)["entropy"] == before["entropy"]
    assert ring.control("h0", op="lane.repath", op_id="t-2", **target)["ok"]
    ring.until(lambda: lane(ring)["repaths"] == before["repaths"] + 1, 5.0)
    assert lane(ring)["entropy"] not in (taken, before["entropy"])
    assert lane(ring)["failovers"] == before["failovers"]


@pytest.mark.parametrize("entropy", [80, 65536, -1, "x"])
def test_a_wrong_entropy_is_refused(ring: Ring, entropy: object) -> None:
    answer = ring.control(
        "h0",
        op="lane.repath",
        op_id=f"w-{entropy}",
        generation=3,
        entropy=entropy,
        connection=connection(ring)["connection"],
        lane=0,
    )
    assert answer["error"]["code"] == "bad_request"


def test_rings_that_collide_part_by_themselves() -> None:
    """All lanes of two rings lie on one spine: soon the other one carries some too, without a command or a fault."""
    # What a full spine drops, TCP may send again only 200 ms later, which the usual stall timer of 80 ms takes for a
    # dead lane: that one is dialled anew with another port, and leaves the spine for another reason than the one here.
    patient = {"FABRICPULSE_STALL_MS": "10000"}
    with two_spines(100) as lab:
        rings = collided(lab, "4M", patient)

        def changes() -> set[tuple[str, str]]:
            """Kinds and reasons of all events."""
            return {
                (e["kind"], e["reason"])
                for ring, pair in zip(rings, PAIRS, strict=True)
                for host in pair
                for e in ring.control(host, op="events")["events"]
            }

        rings[0].until(lambda: elsewhere(rings) >= 2 and ("repath", "repath") in changes(), 30.0)
        assert {reason for kind, reason in changes() if kind == "lane_down"} == {"repath"}
        for each in rings:
            each.stop()
