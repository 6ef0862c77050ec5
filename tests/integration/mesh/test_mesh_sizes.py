"""`fabricpulse mesh` on labs of other shapes, and its life as a daemon."""

import json
import signal
import subprocess
import sys
import time

import pytest
import yaml
from tests.fixtures.waiting import POLL_S, Patience, wait_for
from tests.integration.mesh.mesh_fleet import DISCONNECTS, MeshFleet

pytestmark = pytest.mark.root

CLI = ("-m", "fabricpulse.core.cli")


def test_ipv6_and_short_interval(make_lab):
    """Over IPv6, at 200 ms: a dead link is seen within 350 ms."""
    lab = make_lab(hosts=3, rails=1)
    fleet = MeshFleet(lab, {"down_after_s": 0.2})
    document = {
        "hosts": [
            {
                "name": h.name,
                "nics": [{"device": n.device, "address": n.address6, "network": n.device} for n in h.nics],
            }
            for h in lab.hosts
        ]
    }
    fleet.membership.write_text(yaml.safe_dump(document))
    fleet.start().wait_green()
    with lab.host("h0").nic("rail0").down():
        wait_for(lambda: fleet.connected("h0", "rail0") == 0, 0.35, "disconnected")


def test_two_hosts_when_one_dies(make_lab):
    """Two hosts, two rails: the other host is the only witness. When it dies our NICs are unknown, not disconnected."""
    lab = make_lab(hosts=2, rails=2)
    fleet = MeshFleet(lab).start()
    fleet.wait_green()
    lab.host("h1").crash()
    wait_for(lambda: not fleet.scrape("h0").values("fabricpulse_nic_connected"), 5, "unknown")
    scrape = fleet.scrape("h0")
    assert scrape.values("fabricpulse_nic_disconnects_total") == [0, 0]
    assert len(scrape.labels("fabricpulse_nic_disconnect_cause")) == 2
    assert {labels["cause"] for labels in scrape.labels("fabricpulse_nic_disconnect_cause")} == {"peer_gone"}
    with lab.host("h0").nic("rail1").down():  # its own link, on the other hand, is its own
        wait_for(lambda: fleet.connected("h0", "rail1") == 0, 5, "disconnected")


def test_rates_are_limited_both_ways(make_lab):
    """A node sends at its rate, whatever comes in; what a peer sends above `receive_packets_per_s` is dropped."""
    lab = make_lab(hosts=2, rails=1)
    fleet = MeshFleet(lab, {"receive_packets_per_s": 60, "down_after_s": 1})
    fleet.start()
    rate = {"device": "rail0", "reason": "rate"}
    wait_for(
        lambda: (fleet.scrape("h0").value("fabricpulse_probes_dropped_total", **rate) or 0) > 0, 15, "dropped"
    )
    began, first = time.monotonic(), fleet.scrape("h0")
    patience = Patience(15)
    while fleet.scrape("h0").value("fabricpulse_probes_dropped_total", **rate) <= 200 + first.value(
        "fabricpulse_probes_dropped_total", **rate
    ):
        assert patience.left(), "no more are dropped"
        time.sleep(POLL_S)  # a counter of another process grows
    patience.left()
    last, took = fleet.scrape("h0"), time.monotonic() - began

    def grown(name):
        return last.value(name) - first.value(name)

    assert grown("fabricpulse_edge_probes_received_total") <= 60 * took + 60
    # `took` holds both scrapes, which a busy machine makes long; as few as that are sent where threads wait for a core.
    sent = grown("fabricpulse_edge_probes_sent_total")
    assert 150 * patience.spent_s * 0.5 < sent < 150 * took * 1.2 + 3
    assert last.value("fabricpulse_edge_up") == 1  # what is taken is enough to judge by


def test_a_nic_that_is_down_and_loses_its_peers_is_unknown(make_lab):
    lab = make_lab(hosts=2, rails=2)
    fleet = MeshFleet(lab).start()
    fleet.wait_green()
    with lab.host("h0").nic("rail0").down():
        wait_for(lambda: fleet.connected("h0", "rail0") == 0, 5, "disconnected")
        document = yaml.safe_load(fleet.membership.read_text())
        document["hosts"] = [host for host in document["hosts"] if host["name"] == "h0"]
        fleet.membership.write_text(yaml.safe_dump(document))
        wait_for(lambda: not fleet.scrape("h0").values("fabricpulse_nic_connected"), 5, "unknown")
        nic = next(nic for nic in fleet.get("h0", "/api/v1/edges")["nics"] if nic["device"] == "rail0")
        assert (nic["state"], nic["down_ns"], nic["disconnects"]) == ("unknown", None, 1)


def test_alone_is_unknown(make_lab):
    """Nobody else has started: nothing is known of any NIC, and nothing is said."""
    lab = make_lab(hosts=2, rails=1)
    fleet = MeshFleet(lab, {"grace_s": 0.3})
    fleet.start("h0")
    wait_for(
        lambda: (fleet.scrape("h0").value("fabricpulse_probe_lateness_seconds_count") or 0) > 60,
        5,
        "a second",
    )
    scrape = fleet.scrape("h0")
    assert scrape.values("fabricpulse_nic_connected") == []
    # What could happen is there from the start: a rate of the first one is no gap.
    for name in ("disconnects_total", "reconnects_total", "disconnect_duration_seconds_count"):
        assert scrape.values(f"fabricpulse_nic_{name}") == [0]
    assert scrape.value("fabricpulse_mesh_events_total", kind="nic_disconnected") == 0


def test_two_hosts_cannot_tell_whose_nic_has_failed(make_lab):
    """One rail, one peer, and it falls silent while the link is up: unknown at both ends, and the edge is down."""
    lab = make_lab(hosts=2, rails=1)
    fleet = MeshFleet(lab).start()
    fleet.wait_green()
    with lab.host("h1").nic("rail0").black_hole():
        for name in ("h0", "h1"):
            cause = {"device": "rail0", "cause": "one_peer_only"}

            def reported(name=name, cause=cause):
                return fleet.scrape(name).value("fabricpulse_nic_disconnect_cause", **cause) == 1

            wait_for(reported, 5, f"unknown at {name}")
            assert fleet.connected(name, "rail0") is None
            wait_for(lambda name=name: fleet.scrape(name).value("fabricpulse_edge_up") == 0, 5, "edge down")
    fleet.wait_green()
    for name in ("h0", "h1"):
        assert fleet.connected(name, "rail0") == 1
        assert fleet.scrape(name).value(DISCONNECTS) == 0
    with lab.host("h1").nic("rail0").down():  # h1 knows it by its own carrier; h0 still cannot know
        wait_for(lambda: fleet.connected("h1", "rail0") == 0, 5, "disconnected")
        wait_for(lambda: fleet.connected("h0", "rail0") is None, 5, "unknown")


def test_sigterm_ends_it_cleanly(make_lab):
    """It is ready, reads its settings again on SIGHUP, and ends with 0 and without a traceback."""
    lab = make_lab(hosts=2, rails=1)
    fleet = MeshFleet(lab).start()
    fleet.wait_green()
    assert lab.http_get("h0", "http://127.0.0.1:9610/-/ready").strip() == "fabricpulse mesh is ready."
    daemon = fleet.daemons["h0"]
    daemon.send_signal(signal.SIGHUP)
    daemon.wait_for_output("event=reloaded")
    daemon.terminate()
    assert daemon.wait(60) == 0
    assert "Traceback" not in daemon.output()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "no membership is configured"),
        (
            {"membership": {"file": "/nonexistent/fleet.yaml"}},
            "cannot read configuration /nonexistent/fleet.yaml",
        ),
        ({"membership": {"fil": "x"}}, "did you mean 'file'"),
        ({"membership": {"file": "a", "url": "http://b"}}, "one of file, url and dns"),
        ({"probe": {"down_after_s": 0.1}}, "down_after_s"),
        ({"probe": {"trains_per_s": 10, "down_after_s": 0.5}}, "six train periods"),
        ({"alerting": {"alertmanagers": ["am:9093"]}}, "not an http or https URL"),
        ({"membership": {"file": "FLEET"}, "key_file": "/nonexistent/key"}, "cannot read key file"),
    ],
)
def test_bad_configuration_is_one_sentence(tmp_path, document, words):
    """Exit code 2, one sentence, no traceback."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("hosts: [{name: h0}]\n")
    config = tmp_path / "mesh.yaml"
    config.write_text(json.dumps(document).replace("FLEET", str(fleet)))
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "fabricpulse.core.cli",
            "mesh",
            "--config",
            config,
            "--web.listen-address",
            "127.0.0.1:0",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"FABRICPULSE_RUN_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 2
    # Where the file is at fault, its line with a caret stands below the sentence.
    (message,) = [line for line in result.stderr.splitlines() if line.startswith("fabricpulse: error: ")]
    assert words in message
    assert "Traceback" not in result.stderr
