"""What a run of the fleet has looked at of one host: what it has not looked at, it says nothing of. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal

from fabricpulse.audit.checks.fleet import (
    clock_offset,
    host_silent,
    path_ecmp,
    path_untested,
    profile_unproven,
    sla_path,
)
from fabricpulse.audit.checks.fleet import profile as profile_check
from fabricpulse.audit.compare.profile import PathLimits
from fabricpulse.audit.compare.sla import LIMIT_OF, limit_of, within
from fabricpulse.audit.model import MOST_PEERS, VALUE, Measurement, Run, Status, Tested
from fabricpulse.audit.tested_again import CHECK_OF, COMPARED, RING_CHECKS, value_name

Side = Literal["", "sends", "receives"]

_LEAST_COMPARED = 3
MOST_VALUES = 2000


class _Looks:
    """What was looked at, by host, and by check, subject and side."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._peers: dict[str, dict[tuple[str, str, Side], set[str]]] = {host: {} for host in hosts}
        self._undecided: Counter[tuple[str, str, str, Side]] = Counter()

    def add(
        self, host: str, check: str, subject: str = "", peers: Iterable[str] = (), side: Side = ""
    ) -> None:
        """One that has decided something."""
        if host in self._peers:
            self._peers[host].setdefault((check, subject[:128], side), set()).update(peers)

    def add_way(self, m: Measurement, check: str, *, decided: bool) -> None:
        """Both sides of a test between NICs."""
        for host, nic, peer, side in (
            (m.source_host, m.source_device, m.target_host, "sends"),
            (m.target_host, m.target_device, m.source_host, "receives"),
        ):
            self.add(host, check, nic, (peer,) if decided else (), side)  # type: ignore[arg-type]
            self._undecided[host, check, nic, side] += not decided  # type: ignore[index]

    def found(self) -> dict[str, tuple[Tested, ...]]:
        """Of each host."""
        return {
            host: tuple(
                Tested(
                    check,
                    subject,
                    tuple(sorted(peers)[:MOST_PEERS]),
                    side,
                    self._undecided[host, check, subject, side],
                )
                for (check, subject, side), peers in sorted(made.items())
            )
            for host, made in self._peers.items()
        }


def tests_of(run: Run, limits: PathLimits | None = None) -> dict[str, tuple[Tested, ...]]:
    """What the run has looked at of each host that has answered, beside the host's own checks. limits : of its
    profile; without them no test of a path is known to show that one is kept."""
    looks = _Looks(report.host for report in run.hosts)
    ports: dict[tuple[str, ...], list[Measurement]] = defaultdict(list)
    for m in run.measurements:
        if m.kind in ("ecmp_loss", "ecmp_delay"):
            ports[m.source_host, m.source_device, m.target_host, m.target_device].append(m)
        else:
            looks.add_way(m, CHECK_OF[m.kind], decided=m.ok is not None)
        if limits is not None and (name := limit_of(m)) and getattr(limits, name) is not None:
            decided = within(m, limits, run.datagrams) is not None
            looks.add_way(m, f"{sla_path.CHECK.id} {name}", decided=decided)
    for own in ports.values():
        # A way that was judged by its delay alone may lose.
        looks.add_way(own[0], path_ecmp.CHECK.id, decided=all(m.ok is not None for m in own))
    for ring in run.rings:
        if ring.bps is not None:
            for host in ring.hosts:
                for check in RING_CHECKS:
                    looks.add(host, check, "", set(ring.hosts) - {host})
        for delay in ring.delays:
            if delay.late is not None:
                looks.add(delay.source_host, "nccl-delay", delay.source_device, (delay.target_host,))
    for host, device in run.located:
        for check in ("wiring", "wiring-unknown"):
            looks.add(host, check, device)
    compared = len(run.hosts) >= _LEAST_COMPARED
    not_asked = set(run.not_asked)
    for report in run.hosts:
        looks.add(report.host, host_silent.CHECK.id)
        for value in report.values[:MOST_VALUES]:
            looks.add(report.host, VALUE, value_name(value.attribute, value.subject))
        for check in sorted(COMPARED) if compared else ():
            if check != clock_offset.CHECK.id or report.host not in not_asked:
                looks.add(report.host, check)
        if run.profile:
            # Another file need not pin the same.
            looks.add(report.host, profile_check.CHECK.id, run.profile)
            looks.add(report.host, profile_unproven.CHECK.id, run.profile)
    return looks.found()


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
            of_pairs = bool(test.side) and not test.peers
            alone = len(run.asked) < 2 and test.check == host_silent.CHECK.id
            if test.check == VALUE or of_pairs or alone:
                continue
            found.setdefault(test.check, {})[host] = Status.PASSED
            if test.check in (CHECK_OF["connectivity"], CHECK_OF["loss"], CHECK_OF["bandwidth"]):
                found.setdefault(path_untested.CHECK.id, {})[host] = Status.PASSED
    judged = {CHECK_OF[kind] for kind in LIMIT_OF} if run.profile else set[str]()
    for check in judged & found.keys():
        found.setdefault(sla_path.CHECK.id, {}).update(found[check])
    for finding in run.findings:
        for host in finding.suspects or (finding.host,):
            if host and (host, finding.check) not in own:
                by_host = found.setdefault(finding.check, {})
                if finding.suspects and by_host.get(host) is not Status.FAILED:
                    by_host[host] = Status.UNKNOWN
                elif not finding.suspects:
                    by_host[host] = Status.FAILED
    return found
