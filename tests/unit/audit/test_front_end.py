"""The front-end network: the addresses at which hosts were reached."""

import asyncio
import ipaddress
from pathlib import Path

import pytest

from fabricpulse.audit.model import FrontEnd, HostReport, Measurement
from fabricpulse.audit.node import front_end as node_front_end
from fabricpulse.audit.node.echo import echo as send_echo
from fabricpulse.audit.node.front_end import front_end_of
from fabricpulse.audit.node.own_route import route_error
from fabricpulse.audit.node.wire import EchoTest
from fabricpulse.audit.pair_tests.front_end import front_end_rails, judged
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import (
    FRONT_END,
    FRONT_END_6,
    PathDirections,
    Rail,
    further_tests,
    path_findings,
    plan_ways,
)


def report(host: str, address: str = "", mtu: int = 1500) -> HostReport:
    return HostReport(host, 1, 1, (), (), front_end=FrontEnd("bond0", address, mtu) if address else None)


def test_who_takes_part() -> None:
    """Hosts with an address of their own; one of a rail is tested as such, and one that several hosts share shows
    nothing."""
    rails = {"r": Rail(((("d", "eth0"), "10.0.0.4"),), plan_rounds([""]))}
    reports = [
        report("b", "10.1.0.2"),
        report("a", "10.1.0.1", 9000),
        report("c"),
        report("d", "10.0.0.4"),
        report("e", "10.1.0.9"),
        report("f", "10.1.0.9"),
    ]
    fronts = front_end_rails(reports, rails, None)
    assert list(fronts) == [FRONT_END]
    rail = fronts[FRONT_END]
    assert [nic for nic, _ in rail.nics] == [("a", "bond0"), ("b", "bond0")]
    way = PathDirections({FRONT_END: rail}, reports).way(*(nic for nic, _ in rail.nics))
    assert (way.address, way.network) == ("10.1.0.2", FRONT_END)
    # From where the host was reached: policy rules may have a route for that alone. Rails are tested as jobs use them.
    assert {test.source for test in way.echo_tests()} == {"10.1.0.1"}
    rail_way = PathDirections({"r": rail}, reports).way(*(nic for nic, _ in rail.nics))
    assert {test.source for test in rail_way.echo_tests()} == {""}
    assert front_end_rails(reports[:1], rails, None) == {}
    # Reached at another address of a NIC that is a rail's: its place among the rails stays.
    same_nic = {"r": Rail(((("a", "bond0"), "10.9.0.1"), (("b", "eth0"), "10.9.0.2")), plan_rounds(["", ""]))}
    assert front_end_rails(reports[:2], same_nic, None) == {}
    assert front_end_rails(reports, {FRONT_END: rail}, None) == {}


def test_hosts_reached_by_ipv6_and_by_ipv4_are_two_networks() -> None:
    """There is no way from one to the other, as there is none to the only one of its kind."""
    six = [report(host, f"2001:db8::{n}") for n, host in enumerate("abc")]
    four = [report(host, f"10.1.0.{n}") for n, host in enumerate("de")]
    fronts = front_end_rails([*six, *four], {}, None)
    assert {network: [nic[0] for nic, _ in rail.nics] for network, rail in fronts.items()} == {
        FRONT_END: ["d", "e"],
        FRONT_END_6: ["a", "b", "c"],
    }
    assert all(":" not in address for _, address in fronts[FRONT_END].nics)
    ways = plan_ways(fronts, PathDirections(fronts, [*six, *four]))
    assert all((":" in way.address) == (":" in way.own) for own in ways.values() for way in own)
    assert list(front_end_rails([*six, four[0]], {}, None)) == [FRONT_END_6]
    [finding] = path_findings(
        [Measurement("connectivity", FRONT_END_6, "a", "bond0", to, "bond0", 0.0, to == "b") for to in "bc"]
    )
    assert finding.category == "front-end"


def echo(network: str, a: str, b: str, ok: bool) -> Measurement:
    device = "bond0" if network == FRONT_END else "eth0"
    return Measurement("connectivity", network, a, device, b, device, 0.0, ok)


def test_a_network_that_answers_nobody_accuses_nobody() -> None:
    """Its devices drop echoes; one answer is enough to know better."""
    rail = [echo("r", "a", "b", True)]
    dead = [echo(FRONT_END, a, b, False) for a, b in ("ab", "ba", "ac", "ca")]
    assert judged([*rail, *dead]) == (
        rail,
        ["front-end: no echo of any host was answered, so nothing is known: is ICMP dropped there?"],
    )
    alive = [*rail, *dead, echo(FRONT_END, "b", "c", True)]
    assert judged(alive) == (alive, [])
    # What one family of addresses says is nothing about the other.
    dead_6 = [Measurement("connectivity", FRONT_END_6, "f", "bond0", "g", "bond0", 0.0, False)]
    assert judged([*alive, *dead_6])[0] == alive


def test_a_host_without_rails_is_named_though_its_front_end_answers() -> None:
    """And a dead front end is a finding of its own category."""
    hosts = "abcd"
    ways = [(a, b) for a in hosts for b in hosts if a != b]
    rails = [echo(r, a, b, "a" not in (a, b)) for r in ("r0", "r1") for a, b in ways]
    front = [echo(FRONT_END, a, b, "b" not in (a, b)) for a, b in ways]
    named = {(f.category, f.host, f.subject) for f in path_findings([*rails, *front])}
    assert named == {("back-end", "a", "eth0"), ("front-end", "b", "bond0")}


def test_partners_of_further_tests_are_of_the_same_network() -> None:
    """Device names say nothing of networks: machines of another kind call them otherwise."""
    tests = [("r0", "h0", "e1", "h1", "e2", False), ("r0", "h2", "e1", "h3", "e1", True)]
    tests += [("r1", "h2", "e2", "h3", "e2", True), ("r1", "h4", "e2", "h5", "e2", True)]
    measured = [Measurement("mtu", *test[:5], 0.0, test[5]) for test in tests]
    further = further_tests(measured, "mtu")
    assert {nic for way in further for nic in way} == {
        ("h0", "e1"),
        ("h1", "e2"),
        ("h2", "e1"),
        ("h3", "e1"),
    }


@pytest.mark.parametrize(
    ("device", "flags", "is_one"),
    [
        ("lo", 0x9, False),
        ("dummy0", 0xC3, False),
        ("bond0", 0x1443, True),
        ("wg0", 0xD1, True),
    ],
)
def test_a_device_that_sends_nothing_is_no_front_end(
    device: str, flags: int, is_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts that speak BGP have their address on one; echoes bound to it never leave."""
    folder = tmp_path / "class/net" / device
    folder.mkdir(parents=True)
    (folder / "mtu").write_text("1500\n")
    (folder / "flags").write_text(f"{flags:#x}\n")
    address = ipaddress.IPv4Address("10.1.0.1")
    monkeypatch.setattr(node_front_end, "_addresses4", lambda: iter([(device, address)]))
    found = front_end_of(str(address), tmp_path)
    assert found == (FrontEnd(device, str(address), 1500) if is_one else None)


def test_what_has_an_address() -> None:
    """The loopback and foreign addresses are no front end."""
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "203.0.113.9", "2001:db8::9", "", "x"):
        assert front_end_of(address) is None


def test_the_kernel_says_whether_it_has_a_route() -> None:
    """By the tables, from an address, by a NIC: by the loopback to all of its own and to nobody else, where a socket
    that is bound to it takes any address for a neighbour's. What cannot be asked is left to the echoes."""
    assert [route_error("lo", "127.0.0.1", to) for to in ("127.0.0.1", "127.9.9.9")] == ["", ""]
    assert route_error("lo", "127.0.0.1", "192.0.2.77") in ("EHOSTUNREACH", "ENETUNREACH")
    assert route_error("nosuch0", "127.0.0.1", "127.0.0.1") == ""
    assert route_error("lo", "::1", "::1") == ""


def test_no_echo_is_sent_without_a_route() -> None:
    """It would be lost, and the other end be blamed; one that has a route leaves from the address named."""
    assert asyncio.run(send_echo(EchoTest("lo", "192.0.2.77", 128, "127.0.0.1"))).sent == 0
    answered = asyncio.run(send_echo(EchoTest("lo", "127.0.0.9", 128, "127.0.0.1")))
    assert (answered.error, answered.answered) in (("", 2), ("EPERM", 0), ("EACCES", 0))
