"""The metrics of a host's last audit, for the agent's /metrics and for node_exporter's textfile collector."""

from collections import Counter

from fabricpulse.audit.metrics import (
    CHECK_FAILED,
    DURATION,
    FINDINGS,
    FLEET_LAST_RUN,
    LAST_RUN,
    OPEN_FINDINGS,
    OUTCOMES,
)
from fabricpulse.audit.model import CATEGORIES, SEVERITIES, FleetFindings, HostReport, Status
from fabricpulse.core.metrics.exposition import Exposition


def expose(report: HostReport | None, exposition: Exposition, fleet: FleetFindings | None = None) -> None:
    """Adds the samples. report : None before the first audit, which a time of 0 shows. fleet : of the last run of the
    fleet, None if there was none."""
    still_open = [one.finding for one in report.open] if report else []
    if fleet is not None:
        still_open += [*fleet.findings, *(one.finding for one in fleet.earlier)]
        exposition.add(FLEET_LAST_RUN, (), fleet.at)
    for (severity, check), count in sorted(Counter((f.severity, f.check) for f in still_open).items()):
        exposition.add(OPEN_FINDINGS, (severity, check), count)
    exposition.add(LAST_RUN, (), report.collected_at if report else 0)
    if report is None:
        return
    exposition.add(DURATION, (), report.duration_s)
    failed = [result for result in report.results if result.outcome.status is Status.FAILED]
    severities = Counter(result.severity for result in failed)
    for severity in SEVERITIES:
        exposition.add(FINDINGS, (severity,), severities[severity])
    counts = Counter((result.category, result.outcome.status) for result in report.results)
    for category in CATEGORIES[:-1]:
        for status in Status:
            exposition.add(OUTCOMES, (category, status.value), counts[category, status])
    by_check = Counter(result.check for result in failed)
    for check in dict.fromkeys(result.check for result in report.results):
        exposition.add(CHECK_FAILED, (check,), by_check[check])
