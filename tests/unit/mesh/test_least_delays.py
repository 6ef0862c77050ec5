"""The least delays that a host reports: which, of which time, and how little that costs."""

import pytest
from tests.unit.mesh.synthetic import view_and_snapshot

from fabricpulse.core.shm.clock_page import ClockStatus
from fabricpulse.diagnosis.wire.messages import LeastDelay, pack_delays
from fabricpulse.hostinfo.virtual_machine import is_virtual_machine
from fabricpulse.mesh.least_delays import LeastDelays

WINDOW_S = 15.0


def at(count: int, least_ns: int, **fields: int):
    """A snapshot whose first edge has had so many delays, and this smallest one in its window."""
    snapshot = view_and_snapshot()[1]
    edges = list(snapshot.edges)
    edges[0] = edges[0]._replace(owd_count=count, owd_min_ns=least_ns, window_count=700)
    return snapshot._replace(edges=edges, **fields)


@pytest.fixture
def delays():
    """After the first snapshot, and the time in which the windows may hold what was before it."""
    made = LeastDelays(60.0, WINDOW_S)
    made.add(at(1000, 5000), 0.0)
    return made


def test_the_least_of_a_minute(delays):
    """With the number of delays since; nothing before the minute is over, and each minute anew."""
    for second, (count, least) in enumerate([(1500, 4000), (2000, 4100), (2500, 3900), (3000, 4200)]):
        delays.add(at(count, least), 40.0 + 10 * second)
        assert delays.due(89.0) == []
    assert delays.due(90.0) == [LeastDelay(0, 2000, 3900)]
    delays.taken(90.0)
    assert delays.due(200.0) == []
    delays.add(at(3500, 4300), 100.0)
    assert delays.due(150.0) == [LeastDelay(0, 500, 4300)]


def test_untaken_delays_are_reported_again(delays):
    """A coordinator that was not reached gets them with the next report."""
    delays.add(at(1500, 4000), 60.0)
    assert delays.due(95.0)
    delays.add(at(1600, 3800), 96.0)
    assert delays.due(96.0) == [LeastDelay(0, 600, 3800)]


def test_an_edge_without_delays_is_not_reported(delays):
    """No probe has come, or there is no fleet time: what its window holds is old."""
    delays.add(at(1000, 1), 60.0)
    assert delays.due(100.0) == []


@pytest.mark.parametrize(
    "changed", [{"clock_steps": 77}, {"generation": 77}, {"clock_status": ClockStatus.UNKNOWN}]
)
def test_another_timeline_begins_anew(delays, changed):
    """Delays from before a step, of other edges, or from before fleet time was lost, are not reported, nor those that
    the windows still hold.
    """
    delays.add(at(1500, 100), 60.0)
    delays.add(at(1600, 100, **changed), 61.0)
    delays.add(at(1700, 100, **changed), 61.0 + 2 * WINDOW_S - 1)
    delays.add(at(1800, 4000, **changed), 61.0 + 2 * WINDOW_S + 1)
    assert delays.due(150.0) == []
    assert delays.due(152.0) == [LeastDelay(0, 200, 4000)]


def test_fleet_time_in_holdover_is_the_same_timeline(delays):
    """The sidecar had no core for a moment, or is restarted: the minute goes on."""
    for second, status in [
        (40, ClockStatus.SYNCHRONIZED),
        (50, ClockStatus.HOLDOVER),
        (60, ClockStatus.SYNCHRONIZED),
    ]:
        delays.add(at(1000 + 10 * second, 4000 + second, clock_status=status), float(second))
    assert delays.due(90.0) == [LeastDelay(0, 600, 4040)]


def test_nothing_is_gathered_when_switched_off():
    """delays_s: 0."""
    delays = LeastDelays(0.0, WINDOW_S)
    for second in range(100):
        delays.add(at(1000 + second, 5000), float(second))
    assert delays.due(1000.0) == []


def test_the_delays_of_a_nic_cost_two_bytes_a_second():
    """Ten peers, reported once a minute."""
    assert len(pack_delays(LeastDelay(edge, 3000, 5000) for edge in range(10))) / 60 < 2


@pytest.mark.parametrize(
    ("text", "virtual"),
    [
        ("processor : 0\nflags\t\t: fpu vme hypervisor lahf_lm\n", True),
        ("processor : 0\nflags\t\t: fpu vme no_hypervisor\n", False),
        ("processor : 0\nFeatures\t: fp asimd\n", None),
        ("", None),
        (None, None),
    ],
)
def test_a_virtual_machine_is_known_by_its_processor(tmp_path, text, virtual):
    """By the flag that hypervisors set; where there are no such flags nobody knows."""
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    assert is_virtual_machine(file) is virtual
