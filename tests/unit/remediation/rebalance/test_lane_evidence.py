"""What is said of a lane over a span of time, against sums made one sample at a time."""

import random
from itertools import pairwise

import pytest
from msgspec.structs import replace

from fabricpulse.remediation.protocol import LaneSample
from fabricpulse.remediation.receiver.config import RebalanceConfig
from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneEvidence, LaneSummary
from fabricpulse.remediation.receiver.rebalance.lane_planner import below_good

START = 1.7e9


def series(chance: random.Random) -> list[tuple[float, LaneSample]]:
    """Reports that come when they come, at times with nothing known of delay or of what is under way."""
    at, found = START, []
    for _ in range(chance.randint(2, 40)):
        at += chance.choice([0.5, 2.0, 2.0, 2.0, 5.0])
        sample = LaneSample(
            "7",
            f"{1:016x}",
            0,
            "job",
            "rail0",
            chance.randint(1024, 9999),
            1,
            chance.choice([0.0, 9e6 * chance.random()]),
            chance.choice([0.0, 1e7, 2e7]),
            chance.choice([-1.0, 1e-4, 1e-3]),
            chance.choice([0, 0, 5]),
            chance.randint(0, 1),
            busy=chance.choice([-1.0, chance.random()]),
        )
        found.append((at, sample))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_means_over_the_intervals_that_end_in_the_span(seed):
    """And the span is known only with a sample in its first third and one in its last."""
    chance = random.Random(seed)
    evidence, samples = LaneEvidence(), series(chance)
    for at, sample in samples:
        evidence.add("h", [sample], at)
    for _ in range(20):
        until = samples[-1][0] - chance.choice([0, 0, 1, 3, 10])
        since = until - chance.choice([3, 6, 10, 30])
        third = (until - since) / 3
        inside = [(at, s) for at, s in samples if since <= at <= until]
        known = len(inside) > 1 and inside[0][0] <= since + third and inside[-1][0] >= until - third
        found = list(evidence.summaries(since, until).values())
        assert len(found) == known
        assert list(evidence.repathed(since, until).values()) == [lane.repathed for lane in found]
        if not known:
            continue
        parts = [(after[1], after[0] - before[0]) for before, after in pairwise(inside)]
        total = inside[-1][0] - inside[0][0]
        busy = [(s.busy, w) for s, w in parts if s.busy >= 0]
        weight = sum(w for _, w in busy)
        (lane,) = found
        assert lane.goodput == pytest.approx(sum(s.goodput * w for s, w in parts) / total)
        known_for = sum(w for s, w in parts if s.capacity > 0)
        delivered = sum(s.capacity * w for s, w in parts)
        assert lane.capacity == pytest.approx(delivered / known_for if known_for else 0)
        assert lane.busy == pytest.approx(sum(b * w for b, w in busy) / weight if weight else -1)
        assert lane.last == inside[-1][1]
        assert lane.repathed == (inside[0][1].repaths != inside[-1][1].repaths)
        # The floor is of all samples, also of those before and after the span.
        floor = min((s.delay_s for _, s in samples if s.delay_s > 0), default=float("inf"))
        queued = 2 * sum(s.delay_s > 2 * floor for s, _ in parts) >= len(parts)
        full = (lane.capacity > 0 and lane.goodput >= 0.7 * lane.capacity) or lane.busy >= 0.6
        assert lane.congested == (queued or any(s.troubles for s, _ in parts) or full)


@pytest.mark.parametrize("measured_at", [0, 4, 9, 10])
def test_a_lane_that_is_measured_late_is_not_slow(measured_at):
    """0 is unknown: a lane that was measured in the last sample only had a tenth of what it delivers, less than it
    carries, and was moved. One that is not measured at all says nothing."""
    evidence = LaneEvidence()
    for number in range(11):
        lanes = [
            LaneSample(
                "7", "c" * 16, lane, "job", "rail0", 9000 + lane, 1, 3e6,
                1e7 if lane or number > measured_at else 0.0, -1.0, 0, 0, busy=0.3,
            )
            for lane in range(4)
        ]  # fmt: skip
        evidence.add("h", lanes, START + 2 * number)
    own = list(evidence.summaries(START, START + 20).values())
    assert [lane.capacity for lane in own] == [1e7 if measured_at < 10 else 0.0, 1e7, 1e7, 1e7]
    assert not any(lane.congested for lane in own)
    assert below_good(RebalanceConfig(), own) == []


def test_no_two_jobs_have_one_name():
    """A job could call itself as another user's is called, or as those without a name are."""
    last = LaneSample("7", "0" * 16, 0, "train", "rail0", 1, 1, 0.0, 0.0, -1.0, 0, 0, user=1000)
    names = ["train", "train (uid 1000)", '"train"', '"train (uid 1000)"', "without a name on h", "unknown"]
    lanes = [
        LaneSummary("h", replace(last, workload=name), 1.0, 1.0, False, False, is_later=many)
        for name in names
        for many in (False, True)
    ]
    assert len({lane.job for lane in lanes if lane.is_named}) == 10
    assert lanes[-1].job not in {lane.job for lane in lanes[:-2]}
    assert [lane.job for lane in lanes[:2]] == ["train", "train (uid 1000)"]
