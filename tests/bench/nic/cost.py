"""What the NIC exporter costs: CPU and time a scrape beside node_exporter, and what 10,000 scrapes leave behind."""

import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.nic.daemons import (
    NIC_PORT,
    NODE_PORT,
    SCRAPE_HEADERS,
    Daemon,
    nic_command,
    node_command,
    parse,
    rows,
    running,
)
from tests.bench.rows import quantile
from tests.fixtures.hostinfo.sys_tree import SysTree

BLOCK = 30


def bench_cost(root: Path, binary: str | None, scrapes: int) -> None:
    """CPU and time of a scrape over HTTP with gzip, as Prometheus does it.

    Two runs of ours: the command as it is on this tree (sysfs only, more than node_exporter's two collectors read), and
    all collectors with stand-ins for ethtool, DCB, modules and RDMA netlink. Each GID table is read every 20th time,
    which is the default of 300 s at a scrape interval of 15 s.
    """
    SysTree(root).gpu_host(gid_slots=255)
    pace_s = 0.03
    config = root.parent / "nic.yaml"
    config.write_text(f"gid: {{refresh_s: {20 * pace_s}}}\ncollectors: {{module: true, queue_pairs: true}}\n")
    full = [sys.executable, "-m", "tests.fixtures.nic.daemon", str(root), str(NIC_PORT + 1), str(config)]
    with ExitStack() as stack:
        meters = [
            Meter(
                stack.enter_context(
                    running(command, port, FABRICPULSE_RUN_DIR=str(root.parent / f"run{port}"))
                )
            )
            for command, port in (
                (nic_command(root, "--config", str(config)), NIC_PORT),
                (full, NIC_PORT + 1),
                *([(node_command(binary, root), NODE_PORT)] if binary is not None else []),
            )
        ]
        # In turns, so that a neighbour's load meets all of them.
        for _ in range(scrapes // BLOCK):
            for meter in meters:
                meter.block(pace_s)
        plain, everything = meters[:2]
        rss = everything.daemon.rss_mb()
        samples = sum(1 for _ in parse(everything.daemon.scrape()))
    if binary is not None:
        theirs = meters[2].cpu_ms()
        for case, meter in (("10 NICs", plain), ("10 NICs, all collectors", everything)):
            peer: dict[str, Any] = {"peer": "node_exporter", "peer_value": round(theirs, 3)}
            rows.report(case, "scrape_cpu_ms", meter.cpu_ms(), "ms", **peer)
            rows.report(case, "scrape_cpu_ratio", meter.cpu_ms() / theirs, "ratio", "<= 1.5")
            peer["peer_value"] = round(quantile(meters[2].took_ms, 0.5), 3)
            rows.report(case, "scrape_ms_p50", quantile(meter.took_ms, 0.5), "ms", **peer)
    rows.report(
        "10 NICs, all collectors",
        "scrape_ms_p99",
        quantile(everything.took_ms, 0.99),
        "ms",
        "<= 50",
    )
    rows.report("10 NICs, all collectors", "rss_mb", rss, "MB", "<= 60", samples=samples)


class Meter:
    """CPU and time of one daemon's scrapes, block by block."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.took_ms: list[float] = []
        self._cpu_s = 0.0
        for _ in range(10):
            daemon.scrape(SCRAPE_HEADERS)

    def block(self, pace_s: float) -> None:
        before = self.daemon.cpu_s()
        for _ in range(BLOCK):
            began = time.perf_counter()
            self.daemon.scrape(SCRAPE_HEADERS)
            took = time.perf_counter() - began
            self.took_ms.append(took * 1e3)
            time.sleep(max(0.0, pace_s - took))
        self._cpu_s += self.daemon.cpu_s() - before

    def cpu_ms(self) -> float:
        """Per scrape."""
        return self._cpu_s / len(self.took_ms) * 1e3


def bench_soak(root: Path, scrapes: int) -> None:
    """As many scrapes as a day and a half has, on a tree whose devices come, go and change meanwhile: nothing grows."""
    tree = SysTree(root)
    tree.gpu_host(gid_slots=16)
    with running(nic_command(root), NIC_PORT, FABRICPULSE_RUN_DIR=str(root.parent / "run")) as nic:
        sizes, files = [], []
        for number in range(1, scrapes + 1):
            nic.scrape(SCRAPE_HEADERS)
            if number % 100 == 0:
                path = tree.port("mlx5_1") / "counters/port_rcv_data"
                path.unlink()
                tree.write(path, number)
                shutil.rmtree(tree.ib("mlx5_2").parents[1])
                nic.scrape(SCRAPE_HEADERS)
                for folder in ("class/infiniband/mlx5_2", "class/net/eth2np0", "bus/pci/devices/0000:30:00.0",
                               "bus/pci/devices/0000:31:00.0"):  # fmt: skip
                    (root / folder).unlink()
                shutil.rmtree(root / "devices/pci0000:30")
                tree.mlx5_roce(2, gid_slots=16)
            if number in (scrapes // 10, scrapes):
                sizes.append(nic.rss_mb())
                files.append(nic.descriptors())
    rows.report(
        f"{scrapes} scrapes",
        "rss_growth_mb",
        sizes[1] - sizes[0],
        "MB",
        "<= 2",
        rss_mb=round(sizes[1], 1),
    )
    rows.report(f"{scrapes} scrapes", "descriptors_growth", files[1] - files[0], "files", "<= 2")
