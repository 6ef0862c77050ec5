"""Leaves of random fabrics that are well, and after one has lost an uplink: which are named, which are not known.

What is traced is drawn as a hash would: each flow takes one of the uplinks of its leaf. A leaf that lacks one sends the
same flows over the others.
"""

import dataclasses
import random
from collections import Counter

import numpy as np
from tests.bench.map.fabric import Clos, Simulation
from tests.bench.rows import Rows

from fabricpulse.diagnosis.flows.flow_table import FlowTable
from fabricpulse.diagnosis.leaf_paths.found import State
from fabricpulse.diagnosis.leaf_paths.next_hops import next_hops
from fabricpulse.diagnosis.leaf_paths.siblings import LeafState, compared


def _states(table: FlowTable) -> list[LeafState]:
    return compared(next_hops(table), lambda _: "rail")


def _without_uplink(table: FlowTable, draw: random.Random) -> tuple[FlowTable, int, int] | None:
    """One leaf and a next hop that it has no more, of those with several."""
    found = next_hops(table)
    leaf = draw.choice(sorted(set(found.leaf.tolist())))
    hops = [
        hop
        for of, hop in zip(found.leaf.tolist(), found.hop.tolist(), strict=True)
        if of == leaf and hop >= 0
    ]
    if len(hops) < 2:
        return None
    gone = draw.choice(hops)
    rows = table.hops.copy()
    first = rows[:, :2].astype(np.int64) + table.first_switch
    these = np.flatnonzero((first[:, 0] == leaf) & (first[:, 1] == gone))
    others = [hop - table.first_switch for hop in hops if hop != gone]
    rows[these, 1] = draw.choices(others, k=len(these))
    return dataclasses.replace(table, hops=rows), leaf, gone


def bench_leaf_paths(rows: Rows, fabrics: int, seed: int) -> None:
    """`fabrics` random ones of one to three pods, with 2, 4 or 8 spines each."""
    well, cut = Counter[State](), Counter[str]()
    for number in range(fabrics):
        draw = random.Random(seed + number)
        pods, leaves = draw.choice([1, 2, 3]), draw.choice([3, 4, 8])
        hosts = leaves * pods * draw.choice([2, 4, 8, 16])
        clos = Clos(hosts=hosts, leaves=leaves * pods, pods=pods, spines=draw.choice([2, 4, 8]), cores=2)
        table = Simulation(clos, draw.choice([0.0, 0.1]), seed + number).seen
        well.update(state.state for state in _states(table))
        changed = _without_uplink(table, draw)
        if changed is None:
            continue
        table, leaf, gone = changed
        for state in _states(table):
            if state.leaf == leaf:
                named = state.state is State.FEWER
                cut["right" if named and state.missing == (gone,) else "wrong" if named else "unnamed"] += 1
            elif state.state is State.FEWER:
                cut["others"] += 1
    case = f"{fabrics} random fabrics, seed {seed}"
    rows.report(
        f"{case}, well",
        "leaves_named",
        well[State.FEWER],
        "",
        "== 0",
        whole=well[State.WHOLE],
        unknown=well[State.UNKNOWN],
    )
    case += ", an uplink of one leaf gone"
    rows.report(case, "others_named", cut["others"], "leaves", "== 0")
    total = cut["right"] + cut["wrong"]
    rows.report(case, "named_right_percent", 100 * cut["right"] / max(total, 1), "%", ">= 98", named=total)
    rows.report(case, "named_percent", 100 * total / max(total + cut["unnamed"], 1), "%")
