"""Real exporters tell a real coordinator their least delays: of every edge, and with every clock wrong."""

import json
from typing import Any

import pytest
import yaml
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.slow]

PORT = 9614


class Fleet:
    """Nine hosts below three leaves, their host clocks seconds apart, and a coordinator that keeps delays for 20 s."""

    def __init__(self, lab: Lab, **probe: Any) -> None:
        for number, host in enumerate(lab.hosts):
            host.clock.set(offset_ns=number * 7_000_000_000, drift_ppm=5.0 * number)
        config = lab.directory / "coordinator.yaml"
        config.write_text(yaml.safe_dump({"delays_keep_s": 20, "hosts_share_machines": False}))
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
        assert {frozenset(group["nics"]) for group in found["groups"]} <= self.true, "a leaf that is none"
        return found

    def temporary(self) -> float:
        """Temporary peers that all hosts probe now."""
        self.mesh.true_clock()
        values = [
            self.mesh.scrape(host.name).value("fabricpulse_mesh_temporary_peers") for host in self.lab.hosts
        ]
        return sum(value or 0.0 for value in values)


def test_every_edge_becomes_known() -> None:
    """The two-way delay of all pairs of nine hosts; their NICs and networks are known, and the three leaves are told as
    they are: the way over a spine costs a packet of the lab some microseconds.
    """
    with Lab(hosts=9, rails=1, spines=3, pods=3) as lab:
        fleet = Fleet(lab)

        def known() -> dict[str, Any]:
            told = fleet.document()
            return told if (told["pairs"], told["edges"], told["placed"]) == (36, 36, 9) else {}

        told = wait_for(known, 60, "all edges are known and all NICs are placed")
        assert {(entry["nic"], entry["rail"]) for entry in told["nics"]} == {
            (f"{host.name}/rail0", "rail0") for host in lab.hosts
        }
        assert told["miscabled"] == []
        assert {frozenset(group["nics"]) for group in told["groups"]} == fleet.true
        assert 0 < told["sigma_ns"] < 1_000_000


def test_temporary_peers_tell_what_standing_ones_do_not() -> None:
    """With two peers each nothing is told of nine hosts at first. The coordinator deals temporary peers, and all three
    leaves are told; no edge of the mesh is another one, nothing is down. When the coordinator dies in a round, its
    peers are probed no more.
    """
    with Lab(hosts=9, rails=1, spines=3, pods=3) as lab:
        fleet = Fleet(lab, peers=2)
        wait_for(fleet.temporary, 60, "temporary peers are probed")

        def known() -> dict[str, Any]:
            told = fleet.document()
            return told if told["placed"] == 9 else {}

        told = wait_for(known, 240, "all NICs are placed")
        assert {frozenset(group["nics"]) for group in told["groups"]} == fleet.true
        assert told["edges"] == 9
        assert told["temporary_pairs"] > 0
        for host in lab.hosts:
            assert [edge["state"] for edge in fleet.mesh.edges(host.name).values()] == ["up", "up"]
            assert fleet.mesh.scrape(host.name).value("fabricpulse_nic_disconnects_total") == 0

        # A host that comes anew has nothing that is believed of it: a round begins.
        lab.host("h0").nics[0].flap(count=1)
        wait_for(fleet.temporary, 120, "a round begins")
        fleet.coordinator.kill()
        wait_for(lambda: not fleet.temporary(), 60, "temporary peers have ended")
