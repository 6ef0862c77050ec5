"""A switch, or some of its links: what explains the losses of many flows with the fewest faults is named."""

import pytest
from tests.unit.diagnosis.test_random_faults import QUIET_S, as_text, names, steady
from tests.unit.diagnosis.virtual_fleet import Fault, Name, Part, VirtualFleet, _dying_leaf, name_of

CABLE: tuple[Part, ...] = (("link", "leaf1-r0", "spine1-r0"), ("link", "spine1-r0", "leaf1-r0"))


def seen(*parts: Part) -> set[Name]:
    """As they are named where no path is known."""

    def name(node: str) -> str:
        return "fabric" if "spine" in node else node

    return {(part[0], name(part[1]), name(part[2]) if len(part) > 2 else "") for part in parts}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("share", [1.0, 0.3, 0.05])
@pytest.mark.parametrize("spines", [2, 3])
@pytest.mark.parametrize(
    "parts", [(("switch", "spine1-r0"),), CABLE, CABLE[:1]], ids=["spine", "cable", "one way"]
)
def test_where_no_path_is_known_a_spine_is_no_links(
    seed: int, share: float, spines: int, parts: tuple[Part, ...]
) -> None:
    """Each flow crosses one spine, by chance: of the flows of some links more cross the faulty one. Those links were
    named in place of what is between all leaves.
    """
    fleet = VirtualFleet(seed, 9, 1, 3, spines, traced=False)
    fleet.faults = [steady("loss", share, *parts)]
    assert names(fleet.play(QUIET_S + 28)) == seen(*parts)


def test_a_lossy_spine_beside_a_dead_cable_is_not_named_link_by_link() -> None:
    """What loses much where nothing has a name hides what loses little; links of leaves were named for that."""
    fleet = VirtualFleet(3036, 12, 1, 4, 2, traced=False, blind=["h2"])
    spine, cable = (
        ("switch", "spine0-r0"),
        (("link", "leaf2-r0", "spine0-r0"), ("link", "spine0-r0", "leaf2-r0")),
    )
    fleet.faults = [steady("loss", 0.2, spine), steady("loss", 1.0, *cable, begins_s=QUIET_S + 1)]
    assert names(fleet.play(QUIET_S + 30)) <= seen(spine, *cable)


def test_a_spine_beside_a_dying_leaf_is_no_cable() -> None:
    """With one of three leaves dead, the flows of a spine are those of the cable to either of the others."""
    fleet = VirtualFleet(3025, 9, 2, 3, 2)
    spine: Part = ("switch", "spine0-r1")
    fleet.faults = [steady("loss", 0.05, spine), _dying_leaf(fleet, "leaf1-r1", QUIET_S + 8, 1e9)]
    assert names(fleet.play(QUIET_S + 30)) <= {(*spine, ""), ("switch", "leaf1-r1", "")}


def test_a_nic_alone_below_its_leaf_may_be_the_cables_above() -> None:
    """Of its flows some lose all and others nothing: a NIC hashes, and so do the switches above it."""
    fleet = VirtualFleet(3057, 9, 2, 5, 3, traced=False)
    cable: tuple[Part, ...] = (("link", "leaf4-r1", "spine1-r1"), ("link", "spine1-r1", "leaf4-r1"))
    fleet.faults = [Fault("loss", cable, frozenset(), lambda *_: 1.0, QUIET_S, QUIET_S + 30)]
    links = {("link", "leaf4-r1", "fabric(r1)"), ("link", "fabric(r1)", "leaf4-r1")}
    found = [suspect for _, each in fleet.play(QUIET_S + 60) for suspect in each]
    assert found
    assert all(name_of(s) in links or as_text(links) & {*s.alternatives} for s in found)
