"""The `ip -batch` lines and sysctls that turn a Fabric into a network. Pure text: the supervisor runs it."""

from fabricpulse.lab.fabric import BRIDGE, FRONT_END, FRONT_END_DEVICE, Fabric, HostPlan

# The ECMP hash is seeded per namespace where the kernel can (6.10 and newer), so that one source port takes the same
# path in every run. Any non-zero number will do.
HASH_SEED = 0x5EED

BRIDGE_MAC = "02:00:00:00:00:01"

LAST_RESORT = 1_000_000

# After an outage the first packet waits for an answer to an ARP or neighbour solicitation that was lost in it; the
# kernel asks again after this long. Its default of 1000 ms would hide how fast a link really came back. There is no
# default to set in a namespace (net/ipv4/neigh/default lacks it), so it is set on each device.
NEIGHBOUR_RETRY_MS = 100
# How often the kernel asks a neighbour that it knows, and goes on sending to, before it takes it for gone. With its
# default of 3, a link that loses 60 % of the packets one way loses all of them both ways for some tenths of a second
# now and then: one fifth of the checks fail. That would be a fault that no test has asked for.
NEIGHBOUR_PROBES = 30

# Above the indices that the kernel gives by itself (lo, br0).
FIRST_INDEX = 100

HOST_SYSCTLS = {
    # One rail must never answer for another: a host replies to ARP only on the NIC that has the address, and asks
    # with the address of the NIC that it asks on.
    "net/ipv4/conf/all/arp_ignore": "1",
    "net/ipv4/conf/all/arp_announce": "2",
    # Which NIC a packet may use follows from the policy rules, not from the reverse path.
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/accept_redirects": "0",
    "net/ipv6/conf/all/accept_redirects": "0",
    "net/ipv6/conf/all/accept_ra": "0",
    "net/ipv6/conf/default/accept_ra": "0",
    # Addresses and routes of a NIC come back when the NIC does.
    "net/ipv6/conf/all/keep_addr_on_down": "1",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/all/accept_dad": "0",
}

ROUTER_SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
    # The five-tuple chooses the path, as in a real fabric's ECMP. Not policy 1: it takes the hash that the sender's
    # socket has put on the packet (a random one for TCP and connected UDP) before it looks at the ports, and a veth
    # keeps that hash. 0x37 = addresses, protocol, ports.
    "net/ipv4/fib_multipath_hash_fields": "55",
    "net/ipv6/fib_multipath_hash_fields": "55",
    "net/ipv4/fib_multipath_hash_policy": "3",
    "net/ipv6/fib_multipath_hash_policy": "3",
    "net/ipv4/fib_multipath_hash_seed": str(HASH_SEED),
    # A path whose link has no carrier leaves the set of equal paths.
    "net/ipv4/conf/all/ignore_routes_with_linkdown": "1",
    "net/ipv4/conf/default/ignore_routes_with_linkdown": "1",
    "net/ipv6/conf/all/ignore_routes_with_linkdown": "1",
    "net/ipv6/conf/default/ignore_routes_with_linkdown": "1",
    "net/ipv6/conf/all/keep_addr_on_down": "1",
    "net/ipv6/conf/default/keep_addr_on_down": "1",
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    # A fabric forwards what it is given; it has no reason to hold back ICMP errors.
    "net/ipv4/icmp_ratelimit": "0",
    # A switch does not take its frames through iptables, which Linux does where anybody has loaded br_netfilter.
    "net/bridge/bridge-nf-call-iptables": "0",
    "net/bridge/bridge-nf-call-ip6tables": "0",
    "net/bridge/bridge-nf-call-arptables": "0",
}


def sysctls(fabric: Fabric, node: str) -> dict[str, str]:
    """Paths below /proc/sys and their values. Those that the kernel lacks may be left out."""
    if node in fabric.leaf_names or node in fabric.spine_names:
        return ROUTER_SYSCTLS
    return HOST_SYSCTLS


def cables(fabric: Fabric) -> list[str]:
    """`ip -batch` lines that make every veth pair, each end in its node.

    No two devices of a lab have one index. The kernel takes a veth whose peer has its own index for a plain device and
    then reports its carrier with up to a second's delay (net/core/link_watch.c, linkwatch_urgent_event).
    """
    return [
        f"link add name {link.a[1]} index {FIRST_INDEX + 2 * number} mtu {link.mtu} netns {link.a[0]} type veth "
        f"peer name {link.b[1]} index {FIRST_INDEX + 2 * number + 1} mtu {link.mtu} netns {link.b[0]}"
        for number, link in enumerate(fabric.links)
    ]


def node_lines(fabric: Fabric, node: str) -> list[str]:
    """`ip -batch` lines to run inside `node` once its cables exist."""
    lines = ["link set lo up", *_port_neighbours(fabric, node)]
    if node in fabric.leaf_names:
        return lines + _leaf(fabric, node) + _quick_neighbours(BRIDGE)
    if node in fabric.spine_names:
        return lines + _spine(fabric, node)
    if node == FRONT_END:
        return lines + _bridge([*fabric.host_names, "mgmt"], 1500)
    lines += [
        f"address add {fabric.front_end_addresses[node]}/24 dev {FRONT_END_DEVICE}",
        f"link set {FRONT_END_DEVICE} up",
    ]
    for plan in fabric.host_plans:
        if plan.name == node:
            lines += _host(fabric, plan)
    return lines


def nic_routes(fabric: Fabric, host: str, device: str) -> list[str]:
    """`ip -batch` lines that give a host's NIC its routes; the kernel drops them when the NIC is set down."""
    plan = next(plan for plan in fabric.host_plans if plan.name == host)
    nic = next(nic for nic in plan.nics if nic.device == device)
    prefix = fabric.rail_prefix(plan.pod, nic.rail)
    lines = [
        f"route replace {prefix} dev {device} src {nic.address} table {nic.table}",
        f"route replace default via {nic.gateway} dev {device} src {nic.address} table {nic.table}",
        # A socket that has chosen no NIC reaches a rail's addresses by the NIC of that rail.
        f"route replace 10.{10 + nic.rail}.0.0/16 via {nic.gateway} dev {device} src {nic.address}",
    ]
    if fabric.ipv6:
        prefix6 = fabric.rail_prefix6(plan.pod, nic.rail)
        lines += [
            f"route replace {prefix6} dev {device} table {nic.table}",
            f"route replace ::/0 via {nic.gateway6} dev {device} table {nic.table}",
            f"route replace fd00:10:{nic.rail:x}::/48 via {nic.gateway6} dev {device}",
        ]
    return lines


def uplink_routes(fabric: Fabric, node: str, device: str) -> list[str]:
    """`ip -batch` lines with the routes of a leaf or spine that `device` carries; for after it was set down."""
    if node in fabric.leaf_names:
        return _leaf_routes(fabric, node) if device in fabric.spine_names else []
    return [line for line in _spine_routes(fabric, node) if f" dev {device}" in line]


def _quick_neighbours(device: str) -> list[str]:
    return [
        f"ntable change name {table} dev {device} retrans {NEIGHBOUR_RETRY_MS} ucast_probes {NEIGHBOUR_PROBES}"
        for table in ("arp_cache", "ndisc_cache")
    ]


def _port_neighbours(fabric: Fabric, node: str) -> list[str]:
    ends = [end for link in fabric.links for end in (link.a, link.b)]
    return [line for name, device in ends if name == node for line in _quick_neighbours(device)]


def _bridge(ports: list[str], mtu: int) -> list[str]:
    lines = [
        # Without a fixed address the bridge changes its own when a port comes or goes, and neighbours go stale.
        f"link add {BRIDGE} mtu {mtu} address {BRIDGE_MAC} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        f"link set {BRIDGE} up",
    ]
    for port in ports:
        lines += [f"link set {port} master {BRIDGE}", f"link set {port} up"]
    return lines


def _leaf(fabric: Fabric, leaf: str) -> list[str]:
    index = fabric.leaf_names.index(leaf)
    _, pod, rail = fabric.leaves[index]
    hosts = [plan.name for plan in fabric.host_plans if plan.pod == pod]
    lines = _bridge(hosts, fabric.mtu)
    lines.append(f"address add {fabric.gateway(pod, rail)}/24 dev {BRIDGE}")
    if fabric.ipv6:
        lines.append(f"address add {fabric.gateway6(pod, rail)}/64 dev {BRIDGE} nodad")
    for number, spine in enumerate(fabric.spine_names):
        lines.append(f"address add {fabric.uplink(index, number)[0]}/31 dev {spine}")
        if fabric.ipv6:
            lines.append(f"address add {fabric.uplink6(index, number)[0]}/127 dev {spine} nodad")
        lines.append(f"link set {spine} up")
    return lines + _leaf_routes(fabric, leaf)


def _leaf_routes(fabric: Fabric, leaf: str) -> list[str]:
    index = fabric.leaf_names.index(leaf)
    hops = "".join(
        f" nexthop via {fabric.uplink(index, number)[1]} dev {spine}"
        for number, spine in enumerate(fabric.spine_names)
    )
    hops6 = "".join(
        f" nexthop via {fabric.uplink6(index, number)[1]} dev {spine}"
        for number, spine in enumerate(fabric.spine_names)
    )
    lines = []
    for other, (_, pod, rail) in enumerate(fabric.leaves):
        if other == index:
            continue
        lines.append(f"route replace {fabric.rail_prefix(pod, rail)}{hops}")
        if fabric.ipv6:
            lines.append(f"route replace {fabric.rail_prefix6(pod, rail)}{hops6}")
    return lines


def _spine(fabric: Fabric, spine: str) -> list[str]:
    number = fabric.spine_names.index(spine)
    lines = []
    for index, leaf in enumerate(fabric.leaf_names):
        lines.append(f"address add {fabric.uplink(index, number)[1]}/31 dev {leaf}")
        if fabric.ipv6:
            lines.append(f"address add {fabric.uplink6(index, number)[1]}/127 dev {leaf} nodad")
        lines.append(f"link set {leaf} up")
    return lines + _spine_routes(fabric, spine)


def _spine_routes(fabric: Fabric, spine: str) -> list[str]:
    number = fabric.spine_names.index(spine)
    lines = []
    for index, (leaf, pod, rail) in enumerate(fabric.leaves):
        lines.append(
            f"route replace {fabric.rail_prefix(pod, rail)} via {fabric.uplink(index, number)[0]} dev {leaf}"
        )
        if fabric.ipv6:
            lines.append(
                f"route replace {fabric.rail_prefix6(pod, rail)} via {fabric.uplink6(index, number)[0]} dev {leaf}"
            )
    return lines


def _host(fabric: Fabric, plan: HostPlan) -> list[str]:
    lines = []
    for nic in plan.nics:
        lines.append(f"address add {nic.address}/24 dev {nic.device}")
        if fabric.ipv6:
            lines.append(f"address add {nic.address6}/64 dev {nic.device} nodad")
        lines.append(f"link set {nic.device} up")
        lines += nic_routes(fabric, plan.name, nic.device)
        # With the NIC gone its address must not leave by another NIC, which the main table would allow.
        lines.append(f"route add unreachable default metric {LAST_RESORT} table {nic.table}")
        if fabric.ipv6:
            lines.append(f"route add unreachable ::/0 metric {LAST_RESORT} table {nic.table}")
        # What carries this NIC's address, or is bound to this NIC, leaves by this NIC.
        lines += [
            f"rule add priority 1000 from {nic.address} lookup {nic.table}",
            f"rule add priority 1001 oif {nic.device} lookup {nic.table}",
        ]
    return lines


def node_rules6(fabric: Fabric, node: str) -> list[str]:
    """As `node_lines`, for `ip -6 -batch`: of a rule, ip does not see the family by itself."""
    if not fabric.ipv6:
        return []
    return [
        line
        for plan in fabric.host_plans
        if plan.name == node
        for nic in plan.nics
        for line in (
            f"rule add priority 1000 from {nic.address6} lookup {nic.table}",
            f"rule add priority 1001 oif {nic.device} lookup {nic.table}",
        )
    ]
