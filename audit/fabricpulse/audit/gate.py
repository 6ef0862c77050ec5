"""May this host take a job? Answered from its last audit, in a moment: for a Slurm HealthCheckProgram or a node
condition. Pure."""

from dataclasses import dataclass

from fabricpulse.audit.model import HostReport, Status


@dataclass(frozen=True)
class Answer:
    """open : whether the host may take a job; None if that is not known. reasons : one line each, worst first."""

    open: bool | None
    reasons: tuple[str, ...]


def gate(
    report: HostReport | None,
    now: float,
    max_age_s: float,
    *,
    fail_on: str = "error",
    ignore: tuple[str, ...] = (),
) -> Answer:
    """The answer at `now`, Unix seconds.

    fail_on : "error", or "warning" for both. ignore : checks that do not count. A report that is older than
    `max_age_s`, or from the future, proves nothing.
    """
    if report is None:
        return Answer(None, ("this host was never audited: run `fabricpulse audit local --keep`",))
    age = now - report.collected_at
    if age > max_age_s:
        return Answer(None, (f"the last audit is {age / 3600:.1f} h old",))
    if age < -60:
        return Answer(None, ("the last audit is from the future: a clock was set",))
    bad = ("error", "warning") if fail_on == "warning" else ("error",)
    found = [
        result
        for result in report.results
        if result.outcome.status is Status.FAILED and result.severity in bad and result.check not in ignore
    ]
    found.sort(key=lambda result: bad.index(result.severity))
    reasons = tuple(f"{r.check} {r.outcome.subject}".strip() + f": {r.outcome.summary}" for r in found)
    return Answer(not found, reasons)
