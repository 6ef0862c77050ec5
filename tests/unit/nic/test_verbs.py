"""Verbs: device queries and asynchronous events, of a stand-in for libibverbs."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.waiting import until
from tests.unit.nic.conftest import Samples

from fabricpulse.hostinfo.sources import HostSources
from fabricpulse.nic.collectors.verbs import VerbsCollector
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.exporter import NicExporter
from fabricpulse.nic.gid_changes import GidChanges


@pytest.fixture(scope="module")
def verbs_library(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("verbs") / "libibverbs-fake.so"
    source = Path(__file__).parents[2] / "fixtures/hostinfo/fake_ibverbs.c"
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
    exporter = NicExporter(NicConfig(), HostSources(tree.root, link_events=False), run_dir=tmp_path)
    await exporter.start()
    touched: list[str] = []

    class Changes(GidChanges):
        def touch(self, rdma_device: str, now: float) -> None:
            touched.append(rdma_device)

    collector = VerbsCollector(exporter.flaps, Changes(), verbs_library)
    collector.start(exporter.inventory)
    exporter.collectors.append(collector)

    async def events(*pairs: tuple[int, int]) -> None:
        wanted = exporter.flaps.events["verbs"] + len(pairs)
        for pair in pairs:
            os.write(write_end, struct.pack("=ii", *pair))
        await until(lambda: exporter.flaps.events["verbs"] == wanted)

    try:
        got = Samples.parse(await exporter.scrape())
        assert got.get_one("fabricpulse_nic_verbs_device_open", rdma_device="mlx5_9") == 1
        assert got.get_one("fabricpulse_nic_verbs_device_open", rdma_device="mlx5_0") == 0
        assert got.get_one("fabricpulse_nic_verbs_queue_pairs_max", rdma_device="mlx5_9") == 131072
        port = {"rdma_device": "mlx5_9", "port": "1"}
        assert got.get_one("fabricpulse_nic_verbs_active_mtu_bytes", **port) == 2048
        assert got.get_one("fabricpulse_nic_verbs_partition_key_violations_total", **port) == 10
        assert got.get_one("fabricpulse_nic_verbs_queue_key_violations_total", **port) == 20
        assert got.get_one("fabricpulse_nic_verbs_active_mtu_bytes", rdma_device="mlx5_0") is None
        assert got.get_one("fabricpulse_nic_verbs_async_events_total", **port, event="port_err") == 0
        assert got.labels("fabricpulse_nic_verbs_async_events_total", rdma_device="mlx5_0") == []
        await events((10, 1), (9, 1), (10, 2), (18, 1), (8, 0), (77, 0))
        got = Samples.parse(await exporter.scrape())
        counted = "fabricpulse_nic_verbs_async_events_total"
        assert got.get_one(counted, rdma_device="mlx5_9", port="1", event="port_err") == 1
        assert got.get_one(counted, rdma_device="mlx5_9", port="2", event="port_err") == 1
        assert got.get_one(counted, rdma_device="mlx5_9", port="", event="device_fatal") == 1
        assert got.get_one(counted, rdma_device="mlx5_9", port="", event="other") == 1
        downs = "fabricpulse_nic_port_down_transitions_total"
        assert got.get_one(downs, device="mlx5_9", rdma_device="mlx5_9", port="1") == 1
        assert (
            got.get_one(
                "fabricpulse_nic_port_up_transitions_total", device="mlx5_9", rdma_device="mlx5_9", port="1"
            )
            == 1
        )
        assert got.get_one(downs, rdma_device="mlx5_9", port="2") is None
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
    exporter = NicExporter(NicConfig(), HostSources(tree.root, link_events=False))
    collector = VerbsCollector(exporter.flaps, lambda device: None, "/nonexistent/libibverbs.so.1")
    assert collector.targets(None) == []
    exporter.close()
