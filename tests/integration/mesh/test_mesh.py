"""`fabricpulse mesh` on a fleet of namespaces: what it says when real links fail."""

import json
import signal
import socket
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from tests.integration.mesh.mesh_fleet import MeshFleet, wait_for

from fabricpulse.core.shm.probe_ring import FLEET_VALID, INBOUND, OUTBOUND, ProbeRingReader
from fabricpulse.lab.servers import start_alertmanager, start_prometheus

pytestmark = pytest.mark.root

DISCONNECTS = "fabricpulse_nic_disconnects_total"


@pytest.fixture(scope="module")
def fleet(shared_lab):
    """All hosts probing, interval 0.5 s, virtual clocks apart, fleet time exact."""
    for number, host in enumerate(shared_lab.hosts):
        host.clock.set(offset_ns=number * 7_000_000_000 - 3_000_000, drift_ppm=(-1) ** number * 12.5 * number)
    started = MeshFleet(shared_lab, latency={"window_s": 2}).start()
    started.true_clock()
    started.wait_green()
    wait_for(
        lambda: all(e["owd_ns"] for name in started.daemons for e in started.edges(name).values()),
        5,
        "delays",
    )
    return started


@pytest.fixture(autouse=True)
def green_again(fleet):
    """Each test starts and ends with a healthy fleet."""
    fleet.wait_green()
    yield
    fleet.lab.heal()
    fleet.wait_green()


def test_owd_is_the_truth(fleet):
    """One-way delay on fleet time equals RX minus TX kernel stamp, though the hosts' clocks are seconds apart."""
    lab = fleet.lab
    fleet.true_clock()
    reader = ProbeRingReader(lab.host("h1").run_dir / "probes")
    edges = reader.edges()
    samples = []

    def enough():
        samples.extend(reader.read())
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
            to_kernel(own.clock, sample.rx_ns[i]) - to_kernel(peer.clock, sample.tx_ns[i])
            for i in range(1, 3)
            if both >> i & 1
        )
        errors.append(abs(sample.owd_ns - truth))
    assert len(errors) > 50
    assert sorted(errors)[len(errors) * 99 // 100] <= 500


def to_kernel(clock, host_ns):
    """The inverse of HostClock.from_kernel, to the nanosecond."""
    # From a guess on the right segment: the offset as it is now.
    kernel = host_ns - clock.truth(time.time_ns())
    for _ in range(4):
        kernel -= clock.from_kernel(kernel) - host_ns
    return kernel


def test_both_directions_are_in_the_ring(fleet):
    """Each end holds all four stamps of the coded pair: inbound samples of the peer's trains, outbound of its own.

    The warm-up packet has an RX stamp only: no one uses its TX stamp, which is a third of the cost of all stamps.
    """
    reader = ProbeRingReader(fleet.lab.host("h0").run_dir / "probes")
    seen = {INBOUND: 0, OUTBOUND: 0}

    def enough():
        for sample in reader.read():
            if sample.tx_valid == 0b110 and sample.rx_valid == 0b111:
                seen[sample.direction] += 1
        return min(seen.values()) > 100

    wait_for(enough, 10, "samples of both directions")
    assert reader.lost == 0
    assert len(reader.edges()) == len(fleet.edges("h0"))


def test_link_down_is_one_disconnect(fleet):
    """A cable is pulled: 0 within the interval and some, counted once, logged with its cause; back after the repair."""
    before = fleet.scrape("h2").value(DISCONNECTS, device="rail1")
    fault = fleet.lab.host("h2").nic("rail1").down()
    started = time.monotonic()
    wait_for(lambda: fleet.connected("h2", "rail1") == 0, 5, "disconnected")
    assert time.monotonic() - started < 0.5 + 0.3
    scrape = fleet.scrape("h2")
    assert scrape.value(DISCONNECTS, device="rail1") == before + 1
    assert scrape.value("fabricpulse_nic_connected", device="rail0") == 1
    assert scrape.value("fabricpulse_nic_disconnect_cause", device="rail1", cause="link") == 1
    others = fleet.scrape("h0")
    assert set(others.values("fabricpulse_nic_connected")) == {1.0}
    fault.undo()
    wait_for(lambda: fleet.connected("h2", "rail1") == 1, 5, "connected again")
    scrape = fleet.scrape("h2")
    assert scrape.value("fabricpulse_nic_reconnects_total", device="rail1") == before + 1
    assert scrape.value("fabricpulse_nic_disconnect_duration_seconds_count", device="rail1") == before + 1
    events = fleet.get("h2", "/api/v1/events")["events"]
    assert [e["cause"] for e in events if e["event"] == "nic_disconnected"][-1] == "link"
    lines = (fleet.lab.host("h2").directory / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == [e["event"] for e in events]


def test_admin_down_and_back(fleet):
    """The NIC is taken down on the host itself: sends fail, the engine lives, the NIC comes back."""
    with fleet.lab.host("h1").nic("rail0").admin_down():
        wait_for(lambda: fleet.connected("h1", "rail0") == 0, 5, "disconnected")
        assert fleet.scrape("h1").value("fabricpulse_probe_send_errors_total", device="rail0") > 0
    wait_for(lambda: fleet.connected("h1", "rail0") == 1, 5, "connected again")


def test_one_dead_direction_of_a_nic(fleet):
    """The switch loses what the NIC sends: it hears all and nobody hears it. It is disconnected, cause one_way."""
    with fleet.lab.host("h3").nic("rail0").black_hole("tx"):
        wait_for(lambda: fleet.connected("h3", "rail0") == 0, 5, "disconnected")
        scrape = fleet.scrape("h3")
        assert scrape.value("fabricpulse_nic_disconnect_cause", device="rail0", cause="one_way") == 1
        assert set(scrape.values("fabricpulse_edge_inbound_up", device="rail0")) == {1.0}

        def told():  # edges are judged a little later than their NIC
            return set(fleet.scrape("h3").values("fabricpulse_edge_outbound_up", device="rail0")) == {0.0}

        wait_for(told, 5, "outbound down")


def test_a_dead_host_is_told_as_such(fleet):
    """Every process of a host dies: no NIC of the others is disconnected, the edges to it say peer_host."""
    counts = {name: fleet.scrape(name).values(DISCONNECTS) for name in ("h0", "h1", "h2")}
    fleet.lab.host("h3").crash()
    del fleet.daemons["h3"]

    def told():
        faults = fleet.scrape("h0").labels("fabricpulse_edge_fault")
        return faults and {(f["peer"], f["fault"]) for f in faults} == {("h3", "peer_host")}

    wait_for(told, 5, "peer_host")
    for name, count in counts.items():
        scrape = fleet.scrape(name)
        assert scrape.values(DISCONNECTS) == count
        assert set(scrape.values("fabricpulse_nic_connected")) == {1.0}
    fleet.start("h3")
    fleet.wait_green()  # it has proved that it is alive, with a new epoch
    assert not fleet.scrape("h0").labels("fabricpulse_edge_fault")


def test_a_dead_path_is_told_as_such(fleet):
    """A spine swallows everything: some source ports of edges between rails are dead, no NIC is disconnected."""
    counts = {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons}
    with fleet.lab.spine(0).black_hole():

        def told():
            faults = [
                f for name in fleet.daemons for f in fleet.scrape(name).labels("fabricpulse_edge_fault")
            ]
            return any(f["fault"] == "path" for f in faults)

        wait_for(told, 20, "a dead path")
        for name in fleet.daemons:
            assert fleet.scrape(name).values(DISCONNECTS) == counts[name]


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


def test_a_stalled_host_accuses_nobody(fleet):
    """SIGSTOP for 1.5 s, three intervals: no disconnect on the stalled host, and the stall is counted."""
    before = fleet.scrape("h1")
    fleet.daemons["h1"].suspend()
    time.sleep(1.5)
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
    clock.step(3600 * 10**9)
    time.sleep(1)
    clock.step(-3600 * 10**9)
    time.sleep(0.7)
    assert {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons} == counts
    fleet.true_clock()


def test_membership_change(fleet):
    """A host leaves the membership file: its edges vanish from metrics at once; the others keep their counters."""
    text = fleet.membership.read_text()
    before = fleet.edges("h0")
    kept = [key for key in before if key[1] != "h3"]
    shorter = text[: text.index("  - name: h3")]
    temporary = fleet.membership.with_suffix(".new")
    temporary.write_text(shorter)
    temporary.replace(fleet.membership)
    wait_for(lambda: not any(key[1] == "h3" for key in fleet.edges("h0")), 5, "h3 is gone")
    assert 'peer="h3"' not in fleet.scrape("h0").text
    after = fleet.edges("h0")
    assert all(after[key]["sent"] >= before[key]["sent"] for key in kept if key in after)
    temporary.write_text(text)
    temporary.replace(fleet.membership)
    wait_for(lambda: any(key[1] == "h3" for key in fleet.edges("h0")), 5, "h3 is back")


def test_bad_membership_leaves_the_old_one_in_force(fleet):
    text = fleet.membership.read_text()
    fleet.membership.write_text("hosts: [{nam: h0}]\n")
    wait_for(
        lambda: fleet.scrape("h0").value("fabricpulse_mesh_membership_success") == 0,
        5,
        "the failure is shown",
    )
    assert fleet.connected("h0", "rail0") == 1
    fleet.membership.write_text(text)
    wait_for(lambda: fleet.scrape("h0").value("fabricpulse_mesh_membership_success") == 1, 5, "read again")


def test_keys_rotate_without_a_gap(fleet):
    """Old and new key, then new and old, then new alone: never an edge down."""
    counts = {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons}
    old, new = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
    for turn, keys in enumerate(([old, new], [new, old], [new])):
        seen = {name: daemon.output().count("event=keys") for name, daemon in fleet.daemons.items()}
        fleet.key_file.write_text("\n".join(keys) + "\n")

        def read(seen=seen):
            return all(d.output().count("event=keys") > seen[name] for name, d in fleet.daemons.items())

        wait_for(read, 5, f"turn {turn} of the rotation is read")
        time.sleep(0.6)  # one refresh and one interval: what would break, would break now
        for name in fleet.daemons:
            assert set(fleet.scrape(name).values("fabricpulse_edge_up")) == {1.0}
    assert {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons} == counts


def test_noise_and_strangers_are_counted(fleet):
    """Packets of nobody: dropped by reason, no answer, no harm."""
    lab = fleet.lab
    target = lab.host("h0").nic("rail0").address
    before = fleet.scrape("h0")
    with lab.socket("h1", socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x" * 120, (target, 9620))
        sock.sendto(b"FPM1\x01" + bytes(115), (target, 9620))
        sock.settimeout(0.3)
        wait_for(
            lambda: (
                fleet.scrape("h0").value(
                    "fabricpulse_probes_dropped_total", device="rail0", reason="malformed"
                )
                > before.value("fabricpulse_probes_dropped_total", device="rail0", reason="malformed")
            ),
            5,
            "malformed",
        )
        wait_for(
            lambda: (
                fleet.scrape("h0").value(
                    "fabricpulse_probes_dropped_total", device="rail0", reason="wrong_fleet"
                )
                > before.value("fabricpulse_probes_dropped_total", device="rail0", reason="wrong_fleet")
            ),
            5,
            "wrong_fleet",
        )
        with pytest.raises(TimeoutError):
            sock.recvfrom(2000)


def test_push_is_one_alert(fleet, tools):
    """A lost NIC is in a real Alertmanager at once, with the labels of the rule, and resolved when the NIC is back."""
    alertmanager = start_alertmanager(
        fleet.lab, {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}, tools=tools
    )
    url = f"http://{fleet.lab.resolve('mgmt')}:{alertmanager.port}"
    fleet.config["alerting"] = {
        "alertmanagers": [url, "http://127.0.0.1:1"],  # the second is dead: it must not delay the first
        "labels": {"instance": "h2", "job": "fabricpulse-mesh"},
        "resend_s": 1,
        "resolve_hold_s": 0,
    }
    fleet.daemons["h2"].stop()
    fleet.start("h2")
    fleet.wait_green()
    rule = yaml.safe_load((Path(__file__).parents[3] / "rules" / "alerts" / "nic.yaml").read_text())
    rules = {r["alert"]: r for group in rule["groups"] for r in group["rules"]}["FabricNicDisconnected"]

    def firing():
        return alertmanager.alerts('alertname="FabricNicDisconnected"')

    with fleet.lab.host("h2").nic("rail0").down():
        alerts = wait_for(firing, 5, "the alert")
        expected = {"alertname": "FabricNicDisconnected", "device": "rail0", "network": "rail0"}
        expected |= {"instance": "h2", "job": "fabricpulse-mesh", **rules["labels"]}
        assert [alert["labels"] for alert in alerts] == [expected]
        assert alerts[0]["annotations"]["summary"] == rules["annotations"]["summary"]
        assert alerts[0]["annotations"]["runbook_url"] == rules["annotations"]["runbook_url"]
        updated = alerts[0]["updatedAt"]
        wait_for(lambda: firing()[0]["updatedAt"] != updated, 5, "sent again while it fires")
    wait_for(lambda: not firing(), 5, "resolved")
    scrape = fleet.scrape("h2")
    assert scrape.value("fabricpulse_alert_pushes_total", alertmanager=url) >= 3
    assert scrape.value("fabricpulse_alert_push_failures_total", alertmanager="http://127.0.0.1:1") > 0
    alertmanager.stop()


def test_a_dead_front_end_network_is_told_as_such(fleet):
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
    told = [e["event"] for e in fleet.get("h1", "/api/v1/events")["events"] if "front_end" in e["event"]]
    assert told == ["front_end_disconnected", "front_end_connected"]


def test_one_dead_peer_nic_is_told_as_such(fleet):
    """A NIC of h3 loses its cable: its own host says local_nic, the others that this NIC of h3 is gone, not h3."""

    def faults(name):
        found = fleet.scrape(name).labels("fabricpulse_edge_fault")
        return {(f["peer"], f["peer_device"], f["fault"]) for f in found}

    with fleet.lab.host("h3").nic("rail1").down():
        for name in ("h0", "h1", "h2"):
            wait_for(
                lambda name=name: faults(name) == {("h3", "rail1", "peer_nic")}, 5, f"peer_nic at {name}"
            )
        wait_for(lambda: {fault for _, _, fault in faults("h3")} == {"local_nic"}, 5, "local_nic")
        for name in ("h0", "h1", "h2"):
            assert set(fleet.scrape(name).values("fabricpulse_nic_connected")) == {1.0}


def test_a_paused_machine_is_no_outage(fleet):
    """Nothing of a host runs and what is sent to it is lost, for three intervals: no NIC of anybody is lost."""
    counts = {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons}
    host = fleet.lab.host("h2")
    with host.nic("rail0").black_hole(), host.nic("rail1").black_hole(), host.freeze():
        time.sleep(1.5)
        told = fleet.scrape("h0").labels("fabricpulse_edge_fault")
        assert {(f["peer"], f["fault"]) for f in told} == {("h2", "peer_host")}
    fleet.wait_green()
    assert {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons} == counts


def test_a_port_in_use_is_no_dead_nic(fleet):
    """Another program has the probe port of a NIC: unknown, with the reason; probing begins when the port is free."""
    lab, host = fleet.lab, fleet.lab.host("h1")
    fleet.daemons["h1"].stop()
    with lab.socket("h1", socket.SOCK_DGRAM) as squatter:
        squatter.bind((host.nic("rail0").address, 9620))
        fleet.start("h1")

        def told():
            scrape = fleet.scrape("h1")
            return scrape.value("fabricpulse_nic_disconnect_cause", device="rail0", cause="no_socket") == 1

        wait_for(told, 5, "no_socket")
        assert fleet.connected("h1", "rail0") is None
        nics = {nic["device"]: nic for nic in fleet.get("h1", "/api/v1/edges")["nics"]}
        assert nics["rail0"]["open_error"] == "Address already in use"
        fleet.daemons["h1"].wait_for_output("cannot open the probe socket")
    wait_for(lambda: fleet.connected("h1", "rail0") == 1, 5, "connected")
    assert fleet.scrape("h1").value(DISCONNECTS, device="rail0") == 0


def test_the_coordinator_comes_later(fleet):
    """No membership yet: it serves and says so; it probes once there is one; SIGTERM ends it at once all the while."""
    host = fleet.lab.host("h1")
    fleet.daemons["h1"].stop()
    config = {
        "host": "h1",
        "membership": {"url": "http://127.0.0.1:9614/membership", "refresh_s": 0.2},
        "key_file": str(fleet.key_file),
        "probe": fleet.probe,
    }
    path = host.directory / "later.yaml"
    path.write_text(yaml.safe_dump(config))
    command = ["fabricpulse", "mesh", "--config", path, "--web.listen-address", ":9610"]
    early = host.popen(command, name="mesh-early")
    early.wait_for_output("no membership yet")
    early.wait_for_output("event=listening")
    assert fleet.scrape("h1").value("fabricpulse_mesh_membership_success") == 0
    began = time.monotonic()
    assert early.stop() == 0
    assert time.monotonic() - began < 2
    late = host.popen(command, name="mesh-late")
    late.wait_for_output("event=listening")
    folder = host.directory / "coordinator"
    folder.mkdir()
    (folder / "membership").write_text(fleet.membership.read_text())
    server = host.popen(
        [sys.executable, "-m", "http.server", "-b", "127.0.0.1", "-d", folder, "9614"], name="coordinator"
    )
    wait_for(lambda: fleet.connected("h1", "rail0") == 1, 10, "probing")
    assert fleet.scrape("h1").value("fabricpulse_mesh_membership_success") == 1
    late.stop()
    server.kill()
    fleet.start("h1")


def test_reload_reads_keys_and_membership_at_once(fleet):
    """SIGHUP: what is bad is said once, not each time that it is looked at."""
    daemon, text = fleet.daemons["h0"], fleet.membership.read_text()
    before = daemon.output().count("the membership stays as it was")
    fleet.membership.write_text(
        "hosts: [{name: h0, nics: [{device: rail0, address: 10.0.0.300, network: a}]}]\n"
    )
    daemon.send_signal(signal.SIGHUP)
    wait_for(
        lambda: daemon.output().count("the membership stays as it was") == before + 1,
        5,
        "the error is logged",
    )
    assert "10.0.0.300" in daemon.output()
    for _ in range(3):
        daemon.send_signal(signal.SIGHUP)
        time.sleep(0.3)  # a refresh and a reload
    assert daemon.output().count("the membership stays as it was") == before + 1
    fleet.membership.write_text(text)
    daemon.send_signal(signal.SIGHUP)
    wait_for(lambda: fleet.scrape("h0").value("fabricpulse_mesh_membership_success") == 1, 5, "read again")


def test_reload_says_which_settings_need_a_restart(fleet):
    daemon = fleet.daemons["h0"]
    path = fleet.lab.host("h0").directory / "mesh.yaml"
    text = path.read_text()
    document = yaml.safe_load(text)
    document["probe"]["interval_s"] = 0.7
    document["sample_cap"] = 5000
    path.write_text(yaml.safe_dump(document))
    daemon.send_signal(signal.SIGHUP)
    wait_for(lambda: "changed settings need a restart" in daemon.output(), 5, "the warning")
    assert 'settings="probe.interval_s, sample_cap"' in daemon.output()
    path.write_text("probe: {intervall_s: 1}\n")
    daemon.send_signal(signal.SIGHUP)
    wait_for(lambda: "reload failed" in daemon.output(), 5, "a file that is wrong is refused")
    assert "intervall_s" in daemon.output()
    path.write_text(text)


def test_push_and_rule_end_as_one_alert(fleet, tools):
    """With a Prometheus that has the rule: the alert begins once and ends once, whichever of the two ends it first."""
    lab = fleet.lab
    alertmanager = start_alertmanager(
        lab, {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}, tools=tools
    )
    scrape_ms, evaluation_ms = 1500, 100
    target = {"targets": [f"{lab.resolve('h2')}:9610"], "labels": {"instance": "h2"}}
    prometheus = start_prometheus(
        lab,
        {
            # Many evaluations a scrape: the rule fires on for most of the time until the next scrape.
            "global": {"scrape_interval": f"{scrape_ms}ms", "evaluation_interval": f"{evaluation_ms}ms"},
            "rule_files": [str(Path(__file__).parents[3] / "rules" / "alerts" / "nic.yaml")],
            "scrape_configs": [{"job_name": "fabricpulse-mesh", "static_configs": [target]}],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager.port}"]}]}]
            },
        },
        tools=tools,
        # Each evaluation tells its firing alerts again, as it else does each minute.
        flags=["--rules.alert.resend-delay=0s"],
    )
    disagree_s = (scrape_ms + evaluation_ms) / 1000
    fleet.config["alerting"] = {
        "alertmanagers": [f"http://{lab.resolve('mgmt')}:{alertmanager.port}"],
        "labels": {"instance": "h2", "job": "fabricpulse-mesh"},
        "resolve_hold_s": disagree_s + 0.3,
    }
    fleet.daemons["h2"].stop()
    fleet.start("h2")
    fleet.wait_green()

    def firing():
        return len(alertmanager.alerts('alertname="FabricNicDisconnected"'))

    for _ in range(2):
        with lab.host("h2").nic("rail0").down():
            wait_for(firing, 5, "the pushed alert")
            wait_for(
                lambda: [
                    a for a in prometheus.alerts() if a["labels"]["alertname"] == "FabricNicDisconnected"
                ],
                10,
                "the rule's alert",
            )
        seen = [firing()]
        wait_for(lambda: fleet.connected("h2", "rail0") == 1, 5, "connected again")
        over = time.monotonic() + 2 * disagree_s + 1
        while time.monotonic() < over:
            seen.append(firing())
            time.sleep(0.02)
        changes = [count for count, before in zip(seen, [None, *seen], strict=False) if count != before]
        assert changes == [1, 0]
    prometheus.stop()
    alertmanager.stop()
    fleet.config.pop("alerting")


def test_an_old_end_does_not_end_a_new_outage(fleet, tools):
    """Prometheus repeats the end of the first outage; the second is pushed again before anybody could miss it."""
    lab = fleet.lab
    route = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
    alertmanager = start_alertmanager(lab, route, tools=tools)
    target = {"targets": [f"{lab.resolve('h2')}:9610"], "labels": {"instance": "h2"}}
    scrape_s = 5
    prometheus = start_prometheus(
        lab,
        {
            "global": {"scrape_interval": f"{scrape_s}s", "evaluation_interval": "100ms"},
            "rule_files": [str(Path(__file__).parents[3] / "rules" / "alerts" / "nic.yaml")],
            "scrape_configs": [{"job_name": "fabricpulse-mesh", "static_configs": [target]}],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager.port}"]}]}]
            },
        },
        tools=tools,
        flags=["--rules.alert.resend-delay=1500ms"],  # else a minute
    )
    fleet.config["alerting"] = {
        "alertmanagers": [f"http://{lab.resolve('mgmt')}:{alertmanager.port}"],
        "labels": {"instance": "h2", "job": "fabricpulse-mesh"},
        "resolve_hold_s": scrape_s + 0.5,
    }
    fleet.daemons["h2"].stop()
    fleet.start("h2")
    fleet.wait_green()

    def firing():
        return len(alertmanager.alerts('alertname="FabricNicDisconnected"'))

    def rule_fires():
        return [a for a in prometheus.alerts() if a["labels"]["alertname"] == "FabricNicDisconnected"]

    with lab.host("h2").nic("rail0").down():
        wait_for(firing, 5, "the pushed alert")
        wait_for(rule_fires, 2 * scrape_s, "the rule's alert")
    wait_for(lambda: not rule_fires() and not firing(), 2 * scrape_s + 5, "both have ended")
    silent, fired_at, gaps = 0.0, 0.0, []
    with lab.host("h2").nic("rail0").down():
        wait_for(firing, 5, "the pushed alert")
        over = fired_at = time.monotonic()
        while not rule_fires() and over - fired_at < 2 * scrape_s:
            over = time.monotonic()
            if firing():
                silent = 0.0
            else:
                silent = silent or over
                gaps.append(over - silent)
            time.sleep(0.02)
        wait_for(firing, 5, "the rule's alert")
    assert max(gaps, default=0.0) < 1.5
    prometheus.stop()
    alertmanager.stop()
    fleet.config.pop("alerting")


_PUSH = """
import asyncio, signal, sys, time
from fabricpulse.exporters.mesh.alerts import AlertPusher
from fabricpulse.exporters.mesh.config import Alerting

async def main(url, ahead_s):
    config = Alerting(alertmanagers=(url,), labels={"instance": "h9", "job": "mesh"}, resolve_hold_s=0)
    pusher = AlertPusher(config, "h9", lambda: time.time() + ahead_s)
    await pusher.start()
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    pusher.fire("rail0", "rail0")
    await over.wait()
    pusher.resolve("rail0", "rail0")
    await pusher.stop()

asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""


@pytest.mark.parametrize("ahead_s", [-600, 600])
def test_a_host_whose_clock_is_off_is_heard_by_alertmanager(fleet, tools, ahead_s):
    """Its alert fires and ends: Alertmanager judges by its own clock."""
    lab = fleet.lab
    route = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
    alertmanager = start_alertmanager(lab, route, tools=tools)
    url = f"http://{lab.resolve('mgmt')}:{alertmanager.port}"
    pusher = lab.popen("h2", [sys.executable, "-c", _PUSH, url, str(ahead_s)], name=f"push{ahead_s}")
    alerts = wait_for(lambda: alertmanager.alerts('instance="h9"'), 10, "the alert")
    began = datetime.fromisoformat(alerts[0]["startsAt"]).timestamp()
    assert abs(began - time.time()) < 15
    pusher.stop()
    wait_for(lambda: not alertmanager.alerts('instance="h9"'), 5, "the end")
    alertmanager.stop()


def test_a_flood_of_recorded_packets_harms_nobody(fleet):
    """Replays are dropped as such and use up nothing of what the peer itself may send."""
    lab = fleet.lab
    source, target = lab.host("h1").nic("rail0").address, lab.host("h0").nic("rail0").address
    with lab.socket("h1", socket.SOCK_DGRAM, socket.AF_PACKET, socket.htons(3)) as tap:
        tap.settimeout(5)
        while True:
            packet = tap.recv(2000)
            addresses = socket.inet_aton(source) + socket.inet_aton(target)
            if packet[12:20] == addresses and packet[9] == socket.IPPROTO_UDP and len(packet) >= 28 + 120:
                recorded = packet[28:148]
                break
    before = fleet.scrape("h0")
    down = before.value("fabricpulse_mesh_events_total", kind="edge_down")

    def dropped(scrape, reason):
        return scrape.value("fabricpulse_probes_dropped_total", device="rail0", reason=reason)

    with lab.socket("h1", socket.SOCK_DGRAM) as sock:
        sock.bind((source, 0))
        until = time.monotonic() + 2
        while time.monotonic() < until:  # several times the 2,000 a second that are taken from a peer
            for _ in range(100):
                sock.sendto(recorded, (target, 9620))
            time.sleep(0.005)
    after = fleet.scrape("h0")
    assert dropped(after, "replay") - dropped(before, "replay") > 5000
    assert dropped(after, "rate") == dropped(before, "rate")
    assert after.value("fabricpulse_mesh_events_total", kind="edge_down") == down


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
