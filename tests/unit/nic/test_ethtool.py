"""Statistics of the drivers by ethtool, and the NICs that have none."""

import errno

import pytest
from tests.unit.nic.fake_ethtool import FakeEthtool

from fabricpulse.hostinfo.netlink.ethtool import KernelEthtool
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.sections import DeviceSection

ETH0 = {"device": "eth0np0"}


def test_mlx5_statistics(tree, collect):
    """PFC per priority, durations in seconds, PHY, lanes; the many others are left out."""
    tree.mlx5_roce(0, gid_slots=4)
    got = collect(
        ethtool=FakeEthtool(
            {
                "rx_packets": 1,
                "rx_prio3_pause": 11,
                "rx_prio3_pause_duration": 2_500_000,
                "tx_prio3_pause": 12,
                "rx_prio3_buf_discard": 5,
                "rx_pause_ctrl_phy": 7,
                "tx_pause_storm_error_events": 2,
                "link_down_events_phy": 3,
                "rx_err_lane_2_phy": 9,
                "rx_corrected_bits_phy": 2**63,
                "outbound_pci_stalled_wr": 35,
                "ch0_poll": 99,
            },
            fec={"corrected_blocks": 100, "uncorrectable_blocks": 4},
            pause={"received": 70, "transmitted": 71},
        )
    )
    assert got.get_one("fabricpulse_nic_pfc_pause_frames_received_total", priority="3", **ETH0) == 11
    assert got.get_one("fabricpulse_nic_pfc_pause_received_seconds_total", priority="3", **ETH0) == 2.5
    assert got.get_one("fabricpulse_nic_pfc_pause_frames_transmitted_total", priority="3", **ETH0) == 12
    assert got.get_one("fabricpulse_nic_priority_discards_total", priority="3", **ETH0) == 5
    assert got.get_one("fabricpulse_nic_pause_storm_error_events_total", **ETH0) == 2
    assert got.get_one("fabricpulse_nic_phy_link_down_events_total", **ETH0) == 3
    assert got.get_one("fabricpulse_nic_phy_lane_errors_total", lane="2", **ETH0) == 9
    assert got.get_one("fabricpulse_nic_phy_corrected_bits_total", **ETH0) == 2.0**63
    assert got.get_one("fabricpulse_nic_pcie_outbound_stalled_writes_ratio", **ETH0) == 0.35
    assert got.get_one("fabricpulse_nic_fec_uncorrectable_blocks_total", **ETH0) == 4
    # Global pause: the driver's own statistic has precedence, netlink gives the direction that it lacks.
    assert got.get_one("fabricpulse_nic_global_pause_frames_received_total", **ETH0) == 7
    assert got.get_one("fabricpulse_nic_global_pause_frames_transmitted_total", **ETH0) == 71
    # PFC is off for the others: their files do not exist, and neither do their series.
    assert got.labels("fabricpulse_nic_pfc_pause_frames_received_total", priority="4") == []


def test_bnxt_statistics(tree, collect):
    """Broadcom's names for the same things."""
    tree.bnxt(0)
    got = collect(
        ethtool=FakeEthtool(
            {"rx_pfc_ena_frames_pri3": 5, "pfc_pri3_rx_duration_us": 1_000_000, "tx_pfc_ena_frames_pri3": 6,
             "pfc_pri3_tx_transitions": 2, "rx_pause_frames": 8}
        )
    )  # fmt: skip
    link = {"device": "ens0f0np0"}
    assert got.get_one("fabricpulse_nic_pfc_pause_frames_received_total", priority="3", **link) == 5
    assert got.get_one("fabricpulse_nic_pfc_pause_received_seconds_total", priority="3", **link) == 1
    assert got.get_one("fabricpulse_nic_pfc_pause_frames_transmitted_total", priority="3", **link) == 6
    assert got.get_one("fabricpulse_nic_pfc_pause_transmitted_transitions_total", priority="3", **link) == 2
    assert got.get_one("fabricpulse_nic_global_pause_frames_received_total", **link) == 8


def test_one_netdev_without_ethtool_costs_no_other(tree, collect):
    """A driver that fails for one link: that link's samples are missing, and the failure is logged."""
    tree.mlx5_roce(0, gid_slots=4)
    tree.mlx5_roce(1, gid_slots=4)

    class Failing(FakeEthtool):
        def statistics(self, netdev):
            if netdev == "eth0np0":
                raise OSError(errno.EIO, "Input/output error")
            return super().statistics(netdev)

    got = collect(ethtool=Failing({"rx_prio0_pause": 4}))
    received = got.labels("fabricpulse_nic_pfc_pause_frames_received_total")
    assert [labels["device"] for labels in received] == ["eth1np0"]
    assert got.get_one("fabricpulse_nic_device_read_failures", device="eth0np0", rdma_device="") == 1
    assert got.get_one("fabricpulse_scrape_collector_success", collector="ethtool") == 0


def test_excluded_links_are_not_asked(tree, collect):
    tree.mlx5_roce(0, gid_slots=4)
    tree.mlx5_roce(1, gid_slots=4)
    source = FakeEthtool({"rx_prio0_pause": 4})
    collect(NicConfig(device=DeviceSection(exclude="mlx5_0")), ethtool=source)
    assert source.asked == ["eth1np0"]


def test_ethtool_of_this_kernel():
    """The ioctl and the netlink family on a real link: loopback has neither statistics nor FEC, and says so."""
    source = KernelEthtool()
    try:
        for ask in (source.statistics, source.fec, source.pause):
            with pytest.raises(OSError) as caught:
                ask("lo")
            assert caught.value.errno == errno.EOPNOTSUPP
        with pytest.raises(OSError) as caught:
            source.fec("no-such-link")
        assert caught.value.errno == errno.ENODEV
    finally:
        source.close()
