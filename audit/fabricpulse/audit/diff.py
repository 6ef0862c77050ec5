"""What has changed between two runs. Pure."""

from dataclasses import dataclass

from fabricpulse.audit.model import Finding, Run


@dataclass(frozen=True)
class RunDiff:
    """new, gone, same : findings, in the order of their run. added, removed : hosts that only one run has."""

    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    same: tuple[Finding, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]


def diff_runs(before: Run, after: Run) -> RunDiff:
    """Findings are the same when check, host, subject, and for compared values the attribute, are; the rest of their
    text may differ. One of a host that the later run did not hear is not gone: it is in `same`."""
    old = {_key(finding): finding for finding in before.findings}
    now = {_key(finding): finding for finding in after.findings}
    heard = {report.host for report in after.hosts}
    unheard = {
        key for key, finding in old.items() if key not in now and finding.host and finding.host not in heard
    }
    return RunDiff(
        tuple(finding for key, finding in now.items() if key not in old),
        tuple(finding for key, finding in old.items() if key not in now and key not in unheard),
        (*(finding for key, finding in now.items() if key in old), *(old[key] for key in unheard)),
        tuple(sorted(set(after.asked) - set(before.asked))),
        tuple(sorted(set(before.asked) - set(after.asked))),
    )


def _key(finding: Finding) -> tuple[str, str, str, str]:
    return finding.check, finding.host, finding.subject, finding.evidence.get("attribute", "")
