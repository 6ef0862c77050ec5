"""The inventory of a copied tree: what belongs together, and what cannot be read."""

import shutil

import pytest
from tests.fixtures.descriptors import none_left
from tests.fixtures.hostinfo.sys_tree import SysTree

from fabricpulse.hostinfo.device_filter import DeviceFilter
from fabricpulse.hostinfo.inventory import Inventory, Scanner
from fabricpulse.hostinfo.sources import host_sources
from fabricpulse.hostinfo.sysfs import ReadErrors


@pytest.fixture
def tree(tmp_path):
    return SysTree(tmp_path / "sys")


def scan(tree: SysTree, errors: ReadErrors | None = None) -> Inventory:
    """As a check of an audit does it: the sources alone say where the host is."""
    sources = host_sources(tree.root)
    assert sources.ethtool is None and not sources.verbs, "the kernel is asked about a copied tree"
    return Scanner(str(sources.sysfs), DeviceFilter()).scan(errors if errors is not None else ReadErrors())


def test_the_device_of_a_port_is_its_netdev(tree):
    """RoCE: the netdev; a bond: the bond; InfiniBand: IPoIB, or the RDMA device itself without it; EFA has none."""
    tree.mlx5_roce(0)
    tree.bond()
    tree.mlx5_ib(8)
    tree.mlx5_ib(9)
    tree.efa(1)
    (tree.root / "class/net/ib9").unlink()
    shutil.rmtree(tree.ib("mlx5_9").parents[1] / "net")
    found = scan(tree)
    labels = {device.name: device.port_labels(1) for device in found.rdma}
    assert labels == {
        "mlx5_0": ("eth0np0", "mlx5_0", "1"),
        "mlx5_bond_0": ("bond0", "mlx5_bond_0", "1"),
        "mlx5_8": ("ib8", "mlx5_8", "1"),
        "mlx5_9": ("mlx5_9", "mlx5_9", "1"),
        "rdmap1s0": ("rdmap1s0", "rdmap1s0", "1"),
    }
    assert all(device.labels == device.port_labels(1)[:2] for device in found.rdma)
    links = {netdev.name: netdev.port_labels for netdev in found.netdevs}
    assert links["eth0np0"] == ("eth0np0", "mlx5_0", "1")
    # A slave has the RDMA port of its bond, and a name of its own.
    assert links["eno1np0"][:2] == ("eno1np0", "mlx5_bond_0")


def test_a_device_that_cannot_be_read_is_named(tree):
    tree.mlx5_roce(0)
    path = tree.root / "class/infiniband/mlx5_7"
    path.symlink_to("../../devices/none")
    errors = ReadErrors()
    assert scan(tree, errors).unreadable_rdma == {"mlx5_7"}
    assert errors.found == [("mlx5_7", str(path), "no_ports")]


def test_nics_are_not_gone_because_they_cannot_be_listed(tree):
    """With no descriptor left; that is said of the host, and what was known of its NICs is."""
    tree.mlx5_roce(0)
    scanner, errors = Scanner(str(tree.root), DeviceFilter()), ReadErrors()
    first = scanner.scan(errors)
    assert first.netdevs
    assert first.rdma
    errors.begin()
    with none_left():
        assert scanner.scan(errors) is first
    assert [device for device, _, _ in errors.found] == [""]
    assert scanner.scan(ReadErrors()) is first


def test_a_class_that_may_not_be_listed_hides_no_other(tree):
    """A sandbox may keep RDMA devices from a daemon for ever: links are seen all the same, and the error is."""
    tree.mlx5_roce(0)
    devices = tree.root / "class/infiniband"
    devices.rename(devices.with_name("gone"))
    devices.symlink_to(devices)
    errors = ReadErrors()
    found = scan(tree, errors)
    assert found.netdevs
    assert found.rdma == ()
    assert errors.found == [("", str(devices), "symlink_loop")]


def test_an_unchanged_host_is_the_same_object(tree):
    """Who keeps anything per inventory compares identity; a change makes a new one."""
    tree.mlx5_roce(0)
    scanner = Scanner(str(tree.root), DeviceFilter())
    first = scanner.scan(ReadErrors())
    assert scanner.scan(ReadErrors()) is first
    tree.mlx5_roce(1)
    assert scanner.scan(ReadErrors()) is not first
