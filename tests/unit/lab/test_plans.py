"""Schedules and shaping, computed and never slept."""

import itertools

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.lab.delay_line import DelayLine
from fabricpulse.lab.faults import FlapPlan, tbf
from fabricpulse.lab.load import CATCH_UP_S, Pacer


def test_a_flap_plan_is_seeded() -> None:
    """The same seed gives the same times, another seed others."""
    assert list(FlapPlan(2, 10, seed=7).cycles()) == list(FlapPlan(2, 10, seed=7).cycles())
    assert list(FlapPlan(2, 10, seed=7).cycles()) != list(FlapPlan(2, 10, seed=8).cycles())


def test_a_flap_plan_has_the_wanted_rate_and_share() -> None:
    """2 Hz, 25 % down: 1000 flaps take 500 s within 2 %, each period within the jitter."""
    cycles = list(FlapPlan(2, 1000, down_fraction=0.25, jitter=0.2).cycles())
    assert sum(map(sum, cycles)) == pytest.approx(500, rel=0.02)
    for down, up in cycles:
        assert 0.4 <= down + up <= 0.6
        assert down / (down + up) == pytest.approx(0.25)


def test_without_a_count_a_flap_plan_is_endless() -> None:
    """It goes on as long as it is asked."""
    assert len(list(itertools.islice(FlapPlan(10).cycles(), 5000))) == 5000


@pytest.mark.parametrize(
    "plan", [{"rate_hz": 0}, {"rate_hz": 1, "down_fraction": 1}, {"rate_hz": 1, "jitter": 1}]
)
def test_an_impossible_flap_is_refused(plan: dict[str, float]) -> None:
    """One sentence."""
    with pytest.raises(UserError, match="a flap needs"):
        FlapPlan(**plan)  # type: ignore[arg-type]


def test_a_limit_queues_what_was_asked_and_at_least_two_packets() -> None:
    """100 Mbit/s and 20 ms are 250 kB of queue; a slow limit still lets a jumbo frame through."""
    assert (
        tbf("h0", 100, 20, 9000)
        == "qdisc replace dev h0 root tbf rate 100000000bit burst 18036b limit 250000b"
    )
    slow = tbf("h0", 0.1, 1, 9000).split()
    assert (slow[slow.index("burst") + 1], slow[slow.index("limit") + 1]) == ("18036b", "18036b")


@pytest.mark.parametrize(("mbit", "queue_ms"), [(0, 1), (-1, 1), (1, 0)])
def test_an_impossible_limit_is_refused(mbit: float, queue_ms: float) -> None:
    """One sentence."""
    with pytest.raises(UserError, match="not possible"):
        tbf("h0", mbit, queue_ms, 1500)


def test_a_load_is_paced_to_its_rate() -> None:
    """80 Mbit/s of 1000-byte packets are 10 per millisecond, whatever the ticks."""
    pacer = Pacer(80, 972, 5.0)
    assert sum(pacer.due(5.0 + tick * 0.001) for tick in range(1, 1001)) == pytest.approx(10_000, abs=1)
    assert pacer.due(6.0) == 0


def test_a_load_does_not_make_good_a_long_stall_in_one_burst() -> None:
    """After ten seconds of standing still it sends what belongs to CATCH_UP_S."""
    pacer = Pacer(80, 972, 0.0)
    assert pacer.due(10.0) == pytest.approx(CATCH_UP_S * 10_000, abs=1)
    assert pacer.due(10.001) == pytest.approx(10, abs=1)


def test_a_slow_load_still_sends() -> None:
    """One packet every eight seconds comes every eight seconds, however often it is asked."""
    pacer = Pacer(0.001, 972, 0.0)
    assert sum(pacer.due(tick * 0.001) for tick in range(80_001)) == pytest.approx(10, abs=1)


def test_a_delay_line_holds_each_packet_for_its_time_in_order() -> None:
    """Nothing before, all that is due at once after a pause; and how long to sleep until then."""
    line = DelayLine(0.01)
    assert line.wait_s(5.0) is None
    line.put(b"a", 1.0)
    line.put(b"b", 1.004)
    assert line.wait_s(1.002) == pytest.approx(0.008)
    assert (line.due(1.0099), line.due(1.0101)) == ([], [b"a"])
    line.put(b"c", 1.005)
    assert line.wait_s(2.0) == 0.0
    assert line.due(2.0) == [b"b", b"c"]


def test_a_delay_line_has_an_end() -> None:
    """Of a flood it drops the newest, as a queue does."""
    line = DelayLine(1.0)
    for number in range(5000):
        line.put(number.to_bytes(2, "big"), 0.0)
    assert [int.from_bytes(packet, "big") for packet in line.due(1.0)] == list(range(4096))
