"""When the coordinator begins a timeline: not with half a fleet."""

from fabricpulse.clocksync.fleet import Fleet
from fabricpulse.clocksync.wire import (
    PROTOCOL,
    EdgeName,
    EdgeReport,
    HostInfo,
    Line,
    StepReport,
    pack_edges,
)

HOSTS = ["h0", "h1", "h2"]
NOW_NS = 1_800_000_000_000_000_000


def report(host: str, line: Line | None = None, rank: int = 0) -> StepReport:
    """One that has an edge of offset 0 to each other host."""
    names = tuple(EdgeName("rail0", peer, "rail0") for peer in HOSTS if peer != host)
    edges = [EdgeReport(NOW_NS, 0, 0, 0, 10, 1000, 1000, k, 0) for k in range(len(names))]
    info = HostInfo(1, "", (), names, "none")
    return StepReport(PROTOCOL, host, 1, 1, NOW_NS, pack_edges(edges), line, None, "", 0, info, rank)


def placed(fleet: Fleet) -> list[str]:
    """Hosts that have been told how their clocks fit."""
    return [name for name, member in fleet.members.items() if member.line is not None]


def test_a_timeline_begins_with_all_that_are_known() -> None:
    """Two of three wait for the third, which they have edges to."""
    fleet = Fleet()
    for at, host in enumerate(HOSTS):
        assert placed(fleet) == []
        fleet.report(report(host), at * 0.1)
        fleet.step(at * 0.1 + 0.05)
    assert placed(fleet) == HOSTS


def test_one_that_never_comes_is_not_waited_for_long() -> None:
    """A fleet begins without a dead host; where it is not the first choice, after the first."""
    for rank, waits in ((0, 1), (1, 2)):
        fleet = Fleet(begin_s=1.0)
        for host in HOSTS[:2]:
            fleet.report(report(host, rank=rank), 0.0)
        fleet.step(waits - 0.1)
        assert placed(fleet) == []
        fleet.step(waits + 0.1)
        assert placed(fleet) == HOSTS[:2]


def test_who_has_fleet_time_brings_it() -> None:
    """A coordinator that starts in a running fleet goes on with the timeline that its members report."""
    fleet = Fleet()
    fleet.report(report("h0", Line(NOW_NS, 5_000_000, 0, 100)), 0.0)
    fleet.report(report("h1"), 0.0)
    fleet.step(0.1)
    assert placed(fleet) == ["h0", "h1"]
    for member in fleet.members.values():
        assert member.line is not None
        assert abs(member.line.correction_ns - 5_000_000) < 2_000
