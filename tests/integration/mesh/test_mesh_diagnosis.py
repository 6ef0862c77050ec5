"""Faults on real links, pinned to a component by the coordinator from what all exporters report. Three leaves, all of
them declared; three spines, whose addresses are; the path of every flow is traced.
"""

import time

import pytest
from tests.fixtures.plugin.verbs_file import VerbsFile, gid
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.diagnosed_fleet import DiagnosedFleet

from fabricpulse.lab import Lab
from fabricpulse.plugin_ipc.verbs import VerbsTable

pytestmark = pytest.mark.root


QUEUE_PAIRS = 12


@pytest.fixture(scope="module")
def fleet():
    """A fleet whose faults are repaired after each test. A program on h1 says that it has queue pairs to h5."""
    with Lab(hosts=9, rails=1, spines=3, pods=3) as lab:
        job = queue_pairs(lab, "h1", "h5")
        yield DiagnosedFleet(lab)
        job.end()


def queue_pairs(lab, source, target):
    """What the interposer tells of a program."""
    near, far = (str(lab.host(name).nic("rail0").address).partition("/")[0] for name in (source, target))
    folder = lab.host(source).run_dir / "plugin"
    folder.mkdir(parents=True)
    file = VerbsFile(folder)
    for number in range(QUEUE_PAIRS):
        file.queue_pair(number, far)
        pair = {"qp_state": 3, "source_port": 0xC100 + number, "last_post_raw_ns": 1, "local_gid": gid(near)}
        file.put(VerbsTable.QUEUE_PAIRS, number, **pair)
    return file


@pytest.fixture(autouse=True)
def quiet_again(fleet):
    """Each test begins with no fault and no suspect."""
    yield
    fleet.lab.heal()
    wait_for(lambda: not fleet.suspects(), 60, "no suspect is left")


def test_healthy_fleet_has_no_suspect(fleet):
    """Some seconds of a fleet that is well name nothing."""
    fleet.mesh.wait_probing(6)
    assert fleet.suspects() == set()
    assert "fabricpulse_fault_component{" not in fleet.metrics()


@pytest.mark.slow
def test_gray_nic(fleet):
    """A NIC that loses a fifth of what it sends: that direction of that NIC, no leaf and no peer."""
    with fleet.lab.host("h4").nic("rail0").loss(20, "tx"):
        wait_for(fleet.suspects, 60, "a suspect")
        assert fleet.suspects() == {("nic_tx", "h4/rail0", "")}
        assert 'fabricpulse_fault_component{what="loss",kind="nic_tx",faulty="h4/rail0"' in fleet.metrics()


def test_dead_leaf_is_one_suspect(fleet):
    """Every cable of a leaf drops everything, silently: the leaf is named, and nothing else. The cables die one after
    the other, so that for a moment fewer of them may be the best answer; that leaves as the leaf is named.
    """
    leaf = fleet.lab.host("h7").nic("rail0").leaf
    for host in fleet.lab.hosts:
        if host.nic("rail0").leaf == leaf:
            host.nic("rail0").loss(100, "both")
    for spine in fleet.lab.fabric.spine_names:
        fleet.lab.port(leaf, spine).black_hole()
    wait_for(lambda: fleet.suspects() == {("switch", leaf, "")}, 60, "the leaf alone is named")
    time.sleep(3)  # whoever else would be named had the same evidence
    found = fleet.document()["suspects"]
    assert {(s["kind"], s["component"]) for s in found} == {("switch", leaf)}, found


@pytest.mark.parametrize(
    ("leaf_of", "spine", "way", "percent"),
    [("h1", 1, "out", 30), pytest.param("h5", 2, "in", 5, marks=pytest.mark.slow)],
)
def test_one_way_loss_on_one_uplink(fleet, leaf_of, spine, way, percent):
    """One of three uplinks of a leaf loses a part of what it carries one way: that link, in that direction."""
    leaf, far = fleet.lab.host(leaf_of).nic("rail0").leaf, fleet.lab.fabric.spine_names[spine]
    with fleet.lab.port(leaf, far).loss(percent, way):
        wanted = ("link", leaf, far) if way == "out" else ("link", far, leaf)
        wait_for(lambda: fleet.suspects() == {wanted}, 60, "the link alone is named")
        if leaf_of == "h1" and way == "out":
            check_crossing(fleet, far)


def check_crossing(fleet, spine):
    """The link out of the leaf of h1 to this spine is named with the queue pairs of h1 that cross it, and no others."""
    paths = fleet.mesh.get("h1", "/api/v1/edges")["queue_pairs"]
    assert [len(path["hops"]) for path in paths] == [3] * QUEUE_PAIRS
    addresses = fleet.lab.topology()["switches"][spine]
    across = sorted(path["source_port"] for path in paths if path["hops"][1] in addresses)
    assert 0 < len(across) < QUEUE_PAIRS
    (suspect,) = fleet.document()["suspects"]
    crossing = suspect["queue_pairs"]
    assert (crossing["paths"], crossing["jobs"]) == (len(across), ["train-7"])
    assert sorted(path["source_port"] for path in crossing["named"]) == across


@pytest.mark.slow
def test_dead_spine_is_one_suspect(fleet):
    """A spine swallows all that crosses it: the spine, while every edge is up by the others."""
    with fleet.lab.spine(1).black_hole():
        wait_for(lambda: fleet.suspects() == {("switch", "spine1", "")}, 60, "the spine alone is named")


@pytest.mark.slow
def test_a_leaf_that_lost_an_uplink_is_named(fleet):
    """It routes around, so that nothing of what it sends is lost: it has fewer next hops than its siblings, since when
    is known, and it is whole again with the cable.
    """
    leaf, spine = fleet.lab.host("h4").nic("rail0").leaf, fleet.lab.fabric.spine_names[1]
    wait_for(lambda: fleet.document()["leaf_paths"]["whole"] == 3, 30, "all leaves are whole")
    with fleet.lab.port(leaf, spine).down():
        wait_for(lambda: fleet.document()["leaf_paths"]["leaves"], 120, "the leaf is named")
        (named,) = fleet.document()["leaf_paths"]["leaves"]
        assert (named["leaf"], named["network"], named["live"]) == (leaf, "rail0", 2)
        assert named["missing"] == [spine] and named["since"] > named["watched_since"]
        assert f'fabricpulse_leaf_paths_missing{{leaf="{leaf}",network="rail0"}} 1' in fleet.metrics()
    wait_for(lambda: fleet.document()["leaf_paths"]["whole"] == 3, 120, "the leaf is whole again")
