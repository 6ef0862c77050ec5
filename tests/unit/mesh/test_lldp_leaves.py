"""Leaves by LLDP, from what lldpd 1.0.16 wrote on a host with two NICs below a router, which was another lldpd."""

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from msgspec import structs
from tests.unit.diagnosis.test_random_faults import names, steady
from tests.unit.diagnosis.virtual_fleet import VirtualFleet

from fabricpulse.diagnosis.daemon.queue_pairs import QueuePairPaths
from fabricpulse.diagnosis.evidence.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.wire.messages import PROTOCOL, EdgeName, EvidenceReport, check_edges
from fabricpulse.diagnosis.wire.queue_pairs import QueuePairPath
from fabricpulse.mesh.lldp_leaves import LldpLeaves, leaves_of

CAPTURES = Path(__file__).parents[2] / "fixtures" / "mesh" / "lldp"
LEAF = "leaf1-rail0"


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("two_nics.json", {"eth0": LEAF, "eth1": LEAF}),
        ("two_nics.json0", {"eth0": LEAF, "eth1": LEAF}),
        ("one_nic.json", {"eth0": LEAF}),
    ],
)
def test_leaves_of_captures(file: str, found: dict[str, str]) -> None:
    """All forms of JSON that lldpctl has; only of devices that are asked for."""
    text = (CAPTURES / file).read_bytes()
    assert leaves_of(text, {"eth0", "eth1", "eth2"}) == found
    assert leaves_of(text, {"eth1"}) == {k: v for k, v in found.items() if k == "eth1"}


def neighbour(device: str, name: str, *, router: bool = True) -> dict[str, object]:
    """One more, as lldpctl writes it."""
    capability = [{"type": "Bridge", "enabled": False}, {"type": "Router", "enabled": router}]
    return {device: {"via": "LLDP", "chassis": {name: {"capability": capability}}}}


@pytest.mark.parametrize(
    ("neighbours", "found"),
    [
        ([], {}),
        ([neighbour("eth0", "leaf1"), neighbour("eth0", "leaf2")], {}),
        ([neighbour("eth0", "leaf1"), neighbour("eth0", "leaf1")], {"eth0": "leaf1"}),
        # A hypervisor, or a DPU of this very host.
        ([neighbour("eth0", "leaf1"), neighbour("eth0", "dpu7", router=False)], {"eth0": "leaf1"}),
        ([neighbour("eth0", "h1/eth0")], {}),
        ([neighbour("eth0", 'leaf"1')], {}),
        ([neighbour("eth0", "l" * 65)], {}),
        ([{"eth0": {"via": "LLDP", "chassis": {"id": {"type": "mac", "value": "32:11:a3:6d:8c:cb"}}}}], {}),
        ([{"eth0": {"via": "LLDP"}}], {}),
    ],
)
def test_a_leaf_that_is_not_known_has_no_name(neighbours: list[object], found: dict[str, str]) -> None:
    """Two of them, a neighbour that forwards nothing, one without a name or with one that no label may have."""
    assert leaves_of(json.dumps({"lldp": {"interface": neighbours}}).encode(), {"eth0"}) == found


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"lldp": 1}', b'{"lldp": {"interface": 7}}', b"\xff"])
def test_what_lldpctl_does_not_write_is_refused(text: bytes) -> None:
    """Half a file, for one."""
    with pytest.raises(ValueError, match=r"."):
        leaves_of(text, {"eth0"})


def test_an_old_file_is_no_news(tmp_path) -> None:
    """A reader keeps what it has while the file is written anew, and for five minutes; then nothing is known."""
    path = tmp_path / "lldp.json"
    path.write_bytes((CAPTURES / "two_nics.json").read_bytes())
    reader = LldpLeaves(str(path), lambda: {"eth0"})
    asyncio.run(reader.read(1000.0))
    assert reader.leaves == (("eth0", LEAF),)
    path.write_bytes(b"{")
    asyncio.run(reader.read(1010.0))
    assert reader.leaves == (("eth0", LEAF),)
    asyncio.run(reader.read(1301.0))
    assert len(reader.leaves) == 0
    path.write_bytes((CAPTURES / "two_nics.json").read_bytes())
    os.utime(path, (time.time() - 400, time.time() - 400))
    asyncio.run(reader.read(1302.0))
    assert len(reader.leaves) == 0


@pytest.mark.parametrize("name", [5, None, True])
def test_a_name_that_is_no_text_is_no_leaf(name: object) -> None:
    """A number in json0, where names are values; the task that follows the file goes on."""
    chassis = [{"name": [{"value": name}], "capability": [{"type": "Router", "enabled": True}]}]
    interface = [{"name": "eth0", "chassis": chassis}]
    assert len(leaves_of(json.dumps({"lldp": [{"interface": interface}]}).encode(), {"eth0"})) == 0


def test_leaves_count_for_five_minutes_after_they_were_written(tmp_path) -> None:
    """Not after they were read, which may be nearly as long after that."""
    path = tmp_path / "lldp.json"
    path.write_bytes((CAPTURES / "two_nics.json").read_bytes())
    reader = LldpLeaves(str(path), lambda: {"eth0"})
    for age_s, known in ((280, 1), (310, 0)):
        os.utime(path, (time.time() - age_s, time.time() - age_s))
        asyncio.run(reader.read(1000.0 + age_s))
        assert len(reader.leaves) == known


def test_leaves_of_before_a_clock_was_set_back_count_no_longer_than_others(tmp_path) -> None:
    """Nobody knows how old a file is that seems to be of the future."""
    path = tmp_path / "lldp.json"
    path.write_bytes((CAPTURES / "two_nics.json").read_bytes())
    reader = LldpLeaves(str(path), lambda: {"eth0"})
    asyncio.run(reader.read(1000.0))
    os.utime(path, (time.time() + 3600, time.time() + 3600))
    for now_s, known in ((1290.0, 1), (1310.0, 0)):
        asyncio.run(reader.read(now_s))
        assert len(reader.leaves) == known


def report(leaves: tuple[tuple[str, str], ...]) -> EvidenceReport:
    """A host that reports these."""
    edges = (EdgeName("eth0", "h1", "eth0"),)
    return EvidenceReport(PROTOCOL, "h0", 1, 8, 135.0, 2.0, b"", edges=edges, leaves=leaves)


@pytest.mark.parametrize(
    "leaves", [300 * (("eth0", "leaf1"),), (("e" * 300, "leaf1"),), (("eth0", "h1/eth0"),)]
)
def test_leaves_that_no_exporter_reports_are_refused(leaves: tuple[tuple[str, str], ...]) -> None:
    """Too many, too long, the name of a NIC."""
    with pytest.raises(ValueError, match=r"."):
        check_edges(report(leaves))


def test_a_leaf_has_the_name_that_it_announces() -> None:
    """Without a topology file it goes by what it answers with; with LLDP by its name, and what is declared stands."""
    fleet = VirtualFleet(5, 9, 1, 3, 3)
    declared = {nic: leaf for nic, leaf in fleet.leaf.items() if leaf == "leaf2-r0"}
    fleet.evidence = FleetEvidence(declared)
    for host, exporter in fleet.exporters.items():
        leaf = fleet.leaf[f"{host}/r0"]
        first = EvidenceReport(*(PROTOCOL, host, exporter.revision, 4, 135.0, 5.0, b""), edges=exporter.edges)
        fleet.evidence.report(structs.replace(first, leaves=(("r0", f"{leaf}.lldp"),)), 0.0)
        exporter.reported = True
    named = fleet.evidence._leaf_of()
    assert (named["h0/r0"], named["h2/r0"]) == ("leaf0-r0.lldp", "leaf2-r0")
    fleet.faults = [steady("loss", 1.0, ("switch", "leaf0-r0"), begins_s=6)]
    assert names(fleet.play(15)) == {("switch", "leaf0-r0.lldp", "")}


def test_paths_of_queue_pairs_cross_a_leaf_by_its_name() -> None:
    """Also those that were reported before it had one; without it they cross the address again."""
    paths = QueuePairPaths({"h1/eth0": "leaf9"}, {})
    pair = QueuePairPath("eth0", "h1", "eth0", 0xC001, (1,), ("train",), ("10.0.0.1", "10.1.0.1", "10.0.9.1"))
    assert paths.take("h0", (pair,)) == ()
    paths.place("h0", (("eth0", "leaf1"),))
    paths.place("h1", (("eth0", "leaf7"),))
    crossed = {
        name: paths.crossing("switch", name, "", {}).paths for name in ("leaf1", "10.0.0.1", "leaf9", "leaf7")
    }
    assert crossed == {"leaf1": 1, "10.0.0.1": 0, "leaf9": 1, "leaf7": 0}
    paths.keep(["h1"])
    assert not len(paths)
    assert paths.take("h0", (pair,)) == ()
    assert paths.crossing("switch", "10.0.0.1", "", {}).paths == 1
