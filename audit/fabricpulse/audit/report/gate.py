"""May this host take a job? Answered from its last audit, in a moment: for a Slurm HealthCheckProgram or a node
condition. Pure."""

from dataclasses import dataclass

from fabricpulse.audit.boot import Origin, is_another, origin_of
from fabricpulse.audit.model import FleetFindings, HostReport, OpenFinding, Status
from fabricpulse.audit.report.labels import NOT_KNOWN


@dataclass(frozen=True)
class Answer:
    """open : whether the host may take a job; None if that is not known. reasons : why not, one line each, worst first.
    unknown : what could not be judged, one line each; it closes nothing unless that is asked for."""

    open: bool | None
    reasons: tuple[str, ...]
    unknown: tuple[str, ...] = ()


def gate(
    report: HostReport | None,
    now: float,
    max_age_s: float,
    *,
    fail_on: str = "error",
    ignore: tuple[str, ...] = (),
    fleet: FleetFindings | None = None,
    strict: bool = False,
    host: str = "",
    boot: str = "",
    machine: str = "",
    not_kept: tuple[str, ...] = (),
) -> Answer:
    """The answer at `now`, Unix seconds.

    fail_on : "error", or "warning" for both. ignore : checks that do not count. A report that is older than
    `max_age_s`, or from the future, proves nothing. fleet : what the last run of the fleet said of this host; where it
    is not decided whether a fault is this host's, the answer is not known; nor is it where a finding is older than
    `max_age_s` and nothing since has tested that again. strict : what is unknown, of checks that would close, or of the
    fleet, makes the answer not known. host : the kernel's name of this host. boot, machine : of it now, as in a report;
    what was kept on another machine whose disk was copied says nothing, and of a start before this one an error alone
    counts. not_kept : why newer results may be missing, one line each.
    """
    own = Origin(host, boot, machine, host)
    if report is None and not_kept:
        return Answer(None, not_kept)
    if report is None:
        return Answer(None, ("this host was never audited: run `fabricpulse audit local --keep`",))
    age = now - report.collected_at
    if age > max_age_s:
        return Answer(None, (f"the last audit is {age / 3600:.1f} h old",))
    if age < -60:
        return Answer(None, ("the last audit is from the future: a clock was set",))
    if is_another(origin_of(report), own):
        return Answer(None, (f"the last audit is that of {report.host}, on another machine",))
    bad = ("error", "warning") if fail_on == "warning" else ("error",)
    closing: list[tuple[str, str]] = [
        (result.severity, _line(result.check, result.outcome.subject, result.outcome.summary))
        for result in report.results
        if result.outcome.status is Status.FAILED and result.severity in bad and result.check not in ignore
    ]
    unknown = [
        _line(r.check, r.outcome.subject, r.outcome.summary)
        for r in report.results
        if r.outcome.status is Status.UNKNOWN and r.severity in bad and r.check not in ignore
    ]
    doubts = list(not_kept)
    if boot and report.boot and boot != report.boot:
        # Modules, sysctls and links are those of another start, and who restarts a host often changes it.
        doubts.append("this host has started anew since its last audit: run `fabricpulse audit local --keep`")
    earlier = list(report.open)
    # Of which no later audit has made the test again: people must know which one would.
    awaited = {id(one) for one in (*report.open, *(fleet.earlier if fleet else ()))}
    if fleet is None:
        unknown.append("no run of the fleet has a result for this host")
    elif is_another(origin_of(fleet), own):
        doubts.append(f"the last run of the fleet, {fleet.run}, was kept by {fleet.host}, on another machine")
    else:
        earlier += [OpenFinding(fleet.run, fleet.at, finding) for finding in fleet.findings]
        earlier += fleet.earlier
        if boot and fleet.boot and boot != fleet.boot:
            unknown.append(f"the last run of the fleet, {fleet.run}, was before this host started anew")
        if not -60 <= now - fleet.at <= max_age_s:
            unknown.append(f"the last run of the fleet, {fleet.run}, is {(now - fleet.at) / 3600:.1f} h old")
    for one in earlier:
        finding = one.finding
        if finding.check in ignore:
            continue
        line = _line(finding.check, finding.subject, finding.summary)
        if id(one) in awaited:
            # It knows all checks, which the gate of a healthy host must not take the time to load.
            from fabricpulse.audit.clearing import what_clears

            line += f"; cleared by {what_clears(one, fleet.host if fleet else report.host)}"
        if finding.severity not in bad:
            if finding.check in NOT_KNOWN:
                unknown.append(line)
            continue
        if not -60 <= now - one.at <= max_age_s:
            doubts.append(f"{line} ({(now - one.at) / 3600:.1f} h ago, and not tested again)")
        elif finding.suspects:
            doubts.append(line)
        else:
            closing.append((finding.severity, line))
    closing.sort(key=lambda entry: bad.index(entry[0]))
    reasons = tuple(dict.fromkeys(line for _, line in closing))
    if not reasons and doubts:
        return Answer(None, tuple(doubts), tuple(unknown))
    unknown += doubts
    if not reasons and strict and unknown:
        return Answer(None, ("not everything is known, and --strict was asked for",), tuple(unknown))
    return Answer(not reasons, reasons, tuple(unknown))


def _line(check: str, subject: str, summary: str) -> str:
    return f"{check} {subject}".strip() + f": {summary}"
