"""The plan of a lab, before anything is built."""

import ipaddress
import itertools

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.lab import wiring
from fabricpulse.lab.fabric import Fabric

SIZES = [
    Fabric(),
    Fabric(hosts=1, rails=1, spines=1),
    Fabric(hosts=7, rails=8, spines=4, pods=3),
    Fabric(hosts=200),
]


@pytest.mark.parametrize("fabric", SIZES, ids=str)
def test_no_two_nics_have_one_address(fabric: Fabric) -> None:
    """IPv4, IPv6 and front end; every rail address is in its leaf's prefix and is not the gateway."""
    addresses = list(fabric.front_end_addresses.values())
    for host in fabric.host_plans:
        for nic in host.nics:
            addresses += [nic.address, nic.address6]
            prefix = ipaddress.ip_network(fabric.rail_prefix(host.pod, nic.rail))
            assert ipaddress.ip_address(nic.address) in prefix
            assert ipaddress.ip_address(nic.gateway) in prefix
            assert ipaddress.ip_address(nic.address6) in ipaddress.ip_network(
                fabric.rail_prefix6(host.pod, nic.rail)
            )
    gateways = {fabric.gateway(pod, rail) for _, pod, rail in fabric.leaves}
    uplinks = [
        address
        for leaf, spine in itertools.product(range(len(fabric.leaves)), range(fabric.spines))
        for address in (*fabric.uplink(leaf, spine), *fabric.uplink6(leaf, spine))
    ]
    everything = [*addresses, *gateways, *uplinks]
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize("fabric", SIZES, ids=str)
def test_every_device_has_a_name_and_an_index_of_its_own(fabric: Fabric) -> None:
    """Names within a node, indices within the lab (a veth with its peer's index reports its carrier late)."""
    ends = [end for link in fabric.links for end in (link.a, link.b)]
    assert len(set(ends)) == len(ends)
    assert all(len(device) <= 15 for _, device in ends)
    assert {node for node, _ in ends} <= set(fabric.nodes)
    words = " ".join(wiring.cables(fabric)).split()
    indices = [after for before, after in itertools.pairwise(words) if before == "index"]
    assert len(indices) == len(set(indices)) == len(ends)


def test_every_pair_of_leaves_has_all_spines_as_equal_paths() -> None:
    """One nexthop per spine, on every leaf, to every other leaf's prefix."""
    fabric = Fabric(hosts=4, rails=2, spines=3, pods=2, ipv6=False)
    for leaf in fabric.leaf_names:
        routes = [line for line in wiring.node_lines(fabric, leaf) if line.startswith("route replace 10.1")]
        assert len(routes) == len(fabric.leaf_names) - 1
        assert all(route.count("nexthop") == 3 for route in routes)


def test_pods_are_contiguous_and_of_equal_size() -> None:
    """8 hosts in 2 pods: four and four; leaves are named after their pod."""
    fabric = Fabric(hosts=8, rails=2, pods=2)
    assert [plan.pod for plan in fabric.host_plans] == [0] * 4 + [1] * 4
    assert fabric.leaf_names == ("pod0-leaf0", "pod0-leaf1", "pod1-leaf0", "pod1-leaf1")
    assert Fabric(rails=2).leaf_names == ("leaf0", "leaf1")


@pytest.mark.parametrize(
    ("size", "name"),
    [
        ({"hosts": 0}, "hosts=0"),
        ({"hosts": 201}, "hosts=201"),
        ({"rails": 17}, "rails=17"),
        ({"spines": 0}, "spines=0"),
        ({"mtu": 100}, "mtu=100"),
        ({"hosts": 2, "pods": 3}, "more pods"),
    ],
)
def test_a_size_that_cannot_be_built_is_refused(size: dict[str, int], name: str) -> None:
    """One sentence with the name, the value and the bounds."""
    with pytest.raises(UserError, match=name):
        Fabric(**size)  # type: ignore[arg-type]
