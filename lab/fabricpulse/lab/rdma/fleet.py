"""Two hosts with RDMA NICs and the switches between them, built inside a guest of guest.py.

    h0:rail<i> --- sw:p0-<i> [bridge b0-<i>] sw:u0-<i> --- sw:u1-<i> [bridge b1-<i>] sw:p1-<i> --- h1:rail<i>

Each host has one RoCE v2 device a rail, `rxe0-<i>` and `rxe1-<i>` (RDMA devices of all hosts share one name space).
Rails are 10.9.<i>.1 and .2; a control network 10.8.0.1 and .2 (`ctl`) has no faults. Needs a kernel in which rdma_rxe
works in a network namespace (7.2 does, 6.12 does not).

Neighbours are learnt, never permanent: with permanent ones packets reach a port without carrier, and rxe takes the
reported drop as an error of its own and flushes the queue pair; a NIC retries until retry_cnt runs out.
"""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

HOSTS = ("h0", "h1")
SWITCH = "sw"
# The kernel asks again after this long, and does not give up: a path works again soon after it is repaired.
_NEIGHBOUR_RETRY_MS = 20
# Most of which is the second in which the kernel gathers changes of links.
_RUNNING_WITHIN_S, _ASK_EVERY_S = 30.0, 0.02


@dataclass(frozen=True)
class RdmaFleet:
    """A fleet that is up. Faults are context managers: what they break is repaired at their end."""

    rails: int

    def device(self, host: str, rail: int) -> str:
        """The RDMA device of a host's rail."""
        return f"rxe{HOSTS.index(host)}-{rail}"

    def address(self, host: str, rail: int) -> str:
        """The IPv4 address of a host's rail."""
        return f"10.9.{rail}.{HOSTS.index(host) + 1}"

    def sent_bytes(self, host: str, rail: int) -> int:
        """What this NIC has sent so far."""
        (counters,) = json.loads(run("ip", "-n", host, "-s", "-j", "link", "show", f"rail{rail}"))
        return int(counters["stats64"]["tx"]["bytes"])

    @contextmanager
    def cable_pulled(self, host: str, rail: int) -> Iterator[None]:
        """The host's NIC loses its carrier: PORT_ERR there, nothing at the other host."""
        with self._down(f"p{HOSTS.index(host)}-{rail}"):
            yield

    @contextmanager
    def admin_down(self, host: str, rail: int) -> Iterator[None]:
        """The host's own netdev is taken down: PORT_ERR there, and what its queue pairs post is flushed at once."""
        run("ip", "-n", host, "link", "set", f"rail{rail}", "down")
        try:
            yield
        finally:
            run("ip", "-n", host, "link", "set", f"rail{rail}", "up")

    @contextmanager
    def without_address(self, host: str, rail: int) -> Iterator[None]:
        """The rail's address is taken from the host, and put back: its GID then often has another index."""
        address = f"{self.address(host, rail)}/24"
        run("ip", "-n", host, "address", "del", address, "dev", f"rail{rail}")
        try:
            yield
        finally:
            run("ip", "-n", host, "address", "add", address, "dev", f"rail{rail}")

    @contextmanager
    def shaped(self, rail: int, rate: str) -> Iterator[None]:
        """Both directions of the rail carry `rate` ("40mbit") at most."""
        uplinks = [f"u{number}-{rail}" for number in range(len(HOSTS))]
        for device in uplinks:
            limit = ["rate", rate, "burst", "64k", "latency", "200ms"]
            run("tc", "-n", SWITCH, "qdisc", "replace", "dev", device, "root", "tbf", *limit)
        try:
            yield
        finally:
            for device in uplinks:
                run("tc", "-n", SWITCH, "qdisc", "del", "dev", device, "root")

    @contextmanager
    def path_dead(self, rail: int) -> Iterator[None]:
        """Nothing passes between the hosts on this rail while all ports stay ACTIVE."""
        with self._down(f"u0-{rail}"):
            yield

    @contextmanager
    def rdma_dead(self, rail: int) -> Iterator[None]:
        """No packet of RoCE v2 passes between the hosts on this rail; everything else does, TCP too."""
        uplinks = [f"u{number}-{rail}" for number in range(len(HOSTS))]
        roce = ["match", "ip", "protocol", "17", "0xff", "match", "ip", "dport", "4791", "0xffff"]
        for device in uplinks:
            run("tc", "-n", SWITCH, "qdisc", "add", "dev", device, "root", "handle", "1:", "prio")
            where = ["dev", device, "parent", "1:", "protocol", "ip"]
            run("tc", "-n", SWITCH, "filter", "add", *where, "u32", *roce, "action", "drop")
        try:
            yield
        finally:
            for device in uplinks:
                run("tc", "-n", SWITCH, "qdisc", "del", "dev", device, "root")

    @contextmanager
    def netem(self, source: str, rail: int, *options: str) -> Iterator[None]:
        """`tc … netem` on what `source` sends on this rail: "delay", "5ms"; "loss", "5%"; "rate", "20mbit"."""
        device = f"u{HOSTS.index(source)}-{rail}"
        run("tc", "-n", SWITCH, "qdisc", "replace", "dev", device, "root", "netem", *options)
        try:
            yield
        finally:
            run("tc", "-n", SWITCH, "qdisc", "del", "dev", device, "root")

    @contextmanager
    def _down(self, device: str) -> Iterator[None]:
        run("ip", "-n", SWITCH, "link", "set", device, "down")
        try:
            yield
        finally:
            run("ip", "-n", SWITCH, "link", "set", device, "up")


def build(rails: int = 2, mtu: int = 4500) -> RdmaFleet:
    """Builds the fleet in this guest; its links are running. Raises CalledProcessError, TimeoutError."""
    run("rdma", "system", "set", "netns", "shared")
    for node in (*HOSTS, SWITCH):
        run("ip", "netns", "add", node)
        run("ip", "-n", node, "link", "set", "lo", "up")
    batch([], ["link add ctl netns h0 type veth peer name ctl netns h1"])
    for number, host in enumerate(HOSTS):
        batch(["-n", host], [f"address add 10.8.0.{number + 1}/24 dev ctl", "link set ctl up"])
    for rail in range(rails):
        _build_rail(rail, mtu)
    for host in HOSTS:
        wait_running(host)
    return RdmaFleet(rails)


def wait_running(host: str) -> None:
    """Returns when the kernel calls all links of a host up. Raises TimeoutError.

    That may be a second after they have a carrier, and NCCL takes none before: its transport, first in a guest, found
    no interface.
    """
    deadline = time.monotonic() + _RUNNING_WITHIN_S
    while True:
        links = run("ip", "-n", host, "-o", "link", "show", "type", "veth").splitlines()
        waiting = [link.split(":")[1].strip() for link in links if " state UP " not in link]
        if not waiting:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{host}: {', '.join(waiting)} not up after {_RUNNING_WITHIN_S:.0f} s")
        time.sleep(_ASK_EVERY_S)


def _build_rail(rail: int, mtu: int) -> None:
    batch(["-n", SWITCH], [f"link add u0-{rail} mtu {mtu} type veth peer name u1-{rail} mtu {mtu}"])
    for number, host in enumerate(HOSTS):
        port, bridge, uplink, device = (
            f"p{number}-{rail}",
            f"b{number}-{rail}",
            f"u{number}-{rail}",
            f"rail{rail}",
        )
        mac = f"02:00:00:00:{rail:02x}:{number + 1:02x}"
        batch(
            [],
            [
                f"link add {device} netns {host} mtu {mtu} address {mac} "
                f"type veth peer name {port} netns {SWITCH} mtu {mtu}"
            ],
        )
        batch(
            ["-n", SWITCH],
            [
                f"link add {bridge} mtu {mtu} type bridge mcast_snooping 0",
                f"link set {bridge} up",
                f"link set {port} master {bridge} up",
                f"link set {uplink} master {bridge} up",
            ],
        )
        batch(
            ["-n", host], [f"link set {device} up", f"address add 10.9.{rail}.{number + 1}/24 dev {device}"]
        )
        # Without sysctl(8), which a small system lacks.
        settings = f"/proc/sys/net/ipv4/neigh/{device}"
        script = (
            f"echo {_NEIGHBOUR_RETRY_MS} >{settings}/retrans_time_ms && echo 100000 >{settings}/mcast_solicit"
        )
        run("ip", "netns", "exec", host, "sh", "-c", script)
        run(
            "ip",
            "netns",
            "exec",
            host,
            "rdma",
            "link",
            "add",
            f"rxe{number}-{rail}",
            "type",
            "rxe",
            "netdev",
            device,
        )


def run(*words: str) -> str:
    """Runs a program of iproute2; its output. Raises CalledProcessError."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def batch(options: Sequence[str], lines: Sequence[str]) -> None:
    """Runs lines of `ip`. Raises CalledProcessError."""
    text = "\n".join(lines) + "\n"
    subprocess.run(["ip", *options, "-batch", "-"], input=text, capture_output=True, text=True, check=True)
