"""A packet that passes two devices of one host, as below a bond or a bridge of containers, is stamped at each."""

import pytest
from tests.bench.clocksync.peers import build_preload
from tests.fixtures.mesh.probe_samples import read_samples
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.clocksync.edge.samples import SampleReader
from fabricpulse.core.shm.probe_ring import FLEET_VALID, INBOUND

pytestmark = pytest.mark.root


def test_the_first_stamp_counts(make_lab, tmp_path):
    """The second is taken behind the queue between the two devices: with it no delay would have that queue in it, and
    the other host would seem to receive packets before they are sent.
    """
    fleet = MeshFleet(make_lab(hosts=2, rails=1))
    fleet.environments["h1"] = {"LD_PRELOAD": str(build_preload(tmp_path, "second_stamps_preload"))}
    fleet.start().true_clock()
    fleet.wait_green()
    reader = SampleReader(fleet.lab.host("h0").run_dir / "probes")
    delays = []

    def enough():
        delays.extend(
            s.owd_ns for s in read_samples(reader) if s.direction == INBOUND and s.flags & FLEET_VALID
        )
        return len(delays) > 200

    wait_for(enough, 20, "200 delays")
    assert min(delays) > -100_000
