"""What clears an error of an earlier run of the fleet: the same test, made again and decided."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fabricpulse.audit.compare import tested as tested_module
from fabricpulse.audit.compare.findings import of_host
from fabricpulse.audit.compare.profile import PathLimits
from fabricpulse.audit.compare.wiring import LldpReports, Place, located, wiring_findings
from fabricpulse.audit.host.lldp import Neighbour
from fabricpulse.audit.model import (
    MOST_PEERS,
    Finding,
    HostReport,
    Measurement,
    MeasurementKind,
    Ring,
    Run,
    Status,
    Value,
)
from fabricpulse.audit.pair_tests import blame, ring_tests
from fabricpulse.audit.pair_tests.ecmp import ecmp_findings
from fabricpulse.audit.report.gate import gate
from fabricpulse.audit.still_open import awaited, with_open_findings
from fabricpulse.audit.tested_again import LEAST_PARTNERS

NOW = 1_795_374_000.0
MTU = Value("mtu", "nic", "eth1", "9000")
EXTRA = Value("mtu", "nic", "eth2", "9000")
GOOD = HostReport("h", NOW, 1, (), ())


def run_of(
    *findings: Finding,
    at: float = NOW,
    kind: MeasurementKind = "loss",
    peers: str = "",
    nic: str = "eth1",
    sends: bool | None = True,
    values: Sequence[Value] = (MTU,),
    **more: Any,
) -> Run:
    """A run over h and these peers, on this NIC of each, both ways. sends : what h sends to them is decided."""
    measured = [Measurement(kind, "r", "h", nic, peer, nic, 0.0, sends) for peer in peers]
    measured += [Measurement(kind, "r", peer, nic, "h", nic, 0.0, True) for peer in peers]
    hosts = tuple(HostReport(name, at, 1, (), tuple(values)) for name in ("h", *peers))
    asked = tuple(host.host for host in hosts)
    return Run("r", at, 0, asked, hosts, findings, measurements=tuple(measured), **more)


def lossy(**more: Any) -> Finding:
    return Finding("path-loss", "back-end", "error", "h", "eth1", "lossy", **more)


def after(
    first: Run,
    second: Run,
    members: Sequence[str] = (),
    rails: tuple[str, ...] = (),
    values: tuple[Value, ...] = (),
    limits: PathLimits | None = None,
) -> bool | None:
    """The gate of h after both. members : of the membership at the second; rails, values : as h reports them then."""
    kept = with_open_findings(None, of_host(first, "h"))
    reports = [
        msgspec.structs.replace(report, awaits=awaited(kept), rails=rails, values=values or report.values)
        for report in second.hosts
    ]
    second = msgspec.structs.replace(second, hosts=tuple(reports))
    now = of_host(second, "h", tested_module.tests_of(second, limits), members)
    return gate(GOOD, NOW + 1, 3600, fleet=with_open_findings(kept, now)).open


def test_a_run_that_has_not_made_the_test_leaves_its_error_open() -> None:
    """No test of pairs, another kind of test, or one at a lower rate; the same test clears it."""
    first = run_of(lossy(), peers="abc", rate_bps=1e10)
    assert after(first, run_of()) is False
    assert after(first, run_of(kind="bandwidth", peers="abc", rate_bps=1e10)) is False
    assert after(first, run_of(peers="abc", rate_bps=1e8)) is False
    assert after(first, run_of(peers="ab", rate_bps=1e10)) is True


def test_tests_that_decide_less_leave_an_error_open() -> None:
    """Of what the NIC is sent alone; with fewer datagrams; over another rail; where a value could not be read."""
    first = run_of(lossy(), peers="abc", datagrams=20_000)
    assert after(first, run_of(peers="abc", datagrams=20_000, sends=None)) is False
    assert after(first, run_of(peers="abc", datagrams=100)) is False
    assert after(first, run_of(peers="abc", datagrams=20_000)) is True
    ends = {"source": "h eth1", "target": "a eth1"}
    doubt = Finding(
        "path-loss", "back-end", "error", "", "h eth1 > a eth1", "lossy", ends, suspects=("h", "a")
    )
    assert after(run_of(doubt, peers="ab"), run_of(peers="ab", nic="eth2")) is None
    assert after(run_of(doubt, peers="ab"), run_of(peers="ab")) is True
    for check in ("odd-one-out", "profile"):
        odd = Finding(check, "node", "error", "h", "eth1", "mtu", {"attribute": "mtu"})
        first = run_of(odd, peers="abc", profile="p.yaml")
        other = Value("mtu", "nic", "eth2", "9000")
        for values in ((), (other,)):
            assert after(first, run_of(peers="abc", profile="p.yaml", values=values)) is False
        assert after(first, run_of(peers="abc", profile="p.yaml")) is True


def test_what_is_open_outlives_more_than_one_run() -> None:
    """And is not known, rather than gone, once it is too old to close."""
    kept = of_host(run_of(lossy(), peers="abc"), "h")
    for hours in range(1, 4):
        kept = with_open_findings(kept, of_host(run_of(at=NOW + hours * 3600), "h"))
    fresh = msgspec.structs.replace(GOOD, collected_at=NOW + 3 * 3600)
    assert gate(fresh, NOW + 3 * 3600, 4 * 3600, fleet=kept).open is False
    late = gate(fresh, NOW + 3 * 3600, 2 * 3600, fleet=kept)
    assert (late.open, len(late.reasons)) == (None, 1)


def test_a_suspect_is_cleared_by_a_test_with_the_others() -> None:
    """And not by one with others."""
    doubt = Finding("path-loss", "back-end", "error", "", "h eth1 > a eth1", "lossy", suspects=("h", "a"))
    first = run_of(doubt, peers="ab")
    assert after(first, run_of(peers="bc")) is None
    assert after(first, run_of(peers="ac")) is True


def test_suspects_that_are_gone_are_not_waited_for() -> None:
    """Of three suspects one has another name now: by the membership, and once the host was tested with the others."""
    doubt = Finding("path-loss", "back-end", "error", "", "eth1", "lossy", suspects=("h", "a", "old"))
    first = run_of(doubt, peers="ab")
    assert after(first, run_of(peers="ab")) is None
    assert after(first, run_of(peers="ab"), members=("h", "a", "b", "old")) is None
    assert after(first, run_of(peers="ab"), members=("h", "a", "b", "new")) is True
    # Not by the membership alone.
    assert after(first, run_of(), members=("h", "b")) is None


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (
            Finding("profile", "back-end", "error", "h", "eth1", "s"),
            "--profile of p.yaml; if that is used no longer",
        ),
        (
            Finding("wiring", "back-end", "error", "h", "eth1", "s"),
            "gets LLDP from eth1; if that NIC is in no plan",
        ),
        (Finding("nccl-ring", "back-end", "error", "h", "", "s"), "--nccl over 2 hosts or more; if no ring"),
        (lossy(), "tests it with two hosts or more, --rate 10000 or more"),
        (Finding("odd-one-out", "back-end", "error", "h", "eth1", "s"), "over 2 hosts or more"),
        (
            Finding(
                *("path-ecmp", "back-end", "error", "", "", "s"),
                evidence={"way of h": "x eth1 > h.exam…"},
                suspects=("h", "x"),
            ),
            "no run: an older release has cut the path",
        ),
    ],
)
def test_the_gate_says_what_clears_an_error(finding: Finding, text: str) -> None:
    """Of one that the last run has not tested again."""
    first = run_of(finding, peers="ab", rate_bps=1e10, profile="p.yaml")
    kept = with_open_findings(None, of_host(first, "h"))
    later = with_open_findings(kept, of_host(run_of(values=()), "h"))
    for fleet, said in ((kept, False), (later, True)):
        answer = gate(GOOD, NOW + 1, 3600, fleet=fleet)
        assert any(text in line for line in answer.reasons) is said


def test_the_gate_names_the_partner_to_test_with() -> None:
    """Of a path, whose other end may have another name now."""
    first = run_of(path_finding(), peers="ab")
    kept = with_open_findings(None, of_host(first, "h"))
    (line,) = gate(GOOD, NOW + 1, 3600, fleet=with_open_findings(kept, of_host(run_of(), "h"))).reasons
    assert line.endswith(
        "cleared by a run with --hosts h,a; if a has another name now, one with the membership"
    )


def path_finding(source: str = "h", target: str = "a", check: str = "path-loss") -> Finding:
    """Of the way between eth1 of two hosts, which are good with others."""
    ends = {"source": f"{source} eth1", "target": f"{target} eth1"}
    suspects = (source, target)
    return Finding(check, "back-end", "error", "", "x", "lossy", ends, suspects=suspects)


@pytest.mark.parametrize("ends", [("h", "a"), ("a", "h")])
def test_a_path_is_cleared_by_a_test_of_it(ends: tuple[str, str]) -> None:
    """The NIC is not what failed; what it sends and what it is sent are two paths."""
    first = run_of(path_finding(*ends), peers="ab")
    assert after(first, run_of(peers="b")) is None
    assert after(first, run_of(peers="a", sends=None)) is (None if ends[0] == "h" else True)
    assert after(first, run_of(peers="a")) is True


def test_a_nic_is_cleared_by_as_many_partners_as_accuse_it() -> None:
    """Two, on each side that is accused, and no more ways that decide nothing; one in a fleet of two."""
    first = run_of(lossy(), peers="abc")
    assert after(first, run_of(peers="a")) is False
    assert after(first, run_of(peers="a"), members=["h", "a"]) is True
    busy = [Measurement("loss", "r", "h", "eth1", peer, "eth1", 0.0, None) for peer in "cdef"]
    second = run_of(peers="ab")
    undecided = msgspec.structs.replace(second, measurements=(*second.measurements, *busy))
    assert after(first, undecided) is False
    few = msgspec.structs.replace(second, measurements=(*second.measurements, *busy[:2]))
    assert after(first, few) is True
    # Of what it is sent alone.
    assert after(run_of(lossy(evidence={"side": "receives"}), peers="abc"), undecided) is True


def test_a_host_is_cleared_by_all_its_nics() -> None:
    """One of those that were accused says nothing of the other, until the fleet lists that no more."""
    host = lossy(evidence={"blame": "host", "side": "both", "nics": "eth1, eth2"})
    first = run_of(msgspec.structs.replace(host, subject=""), peers="abc")
    one, other = run_of(peers="abc"), run_of(peers="abc", nic="eth2")
    assert after(first, one) is False
    both = msgspec.structs.replace(one, measurements=(*one.measurements, *other.measurements))
    assert after(first, both) is True
    assert after(first, one, members="habc", rails=("eth1",)) is True


def test_what_is_no_more_keeps_no_gate_closed() -> None:
    """A partner, once the NIC is good with two others; a NIC; a check; a value."""
    first = run_of(path_finding(), peers="abc")
    assert after(first, run_of(peers="bc"), members="habc") is None
    assert after(first, run_of(peers="bc"), members="hbc") is True
    assert after(first, run_of(peers="bc"), members=["h.pod", "a.pod", "b.pod"]) is None
    assert after(first, run_of(peers="b"), members="hbc") is None
    gone = run_of(lossy(), peers="abc")
    assert after(gone, run_of(), members="habc", rails=("eth2",), values=(EXTRA,)) is True
    assert after(gone, run_of(), members="habc", rails=("eth1",), values=(EXTRA,)) is False
    # Without a membership nobody has said which NICs there are; nor has a host that reports nothing.
    assert after(gone, run_of(), rails=("eth2",), values=(EXTRA,)) is False
    assert after(gone, run_of(values=()), members="habc", rails=("eth2",)) is False
    for check, attribute in (("of-an-older-release", ""), ("odd-one-out", "of_an_older_release")):
        old = Finding(check, "node", "error", "h", "", "s", {"attribute": attribute} if attribute else {})
        assert after(run_of(old, peers="abc"), run_of()) is True
    # Of a newer release than the agent's: the run knows it.
    kept = of_host(run_of(Finding("newer", "node", "error", "h", "", "s")), "h")
    now = msgspec.structs.replace(of_host(run_of(), "h"), checks=("newer",))
    assert [one.finding.check for one in with_open_findings(kept, now).earlier] == ["newer"]


@pytest.mark.parametrize("domain", ["", ".rack-12.pod-3.cluster-a.dc1.eu-west.example-corp.internal"])
def test_faults_of_many_ways_are_cleared_way_by_way(domain: str) -> None:
    """Of ECMP, of which one finding names up to sixty hosts: no host is ever tested with all of them."""
    ways = [
        Measurement("ecmp_loss", "r", f"h{n}{domain}", "eth1", f"h{n + 1}{domain}", "eth1", 0.1, False)
        for n in range(0, 40, 2)
    ]
    many = tuple(ecmp_findings(ways))
    [further] = [finding for finding in many if len(finding.suspects) > 2]
    host, partner = further.suspects[0], further.suspects[1]
    receives = of_host(Run("r", NOW, 0, (), (HostReport(partner, NOW, 1, (), ()),), many), partner)
    assert awaited(with_open_findings(None, receives)) == (host,)
    hosts = tuple(HostReport(f"h{n}{domain}", NOW, 1, (), ()) for n in range(40))
    first = Run("r", NOW, 0, (), hosts, many, measurements=tuple(ways))
    kept = of_host(first, host)
    assert awaited(with_open_findings(None, kept)) == (partner,)

    def open_after(*oks: bool | None, kind: MeasurementKind = "ecmp_loss") -> int:
        tested = [msgspec.structs.replace(m, ok=ok) for m in ways for ok in oks]
        delays = [msgspec.structs.replace(m, kind="ecmp_delay", ok=True) for m in ways]
        made = (*tested, *delays) if kind == "ecmp_loss" else tuple(delays)
        again = msgspec.structs.replace(first, findings=(), measurements=made)
        return len(with_open_findings(kept, of_host(again, host)).earlier)

    assert open_after(True) == 0
    # Its delay alone says nothing of loss.
    assert open_after(None) == 1


def test_a_swapped_cable_is_cleared_by_its_own_neighbour() -> None:
    """And not by a run that got no LLDP from that NIC."""
    swapped = Finding("wiring", "back-end", "error", "h", "eth1", "hangs on leaf-2")
    first = run_of(swapped, located=(("h", "eth1"),))
    assert after(first, run_of(located=(("h", "eth2"), ("a", "eth1")))) is False
    assert after(first, run_of(located=(("h", "eth1"),))) is True
    # It is in the plan of cables, and no rail.
    assert after(first, run_of(), members="habc", rails=("eth2",), values=(EXTRA,)) is False
    places = {("h", f"eth{n}"): Place("leaf-1") for n in range(3)}
    neighbours = {("h", "eth0"): Neighbour("leaf-1", "p", ""), ("h", "eth1"): Neighbour("leaf-2", "p", "")}
    reports = LldpReports(neighbours, {})
    assert located(places, reports, wiring_findings(places, reports)) == sorted(neighbours)


def test_a_ring_is_cleared_by_one_of_half_the_hosts() -> None:
    """With the host in it; a fleet that has changed since has never the same ring again."""
    hosts = tuple("habcdefg")
    failed = msgspec.structs.replace(
        Finding("nccl-ring", "back-end", "error", "", "given", "s"), suspects=hosts
    )
    first = run_of(failed, peers="abcdefg")

    def ring(*of: str) -> Run:
        return run_of(peers="abcdefg", rings=(Ring("given", 1, of, 1e9),))

    assert after(first, ring("h", "a")) is None
    assert after(first, ring(*"abcdefg")) is None
    assert after(first, ring(*"hxyz")) is True


def test_a_limit_of_a_profile_is_cleared_by_a_test_of_it() -> None:
    """Bandwidth says nothing of loss."""
    evidence = {"blame": "nic", "side": "both", "limit": "most_loss 0.001"}
    first = run_of(
        Finding("sla-path", "back-end", "error", "h", "eth1", "s", evidence), peers="ab", profile="p"
    )
    limits = PathLimits(least_gbps=0.0, most_loss=0.001)
    for kind, cleared in (("bandwidth", False), ("loss", True)):
        later = run_of(kind=kind, peers="ab", profile="p", datagrams=3000)  # type: ignore[arg-type]
        assert after(first, later, limits=limits) is cleared


def test_a_comparison_is_cleared_by_one_of_as_many() -> None:
    """One host is odd in nothing."""
    odd = Finding("odd-one-out", "node", "error", "h", "eth1", "mtu", {"attribute": "mtu"})
    first = run_of(odd, peers="abcdefg")
    assert after(first, run_of()) is False
    assert after(first, run_of(peers="abc")) is True


def test_a_profile_is_cleared_by_itself() -> None:
    """Another one need not pin the same."""
    first = run_of(
        Finding("profile", "fleet", "error", "h", "eth1", "mtu", {"attribute": "mtu"}), profile="p.yaml"
    )
    assert after(first, run_of()) is False
    assert after(first, run_of(profile="q.yaml")) is False
    assert after(first, run_of(profile="p.yaml")) is True


def test_constants_that_two_floors_share() -> None:
    """What clears a NIC is as much as blames it, and no ring has more hosts than one test names."""
    assert LEAST_PARTNERS == blame.LEAST
    assert ring_tests.MOST_HOSTS <= MOST_PEERS


def test_what_was_decided_between_hosts_has_passed() -> None:
    """Also that NICs were tested, and that limits of a profile were kept; nothing by tests that decided nothing."""
    outcomes = tested_module.fleet_outcomes(run_of(peers="ab", profile="p"))
    for check in ("path-loss", "path-untested", "sla-path"):
        assert set(outcomes[check].values()) == {Status.PASSED}
    busy = Measurement("loss", "r", "h", "eth1", "a", "eth1", 0.0, None)
    undecided = tested_module.fleet_outcomes(msgspec.structs.replace(run_of(peers="a"), measurements=(busy,)))
    assert not {"path-loss", "path-untested", "sla-path"} & undecided.keys()
