"""What drops large packets: known fabrics, known faults, and exporters that become sure one flow after the other."""

import numpy as np
import pytest
from tests.bench.map.fabric import Clos, Simulation
from tests.unit.diagnosis.virtual_fleet import Fault, Part, VirtualFleet, name_of

from fabricpulse.diagnosis.flows.components import Kind, parts
from fabricpulse.diagnosis.flows.flow_table import Flows, totals
from fabricpulse.diagnosis.search.black_holes import black_holes
from fabricpulse.diagnosis.search.unseen import NOTHING_UNSEEN

NOBODY = np.zeros(0, np.int64)


@pytest.fixture(scope="module")
def fabric() -> Simulation:
    """96 hosts below 12 leaves in 3 pods; every switch answers."""
    return Simulation(Clos(hosts=96, leaves=12, pods=3, spines=4, cores=2), silent=0.0, seed=3)


def fault(fabric: Simulation, kind: Kind) -> int:
    """A component of that kind."""
    while parts(found := fabric.fault())[0] != kind:
        pass
    return found


def named(fabric: Simulation, sure: Flows, maybe: Flows = NOBODY) -> list[int]:
    """Components that are found."""
    found = black_holes(fabric.table, totals(fabric.table), sure, maybe, NOTHING_UNSEEN)
    return [finding.component for finding in found]


@pytest.mark.parametrize("kind", [Kind.NIC_TX, Kind.NIC_RX, Kind.SWITCH, Kind.LINK])
def test_the_first_flows_that_are_sure_name_the_whole(fabric: Simulation, kind: Kind) -> None:
    """Of all flows that cross a component those of one pair are sure, which is none yet that all of them cross."""
    what = fault(fabric, kind)
    flows = fabric.crossing(what)
    edges = fabric.table.edge_of(flows)
    sure = flows[np.isin(edges, np.unique(edges)[:2])]
    assert named(fabric, sure, np.setdiff1d(flows, sure)) == [what]


def test_doubts_alone_name_nothing(fabric: Simulation) -> None:
    """However many flows may drop large packets: where none is sure to, that may be congestion."""
    assert named(fabric, NOBODY, fabric.crossing(fault(fabric, Kind.SWITCH))) == []


def test_a_busy_link_beside_a_black_hole_is_not_named(fabric: Simulation) -> None:
    """A link drops some large packets, so that a fifth of its flows are doubted, and some of those cross a NIC that
    drops all: the link has no proof of its own.
    """
    nic, link = fault(fabric, Kind.NIC_RX), fault(fabric, Kind.LINK)
    doubted = fabric.rng.choice(crossing := fabric.crossing(link), len(crossing) // 5, replace=False)
    flows = fabric.crossing(nic)
    assert named(fabric, flows, np.unique(doubted)) == [nic]


KINDS = ["nic_tx", "nic_rx", "link up", "link down", "spine", "leaf"]


def _part(fleet: VirtualFleet, kind: str) -> Part:
    leaf = fleet.random.choice(sorted(set(fleet.leaf.values())))
    spine = fleet.random.choice(fleet.uplinks(leaf))
    if kind.startswith("nic"):
        return kind, fleet.random.choice(fleet.below(leaf))
    if kind.startswith("link"):
        return "link", *((leaf, spine) if kind == "link up" else (spine, leaf))
    return "switch", spine if kind == "spine" else leaf


@pytest.mark.simulation
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_one_black_hole_after_the_other_is_named_at_first(seed: int) -> None:
    """Elements of all kinds drop packets above some size, for as long as it takes to name each. What hosts remember of
    the one before does not make them name the next late, each at its own time: it is named within 30 s, and nothing
    but it, though the first flows that are sure to suffer are those of one link or one NIC of it.
    """
    fleet = VirtualFleet(seed, 9, 1, 3, 3)
    fleet.play(45)
    for kind in fleet.random.sample(KINDS, len(KINDS)):
        part = _part(fleet, kind)
        above = fleet.random.choice([1400, 2000, 4000, 8000])
        begins_s = fleet.now_s
        fleet.faults = [Fault("mtu", (part,), frozenset(), lambda *_: 1.0, begins_s, 1e9, above=above)]
        found: set[tuple[str, ...]] = set()
        while not found:
            found = {name_of(suspect) for _, suspects in fleet.play(1) for suspect in suspects}
            assert fleet.now_s - begins_s <= 30
        found |= {name_of(suspect) for _, suspects in fleet.play(5) for suspect in suspects}
        assert found == {(*part, "")[:3]}, (part, above)
        fleet.faults[0].ends_s = fleet.now_s
        found = {name_of(suspect) for _, suspects in fleet.play(40) for suspect in suspects}
        assert found <= {(*part, "")[:3]}, (part, above)
