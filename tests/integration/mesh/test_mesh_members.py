"""Who belongs to the fleet: membership, keys, and what others send."""

import signal
import socket
import sys
import time

import pytest
import yaml
from tests.fixtures.waiting import Patience, wait_for
from tests.integration.mesh.mesh_fleet import DISCONNECTS

from fabricpulse.mesh._probe_engine import encode
from fabricpulse.mesh.config import load_keys

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("green_again")]


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
    patience = Patience(2)
    assert early.stop() == 0
    assert patience.left(), "it waited for something before it stopped"
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
        reloads = daemon.output().count("event=reloaded")
        daemon.send_signal(signal.SIGHUP)
        wait_for(
            lambda reloads=reloads: daemon.output().count("event=reloaded") > reloads, 5, "a reload is over"
        )
    assert daemon.output().count("the membership stays as it was") == before + 1
    fleet.membership.write_text(text)
    daemon.send_signal(signal.SIGHUP)
    wait_for(lambda: fleet.scrape("h0").value("fabricpulse_mesh_membership_success") == 1, 5, "read again")


def test_reload_says_which_settings_need_a_restart(fleet):
    daemon = fleet.daemons["h0"]
    path = fleet.lab.host("h0").directory / "mesh.yaml"
    text = path.read_text()
    document = yaml.safe_load(text)
    document["probe"]["down_after_s"] = 0.7
    document["sample_cap"] = 5000
    path.write_text(yaml.safe_dump(document))
    daemon.send_signal(signal.SIGHUP)
    wait_for(lambda: "changed settings need a restart" in daemon.output(), 5, "the warning")
    assert 'settings="probe.down_after_s, sample_cap"' in daemon.output()
    path.write_text("probe: {intervall_s: 1}\n")
    daemon.send_signal(signal.SIGHUP)
    wait_for(lambda: "reload failed" in daemon.output(), 5, "a file that is wrong is refused")
    assert "intervall_s" in daemon.output()
    path.write_text(text)


def test_keys_rotate_without_a_gap(fleet):
    """Old and new key, then new and old, then new alone: never an edge down."""
    counts = {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons}
    old, new = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
    for turn, keys in enumerate(([old, new], [new, old], [new])):
        seen = {name: daemon.output().count('event="keys loaded"') for name, daemon in fleet.daemons.items()}
        fleet.key_file.write_text("\n".join(keys) + "\n")

        def read(seen=seen):
            return all(
                d.output().count('event="keys loaded"') > seen[name] for name, d in fleet.daemons.items()
            )

        wait_for(read, 5, f"turn {turn} of the rotation is read")
        fleet.wait_probing()
        for name in fleet.daemons:
            assert set(fleet.scrape(name).values("fabricpulse_edge_up")) == {1.0}
    assert {name: fleet.scrape(name).values(DISCONNECTS) for name in fleet.daemons} == counts


def test_noise_and_strangers_are_counted(fleet):
    """Packets of nobody: dropped by reason, no answer, no harm. The key alone makes no member."""
    target = fleet.lab.host("h0").nic("rail0").address
    key = load_keys(fleet.key_file)[0]
    packets = {
        "malformed": b"x" * 120,
        "wrong_fleet": b"FPM1\x01" + bytes(115),
        "not_a_member": encode(key, 5, 1, 0, 0, 0),
    }

    def dropped(reason):
        return fleet.scrape("h0").value("fabricpulse_probes_dropped_total", device="rail0", reason=reason)

    before = {reason: dropped(reason) for reason in packets}
    with fleet.lab.socket("h1", socket.SOCK_DGRAM) as sock:
        for reason, packet in packets.items():
            sock.sendto(packet, (target, 9620))
            wait_for(lambda reason=reason: dropped(reason) == before[reason] + 1, 5, reason)
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recvfrom(2000)


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
            time.sleep(0.005)  # 20,000 packets a second, not as many as the machine can: it is shared
    after = fleet.scrape("h0")
    assert dropped(after, "replay") - dropped(before, "replay") > 5000
    assert dropped(after, "rate") == dropped(before, "rate")
    assert after.value("fabricpulse_mesh_events_total", kind="edge_down") == down
