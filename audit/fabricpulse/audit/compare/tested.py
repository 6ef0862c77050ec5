"""What a run of the fleet has looked at of one host: what it has not looked at, it says nothing of. Pure."""

from collections.abc import Iterable, Mapping

from fabricpulse.audit.checks.fleet import (
    clock_offset,
    host_silent,
    profile_unproven,
    sla_path,
)
from fabricpulse.audit.checks.fleet import profile as profile_check
from fabricpulse.audit.model import VALUE, MeasurementKind, Run, Status, Tested
from fabricpulse.audit.still_open import COMPARED

# Which checks a test of pairs makes again.
CHECKS_OF: Mapping[MeasurementKind, tuple[str, ...]] = {
    "connectivity": ("path-connectivity", "path-untested"),
    "mtu": ("path-mtu",),
    "loss": ("path-loss", "path-untested"),
    "owd": ("path-delay",),
    "bandwidth": ("path-bandwidth", "path-untested"),
    "duplex": ("path-duplex",),
    "rdma": ("path-rdma",),
    "ecmp_loss": ("path-ecmp",),
    "ecmp_delay": ("path-ecmp",),
}
# Of these each way of a pair has a test of its own.
_BOTH_WAYS = {"connectivity", "mtu", "loss", "owd", "bandwidth", "duplex", "rdma"}
_LEAST_COMPARED = 3
MOST_PEERS = 128


def tests_of(run: Run) -> dict[str, tuple[Tested, ...]]:
    """What the run has looked at of each host that has answered, beside the host's own checks."""
    found: dict[str, dict[tuple[str, str], set[str]]] = {
        report.host: {(host_silent.CHECK.id, ""): set()} for report in run.hosts
    }

    def add(host: str, check: str, device: str = "", peers: Iterable[str] = ()) -> None:
        if host in found:
            found[host].setdefault((check, device), set()).update(peers)

    sides: dict[tuple[str, str, str], set[str]] = {}
    for m in run.measurements:
        if m.ok is None:
            continue
        checks = CHECKS_OF[m.kind]
        if run.profile and m.kind in ("bandwidth", "loss", "owd"):
            checks = (*checks, sla_path.CHECK.id)
        for check in checks:
            add(m.source_host, check, m.source_device, (m.target_host,))
            add(m.target_host, check, m.target_device, (m.source_host,))
            if m.kind in _BOTH_WAYS:
                sides.setdefault((m.source_host, check, m.source_device), set()).add("sends")
                sides.setdefault((m.target_host, check, m.target_device), set()).add("is sent")
    for ring in run.rings:
        if ring.bps is not None:
            for host in ring.hosts:
                for check in ("nccl-ring", "nccl-data"):
                    add(host, check, "", set(ring.hosts) - {host})
        for delay in ring.delays:
            if delay.late is not None:
                add(delay.source_host, "nccl-delay", delay.source_device, (delay.target_host,))
    for report in run.hosts:
        for value in report.values:
            add(report.host, VALUE, value.attribute)
    of_all = ["wiring", "wiring-unknown"] if run.wired else []
    if len(run.hosts) >= _LEAST_COMPARED:
        of_all += sorted(COMPARED - {clock_offset.CHECK.id})
    not_asked = set(run.not_asked)
    for host in found:
        for check in of_all:
            add(host, check)
        if len(run.hosts) >= _LEAST_COMPARED and host not in not_asked:
            add(host, clock_offset.CHECK.id)
        if run.profile:
            # Another file need not pin the same.
            add(host, profile_check.CHECK.id, run.profile[:128])
            add(host, profile_unproven.CHECK.id, run.profile[:128])
    return {
        host: tuple(
            Tested(
                check,
                device,
                tuple(sorted(peers)[:MOST_PEERS]),
                one_way=len(sides.get((host, check, device), ())) == 1,
            )
            for (check, device), peers in sorted(made.items())
        )
        for host, made in found.items()
    }


def fleet_outcomes(run: Run) -> dict[str, dict[str, Status]]:
    """Of each check that needs more than one host and that was made: how it is with each host that it was made on.
    Where a finding names suspects it is unknown of them."""
    own = {
        (report.host, result.check)
        for report in run.hosts
        for result in report.results
        if result.outcome.status is Status.FAILED
    }
    found: dict[str, dict[str, Status]] = {}
    for host, tested in tests_of(run).items():
        for test in tested:
            if test.check == VALUE or (len(run.asked) < 2 and test.check == host_silent.CHECK.id):
                continue
            found.setdefault(test.check, {})[host] = Status.PASSED
    for finding in run.findings:
        for host in finding.suspects or (finding.host,):
            if host and (host, finding.check) not in own:
                by_host = found.setdefault(finding.check, {})
                if finding.suspects and by_host.get(host) is not Status.FAILED:
                    by_host[host] = Status.UNKNOWN
                elif not finding.suspects:
                    by_host[host] = Status.FAILED
    return found
