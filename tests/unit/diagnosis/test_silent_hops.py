"""Switches that do not answer: one node for one switch, however much of it a path shows."""

import itertools

import numpy as np
from tests.bench.map.fabric import Clos, Simulation

from fabricpulse.diagnosis.flows.components import NO_HOP, SILENT_HOP, Kind, Nodes, code
from fabricpulse.diagnosis.flows.flow_table import totals
from fabricpulse.diagnosis.flows.hop_rows import Hops
from fabricpulse.diagnosis.flows.planes import is_fabric
from fabricpulse.diagnosis.flows.silent_hops import SilentSwitch, named, silent_names
from fabricpulse.diagnosis.search.locate import locate

# Two pods of two leaves and three spines; spine s of each pod is cabled to the cores of plane s, two of each.
SPINES = {0: (10, 11, 12), 1: (13, 14, 15)}
CORES = ((20, 21), (22, 23), (24, 25))
FREE = 30


def fabric() -> Nodes:
    """Every path between two leaves, in both directions."""
    found: list[tuple[int, ...]] = []
    for a, b in itertools.permutations((0, 1, 2, 3), 2):
        pod_a, pod_b = a // 2, b // 2
        for plane in range(3):
            if pod_a == pod_b:
                found.append((a, SPINES[pod_a][plane], b, NO_HOP, NO_HOP))
            else:
                found += [(a, SPINES[pod_a][plane], core, SPINES[pod_b][plane], b) for core in CORES[plane]]
    return np.array(found, np.int32)


def without(*silent: int) -> Nodes:
    """The paths, with these switches silent."""
    hops = fabric()
    return np.where(np.isin(hops, silent), SILENT_HOP, hops).astype(np.int32)


def named_in_one(hops: Nodes) -> tuple[Hops, tuple[SilentSwitch, ...]]:
    """All of it is one plane."""
    return named(hops, FREE, np.zeros(len(hops), np.uint8))


def nodes_of(hops: Hops, switch: int) -> set[int]:
    """The nodes that stand where the switch is."""
    return set(hops[fabric() == switch].tolist())


def test_a_spine_is_one_switch_up_down_and_within_its_pod() -> None:
    """Within its pod only its leaves are beside it; it is the pod's only silent spine, and the same one there."""
    hops, (switch,) = named_in_one(without(10))

    assert nodes_of(hops, 10) == {FREE}
    assert switch.beside == (0, 1, 20, 21)
    assert (hops != FREE)[fabric() != 10].all()


def test_two_spines_of_a_pod_are_distinguished_by_their_cores() -> None:
    """Silent spines of one pod have cores of two planes above; within the pod it may be either, which is reported."""
    hops, switches = named_in_one(without(13, 14))

    between_pods = hops[:, 3] != NO_HOP
    (first,), (second,) = (set(hops[between_pods][fabric()[between_pods] == s].tolist()) for s in (13, 14))
    (either,) = set(hops[~between_pods & np.isin(fabric()[:, 1], (13, 14))][:, 1].tolist())
    assert len({first, second, either}) == 3
    assert set(switches[either - FREE].may_be) == {first, second}


def test_silent_switches_beside_one_another() -> None:
    """A core beside a silent spine is known by the spine on its other side, and the spine then by the core."""
    hops, switches = named_in_one(without(10, 20))

    (spine,), (core,) = nodes_of(hops, 10), nodes_of(hops, 20)
    assert spine != core
    assert not any(switch.may_be for switch in switches)


def test_where_nothing_answers_there_is_one_switch() -> None:
    """Only the leaves are known: what lies between them is one."""
    hops, switches = named_in_one(without(*range(10, 26)))

    within = hops[:, 3] == NO_HOP
    assert len(set(hops[within][:, 1].tolist())) == 1
    assert (hops[hops != NO_HOP] >= 0).all()
    assert len(switches) <= 3


def test_of_two_planes_nothing_is_one_switch() -> None:
    """Only leaves are known, as before, and there is the same once more: nothing lies between the leaves of both."""
    silent = without(*range(10, 26))
    other = np.where(silent >= 0, silent + 4, silent)
    hops, switches = named(
        np.concatenate([silent, other]), FREE, np.repeat(np.array([0, 1], np.uint8), len(silent))
    )

    first, second = (
        set(hops[rows][hops[rows] >= FREE].tolist()) for rows in np.split(np.arange(len(hops)), 2)
    )
    assert first.isdisjoint(second)
    assert {s.plane for n, s in enumerate(switches) if n + FREE in first} == {0}
    assert {s.plane for n, s in enumerate(switches) if n + FREE in second} == {1}


def test_answers_are_left_as_they_are() -> None:
    """Without a silent hop nothing changes."""
    hops, switches = named_in_one(fabric())

    assert (hops == fabric()).all()
    assert switches == ()


def test_a_silent_spine_is_found_once() -> None:
    """Two of four spines of a pod are silent and one loses packets: one finding, though paths within the pod do not
    tell which of the two they cross.
    """
    clos = Clos(hosts=96, leaves=12, pods=3, spines=4, cores=2, peers=20)
    simulation = Simulation(clos, silent=0.0, seed=11)
    first = clos.hosts + clos.leaves
    simulation.silence((first, first + 1))
    for loss in (0.02, 0.1, 1.0):
        observed = simulation.lose({code(Kind.SWITCH, first): loss}, 30.0, 1e-5)
        findings = locate(simulation.seen, totals(simulation.seen), *observed, 30.0).findings
        assert [finding.component for finding in findings] == [
            code(Kind.SWITCH, next(iter(simulation.seen_as(first) - simulation.seen_as(first + 1))))
        ]


def test_silent_switches_of_one_plane_have_names_of_their_own() -> None:
    """Two spines of one pod are identified by what is beside each, the cores that few of them share first. One alone
    is the fabric.
    """
    names = [f"s{node}" for node in range(FREE)]
    _, silent = named_in_one(without(SPINES[0][0], SPINES[0][1]))
    found = silent_names(silent, lambda _: "fabric", names)
    assert len(set(found)) == len(silent)
    assert all(is_fabric(name) for name in found)
    assert {"fabric(beside s20, s21)", "fabric(beside s22, s23)"} <= {*found}
    _, silent = named_in_one(without(SPINES[0][0]))
    assert silent_names(silent, lambda _: "fabric(r1)", names) == ["fabric(r1)"]
    two = [SilentSwitch(0, (1, 2)), SilentSwitch(0, (1, 2)), SilentSwitch(1, (3,)), SilentSwitch(0, ())]
    assert silent_names(two, lambda plane: f"fabric(r{plane})", names) == [
        "fabric(r0, beside s1, s2)",
        "fabric(r0, no. 2)",
        "fabric(r1)",
        "fabric(r0, beside no switch that answers)",
    ]
