"""`make bench NAME=placement`: how much cheaper the order of ranks is, how near to the optimum, how long it takes.

Prints one JSON object a line and exits with 1 if a gate is missed. `ARGS="--only gain,optimum"` chooses parts, also as
`make bench NAME=map ARGS="--only placement"`. Sizes: `--cases N`, `--first SEED`.

gain : jobs of 128 to 16,384 GPUs on fabrics whose host names say nothing of where they are (worst of names), or follow
the tree; times by name and random hosts. optimum : random small jobs and fabrics against the exact optimum. learned : a
tree that was learned from simulated delays instead of a declared one. large : 16,384 ranks, CPU time of one core.
"""

import argparse
import os
import random
import sys
import time

import numpy as np
from tests.bench.rows import Rows, quantile
from tests.fixtures.hostinfo.live_tree import LiveSurvey
from tests.fixtures.mesh.distant_nics import Fabric as Simulated
from tests.fixtures.mesh.distant_nics import Plan
from tests.fixtures.placement.cases import fabric_of_size, optimum, small_problem

from fabricpulse.diagnosis.tree.documents import places_file_of
from fabricpulse.placement.cost import Weights, tier_bytes
from fabricpulse.placement.fabric import Fabric, fabric_of
from fabricpulse.placement.formats.document import ratio
from fabricpulse.placement.order import Order, Problem, place
from fabricpulse.placement.places import PlacesFile, declarations, places
from fabricpulse.placement.shape import Shape
from fabricpulse.placement.traffic import Model, shape_traffic

_DENSE, _EXPERTS = Model(), Model(parameters=2e10, expert_parameters=2e11)
JOBS = (
    ("128 GPUs, 4 leaves, 2 pods", (2, 2, 4), Shape(8, 4, 4), _DENSE),
    ("1,024 GPUs, 16 leaves, 4 pods", (4, 4, 8), Shape(4, 8, 32), _DENSE),
    ("1,024 GPUs, 16 leaves, 4 pods, experts", (4, 4, 8), Shape(2, 8, 64, 16), _EXPERTS),
    ("4,096 GPUs, 32 leaves, 4 pods", (4, 8, 16), Shape(8, 16, 32), _DENSE),
    ("16,384 GPUs, 128 leaves, 8 pods", (8, 16, 16), Shape(8, 16, 128), _DENSE),
    ("16,384 GPUs, 128 leaves, 8 pods, experts", (8, 16, 16), Shape(4, 8, 512, 32), _EXPERTS),
)


def bench_placement(rows: Rows, cases: int, first: int, parts: set[str]) -> None:
    """parts : of gain, optimum, learned, large; empty for all."""
    if not parts or "gain" in parts:
        _gain(rows)
    if not parts or "optimum" in parts:
        _optimum(rows, cases, first)
    if not parts or "learned" in parts:
        _learned(rows)
    if not parts or "large" in parts:
        _large(rows)


def _gain(rows: Rows) -> None:
    for name, (pods, leaves, hosts), shape, model in JOBS:
        scattered = fabric_of_size(pods, leaves, hosts, 8, seed=1)
        _report(rows, f"{name}, scattered names", scattered, shape, model)
        _report(rows, f"{name}, names by leaf", _named_by_leaf(pods, leaves, hosts, 0), shape, model)
        _report(rows, f"{name}, names by leaf, gaps", _named_by_leaf(pods, leaves, hosts, 1), shape, model)


def _named_by_leaf(pods: int, leaves: int, hosts: int, spare: int) -> Fabric:
    """Names count through the tree: what names are in the best case. spare : hosts more of each leaf, as many of which
    are out of order, on any leaf."""
    count, hosts = pods * leaves * hosts, hosts + spare
    below = {
        f"leaf-{leaf:03}": f"gpu-[{leaf * hosts:05}-{(leaf + 1) * hosts - 1:05}]"
        for leaf in range(pods * leaves)
    }
    names = list(below)
    file = PlacesFile(
        leaves=dict(below),
        pods={f"pod-{pod}": tuple(names[pod * leaves : (pod + 1) * leaves]) for pod in range(pods)},
    )
    found = places(declarations(file), (), 8)
    return fabric_of(random.Random(1).sample(found, count))


def _report(rows: Rows, case: str, fabric: Fabric, shape: Shape, model: Model) -> None:
    order, cpu_s = _placed(fabric, shape, model)
    beyond = {
        f"{tier}_gb": [round(float(score.tiers[index]) / 1e9, 1) for score in (order.before, order.after)]
        for index, tier in enumerate(("host", "leaf", "pod", "beyond"))
    }
    gain = ratio(order.before.cost, order.after.cost)
    random = ratio(order.random_cost, order.after.cost)
    more = {"shape": shape.describe(), "improved": order.improved, "cpu_s": round(cpu_s, 2), **beyond}
    rows.report(case, "placement_gain", gain or float("inf"), "times", ">= 1", peer="order of names", **more)
    rows.report(case, "placement_gain", random or float("inf"), "times", peer="hosts in random order")


def _placed(fabric: Fabric, shape: Shape, model: Model) -> tuple[Order, float]:
    began = time.process_time()
    problem = Problem(fabric, shape_traffic(shape, model.payloads(shape)), shape)
    order = place(problem, lambda: False)
    return order, time.process_time() - began


def _optimum(rows: Rows, cases: int, first: int) -> None:
    shares = []
    for seed in range(first, first + cases):
        problem = small_problem(seed)
        order = place(problem, lambda: False)
        best = optimum(problem, order.after.cost)
        shares.append(best / order.after.cost if order.after.cost > 0 else 1.0)
    case = f"{cases} random jobs of 4 to 9 blocks"
    exact = sum(share > 1 - 1e-9 for share in shares)
    mean = sum(shares) / len(shares)
    rows.report(
        case,
        "placement_to_optimum",
        min(shares),
        "ratio",
        ">= 0.95",
        mean=round(mean, 6),
        p1=round(quantile(shares, 0.01), 6),
        optimal=exact,
        first_seed=first,
    )


def _learned(rows: Rows) -> None:
    """The order that follows from a tree that the coordinator has learned from delays, judged by its true tree."""
    plan = Plan(hosts=256, per_leaf=16, leaves_per_pod=4, in_order=False)
    survey = LiveSurvey(Simulated(plan, 1)).learn()
    file, left_out = places_file_of(survey.document)
    leaf, pod = survey.fabric.leaf.tolist(), survey.fabric.pod_of_leaf.tolist()
    names = [nic.name for nic in survey.fabric.nics]
    below: dict[str, str | tuple[str, ...]] = {
        f"leaf-{number}": tuple(name for name, at in zip(names, leaf, strict=True) if at == number)
        for number in range(len(pod))
    }
    pods = {
        f"pod-{number}": tuple(f"leaf-{at}" for at, above in enumerate(pod) if above == number)
        for number in set(pod)
    }
    case = "2,048 GPUs, 16 leaves, 4 pods, a learned tree"
    rows.report(case, "hosts_placed", len(survey.fabric.nics) - len(left_out), "hosts", "== 256")
    if left_out:
        return
    true = fabric_of(places(declarations(PlacesFile(below, pods)), (), 8))
    learned = fabric_of(places(declarations(PlacesFile(file["leaves"], file["pods"])), (), 8))
    shape = Shape(8, 8, 32)
    (of_true, _), (of_learned, cpu_s) = (_placed(fabric, shape, _DENSE) for fabric in (true, learned))
    # Each rank on the same GPU of the same host of the true fabric.
    at = {place.host: first for place, first in zip(true.places, true.first.tolist(), strict=False)}
    host = learned.host[of_learned.slot_of]
    first = np.array([at[place.host] for place in learned.places])
    slot_of = first[host] + of_learned.slot_of - learned.first[host]
    traffic, weights = shape_traffic(shape, _DENSE.payloads(shape)), Weights().array()
    costs = [float(tier_bytes(true, traffic, slots) @ weights) for slots in (of_true.slot_of, slot_of)]
    more = {"rounds": survey.rounds, "cpu_s": round(cpu_s, 2)}
    rows.report(case, "placement_learned_to_true", costs[0] / costs[1], "ratio", ">= 0.95", **more)


def _large(rows: Rows) -> None:
    fabric = fabric_of_size(8, 16, 16, 8, seed=1)
    for shape, model in ((Shape(8, 16, 128), _DENSE), (Shape(1, 16, 1024, 64), _EXPERTS)):
        _, cpu_s = _placed(fabric, shape, model)
        rows.report(f"16,384 ranks, {shape.describe()}", "placement_cpu_s", cpu_s, "s", "<= 10")


def main() -> None:
    """Runs the parts asked for."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "tests.bench.placement", *sys.argv[1:]])  # noqa: S606
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="comma separated parts: gain, optimum, learned, large; default: all"
    )
    parser.add_argument("--cases", type=int, default=200, help="of the part optimum")
    parser.add_argument("--first", type=int, default=1000, help="first seed of the part optimum")
    options = parser.parse_args()
    parts = set(filter(None, options.only.split(",")))
    if unknown := parts - {"gain", "optimum", "learned", "large"}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    rows = Rows("placement")
    bench_placement(rows, options.cases, options.first, parts)
    sys.exit(rows.exit_code())


if __name__ == "__main__":
    main()
