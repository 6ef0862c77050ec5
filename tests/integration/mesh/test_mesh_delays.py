"""Real exporters report to a real coordinator their least delays: of every edge, with every clock wrong, and of
temporary peers.
"""

from typing import Any

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.tree_fleet import TreeFleet

from fabricpulse.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_every_edge_becomes_known() -> None:
    """The two-way delay of all pairs of nine hosts; their NICs and networks are known, and the three leaves are
    reported as they are: the way over a spine costs a packet of the lab some microseconds. Two NICs that hang where
    the topology file has the other one are named as swapped, and so by the metric that the alert is made of.
    """
    with Lab(hosts=9, rails=1, spines=3, pods=3) as lab:
        fleet = TreeFleet(lab, swapped=("h0/rail0", "h3/rail0"))

        def known() -> dict[str, Any]:
            reported = fleet.document()
            return (
                reported if (reported["pairs"], reported["edges"], reported["placed"]) == (36, 36, 9) else {}
            )

        reported = wait_for(known, 60, "all edges are known and all NICs are placed")
        assert {(entry["nic"], entry["rail"]) for entry in reported["nics"]} == {
            (f"{host.name}/rail0", "rail0") for host in lab.hosts
        }
        assert {frozenset(group["nics"]) for group in reported["groups"]} == fleet.true
        here, there = "pod0-leaf0", "pod1-leaf0"
        assert {(one["nic"], one["swapped_with"]) for one in reported["miscabled"]} == {
            ("h0/rail0", "h3/rail0"),
            ("h3/rail0", "h0/rail0"),
        }
        assert fleet.miscabled() == {
            ("h0/rail0", "wrong_leaf", here, there),
            ("h3/rail0", "wrong_leaf", there, here),
        }
        assert 0 < reported["sigma_ns"] < 1_000_000


@pytest.mark.timeout(900)  # a minute and a half on an idle machine, four beside load
def test_temporary_peers_tell_what_standing_ones_do_not() -> None:
    """Nine hosts with two standing peers each: at first no leaf can be found. The coordinator assigns temporary peers,
    and all three leaves are found; the standing edges stay the same, and none is down. When the coordinator dies in a
    round, the temporary peers are no longer probed.
    """
    with Lab(hosts=9, rails=1, spines=3, pods=3) as lab:
        fleet = TreeFleet(lab, peers=2)
        wait_for(fleet.temporary, 60, "temporary peers are probed")

        # Where delays drift beside load, pairs are measured anew, and a leaf may be unknown while another is reported.
        found: set[frozenset[str]] = set()

        def known() -> dict[str, Any]:
            reported = fleet.document()
            found.update(frozenset(group["nics"]) for group in reported["groups"] if group["kind"] == "leaf")
            return reported if found >= fleet.true else {}

        reported = wait_for(known, 120, "all leaves are reported")
        assert reported["edges"] == 9
        assert reported["temporary_pairs"] > 0
        for host in lab.hosts:
            assert [edge["state"] for edge in fleet.mesh.edges(host.name).values()] == ["up", "up"]
            assert fleet.mesh.scrape(host.name).value("fabricpulse_nic_disconnects_total") == 0

        # A host that comes anew has nothing that is believed of it: a round begins.
        lab.host("h0").nics[0].flap(count=1)
        wait_for(fleet.temporary, 60, "a round begins")
        fleet.coordinator.kill()
        wait_for(lambda: not fleet.temporary(), 60, "temporary peers have ended")
