"""NICs that come and go, NICs of IPv6 only, and no NIC at all for the profiler alone."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fixtures.native.programs import native
from tests.fixtures.waiting import wait_for
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.lab.node import Host
from fabricpulse.plugin.locate import library
from fabricpulse.plugin_ipc.control import ControlClient

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[3]


def recreate(host: Host, device: str) -> tuple[int, int]:
    """Takes a NIC away and puts one of the same name and addresses, but another index, in its place; both indexes.

    The old one lives on under another name, as a bridge port of the new one: traffic flows as before.
    """

    def index() -> int:
        return int(host.run(["cat", f"/sys/class/net/{device}/ifindex"]).stdout)

    before = index()
    addresses = [
        line.split()[3]
        for line in host.run(["ip", "-o", "-4", "addr", "show", "dev", device]).stdout.splitlines()
    ]
    routes = host.run(["ip", "-4", "route", "show", "table", "all", "dev", device]).stdout.splitlines()
    for command in (
        ["ip", "link", "set", device, "down"],
        ["ip", "addr", "flush", "dev", device],
        ["ip", "link", "set", device, "name", "old0"],
        ["ip", "link", "add", device, "type", "bridge"],
        ["ip", "link", "set", "old0", "master", device],
        ["ip", "link", "set", "old0", "up"],
        *(["ip", "addr", "add", address, "dev", device] for address in addresses),
        ["ip", "link", "set", device, "up"],
    ):
        host.run(command)
    # What is directly there before what is reached by a gateway.
    for route in sorted(routes, key=lambda line: " via " in line):
        if "proto kernel" not in route:
            host.run(["ip", "route", "replace", *route.replace("linkdown", "").split(), "dev", device])
    return before, index()


def test_a_nic_that_comes_back_as_another_one_carries_again() -> None:
    """Lanes in both directions come back over it, by the new index; nothing is lost."""
    with Lab(hosts=2, rails=2, nic_mbit=400) as lab:
        ring = Ring(lab, 2, ["--bytes", "1M"])
        ring.wait_running()
        before, after = recreate(lab.host(0), "rail0")
        assert after != before
        for host in ("h0", "h1"):
            ring.until(lambda host=host: ring.states(host, "rail0") <= {"up", "slow_start"}, 20.0)  # type: ignore[misc]
        sent = {
            host: sum(lane["sent_bytes"] for lane in ring.lanes(host) if lane["device"] == "rail0")
            for host in ("h0", "h1")
        }
        for host in ("h0", "h1"):
            ring.until(
                lambda host=host: (  # type: ignore[misc]
                    sum(x["sent_bytes"] for x in ring.lanes(host) if x["device"] == "rail0") > sent[host]
                ),
                10.0,
            )
        ring.stop()


def take_addresses(host: Host, device: str) -> Callable[[], None]:
    """Takes a NIC all its addresses, so that the plugin cannot know it.

    The function returned gives it back the IPv4 ones, and the routes.
    """
    shown = host.run(["ip", "-o", "-4", "addr", "show", "dev", device]).stdout
    addresses = [line.split()[3] for line in shown.splitlines()]
    routes = host.run(["ip", "-4", "route", "show", "table", "all", "dev", device]).stdout.splitlines()
    host.run(["ip", "addr", "flush", "dev", device])

    def give_back() -> None:
        for address in addresses:
            host.run(["ip", "addr", "add", address, "dev", device])
        for route in sorted(routes, key=lambda line: " via " in line):
            if "proto kernel" not in route:
                host.run(["ip", "route", "replace", *route.replace("linkdown", "").split(), "dev", device])

    return give_back


def test_a_nic_that_was_unknown_at_the_start_carries_lanes() -> None:
    """It gets its address while the job runs, first at one end: connections get lanes over it there, and over the pair
    of rails when the other end has it too. Both directions carry, faster than one NIC can."""
    with Lab(hosts=2, rails=2, nic_mbit=200) as lab:
        give_back = [take_addresses(lab.host(number), "rail1") for number in (0, 1)]
        ring = Ring(lab, 2, ["--bytes", "4M", "--channels", "1"])
        ring.wait_running()
        for host in ("h0", "h1"):
            assert {device["device"] for device in ring.control(host, op="status")["devices"]} == {"rail0"}
            assert {lane["device"] for lane in ring.lanes(host)} == {"rail0"}
        give_back[0]()
        ring.until(lambda: "up" in ring.states("h0", "rail1"), 20.0)
        give_back[1]()
        for host in ("h0", "h1"):
            ring.until(
                lambda host=host: any(  # type: ignore[misc]
                    lane["device"] == lane["peer_device"] == "rail1" and lane["sent_bytes"] > 0
                    for lane in ring.lanes(host)
                ),
                20.0,
            )
        ring.until(lambda: ring.bandwidth(time.time() - 1, time.time()) > 1.5 * 25e6, 20.0)
        # It fails like any other, and NCCL's connections stay where they were placed.
        fault = lab.host(0).nic("rail1").down()
        ring.until(lambda: not ring.states("h0", "rail1") & {"up", "slow_start"}, 5.0)
        fault.undo()
        ring.until(lambda: "up" in ring.states("h0", "rail1"), 20.0)
        assert {c["device"] for c in ring.control("h0", op="status")["connections"]} == {"rail0"}
        ring.stop()


def test_a_new_connection_has_lanes_over_a_nic_that_came_after_the_start() -> None:
    """The lane over the new rail is the second, rail to rail, as if it had always been there; NCCL's devices stay."""
    program = native("plugin_late_nic_host")
    with Lab(hosts=1, rails=2) as lab:
        host = lab.host(0)
        give_back = take_addresses(host, "rail1")
        process = host.popen([str(program), str(library())], env={"FABRICPULSE_NICS": "rail*"})
        process.wait_for_output("devices 1", 60)
        (path,) = (host.run_dir / "plugin").glob("*.sock")
        with ControlClient(path) as client:
            give_back()
            wait_for(lambda: len(client.call({"op": "status"})["devices"]) > 1, 20, "the second NIC")
            process.send_signal(signal.SIGUSR1)
            process.wait_for_output("connected 1", 60)
            (sending,) = (c for c in client.call({"op": "status"})["connections"] if c["direction"] == "send")
        assert sending["device"] == "rail0"
        assert [lane["device"] for lane in sending["lanes"][:2]] == ["rail0", "rail1"]
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 0, process.tail()


@pytest.fixture
def lab6() -> Iterator[Lab]:
    """Rails with IPv6 addresses only."""
    with Lab(hosts=2, rails=2, nic_mbit=400) as lab:
        for host in lab.hosts:
            for nic in host.nics:
                host.run(["ip", "-4", "addr", "flush", "dev", nic.device])
        yield lab


def test_ipv6_alone_carries_and_fails_over(lab6: Lab) -> None:
    ring = Ring(lab6, 2, ["--bytes", "1M"])
    ring.wait_running()
    assert ring.states("h0", "rail0") == {"up"}
    out = lab6.host(0).run(["ss", "-Htn", "state", "established"]).stdout
    assert "[fd00" in out
    fault = lab6.host(0).nic("rail0").down()
    ring.until(lambda: not ring.states("h0", "rail0") & {"up", "slow_start"}, 5.0)
    fault.undo()
    ring.until(lambda: ring.states("h0", "rail0") <= {"up", "slow_start"}, 10.0)
    ring.stop()


def flatten(lab: Lab) -> None:
    """Puts both rails into one subnet and one broadcast domain, with the kernel's defaults for ARP and for routes: each
    NIC of a host answers for the addresses of both."""
    first, second = (lab.node(name) for name in lab.fabric.leaf_names)
    there = second.popen(["sleep", "1000"])
    first.run(
        ["ip", "link", "add", "trunk0", "type", "veth", "peer", "name", "trunk1", "netns", str(there.pid)]
    )
    for leaf, device in ((first, "trunk0"), (second, "trunk1")):
        leaf.run(["ip", "link", "set", device, "master", "br0", "up"])
    for number, host in enumerate(lab.hosts):
        host.run(["ip", "rule", "flush"])
        host.run(["ip", "rule", "add", "priority", "32766", "lookup", "main"])
        for setting in ("arp_ignore", "arp_announce"):
            host.run(["sh", "-c", f"echo 0 > /proc/sys/net/ipv4/conf/all/{setting}"])
        for nic in host.nics:
            host.run(["ip", "-4", "addr", "flush", "dev", nic.device])
            host.run(["ip", "route", "flush", "dev", nic.device])
        for at, nic in enumerate(host.nics):
            host.run(["ip", "addr", "add", f"10.77.0.{2 * number + at + 1}/24", "dev", nic.device])


@pytest.mark.slow
def test_lanes_that_arp_leads_elsewhere_are_logged() -> None:
    """Two NICs of a host in one subnet that answer ARP for each other: some pairs of NICs cannot meet. The job runs
    over the others, and the rest is in the log, in the events and in the status with its reason."""
    with Lab(hosts=2, rails=2, nic_mbit=400) as lab:
        flatten(lab)
        ring = Ring(lab, 2, ["--bytes", "1M", "--channels", "1"])
        ring.wait_running()

        def logged(host: str) -> bool:
            sends = [c for c in ring.control(host, op="status")["connections"] if c["direction"] == "send"]
            lanes = [lane for connection in sends for lane in connection["lanes"]]
            dark = [lane for lane in lanes if lane["state"] == "connecting"]
            assert any(lane["state"] == "up" for lane in lanes)
            return bool(dark) and all(lane["reason"] == "unreachable" for lane in dark)

        for host in ("h0", "h1"):
            ring.until(lambda host=host: logged(host), 20.0)  # type: ignore[misc]
            events = ring.control(host, op="events")["events"]
            assert {"lane_unreachable"} <= {event["kind"] for event in events}
        assert "no lane from rail" in ring.said()
        ring.stop()
