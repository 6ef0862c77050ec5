"""Audits of trees that procfs and node_exporter keep for their own tests, taken from real machines: no crash, no check
that breaks, and values that are those in the files.

Trees of hwloc's tests, too: some forty machines from one processor to 256, of seven architectures, with holes. Their
data is not in this repository. PROCFS_SOURCE, NODE_EXPORTER_SOURCE and HWLOC_SOURCE name checkouts, bare ones too.
"""

import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.fixtures.hostinfo.ttar import unpack

from fabricpulse.audit.compare.findings import fleet_findings
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import HostReport, Status
from fabricpulse.hostinfo.sources import host_sources

PROCFS = os.environ.get("PROCFS_SOURCE", "")
NODE_EXPORTER = os.environ.get("NODE_EXPORTER_SOURCE", "")
HWLOC = os.environ.get("HWLOC_SOURCE", "")
HWLOC_TREES = "tests/hwloc/linux"


def of_checkout(source: str, path: str) -> str:
    shown = subprocess.run(
        ["git", "-C", source, "show", f"HEAD:{path}"], capture_output=True, text=True, check=True
    )
    return shown.stdout


def audited(root: Path) -> tuple[HostReport, dict[str, str]]:
    reader = HostReader(host_sources(root / "sys"), root, disk=lambda _: None)
    report = audit_host("captured", reader, check_patience_s=60, patience_s=300)
    assert [
        r for r in report.results if "broke" in r.outcome.summary or "did not end" in r.outcome.summary
    ] == []
    fleet_findings([report], {})
    return report, {f"{v.attribute} {v.subject}".strip(): v.value for v in report.values}


def statuses(report: HostReport, check: str) -> dict[str, Status]:
    return {r.outcome.subject: r.outcome.status for r in report.results if r.check == check}


@pytest.mark.skipif(not PROCFS, reason="needs PROCFS_SOURCE, a checkout of prometheus/procfs")
def test_procfs(tmp_path: Path) -> None:
    """A machine with Omni-Path and a ConnectX-4 on InfiniBand; memory, mounts and links of another."""
    unpack(of_checkout(PROCFS, "testdata/fixtures.ttar"), tmp_path)
    root = tmp_path / "fixtures"
    report, values = audited(root)

    assert (
        values["firmware mlx5_0"]
        == (root / "sys/class/infiniband/mlx5_0/board_id").read_text().strip()
        + " "
        + (root / "sys/class/infiniband/mlx5_0/fw_ver").read_text().strip()
    )
    kib = int((root / "proc/meminfo").read_text().split()[1])
    assert values["memory_gib"] == str(round(kib / (1 << 20) / 4) * 4)
    for port in ("mlx5_0", "hfi1_0"):
        state = (root / f"sys/class/infiniband/{port}/ports/1/state").read_text()
        wanted = Status.PASSED if "ACTIVE" in state else Status.FAILED
        assert statuses(report, "rdma-port-active")[port] is wanted


@pytest.mark.skipif(
    not NODE_EXPORTER, reason="needs NODE_EXPORTER_SOURCE, a checkout of prometheus/node_exporter"
)
def test_node_exporter(tmp_path: Path) -> None:
    """Two InfiniBand cards, bonds with a member down, links of all kinds."""
    unpack(of_checkout(NODE_EXPORTER, "collector/fixtures/sys.ttar"), tmp_path)
    report, values = audited(tmp_path)

    assert values["rdma_devices"]
    bonds = statuses(report, "bond-members")
    for bond, status in bonds.items():
        slaves = (tmp_path / f"sys/class/net/{bond}/bonding/slaves").read_text().split()
        # The links of the members are not in the archive; the bond's own folders of them are.
        states = {
            (tmp_path / f"sys/class/net/{bond}/slave_{name}" / place).read_text().strip()
            for name in slaves
            for place in ("bonding_slave/mii_status", "operstate")
            if (tmp_path / f"sys/class/net/{bond}/slave_{name}" / place).exists()
        }
        if slaves and not states:
            assert status is Status.UNKNOWN
        else:
            assert (status is Status.PASSED) == (states <= {"up"} and len(slaves) > 1)


def hwloc_trees() -> list[str]:
    """Names of the archives."""
    if not HWLOC:
        return []
    listed = subprocess.run(
        ["git", "-C", HWLOC, "ls-tree", "--name-only", "HEAD", f"{HWLOC_TREES}/"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split() if name.endswith(".tar.bz2")]


@pytest.mark.skipif(not HWLOC, reason="needs HWLOC_SOURCE, a checkout of open-mpi/hwloc")
@pytest.mark.parametrize("name", hwloc_trees())
def test_hwloc(name: str, tmp_path: Path) -> None:
    """Processors, NUMA nodes and memory are those of the files; what a tree lacks is not reported."""
    shown = subprocess.run(["git", "-C", HWLOC, "show", f"HEAD:{name}"], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(shown.stdout)) as archive:
        archive.extractall(tmp_path, filter="tar")
    root = next((place for place, folders, _ in os.walk(tmp_path) if {"sys", "proc"} & set(folders)), None)
    assert root is not None
    _, values = audited(Path(root))
    for attribute, path in (("cpus", "cpu/online"), ("numa_nodes", "node/online")):
        file = Path(root) / "sys/devices/system" / path
        assert values.get(attribute) == (file.read_text().strip("\n\0") or None if file.exists() else None)
    meminfo = Path(root) / "proc/meminfo"
    total = re.search(r"^MemTotal: +([0-9]+) kB$", meminfo.read_text(), re.M) if meminfo.exists() else None
    assert values.get("memory_gib") == (str(round(int(total[1]) / (1 << 20) / 4) * 4) if total else None)
