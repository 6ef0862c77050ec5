"""`audit run --nccl` on a lab: the shipped ring, through the agents, beside the tests of pairs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.audit.conftest import LabAudits

from fabricpulse.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_a_ring_runs_through_the_agents(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """Four hosts on two leaves, given in turns: every number of lanes in both orders has a rate and right data, and
    nothing of it is left on a host. A host with a job refuses, the ring is told as not measured, and nobody waits."""
    lab = make_lab(hosts=4, rails=1, pods=2, nic_mbit=200)
    audits = LabAudits(lab, tmp_path)
    leaf = {host.name: host.nics[0].leaf for host in lab.hosts}
    (tmp_path / "leaves.yaml").write_text("leaves:\n" + "".join(
        f'  {name}: "{",".join(h for h, own in leaf.items() if own == name)}"\n' for name in sorted(set(leaf.values()))
    ))  # fmt: skip
    by_leaf = sorted(leaf, key=leaf.__getitem__)
    turns = ",".join([by_leaf[0], by_leaf[2], by_leaf[1], by_leaf[3]])
    ring = (
        "--nccl",
        "--yes",
        "--ring-seconds",
        "0.5",
        "--leaves",
        str(tmp_path / "leaves.yaml"),
        "--hosts",
        turns,
    )
    found = audits(30, *ring)
    assert [(one.order, one.lanes) for one in found.rings] == [
        (order, lanes) for order in ("given", "by leaf") for lanes in (1, 2, 4, 8)
    ]
    assert {one.error for one in found.rings} == {""}
    assert all(one.bps is not None and 1e6 < one.bps < 4e8 for one in found.rings)
    assert sum(one.corrupt_bytes for one in found.rings) == 0
    assert sum(note.startswith("NCCL ring") for note in found.notes) == 8
    assert [*audits.temporary.iterdir()] == []

    job = lab.host("h1").popen(["sleep", "1000"], name="job")
    plugin = lab.host("h1").run_dir / "plugin"
    plugin.mkdir(exist_ok=True)
    mark = plugin / f"{job.pid}.telemetry"
    mark.touch()
    try:
        refused = audits(30, *ring)
    finally:
        mark.unlink()
        job.kill()
    assert {one.bps for one in refused.rings} == {None}
    assert all("h1" in one.error and "a job runs here" in one.error for one in refused.rings)
    assert [f for f in refused.findings if f.check.startswith("nccl")] == []
