"""What an earlier audit has found and a later one has not looked at again: it stays open, or a run over less would
hide it. Pure."""

from collections import defaultdict

import msgspec

from fabricpulse.audit.boot import is_another, origin_of
from fabricpulse.audit.model import (
    MOST_AWAITED,
    Finding,
    FleetFindings,
    HostReport,
    OpenFinding,
    Result,
    Status,
    failures,
)
from fabricpulse.audit.registry import all_checks
from fabricpulse.audit.tested_again import partner_of, tested_again

MOST_OPEN = 1000


def with_open_findings(before: FleetFindings | None, now: FleetFindings) -> FleetFindings:
    """`now` with what is still open of the record that it replaces."""
    if before is None or is_another(origin_of(before), origin_of(now)):
        return now
    newly = {_key(finding) for finding in now.findings}
    own = [
        OpenFinding(
            before.run,
            before.at,
            finding,
            before.hosts,
            before.rate_bps,
            before.profile,
            before.datagrams,
        )
        for finding in before.findings
        if finding.severity != "info"
    ]
    left = [
        one
        for one in (*own, *before.earlier)
        if _key(one.finding) not in newly and not tested_again(one, now)
    ]
    return msgspec.structs.replace(now, earlier=tuple(left[:MOST_OPEN]))


def awaited(kept: FleetFindings) -> tuple[str, ...]:
    """The hosts that the host must be tested with again before all that was found of it is cleared."""
    open_now = [*kept.findings, *(one.finding for one in kept.earlier)]
    names: set[str] = set()
    for finding in open_now:
        partner = partner_of(finding, kept.host)
        names |= {partner} if partner else set(finding.suspects)
    return tuple(sorted(names - {"", kept.host})[:MOST_AWAITED])


def report_with_open_findings(before: HostReport | None, now: HostReport) -> HostReport:
    """`now` with what failed in the report that it replaces and was not looked at again: of rails that this audit was
    not given, of a profile, or what could not be read this time."""
    if before is None or is_another(origin_of(before), origin_of(now)):
        return now
    # A fleet that lists rails says which there are; an audit without any was not given them.
    unseen_rails = set() if now.rails else set(before.rails)
    by_check: dict[str, list[Result]] = defaultdict(list)
    for result in now.results:
        by_check[result.check].append(result)
    found = [OpenFinding("", before.collected_at, finding) for finding in failures(before)]
    left = []
    for one in (*found, *before.open):
        finding = one.finding
        if finding.severity == "info" or finding.check not in all_checks():
            continue
        own = [
            result
            for result in by_check[finding.check]
            # Another profile need not pin the same.
            if result.outcome.evidence.get("profile") == finding.evidence.get("profile")
        ]
        named = [result for result in own if result.outcome.subject == finding.subject]
        if not named and finding.subject in unseen_rails:
            own = []
        statuses = [result.outcome.status for result in named or own]
        if not statuses or Status.UNKNOWN in statuses:
            left.append(one)
    rails = tuple(sorted(unseen_rails & {one.finding.subject for one in left}))
    return msgspec.structs.replace(now, open=tuple(left[:MOST_OPEN]), rails=now.rails or rails)


def _key(finding: Finding) -> tuple[str, str, str, str]:
    return finding.check, finding.host, finding.subject, finding.evidence.get("attribute", "")
