"""RDMA devices: identity, state, units, names, what is absent."""

import pytest
from tests.fixtures.hostinfo.sys_tree import (
    BNXT_HW,
    EFA_HW,
    HNS_HW,
    IRDMA_GEN3_HW,
    IRDMA_HW,
    MLX5_CC,
    MLX5_HW,
    PORT_COUNTERS,
    RXE_HW,
    counter_value,
)

from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.rdma_counter_map import HW_COUNTERS
from fabricpulse.nic.sections import DeviceSection

MLX5 = {"rdma_device": "mlx5_0", "port": "1"}


def test_state_rate_and_identity(tree, scrape):
    """Of a port that is up and one that is down: state, speed in bytes, and what identifies device and port."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(8, up=False)
    got = scrape()
    assert got.get_one("fabricpulse_nic_port_state", **MLX5) == 4
    assert got.get_one("fabricpulse_nic_port_up", **MLX5) == 1
    assert got.get_one("fabricpulse_nic_port_physical_state", **MLX5) == 5
    assert got.get_one("fabricpulse_nic_port_rate_bytes_per_second", **MLX5) == 50e9
    assert got.get_one("fabricpulse_nic_port_up", rdma_device="mlx5_8") == 0
    assert got.get_one("fabricpulse_nic_port_physical_state", rdma_device="mlx5_8") == 3
    (info,) = got.labels("fabricpulse_nic_info", rdma_device="mlx5_0")
    assert info["firmware"] == "28.41.1000"
    assert info["board"] == "MT_0000000838"
    assert info["driver"] == "mlx5_core"
    assert info["pci_address"] == "0000:10:00.0"
    (port,) = got.labels("fabricpulse_nic_port_info", rdma_device="mlx5_0")
    assert (port["device"], port["link_layer"]) == ("eth0np0", "Ethernet")


def test_units(tree, scrape):
    """Doublewords times four, Mb/s and Gb/s to bytes per second, milliseconds to seconds."""
    tree.mlx5_roce(0)
    tree.write(tree.port("mlx5_0") / "counters/port_rcv_data", 13_247_980_736_555)
    tree.write(tree.port("mlx5_0") / "counters/port_xmit_data", 2**64 - 1)
    got = scrape()
    assert got.get_one("fabricpulse_nic_received_bytes_total", **MLX5) == 52_991_922_946_220
    assert got.get_one("fabricpulse_nic_transmitted_bytes_total", **MLX5) == pytest.approx(4 * 2.0**64)
    assert got.get_one("fabricpulse_nic_hw_counters_lifespan_seconds", **MLX5) == 0.01
    assert got.get_one("fabricpulse_nic_link_speed_bytes_per_second", device="eth0np0") == 50e9


def test_absent_is_absent_and_not_zero(tree, scrape):
    """A missing file, N/A, a driver that declines: no sample, and no failure."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(8, up=False)
    (tree.port("mlx5_0") / "counters/symbol_error").unlink()
    tree.write(tree.port("mlx5_0") / "counters/link_downed", "N/A (no PMA)")
    got = scrape()
    assert got.get_one("fabricpulse_nic_symbol_errors_total", **MLX5) is None
    assert got.get_one("fabricpulse_nic_link_downed_total", **MLX5) is None
    # -1 is the kernel's word for "no speed".
    assert got.get_one("fabricpulse_nic_link_speed_bytes_per_second", device="eth8np0") is None
    assert got.get_one("fabricpulse_nic_device_read_failures", rdma_device="mlx5_0") == 0


def test_infiniband_ports(tree, scrape):
    """LIDs and partition keys are InfiniBand's; a RoCE port has one key and no LID."""
    tree.mlx5_roce(0)
    tree.mlx5_ib(9)
    got = scrape()
    assert got.get_one("fabricpulse_nic_port_lid", rdma_device="mlx5_9") == 26
    assert got.get_one("fabricpulse_nic_port_lid", rdma_device="mlx5_0") is None
    assert got.get_one("fabricpulse_nic_pkey_entries", rdma_device="mlx5_9") == 2
    assert got.get_one("fabricpulse_nic_pkey_first", rdma_device="mlx5_0") == 0xFFFF


@pytest.mark.parametrize(
    ("make", "device", "raw", "metric"),
    [
        ("mlx5_roce", "mlx5_1", "np_cnp_sent", "cnp_packets_sent_total"),
        ("mlx5_roce", "mlx5_1", "req_transport_retries_exceeded", "transport_retries_exceeded_total"),
        ("bnxt", "bnxt_re1", "tx_cnp_pkts", "cnp_packets_sent_total"),
        ("bnxt", "bnxt_re1", "max_retry_exceeded", "transport_retries_exceeded_total"),
        ("bnxt", "bnxt_re1", "rx_bytes", "received_bytes_total"),
        ("irdma", "irdma1", "cnpSent", "cnp_packets_sent_total"),
        ("bnxt", "bnxt_re1", "rx_write_req", "write_requests_received_total"),
        ("bnxt", "bnxt_re1", "oos_drop_count", "out_of_sequence_packets_received_total"),
        ("irdma", "irdma1", "iwInRdmaReads", "read_requests_received_total"),
        ("rxe", "rxe1", "rdma_sends", "send_requests_sent_total"),
        ("rxe", "rxe1", "retry_exceeded_err", "transport_retries_exceeded_total"),
        ("hns", "hns_1", "tx_cnp_pkt", "cnp_packets_sent_total"),
        ("hns", "hns_1", "rx_pkt", "received_packets_total"),
        ("efa", "rdmap1s0", "rx_bytes", "received_bytes_total"),
        ("efa", "rdmap1s0", "unresponsive_remote_events", "unresponsive_remote_events_total"),
    ],
)
def test_names_of_all_drivers_give_one_metric(tree, scrape, make, device, raw, metric):
    """The drivers' names for one thing come out as one metric."""
    getattr(tree, make)(1)
    tree.write(tree.port(device) / "hw_counters" / raw, 4711)
    got = scrape()
    assert got.get_one(f"fabricpulse_nic_{metric}", rdma_device=device) == 4711
    assert got.get_one("fabricpulse_nic_device_read_failures", rdma_device=device) == 0


def test_counters_of_64_bits_beside_those_that_stop(tree, scrape):
    """mlx4: counters/ has 32 bits and stops at the end, counters_ext/ goes on and has precedence."""
    tree.mlx5_roce(0)
    port = tree.port("mlx5_0")
    tree.write(port / "counters/port_rcv_data", 2**32 - 1)
    tree.write(port / "counters/port_rcv_discards", 3)
    (port / "counters_ext").mkdir()
    tree.write(port / "counters_ext/port_rcv_data_64", 2**33)
    tree.write(port / "counters_ext/port_unicast_xmit_packets", 11)
    got = scrape()
    assert got.get_one("fabricpulse_nic_received_bytes_total", **MLX5) == 4 * 2**33
    assert got.get_one("fabricpulse_nic_unicast_packets_transmitted_total", **MLX5) == 11
    assert got.get_one("fabricpulse_nic_receive_discards_total", **MLX5) == 3
    # What counters_ext/ does not have comes from counters/ all the same.
    assert got.get_one("fabricpulse_nic_symbol_errors_total", **MLX5) is not None


def test_counters_that_have_moved_are_exposed(tree, scrape, monkeypatch):
    """Since the scrape before: of all error counters only the one that has grown."""
    monkeypatch.setattr("fabricpulse.nic.recent_growth.RESOLUTION_S", 0.0)
    tree.mlx5_roce(0)
    assert scrape().labels("fabricpulse_nic_recent_increase") == []
    tree.write(tree.port("mlx5_0") / "hw_counters/out_of_buffer", 2**20)
    before = scrape().get_one("fabricpulse_nic_out_of_buffer_drops_total", **MLX5)
    tree.write(tree.port("mlx5_0") / "hw_counters/out_of_buffer", 2**20 + 7)
    got = scrape()
    assert got.get_one("fabricpulse_nic_out_of_buffer_drops_total", **MLX5) == before + 7
    (labels,) = got.labels("fabricpulse_nic_recent_increase")
    assert labels["counter"] == "out_of_buffer_drops"
    assert labels["device"] == "eth0np0"
    assert got.get_one("fabricpulse_nic_recent_increase", **labels) >= 7
    assert got.get_one("fabricpulse_nic_recent_rate", **labels) > 0


def test_irdma_sums_ipv4_and_ipv6(tree, scrape):
    tree.irdma(0)
    tree.write(tree.port("irdma0") / "hw_counters/ip4InOctets", 1000)
    tree.write(tree.port("irdma0") / "hw_counters/ip6InOctets", 234)
    assert scrape().get_one("fabricpulse_nic_received_bytes_total", rdma_device="irdma0") == 1234


@pytest.mark.parametrize("part", [b"N/A", b"garbage", None])
def test_a_sum_whose_part_cannot_be_had_is_absent(tree, scrape, part):
    """The other part alone would look like a counter that was reset."""
    tree.irdma(0)
    assert scrape().get_one("fabricpulse_nic_received_bytes_total", rdma_device="irdma0") is not None
    file = tree.port("irdma0") / "hw_counters/ip6InOctets"
    if part is None:
        file.unlink()
        file.symlink_to(file.name)
    else:
        tree.write(file, part)
    assert scrape().get_one("fabricpulse_nic_received_bytes_total", rdma_device="irdma0") is None


def test_irdma_of_the_third_generation(tree, scrape):
    """Other names for the same things, some of them with spaces."""
    tree.irdma(1, IRDMA_GEN3_HW)
    for number, name in enumerate(IRDMA_GEN3_HW):
        tree.write(tree.port("irdma1") / "hw_counters" / name, 100 + number)
    got = scrape(NicConfig(raw_counters=True))
    for name, metric in (
        ("RNR received", "rnr_nak_packets_received_total"),
        ("RTO", "ack_timeouts_total"),
        ("InRdmaWrites", "write_requests_received_total"),
        ("RetransSegs", "retransmits_total"),
    ):
        value = 100 + IRDMA_GEN3_HW.index(name)
        assert got.get_one(f"fabricpulse_nic_{metric}", rdma_device="irdma1") == value
        assert got.get_one("fabricpulse_nic_raw_value", rdma_device="irdma1", name=name) == value


def test_names_of_a_representor(tree, scrape):
    """In switchdev mode mlx5 puts `vport_` before the names of its queue counters; they wrap as the others do."""
    tree.mlx5_roce(1)
    folder = tree.port("mlx5_1") / "hw_counters"
    (folder / "out_of_buffer").unlink()
    tree.write(folder / "vport_out_of_buffer", (1 << 32) - 5)
    scrape()
    tree.write(folder / "vport_out_of_buffer", 5)
    got = scrape()
    assert got.get_one("fabricpulse_nic_out_of_buffer_drops_total", rdma_device="mlx5_1") == (1 << 32) + 5


@pytest.mark.parametrize(
    ("family", "fixture"),
    [
        ("mlx5", MLX5_HW + MLX5_CC),
        ("bnxt_re", BNXT_HW),
        ("irdma", IRDMA_HW + IRDMA_GEN3_HW),
        ("rxe", RXE_HW),
        ("hns", HNS_HW),
        ("efa", EFA_HW),
    ],
)
def test_the_vocabulary_has_no_name_that_a_driver_does_not_write(family, fixture):
    """The fixtures hold the drivers' lists; a name beyond them would never match a file."""
    assert {name for name in HW_COUNTERS[family] if not name.startswith("vport_")} <= set(fixture)


def test_raw_names_are_behind_a_flag(tree, scrape):
    """Every file of both directories under the driver's name and in its own unit, beside the vocabulary."""
    tree.mlx5_roce(0)
    tree.irdma(1)
    assert scrape().labels("fabricpulse_nic_raw_value") == []
    got = scrape(NicConfig(raw_counters=True))
    assert len(got.labels("fabricpulse_nic_raw_value", rdma_device="mlx5_0", directory="counters")) == len(
        PORT_COUNTERS
    )
    position = PORT_COUNTERS.index("port_rcv_data")
    raw = got.get_one("fabricpulse_nic_raw_value", rdma_device="mlx5_0", name="port_rcv_data")
    assert raw == counter_value(0, position, "port_rcv_data")
    assert got.get_one("fabricpulse_nic_received_bytes_total", **MLX5) == 4 * raw
    assert got.get_one("fabricpulse_nic_raw_value", rdma_device="irdma1", name="tcpInOptErrors") is not None
    plain = scrape().get_one("fabricpulse_nic_received_bytes_total", rdma_device="irdma1")
    assert got.get_one("fabricpulse_nic_received_bytes_total", rdma_device="irdma1") == plain


def test_a_counter_that_wraps_at_32_bits_goes_on(tree, scrape):
    """mlx5 queue counters: across 2^32 the exported value keeps growing; a 64-bit counter that falls was reset."""
    tree.mlx5_roce(0)
    path = tree.port("mlx5_0") / "hw_counters"
    values = []
    for raw in (2**32 - 1_000, 2**32 - 500, 700, 900):
        tree.write(path / "rx_write_requests", raw)
        tree.write(path / "np_cnp_sent", raw)
        got = scrape()
        values.append(got.get_one("fabricpulse_nic_write_requests_received_total", **MLX5))
    assert values == [2**32 - 1_000, 2**32 - 500, 2**32 + 700, 2**32 + 900]
    assert got.get_one("fabricpulse_nic_cnp_packets_sent_total", **MLX5) == 900


def test_a_counter_that_a_flap_resets_falls(tree, scrape):
    """The port went down and up and the driver began anew: the value falls, which Prometheus takes for a reset."""
    tree.mlx5_roce(0)
    port = tree.port("mlx5_0")
    tree.write(port / "hw_counters/rx_write_requests", 2**32 - 10)
    scrape()
    tree.write(port / "state", "1: DOWN")
    tree.write(port / "hw_counters/rx_write_requests", 5)
    assert scrape().get_one("fabricpulse_nic_write_requests_received_total", **MLX5) == 5


def test_devices_come_go_and_change(tree, scrape):
    """Series of a device that is gone are gone; a new one and a reloaded one are there at the next scrape."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(1)
    scrape()
    old = tree.root / "class/infiniband/mlx5_1"
    target = old.resolve()
    old.unlink()
    (tree.root / "class/net/eth1np0").unlink()
    (tree.root / "bus/pci/devices/0000:20:00.0").unlink()
    tree.mlx5_roce(2)
    got = scrape()
    assert got.of_device("mlx5_1") == {}
    assert got.get_one("fabricpulse_nic_port_state", rdma_device="mlx5_2") == 4
    # Reloaded: new directories under the old name, with other firmware.
    tree.link(old, target)
    new = tree.ib("mlx5_0").rename(tree.ib("mlx5_0").with_name("old"))
    del new
    tree.rdma("again", 0, pci=tree.ib("mlx5_2").parents[1], fw="28.99.0", board=None, hca=None)
    (tree.root / "class/infiniband/mlx5_0").unlink()
    (tree.root / "class/infiniband/mlx5_0").symlink_to((tree.root / "class/infiniband/again").resolve())
    assert scrape().labels("fabricpulse_nic_info", rdma_device="mlx5_0")[0]["firmware"] == "28.99.0"


def test_dual_port_device(tree, scrape):
    """Both ports, each with its own netdev by dev_port, and a port that is down beside one that is up."""
    tree.mlx5_roce(0)
    pci = tree.ib("mlx5_0").parents[1]
    tree.rdma_port("mlx5_0", 40, port=2, state="1: DOWN", phys="3: Disabled")
    tree.netdev("eth0np1", 40, pci=pci, up=False, dev_port=1)
    tree.gids(
        "mlx5_0", {0: ("fe80:0000:0000:0000:ba3f:d2ff:fe00:1028", "RoCE v2", "eth0np1")}, port=2, size=4
    )
    got = scrape()
    assert got.get_one("fabricpulse_nic_port_up", rdma_device="mlx5_0", port="1") == 1
    assert got.get_one("fabricpulse_nic_port_up", rdma_device="mlx5_0", port="2") == 0
    assert got.labels("fabricpulse_nic_port_info", port="2")[0]["device"] == "eth0np1"
    assert got.get_one("fabricpulse_nic_carrier_changes_total", device="eth0np1") is not None


def test_networks_from_the_configuration(tree, scrape):
    """A port is put on its network by the name of the device or of the netdev."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(1)
    got = scrape(NicConfig(networks={"mlx5_0": "rail0", "eth1np0": "rail1"}))
    networks = {
        labels["rdma_device"]: labels["network"] for labels in got.labels("fabricpulse_nic_port_info")
    }
    assert networks == {"mlx5_0": "rail0", "mlx5_1": "rail1"}


@pytest.mark.parametrize(
    ("section", "kept"),
    [
        (DeviceSection(exclude="mlx5_[1-9]"), {"mlx5_0"}),
        (DeviceSection(include="mlx5_0|mlx5_1"), {"mlx5_0", "mlx5_1"}),
        (DeviceSection(include="eth1np0"), {"mlx5_1"}),
        (DeviceSection(exclude="eth1np0|eth2np0"), {"mlx5_0"}),
        (DeviceSection(include="mlx5_.*", exclude="mlx5_1"), {"mlx5_0", "mlx5_2"}),
    ],
)
def test_filters_apply_before_any_read(tree, scrape, monkeypatch, section, kept):
    """Nothing of an excluded device is opened, by either of its names: each read may cost a firmware command."""
    import os

    for index in range(3):
        tree.mlx5_roce(index, gid_slots=4)
    opened: list[str] = []
    real_open = os.open

    def recording_open(path, *args, **kwargs):
        opened.append(str(path))
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", recording_open)
    got = scrape(NicConfig(device=section))
    assert {labels["rdma_device"] for labels in got.labels("fabricpulse_nic_port_state")} == kept
    assert opened
    for index in range(3):
        if f"mlx5_{index}" not in kept:
            parts = (f"mlx5_{index}/", f"eth{index}np0/", f"0000:{0x10 + 0x10 * index:02x}:00.0/")
            touched = [p for p in opened if any(part in p for part in parts)]
            assert touched == []
            assert got.of_device(f"mlx5_{index}") == {}


def test_a_counter_that_declines_is_left_alone(tree, scrape, monkeypatch):
    """EINVAL is how firmware says no, and such a read may write to the kernel log: not asked again at once."""
    import errno
    import os

    tree.mlx5_roce(0)
    real_pread = os.pread
    declined = (tree.port("mlx5_0") / "counters/symbol_error").stat().st_ino
    asked = 0

    def pread(descriptor, count, offset):
        nonlocal asked
        if os.fstat(descriptor).st_ino == declined:
            asked += 1
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_pread(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", pread)
    for _ in range(5):
        got = scrape()
    assert asked == 1
    assert got.get_one("fabricpulse_nic_symbol_errors_total", **MLX5) is None
    assert got.get_one("fabricpulse_nic_device_read_failures", rdma_device="mlx5_0") == 0
