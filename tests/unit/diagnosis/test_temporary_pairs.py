"""Temporary peers: what is assigned, for how long, and how long what they have reported is used."""

import copy
import math
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from tests.fixtures.hostinfo.live_tree import LiveSurvey
from tests.fixtures.mesh.distant_nics import Fabric, Plan

from fabricpulse.diagnosis.daemon.service import DiagnosisService
from fabricpulse.diagnosis.daemon.worker_messages import Answer, Declared
from fabricpulse.diagnosis.tree.assignment import MOST_PEERS, Assigner
from fabricpulse.diagnosis.tree.coverage import Coverage
from fabricpulse.diagnosis.tree.fabric_tree import tree_of
from fabricpulse.diagnosis.tree.findings import LEASE_S, AssignedPeers, KeptPair
from fabricpulse.diagnosis.tree.kept_pairs import LONGEST_S, KeptPairs, levels_of
from fabricpulse.diagnosis.tree.learned import topology_document
from fabricpulse.diagnosis.tree.measured import Delays
from fabricpulse.diagnosis.tree.temporary_peers import temporary_peers
from fabricpulse.diagnosis.wire.delay_records import unpack_delays
from fabricpulse.diagnosis.wire.messages import PROTOCOL, EdgeName, EvidenceReport, LeastDelay, pack_delays

pytestmark = pytest.mark.simulation

PODS = Plan(hosts=256, per_leaf=16, leaves_per_pod=4)


@pytest.fixture(scope="module")
def learned() -> LiveSurvey:
    """A fabric of pods of which all is known. Not to be changed: to learn it costs more than most tests."""
    return LiveSurvey(Fabric(PODS, 3)).learn()


@pytest.fixture
def survey(learned: LiveSurvey) -> LiveSurvey:
    """The same, to go on with."""
    return copy.deepcopy(learned)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_a_tree_is_learned_that_standing_peers_do_not_tell(seed: int) -> None:
    """In a fabric of pods ten peers a NIC tell no leaf. With rounds of temporary peers, one pair in twenty of which
    never answers, all pairs of NICs are reported right; no NIC has more than four at once, no leaf is reported
    wrongly on the way, and when nothing is left to find out nothing is assigned.
    """
    survey = LiveSurvey(Fabric(PODS, seed), deaf=0.05)
    assert survey.document["placed"] < 256
    while survey.assigned.number and survey.rounds < 30:
        survey.play_round()
        assert not survey.reported_wrongly()
    assert survey.all_pairs() > 0.998
    assert not survey.reported_wrongly()
    assert 0 < survey.most_at_once <= MOST_PEERS
    assert survey.assigned == AssignedPeers()
    assert survey.document["temporary_pairs"] == survey.learner.kept > 0
    assert survey.document["wanted_pairs"] == 0


@pytest.mark.parametrize("seed", range(6))
def test_any_plan_is_bounded(seed: int) -> None:
    """Whatever is known: no NIC is in more pairs than it takes, no pair is of one host, was measured well, or is one of
    those that do not answer; the same state gives the same plan.
    """
    rng = random.Random(seed)
    fabric = Fabric(
        Plan(hosts=60, rails=rng.choice([1, 2]), per_leaf=rng.choice([6, 20]), leaves_per_pod=4), seed
    )
    n = len(fabric.nics)
    pairs = np.array([rng.sample(range(n), 2) for _ in range(rng.randrange(1, 8) * n)])
    tree = tree_of(fabric.nics, fabric.measure(pairs[:, 0], pairs[:, 1], 5000))
    room = [rng.randrange(5) for _ in range(n)]
    silent = {(a, b) for a, b in (sorted(rng.sample(range(n), 2)) for _ in range(200))}
    plan = temporary_peers(tree, room, seed, silent)
    assert plan == temporary_peers(tree, room, seed, silent)
    count = np.bincount(np.array(plan, np.int64).ravel(), minlength=n)
    assert (count <= room).all()
    known = dict(
        zip(
            zip(tree.delays.a.tolist(), tree.delays.b.tolist(), strict=True),
            tree.delays.samples.tolist(),
            strict=True,
        )
    )
    for a, b in plan:
        assert a < b
        assert fabric.nics[a].host != fabric.nics[b].host
        assert (a, b) not in silent
        assert known.get((a, b), 0) < 20_000


def edge(peer: str) -> EdgeName:
    return EdgeName("e", peer, "e")


def delays(ns: int):
    return unpack_delays(pack_delays([LeastDelay(0, 900, ns)]), 1)


def play(assigner: Assigner, now_s: float, hosts: str = "ab") -> float:
    """A round of one pair, of which these hosts tell. Returns when it is over."""
    assert assigner.current is not None
    until_s = assigner.current.until_s
    while now_s < until_s:
        for host in hosts:
            assigner.add_delays(host, [edge("b" if host == "a" else "a")], delays(4000), now_s)
        assert not assigner.advance(now_s)
        now_s += assigner.period_s
    assert assigner.advance(until_s)
    return until_s


def test_a_round_measures_what_was_dealt() -> None:
    """Both ends tell: the pair is known. It ends by itself, another cannot begin meanwhile, and edges that were not
    assigned are not taken.
    """
    assigner = Assigner(60.0)
    assigner.begin([("a/e", "b/e")], 100.0)
    assigner.begin([("a/e", "c/e")], 101.0)
    assert assigner.number == 1
    for _ in range(9):
        assigner.add_delays("a", [edge("c")], delays(1), 101.0)
    until_s = play(assigner, 102.0)
    ended, measured = assigner.measured()
    assert ended is not None
    assert (ended.number, measured) == (1, [(("a/e", "b/e"), 8000.0, measured[0][2])])
    assigner.settle(1, frozenset({("a/e", "b/e")}), until_s)
    assert assigner.measured() == (None, [])
    assert assigner.wants(until_s)


def test_who_does_not_answer_is_left_alone() -> None:
    """One end alone tells nothing. After two such rounds the pair is given up for an hour; rounds without any answer
    are farther and farther apart, up to an hour.
    """
    assigner, now_s, pauses = Assigner(60.0), 0.0, []
    for _ in range(7):
        assigner.begin([("a/e", "b/e")], now_s)
        now_s = play(assigner, now_s, "a")
        ended, measured = assigner.measured()
        assert ended is not None
        assert measured == []
        assigner.settle(ended.number, frozenset(), now_s)
        begin_s = now_s
        while not assigner.wants(now_s):
            now_s += 10
        pauses.append(now_s - begin_s)
    assert pauses == [300, 600, 1200, 2400, 3600, 3600, 3600]
    assert assigner.given_up(begin_s) == {("a/e", "b/e")}
    assert assigner.given_up(begin_s + 3601) == set()


LEVELS = {"a/e": 5000.0, "b/e": 6000.0}
PAIR = KeptPair("a/e", "b/e", 8000.0, 900, 100.0, 5000.0, 6000.0)


def kept() -> KeptPairs:
    pairs = KeptPairs()
    pairs.add([PAIR])
    return pairs


def test_a_pair_is_believed_as_long_as_it_may_be_true() -> None:
    """Not after six hours, after one of its NICs was disconnected, or when the standing pairs of one are shorter or
    longer; what is not known now is neither believed nor forgotten.
    """
    assert kept().settled(LEVELS, 200.0) == ([PAIR], [])
    gone: tuple[list[KeptPair], list[tuple[str, str]]] = ([], [("a/e", "b/e")])
    assert kept().settled(LEVELS, 101.0 + LONGEST_S) == gone
    for nic, level in LEVELS.items():
        moved = kept()
        moved.moved([nic], 150.0)
        assert moved.settled(LEVELS, 200.0) == gone
        # What was measured since then counts.
        assert moved.settled(LEVELS, 200.0, [PAIR._replace(at_s=160.0)]) == ([PAIR._replace(at_s=160.0)], [])
        for shift in (-301.0, 301.0):
            assert kept().settled(LEVELS | {nic: level + shift}, 200.0) == gone
        assert kept().settled(LEVELS | {nic: level + 299.0}, 200.0) == ([PAIR], [])
        assert kept().settled(LEVELS | {nic: math.nan}, 200.0) == ([], [])
        assert kept().settled({k: v for k, v in LEVELS.items() if k != nic}, 200.0) == ([], [])


def test_levels() -> None:
    """The middle one of a NIC's pairs, the shorter of two, none of a NIC without."""
    nics = Fabric(Plan(hosts=5), 1).nics
    found = levels_of(
        nics, Delays.of([(0, 1, 10.0, 900), (0, 2, 20.0, 900), (0, 3, 90.0, 900), (1, 2, 30.0, 900)], nics)
    )
    assert found[:4].tolist() == [20.0, 10.0, 20.0, 90.0]
    assert math.isnan(found[4])


def test_a_nic_that_was_moved_is_not_reported_at_its_old_leaf(survey: LiveSurvey) -> None:
    """Its host tells that it was disconnected: what temporary peers have measured of it counts no more, it is never
    reported beside its old neighbours once its standing edges are known anew, and rounds find its new place.
    """
    assert not survey.reported_wrongly()
    survey.fabric.move(5, int(survey.fabric.leaf[100]))
    survey.moved(5)
    survey.stand_anew()
    survey.compute()
    assert not survey.reported_wrongly()
    survey.learn(survey.rounds + 20)
    assert not survey.reported_wrongly()
    assert survey.all_pairs() > 0.999


@pytest.mark.parametrize(
    "change_ns", [-2500.0, 900.0, *(pytest.param(ns, marks=pytest.mark.slow) for ns in (-900.0, 2500.0))]
)
def test_a_stack_that_has_changed_makes_no_neighbours(survey: LiveSurvey, change_ns: float) -> None:
    """The stack term of a NIC is another one, without a disconnect: its old pairs would seem nearer, or farther, than
    they are. They are measured again, and nothing is reported wrongly meanwhile.
    """
    before = survey.learner.kept
    survey.fabric.term[5] += change_ns
    survey.stand_anew()
    survey.compute()
    assert not survey.reported_wrongly()
    assert survey.learner.kept < before
    survey.learn(survey.rounds + 20)
    assert not survey.reported_wrongly()
    assert survey.all_pairs() > 0.999


def test_what_the_tree_stands_on_is_measured_anew_in_time(survey: LiveSurvey) -> None:
    """Hours later, when pairs are half as old as they may become, they are assigned again, and none is lost."""
    before = survey.learner.kept
    survey.now_s += LONGEST_S / 2 + 3600
    survey.compute()
    assert survey.assigned.number
    survey.learn(survey.rounds + 20)
    survey.now_s += LONGEST_S / 2 - 3600
    survey.compute()
    assert survey.all_pairs() > 0.999
    assert survey.learner.kept >= before


@pytest.mark.parametrize(("share", "reported"), [(0.04, True), (0.2, False)])
def test_a_tree_that_the_pairs_contradict_is_not_reported(
    learned: LiveSurvey, share: float, reported: bool
) -> None:
    """Where many pairs are nearer than the class that they should be of, which no queue makes them, nothing is
    reported.
    """
    tree = learned.tree
    near = np.random.default_rng(1).random(len(tree.delays)) < share
    delays = replace(tree.delays, two_way_ns=tree.delays.two_way_ns - 2000.0 * near)
    document = topology_document(replace(tree, delays=delays), Coverage(hosts=9), 60.0)
    assert (document["placed"] > 150, bool(document["groups"])) == (reported, reported)
    assert ("of the pairs are nearer than the tree" in " ".join(document["missing"])) != reported


def test_a_single_pair_places_nobody() -> None:
    """It may be wrong: what one pair alone holds together is not reported, and what two do is."""
    fabric = Fabric(Plan(hosts=24, per_leaf=6, leaves_per_pod=0, congested=0.0), 1)
    a, b = np.triu_indices(24, 1)
    near = fabric.leaf[a] == fabric.leaf[b]
    for pairs, placed in ((1, 23), (2, 24)):
        of_first = np.flatnonzero(near & (a == 0))[:pairs]
        use = ~near | (a > 0)
        use[of_first] = True
        delays = fabric.measure(a[use], b[use], 15_000)
        document = topology_document(tree_of(fabric.nics, delays), Coverage(hosts=9), 60.0)
        assert (document["nics"][0]["leaf"] is None) == (pairs == 1)
        assert document["placed"] == placed


def test_hosts_that_take_none_are_asked_for_none() -> None:
    """An exporter of an older version, or one that was configured to take none."""
    survey = LiveSurvey(Fabric(PODS, 3), capacity=0)
    assert survey.assigned == AssignedPeers()


def test_exporters_of_an_older_version_have_no_place_and_spoil_none() -> None:
    """One host in eight tells its edges and no delays: pairs with it are half known, which is nothing. It is asked for
    no temporary peer and has no place; all others have the right one, and what is missing is said.
    """
    fabric = Fabric(Plan(hosts=64, per_leaf=16, leaves_per_pod=0), 3)
    old = {nic.host for nic in fabric.nics[::8]}
    survey = LiveSurvey(fabric, old=old)
    while survey.assigned.number and survey.rounds < 20:
        assert not old & survey.assigned.edges.keys()
        survey.play_round()
        assert not survey.reported_wrongly()
    reported = {
        entry["nic"].partition("/")[0] for entry in survey.document["nics"] if entry["leaf"] is not None
    }
    assert reported == {nic.host for nic in fabric.nics} - old
    assert "8 of 64 hosts report no one-way delays" in " ".join(survey.document["missing"])


def test_a_lease_ends_with_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply gives a host its edges for some seconds, never longer than the round: also if the worker is stopped. A
    worker that was replaced has assigned nothing.
    """
    service, now_s = DiagnosisService(Declared({}, {}), lambda _: True), time.monotonic()
    asked_again = {"c"}
    monkeypatch.setattr(service, "take", lambda report, _: report.host in asked_again)

    def of(host: str) -> EvidenceReport:
        return EvidenceReport(PROTOCOL, host, 1, 1, 90.0, 20.0, b"")

    assert service.reply(of("a"), now_s).temporary == b""
    service._answered(Answer(assigned=AssignedPeers(7, 15.0, now_s + 60, dict.fromkeys("ac", b"x"))))
    reply = service.reply(of("a"), now_s)
    assert (reply.temporary, reply.lease_s, reply.round, reply.period_s) == (b"x", LEASE_S, 7, 15.0)
    assert service.reply(of("a"), now_s + 58).lease_s == pytest.approx(2)
    assert service.reply(of("a"), now_s + 60).temporary == b""
    assert service.reply(of("b"), now_s).temporary == b""
    assert service.reply(of("c"), now_s).temporary == b""
    service.process.starts += 1
    assert service.reply(of("a"), now_s).temporary == b""
