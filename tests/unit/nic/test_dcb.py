"""PFC, ETS and DSCP as the kernel answers them by DCB netlink."""

import errno
import struct

import numpy as np
import pytest
from tests.fixtures.native.c_layout import compiled_layout, mirrored_layout

from fabricpulse.hostinfo.netlink import dcb, ethtool
from fabricpulse.hostinfo.netlink.attributes import attribute
from fabricpulse.hostinfo.netlink.dcb import DcbState, KernelDcb, parse_dcb

ETH0 = {"device": "eth0np0"}


class FakeDcb:
    def __init__(self, state) -> None:
        self._state = state

    def state(self, netdev):
        return self._state

    def close(self):
        pass


def test_dcb_of_this_kernel():
    """The kernel takes our request for a question about DCB: it answers that loopback has none."""
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
    buffers = struct.pack("=8B8II", 0, 0, 0, 1, 0, 0, 0, 0, 4096, 8192, 0, 0, 0, 0, 0, 0, 12288)
    ieee = attribute(1, ets) + attribute(2, pfc) + attribute(3, table) + attribute(10, buffers)
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
    assert state.priority_to_buffer == (0, 0, 0, 1, 0, 0, 0, 0)
    assert state.buffer_bytes[:3] == (4096, 8192, 0)


def test_numbers_are_those_of_the_kernels_headers(tmp_path):
    """The place and the layout of receive buffers, and the request for the watchdog of PFC."""
    (tmp_path / "all.h").write_text("#include <linux/dcbnl.h>\n#include <linux/ethtool.h>\n")
    layout = np.dtype([("prio2buffer", "u1", 8), ("buffer_size", "<u4", 8), ("total_size", "<u4")])
    numbers = {
        "attribute": "DCB_ATTR_DCB_BUFFER",
        "command": "ETHTOOL_GTUNABLE",
        "tunable": "ETHTOOL_PFC_PREVENTION_TOUT",
        "kind": "ETHTOOL_TUNABLE_U16",
        "header": "sizeof(struct ethtool_tunable)",
    }
    found = compiled_layout(tmp_path, str(tmp_path / "all.h"), {"dcbnl_buffer": layout}, numbers, ())
    assert found.pop("dcbnl_buffer") == mirrored_layout(layout)
    assert layout.itemsize == dcb._BUFFER.size
    assert found == {
        "attribute": dcb._IEEE_BUFFER,
        "command": ethtool._GTUNABLE,
        "tunable": ethtool._PFC_PREVENTION,
        "kind": ethtool._TUNABLE_U16,
        "header": ethtool._TUNABLE.size - 4,
    }


def test_watchdog_of_this_kernel():
    """The kernel takes our request for a question about a tunable: it answers that loopback has none."""
    source = ethtool.KernelEthtool()
    try:
        with pytest.raises(OSError) as caught:
            source.pfc_watchdog_ms("lo")
        assert caught.value.errno == errno.EOPNOTSUPP
    finally:
        source.close()


@pytest.mark.parametrize("cut", range(0, len(dcb_answer()), 7))
def test_dcb_answers_that_are_cut_off(cut):
    """Half an answer gives what is whole in it, never an exception."""
    assert isinstance(parse_dcb(dcb_answer()[:cut]), DcbState)


def test_dcb_metrics(tree, collect):
    """PFC, trust, priorities, bandwidths and ECN are those of the answer and of sysfs, each with its labels."""
    tree.mlx5_roce(0, gid_slots=4)
    for role in ("np", "rp"):
        for priority in range(8):
            tree.write(tree.net("eth0np0") / f"ecn/roce_{role}/enable/{priority}", int(priority == 3))
    got = collect(dcb=FakeDcb(parse_dcb(dcb_answer())))
    assert got.get_one("fabricpulse_nic_pfc_enabled", priority="3", **ETH0) == 1
    assert got.get_one("fabricpulse_nic_pfc_enabled", priority="4", **ETH0) == 0
    assert got.get_one("fabricpulse_nic_pfc_priorities", **ETH0) == 8
    assert got.get_one("fabricpulse_nic_trust_dscp", **ETH0) == 1
    assert got.get_one("fabricpulse_nic_dscp_priority", dscp="26", **ETH0) == 3
    assert got.get_one("fabricpulse_nic_traffic_class_bandwidth_ratio", traffic_class="3", **ETH0) == 0.5
    assert got.get_one("fabricpulse_nic_ecn_enabled", role="np", priority="3", **ETH0) == 1
    assert got.get_one("fabricpulse_nic_ecn_enabled", role="rp", priority="0", **ETH0) == 0
