"""What `fabricpulse mesh` says when real links, NICs, hosts and networks fail: each fault as what it is."""

import json

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import DISCONNECTS

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("green_again")]


def test_link_down_is_one_disconnect(fleet):
    """A cable is pulled: 0 within the interval and some, counted once, logged with its cause; back after the repair."""
    before = fleet.scrape("h2").value(DISCONNECTS, device="rail1")
    fault = fleet.lab.host("h2").nic("rail1").down()
    # The promise is half a second; the rest is for the scrape that shows it. Of a machine with a core for each thread.
    wait_for(lambda: fleet.connected("h2", "rail1") == 0, 0.5 + 0.3, "disconnected")
    scrape = fleet.scrape("h2")
    assert scrape.value(DISCONNECTS, device="rail1") == before + 1
    assert scrape.value("fabricpulse_nic_connected", device="rail0") == 1
    assert scrape.value("fabricpulse_nic_disconnect_cause", device="rail1", cause="link") == 1
    assert scrape.value("fabricpulse_nic_disconnected", device="rail1") == 1
    assert 0 <= scrape.value("fabricpulse_nic_recent_disconnect_age_seconds", device="rail1", nth="1") < 5
    others = fleet.scrape("h0")
    assert set(others.values("fabricpulse_nic_connected")) == {1.0}
    fault.undo()
    wait_for(lambda: fleet.connected("h2", "rail1") == 1, 5, "connected again")
    scrape = fleet.scrape("h2")
    assert scrape.value("fabricpulse_nic_reconnects_total", device="rail1") == before + 1
    assert scrape.value("fabricpulse_nic_disconnected", device="rail1") == 0
    assert scrape.value("fabricpulse_nic_disconnect_duration_seconds_count", device="rail1") == before + 1
    events = fleet.get("h2", "/api/v1/events")["events"]
    assert [e["cause"] for e in events if e["event"] == "nic_disconnected"][-1] == "link"
    # The file is written behind the events, and edges may come back after the NIC.
    path = fleet.lab.host("h2").directory / "events.jsonl"

    def same() -> bool:
        shown = [e["event"] for e in fleet.get("h2", "/api/v1/events")["events"]]
        return [json.loads(line)["event"] for line in path.read_text().splitlines()] == shown

    wait_for(same, 5, "the file has the events")


def test_admin_down_and_back(fleet):
    """The NIC is taken down on the host itself: sends fail, the engine lives, the NIC comes back."""
    with fleet.lab.host("h1").nic("rail0").admin_down():
        wait_for(lambda: fleet.connected("h1", "rail0") == 0, 5, "disconnected")
        assert fleet.scrape("h1").value("fabricpulse_probe_send_errors_total", device="rail0") > 0
    wait_for(lambda: fleet.connected("h1", "rail0") == 1, 5, "connected again")


def test_one_dead_direction_of_a_nic(fleet):
    """The switch loses what the NIC sends: it receives all, its peers nothing. It is disconnected, cause one_way."""
    with fleet.lab.host("h3").nic("rail0").black_hole("tx"):
        wait_for(lambda: fleet.connected("h3", "rail0") == 0, 5, "disconnected")
        scrape = fleet.scrape("h3")
        assert scrape.value("fabricpulse_nic_disconnect_cause", device="rail0", cause="one_way") == 1
        assert set(scrape.values("fabricpulse_edge_inbound_up", device="rail0")) == {1.0}

        def reported():  # edges are judged a little later than their NIC
            return set(fleet.scrape("h3").values("fabricpulse_edge_outbound_up", device="rail0")) == {0.0}

        wait_for(reported, 5, "outbound down")


def test_a_dead_host_is_reported_as_such(fleet):
    """Every process of a host dies: no NIC of the others is disconnected, the edges to it say peer_host_silent."""
    counts = {name: fleet.scrape(name).values(DISCONNECTS) for name in ("h0", "h1", "h2")}
    fleet.lab.host("h3").crash()
    del fleet.daemons["h3"]

    def reported():
        faults = fleet.scrape("h0").labels("fabricpulse_edge_evidence")
        return faults and {(f["peer"], f["evidence"]) for f in faults} == {("h3", "peer_host_silent")}

    wait_for(reported, 5, "peer_host_silent")
    for name, count in counts.items():
        scrape = fleet.scrape(name)
        assert scrape.values(DISCONNECTS) == count
        assert set(scrape.values("fabricpulse_nic_connected")) == {1.0}
    fleet.start("h3")
    fleet.wait_green()  # it has proved that it is alive, with a new epoch
    assert not fleet.scrape("h0").labels("fabricpulse_edge_evidence")


def test_a_dead_path_is_reported_as_such(fleet):
    """A spine swallows everything: some source ports of edges between rails are dead, no NIC is disconnected."""
    counts = {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons}
    with fleet.lab.spine(0).black_hole():

        def broken_edges():
            edges = [e for name in fleet.daemons for e in fleet.edges(name).values()]
            return [e for e in edges if e["evidence"] == "paths_down"]

        broken = wait_for(broken_edges, 20, "a dead path")
        for edge in broken:  # which source port it is: the worst is one of the dead
            dead = {path["port"] for path in edge["paths"] if path["state"] == "down"}
            assert edge["worst_port"] in dead
            assert len(dead) < len(edge["paths"]) == 8
        scrape = fleet.scrape("h0")
        for labels in scrape.labels("fabricpulse_edge_worst_path_port"):
            delays = [
                scrape.value("fabricpulse_edge_path_owd_seconds", path=path, **labels)
                for path in ("best", "median", "worst")
            ]
            # Which path is dead is reported without fleet time, too.
            assert delays == [None] * 3 or delays == sorted(delays)
        for name in fleet.daemons:
            assert fleet.scrape(name).values(DISCONNECTS) == counts[name]


def test_one_dead_peer_nic_is_reported_as_such(fleet):
    """A NIC of h3 loses its cable: its own host says so, the others that this NIC of h3 is silent, not h3."""

    def faults(name):
        found = fleet.scrape(name).labels("fabricpulse_edge_evidence")
        return {(f["peer"], f["peer_device"], f["evidence"]) for f in found}

    with fleet.lab.host("h3").nic("rail1").down():
        for name in ("h0", "h1", "h2"):
            wait_for(
                lambda name=name: faults(name) == {("h3", "rail1", "peer_nic_silent")},
                5,
                f"peer_nic at {name}",
            )
        wait_for(
            lambda: {fault for _, _, fault in faults("h3")} == {"own_nic_disconnected"},
            5,
            "own_nic_disconnected",
        )
        for name in ("h0", "h1", "h2"):
            assert set(fleet.scrape(name).values("fabricpulse_nic_connected")) == {1.0}


def test_two_nics_that_fail_at_once(fleet):
    """Both rails of one host: both disconnected, each by itself; nobody else."""
    first, second = (nic.down() for nic in fleet.lab.host("h0").nics)
    wait_for(
        lambda: set(fleet.scrape("h0").values("fabricpulse_nic_connected")) == {0.0}, 5, "both disconnected"
    )
    assert set(fleet.scrape("h1").values("fabricpulse_nic_connected")) == {1.0}
    first.undo()
    wait_for(lambda: fleet.connected("h0", "rail0") == 1, 5, "the first is back")
    assert fleet.connected("h0", "rail1") == 0
    second.undo()


def test_a_nic_that_vanishes_and_returns(fleet):
    """The device is renamed away and back, as a driver reload does: the engine lives and takes it up again."""
    host = fleet.lab.host("h1")
    ip = ["ip", "link", "set"]
    host.run([*ip, "rail1", "down"])
    host.run([*ip, "rail1", "name", "gone1"])
    wait_for(lambda: fleet.connected("h1", "rail1") == 0, 5, "disconnected")
    edges = fleet.get("h1", "/api/v1/edges")
    assert [nic["open"] for nic in edges["nics"] if nic["device"] == "rail1"] == [False]
    host.run([*ip, "gone1", "name", "rail1"])
    with host.nic("rail1").admin_down():  # undoing it restores address and routes
        pass
    wait_for(lambda: fleet.connected("h1", "rail1") == 1, 5, "connected again")


def test_a_dead_front_end_network_is_reported_as_such(fleet):
    """The host lives, its rails work, nobody on the front-end network answers: that is what it says, and no NIC."""
    lab = fleet.lab
    fleet.config["front_end"] = {"targets": [f"{lab.resolve('mgmt')}:9", "127.0.0.1:1"], "interval_s": 0.2}
    fleet.daemons["h1"].stop()
    fleet.start("h1")
    fleet.config.pop("front_end")
    fleet.wait_green()
    # Nothing listens there: a refusal is an answer.
    wait_for(lambda: fleet.scrape("h1").value("fabricpulse_front_end_connected") == 1, 5, "connected")
    assert fleet.scrape("h1").value("fabricpulse_front_end_disconnects_total") == 0
    targets = fleet.get("h1", "/api/v1/edges")["front_end"]["targets"]
    assert targets[f"{lab.resolve('mgmt')}:9"] is None
    assert "127.0.0.1:1" not in targets  # loopback needs no network
    with lab.host("h1").front_end_nic.black_hole():
        wait_for(lambda: fleet.scrape("h1").value("fabricpulse_front_end_connected") == 0, 5, "disconnected")
        scrape = fleet.scrape("h1")
        assert set(scrape.values("fabricpulse_nic_connected")) == {1.0}
        assert set(scrape.values("fabricpulse_edge_up")) == {1.0}
        assert fleet.get("h1", "/api/v1/edges")["front_end"]["state"] == "disconnected"
        assert set(fleet.scrape("h0").values("fabricpulse_edge_up", peer="h1")) == {1.0}
    wait_for(lambda: fleet.scrape("h1").value("fabricpulse_front_end_connected") == 1, 5, "connected again")
    scrape = fleet.scrape("h1")
    assert scrape.value("fabricpulse_front_end_disconnects_total") == 1
    assert scrape.value("fabricpulse_front_end_disconnected_seconds_total") > 0.4
    reported = [e["event"] for e in fleet.get("h1", "/api/v1/events")["events"] if "front_end" in e["event"]]
    assert reported == ["front_end_disconnected", "front_end_connected"]
