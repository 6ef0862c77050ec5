"""Stamps of NICs on fleet time: the engine's own sockets and ioctls, with a library that is the NIC and its clock."""

import subprocess
from pathlib import Path

import pytest
from tests.fixtures.mesh.probe_samples import read_samples
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.clocksync.edge.samples import SampleReader
from fabricpulse.core.shm.probe_ring import FLEET_VALID, INBOUND, MAIN_PATH, RX_HARDWARE, TX_HARDWARE

pytestmark = pytest.mark.root

S, MS = 10**9, 10**6
BY_NIC = TX_HARDWARE | RX_HARDWARE
STAMPS, LOST = "fabricpulse_probe_nic_stamps", "fabricpulse_probe_nic_clock_lost_total"
SOURCE = Path(__file__).parents[2] / "native" / "clocks" / "nic_clock_preload.c"


def inbound(reader, enough, flags):
    """The next samples of the main path whose hardware flags are `flags`, at least `enough` of them; all that came."""
    samples = []

    def read():
        samples.extend(s for s in read_samples(reader) if s.direction == INBOUND and s.flags & MAIN_PATH)
        return sum(s.flags & BY_NIC == flags for s in samples) >= enough

    wait_for(read, 20, f"{enough} samples with stamps {flags}")
    return samples


def build_shim(tmp_path):
    shim = tmp_path / "nic_clock_preload.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", SOURCE, "-ldl", "-o", shim], check=True
    )
    return str(shim)


def assert_on_fleet_time(samples):
    """The steps of this test's clocks are of a second. At a change of whose stamps are used 64 trains are left out."""
    delays = [s.owd_ns for s in samples if s.flags & FLEET_VALID]
    assert len(delays) > len(samples) / 3
    assert all(-MS < delay < S // 2 for delay in delays)


def test_stamps_of_nics_are_used_while_their_clocks_can_be_followed(make_lab, tmp_path):
    """h0 reads its NIC's clock against the raw clock; h1 is in a time namespace. That of h1 is stepped by a second."""
    shim, step = build_shim(tmp_path), tmp_path / "step"
    fleet = MeshFleet(make_lab(hosts=3, rails=1), probe={"timestamps": "hardware"})
    fleet.environments = {
        "h0": {"LD_PRELOAD": shim},
        "h1": {"LD_PRELOAD": shim, "NIC_CLOCK_NAMESPACE": "1", "NIC_CLOCK_STEP": str(step)},
        "h2": {"LD_PRELOAD": shim, "NIC_CLOCK_RATE": "2.5"},
    }
    fleet.start().true_clock()
    fleet.wait_green()
    reader = SampleReader(fleet.lab.host("h0").run_dir / "probes")
    samples = inbound(reader, 100, BY_NIC)
    assert_on_fleet_time(samples)
    # What h2 sends is stamped by its kernel: its clock is none, and it says so.
    assert any(s.flags & BY_NIC == RX_HARDWARE for s in samples)
    assert fleet.scrape("h2").values(STAMPS) == [0]
    assert fleet.scrape("h2").value(LOST) > 100
    wait_for(lambda: "its clock cannot be followed" in fleet.daemons["h2"].output(), 20, "h2 says so")
    assert (fleet.scrape("h1").values(STAMPS), fleet.scrape("h1").values(LOST)) == ([1], [0])

    step.touch()
    wait_for(lambda: fleet.scrape("h1").value(LOST) == 1, 20, "h1 has seen the step")
    assert_on_fleet_time(inbound(reader, 100, BY_NIC))
    assert fleet.scrape("h1").values("fabricpulse_nic_disconnects_total") == [0]


def test_stamps_by_another_clock_are_not_used(make_lab, tmp_path):
    """A bond has taken another NIC, whose clock is 3 ms late. Each direction had that for up to 10 s, within a bound of
    less than a microsecond. Whose stamps they are the kernel tells of what arrives, its own stamp of what is sent.
    """
    shim, other = build_shim(tmp_path), tmp_path / "other"
    fleet = MeshFleet(make_lab(hosts=2, rails=1), probe={"timestamps": "hardware"})
    fleet.environments = {
        "h0": {"LD_PRELOAD": shim},
        "h1": {"LD_PRELOAD": shim, "NIC_CLOCK_OTHER": str(other)},
    }
    fleet.start().true_clock()
    fleet.wait_green()
    readers = [SampleReader(fleet.lab.host(host).run_dir / "probes") for host in ("h0", "h1")]
    for reader in readers:
        inbound(reader, 50, BY_NIC)
    other.touch()
    for reader, flags in zip(readers, (RX_HARDWARE, TX_HARDWARE), strict=True):
        samples = [s for s in inbound(reader, 200, flags) if s.flags & BY_NIC == flags]
        delays = [s.owd_ns for s in samples if s.flags & FLEET_VALID]
        assert delays
        assert -MS < min(delays) < 2 * MS
