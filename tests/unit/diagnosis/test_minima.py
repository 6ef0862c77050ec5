"""Two-way minima of a fleet from what hosts tell, each by its own wrong clock, and what they tell of the tree."""

import numpy as np
import pytest
from tests.fixtures.mesh.distant_nics import Fabric, Plan, mesh_pairs

from fabricpulse.diagnosis.tree.coverage import MOST_PAIRS, Coverage
from fabricpulse.diagnosis.tree.fabric_tree import tree_of
from fabricpulse.diagnosis.tree.learned import topology_document
from fabricpulse.diagnosis.tree.levels import Kind
from fabricpulse.diagnosis.tree.measured import Delays
from fabricpulse.diagnosis.tree.minima import SLOTS, TwoWayMinima, lasting
from fabricpulse.diagnosis.tree.missing import missing, nothing_learned
from fabricpulse.diagnosis.wire.delay_records import unpack_delays
from fabricpulse.diagnosis.wire.messages import EdgeName, HostFacts, LeastDelay, pack_delays

KEEP_S = 600.0
SLOT_S = KEEP_S / SLOTS


class Fleet:
    """Hosts of a fabric, one NIC each, that tell their minima in turn; every clock is wrong by microseconds, and by
    some 100 ns more or less in each slot.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.rng = fabric, np.random.default_rng(5)
        self.minima = TwoWayMinima(KEEP_S)
        a, b = mesh_pairs(len(fabric.nics), 1, 10, fabric.rng)
        self.a, self.b = np.unique(np.sort([a, b], axis=0), axis=1)
        self.clock = self.rng.integers(-100_000, 100_000, len(fabric.nics))
        self.edges: list[list[tuple[int, int]]] = [[] for _ in fabric.nics]  # peer, pair
        for pair, (a, b) in enumerate(zip(self.a.tolist(), self.b.tolist(), strict=True)):
            self.edges[a].append((b, pair))
            self.edges[b].append((a, pair))
        for nic, edges in zip(fabric.nics, self.edges, strict=True):
            names = tuple(EdgeName("eth0", fabric.nics[peer].host, "eth0") for peer, _ in edges)
            self.minima.edges(nic.host, names, HostFacts((("eth0", "rail0"),), False), 0.0)

    def slot(self, number: int, two_way: np.ndarray) -> None:
        """One report of each host at some moment of the slot."""
        self.clock = self.clock + self.rng.integers(-30, 31, len(self.clock))
        out = np.round(two_way * self.rng.uniform(0.3, 0.7, len(two_way))).astype(np.int64)
        back = np.round(two_way).astype(np.int64) - out
        for number_of, nic in enumerate(self.fabric.nics):
            delays = []
            for edge, (peer, pair) in enumerate(self.edges[number_of]):
                way = out if self.a[pair] == peer else back
                delays.append(
                    LeastDelay(edge, 3000, int(way[pair] + self.clock[number_of] - self.clock[peer]))
                )
            records = unpack_delays(pack_delays(delays), len(delays))
            self.minima.add_delays(nic.host, records, (number + float(self.rng.uniform(0.01, 0.99))) * SLOT_S)


@pytest.fixture(scope="module")
def fleet():
    """Forty-eight hosts below six leaves that have reported for ten slots."""
    made = Fleet(Fabric(Plan(hosts=48, per_leaf=8, leaves_per_pod=0, congested=0.0), 3))
    made.floor = made.fabric.floor(made.a, made.b)[0]
    for number in range(SLOTS):
        made.slot(number, made.floor)
    return made


def by_name(nics, delays):
    rows = zip(delays.a.tolist(), delays.b.tolist(), delays.two_way_ns.tolist(), strict=True)
    return {frozenset((nics[a].name, nics[b].name)): ns for a, b, ns in rows}


def test_clocks_cancel(fleet):
    """Of every pair the sum of both ways is right to a nanosecond, though clocks differ by up to 200 us and wander."""
    nics, delays, coverage = fleet.minima.delays({}, (SLOTS - 0.001) * SLOT_S)
    found = by_name(nics, delays)
    names = [nic.name for nic in fleet.fabric.nics]
    for a, b, ns in zip(fleet.a.tolist(), fleet.b.tolist(), fleet.floor.tolist(), strict=True):
        assert found[frozenset((names[a], names[b]))] == pytest.approx(ns, abs=1.0)
    assert coverage == Coverage(hosts=48, pairs=len(found), known=len(found))
    assert {nic.rail for nic in nics} == {"rail0"}


def test_the_tree_is_found_from_reports(fleet):
    """NICs that are reported to share a leaf do, and nearly all NICs have one."""
    nics, delays, _ = fleet.minima.delays({"gpu-00000/eth0": "a1"}, (SLOTS - 0.001) * SLOT_S)
    order = {nic.name: at for at, nic in enumerate(fleet.fabric.nics)}
    place = np.array([order[nic.name] for nic in nics])
    tree = tree_of(nics, delays)
    reported = tree.of_kind(Kind.LEAF)
    assert (reported >= 0).mean() > 0.8
    for leaf in set(reported[reported >= 0].tolist()):
        assert len(set(fleet.fabric.leaf[place[reported == leaf]].tolist())) == 1


def slots(*values: float) -> np.ndarray:
    """One pair, the newest last."""
    return np.array([[np.inf] * (SLOTS - len(values)) + list(values)])


@pytest.mark.parametrize(
    ("two_way", "now"),
    [
        ((9000, 9100, 9050), 9050),
        ((9000, 2000, 9050, 9100), 9000),  # a clock moved in one slot
        ((9000,) * 7 + (12_000, 11_900, 40_000), 11_900),  # another route
        ((9000,) * 8 + (12_000, 11_900), 9000),  # too early to say
        ((9000,) * 7 + (12_000, 9_300, 40_000), 9000),  # a queue that was empty once
        ((9000,) * 8 + (7000, 7100), 7100),  # a shorter route
        ((9000,) * 7 + (12_000, np.inf, 11_000), 11_000),  # a report is missing
    ],
)
def test_what_a_pair_is_now(two_way, now):
    """The second smallest slot, or what it has been in the last three where all of them are longer."""
    assert lasting(slots(*two_way)) == [now]


def test_pairs_of_a_large_fleet_are_looked_at_in_parts(fleet, monkeypatch):
    """Where a part ends makes no difference to any pair."""
    *_, whole, coverage = fleet.minima.delays({}, (SLOTS - 0.001) * SLOT_S)
    monkeypatch.setattr("fabricpulse.diagnosis.tree.minima._BLOCK", 7)
    *_, parts, same = fleet.minima.delays({}, (SLOTS - 0.001) * SLOT_S)
    assert len(whole) > 100 and len(whole) % 7
    assert coverage == same
    for column in ("a", "b", "two_way_ns", "samples"):
        assert np.array_equal(getattr(whole, column), getattr(parts, column))


def test_a_nic_that_has_moved_is_at_its_new_leaf_within_three_slots():
    """Its longer pairs are long, its shorter ones short, and no other pair changes."""
    fabric = Fabric(Plan(hosts=32, per_leaf=8, leaves_per_pod=0, congested=0.0), 9)
    fleet = Fleet(fabric)
    before = fabric.floor(fleet.a, fleet.b)[0]
    for number in range(SLOTS):
        fleet.slot(number, before)
    fabric.move(3, int(fabric.leaf[20]))
    after = fabric.floor(fleet.a, fleet.b)[0]
    for number in range(SLOTS, SLOTS + 3):
        fleet.slot(number, after)
    nics, delays, _ = fleet.minima.delays({}, (SLOTS + 2.999) * SLOT_S)
    found = by_name(nics, delays)
    names = [nic.name for nic in fabric.nics]
    reported = [
        found[frozenset((names[a], names[b]))]
        for a, b in zip(fleet.a.tolist(), fleet.b.tolist(), strict=True)
    ]
    assert np.abs(np.array(reported) - after).max() <= 1.0
    assert np.abs(after - before).max() > 500


def pair(minima: TwoWayMinima, *hosts: str) -> None:
    for host in hosts:
        peers = tuple(EdgeName("e", other, "e") for other in ("a", "b", "c") if other != host)
        minima.edges(host, peers, HostFacts((("e", "r"),)), 0.0)


def test_machines_of_their_own():
    """What a host says of itself counts, unless no two hosts of the fleet share a machine."""
    for share, virtual in ((True, True), (False, False)):
        minima = TwoWayMinima(KEEP_S, share)
        minima.edges("a", (), HostFacts((("eth0", "rail0"),), True), 0.0)
        assert [nic.virtual for nic in minima.delays({}, 1.0)[0]] == [virtual]


def records(*rows: tuple[int, int, int]):
    return unpack_delays(pack_delays(LeastDelay(*row) for row in rows), 2)


def test_what_is_missing_is_named():
    """Hosts without delays, edges of which one end tells, and edges that are new; none of them has a two-way delay."""
    minima = TwoWayMinima(KEEP_S)
    assert "no mesh exporter reports here" in missing(minima.delays({}, 0.0)[2], 0, SLOT_S)[0]
    pair(minima, "a", "b", "c")
    minima.add_delays("a", records((0, 900, 5000), (1, 900, 6000)), 1.0)
    minima.add_delays("b", records((0, 900, 5500)), 1.0)
    nics, delays, coverage = minima.delays({}, 2.0)
    assert (len(nics), len(delays)) == (3, 0)
    assert coverage == Coverage(hosts=3, silent=1, pairs=3, without_delays=1, one_way=1, young=1)
    document = topology_document(tree_of(nics, delays), coverage, SLOT_S)
    assert document["placed"] == 0
    assert [entry["leaf"] for entry in document["nics"]] == [None] * 3
    text = " ".join(document["missing"])
    assert "1 of 3 hosts report no one-way delays" in text
    assert "of 1 of 3 edges no end reports a delay" in text
    assert "of 1 of 3 edges one end alone" in text
    assert "less than 180 s" in text


def test_what_is_gone_is_missing():
    """Hosts that still report, but no delays any more, are named at each moment until their NICs have no place left."""
    minima = TwoWayMinima(KEEP_S)
    pair(minima, "a", "b", "c")
    for slot in range(3 * SLOTS):
        for host in "abc":
            if slot < SLOTS:
                minima.add_delays(host, records((0, 900, 5000), (1, 900, 5000)), slot * SLOT_S)
            minima.seen(host, slot * SLOT_S)
        nics, delays, coverage = minima.delays({}, slot * SLOT_S)
        assert len(delays) == 3 or missing(coverage, len(nics), SLOT_S)
    assert coverage == Coverage(hosts=3, silent=3, pairs=3, without_delays=3)


def test_before_anything_was_computed():
    """The document has the same fields, and says that nothing is known."""
    some = topology_document(tree_of((), Delays.of((), ())), Coverage(), SLOT_S)
    assert nothing_learned().keys() == {*some, "computed", "age_s"}
    assert nothing_learned()["placed"] == 0
    assert nothing_learned()["missing"]


def test_few_samples_and_negative_sums_are_not_known():
    """A pair of too few probes, and one whose sum no packet can have, because a clock moved."""
    minima = TwoWayMinima(KEEP_S)
    pair(minima, "a", "b", "c")
    for slot in range(5):
        minima.add_delays("a", records((0, 30, 5000), (1, 900, -9000)), slot * SLOT_S)
        minima.add_delays("b", records((0, 900, 5000)), slot * SLOT_S)
        minima.add_delays("c", records((0, 900, 8000)), slot * SLOT_S)
    _, delays, coverage = minima.delays({}, 4 * SLOT_S)
    assert not len(delays)
    assert coverage.young == 2


def test_who_is_silent_is_forgotten():
    """After keep_s a host, its NICs and its pairs are gone; the pairs of others keep what was reported of them."""
    minima = TwoWayMinima(KEEP_S)
    pair(minima, "a", "b", "c")
    for slot in range(2 * SLOTS):
        for host, others in (("a", (0, 1)), ("b", (0, 1)), ("c", (0, 1))):
            if host != "c" or slot < 4:
                minima.add_delays(
                    host, records(*((edge, 900, 5000 + edge) for edge in others)), slot * SLOT_S
                )
    nics, delays, coverage = minima.delays({"a/e": "leaf"}, 2 * KEEP_S)
    assert {nic.name for nic in nics} == {"a/e", "b/e"}
    assert [nic.leaf for nic in nics if nic.host == "a"] == ["leaf"]
    assert delays.two_way_ns.tolist() == [10_000.0]
    assert coverage.hosts == 2
    pair(minima, "c")
    minima.add_delays("c", records((0, 900, 5000)), 2 * KEEP_S)
    assert minima.delays({}, 2 * KEEP_S)[2].hosts == 3


def peers(minima: TwoWayMinima, hosts: str, now_s: float) -> None:
    """These hosts have one another as peers from now on."""
    for host in hosts:
        edges = tuple(EdgeName("e", other, "e") for other in hosts if other != host)
        minima.edges(host, edges, HostFacts((("e", "r"),)), now_s)


def report_each_second(minima: TwoWayMinima, hosts: str, begin_s: float, end_s: float) -> None:
    for second in range(round(begin_s), round(end_s)):
        for host in hosts:
            minima.add_delays(host, records((0, 9, 5000), (1, 9, 5000)), float(second))


def test_a_host_with_another_name_is_there_once():
    """The others have it by its new name alone: the old one is gone after three slots, and not only after keep_s. So
    with all of them at once, which have one another as peers by their old names.
    """
    minima = TwoWayMinima(KEEP_S)
    peers(minima, "abc", 0)
    report_each_second(minima, "abc", 0, 4 * SLOT_S)
    peers(minima, "abd", 4 * SLOT_S)
    report_each_second(minima, "abd", 4 * SLOT_S, 7 * SLOT_S + 2)
    nics, _, coverage = minima.delays({}, 7 * SLOT_S + 2)
    assert ({nic.host for nic in nics}, coverage.hosts) == ({*"abd"}, 3)
    peers(minima, "xyz", 7 * SLOT_S + 2)
    report_each_second(minima, "xyz", 7 * SLOT_S + 2, 10 * SLOT_S + 4)
    nics, _, coverage = minima.delays({}, 10 * SLOT_S + 4)
    assert ({nic.host for nic in nics}, coverage.hosts) == ({*"xyz"}, 3)


def test_a_host_that_is_down_keeps_its_place():
    """Its peers still have it; and no host is gone because the coordinator was cut off from all."""
    minima = TwoWayMinima(KEEP_S)
    peers(minima, "abc", 0)
    report_each_second(minima, "abc", 0, 4 * SLOT_S)
    report_each_second(minima, "ab", 4 * SLOT_S, 9 * SLOT_S)
    assert minima.delays({}, 9 * SLOT_S)[2].hosts == 3
    peers(minima, "ef", 9 * SLOT_S)
    report_each_second(minima, "abcef", 9 * SLOT_S, 10 * SLOT_S)
    # Cut off: e and f are the first to report again, and have no peer among the others.
    report_each_second(minima, "ef", 12.5 * SLOT_S, 13 * SLOT_S + 10)
    assert minima.delays({}, 13 * SLOT_S + 10)[2].hosts == 5


def test_new_edges_keep_what_was_reported():
    """After a change of the membership the pairs that remain are known as before."""
    minima = TwoWayMinima(KEEP_S)
    pair(minima, "a", "b", "c")
    for slot in range(4):
        minima.add_delays("a", records((0, 900, 5000)), slot * SLOT_S)
        minima.add_delays("b", records((0, 900, 5000)), slot * SLOT_S)
    for host, peer in (("a", "b"), ("b", "a")):
        minima.edges(host, (EdgeName("e", "z", "e"), EdgeName("e", peer, "e")), None, 4 * SLOT_S)
    assert minima.delays({}, 4 * SLOT_S)[1].two_way_ns.tolist() == [10_000.0]


def test_nonsense_is_refused_or_left_out(monkeypatch):
    """Delays that are cut, of no edge, or of more than a second; NICs with names that no NIC has; too many pairs."""
    for data, edges in (
        (b"1234567", 9),
        (pack_delays([LeastDelay(3, 9, 1)]), 3),
        (b"\0\0\1\0\xff\xff\xff\x7f", 1),
    ):
        with pytest.raises(ValueError, match=r"cut|exist"):
            unpack_delays(data, edges)
    assert pack_delays([LeastDelay(0, 1, 2_000_000_000)]) == b""
    minima = TwoWayMinima(KEEP_S)
    for edge in (EdgeName("e/f", "b", "e"), EdgeName("e", "a", "f"), EdgeName("e", "b" * 999, "e")):
        minima.edges("a", (edge,), None, 0.0)
        minima.add_delays("a", records((0, 900, 5000)), 1.0)
    minima.add_delays("nobody", records((0, 900, 5000)), 1.0)
    assert minima.delays({}, 1.0)[2].pairs == 0
    assert MOST_PAIRS < 1_000_000
    monkeypatch.setattr("fabricpulse.diagnosis.tree.minima.MOST_PAIRS", 2)
    pair(minima, "a", "b", "c")
    found = minima.delays({}, 1.0)[2]
    assert (found.pairs, found.refused) == (2, 2)
    assert "2 edges are beyond" in missing(found, 3, SLOT_S)[-1]


def test_a_fleet_whose_hosts_change_is_never_full(monkeypatch):
    """Hosts that are gone make room, also where nobody asks for delays: a fork does that, which forgets for itself."""
    monkeypatch.setattr("fabricpulse.diagnosis.tree.minima.MOST_PAIRS", 6)
    monkeypatch.setattr("fabricpulse.diagnosis.flows.names._SPARE", 10)
    minima = TwoWayMinima(KEEP_S)
    for slot in range(10 * SLOTS):
        a, b = f"a{slot // 3}", f"b{slot // 3}"
        minima.edges(a, (EdgeName("e", b, "e"),), None, slot * SLOT_S)
        minima.edges(b, (EdgeName("e", a, "e"),), None, slot * SLOT_S)
        minima.add_delays(a, records((0, 900, 5000)), slot * SLOT_S)
        minima.add_delays(b, records((0, 900, 7000)), slot * SLOT_S)
        assert not minima.has_edges_of("a0") or slot <= 2 + SLOTS
    _, delays, coverage = minima.delays({}, slot * SLOT_S)
    assert (coverage.refused, coverage.hosts) == (0, 2 * coverage.pairs)
    assert delays.two_way_ns.tolist() == [12_000.0] * 3  # those of three slots at least
    assert len(minima._names) < 60
