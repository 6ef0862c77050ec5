"""`audit run --paths` on a lab: what was done to a cable is what the run says, of that host and NIC."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.audit.paths import path_findings_of
from tests.fixtures.waiting import wait_for
from tests.integration.audit.conftest import LabAudits

from fabricpulse.audit.model import Finding, Run
from fabricpulse.lab import Lab

pytestmark = pytest.mark.root

PATHS = ("path-connectivity", "path-mtu")


def of_paths(run: Run) -> set[tuple[str, str, str, str]]:
    return {(f.check, f.evidence["blame"], f.host, f.subject) for f in run.findings if f.check in PATHS}


def test_a_good_lab(run: LabAudits) -> None:
    """All hosts answer, all pairs of each rail pass; nothing is odd."""
    found = run()
    assert {report.host for report in found.hosts} == {"h0", "h1", "h2", "h3"}
    assert of_paths(found) == set()
    odd: list[Finding] = [f for f in found.findings if f.category == "fleet"]
    assert odd == []
    [note] = found.notes
    assert note.count("6 of 6 pairs of leaves") == 3
    assert "front-end: " in note


def test_a_nic_that_is_cut_off_is_named(shared_lab: Lab, run: LabAudits) -> None:
    """Its link stays up: only packets tell."""
    with shared_lab.host("h1").nic("rail1").black_hole():
        assert of_paths(run()) == {("path-connectivity", "nic", "h1", "rail1")}
    assert of_paths(run()) == set()


def test_a_small_mtu_on_the_way_is_named(shared_lab: Lab, run: LabAudits) -> None:
    """The switch port of one NIC: small packets pass, whole ones do not."""
    with shared_lab.host("h2").nic("rail0").mtu(1280):
        assert of_paths(run()) == {("path-mtu", "nic", "h2", "rail0")}


def test_a_small_mtu_of_the_front_end_is_named(shared_lab: Lab, run: LabAudits) -> None:
    """Of one host: it sends what passes, and is sent what does not."""
    host = shared_lab.host("h1")
    host.run(["ip", "link", "set", "fe0", "mtu", "1400"])
    try:
        found = run()
    finally:
        host.run(["ip", "link", "set", "fe0", "mtu", "1500"])
    assert of_paths(found) == {("path-mtu", "nic", "h1", "fe0")}
    [finding] = [f for f in found.findings if f.check == "path-mtu"]
    assert (finding.category, "that it is sent" in finding.summary) == ("front-end", True)


# Of a host that is not on the link: what it sends comes by the router alone.
FAR = """
table ip far {{
  chain in {{ type filter hook input priority 0; ether saddr {} drop; }}
}}
"""
# An echo from the NIC, without an address of its own.
BY_LINK = """
import asyncio
from fabricpulse.audit.node.echo import echo
from fabricpulse.audit.node.wire import EchoTest
print("answered", asyncio.run(echo(EchoTest("fe0", "{}", 128))).answered)
"""


@pytest.mark.slow
def test_a_front_end_by_policy_routes_is_not_blamed(shared_lab: Lab, run: LabAudits, tmp_path: Path) -> None:
    """Of one host all from its own address goes by a router, and nothing else reaches the others: echoes leave from
    that address, as answers of its agent do."""
    host, router = shared_lab.host("h1"), shared_lab.resolve("mgmt")
    others = [other for other in shared_lab.hosts if other is not host]
    (tmp_path / "far.nft").write_text(
        FAR.format(host.run(["cat", "/sys/class/net/fe0/address"]).stdout.strip())
    )
    settings = [
        "net.ipv4.ip_forward=1",
        "net.ipv4.conf.all.send_redirects=0",
        "net.ipv4.conf.fe0.send_redirects=0",
    ]
    shared_lab.mgmt.run(["sysctl", "-qw", *settings])
    rule = ["from", str(host.front_end), "lookup", "4000"]
    host.run(["ip", "route", "add", "default", "via", router, "dev", "fe0", "table", "4000"])
    host.run(["ip", "rule", "add", *rule])
    for other in others:
        other.run(["nft", "-f", str(tmp_path / "far.nft")])
    try:
        found = run()
        # The way by the link itself is cut off indeed.
        by_link = host.run([sys.executable, "-Ic", BY_LINK.format(shared_lab.host("h0").front_end)])
    finally:
        for other in others:
            other.run(["nft", "delete", "table", "ip", "far"])
        host.run(["ip", "rule", "del", *rule])
        host.run(["ip", "route", "flush", "table", "4000"])
        shared_lab.mgmt.run(["sysctl", "-qw", "net.ipv4.ip_forward=0"])
    assert "answered 0" in by_link.stdout
    assert of_paths(found) == set()
    assert [f for f in found.findings if f.check == "path-untested"] == []
    assert any(m.network == "front-end" and m.source_host == "h1" and m.ok for m in found.measurements)


@pytest.mark.slow
def test_a_host_that_is_frozen_is_silent(shared_lab: Lab, run: LabAudits) -> None:
    """It is a finding, and its NICs still answer: the kernel is alive."""
    agent = next(process for process in shared_lab.host("h3").processes() if process.name == "audit")
    agent.suspend()
    try:
        found = run(10)
    finally:
        agent.resume()
    assert [(f.check, f.host) for f in found.findings if f.check == "host-silent"] == [("host-silent", "h3")]
    wait_for(lambda: len(run().hosts) == 4, 60, "the agent to answer again")


# 12 rounds; far below what the machine of a test carries.
TRANSFERS = ("--transfers", "--yes", "--rate", "100", "--seconds", "0.3", "--datagrams", "200")


@pytest.mark.slow
def test_transfers_of_a_lab(shared_lab: Lab, run: LabAudits) -> None:
    """On a good lab nothing is found and all ways have loss and bandwidth; a lossy cable and a slow NIC are named, each
    by its own check, with host, NIC and direction, and nobody else is."""
    good = run(30, *TRANSFERS)
    assert path_findings_of(good) == set()
    kinds = {kind: sum(m.kind == kind for m in good.measurements) for kind in ("loss", "bandwidth", "duplex")}
    assert kinds == {"loss": 24, "bandwidth": 24, "duplex": 24}
    with shared_lab.host("h1").nic("rail1").loss(10, way="tx"), shared_lab.host("h2").nic("rail0").limit(40):
        found = path_findings_of(run(30, *TRANSFERS))
    assert ("path-loss", "nic", "h1", "rail1") in found
    assert ("path-bandwidth", "nic", "h2", "rail0") in found
    # Where a busy machine leaves one of its ways unmeasured, those that are slow for their loss are named as ways.
    others = {(host, what) for _, _, host, what in found} - {("h1", "rail1"), ("h2", "rail0")}
    assert {way for way in others if way[0] or not way[1].startswith("h1 rail1 > ")} == set()


@pytest.mark.slow
def test_loss_at_the_whole_rate(shared_lab: Lab, run: LabAudits) -> None:
    """A cable that loses 2 %: of a hundred datagrams that is chance, of some hundred at all of the rate it is found, in
    the NIC that has it; a rate that all links carry loses nothing."""
    few = ("--transfers", "--yes", "--rate", "50", "--seconds", "0.3", "--datagrams", "100", "--no-duplex")
    good = run(30, *few, "--loss-seconds", "1")
    assert path_findings_of(good) == set()
    assert any(note.startswith("loss: measured at") for note in good.notes)
    # Links of a lab carry pieces of many; a real one carries packets, and loses them one by one.
    shared_lab.host("h1").run(["ip", "link", "set", "dev", "rail1", "gso_max_segs", "1"])
    with shared_lab.host("h1").nic("rail1").loss(2, way="tx"):
        found = path_findings_of(run(30, *few, "--loss-seconds", "1"))
    assert {one for one in found if one[0] == "path-loss"} == {("path-loss", "nic", "h1", "rail1")}


# What a link that runs half duplex does to TCP: both directions share 41 Mb/s. A limit of nftables saves up what it
# lets pass in a second: 45 Mb/s alone pass for the two seconds of a test, and of 90 at most 54 after the first fifth.
HALF_DUPLEX = """
table inet half {
  limit shared { rate over 5000 kbytes/second burst 128 kbytes }
  chain in { type filter hook input priority 0; iifname "rail1" limit name "shared" drop; }
  chain out { type filter hook output priority 0; oifname "rail1" limit name "shared" drop; }
}
"""


@pytest.mark.slow
def test_a_nic_that_runs_half_duplex_is_named(shared_lab: Lab, run: LabAudits, tmp_path: Path) -> None:
    """Each way alone is as fast as any, both at once are not."""
    (tmp_path / "half.nft").write_text(HALF_DUPLEX)
    shared_lab.host("h1").run(["nft", "-f", str(tmp_path / "half.nft")])
    try:
        found = run(30, "--transfers", "--yes", "--rate", "45", "--seconds", "2", "--datagrams", "200")
    finally:
        shared_lab.host("h1").run(["nft", "delete", "table", "inet", "half"])
    assert path_findings_of(found) == {("path-duplex", "nic", "h1", "rail1")}


@pytest.mark.slow
def test_one_lossy_path_of_several_is_named(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """Two leaves of a rail, two spines: the link between a leaf and a spine loses both ways. The ports that are named
    are those that the sender's leaf has the kernel send there, and ways within a leaf are not."""
    lab = make_lab(hosts=4, rails=1, spines=2, pods=2)
    audits = LabAudits(lab, tmp_path)
    far = {host.name: host.nics[0].leaf for host in lab.hosts}
    source = lab.hosts[0].nics[0].leaf
    with lab.link(source, "spine1").loss(30):
        found = audits(30, *TRANSFERS, "--no-duplex", "--datagrams", "1000")
    reported = [m for m in found.measurements if m.kind == "ecmp_loss" and m.ok is False]
    assert {(m.source_host, m.target_host) for m in reported} == {
        (a, b) for a in far for b in far if far[a] != far[b]
    }
    for m in reported:
        ports, _, port = m.detail.partition(" to ")
        named = {int(p) for p in ports.split(", ")}
        ways = {
            p: lab.path(f"{m.source_host}-rail0", f"{m.target_host}-rail0", p, int(port))
            for p in range(49152, 49168)
        }
        assert named == {p for p, spine in ways.items() if spine == "spine1"}
    suspects = {f.suspects for f in found.findings if f.check == "path-ecmp"}
    assert suspects == {(m.source_host, m.target_host) for m in reported}


SPEAK = """
import socket, struct, sys, time
tlv = lambda kind, value: struct.pack("!H", kind << 9 | len(value)) + value
links = []
for pair in sys.argv[1:]:
    device, port = pair.split("=")
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    link.bind((device, 0))
    name = socket.gethostname().encode()
    body = tlv(1, b"\\x07sw") + tlv(2, b"\\x05" + port.encode()) + tlv(3, b"\\0x") + tlv(5, name)
    links.append((link, bytes.fromhex("0180c200000e020000000001") + b"\\x88\\xcc" + body + b"\\0\\0"))
print("speaking", flush=True)
while True:
    for link, frame in links:
        link.send(frame)
    time.sleep(0.2)  # a switch sends every 30 s; a test has less time
"""


@pytest.mark.slow
def test_swapped_cables_are_named(shared_lab: Lab, run: LabAudits, tmp_path: Path) -> None:
    """Leaves speak LLDP; of two NICs the plan has each other's ports. A NIC that hears nobody is unknown."""
    nics = {(host.name, nic.device): nic.switch_port for host in shared_lab.hosts for nic in host.nics}
    by_leaf: dict[str, list[str]] = {}
    for port in nics.values():
        by_leaf.setdefault(port.node, []).append(f"{port.device}={port.device}")
    mute = nics["h3", "rail1"]
    by_leaf[mute.node].remove(f"{mute.device}={mute.device}")
    speakers = [
        shared_lab.node(leaf).popen([sys.executable, "-Ic", SPEAK, *ports], name="lldp")
        for leaf, ports in by_leaf.items()
    ]
    plan = {nic: port.device for nic, port in nics.items()}
    plan["h0", "rail0"], plan["h1", "rail0"] = plan["h1", "rail0"], plan["h0", "rail0"]
    lines = ["wiring:"]
    for host in shared_lab.hosts:
        lines.append(f"  {host.name}:")
        lines += [
            f"    {nic.device}: {{switch: {nics[host.name, nic.device].node}, port: {plan[host.name, nic.device]}}}"
            for nic in host.nics
        ]
    (tmp_path / "wiring.yaml").write_text("\n".join(lines))
    try:
        for speaker in speakers:
            speaker.wait_for_output("speaking")
        found = run(30, "--wiring-file", str(tmp_path / "wiring.yaml"), "--wiring-wait", "8")
    finally:
        for speaker in speakers:
            speaker.kill()
    assert {(f.check, f.host, f.subject) for f in found.findings if f.check.startswith("wiring")} == {
        ("wiring", "h0", "rail0"),
        ("wiring", "h1", "rail0"),
        ("wiring-unknown", "h3", "rail1"),
    }
