"""From reports to findings: what failed on hosts, who is odd, who is silent. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from fabricpulse.audit.checks.fleet import fleet_divided, host_silent, odd_one_out, value_missing
from fabricpulse.audit.checks.fleet import profile as profile_check
from fabricpulse.audit.compare.odd_one_out import Comparison, against, compare
from fabricpulse.audit.compare.profile import Profile
from fabricpulse.audit.compare.sla import unproven
from fabricpulse.audit.compare.tested import tests_of
from fabricpulse.audit.host.attributes import BY_NAME
from fabricpulse.audit.model import (
    SEVERITIES,
    Finding,
    FleetFindings,
    HostReport,
    Run,
    Severity,
    Tested,
    clip,
    failures,
)
from fabricpulse.audit.registry import all_checks


def fleet_findings(
    reports: Sequence[HostReport],
    silent: Mapping[str, str],
    profile: Profile | None = None,
    more: Iterable[Finding] = (),
) -> tuple[Finding, ...]:
    """All findings of a run, worst first, then by host.

    silent : hosts that did not answer, with why. profile : pins values; without one the fleet is compared with itself
    alone. more : findings of tests between hosts.
    """
    values = {report.host: report.values for report in reports}
    found = [finding for report in reports for finding in failures(report)]
    found += [*more, *_odd(compare(values))]
    if profile is not None:
        for host, value, wanted in against(values, profile.roles):
            text = f"{value.attribute} is {value.value}, the profile wants {wanted}"
            evidence = {"attribute": value.attribute, "role": value.role}
            severity = _severity(value.attribute)
            found.append(profile_check.CHECK.finding(host, value.subject, text, evidence, severity=severity))
        found += unproven(values, profile.roles)
    for host, reason in silent.items():
        found.append(host_silent.CHECK.finding(host, "", f"no answer: {reason}"))
    return worst_first(found)


def of_host(
    run: Run,
    host: str,
    tested: Mapping[str, tuple[Tested, ...]] | None = None,
    members: Collection[str] = (),
) -> FleetFindings:
    """What the run says of a host and the host does not itself, worst first; with what it may be at fault for. tested :
    of all hosts, once for all of them. members : hosts of the membership, () if there was none."""
    made = tests_of(run) if tested is None else tested
    report = next((report for report in run.hosts if report.host == host), None)
    own = set() if report is None else {(f.check, f.subject) for f in failures(report)}
    found = [
        f for f in run.findings if host in f.suspects or (f.host == host and (f.check, f.subject) not in own)
    ]
    return FleetFindings(
        run.id,
        run.started_at + run.duration_s,
        tuple(found[:1000]),
        tested=made.get(host, ()),
        hosts=len(run.hosts),
        rate_bps=run.rate_bps,
        profile=run.profile,
        host=host,
        datagrams=run.datagrams,
        checks=tuple(all_checks()),
        members=len(members),
        removed=_removed(report.awaits, members) if report and members else (),
        devices=_devices(report) if report and members else (),
    )


def _removed(names: Iterable[str], members: Collection[str]) -> tuple[str, ...]:
    """Those that no member is called, short or qualified."""
    known = {name.lower().partition(".")[0] for name in members}
    return tuple(name for name in names if name.lower().partition(".")[0] not in known)


def _devices(report: HostReport) -> tuple[str, ...]:
    """NICs that the fleet lists of a host, and devices that it has reported itself; () where it has reported none: it
    may have had no time to."""
    reported = {value.subject for value in report.values if value.subject}
    reached = {report.front_end.device} if report.front_end else set()
    return tuple(sorted({*report.rails, *reported, *reached})[:4096]) if report.values else ()


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """In order of severity, check, host and subject."""
    order = {severity: rank for rank, severity in enumerate(SEVERITIES)}
    return tuple(sorted(findings, key=lambda f: (order[f.severity], f.check, f.host, f.subject, f.summary)))


def _odd(comparison: Comparison) -> list[Finding]:
    found = []
    for odd in comparison.odd:
        value = odd.value
        text = f"{value.attribute} is {value.value}; {odd.have} of {odd.size} have {odd.usual}"
        evidence = {
            "attribute": value.attribute,
            "value": value.value,
            "usual": odd.usual,
            "role": value.role,
        }
        severity = _severity(value.attribute)
        found.append(odd_one_out.CHECK.finding(odd.host, value.subject, text, evidence, severity=severity))
    for missing in comparison.missing:
        if missing.attributes:
            lacking = ", ".join(missing.attributes)
            text = f"does not report what more than half of its like do: {lacking}"
        else:
            lacking, text = "all", "reports no value, so it is compared with nothing"
        found.append(
            value_missing.CHECK.finding(missing.host, missing.subject, text, {"missing": clip(lacking)})
        )
    for divided in comparison.divided:
        parts = [f"{len(who)} have {value}" for value, who in divided.values.items()]
        text = f"{divided.attribute}: {'; '.join(parts[:8])}"
        evidence = {"attribute": divided.attribute, "role": divided.role}
        for text_value, who in list(divided.values.items())[:16]:
            names = sorted({host for host, _ in who})
            more = f" and {len(names) - 20} more" if len(names) > 20 else ""
            evidence[clip(text_value, 100)] = clip(", ".join(names[:20]) + more, 1000)
        found.append(fleet_divided.CHECK.finding("", divided.attribute, text, evidence))
    return found


def _severity(attribute: str) -> Severity:
    return BY_NAME[attribute].severity if attribute in BY_NAME else "warning"
