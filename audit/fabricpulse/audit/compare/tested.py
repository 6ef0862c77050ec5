"""What a run of the fleet has looked at of one host: what it has not looked at, it says nothing of. Pure."""

from collections import defaultdict
from collections.abc import Mapping

from fabricpulse.audit.checks.fleet import (
    clock_offset,
    host_silent,
    profile_unproven,
    sla_path,
)
from fabricpulse.audit.checks.fleet import profile as profile_check
from fabricpulse.audit.model import MeasurementKind, Run, Tested
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
_LEAST_COMPARED = 3
MOST_PEERS = 128


def tests_of(run: Run, host: str) -> tuple[Tested, ...]:
    """What the run has looked at of a host, beside the host's own checks."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    found[host_silent.CHECK.id, ""] = set()
    for m in run.measurements:
        ends = ((m.source_host, m.source_device), (m.target_host, m.target_device))
        if m.ok is None or host not in (m.source_host, m.target_host):
            continue
        checks = list(CHECKS_OF[m.kind])
        if run.profile and m.kind in ("bandwidth", "loss", "owd"):
            checks.append(sla_path.CHECK.id)
        for (own, device), (peer, _) in (ends, ends[::-1]):
            if own == host:
                for check in checks:
                    found[check, device].add(peer)
    for ring in run.rings:
        if host in ring.hosts and ring.bps is not None:
            for check in ("nccl-ring", "nccl-data"):
                found[check, ""] |= set(ring.hosts) - {host}
        for delay in ring.delays:
            if delay.late is not None and delay.source_host == host:
                found["nccl-delay", delay.source_device].add(delay.target_host)
    if run.wired:
        found["wiring", ""] = found["wiring-unknown", ""] = set()
    if run.profile:
        # Another file need not pin the same.
        found[profile_check.CHECK.id, run.profile[:128]] = set()
        found[profile_unproven.CHECK.id, run.profile[:128]] = set()
    if len(run.hosts) >= _LEAST_COMPARED:
        for check in COMPARED - ({clock_offset.CHECK.id} if host in run.not_asked else set()):
            found[check, ""] = set()
    return tuple(
        Tested(check, device, tuple(sorted(peers)[:MOST_PEERS]))
        for (check, device), peers in sorted(found.items())
    )
