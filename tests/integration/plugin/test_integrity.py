"""Bytes that change on the way, past TCP's checksum: found, and sent again."""

import time
from collections.abc import Iterator

import pytest
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=2, rails=1) as started:
        yield started


def corrupt_frames(ring: Ring, host: str) -> int:
    """Frames that a host has thrown away."""
    return sum(lane["corrupt_frames"] for lane in ring.lanes(host))


def test_damaged_bytes_are_never_delivered(lab: Lab) -> None:
    """Headers, payloads and the receiver's words are damaged: each is counted and sent again; no byte is wrong, no
    message is lost or comes twice, no call of NCCL fails."""
    ring = Ring(lab, 2, ["--stream", "0-200000"], env={"FABRICPULSE_PAYLOAD_CRC": "1"})
    ring.wait_running()
    with lab.host(1).nic(0).corrupt(1):
        ring.until(lambda: all(corrupt_frames(ring, host) >= 30 for host in ("h0", "h1")), 60)
        assert {
            e["reason"] for e in ring.control("h0", op="events")["events"] if e["kind"] == "lane_down"
        } >= {"corrupt"}
    healed = time.time()
    ring.until(lambda: ring.slowest(healed, time.time()) > 0)
    for summary in ring.stop():
        assert summary["double_or_lost"] == 0


def test_without_checksums_of_payloads_the_damage_arrives(lab: Lab) -> None:
    """The fault is one that TCP does not see: what the test above relies on."""
    ring = Ring(lab, 2, ["--stream", "150000-200000"], env={"FABRICPULSE_PAYLOAD_CRC": "0"})
    ring.wait_running()
    with lab.host(1).nic(0).corrupt(2):
        ring.until(lambda: any(e["corrupt_bytes"] for r in ring.ranks for e in r.lines("interval")), 60)
    ring.kill()
