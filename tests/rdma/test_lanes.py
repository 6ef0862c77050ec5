"""The plugin's lanes over queue pairs: a verified ring between two hosts goes on through the faults of its network."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.rdma.ring_pair import UP, RingPair

from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.lab.rdma.fleet import RdmaFleet
from fabricpulse.qp.command import Exporter
from fabricpulse.qp.config import QpConfig

# The first test of a module waits for the guest and for all tests of the module.
pytestmark = [pytest.mark.rdma, pytest.mark.timeout(600)]

MIB = 1 << 20
# The guest is slow, and slower on a busy machine: what is asserted is that it happens, not when.
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def ring(fleet: RdmaFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingPair]:
    """A ring over both rails. At its end no rank has seen an error, or a byte that is not what was sent."""
    assert fleet.rails == 2
    with RingPair(
        tmp_path_factory.mktemp("ring"), ["--bytes", "1M", "--slice", "256K", "--channels", "1"]
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
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(ring.run_dir(0)))
    ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)

    async def scrape() -> str:
        exporter = Exporter(QpConfig())
        try:
            return (await exporter.scrape(TextFormat.PLAIN)).decode()
        finally:
            await exporter.close()

    text = asyncio.run(scrape())
    found = {
        (
            sample.name,
            sample.labels["device"],
            sample.labels.get("peer_device", sample.labels["device"]),
        ): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "device" in sample.labels and sample.labels.get("state", "up") == "up"
    }
    sent = {
        lane["device"]: lane["sent_bytes"]
        for lane in ring.lanes()
        if lane["rank"] == 0 and lane["device"] == lane["peer_device"]
    }
    for rail in ("rail0", "rail1"):
        assert 0 < found["fabricpulse_qp_sent_bytes_total", rail, rail].value <= sent[rail]
        assert found["fabricpulse_lanes", rail, rail].value >= 1


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
    """Data moves while the rail is broken, and over that rail again when it is mended."""
    ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
    with fault(fleet):
        ring.until_moved(2 * MIB, PATIENCE_S)
    ring.until(lambda: ring.up(0), PATIENCE_S)
    ring.until_moved(MIB, PATIENCE_S)


@pytest.mark.slow
def test_a_total_outage_ends_with_the_fault(ring: RingPair, fleet: RdmaFleet) -> None:
    """Both rails dead until neither rank has a lane in either direction: no error, and the job goes on."""
    ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
    with both_rails_dead(fleet):
        ring.until(
            lambda: all(lane["state"] not in UP for way in ("send", "receive") for lane in ring.lanes(way)),
            PATIENCE_S,
        )
    ring.until_moved(2 * MIB, PATIENCE_S)


@pytest.mark.slow
def test_an_address_that_goes_and_comes_has_another_gid_index(ring: RingPair, fleet: RdmaFleet) -> None:
    """The GID is found by its address: lanes come back although its place in the table has changed."""
    ring.until(lambda: ring.up(1), PATIENCE_S)
    with fleet.address_gone("h0", 1):
        ring.until_moved(2 * MIB, PATIENCE_S)
    ring.until(lambda: ring.up(1), PATIENCE_S)


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
