"""Every misconfiguration that is played is found, named, and alone."""

from pathlib import Path

import pytest
from tests.fixtures.audit.faults import FAULTS, Fault, expected
from tests.fixtures.hostinfo.host_tree import GpuHost

from fabricpulse.audit.compare.findings import fleet_findings
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import Finding, HostReport, Status
from fabricpulse.audit.registry import host_checks


def report_of(host: GpuHost) -> HostReport:
    return audit_host(host.name, host.reader(), patience_s=120, check_patience_s=60)


def key(finding: Finding) -> tuple[str, ...]:
    if finding.check == "odd-one-out":
        return finding.check, finding.subject, finding.evidence["attribute"]
    return finding.check, finding.subject


@pytest.fixture(scope="module", params=[False, True], ids=["roce", "infiniband"])
def good(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, HostReport]:
    host = GpuHost(tmp_path_factory.mktemp("good"), infiniband=request.param)
    return request.param, report_of(host)


def fleet(report: HostReport, hosts: int) -> list[HostReport]:
    """Hosts that are like the first one."""
    return [replace_host(report, f"gpu-{number:03}") for number in range(2, 2 + hosts)]


def replace_host(report: HostReport, name: str) -> HostReport:
    return HostReport(name, report.collected_at, report.duration_s, report.results, report.values)


def test_a_good_fleet_has_no_finding(good: tuple[bool, HostReport]) -> None:
    """On hosts on which all is right nothing is found, and nothing is unknown."""
    _, report = good
    assert fleet_findings([report, *fleet(report, 4)], {}) == ()
    assert [r for r in report.results if r.outcome.status is Status.UNKNOWN] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_and_nothing_else(fault: Fault, goods: dict[bool, HostReport], tmp_path: Path) -> None:
    """The findings are those of the fault, all on the host that has it."""
    host = GpuHost(tmp_path, infiniband=fault.infiniband)
    fault.play(host, 2)
    findings = fleet_findings([report_of(host), *fleet(goods[fault.infiniband], 4)], {})

    assert {key(finding) for finding in findings} == expected(fault, host, 2)
    assert {finding.host for finding in findings} == {host.name}


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, HostReport]:
    return {
        infiniband: report_of(GpuHost(tmp_path_factory.mktemp("goods"), infiniband=infiniband))
        for infiniband in (False, True)
    }


def test_every_check_of_a_host_has_a_fault() -> None:
    """No check is without a case in which it fails."""
    # These need more than a tree: tests of their own.
    elsewhere = {"clock-synchronized", "fabric-manager"}
    played = {finding[0] for fault in FAULTS for finding in fault.expected}
    assert {entry.check.id for entry in host_checks()} - played == elsewhere
    assert len(FAULTS) >= 40
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
