"""Faults on real links, pinned to a component by the coordinator from what all exporters report. Three leaves, all of
them declared; three spines.
"""

import json
import time

import pytest
import yaml
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root

PORT = 9614


class DiagnosedFleet:
    """Nine hosts with one NIC each below three leaves, and a coordinator that knows which."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        leaves: dict[str, list[str]] = {}
        for plan in lab.fabric.host_plans:
            for nic in plan.nics:
                leaves.setdefault(nic.leaf, []).append(f"{plan.name}/{nic.device}")
        topology = lab.directory / "topology.yaml"
        topology.write_text(yaml.safe_dump({"leaves": leaves}))
        config = lab.directory / "coordinator.yaml"
        config.write_text(yaml.safe_dump({"topology": str(topology)}))
        self.coordinator = lab.popen(
            "mgmt",
            [
                *("fabricpulse", "clocksync", "coordinator", "--config", config),
                *("--web.listen-address", f":{PORT}"),
            ],
        )
        self.coordinator.wait_for_output("event=listening")
        self.mesh = MeshFleet(lab, evidence={"url": f"http://{lab.resolve('mgmt')}:{PORT}"})
        self.mesh.start()
        self.mesh.wait_green(30)
        hosts = len(lab.hosts)
        wait_for(lambda: self.document()["hosts"] == hosts, 30, "all hosts report")

    def document(self):
        """`/api/v1/suspects`."""
        return json.loads(self.lab.http_get("mgmt", f"http://127.0.0.1:{PORT}/api/v1/suspects"))

    def suspects(self):
        """What is named now: kind, component, peer."""
        return {(s["kind"], s["component"], s["peer"]) for s in self.document()["suspects"]}

    def metrics(self):
        """The coordinator's exposition."""
        return self.lab.http_get("mgmt", f"http://127.0.0.1:{PORT}/metrics")


@pytest.fixture(scope="module")
def fleet():
    """A fleet whose faults are mended after each test."""
    with Lab(hosts=9, rails=1, spines=3, pods=3) as lab:
        yield DiagnosedFleet(lab)


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


def test_gray_nic(fleet):
    """A NIC that loses a fifth of what it sends: that direction of that NIC, no leaf and no peer."""
    with fleet.lab.host("h4").nic("rail0").loss(20, "tx"):
        wait_for(fleet.suspects, 60, "a suspect")
        assert fleet.suspects() == {("nic_tx", "h4/rail0", "")}
        assert 'fabricpulse_fault_component{what="loss",kind="nic_tx",component="h4/rail0"' in fleet.metrics()


def test_dead_leaf_is_one_suspect(fleet):
    """Every cable of a leaf drops everything, silently: the leaf is named, and nothing else."""
    leaf = fleet.lab.host("h7").nic("rail0").leaf
    for host in fleet.lab.hosts:
        if host.nic("rail0").leaf == leaf:
            host.nic("rail0").loss(100, "both")
    for spine in fleet.lab.fabric.spine_names:
        fleet.lab.port(leaf, spine).black_hole()
    wait_for(fleet.suspects, 60, "a suspect")
    time.sleep(3)  # whoever else would be named had the same evidence
    found = fleet.document()["suspects"]
    assert {(s["kind"], s["component"]) for s in found} == {("switch", leaf)}, found


@pytest.mark.slow
def test_one_way_loss_on_one_uplink(fleet):
    """One of three uplinks of a leaf loses a third of what leaves it. Without the paths it is not certain which end is
    named, but no NIC and no host is.
    """
    leaf = fleet.lab.host("h1").nic("rail0").leaf
    with fleet.lab.port(leaf, "spine1").loss(30, "out"):
        wait_for(fleet.suspects, 60, "a suspect")
        found = fleet.document()["suspects"]
        assert {s["kind"] for s in found} <= {"link", "switch"}, found
