"""A mesh fleet below three leaves, and a coordinator that knows the topology: for tests and bench."""

import json
from collections.abc import Mapping
from typing import Any

import yaml
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.lab import Lab

PORT = 9614


class DiagnosedFleet:
    """Nine hosts with one NIC each below three leaves, and a coordinator that knows which."""

    def __init__(self, lab: Lab, mesh: Mapping[str, Any] | None = None, **coordinator: Any) -> None:
        """mesh, coordinator : settings of the exporters, and of the coordinator beside the topology."""
        self.lab = lab
        topology = lab.directory / "topology.yaml"
        topology.write_text(yaml.safe_dump(lab.topology()))
        config = lab.directory / "coordinator.yaml"
        config.write_text(yaml.safe_dump({"topology": str(topology), **coordinator}))
        self.coordinator = lab.popen(
            "mgmt",
            [
                *("fabricpulse", "clocksync", "coordinator", "--config", config),
                *("--web.listen-address", f":{PORT}"),
            ],
        )
        self.coordinator.wait_for_output("event=listening")
        self.mesh = MeshFleet(
            lab,
            {"trace_s": 0.05, "retrace_s": 10},
            evidence={"url": f"http://{lab.resolve('mgmt')}:{PORT}"},
            **(mesh or {}),
        )
        lab.write_membership(self.mesh.membership, leaves=True)
        self.mesh.start()
        self.mesh.wait_green(30)
        hosts = len(lab.hosts)
        # Two thirds of the peers of a host are below other leaves; below one leaf no switch forwards.
        flows = hosts * (hosts - 3) * 8
        wait_for(lambda: self.document()["paths"] == flows, 60, "all paths are known")
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
