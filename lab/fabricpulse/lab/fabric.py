"""What a lab looks like: hosts, rails, leaves, spines, addresses. Pure: nothing here touches the machine.

    h0 ─rail0─┐                      ┌─ spine0 ─┐
    h1 ─rail0─┴─ leaf0 (bridge br0) ─┤          ├─ leaf1 (br0) ─┬─rail1─ h0
                                     └─ spine1 ─┘               └─rail1─ h1
    every host and mgmt ── fe0 ── fe (bridge br0)

NICs of one rail and pod share a leaf; everything else crosses a spine, chosen by the hash of the five-tuple. With
`pods` > 1 each pod has its own leaves, so that traffic within a rail crosses the spines too.

A port is named after what it leads to: in `leaf0` the port `h2` is the cable to that host's rail0, `spine1` the uplink.
"""

import ipaddress
from dataclasses import dataclass
from functools import cached_property

from fabricpulse.core.errors import UserError

MGMT = "mgmt"
FRONT_END = "fe"
FRONT_END_DEVICE = "fe0"
BRIDGE = "br0"

# The lab's address plan. Private (RFC 1918, RFC 4193) and seen only inside the lab.
MAX_HOSTS = 200
MAX_RAILS = 16
MAX_SPINES = 32
MAX_PODS = 32


@dataclass(frozen=True)
class NicPlan:
    """One rail NIC of a host. gateway : the leaf's address on the rail. table : the NIC's routing table."""

    host: str
    device: str
    rail: int
    leaf: str
    address: str
    gateway: str
    address6: str
    gateway6: str
    table: int


@dataclass(frozen=True)
class HostPlan:
    """A host. front_end : its address on the management network."""

    name: str
    pod: int
    front_end: str
    nics: tuple[NicPlan, ...]


@dataclass(frozen=True)
class LinkPlan:
    """A cable between two nodes; each end is (node, device)."""

    a: tuple[str, str]
    b: tuple[str, str]
    mtu: int


@dataclass(frozen=True)
class Fabric:
    """The size of a lab.

    hosts : number of GPU hosts, h0 …     rails : NICs per host, rail0 …
    spines : equal paths between leaves    pods : groups of hosts with leaves of their own
    mtu : of rails, leaves and spines, in bytes
    """

    hosts: int = 4
    rails: int = 2
    spines: int = 2
    pods: int = 1
    mtu: int = 9000
    ipv6: bool = True

    def __post_init__(self) -> None:
        """Raises UserError for a size that cannot be built."""
        for name, value, low, high in (
            ("hosts", self.hosts, 1, MAX_HOSTS),
            ("rails", self.rails, 1, MAX_RAILS),
            ("spines", self.spines, 1, MAX_SPINES),
            ("pods", self.pods, 1, MAX_PODS),
            ("mtu", self.mtu, 1280, 65_000),
        ):
            if not low <= value <= high:
                raise UserError(f"a lab cannot have {name}={value}: choose {low} to {high}")
        if self.pods > self.hosts:
            raise UserError(f"a lab cannot have more pods ({self.pods}) than hosts ({self.hosts})")

    @cached_property
    def host_plans(self) -> tuple[HostPlan, ...]:
        """All hosts in order."""
        return tuple(self._host(index) for index in range(self.hosts))

    @cached_property
    def host_names(self) -> tuple[str, ...]:
        """h0, h1, …"""
        return tuple(plan.name for plan in self.host_plans)

    @cached_property
    def rail_names(self) -> tuple[str, ...]:
        """rail0, rail1, …: the device name, the rail and the `network` label are one."""
        return tuple(f"rail{rail}" for rail in range(self.rails))

    @cached_property
    def leaves(self) -> tuple[tuple[str, int, int], ...]:
        """(name, pod, rail) of each leaf."""
        return tuple(
            (self.leaf_name(pod, rail), pod, rail) for pod in range(self.pods) for rail in range(self.rails)
        )

    @cached_property
    def leaf_names(self) -> tuple[str, ...]:
        """leaf0, leaf1, … or, with several pods, pod0-leaf0, …"""
        return tuple(name for name, _, _ in self.leaves)

    @cached_property
    def spine_names(self) -> tuple[str, ...]:
        """spine0, spine1, …"""
        return tuple(f"spine{index}" for index in range(self.spines))

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Every network namespace of the lab."""
        return (*self.host_names, MGMT, *self.leaf_names, *self.spine_names, FRONT_END)

    @cached_property
    def links(self) -> tuple[LinkPlan, ...]:
        """Every cable of the lab."""
        links = [
            LinkPlan((nic.host, nic.device), (nic.leaf, nic.host), self.mtu)
            for host in self.host_plans
            for nic in host.nics
        ]
        links += [
            LinkPlan((leaf, spine), (spine, leaf), self.mtu)
            for leaf in self.leaf_names
            for spine in self.spine_names
        ]
        links += [
            LinkPlan((name, FRONT_END_DEVICE), (FRONT_END, name), 1500) for name in (*self.host_names, MGMT)
        ]
        return tuple(links)

    @cached_property
    def front_end_addresses(self) -> dict[str, str]:
        """Node name -> address on the management network."""
        addresses = {plan.name: plan.front_end for plan in self.host_plans}
        addresses[MGMT] = "10.1.0.254"
        return addresses

    @cached_property
    def hosts_file(self) -> str:
        """/etc/hosts of every node: `h0` is its front-end address, `h0-rail1` that NIC."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        lines += [f"{address} {name}" for name, address in self.front_end_addresses.items()]
        for host in self.host_plans:
            for nic in host.nics:
                lines.append(f"{nic.address} {host.name}-{nic.device}")
                if self.ipv6:
                    lines.append(f"{nic.address6} {host.name}-{nic.device}")
        return "\n".join(lines) + "\n"

    def leaf_name(self, pod: int, rail: int) -> str:
        """The leaf of a rail in a pod."""
        return f"leaf{rail}" if self.pods == 1 else f"pod{pod}-leaf{rail}"

    def rail_prefix(self, pod: int, rail: int) -> str:
        """The IPv4 prefix of a leaf's hosts."""
        return f"10.{10 + rail}.{pod}.0/24"

    def rail_prefix6(self, pod: int, rail: int) -> str:
        """The IPv6 prefix of a leaf's hosts."""
        return f"fd00:10:{rail:x}:{pod:x}::/64"

    def gateway(self, pod: int, rail: int) -> str:
        """The leaf's own address towards its hosts."""
        return f"10.{10 + rail}.{pod}.254"

    def gateway6(self, pod: int, rail: int) -> str:
        """The leaf's own IPv6 address towards its hosts."""
        return str(ipaddress.IPv6Address(f"fd00:10:{rail:x}:{pod:x}::fffe"))

    def uplink(self, leaf_index: int, spine_index: int) -> tuple[str, str]:
        """(leaf's, spine's) address of the /31 between them."""
        base = int(ipaddress.IPv4Address("10.254.0.0")) + 2 * (leaf_index * self.spines + spine_index)
        return str(ipaddress.IPv4Address(base)), str(ipaddress.IPv4Address(base + 1))

    def uplink6(self, leaf_index: int, spine_index: int) -> tuple[str, str]:
        """(leaf's, spine's) IPv6 address of the /127 between them."""
        base = int(ipaddress.IPv6Address("fd00:254::")) + 2 * (leaf_index * self.spines + spine_index)
        return str(ipaddress.IPv6Address(base)), str(ipaddress.IPv6Address(base + 1))

    def pod_of(self, host_index: int) -> int:
        """Pods are contiguous ranges of hosts."""
        return host_index * self.pods // self.hosts

    def _host(self, index: int) -> HostPlan:
        pod = self.pod_of(index)
        name = f"h{index}"
        nics = tuple(
            NicPlan(
                host=name,
                device=f"rail{rail}",
                rail=rail,
                leaf=self.leaf_name(pod, rail),
                address=f"10.{10 + rail}.{pod}.{index + 1}",
                gateway=self.gateway(pod, rail),
                address6=str(ipaddress.IPv6Address(f"fd00:10:{rail:x}:{pod:x}::{index + 1:x}")),
                gateway6=self.gateway6(pod, rail),
                table=100 + rail,
            )
            for rail in range(self.rails)
        )
        return HostPlan(name=name, pod=pod, front_end=f"10.1.0.{index + 1}", nics=nics)
