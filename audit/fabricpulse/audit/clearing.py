"""What clears an error that an earlier audit has found, for people: the next step, not the whole rule (tested_again.py,
docs/audit-gate.md). Pure."""

from fabricpulse.audit.checks.fleet import sla_path
from fabricpulse.audit.evidence import way_of
from fabricpulse.audit.model import OpenFinding
from fabricpulse.audit.tested_again import (
    BY_RATE,
    CHECK_OF,
    COMPARED,
    OF_CABLES,
    RING_CHECKS,
    partner_of,
)


def what_clears(one: OpenFinding, host: str) -> str:
    """The audit to run, and what to do where what the finding is of is used no longer; `host` has it."""
    finding, check = one.finding, one.finding.check
    if not one.run:
        return "the host's own audit, where it reads that again"
    if check.startswith("profile"):
        return f"a run with --profile of {one.profile}; if that is used no longer, --ignore {check}"
    if check in OF_CABLES:
        return (
            f"a run with its wiring plan that gets LLDP from {finding.subject}; if that NIC is in no plan any more, "
            f"--ignore {check}"
        )
    if check in RING_CHECKS:
        return f"a run with --nccl over {(one.hosts + 1) // 2} hosts or more; if no ring is wanted, --ignore {check}"
    if check in COMPARED:
        return f"a run over {(one.hosts + 1) // 2} hosts or more"
    rate = f", --rate {one.rate_bps / 1e6:g} or more" if check in BY_RATE and one.rate_bps else ""
    limit = " and the same --sla file" if check == sla_path.CHECK.id else ""
    partner = partner_of(finding, host)
    if partner:
        renamed = f"if {partner} has another name now, one with the membership"
        return f"a run with --hosts {host},{partner}{rate}{limit}; {renamed}"
    if way_of(host) in finding.evidence:
        return f"no run: an older release has cut the path that it is of; --ignore {check}"
    if check in CHECK_OF.values() or limit:
        return f"a run that tests it with two hosts or more{rate}{limit}"
    return "a run that tests it again"
