"""A name that another one cannot be distinguished from: it says so, stays until the other one is better, and gives way
then.
"""

from collections.abc import Iterable

import numpy as np
import pytest
from tests.unit.diagnosis.virtual_fleet import Fault, Part, VirtualFleet, name_of

from fabricpulse.diagnosis.flows.components import Kind, code
from fabricpulse.diagnosis.flows.flow_table import FlowTable, totals
from fabricpulse.diagnosis.search.locate import Finding, locate
from fabricpulse.diagnosis.search.suspect import Suspect

pytestmark = pytest.mark.simulation

QUIET_S = 12


def dead(begins_s: float, ends_s: float, *parts: Part, share: float = 1.0) -> Fault:
    return Fault("loss", parts, frozenset(), lambda *_: share, begins_s, ends_s)


def cable(leaf: str, spine: str) -> tuple[Part, Part]:
    return ("link", leaf, spine), ("link", spine, leaf)


def said(found: Iterable[Suspect]) -> list[frozenset[str]]:
    """What is named, each with what it may as well be."""
    return [frozenset({suspect.text, *suspect.alternatives}) for suspect in found]


LEAVES, SPINES = (100, 101, 102), (103, 104)


def found(suffers: dict[tuple[int, int, int], float]) -> list[Finding]:
    """What explains that these flows lose a share of their packets: leaf, spine, leaf. Below each leaf are four NICs,
    each of which sends to all of the others.
    """
    ways = [(a, s, b) for a in LEAVES for b in LEAVES if a != b for s in SPINES for _ in range(16)]
    source = [4 * (a - 100) + k // 4 for (a, _, _), k in zip(ways, 1000 * [*range(16)], strict=False)]
    target = [4 * (b - 100) + k % 4 for (_, _, b), k in zip(ways, 1000 * [*range(16)], strict=False)]
    hops = np.array(ways, np.int16) - 100
    count = len(ways)
    rate = np.full(count, 100, np.float32)
    near, far = np.array([source, target], np.int32)
    table = FlowTable(near, far, np.full(200, -1, np.int32), rate, rate, np.arange(count + 1), hops, 100)
    flows = np.array([n for n, way in enumerate(ways) if way in suffers])
    lost = np.array([3000.0 * suffers[ways[n]] for n in flows])
    return list(locate(table, totals(table), flows, lost, np.full(len(flows), 3000.0), 30.0).findings)


def test_both_ways_of_a_cable_are_as_probable_as_a_switch() -> None:
    """A leaf is dead, and all that crosses a spine elsewhere: that may be the spine, or the cable to either leaf."""
    one, dead_leaf, spine = LEAVES[0], LEAVES[2], SPINES[1]
    ways = [(a, s, b) for a in LEAVES for b in LEAVES if a != b for s in SPINES]
    lost = {w: 1.0 for w in ways if dead_leaf in (w[0], w[2]) or w[1] == spine}
    by_component = {finding.component: finding for finding in found(lost)}
    finding = by_component[code(Kind.SWITCH, spine)]
    assert set(by_component) == {code(Kind.SWITCH, dead_leaf), code(Kind.SWITCH, spine)}
    assert {code(Kind.LINK, one, spine), code(Kind.LINK, spine, one)} <= {*finding.alternatives}
    assert finding.confidence < 0.7


def test_a_dead_spine_is_no_cable() -> None:
    """Where all of its cables are seen, it is alone."""
    ways = [(a, s, b) for a in LEAVES for b in LEAVES if a != b for s in SPINES]
    (finding,) = found({w: 1.0 for w in ways if w[1] == SPINES[0]})
    assert finding.component == code(Kind.SWITCH, SPINES[0])
    assert finding.alternatives == ()


def test_a_cable_that_is_named_stays_beside_a_dead_leaf() -> None:
    """Of a spine two leaves are seen as the third one dies: a cable that has been named stays named, and says that it
    may be the spine.
    """
    fleet = VirtualFleet(1, 9, 1, 3, 3)
    ways = cable("leaf0-r0", "spine1-r0")
    fleet.faults = [dead(QUIET_S, 1e9, *ways), dead(QUIET_S + 8, 1e9, ("switch", "leaf2-r0"))]
    fleet.play(QUIET_S + 7)
    for _, found in fleet.play(40):
        assert {name_of(s) for s in found} - {("switch", "leaf2-r0", "")} == {(*way,) for way in ways}
    assert all("switch spine1-r0" in s.alternatives for s in found if s.kind == "link")


def test_what_was_among_the_alternatives_takes_over() -> None:
    """A leaf is dead, and two links cannot be distinguished beyond it. When it is back the right one is named as soon
    as any other, and not as late as what may be the rest of something else; the other one is named no more.
    """
    fleet = VirtualFleet(2, 9, 1, 3, 4)
    right, wrong = ("link", "leaf2-r0", "spine2-r0"), ("link", "spine2-r0", "leaf1-r0")
    back_s = QUIET_S + 23
    fleet.faults = [dead(QUIET_S, back_s, ("switch", "leaf0-r0")), dead(QUIET_S + 8, 1e9, right)]
    fleet.play(QUIET_S + 8 + 6)
    leaf = frozenset({"switch leaf0-r0"})
    one = frozenset(f"link {a} to {b}" for _, a, b in (right, wrong))
    while fleet.now_s < back_s:
        [(_, found)] = fleet.play(1)
        assert {*said(found)} == {leaf, one}
    fleet.play(7)
    for _, found in fleet.play(10):
        (suspect,) = (s for s in found if s.text not in leaf)
        assert name_of(suspect) == right


@pytest.mark.parametrize("seed", range(3))
def test_a_path_that_is_not_known_is_not_named_beside_its_link(seed: int) -> None:
    """A host that tells no paths is below a leaf whose cable is dead: where its packets are lost is what is named."""
    fleet = VirtualFleet(seed, 9, 1, 3, 3, blind=["h5"])
    ways = cable("leaf2-r0", "spine2-r0")
    leaf = ("switch", "leaf0-r0", "")
    fleet.faults = [dead(QUIET_S, 1e9, *ways), dead(QUIET_S + 5, QUIET_S + 23, leaf[:2], share=0.2)]
    named = {name_of(s) for _, found in fleet.play(QUIET_S + 50) for s in found}
    assert named <= {*ways, leaf}


def test_flows_of_a_dead_leaf_do_not_vouch_for_a_lossy_fabric() -> None:
    """A spine loses little, which takes 30 s of evidence, and a leaf that half of its flows cross is dead. Those are no
    evidence of the spine, neither way: it is no link of each of the other leaves, but in the fabric, which is not
    reported beside a switch.
    """
    fleet = VirtualFleet(3, 12, 1, 4, 2, traced=False)
    leaf, spine = ("switch", "leaf0-r0"), ("switch", "spine1-r0")
    fleet.faults = [dead(QUIET_S, 1e9, leaf), dead(QUIET_S, 1e9, spine, share=0.02)]
    named = {name_of(s) for _, found in fleet.play(QUIET_S + 45) for s in found}
    assert named == {("switch", "leaf0-r0", "")}


@pytest.mark.parametrize("seed", [1, 2])
def test_flows_of_another_link_do_not_keep_one_that_has_ended(seed: int) -> None:
    """A link that flapped has ended. Some of its flows cross another one, too, that loses packets now: that is no sign
    that it goes on.
    """
    fleet = VirtualFleet(seed, 15, 1, 5, 3, traced=False)
    flaps, ends_s = ("link", "leaf4-r0", "spine0-r0"), QUIET_S + 28.5
    fleet.faults = [
        Fault("loss", (flaps,), frozenset(), lambda _, since: float(since % 10 < 1), QUIET_S, ends_s),
        dead(QUIET_S + 18, 1e9, ("link", "spine2-r0", "leaf3-r0"), share=0.05),
    ]
    fleet.play(QUIET_S + 50)
    assert {name_of(s) for _, found in fleet.play(25) for s in found} == {("link", "fabric", "leaf3-r0")}
