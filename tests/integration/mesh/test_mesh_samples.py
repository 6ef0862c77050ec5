"""What the engine measures: both directions, one-way delay on fleet time."""

import pytest
from tests.fixtures.mesh.probe_samples import read_samples
from tests.fixtures.waiting import wait_for

from fabricpulse.clocksync.edge.samples import SampleReader
from fabricpulse.core.shm.probe_ring import FLEET_VALID, INBOUND, OUTBOUND

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("green_again")]


def test_owd_is_the_truth(fleet):
    """One-way delay on fleet time equals RX minus TX kernel stamp, though the hosts' clocks are seconds apart."""
    lab = fleet.lab
    fleet.true_clock()
    reader = SampleReader(lab.host("h1").run_dir / "probes")
    edges = reader.edges()
    assert edges is not None
    epochs = {host.name: SampleReader(host.run_dir / "probes").stamp_epoch_ns for host in lab.hosts}
    samples = []

    def enough():
        samples.extend(read_samples(reader))
        return len(samples) > 500

    wait_for(enough, 10, "500 samples")
    errors = []
    for sample in samples:
        if sample.direction != INBOUND or not sample.flags & FLEET_VALID:
            continue
        peer = lab.host(edges[sample.edge].peer)
        own = lab.host("h1")
        both = sample.tx_valid & sample.rx_valid
        truth = min(
            own.clock.kernel_raw(sample.rx_ns[i] - epochs["h1"])
            - peer.clock.kernel_raw(sample.tx_ns[i] - epochs[peer.name])
            for i in range(1, 3)
            if both >> i & 1
        )
        errors.append(abs(sample.owd_ns - truth))
    assert len(errors) > 50
    assert sorted(errors)[len(errors) * 99 // 100] <= 500


def test_both_directions_are_in_the_ring(fleet):
    """Each end holds all four stamps of the coded pair: inbound samples of the peer's trains, outbound of its own.

    The warm-up packet has an RX stamp only: no one uses its TX stamp, which is a third of the cost of all stamps.
    """
    reader = SampleReader(fleet.lab.host("h0").run_dir / "probes")
    seen = {INBOUND: 0, OUTBOUND: 0}

    def enough():
        for sample in read_samples(reader):
            if sample.tx_valid == 0b110 and sample.rx_valid == 0b111:
                seen[sample.direction] += 1
        return min(seen.values()) > 100

    wait_for(enough, 10, "samples of both directions")
    assert reader.lost == 0
    assert len(reader.edges() or {}) == len(fleet.edges("h0"))
