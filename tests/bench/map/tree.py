"""The tree of simulated fabrics as a coordinator learns it, by reports of standing and temporary peers in virtual time:
how much of it is right, and what it costs.
"""

import itertools
import random
import time
from functools import partial

import numpy as np
from tests.bench.rows import Rows
from tests.fixtures.hostinfo.live_tree import LiveSurvey
from tests.fixtures.mesh.distant_nics import Fabric, Plan, Survey, some_pairs
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.tree_fleet import TreeFleet

from fabricpulse.diagnosis.tree.cabling import miscabled
from fabricpulse.diagnosis.tree.coverage import Coverage
from fabricpulse.diagnosis.tree.fabric_tree import tree_of
from fabricpulse.diagnosis.tree.learned import topology_document
from fabricpulse.diagnosis.tree.levels import Kind
from fabricpulse.diagnosis.tree.measured import Delays
from fabricpulse.lab import Lab

_SILENT = 0.05
# Share of the NICs whose cable goes to a wrong leaf.
_WRONG = 0.01

# Of temporary peers; where nothing is left to find out it ends before.
_MOST_ROUNDS = 40


def bench_tree(rows: Rows, largest: int, seed: int) -> None:
    """Fabrics of growing size, bare metal and virtual machines, with pairs that never answer, with wrong cables."""
    plain = {
        "leaf-spine": Plan(hosts=128, leaves_per_pod=0),
        "leaf-spine, names tell nothing": Plan(hosts=1024, leaves_per_pod=0, in_order=False),
        "3 tiers": Plan(hosts=1024, leaves_per_pod=8),
        "3 tiers, names tell nothing": Plan(hosts=1024, leaves_per_pod=8, in_order=False),
        "3 tiers of 10,000": Plan(hosts=10_000, leaves_per_pod=32),
    }
    virtual = {
        "leaf-spine, 2 VMs on a machine": Plan(hosts=256, on_machine=2, per_leaf=16, leaves_per_pod=0),
        "3 tiers, 4 VMs on a machine": Plan(hosts=1024, on_machine=4, per_leaf=16, leaves_per_pod=4),
    }
    for name, plan in (plain | virtual).items():
        if plan.hosts > largest:
            continue
        for silent in (0.0, _SILENT) if plan.hosts <= 1024 else (_SILENT,):
            _case(
                rows,
                f"{plan.hosts:,} hosts, {name}, {silent:.0%} of pairs silent",
                Fabric(plan, seed),
                silent,
            )
    for hosts in (64, 256):
        if hosts <= largest:
            _cables(rows, Plan(hosts=hosts, rails=4, per_leaf=16, leaves_per_pod=8), seed)


def bench_tree_random(rows: Rows, fabrics: int, seed: int) -> None:
    """What is published of random small fabrics: sizes, tiers, rails, stamps, load, congestion, and pairs that were
    measured, are drawn. Wrong is a NIC in a leaf, a pod or on a machine of which most NICs are of another one.
    """
    rng = np.random.default_rng(seed)
    reported = placed = wrong = 0
    for _ in range(fabrics):
        fabric, delays = _random(rng)
        document = topology_document(tree_of(fabric.nics, delays), Coverage(hosts=9), 60.0)
        number = {nic.name: at for at, nic in enumerate(fabric.nics)}
        true = {"leaf": fabric.leaf, "pod": fabric.pod, "machine": fabric.machine}
        of_group = [
            true[group["kind"]][[number[nic] for nic in group["nics"]]].tolist()
            for group in document["groups"]
            if group["kind"] in true
        ]
        reported += bool(of_group)
        placed += document["placed"] / len(fabric.nics)
        wrong += any(len(set(several)) > 1 for several in of_group)
    case = f"{fabrics} random fabrics, 9 to 256 NICs"
    rows.report(case, "fabrics_reported_wrongly", wrong, "fabrics", "== 0", reported=reported)
    rows.report(case, "placed_percent", 100 * placed / fabrics, "%")


def _random(rng: np.random.Generator) -> tuple[Fabric, Delays]:
    def one(*of: int) -> int:
        return of[int(rng.integers(len(of)))]

    rails = one(1, 1, 2)
    plan = Plan(
        hosts=one(9, 12, 16, 24, 32, 48, 64, 96, 128),
        rails=rails,
        per_leaf=one(2, 3, 4, 6, 8, 16, 32),
        leaves_per_pod=rails * one(0, 0, 2, 4),
        congested=one(0, 2, 10) / 100,
        stamp_ns=one(50, 300, 1000, 2000),
        load=one(1, 3, 5) / 10,
    )
    fabric = Fabric(plan, int(rng.integers(1 << 30)))
    degree, neighbours = one(2, 4, 6, 8, 10, 14, 20, 30), one(0, 2, 4, 8)
    return fabric, some_pairs(fabric, degree, neighbours, one(1000, 5000, 15_000))


def bench_tree_lab(rows: Rows) -> None:
    """Nine hosts of a lab below three leaves, with all peers and with two each; needs root."""
    for peers in (10, 2):
        with Lab(hosts=9, rails=1, spines=3, pods=3) as lab:
            fleet = TreeFleet(lab, peers=peers)
            reported = wait_for(partial(fleet.placed, 9), 240, "all NICs are placed")
        leaf = {entry["nic"]: entry["leaf"] for entry in reported["nics"]}
        true = {nic: number for number, nics in enumerate(fleet.true) for nic in nics}
        pairs = list(itertools.combinations(sorted(leaf), 2))
        right = sum((leaf[a] == leaf[b]) == (true[a] == true[b]) for a, b in pairs)
        more = {
            "standing": reported["pairs"],
            "temporary": reported["temporary_pairs"],
            "sigma_ns": reported["sigma_ns"],
        }
        case = f"lab, 9 hosts, 3 leaves, {peers} peers a NIC"
        rows.report(case, "tree_accuracy", 100 * right / len(pairs), "%", ">= 99", **more)


def _case(rows: Rows, case: str, fabric: Fabric, silent: float) -> Survey:
    survey = LiveSurvey(fabric, silent)
    standing = 100 * survey.all_pairs()
    wrongly = 0
    while survey.rounds < _MOST_ROUNDS and survey.assigned.number:
        survey.play_round()
        wrongly = max(wrongly, len(survey.reported_wrongly()))
    degree = round(2 * len(survey.tree.delays) / len(fabric.nics), 1)
    more = {
        "standing_peers_alone": round(standing, 3),
        "rounds": survey.rounds,
        "minutes": round((survey.now_s - survey.began_s) / 60, 1),
        "pairs_per_nic": degree,
        "most_at_once": survey.most_at_once,
    }
    rows.report(case, "tree_accuracy", 100 * survey.all_pairs(), "%", ">= 99", **more)
    rows.report(case, "reported_wrongly", wrongly, "NICs", "== 0")
    kinds = [Kind.LEAF] + [Kind.POD] * (fabric.plan.leaves_per_pod > 0)
    for kind in kinds:
        rows.report(case, f"same_{kind}_percent", 100 * survey.right(kind), "%", ">= 99")
    if fabric.plan.on_machine > 1:
        known, unknown = survey.known_machines()
        rows.report(
            case,
            "colocation_percent",
            100 * survey.right(Kind.MACHINE, known),
            "%",
            ">= 100",
            of="pairs that answer, or each of which answers a third one of the machine",
            no_answer=unknown,
            of_all=round(100 * survey.right(Kind.MACHINE), 2),
        )
        rows.report(
            case,
            "colocation_false",
            0.0 if survey.never_reported_wrongly(Kind.MACHINE) else 1.0,
            "yes",
            "== 0",
        )
    began = time.process_time()
    tree_of(fabric.nics, survey.tree.delays)
    rows.report(case, "tree_s", time.process_time() - began, "s")
    return survey


def _cables(rows: Rows, plan: Plan, seed: int) -> None:
    """Swapped cables of two rails, of two hosts, and cables in another rail's leaf."""
    fabric, rng = Fabric(plan, seed), random.Random(seed)
    right = fabric.leaf.copy()
    free = list(range(plan.hosts))
    rng.shuffle(free)
    for number in range(max(round(_WRONG * len(fabric.nics)), 3)):
        x = free.pop() * plan.rails + rng.randrange(plan.rails)
        if number % 3 == 0:
            fabric.swap(x, x - x % plan.rails + (x + 1) % plan.rails)
        elif number % 3 == 1:
            other = next(host for host in free if right[host * plan.rails] != right[x - x % plan.rails])
            free.remove(other)
            fabric.swap(x, other * plan.rails + x % plan.rails)
        else:
            fabric.move(x, int(right[x - x % plan.rails + (x + 1) % plan.rails]))
    case = f"{plan.hosts} hosts, 4 rails, wrong cables, {_SILENT:.0%} of pairs silent"
    survey = _case(rows, case, fabric, _SILENT)
    true = set((fabric.leaf != right).nonzero()[0].tolist())
    reported = {one.nic for one in miscabled(survey.tree)}
    rows.report(
        case,
        "wrong_cables_named_percent",
        100 * len(true & reported) / len(true),
        "%",
        ">= 100",
        nics=len(true),
    )
    rows.report(case, "wrong_cables_false", len(reported - true), "NICs", "== 0")
