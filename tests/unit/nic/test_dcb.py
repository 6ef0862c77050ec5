"""PFC, ETS and DSCP as the kernel answers them by DCB netlink."""

import errno
import struct

import pytest

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
