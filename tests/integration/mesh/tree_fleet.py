"""A lab whose leaves are to be learned from delays: for tests and bench."""

import json
from pathlib import Path
from typing import Any

import yaml
from tests.integration.mesh.mesh_fleet import MeshFleet, Scrape

from fabricpulse.lab import Lab

PORT = 9614


class TreeFleet:
    """Nine hosts below three leaves, their host clocks seconds apart, and a coordinator that keeps delays for 20 s.

    swapped : two NICs (host/device), each of which the coordinator's topology file declares where the other one is.
    """

    def __init__(self, lab: Lab, swapped: tuple[str, str] | None = None, **probe: Any) -> None:
        for number, host in enumerate(lab.hosts):
            host.clock.set(offset_ns=number * 7_000_000_000, drift_ppm=5.0 * number)
        config = lab.directory / "coordinator.yaml"
        settings: dict[str, Any] = {"delays_keep_s": 20, "hosts_share_machines": False}
        if swapped is not None:
            settings["topology"] = str(lab.directory / "topology.yaml")
            Path(settings["topology"]).write_text(yaml.safe_dump({"leaves": _declared(lab, swapped)}))
        config.write_text(yaml.safe_dump(settings))
        command = ["fabricpulse", "clocksync", "coordinator", "--config", str(config)]
        self.coordinator = lab.popen("mgmt", [*command, "--web.listen-address", f":{PORT}"])
        self.coordinator.wait_for_output("event=listening")
        url = f"http://{lab.resolve('mgmt')}:{PORT}"
        self.mesh = MeshFleet(
            lab, {"trace_s": 0, **probe}, evidence={"url": url, "delays_s": 1}, latency={"window_s": 1}
        )
        self.mesh.start()
        self.lab = lab
        self.true = {
            frozenset(
                f"{host.name}/{nic.device}" for host in lab.hosts for nic in host.nics if nic.leaf == leaf
            )
            for leaf in lab.fabric.leaf_names
        }

    def document(self) -> dict[str, Any]:
        """`/api/v1/topology`."""
        self.mesh.true_clock()  # as a sidecar would, each round
        found: dict[str, Any] = json.loads(
            self.lab.http_get("mgmt", f"http://127.0.0.1:{PORT}/api/v1/topology")
        )
        for group in found["groups"]:
            # All of a leaf, or those of its NICs whose place is certain: never a NIC of another one.
            assert len(group["nics"]) > 1 and any(leaf.issuperset(group["nics"]) for leaf in self.true), found
        return found

    def miscabled(self) -> set[tuple[str, ...]]:
        """host/device, reason, at, expected of each NIC of the metric that FabricNicMiscabled is made of."""
        scrape = Scrape(self.lab.http_get("mgmt", f"http://127.0.0.1:{PORT}/metrics"))
        named = scrape.labels("fabricpulse_topology_nic_miscabled")
        return {
            (f"{one['peer']}/{one['peer_device']}", one["reason"], one["at"], one["expected"])
            for one in named
        }

    def placed(self, nics: int) -> dict[str, Any]:
        """The document once so many have a place, else {}."""
        reported = self.document()
        return reported if reported["placed"] == nics else {}

    def temporary(self) -> float:
        """Temporary peers that all hosts probe now."""
        self.mesh.true_clock()
        values = [
            self.mesh.scrape(host.name).value("fabricpulse_mesh_temporary_peers") for host in self.lab.hosts
        ]
        return sum(value or 0.0 for value in values)


def _declared(lab: Lab, swapped: tuple[str, str]) -> dict[str, list[str]]:
    """By leaf the NICs of a topology file that has two of them the wrong way round."""
    other = dict(zip(swapped, swapped[::-1], strict=True))
    found: dict[str, list[str]] = {leaf: [] for leaf in lab.fabric.leaf_names}
    for host in lab.hosts:
        for nic in host.nics:
            name = f"{host.name}/{nic.device}"
            found[nic.leaf].append(other.get(name, name))
    return found
