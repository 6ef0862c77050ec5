"""A run made of its reports. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime

from fabricpulse.audit.compare.findings import fleet_findings
from fabricpulse.audit.compare.profile import Profile
from fabricpulse.audit.model import Finding, HostReport, Measurement, Run


def run_id(now: float) -> str:
    """20261122T193005Z."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")


def run_of(
    reports: list[HostReport],
    silent: dict[str, str],
    profile: Profile | None,
    profile_name: str,
    asked: tuple[str, ...],
    started_at: float,
    duration_s: float,
    cancelled: bool = False,
    more: Sequence[Finding] = (),
    notes: tuple[str, ...] = (),
    measurements: Sequence[Measurement] = (),
) -> Run:
    """The run of these reports, compared. more : findings of tests between hosts."""
    findings = fleet_findings(reports, silent, profile, more)
    return Run(
        run_id(started_at),
        started_at,
        duration_s,
        asked,
        tuple(sorted(reports, key=lambda r: r.host)),
        findings,
        cancelled,
        profile_name,
        notes,
        tuple(measurements),
    )
