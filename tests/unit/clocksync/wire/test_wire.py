"""What travels between sidecars and the coordinator, and which end of an edge says it."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.edge.ownership import is_ours
from fabricpulse.clocksync.wire.messages import (
    EDGE_DTYPE,
    PROTOCOL,
    EdgeName,
    EdgeReport,
    HostInfo,
    Line,
    RoundReport,
    pack_edges,
    report_decoder,
    report_encoder,
    unpack_residuals,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
NOW = 1_700_000_000 * 10**9


def report_of(host: str, peers: list[str], edges: bytes, **other: object) -> RoundReport:
    info = HostInfo(1, "", (), tuple(EdgeName("rail0", peer, "rail0") for peer in peers), "none")
    fields = {
        "line": Line(NOW, 0, 0, 1_000),
        "anchor": None,
        "root": "",
        "clock_steps": 0,
        "info": info,
        **other,
    }
    return RoundReport(
        protocol=PROTOCOL,
        host=host,
        epoch=1,
        generation=1,
        host_ns=NOW,
        edges=edges,
        **fields,  # type: ignore[arg-type]
    )


def edge(number: int, offset_ns: int = 0, **other: int) -> EdgeReport:
    fields = {"t_ns": NOW - 10**9, "rate_ppt": 0, "last_after_us": 500_000, "sigma_ns": 20, "bound_ns": 2_000}
    return EdgeReport(
        offset_ns=offset_ns, edge=number, rate_sigma_ppt=5_000, quality=0, **{**fields, **other}
    )


def edges_in(block: bytes) -> list[EdgeReport]:
    return [EdgeReport(*row) for row in np.frombuffer(block, EDGE_DTYPE).tolist()]


def test_an_edge_takes_40_bytes_and_comes_back_as_it_was() -> None:
    """Also the largest offsets."""
    sent = [edge(k, offset_ns=(-1) ** k * 2**60 + k, rate_ppt=-50_000_000) for k in range(10)]
    block = pack_edges(sent)
    assert len(block) == 40 * len(sent)
    assert edges_in(block) == sent


def test_what_does_not_fit_is_cut_not_wrapped() -> None:
    """A bound of 10 s must not look like one of 1.4 s."""
    (back,) = edges_in(pack_edges([edge(0, bound_ns=10**10, rate_ppt=-(10**12))]))
    assert back.bound_ns == 2**32 - 1
    assert back.rate_ppt == -(2**31 - 1)


@given(a=NAMES, b=NAMES, nic_a=NAMES, nic_b=NAMES)
def test_exactly_one_end_reports_an_edge(a: str, b: str, nic_a: str, nic_b: str) -> None:
    """Whatever the names, unless both ends are the same NIC."""
    if (a, nic_a) == (b, nic_b):
        return
    assert is_ours(a, EdgeName(nic_a, b, nic_b)) != is_ours(b, EdgeName(nic_b, a, nic_a))


def test_the_ends_share_the_work() -> None:
    """Of 1,000 edges of a host, about half are its own."""
    ours = sum(is_ours("gpu-001", EdgeName("eth1", f"gpu-{k:03d}", "eth1")) for k in range(2, 1_002))
    assert 430 < ours < 570


def test_reports_of_nonsense_are_refused() -> None:
    """Before they can reach the solve: half a record, a time that would overflow, a negative bound."""
    fleet = Fleet()
    with pytest.raises(ValueError, match="no multiple of 40"):
        fleet.report(report_of("a", ["b"], pack_edges([edge(0)])[:-1]), 0.0)
    assert not fleet.roster.members
    for wrong in ({"line": Line(2**62, 0, 0, 0)}, {"line": Line(0, 0, 0, -1)}, {"anchor": (0, 2**62)}):
        with pytest.raises(msgspec.ValidationError):
            report_decoder.decode(report_encoder.encode(report_of("a", [], b"", **wrong)))


def test_a_wrong_record_harms_nobody_else() -> None:
    """An edge that is not in the host's list, and fits of the far past and future, move nobody."""
    fleet = Fleet()
    block = [edge(0, 300), edge(7, 10**9), edge(0, 10**12, t_ns=0), edge(1, 10**12, t_ns=2**62)]
    fleet.report(report_of("a", ["b", "c"], pack_edges(block)), 0.0)
    fleet.report(report_of("b", ["c"], pack_edges([edge(0, 400)])), 0.0)
    fleet.report(report_of("c", [], b""), 0.0)
    assert fleet.solve_round(0.1) is not None
    lines = {name: member.line for name, member in fleet.roster.members.items()}
    assert lines["a"] and lines["b"] and lines["c"]
    # clock b is 300 ahead of a, and c 400 of b.
    assert lines["a"].correction_ns - lines["b"].correction_ns == pytest.approx(300, abs=2)
    assert lines["b"].correction_ns - lines["c"].correction_ns == pytest.approx(400, abs=2)


def test_a_host_that_no_edge_ties_to_the_fleet_gets_no_line() -> None:
    """It must come to holdover, though it still knows a time; and nobody gets the line of an earlier solve again."""
    fleet = Fleet()
    fleet.report(report_of("a", ["b"], pack_edges([edge(0, 300)])), 0.0)
    fleet.report(report_of("b", [], b""), 0.0)
    fleet.report(report_of("lost", ["a"], b""), 0.0)
    fleet.solve_round(0.1)
    assert fleet.roster.members["a"].line
    assert fleet.roster.members["b"].line
    assert fleet.roster.members["lost"].line is None
    assert fleet.unreached == 1
    for name, peers in (("a", ["b"]), ("b", []), ("lost", ["a"])):
        fleet.report(report_of(name, peers, b""), 1.0)
    assert fleet.solve_round(1.1) is None
    assert all(member.line is None for member in fleet.roster.members.values())


def test_residuals_go_to_the_end_that_reported() -> None:
    """In the order of its records, by its numbers."""
    fleet = Fleet()
    fleet.report(report_of("a", ["x", "b", "c"], pack_edges([edge(2, 5), edge(1, 5)])), 0.0)
    fleet.report(report_of("b", ["a", "c"], pack_edges([edge(1, 0)])), 0.0)
    fleet.report(report_of("c", ["a", "b"], b""), 0.0)
    fleet.solve_round(0.1)
    assert [v.edge for v in unpack_residuals(fleet.roster.members["a"].residuals)] == [2, 1]
    assert [v.edge for v in unpack_residuals(fleet.roster.members["b"].residuals)] == [1]
    assert fleet.roster.members["c"].residuals == b""
    assert all(v.fits for v in unpack_residuals(fleet.roster.members["a"].residuals))
    with pytest.raises(ValueError, match="no whole number"):
        unpack_residuals(fleet.roster.members["a"].residuals[:-1])


def test_the_solve_waits_for_those_who_were_there_and_not_for_the_dead() -> None:
    """waiting and missing count through reports, a restart, a silent member and the end of its lease."""
    fleet = Fleet(lease_s=3.0)
    for name in "abc":
        fleet.report(report_of(name, [], b""), 0.0)
        fleet.report(report_of(name, [], b""), 0.1)
    assert (fleet.waiting, fleet.missing) == (3, 0)
    fleet.solve_round(0.2)
    assert (fleet.waiting, fleet.missing) == (0, 3)
    fleet.report(report_of("a", [], b""), 2.9)
    fleet.report(msgspec.structs.replace(report_of("b", [], b""), epoch=2), 2.9)
    assert (fleet.waiting, fleet.missing) == (2, 1)
    fleet.solve_round(3.0)
    assert (fleet.waiting, fleet.missing) == (0, 2)  # c has said nothing: nobody waits for it again
    fleet.report(report_of("a", [], b""), 3.3)
    assert fleet.expire(3.3) == ["c"]
    assert (fleet.waiting, fleet.missing) == (1, 1)


def test_slots_of_hosts_that_are_gone_are_given_up() -> None:
    """A fleet whose hosts come and go under new names does not grow for ever, and still solves."""
    fleet = Fleet(lease_s=1.0)
    for k in range(2_000):
        fleet.report(report_of(f"gone-{k}", [f"also-{k}"], b""), 0.0)
    fleet.report(report_of("a", ["b"], pack_edges([edge(0, 300)])), 5.0)
    fleet.report(report_of("b", [], b""), 5.0)
    assert fleet.solve_round(5.1) is not None
    assert fleet.roster.slots == 2
    a, b = fleet.roster.members["a"].line, fleet.roster.members["b"].line
    assert a and b
    assert a.correction_ns - b.correction_ns == pytest.approx(300, abs=2)
