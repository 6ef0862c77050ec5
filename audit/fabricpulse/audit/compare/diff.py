"""What has changed between two runs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from fabricpulse.audit.checks.fleet import clock_offset, nccl_delay, path_untested
from fabricpulse.audit.evidence import kinds_named
from fabricpulse.audit.model import Finding, HostReport, Measurement, Run, Status

# Of each check of paths, what a run must have measured to find it again.
_MEASURED: Mapping[str, tuple[str, ...]] = {
    "path-ecmp": ("loss", "owd", "ecmp_loss", "ecmp_delay"),
    "path-delay": ("owd",),
    "sla-path": ("bandwidth", "loss", "owd"),
    "path-untested": ("connectivity", "bandwidth", "loss"),
}


@dataclass(frozen=True)
class RunDiff:
    """new, gone, same : findings, in the order of their run. unseen : of the earlier run, what the later one has not
    looked at. added, removed : hosts that only one run has."""

    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    same: tuple[Finding, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    unseen: tuple[Finding, ...] = ()


def diff_runs(before: Run, after: Run) -> RunDiff:
    """Findings are the same when check, host, subject, and for compared values the attribute, are; the rest of their
    text may differ. One is gone only where the later run has looked at the same and found nothing."""
    old = {_key(finding): finding for finding in before.findings}
    now = {_key(finding): finding for finding in after.findings}
    answered = {report.host: report for report in after.hosts}
    missing = {key: _has_looked(after, answered, finding) for key, finding in old.items() if key not in now}
    return RunDiff(
        tuple(finding for key, finding in now.items() if key not in old),
        tuple(old[key] for key, looked in missing.items() if looked),
        tuple(finding for key, finding in now.items() if key in old),
        tuple(sorted(set(after.asked) - set(before.asked))),
        tuple(sorted(set(before.asked) - set(after.asked))),
        tuple(old[key] for key, looked in missing.items() if not looked),
    )


def _has_looked(after: Run, answered: Mapping[str, HostReport], finding: Finding) -> bool:
    """Whether the run would have the finding if it were still true."""
    hosts = finding.suspects or ((finding.host,) if finding.host else ())
    if not all(host in answered for host in hosts):
        return False
    check, attribute = finding.check, finding.evidence.get("attribute")
    if check.startswith(("profile", "sla-")) and not after.profile:
        return False
    if check == nccl_delay.CHECK.id:
        judged = {
            (d.source_host, d.source_device) for r in after.rings for d in r.delays if d.late is not None
        }
        return (finding.host, finding.subject) in judged
    if check.startswith("nccl-"):
        return bool(after.rings)
    if check == clock_offset.CHECK.id:
        # Clocks are known by when hosts answer, and these have answered to another run.
        return finding.host not in after.not_asked
    if check.startswith("wiring"):
        return (finding.host, finding.subject) in after.located
    if check.startswith(("path-", "sla-")):
        kinds = _MEASURED.get(check, (check.removeprefix("path-"),))
        if check == path_untested.CHECK.id:
            # All that was not known of it; a reason that an agent gave names no kind of test.
            kinds_wanted = kinds_named(finding.evidence.get("reason", ""))
            known = {m.kind for m in after.measurements if m.ok is not None and _is_end(finding, m)}
            if kinds_wanted:
                return known.issuperset(kinds_wanted)
        ends = [
            end
            for m in after.measurements
            if m.kind in kinds and m.ok is not None
            for end in ((m.source_host, m.source_device), (m.target_host, m.target_device))
        ]
        if finding.suspects or not finding.host:
            return {host for host, _ in ends} >= set(hosts) and bool(ends)
        return any(h == finding.host and (not finding.subject or d == finding.subject) for h, d in ends)
    if attribute is not None:
        reports = [answered[host] for host in hosts] if hosts else list(answered.values())
        return any(
            value.attribute == attribute and finding.subject in (value.subject, attribute)
            for report in reports
            for value in report.values
        )
    if finding.category == "fleet" or not finding.host:
        return True
    own = [r.outcome for r in answered[finding.host].results if r.check == check]
    named = [outcome for outcome in own if outcome.subject == finding.subject] or own
    return bool(own) and all(outcome.status is not Status.UNKNOWN for outcome in named)


def _is_end(finding: Finding, m: Measurement) -> bool:
    nic = (finding.host, finding.subject)
    return nic in ((m.source_host, m.source_device), (m.target_host, m.target_device))


def _key(finding: Finding) -> tuple[str, str, str, str]:
    return finding.check, finding.host, finding.subject, finding.evidence.get("attribute", "")
