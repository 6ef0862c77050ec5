"""GID tables: which index NCCL uses, what is the same everywhere, what has moved."""

import ipaddress

import pytest

from fabricpulse.hostinfo.gid_rules import Gid, NcclRules, nccl_index, parse_gid, roce_v2_index
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.sections import GidSection, NcclSection

LOCAL = bytes.fromhex("fe80000000000000ba3fd2fffe001020")
IPV4 = bytes.fromhex("00000000000000000000ffff0a00010b")
OTHER_IPV4 = bytes.fromhex("00000000000000000000ffffc0a80105")
GLOBAL = bytes.fromhex("20010db8000000000000000000000017")
V1, V2 = "IB/RoCE v1", "RoCE v2"


def table(*entries: tuple[int, bytes, str]) -> dict[int, Gid]:
    return {index: Gid(value, kind, "eth0") for index, value, kind in entries}


USUAL = table((0, LOCAL, V1), (1, LOCAL, V2), (2, IPV4, V1), (3, IPV4, V2))


@pytest.mark.parametrize(
    ("entries", "rules", "expected"),
    [
        (USUAL, NcclRules(), 3),
        (USUAL, NcclRules(roce_version=1), 2),
        (USUAL, NcclRules(gid_index=1), 1),
        (USUAL, NcclRules(gid_index=9), None),
        ({}, NcclRules(), None),
        # The IPv4 entries moved behind a gap.
        (table((0, LOCAL, V1), (1, LOCAL, V2), (6, IPV4, V1), (7, IPV4, V2)), NcclRules(), 7),
        # IPv6 wanted: the link-local address is none that NCCL takes, the global one is.
        (
            table((0, LOCAL, V1), (1, LOCAL, V2), (2, GLOBAL, V1), (3, GLOBAL, V2)),
            NcclRules(address_family="AF_INET6"),
            3,
        ),
        # The range decides between two IPv4 addresses.
        (
            table((0, LOCAL, V1), (1, IPV4, V1), (2, IPV4, V2), (3, OTHER_IPV4, V1), (4, OTHER_IPV4, V2)),
            NcclRules(address_range=ipaddress.ip_network("192.168.0.0/16")),
            4,
        ),
        # A range of the other family is ignored.
        (USUAL, NcclRules(address_range=ipaddress.ip_network("fd00::/8")), 3),
        # IPv6 wanted and IPv4 first: NCCL leaves it for the first entry of the other family, even an empty one.
        (table((0, IPV4, V1), (1, IPV4, V2)), NcclRules(address_family="AF_INET6"), None),
        (table((0, IPV4, V1), (1, LOCAL, V1), (2, GLOBAL, V2)), NcclRules(address_family="AF_INET6"), 2),
        (table((0, IPV4, V1), (5, GLOBAL, V2)), NcclRules(address_family="AF_INET6"), 5),
        (
            table((0, LOCAL, V1), (1, GLOBAL, V2)),
            NcclRules(address_family="AF_INET6", address_range=ipaddress.ip_network("fe80::/16")),
            0,
        ),
        # No IPv4 at all: the first entry stays.
        (table((0, LOCAL, V1), (1, LOCAL, V2)), NcclRules(), 0),
    ],
)  # fmt: skip
def test_the_index_that_nccl_would_use(entries, rules, expected):
    assert nccl_index(entries, 256, "Ethernet", rules) == expected


def test_infiniband_uses_the_routable_gid_if_there_is_one():
    routable = bytes.fromhex("fec0000000170000b83fd20300102009")
    plain = bytes.fromhex("fe80000000000000b83fd20300102009")
    assert nccl_index(table((0, plain, V1)), 8, "InfiniBand", NcclRules()) == 0
    assert nccl_index(table((0, plain, V1), (1, routable, V1)), 8, "InfiniBand", NcclRules()) == 1
    assert nccl_index(table((0, plain, V1)), 8, "InfiniBand", NcclRules(gid_index=3)) == 0


def test_lowest_roce_v2_index():
    """Of the GIDs of RoCE v2 the first, whatever its address; none where there is none."""
    assert roce_v2_index(USUAL) == 3
    assert roce_v2_index(table((0, LOCAL, V1), (1, LOCAL, V2))) == 1
    assert roce_v2_index(table((0, LOCAL, V1))) is None


@pytest.mark.parametrize("text", [b"", b"fe80", b"zz80:" + b"0000:" * 6 + b"0000", b"0" * 39, b"fe80::1"])
def test_what_is_no_gid(text):
    """Empty, too short, no hexadecimal digits, without colons, abbreviated: no GID, and no exception."""
    assert parse_gid(text) is None


ALWAYS = NicConfig(gid=GidSection(refresh_s=0))


def test_the_table_as_exported(tree, scrape):
    """Entries by type, each entry with its netdev, the index for NCCL, and that it is the same on all ports."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(1)
    got = scrape()
    assert got.get_one("fabricpulse_nic_gid_entries", rdma_device="mlx5_0", type="RoCE v2") == 2
    assert got.get_one("fabricpulse_nic_gid_entries", rdma_device="mlx5_0", type="IB/RoCE v1") == 2
    (third,) = got.labels("fabricpulse_nic_gid_info", rdma_device="mlx5_0", index="3")
    assert third["gid"] == "0000:0000:0000:0000:0000:ffff:0a00:0100"
    assert (third["gid_type"], third["gid_device"]) == ("RoCE v2", "eth0np0")
    assert got.get_one("fabricpulse_nic_nccl_gid_index", rdma_device="mlx5_0") == 3
    assert got.get_one("fabricpulse_nic_nccl_gid_index_consistent") == 1
    (used,) = got.labels("fabricpulse_nic_nccl_gid_info", rdma_device="mlx5_0")
    assert (used["index"], used["gid_type"], used["address_family"]) == ("3", "RoCE v2", "ipv4")


def test_a_gid_that_is_not_what_it_should_be_shows(tree, scrape):
    """A job that is given RoCE v1, or a port without an address: the odd one out by its labels."""
    tree.mlx5_roce(0)
    got = scrape(NicConfig(nccl=NcclSection(roce_version=1)))
    assert got.labels("fabricpulse_nic_nccl_gid_info")[0]["gid_type"] == "IB/RoCE v1"
    tree.gids("mlx5_0", {0: ("fe80:0000:0000:0000:ba3f:d2ff:fe00:1000", "IB/RoCE v1", "eth0np0")})
    got = scrape(ALWAYS)
    assert got.labels("fabricpulse_nic_nccl_gid_info")[0]["address_family"] == "link_local"
    tree.mlx5_ib(9)
    got = scrape(ALWAYS)
    assert (
        got.labels("fabricpulse_nic_nccl_gid_info", rdma_device="mlx5_9")[0]["address_family"] == "infiniband"
    )


def test_an_index_that_differs_is_reported(tree, scrape):
    """One NIC of two with its address elsewhere: NCCL would connect with the wrong GID."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(1, gid_offset=2)
    assert scrape().get_one("fabricpulse_nic_nccl_gid_index_consistent") == 0


def test_ports_that_are_down_do_not_count_for_sameness(tree, scrape):
    tree.mlx5_roce(0)
    tree.mlx5_roce(8, up=False, gid_offset=2)
    assert scrape().get_one("fabricpulse_nic_nccl_gid_index_consistent") == 1


def test_an_index_that_moves_after_a_flap(tree, scrape):
    """The address goes with the link and comes back at another index: a move and the changes are counted."""
    tree.mlx5_roce(0)
    got = scrape(ALWAYS)
    assert got.get_one("fabricpulse_nic_gid_index_moves_total", rdma_device="mlx5_0") == 0
    tree.gids("mlx5_0", {0: ("fe80:0000:0000:0000:ba3f:d2ff:fe00:1000", "IB/RoCE v1", "eth0np0")})
    got = scrape(ALWAYS)
    assert got.get_one("fabricpulse_nic_gid_table_changes_total", rdma_device="mlx5_0") == 3
    tree.roce_gids("mlx5_0", 0, "eth0np0", offset=2)
    got = scrape(ALWAYS)
    assert got.get_one("fabricpulse_nic_nccl_gid_index", rdma_device="mlx5_0") == 5
    assert got.get_one("fabricpulse_nic_gid_index_moves_total", rdma_device="mlx5_0") == 1


def test_an_all_zero_table(tree, scrape):
    """No addresses yet: no index, no entry, and that is not a failure."""
    tree.mlx5_roce(0)
    tree.gids("mlx5_0", {})
    got = scrape()
    assert got.labels("fabricpulse_nic_gid_info", rdma_device="mlx5_0") == []
    assert got.get_one("fabricpulse_nic_nccl_gid_index", rdma_device="mlx5_0") is None
    assert got.get_one("fabricpulse_nic_nccl_gid_index_consistent") == 0
    assert got.get_one("fabricpulse_nic_device_read_failures", rdma_device="mlx5_0") == 0


def test_entries_are_capped(tree, scrape):
    """A host with hundreds of addresses exports the first ones; the counts by type are whole."""
    tree.mlx5_roce(0)
    entries = {i: (f"0000:0000:0000:0000:0000:ffff:0a01:{i:04x}", "RoCE v2", "eth0np0") for i in range(200)}
    tree.gids("mlx5_0", entries, size=255)
    got = scrape(NicConfig(gid=GidSection(max_info=10), nccl=NcclSection(address_range="10.1.0.5/32")))
    assert len(got.labels("fabricpulse_nic_gid_info", rdma_device="mlx5_0")) == 10
    assert got.get_one("fabricpulse_nic_gid_entries", rdma_device="mlx5_0", type="RoCE v2") == 200
