"""Trees of real machines that node_exporter keeps for its own test: our numbers are the ones that it expects.

Its data is not in this repository. NODE_EXPORTER_SOURCE names a checkout of prometheus/node_exporter, a bare one too.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.bench.nic.parity import SAME_AS
from tests.fixtures.hostinfo.ttar import unpack

from fabricpulse.hostinfo.sources import host_sources
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.exporter import NicExporter

SOURCE = os.environ.get("NODE_EXPORTER_SOURCE", "")
pytestmark = pytest.mark.skipif(
    not SOURCE, reason="needs NODE_EXPORTER_SOURCE, a checkout of prometheus/node_exporter"
)

# Those of counters_ext/ have precedence over the same of counters/.
LEGACY = {
    "node_infiniband_legacy_data_received_bytes_total": "received_bytes_total",
    "node_infiniband_legacy_data_transmitted_bytes_total": "transmitted_bytes_total",
    "node_infiniband_legacy_multicast_packets_received_total": "multicast_packets_received_total",
    "node_infiniband_legacy_multicast_packets_transmitted_total": "multicast_packets_transmitted_total",
    "node_infiniband_legacy_packets_received_total": "received_packets_total",
    "node_infiniband_legacy_packets_transmitted_total": "transmitted_packets_total",
    "node_infiniband_legacy_unicast_packets_received_total": "unicast_packets_received_total",
    "node_infiniband_legacy_unicast_packets_transmitted_total": "unicast_packets_transmitted_total",
}


def of_checkout(path: str) -> str:
    shown = subprocess.run(
        ["git", "-C", SOURCE, "show", f"HEAD:{path}"], capture_output=True, text=True, check=True
    )
    return shown.stdout


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def test_the_numbers_are_those_that_node_exporter_expects(tmp_path: Path) -> None:
    """Every InfiniBand counter and state, and every link attribute that we have a name for."""
    unpack(of_checkout("collector/fixtures/sys.ttar"), tmp_path)
    exporter = NicExporter(NicConfig(), host_sources(tmp_path / "sys"))
    body = exporter.collect_once().decode()
    exporter.close()
    ours = {
        (name, labels.get("rdma_device") or labels.get("device"), labels.get("port", "")): value
        for name, labels, value in samples(body)
    }
    compared = 0
    differ = []
    theirs = list(samples(of_checkout("collector/fixtures/e2e-output.txt")))
    extended = {
        (LEGACY[name], labels["device"], labels["port"]) for name, labels, _ in theirs if name in LEGACY
    }
    for name, labels, value in theirs:
        mine = (SAME_AS | LEGACY).get(name)
        place = (mine, labels.get("device", ""), labels.get("port", ""))
        if mine is None or (name not in LEGACY and place in extended):
            continue
        found = ours.get((f"fabricpulse_nic_{mine}", *place[1:]))
        # A link without a speed: node_exporter prints a negative one, we print nothing.
        wanted = None if name == "node_network_speed_bytes" and value < 0 else value
        compared += 1
        if found != wanted:
            differ.append((name, labels, wanted, found))
    assert differ == []
    assert compared >= 48
