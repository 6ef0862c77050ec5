"""Real exporters tell a real coordinator their least delays: of every edge, and with every clock wrong."""

import json

import pytest
import yaml
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.slow]

PORT = 9614


def test_every_edge_becomes_known():
    """The two-way delay of all pairs of nine hosts, whose host clocks are seconds apart; their NICs and networks are
    known, and the three leaves are told as they are: the way over a spine costs a packet of the lab some microseconds.
    """
    with Lab(hosts=9, rails=1, spines=3, pods=3) as lab:
        for number, host in enumerate(lab.hosts):
            host.clock.set(offset_ns=number * 7_000_000_000, drift_ppm=5.0 * number)
        config = lab.directory / "coordinator.yaml"
        config.write_text(yaml.safe_dump({"delays_keep_s": 20, "hosts_share_machines": False}))
        command = ["fabricpulse", "clocksync", "coordinator", "--config", config]
        coordinator = lab.popen("mgmt", [*command, "--web.listen-address", f":{PORT}"])
        coordinator.wait_for_output("event=listening")
        url = f"http://{lab.resolve('mgmt')}:{PORT}"
        fleet = MeshFleet(lab, {"trace_s": 0}, evidence={"url": url, "delays_s": 1}, latency={"window_s": 1})
        fleet.start()

        def document():
            fleet.true_clock()  # as a sidecar would, each round
            return json.loads(lab.http_get("mgmt", f"http://127.0.0.1:{PORT}/api/v1/topology"))

        def known():
            told = document()
            return told if (told["pairs"], told["edges"], told["placed"]) == (36, 36, 9) else {}

        told = wait_for(known, 60, "all edges are known and all NICs are placed")
        assert {(entry["nic"], entry["rail"]) for entry in told["nics"]} == {
            (f"{host.name}/rail0", "rail0") for host in lab.hosts
        }
        assert told["miscabled"] == []
        assert {frozenset(group["nics"]) for group in told["groups"]} == {
            frozenset(
                f"{host.name}/{nic.device}" for host in lab.hosts for nic in host.nics if nic.leaf == leaf
            )
            for leaf in lab.fabric.leaf_names
        }
        assert 0 < told["sigma_ns"] < 1_000_000
