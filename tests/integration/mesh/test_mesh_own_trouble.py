"""Faults of the host itself, which must accuse no NIC: stalls, clock steps, a port that another program has."""

import socket
import time

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import DISCONNECTS

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("green_again")]


def test_a_stalled_host_accuses_nobody(fleet):
    """SIGSTOP for 1.5 s, three intervals: no disconnect on the stalled host, and the stall is counted."""
    before = fleet.scrape("h1")
    fleet.daemons["h1"].suspend()
    time.sleep(1.5)  # the case itself: how long it stands still
    fleet.daemons["h1"].resume()
    wait_for(lambda: fleet.scrape("h1").value("fabricpulse_probe_stalls_total") > 0, 5, "the stall")
    fleet.wait_green()
    after = fleet.scrape("h1")
    assert after.values(DISCONNECTS) == before.values(DISCONNECTS)
    for name in ("h0", "h2", "h3"):
        assert set(fleet.scrape(name).values("fabricpulse_nic_connected")) == {1.0}


def test_a_clock_step_is_no_outage(fleet):
    """A host's clock jumps by an hour and back: no disconnect anywhere."""
    counts = {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons}
    clock = fleet.lab.host("h2").clock
    for step_ns in (3600 * 10**9, -3600 * 10**9):
        clock.step(step_ns)
        fleet.wait_probing()
    assert {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons} == counts
    fleet.true_clock()


def test_a_paused_machine_is_no_outage(fleet):
    """Nothing of a host runs and what is sent to it is lost, for three intervals: no NIC of anybody is lost."""
    counts = {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons}
    host = fleet.lab.host("h2")
    with host.nic("rail0").black_hole(), host.nic("rail1").black_hole(), host.freeze():
        time.sleep(1.5)  # the case itself: three intervals
        reported = fleet.scrape("h0").labels("fabricpulse_edge_evidence")
        assert {(f["peer"], f["evidence"]) for f in reported} == {("h2", "peer_host_silent")}
    fleet.wait_green()
    assert {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons} == counts


def test_a_port_in_use_is_no_dead_nic(fleet):
    """Another program has the probe port of a NIC: unknown, with the reason; probing begins when the port is free."""
    lab, host = fleet.lab, fleet.lab.host("h1")
    fleet.daemons["h1"].stop()
    with lab.socket("h1", socket.SOCK_DGRAM) as squatter:
        squatter.bind((host.nic("rail0").address, 9620))
        fleet.start("h1")

        def reported():
            scrape = fleet.scrape("h1")
            return scrape.value("fabricpulse_nic_disconnect_cause", device="rail0", cause="no_socket") == 1

        wait_for(reported, 5, "no_socket")
        assert fleet.connected("h1", "rail0") is None
        nics = {nic["device"]: nic for nic in fleet.get("h1", "/api/v1/edges")["nics"]}
        assert nics["rail0"]["open_error"] == "Address already in use"
        fleet.daemons["h1"].wait_for_output("cannot open the probe socket")
    wait_for(lambda: fleet.connected("h1", "rail0") == 1, 5, "connected")
    assert fleet.scrape("h1").value(DISCONNECTS, device="rail0") == 0


def test_a_second_exporter_leaves_the_first_alone(fleet):
    """Started twice by mistake: the second is refused, and the samples that the clock lives on go on in the first."""
    host = fleet.lab.host("h1")
    ring = host.run_dir / "probes"
    inode = ring.stat().st_ino
    second = host.popen(
        ["fabricpulse", "mesh", "--config", host.directory / "mesh.yaml", "--web.listen-address", ":9699"],
        name="second",
    )
    # What may pass by itself: systemd shall try again.
    assert second.wait(60) == 1
    assert f"in use by another fabricpulse mesh (process {fleet.daemons['h1'].pid})" in second.output()
    assert ring.stat().st_ino == inode
