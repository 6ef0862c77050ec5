"""What a coordinator logs of its fleet: each change once."""

from typing import Any

import pytest
from tests.unit.clocksync.coordinator.reporting_fleet import ReportingFleet

from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.coordinator.fleet_log import FleetLog


def _run(hosts: ReportingFleet, log: FleetLog, seconds: int) -> None:
    for _ in range(seconds):
        hosts.run()
        log.round_solved(hosts.second + 0.1)


def _said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """Level and first words of each line, and its fields."""
    said = [(f"{r.levelname} {r.getMessage().split(':')[0]}", vars(r)["fields"]) for r in caplog.records]
    caplog.clear()
    return said


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def test_quorum_and_leases_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """Five of twelve are left: quorum lost, with how many there were; then the leases; then all are back."""
    hosts = ReportingFleet(12)
    log = FleetLog(hosts.fleet)
    _run(hosts, log, 20)
    assert _said(caplog) == []
    hosts.silent = set(hosts.hosts[5:])
    _run(hosts, log, 30)
    lost, gone = _said(caplog)
    assert lost[0] == "WARNING quorum lost"
    assert lost[1] == {"hosts": 5, "were": 12, "carried_utc": False, "root": hosts.fleet.root}
    assert gone[0] == "WARNING hosts no longer report"
    first = ("h05", "h06", "h07", "h08", "h09")
    assert gone[1] == {"hosts": 7, "first": first, "silent_s": 10.0, "left": 5}
    hosts.silent = set()
    _run(hosts, log, 20)
    ((words, fields),) = _said(caplog)
    assert words == "INFO quorum regained"
    assert fields["hosts"] == 12
    assert 20 < fields["after_s"] < 35


def test_a_coordinator_that_starts_anew_waits_before_it_calls_a_quorum_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The hosts come one by one; but if most still are not there after a lease, it is said."""
    hosts = ReportingFleet(12)
    hosts.run(20)
    quorum, hosts.fleet, hosts.silent = hosts.fleet.quorum, Fleet(), set(hosts.hosts[3:])
    hosts.fleet.quorum = quorum
    log = FleetLog(hosts.fleet)
    _run(hosts, log, 3)
    assert hosts.fleet.no_quorum
    assert _said(caplog) == []
    _run(hosts, log, 15)
    assert [words for words, _ in _said(caplog)] == ["WARNING quorum lost"]
