"""Jobs that fill a link each look like jobs that share one; what they carried before tells them apart."""

import dataclasses
import random

import pytest
from msgspec.structs import replace
from tests.unit.remediation.fabric_model import AUTO, LINK, Fabric
from tests.unit.remediation.test_lane_evidence import series

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.receiver.config import RebalanceConfig, ReceiverConfig
from fabricpulse.remediation.receiver.lane_evidence import LaneEvidence
from fabricpulse.remediation.receiver.lane_planner import Proposal, propose
from fabricpulse.remediation.receiver.link_bounds import LinkBounds

OBSERVE = parse_config("rules: []\nrebalance: {mode: observe}\n", ReceiverConfig, "test")


def watched(seconds: float, jobs: int = 2) -> Fabric:
    """Jobs on one link, seen for so long by a receiver that moves nothing."""
    fabric = Fabric(2, jobs, 1, 4, config=OBSERVE)
    fabric.collide()
    fabric.run(seconds)
    return fabric


def put_apart(fabric: Fabric) -> None:
    """As the plugin does, or whoever starts the job again; the receiver may act from now on."""
    lane = fabric.lanes[1]
    lane.entropy = next(port for port in range(1024, 65535) if fabric.link_of(lane, port) == 1)
    assert fabric.goodput() == pytest.approx(2 * LINK)
    fabric.reconciler.set_policy(parse_config(AUTO, ReceiverConfig, "test"), {})


def shared(fabric: Fabric) -> Proposal:
    lanes = fabric.reconciler.evidence.summaries(fabric.now - 10, fabric.now)
    (proposal,) = propose(RebalanceConfig(), lanes, {})
    return proposal


def test_jobs_that_fill_a_link_each_are_left_there():
    """They carry twice what they carried on one link, so they are on two."""
    fabric = watched(12)
    put_apart(fabric)
    fabric.run(600)
    assert shared(fabric).predicted > 1.7, "by how they look now"
    assert fabric.plans() == []


def test_of_jobs_on_more_than_one_link_slow_lanes_move():
    """Two jobs with a lane each way. They collide on three of four links: what they carry is more than one link does,
    and the plan is about the lanes that deliver less than their job's others, for the good of all."""
    fabric = Fabric(2, 2, 4, 4, config=OBSERVE)
    fabric.collide()
    fabric.run(12)
    for lane in fabric.lanes[4:7]:
        lane.entropy = next(port for port in range(1024, 65535) if fabric.link_of(lane, port) == 1)
    fabric.reconciler.set_policy(parse_config(AUTO, ReceiverConfig, "test"), {})
    fabric.run(30)
    assert fabric.plans() != []
    for plan in fabric.plans():
        assert (len(plan.scope), len(plan.moves)) == (2, 1)


def test_jobs_on_one_link_are_promised_as_much_as_ever():
    fabric = watched(60)
    proposal = shared(fabric)
    bounds = LinkBounds(RebalanceConfig(), fabric.reconciler.evidence)
    assert bounds.bounded(proposal, fabric.now) == proposal


def test_what_was_not_seen_bounds_nothing():
    fabric = watched(10)
    proposal = shared(fabric)
    assert LinkBounds(RebalanceConfig(), LaneEvidence()).bounded(proposal, fabric.now) == proposal


def test_idle_spans_bound_nothing():
    """A job that computes or waits sends less than its path would take."""
    fabric = watched(10)
    evidence, full = LaneEvidence(), dict(fabric.reconciler.evidence.summaries(fabric.now - 10, fabric.now))
    for second in range(60):
        for lane in full.values():
            part = 0.1 if second < 30 else 1.0
            sample = replace(lane.last, goodput=part * lane.goodput, busy=part, delay_s=1e-4)
            evidence.add(lane.host, [sample], fabric.now + second)
    bounded = LinkBounds(RebalanceConfig(), evidence).bounded(shared(fabric), fabric.now + 59)
    assert bounded is not None
    assert bounded.predicted > 1.7


def test_a_search_looks_into_a_few_and_the_next_ones_into_the_rest():
    """Those that were looked into are known for a while; afterwards what was seen meanwhile counts."""
    fabric = watched(12)
    proposal = shared(fabric)
    assert proposal.sharing is not None
    first, second = proposal.sharing.lanes
    # The same lanes, by other names for each proposal.
    many = [
        dataclasses.replace(
            proposal,
            sharing=dataclasses.replace(
                proposal.sharing, lanes=(tuple(dataclasses.replace(x, host=f"h{n}") for x in first), second)
            ),
        )
        for n in range(20)
    ]
    bounds = LinkBounds(RebalanceConfig(), fabric.reconciler.evidence)
    waits = []
    for search in range(4):
        bounds.begin(fabric.now + 2 * search)
        waits.append(sum(bounds.bounded(each, fabric.now + 2 * search) is None for each in many))
    assert waits == [12, 4, 0, 0]


@pytest.mark.parametrize("seed", range(10))
def test_spans_are_those_of_summaries(seed):
    """The same numbers as for any other span."""
    chance = random.Random(seed)
    evidence, samples = LaneEvidence(), series(chance)
    for at, sample in samples:
        evidence.add("h", [replace(sample, busy=chance.random())], at)
    now, length = samples[-1][0], chance.choice([4.0, 10.0])
    (key,) = evidence.moves()
    expected = []
    for number in range(int(2 * (now - samples[0][0]) / length) + 2):
        until = now - number * length / 2
        lane = evidence.summaries(until - length, until).get(key)
        if lane is not None:
            full = lane.busy >= 0.6 or lane.goodput >= 0.7 * lane.capacity
            expected.append((pytest.approx(lane.goodput), pytest.approx(lane.busy), full))
    assert [tuple(span) for (span,) in evidence.spans([key], length, now)] == expected
