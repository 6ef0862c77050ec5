"""Fixtures: trees, and an exposition as a dictionary."""

import re

import pytest
from tests.fixtures.hostinfo.sys_tree import SysTree

from fabricpulse.hostinfo.sources import HostSources, host_sources
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.exporter import NicExporter

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Samples(dict[tuple[str, tuple[tuple[str, str], ...]], float]):
    """(name, ((label, value), ...)) -> value of one exposition."""

    @classmethod
    def parse(cls, body: bytes) -> "Samples":
        samples = cls()
        for line in body.decode().splitlines():
            if not line.startswith("#"):
                match = _SAMPLE.match(line)
                assert match, line
                key = (match[1], tuple(_LABEL.findall(match[2] or "")))
                assert key not in samples, f"sample twice: {line}"
                samples[key] = float(match[3])
        return samples

    def get_one(self, metric: str, /, **labels: str) -> float | None:
        found = [v for (n, ls), v in self.items() if n == metric and labels.items() <= dict(ls).items()]
        assert len(found) <= 1, f"{metric} {labels}: {len(found)} samples"
        return found[0] if found else None

    def labels(self, metric: str, /, **labels: str) -> list[dict[str, str]]:
        return [dict(ls) for (n, ls) in self if n == metric and labels.items() <= dict(ls).items()]

    def of_device(self, device: str) -> dict[object, float]:
        """The samples of an RDMA device and its netdevs, or of a netdev."""
        of_rdma = [labels for _, labels in self if ("rdma_device", device) in labels]
        wanted = {("device", device), ("rdma_device", device)} | {labels[0] for labels in of_rdma}
        return {key: value for key, value in self.items() if not wanted.isdisjoint(key[1])}


@pytest.fixture
def tree(tmp_path):
    """An empty tree."""
    return SysTree(tmp_path / "sys")


@pytest.fixture
def scrape(tree):
    """Scrapes the tree, with one exporter per configuration for the whole test."""
    exporters: dict[str, NicExporter] = {}
    made: list[NicExporter] = []

    def once(config: NicConfig | None = None, *, fresh: bool = False) -> Samples:
        key = repr(config)
        if fresh or key not in exporters:
            exporters[key] = NicExporter(config or NicConfig(), host_sources(tree.root))
            made.append(exporters[key])
        return Samples.parse(exporters[key].collect_once())

    yield once
    for exporter in made:
        exporter.close()


@pytest.fixture
def collect(tree):
    """Collects once from the tree; `sources` (ethtool, dcb, rdma) take the place of the kernel's interfaces."""
    made = []

    def once(config=None, **sources):
        made_of = {name: (lambda source=source: source) for name, source in sources.items()}
        exporter = NicExporter(config or NicConfig(), HostSources(tree.root, **made_of))
        made.append(exporter)
        return Samples.parse(exporter.collect_once())

    yield once
    for exporter in made:
        exporter.close()
