"""Each check that needs more than one host: a case in which it fails, alone, and the same without the fault."""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest

from fabricpulse.audit.compare.clocks import ClockOffset, clock_findings
from fabricpulse.audit.compare.findings import fleet_findings
from fabricpulse.audit.compare.profile import PathLimits, Profile
from fabricpulse.audit.compare.sla import limit_findings
from fabricpulse.audit.compare.wiring import LldpReports, Place, wiring_findings
from fabricpulse.audit.host.lldp import Neighbour
from fabricpulse.audit.model import (
    Finding,
    HostReport,
    InBandDelay,
    Measurement,
    MeasurementKind,
    Ring,
    Value,
)
from fabricpulse.audit.pair_tests.ecmp import ecmp_findings
from fabricpulse.audit.pair_tests.in_band import MESH, in_band_findings
from fabricpulse.audit.pair_tests.path_tests import path_findings
from fabricpulse.audit.pair_tests.ring_tests import ring_findings, without_ring
from fabricpulse.audit.pair_tests.transfer_tests import untested_findings
from fabricpulse.audit.registry import all_checks, checks_of_fleet, host_checks

Play = Callable[[bool], Iterable[Finding]]
NIC = ("h1", "eth0")
KERNEL, OFED = Value("kernel", "host", "", "6.8"), Value("ofed", "host", "", "24.10")


def compared(values: Sequence[str], profile: Profile | None = None) -> tuple[Finding, ...]:
    """Of hosts with these MTUs of their only NIC; "" for one that reports none."""
    reports = [
        HostReport(f"h{n}", 0, 0, (), (KERNEL, Value("mtu", "rail0", "eth0", value)) if value else (KERNEL,))
        for n, value in enumerate(values)
    ]
    return fleet_findings(reports, {}, profile)


def pairs(kind: MeasurementKind, good: float, bad: float | None) -> list[Measurement]:
    """All pairs of four hosts; `bad` is the value at NIC, None for a good one there, too."""
    return [
        Measurement(kind, "rail0", f"h{a}", "eth0", f"h{b}", "eth0", value, value == good, detail="49152 to 9617")
        for a in range(4)
        for b in range(4)
        if a != b
        for value in [bad if bad is not None and 1 in (a, b) else good]
    ]  # fmt: skip


def paths(kind: MeasurementKind, good: float, bad: float) -> Play:
    return lambda wrong: path_findings(pairs(kind, good, bad if wrong else None))


def ring(*, slow: bool = False, corrupt: int = 0) -> list[Ring]:
    return [Ring("given", 8, ("h0", "h1"), 1e9 if slow else 9e9, 1e10, corrupt)]


def delayed(late: bool) -> list[Ring]:
    delay = InBandDelay("h0", "eth0", *NIC, 1e-4 if late else 5e-6, 2e-4, 4e-6, 1e-6, MESH, late)
    return [msgspec.structs.replace(one, delays=(delay,)) for one in ring() * 2]


PLAN = {NIC: Place("leaf-1", "Ethernet1")}

CASES: dict[str, Play] = {
    "odd-one-out": lambda wrong: compared(["9000", "1500" if wrong else "9000", "9000", "9000"]),
    "fleet-divided": lambda wrong: compared(["9000", "9000", *["1500" if wrong else "9000"] * 2]),
    "value-missing": lambda wrong: fleet_findings(
        [HostReport(f"h{n}", 0, 0, (), (KERNEL, *([] if wrong and n == 1 else [OFED]))) for n in range(4)],
        {},
    ),
    "profile": lambda wrong: compared(["1500" if wrong else "9000"] * 3, Profile({"rail0": {"mtu": "9000"}})),
    "profile-unproven": lambda wrong: compared(
        ["9000", "9000", "" if wrong else "9000"], Profile({"*": {"mtu": "9000"}})
    ),
    "host-silent": lambda wrong: fleet_findings([], {"h1": "no answer in time"} if wrong else {}),
    "clock-offset": lambda wrong: clock_findings(
        {f"h{n}": ClockOffset(60.0 * (wrong and n == 1), 60.0 * (wrong and n == 1) + 1) for n in range(4)}
    )[0],
    "sla-path": lambda wrong: limit_findings(
        PathLimits(least_gbps=9.0),
        [f"h{n}" for n in range(4)],
        pairs("bandwidth", 1e10, 5e9 if wrong else None),
        2000,
    ),
    "path-connectivity": paths("connectivity", 1e-4, 0.0),
    "path-mtu": paths("mtu", 1e-4, 0.0),
    "path-loss": paths("loss", 0.0, 0.1),
    "path-bandwidth": paths("bandwidth", 1e10, 5e9),
    "path-rdma": paths("rdma", 1e10, 0.0),
    "path-duplex": paths("duplex", 1.0, 0.5),
    "path-delay": paths("owd", 1e-5, 1e-3),
    "path-ecmp": lambda wrong: ecmp_findings(pairs("ecmp_loss", 0.0, 0.1 if wrong else None)),
    "path-untested": lambda wrong: untested_findings({NIC: "in use: a job runs here"} if wrong else {}),
    "nccl-untested": lambda wrong: without_ring(["h1"] if wrong else []),
    "nccl-ring": lambda wrong: ring_findings(ring(slow=wrong)),
    "nccl-delay": lambda wrong: in_band_findings(delayed(wrong)),
    "nccl-data": lambda wrong: ring_findings(ring(corrupt=wrong)),
    "wiring": lambda wrong: wiring_findings(
        PLAN, LldpReports({NIC: Neighbour("leaf-1", "Ethernet2" if wrong else "Ethernet1", "")}, {})
    ),
    "wiring-unknown": lambda wrong: wiring_findings(
        PLAN, LldpReports({} if wrong else {NIC: Neighbour("leaf-1", "Ethernet1", "")}, {})
    ),
}


@pytest.mark.parametrize("check", CASES)
def test_the_fault_is_found_and_nothing_else(check: str) -> None:
    """As the check says, of its category and severity, or of those of the attribute; none without the fault."""
    assert [*CASES[check](False)] == []
    found = [*CASES[check](True)]
    assert {finding.check for finding in found} == {check}
    known = all_checks()[check]
    assert {finding.category for finding in found} == {known.category}
    assert {finding.severity for finding in found} == {known.severity}


def test_every_check_of_the_fleet_has_a_case() -> None:
    """And no identifier is that of a host's check, too: one page would hide the other."""
    assert {check.id for check in checks_of_fleet()} == CASES.keys()
    assert len(all_checks()) == len(checks_of_fleet()) + len(host_checks())
