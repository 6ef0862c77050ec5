"""What is named while faults come and go below random fabrics, in virtual time: a wrong name is worse than none."""

import random
from collections.abc import Iterable

import pytest
from tests.unit.diagnosis.virtual_fleet import Fault, Name, Part, VirtualFleet, name_of, random_fault

from fabricpulse.diagnosis.search.suspect import Suspect

pytestmark = pytest.mark.simulation

# Seconds: a fleet that is well; until what has begun, or was disturbed, is settled; until all names have left.
QUIET_S, SETTLED_S, HEALED_S = 12, 30, 30


def as_text(names: Iterable[Name]) -> set[str]:
    """As suspects give their alternatives."""
    return {f"{kind} {a} to {b}" if b else f"{kind} {a}" for kind, a, b in names}


def wrong(faults: Iterable[Fault], found: Iterable[Suspect]) -> list[Name]:
    """Of what is named, that which is no fault, nor said to be alike with one."""
    right = frozenset().union(*(fault.names for fault in faults))
    return [name_of(s) for s in found if name_of(s) not in right and not as_text(right) & {*s.alternatives}]


def fleet_of(seed: int) -> VirtualFleet:
    """Some are not traced; in some a host cannot report."""
    draw = random.Random(seed)
    leaves, rails = draw.choice([3, 3, 4]), draw.choice([1, 1, 2])
    blind = [f"h{draw.randrange(9)}"] if draw.random() < 0.2 else []
    hosts = 9 if rails == 2 else 3 * leaves
    return VirtualFleet(seed, hosts, rails, leaves, draw.choice([2, 3, 4]), draw.random() < 0.75, blind)


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 30))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_fault_names_nothing_else(seed: int) -> None:
    """One fault of any kind, while nothing else happens, the coordinator starts anew, or a host leaves: nothing is
    named before it; when it has settled, nothing but it; and nothing some seconds after it ended.
    """
    fleet = fleet_of(seed)
    assert not any(found for _, found in fleet.play(QUIET_S))
    fault = random_fault(fleet, QUIET_S, 60)
    fleet.faults = [fault]
    fleet.play(15)
    event = random.Random(seed).choice(["", "coordinator", "member"])
    if event == "coordinator":
        fleet.restart_coordinator()
    if event == "member":
        hit = {part[1].partition("/")[0] for part in fault.parts}
        leaving = next(host for host in fleet.hosts if host not in hit)
        fleet.members_are([host for host in fleet.hosts if host != leaving])
    fleet.play(SETTLED_S)
    settled = [wrong([fault], found) for _, found in fleet.play(15)]
    assert settled == 15 * [[]], (fault, event)
    healing = [wrong([fault], found) for _, found in fleet.play(HEALED_S)]
    assert healing == HEALED_S * [[]], (fault, event)
    assert not fleet.play(1)[0][1], (fault, event)


def steady(what: str, share: float, *parts: Part, begins_s: float = QUIET_S, ends_s: float = 1e9) -> Fault:
    """A fault from its beginning to its end."""
    return Fault(what, parts, frozenset(), lambda _part, _since: share, begins_s, ends_s)


def names(played: list[tuple[float, tuple[Suspect, ...]]]) -> set[Name]:
    """All that was named."""
    return {name_of(suspect) for _, found in played for suspect in found}


def test_losses_stay_with_their_flow_when_a_host_leaves() -> None:
    """Hosts number their flows anew when one of them leaves; what was lost before is not taken for that of others."""
    fleet = VirtualFleet(3, 9, 1, 3, 3)
    fleet.faults = [steady("loss", 1.0, ("nic_tx", "h4/r0"))]
    fleet.play(40)
    fleet.members_are([host for host in fleet.hosts if host != "h0"])
    assert names(fleet.play(10)) == {("nic_tx", "h4/r0", "")}


def test_a_host_that_has_left_does_not_vouch_for_its_leaf() -> None:
    """Hosts that are in the fleet no more lose nothing, for nobody sends to them: no evidence that a leaf is well."""
    fleet = VirtualFleet(5, 12, 1, 4, 3)
    fleet.faults = [steady("loss", 0.2, ("switch", "leaf0-r0"))]
    fleet.play(30)
    fleet.members_are([host for host in fleet.hosts if host not in ("h8", "h2", "h10")])
    fleet.play(6)
    assert names(fleet.play(14)) == {("switch", "leaf0-r0", "")}


def test_delay_that_ends_accuses_nobody_on_its_way() -> None:
    """As a slow leaf recovers its flows do, one by one; the last ones are not those of some NIC."""
    fleet = VirtualFleet(61, 9, 1, 3, 3)
    fleet.faults = [steady("delay", 1.0, ("switch", "leaf1-r0"), ends_s=30)]
    fleet.play(29)
    assert names(fleet.play(25)) == {("switch", "leaf1-r0", "")}


def test_a_coordinator_that_does_not_know_the_paths_yet_waits() -> None:
    """Started amid a fault it does not name "the fabric", which has a name when the paths are reported, seconds
    later.
    """
    fleet = VirtualFleet(41, 12, 1, 4, 3)
    link = "link", "leaf2-r0", "spine1-r0"
    fleet.faults = [steady("loss", 1.0, link)]
    fleet.play(25)
    fleet.restart_coordinator()
    assert names(fleet.play(14)) == {link}


@pytest.mark.parametrize("seed", range(3))
def test_a_coordinator_that_starts_amid_two_faults_waits_for_paths(seed: int) -> None:
    """Hosts report their losses a second before their first path: nothing says yet that any will come."""
    fleet = VirtualFleet(seed, 15, 1, 5, 2)
    leaf, spine = ("switch", "leaf1-r0"), ("switch", "spine1-r0")
    ends_s = QUIET_S + 15 + 3
    fleet.faults = [steady("loss", 0.6, leaf), steady("loss", 1.0, spine, ends_s=ends_s)]
    fleet.play(QUIET_S + 15)
    fleet.restart_coordinator()
    assert names(fleet.play(15)) <= {(*leaf, ""), (*spine, "")}


def test_paths_of_a_host_that_tells_none_are_no_second_fault() -> None:
    """The flows from a host that does not report cross the fabric, it is not known where: the link is named once."""
    fleet = VirtualFleet(37, 12, 1, 4, 3, blind=["h7"])
    link = "link", "spine2-r0", "leaf0-r0"
    fleet.faults = [steady("loss", 1.0, link)]
    assert names(fleet.play(40)) == {link}


def test_a_dead_nic_beside_a_dead_leaf_is_no_dead_host() -> None:
    """One NIC of a host is dead, the leaf of the other, too: the host's own part in that is one NIC."""
    fleet = VirtualFleet(33, 9, 2, 3, 3)
    fleet.faults = [
        steady("loss", 1.0, ("switch", "leaf0-r0")),
        steady("loss", 1.0, ("nic_tx", "h6/r1"), ("nic_rx", "h6/r1")),
    ]
    assert names(fleet.play(50)) == {("switch", "leaf0-r0", ""), ("nic", "h6/r1", "")}


@pytest.mark.parametrize("seed", [204, 205])
def test_flows_through_a_lossy_spine_accuse_no_link(seed: int) -> None:
    """Some of its flows lose nothing for seconds, and paths of a host that does not report are not known: what such
    flows have lost before, or somewhere in the fabric, is that of the spine.
    """
    fleet = VirtualFleet(seed, 8, 1, 4, 3, blind=["h1"])
    nic, spine = ("nic_tx", "h2/r0"), ("switch", "spine0-r0")
    fleet.faults = [steady("loss", 0.2, nic), steady("loss", 0.05, spine, begins_s=QUIET_S + 3)]
    assert names(fleet.play(45)) == {(*nic, ""), (*spine, "")}


def test_a_dead_cable_is_no_dead_leaf_where_no_paths_are_known() -> None:
    """Both ways of one of two uplinks: the leaf alone explains more than either way, less than both of them."""
    fleet = VirtualFleet(335, 9, 2, 4, 2, traced=False)
    leaf, spine = "leaf2-r1", "spine0-r1"
    fleet.faults = [steady("loss", 1.0, ("link", leaf, spine), ("link", spine, leaf))]
    assert names(fleet.play(30)) == {("link", leaf, "fabric(r1)"), ("link", "fabric(r1)", leaf)}


def test_a_leaf_that_flaps_is_one_alert() -> None:
    """The label that mutes the alerts of its NICs is there from the first report of it, though of most flows the last
    report tells of a part of the packets only. It came two seconds later, with another alert, when something else was
    at fault.
    """
    fleet = VirtualFleet(327, 9, 2, 5, 4, traced=False)
    leaf, way = ("switch", "leaf0-r1"), ("leaf1-r0", "spine3-r0")
    flap = Fault("loss", (leaf,), frozenset(), lambda _, since: float(since % 4.0 < 2.0), QUIET_S + 3, 1e9)
    fleet.faults = [steady("loss", 1.0, ("link", *way), ("link", *way[::-1])), flap]
    reported = [suspect for _, found in fleet.play(QUIET_S + 18) for suspect in found]
    assert {suspect.leaf for suspect in reported if suspect.component == leaf[1]} == {leaf[1]}


def test_dead_nics_amid_a_rolling_restart_are_no_bundles_of_pairs() -> None:
    """Until it is sure that a NIC is not one of a host that is restarted, some of its flows are explained by hosts that
    are, and those that are left look like pairs.
    """
    fleet = VirtualFleet(2, 9, 2, 4, 3)
    for number, nic in enumerate(("h3/r1", "h8/r1")):
        begins_s = QUIET_S + 3 * number
        fleet.faults.append(steady("loss", 1.0, ("nic_tx", nic), ("nic_rx", nic), begins_s=begins_s))
    for number, host in enumerate(fleet.hosts):
        stops_s = QUIET_S - 1 + 2.5 * number
        fleet.restart(host, stops_s, stops_s + 3.5)
    assert names(fleet.play(60)) == {("nic", "h3/r1", ""), ("nic", "h8/r1", "")}


def test_flows_that_take_another_path_accuse_no_pair() -> None:
    """A lossy uplink is taken out of the routes: what flows lost there is not lost on their new path."""
    fleet = VirtualFleet(7, 12, 1, 4, 3)
    link = "link", "leaf1-r0", "spine1-r0"
    fleet.faults = [steady("loss", 0.05, link, ends_s=QUIET_S + 15)]
    fleet.play(QUIET_S + 15)
    fleet.withdraw("leaf1-r0", "spine1-r0")
    assert names(fleet.play(12)) <= {link}
