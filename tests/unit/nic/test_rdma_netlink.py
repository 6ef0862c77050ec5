"""RDMA resources and optional counters by netlink."""

import struct

from fabricpulse.hostinfo.netlink.attributes import attribute
from fabricpulse.hostinfo.netlink.rdma import (
    KernelRdma,
    parse_counters,
    parse_indices,
    parse_queue_pairs,
    parse_resources,
)
from fabricpulse.hostinfo.sources import HostSources
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.exporter import NicExporter


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
    got = collect(rdma=FakeRdma({"cc_rx_ce_pkts": 3, "cc_tx_cnp_pkts": 2, "rdma_rx_bytes": 8}))
    assert got.get_one("fabricpulse_nic_rdma_resources", rdma_device="mlx5_0", resource="qp") == 12
    assert (
        got.get_one("fabricpulse_nic_cc_marked_packets_received_total", rdma_device="mlx5_0", port="1") == 3
    )
    assert got.get_one("fabricpulse_nic_cc_cnp_packets_sent_total", rdma_device="mlx5_0") == 2
    assert got.get_one("fabricpulse_nic_optional_received_bytes_total", rdma_device="mlx5_0") == 8
    assert got.labels("fabricpulse_nic_cc_cnp_packets_received_total") == []
    assert got.labels("fabricpulse_nic_queue_pairs") == []
    got = collect(NicConfig(collectors={"queue_pairs": True}), rdma=FakeRdma())
    assert got.get_one("fabricpulse_nic_queue_pairs", rdma_device="mlx5_0", qp_type="rc", state="err") == 1


def test_optional_counters_that_are_off_are_not_asked_for_again(tree):
    """The answer holds every counter of the port: a firmware command that sysfs has cost already."""
    tree.mlx5_roce(0)
    source = FakeRdma()
    exporter = NicExporter(NicConfig(), HostSources(tree.root, rdma=lambda: source))
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
    assert got.get_one("fabricpulse_nic_device_read_failures", rdma_device="mlx5_0") == 0
    assert got.get_one("fabricpulse_scrape_collector_success", collector="resources") == 1
