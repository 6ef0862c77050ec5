"""The tree of the fabric from minimum two-way delays."""

import itertools
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.fixtures.mesh.distant_nics import Fabric, Plan, Survey, some_pairs

from fabricpulse.diagnosis.tree.cabling import miscabled
from fabricpulse.diagnosis.tree.confirmed import confirmed
from fabricpulse.diagnosis.tree.documents import document_of, graphml_of, svg_of
from fabricpulse.diagnosis.tree.fabric_tree import tree_of
from fabricpulse.diagnosis.tree.levels import Kind
from fabricpulse.diagnosis.tree.measured import Delays, NicFacts
from fabricpulse.diagnosis.tree.stack_terms import highest_mode
from fabricpulse.diagnosis.tree.temporary_peers import temporary_peers

_RAILS = Plan(hosts=48, rails=4, per_leaf=12, leaves_per_pod=0)


def places_of(tree):
    """NIC -> its pod and its leaf, None where it is not known."""
    return {nic["nic"]: (nic["pod"], nic["leaf"]) for nic in document_of(tree)["nics"]}


@pytest.fixture(scope="module")
def railed():
    """A fleet of four rails, six NICs of which are at a wrong leaf: two swapped pairs, two moved ones."""
    fabric = Fabric(_RAILS, 5)
    fabric.swap(4 * 7 + 1, 4 * 7 + 2)  # two rails of one host
    fabric.swap(4 * 3, 4 * 30)  # one rail of two hosts
    fabric.move(4 * 20 + 3, int(fabric.leaf[4 * 20 + 2]))
    fabric.move(4 * 40, int(fabric.leaf[4 * 2]))
    return Survey.of(fabric, rounds=30)


_SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
_PLANS = pytest.mark.parametrize(
    "plan",
    [
        Plan(hosts=128, leaves_per_pod=0),
        Plan(hosts=128, leaves_per_pod=0, per_leaf=16, in_order=False, congested=0.1),
        Plan(hosts=128, per_leaf=8, leaves_per_pod=4),
    ],
)


@pytest.mark.simulation
@_PLANS
def test_random_fabrics_are_reported(plan):
    """Of all pairs below one leaf or pod, true or reported, 99 % are both: with stamps that are late by 1 us, 30 %
    load, pairs that are always congested and 5 % that never answer.
    """
    survey = Survey.of(Fabric(plan, 1), silent=0.05)
    assert survey.right(Kind.LEAF) >= 0.99
    assert not plan.leaves_per_pod or survey.right(Kind.POD) >= 0.99
    assert survey.all_pairs() >= 0.99


@pytest.mark.slow
@_PLANS
def test_what_a_fabric_does_not_show_is_unknown(plan):
    """Over ten more fabrics no two NICs are reported to share a leaf or pod that do not. At most two
    have NICs without a pod: of 24 fabrics with pods of four leaves two had 24 such NICs, and 94 % of all pairs right.
    """
    surveys = [Survey.of(Fabric(plan, seed), silent=0.05) for seed in range(2, 12)]
    for survey in surveys:
        assert survey.never_reported_wrongly(Kind.LEAF)
        assert survey.never_reported_wrongly(Kind.POD)
    shares = sorted(survey.all_pairs() for survey in surveys)
    assert shares[2] >= 0.99
    assert shares[0] >= 0.9


@pytest.mark.simulation
@pytest.mark.parametrize("seed", _SEEDS)
def test_virtual_machines_on_one_machine(seed):
    """All that share a machine are found, and no others; a machine of two, which one pair tells, is published as others
    are alike.
    """
    survey = Survey.of(Fabric(Plan(hosts=48, on_machine=2, per_leaf=8, leaves_per_pod=0), seed))
    assert survey.right(Kind.MACHINE) == 1.0
    assert survey.right(Kind.LEAF) >= 0.99
    survey.tree = confirmed(survey.tree)
    assert survey.never_reported_wrongly(Kind.MACHINE)
    assert np.mean(survey.reported(Kind.MACHINE) >= 0) >= 0.9


@pytest.mark.parametrize(("per_leaf", "seed"), [(4, 7), (2, 8), (6, 9)])
def test_small_leaves_of_virtual_machines_are_no_machines(per_leaf, seed):
    """Virtual machines that have one machine each, few below a leaf: leaves in pods look like machines in leaves, but
    for the length of the ways.
    """
    fabric = Fabric(Plan(hosts=48, per_leaf=per_leaf, leaves_per_pod=2, stamp_ns=300.0), seed)
    fabric.nics = tuple(replace(nic, virtual=True) for nic in fabric.nics)
    tree = confirmed(tree_of(fabric.nics, some_pairs(fabric, 20, 4, 5000)))
    assert len(tree.groups) > 8
    assert not any(group.kind is Kind.MACHINE for group in tree.groups)


def test_a_machine_of_two_is_reported_where_others_are_alike():
    """Of a dozen that are placed by one pair each, one that is nearer than all others is not; of three, none is."""
    fabric = Fabric(
        Plan(hosts=24, on_machine=2, per_leaf=6, leaves_per_pod=0, congested=0.0, stamp_ns=50.0), 3
    )
    pairs = np.array(list(itertools.combinations(range(24), 2)))
    delays = fabric.measure(pairs[:, 0], pairs[:, 1], 5000)
    reported = confirmed(tree_of(fabric.nics, delays)).of_kind(Kind.MACHINE)
    assert (reported >= 0).all()
    odd = np.flatnonzero((delays.a == 4) & (delays.b == 5))
    ns = delays.two_way_ns.copy()
    ns[odd] -= 2000.0
    reported = confirmed(tree_of(fabric.nics, replace(delays, two_way_ns=ns))).of_kind(Kind.MACHINE)
    assert set(np.flatnonzero(reported < 0).tolist()) == {4, 5}
    few = np.ones(len(delays), bool)
    few[(fabric.machine[delays.a] == fabric.machine[delays.b]) & (delays.a > 6)] = False
    some = Delays(*(column[few] for column in (delays.a, delays.b, delays.two_way_ns, delays.samples)))
    assert (confirmed(tree_of(fabric.nics, some)).of_kind(Kind.MACHINE) < 0).all()


def test_one_pair_that_answers_tells_the_machine_of_four():
    """Of a virtual machine that two of its three neighbours on the machine never answer the third one tells where it
    is, as others are as near; one that none answers is on no known machine.
    """
    fabric = Fabric(
        Plan(hosts=48, on_machine=4, per_leaf=6, leaves_per_pod=0, congested=0.0, stamp_ns=50.0), 3
    )
    pairs = np.array([pair for pair in itertools.combinations(range(48), 2) if pair not in {(0, 1), (0, 2)}])
    delays = fabric.measure(pairs[:, 0], pairs[:, 1], 5000)
    reported = confirmed(tree_of(fabric.nics, delays)).of_kind(Kind.MACHINE)
    assert len(set(reported[:4].tolist())) == 1
    assert (reported >= 0).all()
    answered = ~((delays.a == 0) & (delays.b == 3))
    some = Delays(*(column[answered] for column in (delays.a, delays.b, delays.two_way_ns, delays.samples)))
    reported = confirmed(tree_of(fabric.nics, some)).of_kind(Kind.MACHINE)
    assert np.flatnonzero(reported < 0).tolist() == [0]


@pytest.mark.simulation
def test_hosts_that_are_machines_share_none():
    """On bare metal no two hosts are reported to be one machine."""
    survey = Survey.of(Fabric(Plan(hosts=32, per_leaf=4, leaves_per_pod=0), 3))
    assert not any(group.kind is Kind.MACHINE for group in survey.tree.groups)


@pytest.mark.thorough
def test_wrong_cables(railed):
    """All NICs at a wrong leaf are named with their rail, swapped ones with one another, and no other."""
    found = {one.nic: one for one in miscabled(railed.tree)}
    assert found.keys() == {29, 30, 12, 120, 83, 160}
    assert (found[29].swapped_with, found[30].swapped_with) == (30, 29)
    assert (found[12].swapped_with, found[120].swapped_with) == (120, 12)
    assert found[83].wrong_rail and found[83].rail == "rail2"
    assert not found[160].wrong_rail and found[160].swapped_with == -1


def test_a_declared_leaf_that_is_not_true():
    """A NIC that is declared below another leaf than the one that it is at is named, even in a fleet of one rail."""
    fabric = Fabric(Plan(hosts=48, per_leaf=16, leaves_per_pod=0), 4)
    fabric.nics = tuple(
        replace(nic, leaf=f"leaf-{leaf}") for nic, leaf in zip(fabric.nics, fabric.leaf, strict=True)
    )
    fabric.swap(5, 40)
    survey = Survey.of(fabric)
    assert {(one.nic, one.swapped_with) for one in miscabled(survey.tree)} == {(5, 40), (40, 5)}
    assert places_of(survey.tree)["gpu-00005/eth0"] == (None, "leaf-2")


def test_nothing_is_reported_without_data():
    """Without pairs, with too few samples, and where all NICs are equally far, no leaf is reported."""
    nics = [NicFacts(f"gpu-{n}", "eth0", "rail0") for n in range(8)]
    rng = np.random.default_rng(1)
    rows = [(a, b, 9000 + rng.exponential(100), 1000) for a in range(8) for b in range(a)]
    for some in ([], [(a, b, ns, 3) for a, b, ns, _ in rows], rows[:1], rows):
        tree = tree_of(nics, Delays.of(some, nics))
        assert set(places_of(tree).values()) == {(None, None)}
        assert not tree.confidence().any()
        assert not document_of(tree)["groups"]


def test_delays_that_no_fabric_has():
    """Infinite, missing and absurd delays, a NIC with itself and with its own host, end in no error."""
    nics = [NicFacts(f"gpu-{n // 2}", f"eth{n % 2}", "rail0") for n in range(6)]
    rows = [(0, 0, 1.0, 500), (0, 1, 1.0, 500), (0, 2, np.inf, 500), (1, 2, np.nan, 500), (2, 5, -1e12, 500)]
    rows += [(0, 4, 1e15, 500), (3, 4, 0.0, 10**9)]
    tree = tree_of(nics, Delays.of(rows, nics))
    assert len(tree.delays) == 3
    assert np.isfinite(tree.terms_ns).all()


def test_a_congested_pair_is_no_class():
    """Of a machine with six pairs, one of which is never without a queue, the class is that of the five."""
    assert highest_mode(np.array([-10.0, 0.0, 10.0, 20.0, 30.0, 50_800.0])) == 10.0
    assert highest_mode(np.array([70.0])) == 70.0


def test_long_terms_change_nothing():
    """What a host's stack adds to all of its pairs does not move it in the tree."""
    fabric = Fabric(Plan(hosts=96, per_leaf=16, leaves_per_pod=0), 6)
    delays = Survey.of(fabric).tree.delays
    more = fabric.rng.uniform(0, 50_000, len(fabric.nics))
    slow = Delays(delays.a, delays.b, delays.two_way_ns + more[delays.a] + more[delays.b], delays.samples)
    reported = Survey(fabric, tree_of(fabric.nics, slow))
    assert reported.right(Kind.LEAF) >= 0.99


@pytest.mark.parametrize("most", [2])
def test_temporary_peers_are_bounded(most):
    """No NIC gets more than it may have, none of its own host, and no pair is dealt that has been measured well."""
    fabric = Fabric(Plan(hosts=32, rails=2, per_leaf=8, leaves_per_pod=4), 7)
    survey = Survey.of(fabric, rounds=1)
    chosen = temporary_peers(survey.tree, most, 1)
    assert chosen
    _, count = np.unique(np.array(chosen), return_counts=True)
    assert count.max() <= most
    assert all(fabric.nics[a].host != fabric.nics[b].host for a, b in chosen)
    known = set(zip(survey.tree.delays.a.tolist(), survey.tree.delays.b.tolist(), strict=True))
    assert len(known & set(chosen)) < len(chosen) / 10


def test_nothing_is_left_to_measure_in_the_end(railed):
    """Temporary peers come to an end once the tree stands."""
    assert railed.rounds < 29
    assert not temporary_peers(railed.tree, 4, 99)


def test_documents(railed):
    """JSON, GraphML and SVG tell of the same NICs, whatever their names are."""
    nics = list(railed.fabric.nics)
    nics[0] = replace(nics[0], host='<"&\x00\x1b²')
    tree = replace(railed.tree, nics=tuple(nics))
    document = document_of(tree)
    assert document["placed"] == len(nics) == len(document["nics"])
    assert {one["what"] for one in document["miscabled"]} == {"wrong_rail", "wrong_leaf"}
    graph = ElementTree.fromstring(graphml_of(document))  # noqa: S314 -- our own
    nodes = graph.findall(".//{*}node")
    assert len(nodes) == 1 + len(document["groups"]) + len(nics)
    assert len(graph.findall(".//{*}edge")) == len(nodes) - 1
    drawing = ElementTree.fromstring(svg_of(document))  # noqa: S314 -- our own
    assert sum("wrong" in (text.text or "") for text in drawing.findall(".//{*}text")) == 6
