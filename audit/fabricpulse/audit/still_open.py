"""What an earlier audit has found and a later one has not looked at again: it stays open, or a run over less would
hide it. Pure."""

from collections import defaultdict

import msgspec

from fabricpulse.audit.boot import is_another
from fabricpulse.audit.checks.fleet import clock_offset, fleet_divided, odd_one_out, profile, sla_path
from fabricpulse.audit.model import (
    VALUE,
    Finding,
    FleetFindings,
    HostReport,
    OpenFinding,
    Result,
    Status,
    failures,
)

# Those whose result depends on how fast NICs were asked to send.
_BY_RATE = {"path-loss", "path-bandwidth", "path-duplex", "path-rdma", "path-ecmp", sla_path.CHECK.id}
# And on how many datagrams were sent: few lose nothing.
_BY_DATAGRAMS = {"path-loss", "path-ecmp", sla_path.CHECK.id}
# Those of one value.
_BY_VALUE = {odd_one_out.CHECK.id, profile.CHECK.id}
# Those that compare hosts with one another: fewer hosts show less.
COMPARED = {odd_one_out.CHECK.id, fleet_divided.CHECK.id, clock_offset.CHECK.id, "value-missing"}
MOST_OPEN = 1000


def with_open_findings(before: FleetFindings | None, now: FleetFindings) -> FleetFindings:
    """`now` with what is still open of the record that it replaces."""
    if before is None or is_another(_whose(before), _whose(now)):
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
        if _key(one.finding) not in newly and not _tested_again(one, now)
    ]
    return msgspec.structs.replace(now, earlier=tuple(left[:MOST_OPEN]))


def _tested_again(one: OpenFinding, now: FleetFindings) -> bool:
    finding = one.finding
    if finding.check in _BY_RATE and now.rate_bps < one.rate_bps:
        return False
    if finding.check in _BY_DATAGRAMS and now.datagrams < one.datagrams:
        return False
    attribute = finding.evidence.get("attribute", "")
    values = {test.subject for test in now.tested if test.check == VALUE}
    if finding.check in _BY_VALUE and attribute and attribute not in values:
        return False
    if finding.check in COMPARED and 2 * now.hosts < one.hosts:
        return False
    made = [test for test in now.tested if test.check == finding.check and not test.one_way]
    if finding.check.startswith("profile"):
        return any(test.subject == one.profile[:128] for test in made)
    if finding.check == sla_path.CHECK.id and one.profile != now.profile:
        return False
    whole_host = finding.suspects or not finding.subject or any(not test.subject for test in made)
    made = [test for test in made if whole_host or test.subject == finding.subject]
    # Of a way between two NICs others of the two hosts say nothing.
    ends = [finding.evidence.get(end, "").partition(" ") for end in ("source", "target")]
    if finding.suspects and (nics := {nic for host, _, nic in ends if host == now.host and nic}):
        made = [test for test in made if test.subject in nics]
    if not made:
        return False
    peers = {peer for test in made for peer in test.peers}
    if finding.suspects:
        # The one that it was not tested with is the host itself.
        return len(set(finding.suspects) - peers) <= 1
    target = finding.evidence.get("target", "").partition(" ")[0]
    return not target or target in peers


def report_with_open_findings(before: HostReport | None, now: HostReport) -> HostReport:
    """`now` with what failed in the report that it replaces and was not looked at again: of rails that this audit was
    not given, of a profile, or what could not be read this time."""
    if before is None or is_another(_whose(before), _whose(now)):
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
        if finding.severity == "info":
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


def _whose(record: HostReport | FleetFindings) -> tuple[str, str, str]:
    return record.host, record.boot, record.machine


def _key(finding: Finding) -> tuple[str, str, str, str]:
    return finding.check, finding.host, finding.subject, finding.evidence.get("attribute", "")
