"""Links, bonds, PCIe, affinity."""

import errno
import os

import pytest

from fabricpulse.nic.collectors.pcie import GpuPlace, nearest_gpus
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.sections import DeviceSection, ExpectedSection


def test_an_admin_down_link_has_no_carrier_sample(tree, scrape):
    """The kernel answers EINVAL for the carrier of a link that is administratively down: absent, and not an error."""
    tree.mlx5_roce(0)
    tree.write(tree.net("eth0np0") / "flags", "0x1002")
    got = scrape()
    assert got.get_one("fabricpulse_nic_link_admin_up", device="eth0np0") == 0
    assert got.get_one("fabricpulse_nic_link_carrier", device="eth0np0") is None
    assert got.get_one("fabricpulse_nic_carrier_down_changes_total", device="eth0np0") == 1


def test_a_carrier_that_declined_is_back_at_the_next_scrape(tree, scrape, monkeypatch):
    """The link goes down and up around one read (EINVAL): unlike a counter's, its next value is not waited for."""
    tree.mlx5_roce(0)
    scrape()
    real_pread = os.pread
    carrier = (tree.net("eth0np0") / "carrier").stat().st_ino

    def pread(descriptor, count, offset):
        if os.fstat(descriptor).st_ino == carrier:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_pread(descriptor, count, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        assert scrape().get_one("fabricpulse_nic_link_carrier", device="eth0np0") is None
    assert scrape().get_one("fabricpulse_nic_link_carrier", device="eth0np0") == 1


def test_virtual_links_are_left_out(tree, scrape):
    """lo, containers' veths and bridges are no NICs; a link of another name is one, PCI function or not."""
    for index, name in enumerate(("lo", "veth12ab", "docker0", "br-0fa1", "cali123", "rail0")):
        tree.netdev(name, index, pci=None)
    names = {labels["device"] for labels in scrape().labels("fabricpulse_nic_link_mtu_bytes")}
    assert names == {"rail0"}


def test_a_bond_and_its_slaves(tree, scrape):
    """The RDMA port's netdev is the bond; the slaves belong to the port, and are distinguished."""
    tree.bond()
    tree.write(tree.net("eno2np1") / "bonding_slave/mii_status", "down")
    tree.write(tree.net("eno2np1") / "bonding_slave/link_failure_count", 7)
    got = scrape()
    assert got.labels("fabricpulse_nic_port_info", rdma_device="mlx5_bond_0")[0]["device"] == "bond0"
    assert got.get_one("fabricpulse_nic_bond_slaves", device="bond0", mode="802.3ad") == 2
    assert got.get_one("fabricpulse_nic_bond_slave_up", device="eno1np0", bond="bond0") == 1
    assert got.get_one("fabricpulse_nic_bond_slave_up", device="eno2np1") == 0
    assert got.get_one("fabricpulse_nic_bond_slave_link_failures_total", device="eno2np1") == 7
    devices = {labels["device"] for labels in got.labels("fabricpulse_nic_carrier_changes_total")}
    assert devices == {"bond0", "eno1np0", "eno2np1"}
    # A bond of BlueField-3 has no congestion-control counters: absent, not 0.
    assert got.labels("fabricpulse_nic_cnp_packets_sent_total") == []


def test_an_excluded_slave_is_not_opened(tree, scrape, monkeypatch):
    """The bond tells of it and counts it; what is in its own directory is left alone."""
    tree.bond()
    opened: list[str] = []
    real_open = os.open

    def recording_open(path, *args, **kwargs):
        opened.append(os.fspath(path))
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", recording_open)
    got = scrape(NicConfig(device=DeviceSection(exclude="eno2.*")))
    assert got.get_one("fabricpulse_nic_bond_slaves", device="bond0") == 2
    assert {labels["device"] for labels in got.labels("fabricpulse_nic_bond_slave_up")} == {"eno1np0"}
    assert any("/eno1np0/bonding_slave/" in path for path in opened)
    assert [path for path in opened if "eno2np1" in path] == []


def test_pcie_link_and_errors(tree, scrape):
    """A link that trained at half its speed and width shows; errors by severity and kind, without the total line."""
    tree.mlx5_roce(0)
    pci = tree.ib("mlx5_0").parents[1]
    tree.write(pci / "current_link_speed", "16.0 GT/s PCIe")
    tree.write(pci / "current_link_width", 8)
    got = scrape()
    assert got.get_one("fabricpulse_nic_pcie_link_transfers_per_second", device="eth0np0") == 16e9
    assert got.get_one("fabricpulse_nic_pcie_link_transfers_per_second_max", device="eth0np0") == 32e9
    assert got.get_one("fabricpulse_nic_pcie_link_width_lanes", device="eth0np0") == 8
    errors = {
        (labels["severity"], labels["error"]): got.get_one("fabricpulse_nic_pcie_aer_errors_total", **labels)
        for labels in got.labels("fabricpulse_nic_pcie_aer_errors_total")
    }
    assert errors[("correctable", "RxErr")] == 2
    assert errors[("nonfatal", "CmpltTO")] == 1
    assert errors[("fatal", "DLP")] == 0
    assert not any("TOTAL" in kind for _, kind in errors)


def test_what_slot_and_card_both_can(tree, scrape):
    """A card in a slot of half its width cannot do better: that is no fault, and must be distinguished from one."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(1)
    slot = tree.ib("mlx5_0").parents[1].resolve().parent
    tree.write(slot / "max_link_speed", "16.0 GT/s PCIe")
    tree.write(slot / "max_link_width", 32)
    got = scrape()
    link = "fabricpulse_nic_pcie_link"
    assert got.get_one(f"{link}_transfers_per_second_attainable", device="eth0np0") == 16e9
    assert got.get_one(f"{link}_width_lanes_attainable", device="eth0np0") == 16
    # The slot tells nothing: unknown, not the card's own.
    assert got.get_one(f"{link}_width_lanes_attainable", device="eth1np0") is None
    assert got.get_one("fabricpulse_nic_device_read_failures", device="eth1np0", rdma_device="") == 0


def test_a_nic_that_is_gone_from_the_bus(tree, scrape):
    """Its series are gone; that it was there is exposed for as long as the exporter runs, and until it is back."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(1)
    (tree.ib("mlx5_1").parents[1] / "sriov_numvfs").write_text("0")
    present = "fabricpulse_nic_present"
    assert scrape().get_one(present, device="eth1np0") == 1
    links = [tree.root / name for name in ("class/infiniband/mlx5_1", "class/net/eth1np0")]
    targets = [link.readlink() for link in links]
    for link in links:
        link.unlink()
    got = scrape()
    assert got.get_one(present, device="eth1np0", pci_address="0000:20:00.0") == 0
    assert got.get_one(present, device="eth0np0") == 1
    for link, target in zip(links, targets, strict=True):
        link.symlink_to(target)
    assert scrape().get_one(present, device="eth1np0") == 1


def test_a_virtual_function_that_goes_is_not_missed(tree, scrape):
    tree.mlx5_roce(0)
    tree.mlx5_roce(1)
    (tree.ib("mlx5_1").parents[1] / "physfn").symlink_to(tree.ib("mlx5_0").parents[1])
    scrape()
    for name in ("class/infiniband/mlx5_1", "class/net/eth1np0"):
        (tree.root / name).unlink()
    assert {labels["device"] for labels in scrape().labels("fabricpulse_nic_present")} == {"eth0np0"}


@pytest.mark.parametrize(
    ("ports", "rate", "up"),
    [(3, 400, 2), (3, 0, 2), (3, 800, 0), (1, 400.0, 2)],
)
def test_expected_ports(tree, scrape, ports, rate, up):
    """Active ports at the expected rate or above; one that is down or gone is missing from the count."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(1)
    tree.mlx5_roce(8, up=False)
    assert scrape().labels("fabricpulse_nic_expected_ports") == []
    got = scrape(NicConfig(expected=ExpectedSection(ports=ports, rate_gbit_s=rate)))
    assert got.get_one("fabricpulse_nic_expected_ports") == ports
    assert got.get_one("fabricpulse_nic_expected_ports_up") == up
    assert got.get_one("fabricpulse_nic_expected_port_rate_bytes_per_second") == (rate * 125e6 or None)


def test_expected_links_of_a_host_without_rdma(tree, scrape):
    for index in range(3):
        tree.mlx5_roce(index)
        (tree.root / f"class/infiniband/mlx5_{index}").unlink()
    tree.write(tree.net("eth1np0") / "carrier", 0)
    tree.write(tree.net("eth2np0") / "speed", 100_000)
    got = scrape(NicConfig(expected=ExpectedSection(ports=3, rate_gbit_s=200)))
    assert got.get_one("fabricpulse_nic_expected_ports_up") == 1


def test_virtual_functions(tree, scrape):
    """A virtual function says whose it is, the physical one how many it has."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(1)
    physical, virtual = (tree.ib(f"mlx5_{i}").parents[1] for i in range(2))
    tree.write(physical / "sriov_numvfs", 4)
    (virtual / "physfn").symlink_to(physical)
    got = scrape()
    functions = {labels["device"]: labels for labels in got.labels("fabricpulse_nic_pcie_function_info")}
    assert functions["eth0np0"]["function"] == "physical"
    assert functions["eth0np0"]["physical_function"] == ""
    assert functions["eth1np0"]["function"] == "virtual"
    assert functions["eth1np0"]["physical_function"] == physical.name
    assert got.get_one("fabricpulse_nic_pcie_virtual_functions", device="eth0np0") == 4
    assert got.get_one("fabricpulse_nic_pcie_virtual_functions", device="eth1np0") is None


def test_affinity(tree, scrape):
    """The GPU behind the same switch, the NUMA node, and none for a NIC that shares nothing."""
    tree.gpu_host(gid_slots=4)
    got = scrape()
    place = {labels["device"]: labels for labels in got.labels("fabricpulse_nic_affinity_info")}
    assert place["eth0np0"]["gpus"] == "0000:11:00.0"
    assert place["eth0np0"]["gpu_path"] == "same_switch"
    assert place["eth0np0"]["numa_node"] == "0"
    assert place["eth8np0"]["gpu_path"] == "same_numa"
    assert place["eth8np0"]["gpus"].split(",") == ["0000:61:00.0", "0000:71:00.0", "0000:81:00.0"]


@pytest.mark.parametrize(
    ("gpu_path", "numa", "expected"),
    [
        ("/sys/devices/pci0000:10/0000:10:01.1/0000:11:00.0/0000:12:01.0/0000:14:00.0", 0, "same_switch"),
        ("/sys/devices/pci0000:10/0000:10:03.1/0000:15:00.0", 0, "same_host_bridge"),
        ("/sys/devices/pci0000:20/0000:20:01.1/0000:21:00.0", 0, "same_numa"),
        ("/sys/devices/pci0000:20/0000:20:01.1/0000:21:00.0", 1, "other_numa"),
        ("/sys/devices/pci0000:20/0000:20:01.1/0000:21:00.0", -1, "other_numa"),
    ],
)
def test_how_a_gpu_is_joined(gpu_path, numa, expected):
    nic = "/sys/devices/pci0000:10/0000:10:01.1/0000:11:00.0/0000:12:00.0/0000:13:00.0"
    assert nearest_gpus(nic, 0, [GpuPlace("0000:99:00.0", gpu_path, numa)]) == (("0000:99:00.0",), expected)


def test_no_gpus():
    """On a host without GPUs a NIC has no nearest one."""
    assert nearest_gpus("/sys/devices/pci0000:10/0000:10:00.0", 0, []) == ((), "")
