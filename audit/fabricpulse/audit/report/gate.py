"""May this host take a job? Answered from its last audit, in a moment: for a Slurm HealthCheckProgram or a node
condition. Pure."""

from dataclasses import dataclass

from fabricpulse.audit.model import FleetFindings, HostReport, Status


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
) -> Answer:
    """The answer at `now`, Unix seconds.

    fail_on : "error", or "warning" for both. ignore : checks that do not count. A report that is older than
    `max_age_s`, or from the future, proves nothing. fleet : what the last run of the fleet said of this host; where it
    is not decided whether a fault is this host's, the answer is not known. strict : what is unknown, of checks that
    would close, or of the fleet, makes the answer not known. host, boot : of this host now, as in a report; a report of
    another name and another start is another host's, whose disk was copied.
    """
    if report is None:
        return Answer(None, ("this host was never audited: run `fabricpulse audit local --keep`",))
    age = now - report.collected_at
    if age > max_age_s:
        return Answer(None, (f"the last audit is {age / 3600:.1f} h old",))
    if age < -60:
        return Answer(None, ("the last audit is from the future: a clock was set",))
    anew = bool(boot and report.boot and boot != report.boot)
    if anew and host and _short(host) != _short(report.host):
        return Answer(None, (f"the last audit is that of {report.host}",))
    bad = ("error", "warning") if fail_on == "warning" else ("error",)
    found = [
        result
        for result in report.results
        if result.outcome.status is Status.FAILED and result.severity in bad and result.check not in ignore
    ]
    found.sort(key=lambda result: bad.index(result.severity))
    reasons = [f"{r.check} {r.outcome.subject}".strip() + f": {r.outcome.summary}" for r in found]
    unknown = [
        f"{r.check} {r.outcome.subject}".strip() + f": {r.outcome.summary}"
        for r in report.results
        if r.outcome.status is Status.UNKNOWN and r.severity in bad and r.check not in ignore
    ]
    if anew:
        unknown.append("this host has started anew since its last audit")
    doubts: list[str] = []
    if fleet is None:
        unknown.append("no run of the fleet has a result for this host")
    elif not -60 <= now - fleet.at <= max_age_s:
        unknown.append(f"the last run of the fleet, {fleet.run}, is {(now - fleet.at) / 3600:.1f} h old")
    else:
        said = [f for f in fleet.findings if f.severity in bad and f.check not in ignore]
        said.sort(key=lambda finding: bad.index(finding.severity))
        lines = [(f, f"{f.check} {f.subject}".strip() + f": {f.summary}") for f in said]
        reasons += [line for f, line in lines if not f.suspects]
        doubts = [line for f, line in lines if f.suspects]
    if not reasons and doubts:
        return Answer(None, tuple(doubts), tuple(unknown))
    unknown += doubts
    if not reasons and strict and unknown:
        return Answer(None, ("not everything is known, and --strict was asked for",), tuple(unknown))
    return Answer(not reasons, tuple(reasons), tuple(unknown))


def _short(name: str) -> str:
    return name.lower().partition(".")[0]
