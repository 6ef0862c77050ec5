"""A GPU fleet on one machine. `with Lab(hosts=4, rails=2) as lab:` and everything in it is real but the cables.

All of it ends with `close()`, and also when this process ends in any other way (see supervisor.py).
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from fabricpulse.core.errors import UserError
from fabricpulse.core.files import atomic_write
from fabricpulse.core.fleet.membership import Host as MemberHost
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.fleet.membership import Nic as MemberNic
from fabricpulse.lab.channel import Channel
from fabricpulse.lab.clocks import HostClock, WanderDriver
from fabricpulse.lab.detour import Detour
from fabricpulse.lab.fabric import MGMT, Fabric
from fabricpulse.lab.faults import Fault, Port
from fabricpulse.lab.load import SINK_PORT, Load, choose_ports
from fabricpulse.lab.machine import make_directory, require_tools
from fabricpulse.lab.network import LabNetwork
from fabricpulse.lab.node import Host, Link, Nic, Node, Spine
from fabricpulse.lab.process import pid_of


class Lab(LabNetwork):
    """A running lab.

    fabric : its size. directory : where run directories, logs and clocks lie; removed by `close()` unless `keep`.
    nic_mbit : every NIC's speed in Mbit/s (shaped at both ends of its cable). uplink_mbit : the speed of each cable
    between leaf and spine. None = as fast as this machine can.
    """

    def __init__(
        self,
        hosts: int = 4,
        rails: int = 2,
        spines: int = 2,
        pods: int = 1,
        *,
        mtu: int = 9000,
        ipv6: bool = True,
        nic_mbit: float | None = None,
        uplink_mbit: float | None = None,
        directory: Path | None = None,
        keep: bool = False,
    ) -> None:
        super().__init__(Fabric(hosts=hosts, rails=rails, spines=spines, pods=pods, mtu=mtu, ipv6=ipv6))
        self.nic_mbit = nic_mbit
        self.uplink_mbit = uplink_mbit
        self.keep = keep
        self.warnings: list[str] = []
        self._given_directory = directory
        self._driver = WanderDriver()
        self._ports: dict[tuple[str, str], Port] = {}
        for link in self.fabric.links:
            for end, peer in ((link.a, link.b), (link.b, link.a)):
                self._ports[end] = Port(self, *end, peer)
        self._nodes: dict[str, Node] = {}

    # Life

    def start(self) -> Self:
        """Builds the lab. Raises LabUnavailableError, a UserError, saying what this machine lacks."""
        if self._channel is not None:
            raise UserError("this lab has been started already")
        require_tools()
        self._directory = directory = make_directory(self._given_directory)
        try:
            for name in self.fabric.nodes:
                for part in ("run", "log"):
                    (directory / name / part).mkdir(parents=True)
            (directory / "hosts").write_text(self.fabric.hosts_file)
            for plan in self.fabric.host_plans:
                clock = HostClock(directory / plan.name / "virtual-clock", self._driver)
                self.clocks[plan.name] = clock
                self._nodes[plan.name] = Host(self, plan, directory / plan.name, clock, self._ports)
            for name in self.fabric.nodes:
                if name in self.fabric.spine_names:
                    ports = tuple(self._ports[name, leaf] for leaf in self.fabric.leaf_names)
                    self._nodes[name] = Spine(self, name, directory / name, ports)
                elif name not in self._nodes:
                    self._nodes[name] = Node(self, name, directory / name)
            self._channel = Channel(directory, self.keep, self._on_exit, self._on_end)
            size = {
                name: getattr(self.fabric, name)
                for name in ("hosts", "rails", "spines", "pods", "mtu", "ipv6")
            }
            answer, (pidfd,) = self._channel.request("build", fabric=size)
            self.warnings = answer["warnings"]
            self._write_description(answer, pid_of(pidfd))
            os.close(pidfd)
            if self.nic_mbit is not None:
                for host in self.hosts:
                    for nic in host.nics:
                        nic.switch_port.limit(self.nic_mbit)
                        nic.host_port.limit(self.nic_mbit)
            if self.uplink_mbit is not None:
                for leaf in self.fabric.leaf_names:
                    for spine in self.fabric.spine_names:
                        self.port(leaf, spine).limit(self.uplink_mbit)
                        self.port(spine, leaf).limit(self.uplink_mbit)
            self.faults_in_force.clear()  # the speed of a cable is no fault: heal() leaves it
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends every process and namespace of the lab; returns when they are gone. Twice does no harm."""
        self._driver.close()
        if self._channel is not None:
            self._channel.close()
        self._end_forwards()
        if self._directory is not None and not self.keep:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self._channel is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    # What is in it

    @property
    def hosts(self) -> tuple[Host, ...]:
        """h0, h1, …"""
        return tuple(self.host(name) for name in self.fabric.host_names)

    def node(self, name: str) -> Node:
        """Any node: a host, mgmt, a leaf, a spine, fe. Raises UserError."""
        self.require_node(name)
        return self._nodes[name]

    def host(self, name: str | int) -> Host:
        """A host by name or number. Raises UserError."""
        node = self.node(f"h{name}" if isinstance(name, int) else name)
        if not isinstance(node, Host):
            raise UserError(
                f"{name} is no host of the lab; the hosts are {', '.join(self.fabric.host_names)}"
            )
        return node

    @property
    def mgmt(self) -> Node:
        """Where Prometheus, Alertmanager, the coordinator and the receiver run."""
        return self.node(MGMT)

    @property
    def spines(self) -> tuple[Spine, ...]:
        """spine0, spine1, …: the equal paths."""
        return tuple(self.spine(number) for number in range(self.fabric.spines))

    def spine(self, number: int) -> Spine:
        """A spine by number. Raises UserError."""
        node = self.node(f"spine{number}")
        if not isinstance(node, Spine):
            raise TypeError(f"{node} is no spine")
        return node

    def link(self, leaf: str, spine: str) -> Link:
        """The cable between a leaf and a spine. Raises UserError."""
        return Link(self, self.port(leaf, spine), self.port(spine, leaf))

    def port(self, node: str, device: str) -> Port:
        """One end of any cable: port("leaf0", "h2"), port("spine1", "leaf0"), port("h0", "fe0"). Raises UserError."""
        try:
            return self._ports[node, device]
        except KeyError:
            self.require_node(node)
            devices = ", ".join(name for where, name in self._ports if where == node)
            raise UserError(f"{node} has no port {device!r}; it has {devices}") from None

    def nic(self, name: str) -> tuple[Host, Nic]:
        """Host and NIC of a name such as "h0-rail1". Raises UserError."""
        host, _, device = name.partition("-")
        found = self.host(host)
        return found, found.nic(device)

    def address(self, host: str, device: str) -> str:
        """The IPv4 address of a host's NIC, `fe0` included."""
        found = self.host(host)
        return found.front_end if device == "fe0" else found.nic(device).address

    def membership(self) -> Membership:
        """The fleet as the mesh and clocksync see it."""
        return Membership(
            hosts=tuple(
                MemberHost(
                    name=plan.name,
                    nics=tuple(
                        MemberNic(device=nic.device, address=nic.address, network=nic.device)
                        for nic in plan.nics
                    ),
                )
                for plan in self.fabric.host_plans
            )
        )

    def write_membership(self, path: Path | None = None, *, leaves: bool = False) -> Path:
        """Writes the membership file (default `<directory>/membership.yaml`) whole or not at all; returns its path.

        leaves : declare the leaf of each NIC.
        """
        path = path or self.directory / "membership.yaml"
        leaf_of = {
            (nic.host, nic.device): f", leaf: {nic.leaf}" if leaves else ""
            for plan in self.fabric.host_plans
            for nic in plan.nics
        }
        lines = ["hosts:"]
        for host in self.membership().hosts:
            lines += [f"  - name: {host.name}", "    nics:"]
            for nic in host.nics:
                about = f"device: {nic.device}, address: {nic.address}, network: {nic.network}"
                lines.append(f"      - {{{about}{leaf_of[host.name, nic.device]}}}")
        atomic_write(path, "\n".join(lines) + "\n", durable=False)
        return path

    def topology(self) -> dict[str, dict[str, list[str]]]:
        """What a topology file says of this lab: the NICs below each leaf, the addresses of each switch."""
        fabric = self.fabric
        leaves: dict[str, list[str]] = {}
        for plan in fabric.host_plans:
            for nic in plan.nics:
                leaves.setdefault(nic.leaf, []).append(f"{plan.name}/{nic.device}")
        switches = {
            leaf: [
                fabric.gateway(pod, rail),
                *(fabric.uplink(index, spine)[0] for spine in range(fabric.spines)),
            ]
            for index, (leaf, pod, rail) in enumerate(fabric.leaves)
        }
        for number, spine in enumerate(fabric.spine_names):
            switches[spine] = [fabric.uplink(leaf, number)[1] for leaf in range(len(fabric.leaves))]
        return {"leaves": leaves, "switches": switches}

    # Truth and faults

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Every fault in force, oldest first."""
        return tuple(cast(list[Fault], self.faults_in_force))

    def load(
        self, source: str, destination: str, mbit: float, *, path: str | None = None, flows: int = 1
    ) -> Load:
        """Starts background UDP traffic from "h0-rail0" to "h1-rail1"; it ends as a fault does.

        path : the spine that all flows cross ("spine0"). Raises UserError when none can.
        """
        host, nic = self.nic(source)
        target_host, target = self.nic(destination)

        def path_of(port: int) -> str:
            return self.path(source, destination, port, SINK_PORT)

        if path is not None and path not in self.fabric.spine_names:
            raise UserError(f"the lab has no path {path!r}; it has {', '.join(self.fabric.spine_names)}")
        ports = choose_ports(flows, None if path is None else (path, path_of))
        if ports is None:
            raise UserError(
                f"traffic from {source} to {destination} does not cross {path}: they share a leaf, or it is down"
            )
        what = f"load {source} to {destination} {mbit:g} Mbit/s {path or ''}".rstrip()
        return Load(self, what, (host, nic), (target_host, target), mbit, ports)

    def detour(self, source: str, destination: str, delay_ms: float) -> Detour:
        """Sends TCP from "h0-rail0" to "h3-rail0" over a way that is longer by so much; it ends as a fault does.

        Probes and other traffic go as before. Raises UserError where both share a leaf, which routes nothing then.
        """
        _, nic = self.nic(source)
        _, target = self.nic(destination)
        if nic.leaf == target.leaf:
            raise UserError(f"no detour from {source} to {destination}: they share a leaf")
        what = f"detour {source} to {destination} {delay_ms:g} ms"
        return Detour(self, what, nic, target.address, delay_ms)

    def heal(self) -> None:
        """Undoes every fault, newest first."""
        for fault in reversed(self.faults):
            fault.undo()

    def path(
        self, source: str, destination: str, source_port: int, destination_port: int, protocol: str = "udp"
    ) -> str:
        """The spine that this five-tuple takes now, as the first leaf's kernel decides; "" when none is crossed.

        source, destination : "h0-rail0", … Raises UserError when there is no route.
        """
        _, nic = self.nic(source)
        target = self.resolve(destination)
        out = self.run(
            nic.leaf,
            [
                *("ip", "-json", "route", "get", target, "from", nic.address, "iif", "br0"),
                *("ipproto", protocol, "sport", str(source_port), "dport", str(destination_port)),
            ],
        ).stdout
        device_out = str(json.loads(out)[0]["dev"])
        return device_out if device_out in self.fabric.spine_names else ""

    def _write_description(self, built: Mapping[str, Any], inner_pid: int) -> None:
        """`lab.json`: how another process finds its way in (`fabricpulse lab list`, `exec`, `shell`)."""
        document = {
            "supervisor_pid": self.supervisor_pid,
            "inner_pid": inner_pid,
            "parent_pid": os.getpid(),
            "nodes": list(self.fabric.nodes),
            "entries": built["entries"],
            "user_namespace": built["user_namespace"],
            "environment": {node: self.own_environment(node) for node in self.fabric.nodes},
        }
        (self.directory / "lab.json").write_text(json.dumps(document))
