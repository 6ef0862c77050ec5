"""`audit run --nccl` on a lab: the shipped ring, through the agents, beside the tests of pairs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.audit.conftest import LabAudits
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.audit.pair_tests.in_band import MESH
from fabricpulse.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_a_ring_runs_through_the_agents(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """Four hosts on two leaves, given in turns: every number of lanes in both orders has a rate and right data, and
    nothing of it is left on a host. A host with a job refuses, the ring is reported as not measured, and nobody
    waits."""
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
    assert sum(note.startswith("NCCL ring, ") for note in found.notes) == 8
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
    # What was not measured has not passed: a finding of each order, in which nobody else is suspected.
    named = [(f.check, f.subject, f.suspects) for f in refused.findings if f.check.startswith("nccl")]
    assert sorted(named) == [("nccl-ring", order, ("h1",)) for order in ("by leaf", "given")]


def test_a_transport_that_goes_another_way_is_late(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """On a good lab the ring is as fast as the probes of the mesh exporters, on all ways; TCP from one NIC that takes
    a longer way is named, and nobody else, while probes, which are not TCP, see nothing."""
    lab = make_lab(hosts=2, rails=1, pods=2)
    mesh = MeshFleet(lab, {"trace_s": 0}, latency={"window_s": 1})
    mesh.true_clock()
    mesh.start()
    audits = LabAudits(lab, tmp_path)
    # What links carry: a step of the ring needs a millisecond there.
    ring = ("--nccl", "--transfers", "--yes", "--ring-seconds", "1")

    def probed() -> bool:
        mesh.true_clock()
        edges = mesh.get("h1", "/api/v1/edges")["edges"]
        return any(edge["owd_ns"] is not None for edge in edges)

    wait_for(probed, 60, "probes of the edges")
    good = audits(30, *ring)
    ways = {(d.source_host, d.target_host) for one in good.rings for d in one.delays}
    assert ways == {("h0", "h1"), ("h1", "h0")}
    assert {d.of for one in good.rings for d in one.delays} == {MESH}
    # The processors of the machine carry a pair faster than a ring: that is another check's.
    assert [f for f in good.findings if f.check == "nccl-delay"] == []
    assert any("delay of 2 ways compared" in note for note in good.notes)
    with lab.detour("h0-rail0", "h1-rail0", 20):
        found = audits(30, *ring)
    late = [f for f in found.findings if f.check == "nccl-delay"]
    assert [(f.host, f.subject, f.evidence["target"]) for f in late] == [("h0", "rail0", "h1 rail0")]
