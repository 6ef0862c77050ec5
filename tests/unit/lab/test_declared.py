"""What a lab declares of itself, before it is built: its membership and its topology."""

from pathlib import Path

import yaml

from fabricpulse.core.config import load_config
from fabricpulse.core.fleet.membership import load_membership
from fabricpulse.diagnosis.flows.topology import Topology
from fabricpulse.lab import Lab


def test_topology_and_membership_say_the_same_of_each_nic(tmp_path: Path) -> None:
    """Both are what the daemons take, and each NIC is below the leaf that it is cabled to."""
    lab = Lab(hosts=4, rails=2, spines=3, pods=2)
    (tmp_path / "topology.yaml").write_text(yaml.safe_dump(lab.topology()))
    topology = load_config(tmp_path / "topology.yaml", Topology)
    cabled = {f"{nic.host}/{nic.device}": nic.leaf for plan in lab.fabric.host_plans for nic in plan.nics}

    assert topology.leaf_of() == cabled
    assert set(topology.switch_of().values()) == {*lab.fabric.leaf_names, *lab.fabric.spine_names}
    declared = load_membership(lab.write_membership(tmp_path / "with.yaml", leaves=True))
    assert {f"{host.name}/{nic.device}": nic.leaf for host in declared.hosts for nic in host.nics} == cabled
    plain = load_membership(lab.write_membership(tmp_path / "without.yaml"))
    assert {nic.leaf for host in plain.hosts for nic in host.nics} == {""}
