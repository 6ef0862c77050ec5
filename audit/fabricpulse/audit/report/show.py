"""A run or a host's report for a person: a tree in the terminal."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from fabricpulse.audit.compare.tested import fleet_outcomes
from fabricpulse.audit.model import CATEGORIES, SEVERITIES, Finding, HostReport, Run, Status
from fabricpulse.audit.registry import all_checks, checks_of_fleet
from fabricpulse.core.output import printable

_STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_STATUS_STYLE = {
    Status.PASSED: "green",
    Status.FAILED: "bold red",
    Status.UNKNOWN: "magenta",
    Status.NOT_APPLICABLE: "dim",
}
# Findings of one check that are written out; the rest is counted. All are in the JSON and the HTML.
MOST_LINES = 12


def show_run(run: Run, console: Console, *, every: bool = False) -> None:
    """Prints the tree of a run. every : also what passed, and all findings of a check."""
    answered = f"{len(run.hosts)} of {len(run.asked)} hosts"
    title = f"Audit {run.id}: {answered}, {run.duration_s:.1f} s" + (", cancelled" if run.cancelled else "")
    outcomes = fleet_outcomes(run)
    show(title, run.hosts, run.findings, console, every=every, between=outcomes)
    if every:
        made = {result.check for report in run.hosts for result in report.results} | set(outcomes)
        left = [check.id for check in checks_of_fleet() if check.id not in made]
        if left:
            console.print(Text(f"not made: {', '.join(left)}", style="dim"))
    for note in run.notes:
        console.print(Text(f"note: {printable(note)}", style="dim"))


def show(
    title: str,
    reports: Sequence[HostReport],
    findings: Sequence[Finding],
    console: Console,
    *,
    every: bool = False,
    between: Mapping[str, Mapping[str, Status]] | None = None,
) -> None:
    """Prints the tree of reports and findings, and a line that sums it up. between : of checks that need more than one
    host, how each is with each host."""
    tree = Tree(Text(printable(title), style="bold"))
    by_check: dict[str, list[Finding]] = {}
    for finding in findings:
        by_check.setdefault(finding.check, []).append(finding)
    statuses: dict[str, Counter[Status]] = {}
    for report in reports:
        for result in report.results:
            statuses.setdefault(result.check, Counter())[result.outcome.status] += 1
    for name, by_host in (between or {}).items():
        statuses.setdefault(name, Counter()).update(by_host.values())
    checks = all_checks()
    known = [*checks, *sorted(set(by_check) - set(checks))]
    for category in CATEGORIES:
        inside = [
            name
            for name in known
            if (checks[name].category if name in checks else by_check[name][0].category) == category
            and (name in by_check or name in statuses)
        ]
        if not inside:
            continue
        wrong = sum(len(by_check.get(name, ())) for name in inside)
        colour = "red" if wrong else "green"
        branch = tree.add(Text.assemble((category, f"bold {colour}"), f"  {_summary(wrong)}"))
        for name in inside:
            _add_check(
                branch, name, by_check.get(name, []), statuses.get(name, Counter()), reports, every=every
            )
    console.print(tree)
    console.print(totals(statuses.values(), findings))


def _add_check(
    branch: Tree,
    name: str,
    findings: Sequence[Finding],
    counts: Counter[Status],
    reports: Sequence[HostReport],
    *,
    every: bool,
) -> None:
    unknown = counts[Status.UNKNOWN]
    if not findings and not unknown and not every:
        return
    summary = ", ".join(
        f"{counts[status]} {status.value.replace('_', ' ')}" for status in Status if counts[status]
    )
    style = _STYLE[findings[0].severity] if findings else ("magenta" if unknown else "green")
    node = branch.add(
        Text.assemble((printable(name), style), (f"  {summary}" if summary else f"  {len(findings)}", "dim"))
    )
    most = len(findings) if every else MOST_LINES
    for finding in findings[:most]:
        where = " ".join(filter(None, (finding.host, finding.subject)))
        node.add(Text.assemble((printable(where) or "fleet", "bold"), ": ", printable(finding.summary)))
    if len(findings) > most:
        node.add(Text(f"… and {len(findings) - most} more", style="dim"))
    check = all_checks().get(name)
    if findings and check is not None:
        node.add(Text(f"→ {check.fix}", style="italic"))
    shown: set[tuple[str, str]] = set()
    for report in reports:
        for result in report.results:
            outcome = result.outcome
            if result.check != name or outcome.status is Status.FAILED:
                continue
            if not every and outcome.status is not Status.UNKNOWN:
                continue
            key = (outcome.status.value, outcome.summary)
            if key in shown and not every:
                continue
            shown.add(key)
            if len(shown) > MOST_LINES and not every:
                continue
            where = " ".join(filter(None, (report.host if len(reports) > 1 else "", outcome.subject)))
            status = Text(outcome.status.value.replace("_", " "), style=_STATUS_STYLE[outcome.status])
            node.add(
                Text.assemble(
                    status, f" {printable(where)}" if where else "", f": {printable(outcome.summary)}"
                )
            )


def _summary(wrong: int) -> str:
    return "no finding" if not wrong else f"{wrong} finding{'s' if wrong > 1 else ''}"


def totals(outcomes: Iterable[Counter[Status]], findings: Sequence[Finding]) -> Text:
    """One line: findings by severity, outcomes by status. outcomes : of each check."""
    statuses = sum(outcomes, Counter[Status]())
    severities = Counter(finding.severity for finding in findings)
    parts: list[tuple[str, str] | str] = []
    for severity in SEVERITIES:
        count = severities[severity]
        parts.append(
            (
                f"{count} {severity}{'s' if count != 1 and severity != 'info' else ''}",
                _STYLE[severity] if count else "dim",
            )
        )
        parts.append(", ")
    parts.append("checks: " + ", ".join(f"{statuses[s]} {s.value.replace('_', ' ')}" for s in Status))
    return Text.assemble(*parts)
