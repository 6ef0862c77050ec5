"""When the coordinator begins a timeline: not with half a fleet."""

import msgspec
import pytest
from tests.unit.clocksync.coordinator.reporting_fleet import ReportingFleet

from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.wire.limits import MAX_ROUND_S
from fabricpulse.clocksync.wire.messages import (
    PROTOCOL,
    EdgeName,
    EdgeReport,
    HostInfo,
    Line,
    Quorum,
    RoundReport,
    pack_edges,
)
from fabricpulse.clocksync.wire.report_table import name_hash

HOSTS = ["h0", "h1", "h2"]
NOW_NS = 1_800_000_000_000_000_000


def report(
    host: str,
    line: Line | None = None,
    rank: int = 0,
    kind: str = "none",
    anchor: tuple[int, int] | None = None,
) -> RoundReport:
    """One that has an edge of offset 0 to each other host. kind : of the anchor that it is to be."""
    names = tuple(EdgeName("rail0", peer, "rail0") for peer in HOSTS if peer != host)
    edges = [EdgeReport(NOW_NS, 0, 0, 0, 10, 1000, 1000, k, 0) for k in range(len(names))]
    info = HostInfo(1, "", (), names, kind)
    return RoundReport(PROTOCOL, host, 1, 1, NOW_NS, pack_edges(edges), line, anchor, "", 0, info, rank)


def placed(fleet: Fleet) -> list[str]:
    """Hosts that have received how their clocks fit."""
    return [name for name, member in fleet.roster.members.items() if member.line is not None]


def test_a_timeline_begins_with_all_that_are_known() -> None:
    """Two of three wait for the third, which they have edges to."""
    fleet = Fleet()
    for at, host in enumerate(HOSTS):
        assert placed(fleet) == []
        fleet.report(report(host), at * 0.1)
        fleet.solve_round(at * 0.1 + 0.05)
    assert placed(fleet) == HOSTS


def test_one_that_never_comes_is_not_waited_for_long() -> None:
    """A fleet begins without a dead host; where it is not the first choice, after the first."""
    for rank, waits in ((0, 1), (1, 2)):
        fleet = Fleet(begin_s=1.0)
        for host in HOSTS[:2]:
            fleet.report(report(host, rank=rank), 0.0)
        fleet.solve_round(waits - 0.1)
        assert placed(fleet) == []
        fleet.solve_round(waits + 0.1)
        assert placed(fleet) == HOSTS[:2]


def test_who_has_fleet_time_brings_it() -> None:
    """A coordinator that starts in a running fleet goes on with the timeline that its members report."""
    fleet = Fleet()
    fleet.report(report("h0", Line(NOW_NS, 5_000_000, 0, 100)), 0.0)
    fleet.report(report("h1"), 0.0)
    fleet.solve_round(0.1)
    assert placed(fleet) == ["h0", "h1"]
    for member in fleet.roster.members.values():
        assert member.line is not None
        assert abs(member.line.correction_ns - 5_000_000) < 2_000


UTC = (7_000_000, 1_000)


def test_a_timeline_begins_on_utc_when_an_anchor_is_announced() -> None:
    """All hosts are there, and wait for the one that says that it will carry UTC; then they begin on it."""
    fleet = Fleet(begin_s=1.0, anchor_wait_s=30.0)
    for at in (0.0, 4.0, 29.0):
        for host in HOSTS:
            fleet.report(report(host, kind="system" if host == "h1" else "none"), at)
        fleet.solve_round(at + 0.5)
        assert placed(fleet) == []
        assert fleet.awaited == ("h1",)
    for host in HOSTS:
        ready = host == "h1"
        fleet.report(report(host, kind="system" if ready else "none", anchor=UTC if ready else None), 29.8)
    fleet.solve_round(29.9)
    assert placed(fleet) == HOSTS
    assert fleet.awaited == ()
    for member in fleet.roster.members.values():
        assert member.line is not None
        assert abs(member.line.correction_ns - UTC[0]) <= UTC[1]


def test_an_anchor_that_never_carries_utc_is_not_waited_for_for_ever() -> None:
    """After anchor_wait_s the fleet begins without UTC."""
    fleet = Fleet(begin_s=1.0, anchor_wait_s=30.0)
    for at in (0.0, 29.5):
        for host in HOSTS:
            fleet.report(report(host, kind="system"), at)
        fleet.solve_round(at + 0.1)
        assert placed(fleet) == []
    fleet.solve_round(30.1)
    assert placed(fleet) == HOSTS


def test_a_second_anchor_is_waited_for_as_long_as_any_host() -> None:
    """One of two carries UTC: the other gets begin_s, not anchor_wait_s."""
    fleet = Fleet(begin_s=1.0, anchor_wait_s=30.0)
    for host in HOSTS:
        fleet.report(
            report(host, kind="none" if host == "h2" else "system", anchor=UTC if host == "h0" else None), 0.0
        )
    fleet.solve_round(0.9)
    assert (placed(fleet), fleet.awaited) == ([], ("h1",))
    fleet.solve_round(1.1)
    assert placed(fleet) == HOSTS


def test_a_fleet_that_has_fleet_time_waits_for_no_anchor() -> None:
    """Nothing changes for a fleet that runs when its coordinator is restarted while the anchor is not ready."""
    fleet = Fleet()
    for host in HOSTS:
        fleet.report(report(host, Line(NOW_NS, 5_000_000, 0, 100), kind="system"), 0.0)
    fleet.solve_round(0.1)
    assert placed(fleet) == HOSTS


def test_a_timeline_that_has_begun_goes_on_before_its_hosts_say_so() -> None:
    """A solve for a newcomer 0.4 s after the first, with the previous reports: 2 us off if it began anew."""
    fleet = Fleet()
    rates_ppb = {"h0": 50_000, "h1": 40_000, "h2": -50_000}

    def shown(host: str, at_ns: int) -> int:
        return NOW_NS + at_ns + at_ns * rates_ppb[host] // 10**9

    def said(host: str, at_ns: int) -> RoundReport:
        others = [peer for peer in HOSTS if peer != host]
        edges = [
            EdgeReport(
                shown(host, at_ns), shown(peer, at_ns) - shown(host, at_ns),
                (rates_ppb[peer] - rates_ppb[host]) * 1000, 0, 10, 1000, 1000, k, 0,
            )
            for k, peer in enumerate(others)
        ]  # fmt: skip
        names = tuple(EdgeName("rail0", peer, "rail0") for peer in others)
        info = HostInfo(1, "", (), names, "none")
        return RoundReport(
            PROTOCOL, host, 1, 1, shown(host, at_ns), pack_edges(edges), None, None, "", 0, info
        )

    def times(at_ns: int) -> dict[str, tuple[float, int]]:
        lines = {name: member.line for name, member in fleet.roster.members.items()}
        return {
            name: (
                shown(name, at_ns) - NOW_NS + line.correction_ns
                + (shown(name, at_ns) - line.ref_host_ns) * line.rate_ppt * 1e-12,
                line.bound_ns,
            )
            for name, line in lines.items() if line is not None
        }  # fmt: skip

    for host in HOSTS[:2]:
        fleet.report(said(host, 0), 0.0)
    fleet.solve_round(3.1)
    first = times(3_100_000_000)
    assert sorted(first) == HOSTS[:2]
    fleet.report(said("h2", 3_400_000_000), 3.4)
    fleet.solve_round(3.5)
    second = times(3_100_000_000)
    assert sorted(second) == HOSTS
    for before, its_bound in first.values():
        for after, bound in second.values():
            assert abs(after - before) <= bound + its_bound


def test_what_a_fresh_report_measured_counts_beside_reports_that_waited() -> None:
    """Two of three reports have waited 2.5 s in a queue: the solve is of the moment that most reports are of, and what
    the third has measured since is no less true for that.
    """
    rates_ppb = {"h0": 50_000, "h1": 40_000, "h2": -50_000}

    def shown(host: str, at_ns: int) -> int:
        return NOW_NS + at_ns + at_ns * rates_ppb[host] // 10**9

    fleet = Fleet()
    for host, made_ns in (("h0", 0), ("h1", 0), ("h2", 2_500_000_000)):
        others = [peer for peer in HOSTS if peer != host]
        t_ns = made_ns - 500_000_000
        edges = [
            EdgeReport(
                shown(host, t_ns), shown(peer, t_ns) - shown(host, t_ns),
                (rates_ppb[peer] - rates_ppb[host]) * 1000, 0, 10, 1000, 1000, k, 0,
            )
            for k, peer in enumerate(others)
        ]  # fmt: skip
        # Fleet time is true time.
        own = Line(
            shown(host, made_ns), NOW_NS + made_ns - shown(host, made_ns), -rates_ppb[host] * 1000, 3_000
        )
        info = HostInfo(1, "", (), tuple(EdgeName("rail0", peer, "rail0") for peer in others), "none")
        block = pack_edges(edges if host == "h2" else [])
        fleet.report(
            RoundReport(PROTOCOL, host, 1, 1, shown(host, made_ns), block, own, None, "h0", 0, info), 2.5
        )
    fleet.solve_round(2.51)
    assert placed(fleet) == HOSTS
    for host, member in fleet.roster.members.items():
        line = member.line
        assert line is not None
        ahead_ns = shown(host, 2_500_000_000) - line.ref_host_ns
        fleet_ns = line.ref_host_ns + ahead_ns + line.correction_ns + ahead_ns * line.rate_ppt // 10**12
        assert abs(fleet_ns - NOW_NS - 2_500_000_000) <= 100
        assert line.bound_ns < 10_000


def test_a_newcomer_between_two_of_the_longest_rounds_does_not_cost_the_quorum() -> None:
    """Its short rounds make solves of their own, by which nobody has reported for up to a round of the others."""
    fleet = Fleet()
    everybody = {host: Line(NOW_NS, 0, 0, 100) for host in HOSTS}
    for at in range(5):
        now_s = at * MAX_ROUND_S
        for host, line in everybody.items():
            fleet.report(report(host, line), now_s)
        fleet.solve_round(now_s + 0.1)
        assert not fleet.no_quorum
        for newcomer_s in (now_s + 0.25, now_s + MAX_ROUND_S - 0.25):
            fleet.report(report("new"), newcomer_s)
            fleet.solve_round(newcomer_s + 0.1)
            assert not fleet.no_quorum
            assert placed(fleet) == [*HOSTS, "new"]


@pytest.mark.parametrize("generation", [-1, 2**31, 2**63])
def test_names_of_edges_that_cannot_be_taken_change_nothing(generation: int) -> None:
    """Names reported earlier were lost then, and the round that was to name one of those edges failed."""
    fleet = ReportingFleet(count=6)
    fleet.run(10)
    fleet.edge_errors_ns["h00", "h05"] = 30_000
    fleet.run(4)
    worst = ("h00", EdgeName("rail0", "h05", "rail0"))
    assert [edge[:2] for edge in fleet.fleet.outlier_edges] == [worst]
    info = HostInfo(generation, "", (), (), "none")
    bad = msgspec.structs.replace(fleet._report("h00"), info=info)
    with pytest.raises(ValueError, match="generation"):
        fleet.fleet.report(bad, float(fleet.second))
    fleet.fleet.solve_round(fleet.second + 0.5)
    assert [edge[:2] for edge in fleet.fleet.outlier_edges] == [worst]


def test_names_of_peers_that_nobody_has_are_given_up() -> None:
    """Though no lease runs out. But the root that a report names is known, whose host may be about to report."""
    fleet, most = Fleet(), 0
    for second in range(20):
        names = tuple(EdgeName("rail0", f"new{second}-{k}", "rail0") for k in range(2_000))
        info = HostInfo(second, "", (), names, "none")
        quorum = Quorum(second, 3, f"root{second}", anchored=False)
        line = Line(NOW_NS, 0, 0, 100)
        changing = RoundReport(PROTOCOL, "h0", 1, second, NOW_NS, b"", line, None, "", 0, info, quorum=quorum)
        fleet.report(report("h1", line), float(second))
        fleet.report(changing, float(second))
        fleet.solve_round(second + 0.5)
        most = max(most, fleet.roster.slots)
        assert fleet.roster.edges(fleet.roster.members["h0"]) == list(names)
        assert fleet.roster.name(name_hash(f"root{second}")) == f"root{second}"
    assert most < 3 * 2_100
    assert len(fleet.roster._names) == fleet.roster.slots
