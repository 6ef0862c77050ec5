"""A day of scrapes and more: nothing grows."""

import gc
import os
from pathlib import Path

import pytest
from tests.fixtures.hostinfo.sys_tree import SysTree

from fabricpulse.hostinfo.sources import HostSources
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.exporter import NicExporter


@pytest.mark.timeout(600)  # seconds on an idle machine, minutes on one that is not
@pytest.mark.parametrize("scrapes", [2_500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_soak(tmp_path, scrapes):
    """Thousands of scrapes while files change and a device comes and goes: memory and descriptors do not grow."""
    tree = SysTree(tmp_path / "sys")
    tree.mlx5_roce(0, gid_slots=4)
    tree.efa(1)
    exporter = NicExporter(NicConfig(), HostSources(tree.root, link_events=False))
    pages = os.sysconf("SC_PAGE_SIZE") / 2**20
    link, target = tree.root / "class/infiniband/rdmap1s0", tree.ib("rdmap1s0")

    def look() -> tuple[float, int]:
        gc.collect()  # what tests before this one have left to it would go amid this one
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * pages
        return rss, len(list(Path("/proc/self/fd").iterdir()))

    warm = (0.0, 0)
    for number in range(scrapes):
        if number % 100 == 50:
            link.unlink()
        elif number % 100 == 60:
            tree.link(link, target)
            path = tree.port("mlx5_0") / "counters/symbol_error"
            path.unlink()
            tree.write(path, number)
        body = exporter.collect()
        if number == 999:
            warm = look()
    end = look()
    exporter.close()
    errors = f'symbol_errors_total{{device="eth0np0",rdma_device="mlx5_0",port="1"}} {scrapes - 40}'
    assert errors.encode() in body
    assert end[0] - warm[0] < 2
    assert end[1] == warm[1]
