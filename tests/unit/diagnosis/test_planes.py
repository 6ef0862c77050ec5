"""Rails that have no switch in common: what is unknown of one is nothing of another."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.unit.diagnosis.test_random_faults import QUIET_S, names, steady
from tests.unit.diagnosis.virtual_fleet import Fault, VirtualFleet

from fabricpulse.diagnosis.flows.components import NO_HOP, SILENT_HOP
from fabricpulse.diagnosis.flows.planes import FoundPlanes, found_planes, is_fabric

WHATS = [("loss", 1.0), ("loss", 0.05), ("delay", 1.0), ("mtu", 1.0)]


def planes_of(
    edges: list[tuple[int, int]], hops: Sequence[tuple[int, ...]], networks: dict[int, str] | None = None
) -> FoundPlanes:
    """Of edges with one flow each."""
    near, far = np.array(edges, np.int32).T
    of = networks or {}
    rows = np.full((len(hops), 3), NO_HOP, np.int32)
    for row, path in zip(rows, hops, strict=True):
        row[: len(path)] = path
    return found_planes(
        near,
        far,
        np.ones(len(edges), np.int32),
        rows,
        10,
        lambda nics: next((of[nic] for nic in nics.tolist() if nic in of), ""),
        lambda nic: f"h{nic}/eth0",
    )


def test_rails_without_edges_between_them_are_planes() -> None:
    """They have the names of their networks, else of a NIC."""
    edges, unknown = [(0, 1), (1, 0), (2, 3)], [(0, SILENT_HOP, 1), (1, SILENT_HOP, 0), (2, SILENT_HOP, 3)]
    found = planes_of(edges, unknown, {1: "rail0"})

    assert found.of_edge.tolist() == [0, 0, 1]
    assert found.of_switch[:4].tolist() == [0, 0, 1, 1]
    assert [found.fabric(plane) for plane in (0, 1)] == ["fabric(rail0)", "fabric(h2/eth0)"]
    assert all(is_fabric(found.fabric(plane)) for plane in (0, 1))


@pytest.mark.parametrize(
    ("hops", "networks"),
    [
        ([(0, 5, 1), (2, 5, 3)], {}),
        ([(0, SILENT_HOP, 1), (0, SILENT_HOP, 3)], {}),
        ([(0, SILENT_HOP, 1), (2, SILENT_HOP, 3)], {0: "one", 3: "one"}),
    ],
    ids=["a spine", "a leaf", "a network"],
)
def test_what_has_something_in_common_is_one_plane(
    hops: list[tuple[int, ...]], networks: dict[int, str]
) -> None:
    """Then it may have a silent switch in common, too."""
    found = planes_of([(0, 1), (2, 3)], hops, networks)

    assert found.of_edge.tolist() == [0, 0]
    assert found.fabric(0) == "fabric"


@pytest.mark.parametrize("rails", [2, 3])
@pytest.mark.parametrize(("what", "share"), WHATS)
@pytest.mark.parametrize("spines", [2, 4])
def test_a_spine_of_a_rail_is_nothing_of_another(rails: int, what: str, share: float, spines: int) -> None:
    """No path is known. What is between the leaves of the last rail is named, no link of a leaf and no other rail."""
    fleet = VirtualFleet(7 * rails + spines, 9, rails, 3, spines, traced=False)
    rail = fleet.rails[-1]
    spine = ("switch", f"spine1-{rail}")
    fleet.faults = [Fault(what, (spine,), frozenset(), lambda *_: share, QUIET_S, 1e9, above=4000)]
    assert names(fleet.play(QUIET_S + 30)) == {("switch", f"fabric({rail})", "")}


def test_a_fault_of_a_rail_hides_none_of_another() -> None:
    """A switch that is named stands for the unknown paths of its own rail only."""
    fleet = VirtualFleet(3, 9, 2, 3, 3, traced=False)
    fleet.faults = [
        steady("loss", 0.3, ("switch", "leaf1-r0")),
        steady("loss", 0.3, ("switch", "spine1-r1"), begins_s=QUIET_S + 5),
    ]
    assert names(fleet.play(QUIET_S + 30)) == {("switch", "leaf1-r0", ""), ("switch", "fabric(r1)", "")}
