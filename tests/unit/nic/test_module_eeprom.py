"""Optics: what is read from the pages of a module."""

import struct

import pytest
from tests.unit.nic.fake_ethtool import FakeEthtool

from fabricpulse.hostinfo.module_eeprom import Flags, read_module
from fabricpulse.nic.config import NicConfig

ETH0 = {"device": "eth0np0"}


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
    got = collect(config, ethtool=Module({}))
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
    assert collect(ethtool=Module({})).labels("fabricpulse_nic_module_info") == []


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
