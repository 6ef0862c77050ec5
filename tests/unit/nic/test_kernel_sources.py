"""ethtool, DCB, modules, the kernel log, verbs: what is read from them and what becomes of it."""

import asyncio
import errno
import os
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.nic.conftest import Samples, until

from fabricpulse.exporters.nic.collectors.kernel_log import KernelLogCollector
from fabricpulse.exporters.nic.collectors.verbs import VerbsCollector
from fabricpulse.exporters.nic.config import DeviceSection, NicConfig
from fabricpulse.exporters.nic.exporter import NicExporter, Sources
from fabricpulse.exporters.nic.kernel.attributes import attribute
from fabricpulse.exporters.nic.kernel.dcb import DcbState, KernelDcb, parse_dcb
from fabricpulse.exporters.nic.kernel.ethtool import KernelEthtool, Statistics
from fabricpulse.exporters.nic.kernel.kmsg import KmsgReader
from fabricpulse.exporters.nic.kernel.rdma import (
    KernelRdma,
    parse_counters,
    parse_indices,
    parse_queue_pairs,
    parse_resources,
)
from fabricpulse.exporters.nic.kernel_log import classify, parse_record
from fabricpulse.exporters.nic.module_eeprom import Flags, read_module

ETH0 = {"netdev": "eth0np0"}


class FakeEthtool:
    """Statistics of one NIC under its driver's names; everything else is declined."""

    def __init__(self, values, fec=None, pause=None, pages=None) -> None:
        self.names = tuple(values)
        self.values = list(values.values())
        self.asked: list[str] = []
        self._fec, self._pause, self._pages = fec, pause, pages

    def _or_declined(self, value: Any) -> Any:
        if value is None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return value

    def statistics(self, netdev: str) -> Statistics:
        self.asked.append(netdev)
        return Statistics(self.names, self.values)

    def fec(self, netdev):
        return self._or_declined(self._fec)

    def pause(self, netdev):
        return self._or_declined(self._pause)

    def module(self, netdev, page, offset, length, address):
        data = self._or_declined(self._pages)[(page, address)]
        return data[offset % 128 : offset % 128 + length]

    def close(self):
        pass


class FakeDcb:
    def __init__(self, state) -> None:
        self._state = state

    def state(self, netdev):
        return self._state

    def close(self):
        pass


@pytest.fixture
def collect(tree):
    made = []

    def once(config=None, **sources):
        exporter = NicExporter(config or NicConfig(), sysfs=tree.root, sources=Sources(**sources))
        made.append(exporter)
        return Samples.parse(exporter.collect_once())

    yield once
    for exporter in made:
        exporter.close()


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
    link = {"netdev": "ens0f0np0"}
    assert got.get_one("fabricpulse_nic_pfc_pause_frames_received_total", priority="3", **link) == 5
    assert got.get_one("fabricpulse_nic_pfc_pause_received_seconds_total", priority="3", **link) == 1
    assert got.get_one("fabricpulse_nic_pfc_pause_frames_transmitted_total", priority="3", **link) == 6
    assert got.get_one("fabricpulse_nic_pfc_pause_transmitted_transitions_total", priority="3", **link) == 2
    assert got.get_one("fabricpulse_nic_global_pause_frames_received_total", **link) == 8


def test_one_netdev_without_ethtool_costs_no_other(tree, collect):
    """A driver that fails for one link: that link's samples are missing, and it is told."""
    tree.mlx5_roce(0, gid_slots=4)
    tree.mlx5_roce(1, gid_slots=4)

    class Failing(FakeEthtool):
        def statistics(self, netdev):
            if netdev == "eth0np0":
                raise OSError(errno.EIO, "Input/output error")
            return super().statistics(netdev)

    got = collect(ethtool=Failing({"rx_prio0_pause": 4}))
    received = got.labels("fabricpulse_nic_pfc_pause_frames_received_total")
    assert [labels["netdev"] for labels in received] == ["eth1np0"]
    assert got.get_one("fabricpulse_nic_device_read_failures", device="mlx5_0") == 1
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


def test_dcb_of_this_kernel():
    source = KernelDcb()
    try:
        with pytest.raises(OSError) as caught:
            source.state("lo")
        assert caught.value.errno == errno.EOPNOTSUPP
    finally:
        source.close()


def dcb_answer() -> bytes:
    pfc = struct.pack("=BBBxH2x8Q8Q", 8, 0b1000, 0, 4096, *range(8), *range(10, 18))
    ets = bytes([0, 8, 0]) + bytes([0, 0, 0, 50, 0, 50, 0, 0]) + bytes(8) + bytes([0, 0, 0, 2, 0, 2, 0, 0])
    ets += bytes([0, 1, 2, 3, 4, 5, 6, 7]) + bytes(24)
    table = attribute(1, struct.pack("=BBH", 5, 3, 26)) + attribute(1, struct.pack("=BBH", 1, 6, 0x8906))
    ieee = attribute(1, ets) + attribute(2, pfc) + attribute(3, table)
    return struct.pack("=BBH", 0, 21, 0) + attribute(1, b"eth0np0\0") + attribute(13, ieee)


def test_dcb_answers():
    """PFC on for priority 3, ETS halves, DSCP 26 to priority 3; an application entry of another kind is no DSCP."""
    state = parse_dcb(dcb_answer())
    assert state.pfc_enabled == (False, False, False, True, False, False, False, False)
    assert (state.pfc_capability, state.pfc_delay) == (8, 4096)
    assert state.indications == tuple(range(10, 18))
    assert state.priority_to_class == tuple(range(8))
    assert state.bandwidth_percent[3] == 50
    assert state.is_ets == (False, False, False, True, False, True, False, False)
    assert state.dscp_to_priority == {26: 3}


@pytest.mark.parametrize("cut", range(0, len(dcb_answer()), 7))
def test_dcb_answers_that_are_cut_off(cut):
    """Half an answer gives what is whole in it, never an exception."""
    assert isinstance(parse_dcb(dcb_answer()[:cut]), DcbState)


def test_dcb_metrics(tree, collect):
    tree.mlx5_roce(0, gid_slots=4)
    for role in ("np", "rp"):
        for priority in range(8):
            tree.write(tree.net("eth0np0") / f"ecn/roce_{role}/enable/{priority}", int(priority == 3))
    got = collect(dcb=FakeDcb(parse_dcb(dcb_answer())))
    assert got.get_one("fabricpulse_nic_pfc_enabled", priority="3", **ETH0) == 1
    assert got.get_one("fabricpulse_nic_pfc_enabled", priority="4", **ETH0) == 0
    assert got.get_one("fabricpulse_nic_trust_dscp", **ETH0) == 1
    assert got.get_one("fabricpulse_nic_dscp_priority", dscp="26", **ETH0) == 3
    assert got.get_one("fabricpulse_nic_traffic_class_bandwidth_ratio", traffic_class="3", **ETH0) == 0.5
    assert got.get_one("fabricpulse_nic_ecn_enabled", role="np", priority="3", **ETH0) == 1
    assert got.get_one("fabricpulse_nic_ecn_enabled", role="rp", priority="0", **ETH0) == 0


class FakeRdma:
    """One device with index 4."""

    def __init__(self, counters: dict[str, int] | None = None) -> None:
        self._counters = counters or {"rx_write_requests": 5}
        self.asked_for_counters = 0

    def indices(self):
        return {"mlx5_0": 4}

    def resources(self, index):
        assert index == 4
        return {"qp": 12, "mr": 900}

    def queue_pairs(self, index):
        return {("rc", "rts"): 10, ("gsi", "rts"): 1, ("rc", "err"): 1}

    def counters(self, index, port):
        self.asked_for_counters += 1
        return self._counters

    def close(self):
        pass


def test_rdma_resources(tree, collect):
    """Totals by kind; queue pairs by type and state only on request; optional counters only where they are on."""
    tree.mlx5_roce(0)
    got = collect(rdma=FakeRdma({"cc_rx_ce_pkts": 3, "cc_tx_cnp_pkts": 2}), queue_pairs=FakeRdma())
    assert got.get_one("fabricpulse_nic_rdma_resources", device="mlx5_0", resource="qp") == 12
    assert got.get_one("fabricpulse_nic_cc_marked_packets_received_total", device="mlx5_0", port="1") == 3
    assert got.get_one("fabricpulse_nic_cc_cnp_packets_sent_total", device="mlx5_0") == 2
    assert got.labels("fabricpulse_nic_cc_cnp_packets_received_total") == []
    assert got.labels("fabricpulse_nic_queue_pairs") == []
    got = collect(NicConfig(collectors={"queue_pairs": True}), queue_pairs=FakeRdma())
    assert got.get_one("fabricpulse_nic_queue_pairs", device="mlx5_0", qp_type="rc", state="err") == 1


def test_optional_counters_that_are_off_are_not_asked_for_again(tree):
    """The answer holds every counter of the port: a firmware command that sysfs has cost already."""
    tree.mlx5_roce(0)
    source = FakeRdma()
    exporter = NicExporter(NicConfig(), sysfs=tree.root, sources=Sources(rdma=source))
    for _ in range(5):
        exporter.collect()
    exporter.close()
    assert source.asked_for_counters == 1


def test_rdma_netlink_messages():
    """As the kernel nests them; what is cut off is left out."""
    u32, u64 = struct.Struct("=I").pack, struct.Struct("=Q").pack
    dump = [attribute(1, u32(i)) + attribute(2, name + b"\0") for i, name in enumerate((b"mlx5_0", b"rxe0"))]
    assert parse_indices([*dump, b"\x08", attribute(1, u32(9))]) == {"mlx5_0": 0, "rxe0": 1}
    table = b"".join(
        attribute(16, attribute(17, name + b"\0") + attribute(18, u64(count)))
        for name, count in ((b"qp", 7), (b"mr", 2**40))
    )
    assert parse_resources(attribute(1, u32(0)) + attribute(15, table)) == {"qp": 7, "mr": 2**40}
    kinds_and_states = ((2, 3), (2, 3), (1, 3), (2, 6), (77, 9))
    pairs = b"".join(
        attribute(20, attribute(26, bytes([kind])) + attribute(27, bytes([state])))
        for kind, state in kinds_and_states
    )
    expected = {("rc", "rts"): 2, ("gsi", "rts"): 1, ("rc", "err"): 1, ("other", "other"): 1}
    assert parse_queue_pairs([attribute(1, u32(0)) + attribute(19, pairs)]) == expected
    counter = attribute(81, attribute(82, b"cc_rx_ce_pkts\0") + attribute(83, u64(11)))
    assert parse_counters(attribute(80, counter)) == {"cc_rx_ce_pkts": 11}
    assert parse_counters(attribute(80, counter)[:-12]) == {}


def test_rdma_netlink_of_this_kernel(tree, collect):
    """Where the kernel has RDMA netlink it answers; where it has none, nothing is exported and nothing fails."""
    tree.mlx5_roce(0)
    got = collect(rdma=KernelRdma())
    assert got.get_one("fabricpulse_nic_device_read_failures", device="mlx5_0") == 0
    assert got.get_one("fabricpulse_scrape_collector_success", collector="resources") == 1


def cmis_pages() -> dict[tuple[int, int], bytes]:
    lower, upper, first, lanes = bytearray(128), bytearray(128), bytearray(128), bytearray(128)
    lower[0] = 0x19
    struct.pack_into(">hH", lower, 14, 55 * 256 + 128, 33_000)
    upper[1:17], upper[20:36], upper[38:54] = b"NVIDIA          ", b"MMA4Z00-NS      ", b"MT2318FT01234   "
    first[32] = 0b01 << 3
    # Tx fault, Tx LOS; Rx LOS and LOL are implemented, Tx LOL is not.
    first[29], first[30] = 0b011, 0b110
    lanes[19], lanes[20], lanes[7], lanes[9] = 0b0000_0100, 0b0000_0100, 0b0100_0000, 0xFF
    struct.pack_into(">4H", lanes, 26, 12_000, 12_100, 12_200, 12_300)
    struct.pack_into(">4H", lanes, 42, 4_000, 4_000, 4_000, 4_000)
    struct.pack_into(">4H", lanes, 58, 9_000, 9_000, 0, 9_000)
    return {
        (0, 0x50): bytes(lower),
        (1, 0x50): bytes(first),
        (0x11, 0x50): bytes(lanes),
        (99, 0x50): bytes(upper),
    }


def test_a_cmis_module(tree, collect):
    """An OSFP module with four of eight lanes in use; a lane without light is 0, an unused one is absent."""
    tree.mlx5_roce(0, gid_slots=4)
    pages = cmis_pages()

    class Module(FakeEthtool):
        def module(self, netdev, page, offset, length, address):
            key = (99 if page == 0 and offset >= 128 else page, address)
            return pages[key][offset % 128 : offset % 128 + length]

    config = NicConfig(collectors={"module": True})
    got = collect(config, module=Module({}))
    (info,) = got.labels("fabricpulse_nic_module_info", **ETH0)
    assert (info["form"], info["vendor"], info["part_number"]) == ("OSFP", "NVIDIA", "MMA4Z00-NS")
    assert got.get_one("fabricpulse_nic_module_temperature_celsius", **ETH0) == 55.5
    assert got.get_one("fabricpulse_nic_module_supply_volts", **ETH0) == pytest.approx(3.3)
    received = "fabricpulse_nic_module_received_power_watts"
    assert got.get_one(received, lane="1", **ETH0) == pytest.approx(0.9e-3)
    assert got.get_one(received, lane="3", **ETH0) == 0
    assert got.get_one(received, lane="5", **ETH0) is None
    assert got.get_one("fabricpulse_nic_module_laser_bias_amperes", lane="1", **ETH0) == pytest.approx(16e-3)
    flag = "fabricpulse_nic_module_"
    assert [got.get_one(f"{flag}receive_loss_of_signal", lane=str(lane), **ETH0) for lane in range(1, 9)] == [
        0, 0, 1, 0, None, None, None, None,
    ]  # fmt: skip
    assert got.get_one(f"{flag}receive_loss_of_lock", lane="3", **ETH0) == 1
    assert got.get_one(f"{flag}transmit_loss_of_signal", lane="1", **ETH0) == 0
    # A lane without any light or current that reports a fault is not silent.
    assert got.get_one(f"{flag}transmit_fault", lane="7", **ETH0) == 1
    assert got.labels(f"{flag}transmit_loss_of_lock") == []
    assert collect(module=Module({})).labels("fabricpulse_nic_module_info") == []


def test_other_modules():
    """QSFP28 by SFF-8636, SFP by SFF-8472, passive copper without measurements, a kind that nobody knows."""
    qsfp = bytearray(256)
    qsfp[0] = 0x11
    struct.pack_into(">h2xH", qsfp, 22, -2 * 256, 32_500)
    struct.pack_into(">4H4H4H", qsfp, 34, 1, 2, 3, 4, 10, 20, 30, 40, 100, 200, 300, 400)
    qsfp[148:164] = b"Mellanox        "
    # Flags of lanes 2 (Rx LOS), 4 (Tx LOS), 1 (Tx fault), 3 (Rx LOL); Tx LOL is not implemented.
    qsfp[3], qsfp[4], qsfp[5], qsfp[194], qsfp[195] = 0b1000_0010, 0b0001, 0b1111_0100, 0x10, 0b1010
    module = read_module(lambda page, offset, length, address: bytes(qsfp[offset : offset + length]))
    assert module is not None
    assert (module.form, module.vendor, module.temperature_c) == ("QSFP28", "Mellanox", -2.0)
    assert module.received_w == pytest.approx((1e-7, 2e-7, 3e-7, 4e-7))
    assert module.bias_a == pytest.approx((20e-6, 40e-6, 60e-6, 80e-6))
    assert module.flags == Flags(
        receive_loss=(False, True, False, False),
        transmit_loss=(False, False, False, True),
        receive_unlocked=(False, False, True, False),
        transmit_fault=(True, False, False, False),
    )

    sfp = {0x50: bytearray(128), 0x51: bytearray(128)}
    sfp[0x50][0], sfp[0x50][92] = 0x03, 0x68
    sfp[0x50][93], sfp[0x51][110] = 0x10, 0b110
    struct.pack_into(">hHHHH", sfp[0x51], 96, 40 * 256, 33_000, 3_000, 5_000, 4_000)
    module = read_module(lambda page, offset, length, address: bytes(sfp[address][offset : offset + length]))
    assert module is not None
    assert module.temperature_c == 40.0
    assert module.received_w[0] == pytest.approx(0.4e-3)
    assert module.flags == Flags(receive_loss=(True,))

    copper = bytearray(256)
    copper[0], copper[2] = 0x18, 0x80
    module = read_module(lambda page, offset, length, address: bytes(copper[offset : offset + length]))
    assert module is not None
    assert module.temperature_c is None
    assert module.received_w == ()
    assert read_module(lambda page, offset, length, address: bytes(length)) is None


MLX5 = "mlx5_core 0000:10:00.0"
BNXT = "bnxt_en 0000:21:00.0 ens0f0np0"
WATCHDOG = "eth0np0 (mlx5_core): transmit queue 12 timed out"


@pytest.mark.parametrize(
    ("text", "kind", "pci", "netdev"),
    [
        (f"{MLX5} eth0np0: Link down", "link_down", "0000:10:00.0", "eth0np0"),
        (f"{MLX5} eth0np0: Link up", "link_up", "0000:10:00.0", "eth0np0"),
        (
            f"{MLX5}: Port module event[error]: module 0, Cable error, Bus stuck",
            "module_error",
            "0000:10:00.0",
            "",
        ),
        (f"{MLX5}: Port module event: module 1, Cable unplugged", "module_unplugged", "0000:10:00.0", ""),
        (
            f"{MLX5}: Port module event[error]: module 0, High Temperature",
            "high_temperature",
            "0000:10:00.0",
            "",
        ),
        (
            f"{MLX5}: mlx5_cmd_fw_mon: ACCESS_REG(0x805) op_mod(0x1) failed",
            "access_register",
            "0000:10:00.0",
            "",
        ),
        (
            f"{MLX5}: wait_func: ACCESS_REG(0x805) timeout. Will cause a leak",
            "command_timeout",
            "0000:10:00.0",
            "",
        ),
        (f"{MLX5}: poll_health: device's health compromised", "health", "0000:10:00.0", ""),
        (f"{MLX5}: Detected insufficient power on the slot (27W).", "insufficient_power", "0000:10:00.0", ""),
        (f"NETDEV WATCHDOG: {WATCHDOG}", "transmit_timeout", "", "eth0np0"),
        (f"NETDEV WATCHDOG: CPU: 3: {WATCHDOG} 5376 ms", "transmit_timeout", "", "eth0np0"),
        (f"{BNXT}: NIC Link is Down", "link_down", "0000:21:00.0", "ens0f0np0"),
        (f"{BNXT}: NIC Link is Up, 400000 Mbps full duplex", "link_up", "0000:21:00.0", "ens0f0np0"),
        (
            f"{BNXT}: Error (timeout: 500015) msg {{0x23 0xb6}} len:0",
            "command_timeout",
            "0000:21:00.0",
            "ens0f0np0",
        ),
        (
            "bnxt_en 0000:21:00.0: cmdq[0x1b]=0x3 timedout (100000)msec",
            "command_timeout",
            "0000:21:00.0",
            "",
        ),
        ("pcieport 0000:10:01.1: AER: Corrected error received: 0000:10:00.0", "pcie", "0000:10:00.0", ""),
        ("mlx5_0: dump_cqe:272:(pid 4711): dump error cqe", "completion_error", "", ""),
    ],
)
def test_kernel_lines(text, kind, pci, netdev):
    found = classify(text)
    assert found is not None
    assert (found.kind, found.pci_address, found.netdev) == (kind, pci, netdev)


@pytest.mark.parametrize(
    "text",
    [
        "usb 1-1: link is down",
        f"{MLX5}: firmware version: 28.41.1000",
        "device eth0 entered promiscuous mode",
        "",
    ],
)
def test_kernel_lines_about_something_else(text):
    assert classify(text) is None


def test_kernel_records():
    """The kernel's own lines; not those that user space has written, whose facility is never 0."""
    line = b"4,1234,99887766,-;mlx5_core 0000:10:00.0: x\n SUBSYSTEM=pci\n"
    assert parse_record(line) == "mlx5_core 0000:10:00.0: x"
    assert parse_record(b"12" + line[1:]) is None
    assert parse_record(b"garbage") is None
    assert parse_record(b";;;") is None
    assert parse_record(b"4,1,2,-;bad \xff\x00\n") == "bad \N{REPLACEMENT CHARACTER}"


async def test_kernel_log_counts_only_known_nics(tree, tmp_path):
    """Records as /dev/kmsg gives them, one a read: counted by device and kind, and told in the event log."""
    tree.mlx5_roce(0, gid_slots=4)
    exporter = NicExporter(NicConfig(), sysfs=tree.root, run_dir=tmp_path, sources=Sources(link_events=False))
    await exporter.start()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    collector = KernelLogCollector(exporter.flaps, Path("/nowhere"))
    collector.start(exporter.inventory)
    asyncio.get_running_loop().add_reader(here, lambda: collector._record(here.recv(8192)))
    try:
        for address in ("0000:10:00.0", "0000:10:00.0", "0000:ff:00.0"):
            there.send(
                f"3,1,2,-;mlx5_core {address}: Port module event: module 0, Cable unplugged\n".encode()
            )
        there.send(b"3,1,2,-;mlx5_core 0000:10:00.0 eth0np0: Link down\n")
        await until(lambda: exporter.flaps.events["kernel_log"] == 3)
        exporter.collectors.append(collector)
        got = Samples.parse(await exporter.scrape())
    finally:
        asyncio.get_running_loop().remove_reader(here)
        here.close()
        there.close()
        exporter.stop()
    messages = "fabricpulse_nic_kernel_messages_total"
    assert got.get_one(messages, device="mlx5_0", kind="module_unplugged") == 2
    assert got.get_one(messages, device="mlx5_0", kind="link_down") == 1
    assert len(got.labels(messages)) == 2
    assert (tmp_path / "nic-events.jsonl").read_text().count("Cable unplugged") == 2


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="hardware: no /dev/kmsg")
async def test_the_real_kernel_log():
    """What is written to /dev/kmsg now is read, older lines are not; and none is taken for the kernel's own."""
    records: list[bytes] = []
    Path("/dev/kmsg").write_text("<4>fabricpulse test: before\n")
    reader = KmsgReader(Path("/dev/kmsg"), records.append, lambda: None)
    reader.start()
    try:
        Path("/dev/kmsg").write_text("<4>fabricpulse test: after\n")
        await until(lambda: any(b"fabricpulse test: after" in record for record in records))
    finally:
        reader.stop()
    told = [record for record in records if b"fabricpulse test" in record]
    assert not any(b"before" in record for record in told)
    assert {parse_record(record) for record in told} == {None}


@pytest.fixture(scope="module")
def verbs_library(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("verbs") / "libibverbs-fake.so"
    source = Path(__file__).parents[2] / "fixtures/fake_ibverbs.c"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", library, source], check=True
    )
    return str(library)


async def test_verbs_events(tree, tmp_path, verbs_library, monkeypatch):
    """Port events by port, a flap of a port without a netdev, a device that may not be opened, one that goes."""
    tree.mlx5_roce(0, gid_slots=4)
    tree.mlx5_ib(9)
    (tree.root / "class/net/ib9").unlink()
    shutil.rmtree(tree.ib("mlx5_9").parents[1] / "net")
    read_end, write_end = os.pipe()
    monkeypatch.setenv("FAKE_IBVERBS_EVENTS_FD", str(read_end))
    # The C library's environment is the process's: putenv, which os.environ does.
    exporter = NicExporter(NicConfig(), sysfs=tree.root, run_dir=tmp_path, sources=Sources(link_events=False))
    await exporter.start()
    touched: list[str] = []
    collector = VerbsCollector(exporter.flaps, touched.append, verbs_library)
    collector.start()
    exporter.collectors.append(collector)

    async def events(*pairs: tuple[int, int]) -> None:
        wanted = exporter.flaps.events["verbs"] + len(pairs)
        for pair in pairs:
            os.write(write_end, struct.pack("=ii", *pair))
        await until(lambda: exporter.flaps.events["verbs"] == wanted)

    try:
        got = Samples.parse(await exporter.scrape())
        assert got.get_one("fabricpulse_nic_verbs_device_open", device="mlx5_9") == 1
        assert got.get_one("fabricpulse_nic_verbs_device_open", device="mlx5_0") == 0
        assert got.get_one("fabricpulse_nic_verbs_queue_pairs_max", device="mlx5_9") == 131072
        port = {"device": "mlx5_9", "port": "1"}
        assert got.get_one("fabricpulse_nic_verbs_active_mtu_bytes", **port) == 2048
        assert got.get_one("fabricpulse_nic_verbs_partition_key_violations_total", **port) == 10
        assert got.get_one("fabricpulse_nic_verbs_queue_key_violations_total", **port) == 20
        assert got.get_one("fabricpulse_nic_verbs_active_mtu_bytes", device="mlx5_0") is None
        await events((10, 1), (9, 1), (10, 2), (18, 1), (8, 0), (77, 0))
        got = Samples.parse(await exporter.scrape())
        counted = "fabricpulse_nic_verbs_async_events_total"
        assert got.get_one(counted, device="mlx5_9", port="1", event="port_err") == 1
        assert got.get_one(counted, device="mlx5_9", port="2", event="port_err") == 1
        assert got.get_one(counted, device="mlx5_9", port="", event="device_fatal") == 1
        assert got.get_one(counted, device="mlx5_9", port="", event="other") == 1
        downs = "fabricpulse_nic_port_down_transitions_total"
        assert got.get_one(downs, device="mlx5_9", port="1", netdev="") == 1
        assert (
            got.get_one("fabricpulse_nic_port_up_transitions_total", device="mlx5_9", port="1", netdev="")
            == 1
        )
        assert got.get_one(downs, device="mlx5_9", port="2") is None
        assert touched.count("mlx5_9") == 4
        os.close(write_end)
        write_end = -1
        await until(lambda: not collector._open["mlx5_9"].is_open)
    finally:
        if write_end >= 0:
            os.close(write_end)
        exporter.stop()
    events_log = (tmp_path / "nic-events.jsonl").read_text()
    assert "link_down" in events_log
    assert "device_fatal" in events_log


def test_without_libibverbs_there_are_no_targets(tree):
    exporter = NicExporter(NicConfig(), sysfs=tree.root, sources=Sources(link_events=False))
    collector = VerbsCollector(exporter.flaps, lambda device: None, "/nonexistent/libibverbs.so.1")
    assert collector.targets(None) == []
    exporter.close()
